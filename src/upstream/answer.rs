//! The body of an upstream's answer, which gives its connection back when it ends.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::SendRequest;

use super::pool::Pool;

/// A streamed answer.
#[derive(Debug)]
pub struct Answer<B: Body + 'static> {
    source: Source<B>,
}

#[derive(Debug)]
enum Source<B: Body + 'static> {
    Connection { incoming: Incoming, lease: Option<Lease<B>> },
    Echo { head: Option<Bytes>, body: B },
}

/// A connection in use. Dropped before the answer has ended, it is closed.
#[derive(Debug)]
pub(super) struct Lease<B> {
    pub(super) sender: SendRequest<B>,
    pub(super) pool: Rc<Pool<B>>,
}

impl<B: Body + 'static> Lease<B> {
    fn end(self) {
        self.pool.give_back(self.sender);
    }
}

impl<B: Body + 'static> Answer<B> {
    pub(super) fn new(incoming: Incoming, lease: Lease<B>) -> Self {
        if incoming.is_end_stream() {
            lease.end();
            return Self { source: Source::Connection { incoming, lease: None } };
        }
        Self { source: Source::Connection { incoming, lease: Some(lease) } }
    }

    pub(super) fn echo(head: Bytes, body: B) -> Self {
        Self { source: Source::Echo { head: Some(head), body } }
    }
}

/// Why an answer's body broke off.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// The upstream's connection failed.
    #[error("the upstream's answer broke off")]
    Upstream(#[source] hyper::Error),
    /// The request's body failed while it was echoed.
    #[error("the request's body broke off")]
    Request,
}

impl<B> Body for Answer<B>
where
    B: Body<Data = Bytes> + Unpin + 'static,
{
    type Data = Bytes;
    type Error = AnswerError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnswerError>>> {
        match &mut self.source {
            Source::Connection { incoming, lease } => {
                let polled = Pin::new(&mut *incoming).poll_frame(cx);
                let ended = matches!(&polled, Poll::Ready(None)) || incoming.is_end_stream();
                match &polled {
                    Poll::Ready(Some(Err(_))) => drop(lease.take()),
                    Poll::Ready(_) if ended => lease.take().map_or((), Lease::end),
                    _ => {}
                }
                polled.map_err(AnswerError::Upstream)
            }
            Source::Echo { head, body } => match head.take() {
                Some(head) => Poll::Ready(Some(Ok(Frame::data(head)))),
                None => Pin::new(body).poll_frame(cx).map_err(|_| AnswerError::Request),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Connection { incoming, .. } => incoming.is_end_stream(),
            Source::Echo { head, body } => head.is_none() && body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Connection { incoming, .. } => incoming.size_hint(),
            Source::Echo { head, body } => {
                let head = head.as_ref().map_or(0, |head| head.len() as u64);
                match body.size_hint().exact() {
                    Some(rest) => SizeHint::with_exact(head.saturating_add(rest)),
                    None => SizeHint::default(),
                }
            }
        }
    }
}
