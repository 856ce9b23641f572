//! A layer that limits any service of tower, by a key that a function takes from the request.
//!
//! `cargo run --example tower`
#![expect(clippy::print_stdout, reason = "prints its results")]

use std::future::{self, Ready};
use std::hash::Hash;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use futures_util::future::Either;
use tower::{BoxError, Layer, Service, ServiceExt};
use weir_limiter::{Quota, RateLimiter, RetryAfter, Timestamp};

/// Limits the requests of each key. All services of the layer share the counters.
#[derive(Debug)]
pub(crate) struct RateLimitLayer<K, F> {
    limiter: Arc<RateLimiter<K>>,
    key_of: F,
}

impl<K: Hash, F: Clone> RateLimitLayer<K, F> {
    pub(crate) fn new(quota: Quota, key_of: F) -> Self {
        Self { limiter: Arc::new(RateLimiter::keyed(quota)), key_of }
    }
}

impl<S, K, F: Clone> Layer<S> for RateLimitLayer<K, F> {
    type Service = RateLimitedService<S, K, F>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimitedService { inner, limiter: Arc::clone(&self.limiter), key_of: self.key_of.clone() }
    }
}

/// A service behind a [`RateLimitLayer`].
#[derive(Debug)]
pub(crate) struct RateLimitedService<S, K, F> {
    inner: S,
    limiter: Arc<RateLimiter<K>>,
    key_of: F,
}

impl<R, S, K, F> Service<R> for RateLimitedService<S, K, F>
where
    S: Service<R, Error: From<RetryAfter>>,
    K: Hash,
    F: Fn(&R) -> K,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<Ready<Result<S::Response, S::Error>>, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        match self.limiter.check(&(self.key_of)(&request), now()) {
            Ok(_) => Either::Right(self.inner.call(request)),
            Err(rejected) => Either::Left(future::ready(Err(rejected.into()))),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a program, and not the library, reads the clock")]
fn now() -> Timestamp {
    SystemTime::now().into()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let layer = RateLimitLayer::new(Quota::per_minute(2).build()?, |name: &String| name.clone());
    let greet = |name: String| async move { Ok::<_, BoxError>(format!("hello {name}")) };
    let mut service = layer.layer(tower::service_fn(greet));
    for name in ["alice", "alice", "alice", "bob"] {
        match service.ready().await?.call(name.to_owned()).await {
            Ok(greeting) => println!("{greeting}"),
            Err(error) => println!("{name}: {error}"),
        }
    }
    Ok(())
}
