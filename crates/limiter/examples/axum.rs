//! A server with a limit per client address. It rejects with status 429 and the `retry-after` header field.
//!
//! `cargo run --example axum`, then `curl -i http://127.0.0.1:3000` a few times.

use std::error::Error;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing};
use tokio::net::TcpListener;
use weir_limiter::quota::InvalidQuota;
use weir_limiter::{Quota, RateLimiter, Timestamp};

/// Limits every client to one request a second, and five at once.
pub(crate) fn router() -> Result<Router, InvalidQuota> {
    let limiter = Arc::new(RateLimiter::keyed(Quota::per_second(1).burst(5).build()?));
    let routes = Router::new().route("/", routing::get(|| async { "hello\n" }));
    Ok(routes.layer(middleware::from_fn_with_state(limiter, limit_client)))
}

async fn limit_client(
    State(limiter): State<Arc<RateLimiter<IpAddr>>>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    match limiter.check(&network_of(client.ip()), now()) {
        Ok(_) => next.run(request).await,
        Err(rejected) => {
            let seconds = rejected.as_secs_rounded_up().to_string();
            let headers = [(header::RETRY_AFTER, seconds)];
            (StatusCode::TOO_MANY_REQUESTS, headers, format!("{rejected}\n")).into_response()
        }
    }
}

/// Returns what identifies a client: its IPv4 address, or the 64-bit prefix of its IPv6 address, because a client has all
/// addresses with that prefix.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

#[expect(clippy::disallowed_methods, reason = "a program, and not the library, reads the clock")]
fn now() -> Timestamp {
    SystemTime::now().into()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let service = router()?.into_make_service_with_connect_info::<SocketAddr>();
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    Ok(axum::serve(listener, service).await?)
}
