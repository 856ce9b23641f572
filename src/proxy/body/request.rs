//! Body of a request on its way to the upstream.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::replay::{ReplayBody, ReplayBuffer};
use super::{DownstreamBody, DownstreamBodyError, with_held};
use crate::proxy::headers::identity::sanitize_trailers;
use crate::proxy::request_context::{RequestContext, UploadProgress};
use crate::proxy::streams::BodyGate;
use crate::proxy::timeouts::{Timeout, UploadTimer};
use weir_http::http1::splice::Spliced;
use weir_http::message_body::MessageBody;

/// Body of a request on its way from the client to the upstream.
///
/// Values of this type are moved often and most requests have no body, so the state of a body is boxed.
#[derive(Debug)]
pub(in crate::proxy) enum RequestBody {
    /// No body.
    None,
    /// Streamed from the client.
    Incoming(Box<(DownstreamBody, UploadMonitor)>),
    /// Read from a replay buffer, so that it can be sent again.
    Replayed(ReplayBody),
}

/// State of an upload in progress.
#[derive(Debug)]
pub(in crate::proxy) struct UploadMonitor {
    timer: UploadTimer,
    response_timeout: Timeout,
    progress: Rc<UploadProgress>,
    /// Limits on the body.
    gate: Option<Box<BodyGate>>,
}

impl RequestBody {
    /// Creates a body to be streamed. The head of the response is due `response_timeout` after its last byte.
    pub(in crate::proxy) fn new(
        incoming: DownstreamBody,
        context: &mut RequestContext,
        response_timeout: Timeout,
    ) -> Self {
        if incoming.is_end_stream() {
            context.timer.await_response(response_timeout);
            return Self::None;
        }
        let progress = Rc::clone(context.upload.get_or_insert_default());
        let timer = UploadTimer::start(&context.timer);
        let gate = context.streams.as_ref().and_then(|streams| streams.of_request());
        let upload = UploadMonitor { timer, response_timeout, progress, gate };
        Self::Incoming(Box::new((incoming, upload)))
    }

    /// Creates a body that reads `replay` from its beginning.
    pub(in crate::proxy) fn replayed(replay: &Rc<RefCell<ReplayBuffer>>) -> Self {
        Self::Replayed(ReplayBody { replay: Rc::clone(replay), next: 0 })
    }
}

impl UploadMonitor {
    /// Returns the next frame of the body, as far as the limits on it have room.
    fn poll_frame(
        &mut self,
        incoming: &mut DownstreamBody,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, DownstreamBodyError>>> {
        match &mut self.gate {
            None => Pin::new(incoming).poll_frame(cx),
            Some(gate) => gate.poll_frame(cx, |cx| Pin::new(&mut *incoming).poll_frame(cx)),
        }
    }

    /// Whether the limits on the body hold a part of it.
    fn holds(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.holds())
    }

    /// Whether nothing of the body is left to be passed on.
    fn is_at_end(&self, incoming: &DownstreamBody) -> bool {
        self.gate.as_ref().is_none_or(|gate| gate.held() == 0) && incoming.is_end_stream()
    }

    fn record_poll(&self, polled: &Poll<Option<Result<Frame<Bytes>, DownstreamBodyError>>>, ended: bool) {
        match polled {
            Poll::Ready(Some(Ok(frame))) => {
                self.record_received(frame.data_ref().map_or(0, |data| data.len() as u64));
            }
            Poll::Pending => self.timer.data_awaited(),
            Poll::Ready(Some(Err(_))) => self.progress.failed.set(true),
            Poll::Ready(_) => {}
        }
        if ended {
            self.record_end();
        }
    }

    fn record_received(&self, bytes: u64) {
        self.progress.received.set(self.progress.received.get().saturating_add(bytes));
        self.timer.received(bytes);
    }

    fn record_end(&self) {
        if !self.progress.ended.replace(true) && !self.progress.failed.get() {
            self.timer.body_complete();
            self.timer.await_response(self.response_timeout);
        }
    }
}

impl MessageBody for RequestBody {
    fn poll_splice(&mut self, max: usize, cx: &mut Context<'_>) -> Spliced<DownstreamBodyError> {
        let Self::Incoming(streamed) = self else { return None };
        let (incoming, upload) = &mut **streamed;
        if upload.gate.is_some() || upload.timer.is_expired(cx) {
            return None;
        }
        let spliced = incoming.poll_splice(max, cx)?;
        match &spliced {
            Poll::Ready(Ok(pipe)) => upload.record_received(pipe.held() as u64),
            Poll::Ready(Err(_)) => upload.progress.failed.set(true),
            Poll::Pending => upload.timer.data_awaited(),
        }
        if upload.is_at_end(incoming) {
            upload.record_end();
        }
        Some(spliced)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = DownstreamBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, DownstreamBodyError>>> {
        match &mut *self {
            Self::None => Poll::Ready(None),
            Self::Incoming(streamed) => {
                let (incoming, upload) = &mut **streamed;
                if upload.timer.is_expired(cx) {
                    let error = DownstreamBodyError::Http1(io::ErrorKind::TimedOut.into());
                    return Poll::Ready(Some(Err(error)));
                }
                let mut polled = upload.poll_frame(incoming, cx);
                if polled.is_pending() && upload.holds() {
                    upload.timer.data_held();
                    return Poll::Pending;
                }
                if let Poll::Ready(Some(Ok(frame))) = &mut polled
                    && let Some(trailers) = frame.trailers_mut()
                {
                    sanitize_trailers(trailers);
                }
                let ended = matches!(polled, Poll::Ready(None)) || upload.is_at_end(incoming);
                upload.record_poll(&polled, ended);
                polled
            }
            Self::Replayed(replayed) => replayed.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::None => true,
            Self::Incoming(streamed) => streamed.1.is_at_end(&streamed.0),
            Self::Replayed(replayed) => replayed.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::None => SizeHint::with_exact(0),
            Self::Incoming(streamed) => with_held(streamed.0.size_hint(), streamed.1.gate.as_deref()),
            Self::Replayed(replayed) => replayed.size_hint(),
        }
    }
}
