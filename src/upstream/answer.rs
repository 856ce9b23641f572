//! The body of an upstream's answer, which gives its connection back when it ends.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::http1::streaming::Streaming;
use super::http2::streaming::Streaming as Http2Streaming;
use super::in_flight::InFlight;
use super::tunnel::{Tunnel, Way};

/// A streamed answer.
#[derive(Debug)]
pub struct Answer<B> {
    source: Source<B>,
    /// The request is under way until this is gone.
    held: Option<InFlight>,
}

#[derive(Debug)]
enum Source<B> {
    /// All there was came with the head.
    Whole(Option<Bytes>),
    /// Dropped before the answer has ended, it closes its connection.
    Streaming(Box<Streaming>),
    /// The connection, or the stream, is no longer one of HTTP.
    Switched(Way),
    /// Dropped before the answer has ended, it resets its stream.
    Http2(Box<Http2Streaming>),
    Echo(Box<Echo<B>>),
}

/// A request told back.
#[derive(Debug)]
struct Echo<B> {
    head: Option<Bytes>,
    body: B,
}

impl<B> Answer<B> {
    pub(super) fn whole(content: Bytes) -> Self {
        Self::of(Source::Whole((!content.is_empty()).then_some(content)))
    }

    pub(super) fn streaming(streaming: Streaming) -> Self {
        Self::of(Source::Streaming(Box::new(streaming)))
    }

    pub(super) fn switched(way: Way) -> Self {
        Self::of(Source::Switched(way))
    }

    /// What is left of the connection or stream after an answer of 101 (RFC 9110 section 15.2.2).
    pub fn into_tunnel(self) -> Option<Tunnel> {
        match self.source {
            Source::Switched(way) => Some(Tunnel::new(way, self.held)),
            _ => None,
        }
    }

    pub(super) fn http2(streaming: Http2Streaming) -> Self {
        Self::of(Source::Http2(Box::new(streaming)))
    }

    pub(super) fn echo(head: Bytes, body: B) -> Self {
        Self::of(Source::Echo(Box::new(Echo { head: Some(head), body })))
    }
}

impl<B> Answer<B> {
    fn of(source: Source<B>) -> Self {
        Self { source, held: None }
    }

    /// Keeps `held` until all of the answer has come from the upstream, however long its client takes to read it, and all of
    /// the request has been sent.
    pub(super) fn hold(&mut self, held: Option<InFlight>) {
        let held = match &self.source {
            Source::Streaming(streaming) => held.and_then(|held| streaming.hold(held)),
            _ => held,
        };
        self.held = held.filter(|_| !self.has_come());
    }

    /// Whether the request is in flight to the upstream still.
    pub fn is_in_flight(&self) -> bool {
        self.held.is_some()
            || matches!(&self.source, Source::Streaming(streaming) if streaming.is_uploading())
    }

    /// Whether nothing more is to come from the upstream.
    fn has_come(&self) -> bool {
        match &self.source {
            Source::Whole(_) => true,
            Source::Streaming(streaming) => streaming.length().is_over(),
            Source::Http2(streaming) => streaming.is_over() && !streaming.is_uploading(),
            Source::Switched(_) | Source::Echo(_) => false,
        }
    }
}

/// Why an answer's body broke off.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// The upstream's connection failed or ended too early, or what came was not HTTP.
    #[error("the upstream's answer broke off")]
    Upstream(#[source] io::Error),
    /// The request's body failed while it was echoed.
    #[error("the request's body broke off")]
    Request,
}

impl<B> Body for Answer<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = AnswerError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnswerError>>> {
        let polled = match &mut self.source {
            Source::Switched(_) => Poll::Ready(None),
            Source::Whole(content) => Poll::Ready(content.take().map(|content| Ok(Frame::data(content)))),
            Source::Streaming(streaming) => streaming.poll_frame(cx).map_err(AnswerError::Upstream),
            Source::Http2(streaming) => streaming.poll_frame(cx).map_err(AnswerError::Upstream),
            Source::Echo(echo) => match echo.head.take() {
                Some(head) => Poll::Ready(Some(Ok(Frame::data(head)))),
                None => Pin::new(&mut echo.body).poll_frame(cx).map_err(|_| AnswerError::Request),
            },
        };
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) || (polled.is_ready() && self.has_come()) {
            self.held = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Switched(_) => true,
            Source::Whole(content) => content.is_none(),
            Source::Streaming(streaming) => streaming.length().is_over(),
            Source::Http2(streaming) => streaming.is_over(),
            Source::Echo(echo) => echo.head.is_none() && echo.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Switched(_) => exactly(0),
            Source::Whole(content) => exactly(content.as_ref().map_or(0, |content| content.len() as u64)),
            Source::Streaming(streaming) => streaming.length().left().map_or_else(SizeHint::default, exactly),
            Source::Http2(streaming) => streaming.left().map_or_else(SizeHint::default, exactly),
            Source::Echo(echo) => {
                let head = echo.head.as_ref().map_or(0, |head| head.len() as u64);
                let rest = echo.body.size_hint().exact();
                rest.map_or_else(SizeHint::default, |rest| exactly(head.saturating_add(rest)))
            }
        }
    }
}

fn exactly(octets: u64) -> SizeHint {
    SizeHint::with_exact(octets)
}
