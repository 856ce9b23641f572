//! One stream: handles its request and sends the response.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use http::header::EXPECT;
use http::{Method, Request};

use super::response::{self, StartedResponse};
use crate::proxy::body::DownstreamBody;
use crate::proxy::connection::DownstreamConnection;
use crate::proxy::headers::identity::is_identity_header;
use crate::proxy::local_reply::DownstreamResponse;
use crate::proxy::pipeline;
use crate::proxy::request_context::UpgradedRequest;
use crate::proxy::response_future::RequestOutcome;
use crate::proxy::timeouts::{RequestTimer, TimeoutKind};
use crate::proxy::tunnel;
use crate::proxy::unanswered;
use weir_http::headers::remove_hop_by_hop;
use weir_http::http1::head::{ReceivedHead, has_token};
use weir_http::http1::interim::InterimRoom;
use weir_http::http2::{Http2Error, Reason, ReceiveStream, Responder};
use weir_net::overload::LoadShed;
use weir_net::transport::{Http2Body, Http2Stream};

/// A stream while its request is handled or its response is sent. Dropping it resets the stream, unless the response is
/// complete.
struct ServedStream {
    connection: Rc<DownstreamConnection>,
    timer: Rc<RequestTimer>,
    responder: Responder,
    is_head_request: bool,
    /// What the client sends through a tunnel, if it has requested one.
    received: Option<ReceiveStream>,
    /// The tunnel that begins after the head of the response.
    upgraded: Option<Box<UpgradedRequest>>,
}

/// Handles a request. If its response is not sent at once, a task continues.
pub(super) fn start_stream(
    connection: &Rc<DownstreamConnection>,
    request: Request<ReceiveStream>,
    responder: Responder,
    cx: &mut Context<'_>,
) {
    let (mut head, stream) = request.into_parts();
    let is_head_request = head.method == Method::HEAD;
    let is_connect = head.method == Method::CONNECT;
    let (body, received) = match is_connect {
        true => (DownstreamBody::None, Some(stream)),
        false if stream.is_end_stream() => (DownstreamBody::None, None),
        false => {
            let expects = head.headers.get_all(EXPECT).iter();
            let expects = expects.into_iter().any(|value| has_token(value.as_bytes(), "100-continue"));
            let body = Http2Body::new(&head.headers, stream).with_expectation(expects);
            (DownstreamBody::Http2(body), None)
        }
    };
    let handling = pipeline::handle(connection, &mut head, body, ReceivedHead::default());
    let Some(timer) = connection.newest_stream.take() else { return };
    let connection = Rc::clone(connection);
    let mut stream = ServedStream { connection, timer, responder, is_head_request, received, upgraded: None };
    match handling {
        RequestOutcome::Response(reply) => {
            if let Some(started) = stream.respond(reply, cx) {
                drop(tokio::task::spawn_local(stream.finish(started)));
            }
        }
        RequestOutcome::Pending(handling) => drop(tokio::task::spawn_local(stream.run(handling))),
    }
}

impl ServedStream {
    /// Serves the stream to its end.
    async fn run(mut self, mut handling: impl Future<Output = DownstreamResponse> + Unpin + 'static) {
        let mut room = InterimRoom::default();
        let started = poll_fn(|cx| {
            // The client may have reset the stream, even before the request is sent.
            if self.is_stalled(cx) || self.responder.poll_reset(cx).is_ready() {
                return Poll::Ready(None);
            }
            self.connection.interims.resume(room);
            let polled = Pin::new(&mut handling).poll(cx);
            room = self.connection.interims.suspend();
            self.send_interims();
            polled.map(|reply| self.respond(reply, cx))
        })
        .await;
        if started.is_none() && self.timer.awaits_cost().is_some() {
            return unanswered::settle_later(&self.connection, Some(&self.timer), handling);
        }
        // Dropped early: it is large, and sending the response may take long.
        drop(handling);
        if let Some(started) = started {
            // Boxed because few responses need it, and its future is large.
            Box::pin(self.finish(started)).await;
        }
    }

    /// Sends the interim responses that the upstream has sent to this request since the last call.
    fn send_interims(&mut self) {
        if self.connection.interims.is_empty() {
            return;
        }
        for mut interim in self.connection.interims.take_all() {
            remove_hop_by_hop(&mut interim.headers, is_identity_header);
            // An error means that the stream has ended, which is noticed elsewhere.
            let _ = self.responder.send_interim(interim.status, &interim.headers);
        }
    }

    /// Sends as much of a response as the client takes at once. Returns what is left.
    fn respond(&mut self, reply: DownstreamResponse, cx: &mut Context<'_>) -> Option<StartedResponse> {
        // Taken before anything can fail, because the next stream uses the same slot.
        self.upgraded = self.connection.upgraded.take();
        if reply.body.is_withheld() {
            self.connection.close_after_streams.set(true);
            self.responder.send_reset(Reason::ENHANCE_YOUR_CALM);
            return None;
        }
        let is_tunnel = self.upgraded.is_some();
        let worker = &self.connection.worker;
        let started =
            response::start(worker, &mut self.responder, reply, self.is_head_request, is_tunnel, cx);
        if matches!(started, Err(Http2Error::Unread)) {
            worker.metrics.record_load_shed(LoadShed::Unsent);
        }
        // An error means that the stream has ended.
        let mut started = started.ok()??;
        if let StartedResponse::Body(response) = &mut started
            && let Poll::Ready(sent) = response.poll(cx)
        {
            log_end(sent);
            return None;
        }
        Some(started)
    }

    /// Sends the rest of a response.
    async fn finish(self, started: StartedResponse) {
        match started {
            StartedResponse::Body(mut response) => {
                let sent = poll_fn(|cx| match self.is_stalled(cx) {
                    true => Poll::Ready(Ok(())),
                    false => response.poll(cx),
                });
                log_end(sent.await);
            }
            StartedResponse::Tunnel(sending) => {
                if let (Some(upgraded), Some(received)) = (self.upgraded, self.received) {
                    // Boxed because a tunnel is rare and its future large.
                    Box::pin(tunnel::run_over_stream(upgraded, Http2Stream::new(received, sending))).await;
                }
            }
        }
    }

    /// Whether a body makes no progress. Response timeouts are handled by the pipeline.
    fn is_stalled(&self, cx: &Context<'_>) -> bool {
        self.timer.register_waker(cx.waker());
        self.timer.expired() == Some(TimeoutKind::StreamIdle) && !self.timer.awaits_response()
    }
}

fn log_end(sent: Result<(), Http2Error>) {
    if let Err(error) = sent {
        tracing::debug!(%error, "stream ended");
    }
}
