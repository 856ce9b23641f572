//! The response to a request: at once, or as a future.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::deferred::accept::AcceptFuture;
use super::held::HeldFuture;
use super::local_reply::DownstreamResponse;

/// The response to a request.
pub(super) enum RequestOutcome<F> {
    /// It was available at once.
    Response(DownstreamResponse),
    /// It has to be awaited.
    Pending(ResponseFuture<F>),
}

/// Future of the response to a request. It is small, because what it needs is on the heap.
pub(super) enum ResponseFuture<F> {
    /// A request that is held until its limits admit it. The future that forwards it is large, and is created only then.
    Held(HeldFuture<F>),
    /// A request that is being forwarded.
    Forwarding(Pin<Box<F>>),
    /// A request that is being stored, to be sent later.
    Accepting(AcceptFuture),
    /// A call whose message describes the request to decide.
    Answering(Pin<Box<dyn Future<Output = DownstreamResponse>>>),
}

impl<F> From<DownstreamResponse> for RequestOutcome<F> {
    fn from(response: DownstreamResponse) -> Self {
        Self::Response(response)
    }
}

impl<F> From<ResponseFuture<F>> for RequestOutcome<F> {
    fn from(future: ResponseFuture<F>) -> Self {
        Self::Pending(future)
    }
}

impl<F: Future<Output = DownstreamResponse>> Future for ResponseFuture<F> {
    type Output = DownstreamResponse;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut *self {
                Self::Forwarding(forwarding) => return forwarding.as_mut().poll(cx),
                Self::Held(held) => match ready!(held.as_mut().poll(cx)) {
                    Ok(admitted) => *self = Self::Forwarding(admitted),
                    Err(rejection) => return Poll::Ready(rejection),
                },
                Self::Accepting(accepting) => return accepting.as_mut().poll(cx),
                Self::Answering(answering) => return answering.as_mut().poll(cx),
            }
        }
    }
}
