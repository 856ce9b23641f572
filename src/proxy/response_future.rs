//! Future of the response to a request.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::deferred::accept::AcceptFuture;
use super::held::HeldFuture;
use super::local_reply::DownstreamResponse;

/// Future of the response to a request.
#[expect(clippy::large_enum_variant, reason = "a reply had at once needs no memory of its own")]
pub(super) enum ResponseFuture<F, H> {
    /// A response that was available at once; taken when polled.
    Ready(Option<DownstreamResponse>),
    /// A request that is being forwarded.
    Forwarding(Pin<Box<F>>),
    /// A request that is held until its limits admit it, and then forwarded.
    Held(HeldFuture<H>),
    /// A request that is being stored, to be sent later.
    Accepting(AcceptFuture),
}

impl<F, H> Future for ResponseFuture<F, H>
where
    F: Future<Output = DownstreamResponse>,
    H: Future<Output = DownstreamResponse>,
{
    type Output = DownstreamResponse;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            // A future that is polled after completion may stay pending forever.
            Self::Ready(reply) => reply.take().map_or(Poll::Pending, Poll::Ready),
            Self::Forwarding(forwarding) => forwarding.as_mut().poll(cx),
            Self::Held(held) => Pin::new(held).poll(cx),
            Self::Accepting(accepting) => accepting.as_mut().poll(cx),
        }
    }
}
