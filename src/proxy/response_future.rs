//! The response to a request: at once, or as a future.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::deferred::accept::AcceptFuture;
use super::held::HeldFuture;
use super::local_reply::DownstreamResponse;

/// The response to a request.
pub(super) enum RequestOutcome<F, H> {
    /// It was available at once.
    Response(DownstreamResponse),
    /// It has to be awaited.
    Pending(ResponseFuture<F, H>),
}

/// Future of the response to a request. It is small, because what it needs is on the heap.
pub(super) enum ResponseFuture<F, H> {
    /// A request that is being forwarded.
    Forwarding(Pin<Box<F>>),
    /// A request that is held until its limits admit it, and then forwarded.
    Held(HeldFuture<H>),
    /// A request that is being stored, to be sent later.
    Accepting(AcceptFuture),
}

impl<F, H> From<DownstreamResponse> for RequestOutcome<F, H> {
    fn from(response: DownstreamResponse) -> Self {
        Self::Response(response)
    }
}

impl<F, H> From<ResponseFuture<F, H>> for RequestOutcome<F, H> {
    fn from(future: ResponseFuture<F, H>) -> Self {
        Self::Pending(future)
    }
}

impl<F, H> Future for ResponseFuture<F, H>
where
    F: Future<Output = DownstreamResponse>,
    H: Future<Output = DownstreamResponse>,
{
    type Output = DownstreamResponse;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Forwarding(forwarding) => forwarding.as_mut().poll(cx),
            Self::Held(held) => Pin::new(held).poll(cx),
            Self::Accepting(accepting) => accepting.as_mut().poll(cx),
        }
    }
}
