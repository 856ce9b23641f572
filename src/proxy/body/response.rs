//! Body of a response on its way to the client.

use std::collections::VecDeque;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::message::GrpcMessageBody;
use super::{RequestBody, with_held};
use crate::proxy::finish;
use crate::proxy::headers::identity::remove_forbidden_trailers;
use crate::proxy::request_context::{RequestContext, ResponseFlag};
use crate::proxy::streams::BodyGate;
use weir_http::http1::splice::Spliced;
use weir_http::message_body::MessageBody;
use weir_upstream::response_body::{UpstreamBodyError, UpstreamResponseBody};

/// Maximum bytes of a response that are read before its head is sent.
const MAX_PREFETCHED_SIZE: usize = 8 * 1024;
/// Minimum that each frame counts as, since frames may be empty.
const MIN_FRAME_SIZE: usize = 512;

/// Body of a response to a client, from the upstream or a local reply.
///
/// Holds the request's context: dropping the body ends the request, whether it was sent completely or not.
#[derive(Debug)]
pub(in crate::proxy) struct ResponseBody {
    content: ResponseContent,
    /// `None` if the request does not end with this body.
    context: Option<Box<RequestContext>>,
}

#[derive(Debug)]
enum ResponseContent {
    Local(Option<Bytes>),
    /// The response to a call for a decision.
    Message(Box<GrpcMessageBody>),
    /// There is no response: the connection is closed.
    Withheld,
    Upstream(UpstreamResponseBody<RequestBody>),
    /// An upstream's response of which some frames have been read already.
    Prefetched(Box<PrefetchedBody>),
}

/// The first frames of a response, and the rest of it.
#[derive(Debug)]
struct PrefetchedBody {
    frames: VecDeque<Frame<Bytes>>,
    remainder: UpstreamResponseBody<RequestBody>,
}

impl PrefetchedBody {
    fn prefetched_size(&self) -> u64 {
        let sizes = self.frames.iter().filter_map(Frame::data_ref).map(|data| data.len() as u64);
        sizes.fold(0, u64::saturating_add)
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UpstreamBodyError>>> {
        match self.frames.pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => Pin::new(&mut self.remainder).poll_frame(cx),
        }
    }
}

impl ResponseBody {
    /// Creates the body of a local reply.
    pub(in crate::proxy) fn local(content: Bytes, context: Box<RequestContext>) -> Self {
        let content = (!content.is_empty()).then_some(content);
        Self::new(ResponseContent::Local(content), context)
    }

    /// Creates the body of a successful gRPC call with one message, which is preceded by its length.
    pub(in crate::proxy) fn message(message: Bytes, context: Box<RequestContext>) -> Self {
        Self::new(ResponseContent::Message(Box::new(GrpcMessageBody::new(message))), context)
    }

    /// Ends a request without a response, whose connection is to be closed.
    pub(in crate::proxy) fn withheld(mut context: Box<RequestContext>) -> Self {
        finish::response_complete(&mut context);
        Self { content: ResponseContent::Withheld, context: Some(context) }
    }

    /// Whether the connection is to be closed without a response.
    pub(in crate::proxy) const fn is_withheld(&self) -> bool {
        matches!(self.content, ResponseContent::Withheld)
    }

    /// Creates the body of an upstream's response.
    pub(in crate::proxy) fn upstream(
        response: UpstreamResponseBody<RequestBody>,
        context: Box<RequestContext>,
    ) -> Self {
        Self::new(ResponseContent::Upstream(response), context)
    }

    /// Whether this is the body of a local reply.
    pub(in crate::proxy) const fn is_local(&self) -> bool {
        matches!(self.content, ResponseContent::Local(_))
    }

    /// Creates an empty body whose request does not end with it, such as that of an upgrade.
    pub(in crate::proxy) fn empty() -> Self {
        Self { content: ResponseContent::Local(None), context: None }
    }

    /// Records that the response is complete without this body.
    pub(in crate::proxy) fn omit(&mut self) {
        let is_left = !self.is_end_stream();
        if let Some(context) = self.context.as_mut().filter(|_| is_left) {
            finish::body_omitted(context);
        }
    }

    /// Returns the context of an upstream's response that has failed.
    pub(in crate::proxy) fn into_broken_context(self) -> Option<Box<RequestContext>> {
        let is_upstreams =
            matches!(self.content, ResponseContent::Upstream(_) | ResponseContent::Prefetched(_));
        self.context.filter(|context| is_upstreams && has_broken_off(context))
    }

    /// Reads what has already arrived of an upstream's response, before any of it is sent. Returns the context if that
    /// has failed, so that another response can be sent.
    pub(in crate::proxy) fn prefetch(&mut self, cx: &mut Context<'_>) -> Option<Box<RequestContext>> {
        let ResponseContent::Upstream(upstream) = &mut self.content else { return None };
        let (mut frames, mut size) = (VecDeque::new(), 0);
        while size < MAX_PREFETCHED_SIZE {
            match Pin::new(&mut *upstream).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    size += frame.data_ref().map_or(MAX_PREFETCHED_SIZE, Bytes::len).max(MIN_FRAME_SIZE);
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
            && let ResponseContent::Upstream(upstream) =
                mem::replace(&mut self.content, ResponseContent::Local(None))
        {
            self.content =
                ResponseContent::Prefetched(Box::new(PrefetchedBody { frames, remainder: upstream }));
        }
        None
    }

    /// Drops the content of a response to HEAD. Returns the length of the content, if known.
    pub(in crate::proxy) fn withhold(&mut self) -> Option<u64> {
        let length = if self.is_end_stream() { None } else { self.size_hint().exact() };
        self.omit();
        self.content = ResponseContent::Local(None);
        length
    }

    fn new(content: ResponseContent, mut context: Box<RequestContext>) -> Self {
        if !matches!(content, ResponseContent::Upstream(_)) {
            // No limit holds a local reply.
            context.streams = None;
        }
        // The client has no room for the body until it polls for it.
        context.timer.data_ready(0);
        let mut body = Self { content, context: Some(context) };
        body.waive_min_rate_once_received();
        body.complete_at_end();
        body
    }

    /// Waives the minimum rate once the response has arrived completely: a slow client then no longer occupies the
    /// upstream.
    fn waive_min_rate_once_received(&self) {
        let is_in_flight = match &self.content {
            ResponseContent::Local(_) | ResponseContent::Message(_) | ResponseContent::Withheld => false,
            ResponseContent::Upstream(upstream) => upstream.is_in_flight(),
            ResponseContent::Prefetched(ahead) => ahead.remainder.is_in_flight(),
        };
        if let Some(context) = self.context.as_ref().filter(|_| !is_in_flight) {
            context.timer.waive_min_rate();
        }
    }

    /// Returns the limits on the body.
    fn gate(&self) -> Option<&BodyGate> {
        self.context.as_ref()?.streams.as_ref()?.of_response()
    }

    fn complete_at_end(&mut self) {
        if self.is_end_stream()
            && let Some(context) = &mut self.context
        {
            finish::response_complete(context);
        }
    }
}

/// Records that a part of the response body has been passed on; `None` for trailers.
fn record_sent(context: &mut RequestContext, data: Option<&Bytes>) {
    context.bytes_sent = context.bytes_sent.saturating_add(data.map_or(0, |data| data.len() as u64));
    if let (Some(reader), Some(data)) = (&mut context.stated_cost, data) {
        reader.read(data);
    }
    context.recorder.take_if(|recorder| !data.is_some_and(|data| recorder.record_data(data)));
}

/// Whether the response body has failed.
fn has_broken_off(context: &RequestContext) -> bool {
    context.is_complete && context.flag == ResponseFlag::UpstreamClosed
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = UpstreamBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamBodyError>>> {
        if let Some(context) = &self.context {
            context.timer.data_polled();
        }
        let Self { content, context } = &mut *self;
        let mut polled = match context.as_mut().and_then(|context| context.response_gate()) {
            None => content.poll_frame(cx),
            Some(gate) => gate.poll_frame(cx, |cx| content.poll_frame(cx)),
        };
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(trailers) = frame.trailers_mut()
        {
            remove_forbidden_trailers(trailers);
        }
        if let Some(context) = &mut self.context {
            match &polled {
                Poll::Ready(Some(Ok(frame))) => {
                    frame.trailers_ref().inspect(|trailers| finish::record_trailers(context, trailers));
                    record_sent(context, frame.data_ref());
                    context.timer.data_ready(frame.data_ref().map_or(0, Bytes::len));
                }
                Poll::Ready(Some(Err(_))) => finish::response_broken_off(context),
                Poll::Ready(None) => finish::response_complete(context),
                Poll::Pending => {}
            }
        }
        self.waive_min_rate_once_received();
        self.complete_at_end();
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_end_stream() && self.gate().is_none_or(|gate| gate.held() == 0)
    }

    fn size_hint(&self) -> SizeHint {
        with_held(self.content.size_hint(), self.gate())
    }
}

impl MessageBody for ResponseBody {
    fn poll_splice(&mut self, max: usize, cx: &mut Context<'_>) -> Spliced<UpstreamBodyError> {
        let ResponseContent::Upstream(upstream) = &mut self.content else { return None };
        let context = self.context.as_mut().filter(|context| !context.reads_response())?;
        context.timer.data_polled();
        let spliced = upstream.poll_splice(max, cx)?;
        match &spliced {
            Poll::Ready(Ok(pipe)) => {
                context.bytes_sent = context.bytes_sent.saturating_add(pipe.held() as u64);
                context.timer.data_ready(pipe.held());
            }
            Poll::Ready(Err(_)) => finish::response_broken_off(context),
            Poll::Pending => {}
        }
        self.waive_min_rate_once_received();
        self.complete_at_end();
        Some(spliced)
    }
}

impl ResponseContent {
    #[inline]
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UpstreamBodyError>>> {
        match self {
            Self::Local(content) => Poll::Ready(content.take().map(|content| Ok(Frame::data(content)))),
            Self::Message(message) => Poll::Ready(message.next_frame().map(Ok)),
            Self::Withheld => Poll::Ready(None),
            Self::Upstream(upstream) => Pin::new(upstream).poll_frame(cx),
            Self::Prefetched(ahead) => ahead.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Local(content) => content.is_none(),
            Self::Message(message) => message.is_sent(),
            Self::Withheld => true,
            Self::Upstream(upstream) => upstream.is_end_stream(),
            Self::Prefetched(ahead) => ahead.frames.is_empty() && ahead.remainder.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Local(content) => SizeHint::with_exact(content.as_ref().map_or(0, |all| all.len() as u64)),
            Self::Message(_) => SizeHint::default(),
            Self::Withheld => SizeHint::with_exact(0),
            Self::Upstream(upstream) => upstream.size_hint(),
            Self::Prefetched(ahead) => {
                let rest = ahead.remainder.size_hint().exact();
                rest.map_or_else(SizeHint::default, |rest| {
                    SizeHint::with_exact(rest.saturating_add(ahead.prefetched_size()))
                })
            }
        }
    }
}
