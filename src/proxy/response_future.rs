//! Future of the response to a request.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::deferred::accept::AcceptFuture;
use super::local_reply::DownstreamResponse;

/// Future of the response to a request that is held until its limits admit it. The future that forwards it is large, and
/// is created only then.
pub(super) enum HeldFuture<F> {
    /// The request is held. The result is the future that forwards it, or the response to a rejection.
    Held(Pin<Box<dyn Future<Output = Result<Pin<Box<F>>, DownstreamResponse>>>>),
    /// It is being forwarded.
    Forwarding(Pin<Box<F>>),
}

impl<F: Future<Output = DownstreamResponse>> Future for HeldFuture<F> {
    type Output = DownstreamResponse;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut *self {
                Self::Held(held) => match ready!(held.as_mut().poll(cx)) {
                    Ok(forwarding) => *self = Self::Forwarding(forwarding),
                    Err(rejection) => return Poll::Ready(rejection),
                },
                Self::Forwarding(forwarding) => return forwarding.as_mut().poll(cx),
            }
        }
    }
}

/// Future of the response to a request.
#[expect(clippy::large_enum_variant, reason = "a reply had at once needs no memory of its own")]
pub(super) enum ResponseFuture<F> {
    /// A response that was available at once; taken when polled.
    Ready(Option<DownstreamResponse>),
    /// A request that is being forwarded.
    Forwarding(Pin<Box<F>>),
    /// A request that is held until its limits admit it, and then forwarded.
    Held(HeldFuture<F>),
    /// A request that is being stored, to be sent later.
    Accepting(AcceptFuture),
}

impl<F: Future<Output = DownstreamResponse>> Future for ResponseFuture<F> {
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
