//! Bodies on their way through: streamed frame by frame, never gathered.

mod incoming;
mod replay;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

pub(super) use self::incoming::{Incoming, Interrupted};
pub(super) use self::replay::Replay;
use self::replay::Replayed;
use super::finish;
use super::headers::identity::clean_trailers;
use super::request_context::{RequestContext, ResponseFlag, UploadProgress};
use super::timeouts::{Timeout, UploadTimer};
use crate::upstream::answer::{Answer, AnswerError};

/// What is read of an answer before its head is sent.
const MAX_AHEAD: usize = 8 * 1024;
/// What a frame counts as at the least: one may be empty.
const MIN_FRAME: usize = 512;

/// A client's request body on its way to the upstream.
///
/// It is handed on often and mostly there is none, so what it needs is apart.
#[derive(Debug)]
pub(super) enum RequestBody {
    /// There is none.
    None,
    /// As it comes from the client.
    Incoming(Box<(Incoming, Upload)>),
    /// As it was kept, where it may be asked for again.
    Replayed(Replayed),
}

/// What has to be known about a body while it is sent.
#[derive(Debug)]
pub(super) struct Upload {
    timer: UploadTimer,
    response_timeout: Timeout,
    progress: Rc<UploadProgress>,
}

impl RequestBody {
    /// A body to be streamed; the response's head is due `response_timeout` after its last byte.
    pub(super) fn new(incoming: Incoming, context: &mut RequestContext, response_timeout: Timeout) -> Self {
        if incoming.is_end_stream() {
            context.timer.await_response(response_timeout);
            return Self::None;
        }
        let progress = Rc::clone(context.upload.get_or_insert_default());
        let upload = Upload { timer: UploadTimer::start(&context.timer), response_timeout, progress };
        Self::Incoming(Box::new((incoming, upload)))
    }

    /// The body of `replay` from its beginning.
    pub(super) fn replayed(replay: &Rc<RefCell<Replay>>) -> Self {
        Self::Replayed(Replayed { replay: Rc::clone(replay), next: 0 })
    }
}

impl Upload {
    fn note(&self, polled: &Poll<Option<Result<Frame<Bytes>, Interrupted>>>, ended: bool) {
        match polled {
            Poll::Ready(Some(Ok(frame))) => {
                let octets = frame.data_ref().map_or(0, |data| data.len() as u64);
                self.progress.received.set(self.progress.received.get().saturating_add(octets));
                self.timer.received(octets);
            }
            Poll::Pending => self.timer.awaits(),
            Poll::Ready(Some(Err(_))) => self.progress.failed.set(true),
            Poll::Ready(_) => {}
        }
        if ended && !self.progress.ended.replace(true) && !self.progress.failed.get() {
            self.timer.is_whole();
            self.timer.await_response(self.response_timeout);
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Interrupted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Interrupted>>> {
        match &mut *self {
            Self::None => Poll::Ready(None),
            Self::Incoming(streamed) => {
                let (incoming, upload) = &mut **streamed;
                if upload.timer.is_expired(cx) {
                    let error = Interrupted::Http1(io::ErrorKind::TimedOut.into());
                    return Poll::Ready(Some(Err(error)));
                }
                let mut polled = Pin::new(&mut *incoming).poll_frame(cx);
                if let Poll::Ready(Some(Ok(frame))) = &mut polled
                    && let Some(trailers) = frame.trailers_mut()
                {
                    clean_trailers(trailers);
                }
                let ended = matches!(polled, Poll::Ready(None)) || incoming.is_end_stream();
                upload.note(&polled, ended);
                polled
            }
            Self::Replayed(replayed) => replayed.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::None => true,
            Self::Incoming(streamed) => streamed.0.is_end_stream(),
            Self::Replayed(replayed) => replayed.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::None => SizeHint::with_exact(0),
            Self::Incoming(streamed) => streamed.0.size_hint(),
            Self::Replayed(replayed) => replayed.size_hint(),
        }
    }
}

/// The body of an answer to a client, ours or the upstream's.
///
/// Holds the request's context: when the body is dropped, sent or not, the request is over.
#[derive(Debug)]
pub(super) struct ResponseBody {
    content: Content,
    /// `None` where the request goes on without it.
    context: Option<Box<RequestContext>>,
}

#[derive(Debug)]
enum Content {
    Ours(Option<Bytes>),
    Upstream(Answer<RequestBody>),
    /// The same, of which some has been read already.
    Ahead(Box<Ahead>),
}

/// An answer, and the first frames of it.
#[derive(Debug)]
struct Ahead {
    frames: VecDeque<Frame<Bytes>>,
    answer: Answer<RequestBody>,
}

impl Ahead {
    fn octets(&self) -> u64 {
        let octets = self.frames.iter().filter_map(Frame::data_ref).map(|data| data.len() as u64);
        octets.fold(0, u64::saturating_add)
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, AnswerError>>> {
        match self.frames.pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => Pin::new(&mut self.answer).poll_frame(cx),
        }
    }
}

impl ResponseBody {
    /// An answer of our own.
    pub(super) fn ours(content: Bytes, context: Box<RequestContext>) -> Self {
        let content = (!content.is_empty()).then_some(content);
        Self::new(Content::Ours(content), context)
    }

    /// The upstream's answer.
    pub(super) fn upstream(answer: Answer<RequestBody>, context: Box<RequestContext>) -> Self {
        Self::new(Content::Upstream(answer), context)
    }

    /// The body of an answer that has none, and whose context goes on in another way.
    pub(super) fn none() -> Self {
        Self { content: Content::Ours(None), context: None }
    }

    /// The answer is complete without it.
    pub(super) fn leave_out(&mut self) {
        let is_left = !self.is_end_stream();
        if let Some(context) = self.context.as_mut().filter(|_| is_left) {
            finish::body_omitted(context);
        }
    }

    /// The context of an answer that has broken off.
    pub(super) fn into_broken(self) -> Option<Box<RequestContext>> {
        let is_upstreams = matches!(self.content, Content::Upstream(_) | Content::Ahead(_));
        self.context.filter(|context| is_upstreams && has_broken_off(context))
    }

    /// Reads what has come already of an upstream's answer, of which nothing has been sent yet. Where that has broken off,
    /// its context is to be answered in another way.
    pub(super) fn look_ahead(&mut self, cx: &mut Context<'_>) -> Option<Box<RequestContext>> {
        let Content::Upstream(answer) = &mut self.content else { return None };
        let (mut frames, mut octets) = (VecDeque::new(), 0);
        while octets < MAX_AHEAD {
            match Pin::new(&mut *answer).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    octets += frame.data_ref().map_or(MAX_AHEAD, Bytes::len).max(MIN_FRAME);
                    frames.push_back(frame);
                }
                Poll::Ready(Some(Err(_))) => {
                    let mut context = self.context.take()?;
                    finish::response_broken_off(&mut context);
                    return Some(context);
                }
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        if !frames.is_empty()
            && let Content::Upstream(answer) = mem::replace(&mut self.content, Content::Ours(None))
        {
            self.content = Content::Ahead(Box::new(Ahead { frames, answer }));
        }
        None
    }

    /// The response is one to HEAD: its content is not sent. The length that the content has, where that is known.
    pub(super) fn withhold(&mut self) -> Option<u64> {
        let length = if self.is_end_stream() { None } else { self.size_hint().exact() };
        self.leave_out();
        self.content = Content::Ours(None);
        length
    }

    fn new(content: Content, context: Box<RequestContext>) -> Self {
        // Until it is asked for, its client has not made room for it.
        context.timer.data_ready(0);
        let mut body = Self { content, context: Some(context) };
        body.note_in_flight();
        body.note_end();
        body
    }

    /// A client that takes long over an answer which has come whole holds nothing of the upstream.
    fn note_in_flight(&self) {
        let is_in_flight = match &self.content {
            Content::Ours(_) => false,
            Content::Upstream(answer) => answer.is_in_flight(),
            Content::Ahead(ahead) => ahead.answer.is_in_flight(),
        };
        if let Some(context) = self.context.as_ref().filter(|_| !is_in_flight) {
            context.timer.waive_min_rate();
        }
    }

    fn note_end(&mut self) {
        if self.is_end_stream()
            && let Some(context) = &mut self.context
        {
            finish::response_complete(context);
        }
    }
}

/// A part of the response's body has been handed over; `None` for its trailers.
fn record_sent(context: &mut RequestContext, data: Option<&Bytes>) {
    context.bytes_sent = context.bytes_sent.saturating_add(data.map_or(0, |data| data.len() as u64));
    context.recorder.take_if(|recorder| !data.is_some_and(|data| recorder.data(data)));
}

/// Whether the response's body has broken off.
fn has_broken_off(context: &RequestContext) -> bool {
    context.is_complete && context.flag == ResponseFlag::UpstreamClosed
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = AnswerError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnswerError>>> {
        if let Some(context) = &self.context {
            context.timer.data_polled();
        }
        let polled = match &mut self.content {
            Content::Ours(content) => Poll::Ready(content.take().map(|content| Ok(Frame::data(content)))),
            Content::Upstream(answer) => Pin::new(answer).poll_frame(cx),
            Content::Ahead(ahead) => ahead.poll_frame(cx),
        };
        if let Some(context) = &mut self.context {
            match &polled {
                Poll::Ready(Some(Ok(frame))) => {
                    frame.trailers_ref().inspect(|trailers| finish::trailers(context, trailers));
                    record_sent(context, frame.data_ref());
                    context.timer.data_ready(frame.data_ref().map_or(0, Bytes::len));
                }
                Poll::Ready(Some(Err(_))) => finish::response_broken_off(context),
                Poll::Ready(None) => finish::response_complete(context),
                Poll::Pending => {}
            }
        }
        self.note_in_flight();
        self.note_end();
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Ours(content) => content.is_none(),
            Content::Upstream(answer) => answer.is_end_stream(),
            Content::Ahead(ahead) => ahead.frames.is_empty() && ahead.answer.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Ours(content) => {
                SizeHint::with_exact(content.as_ref().map_or(0, |all| all.len() as u64))
            }
            Content::Upstream(answer) => answer.size_hint(),
            Content::Ahead(ahead) => {
                let rest = ahead.answer.size_hint().exact();
                rest.map_or_else(SizeHint::default, |rest| {
                    SizeHint::with_exact(rest.saturating_add(ahead.octets()))
                })
            }
        }
    }
}
