//! One call: reads its message, calls the service in the path, and sends the response. A panic ends the calls of its
//! connection.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request};
use tonic::{Code, Status};

use super::calls::UnaryCall;
use super::connection::GrpcConnection;
use super::grpc::{self, GrpcError};
use super::quota::QuotaStream;
use super::report_reader::ReportReader;
use super::{health, ratelimit};
use weir_http::http2::{Reason, ReceiveStream, Responder};
use weir_net::transport::{Http2Body, SentBody};
use weir_telemetry::metrics::UnservedReason;

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const STREAM_QUOTAS: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";
const CHECK_HEALTH: &str = "/grpc.health.v1.Health/Check";
const WATCH_HEALTH: &str = "/grpc.health.v1.Health/Watch";

/// Serves a call. Most calls need no task, because their message and their decision are available at once.
pub(super) fn start(
    connection: &Rc<GrpcConnection>,
    request: Request<ReceiveStream>,
    mut responder: Responder,
    cx: &mut Context<'_>,
) {
    if request.method() == Method::CONNECT {
        // Its body would be that of a tunnel, which does not end.
        connection.record_unserved(UnservedReason::Unimplemented, 1, &"method CONNECT");
        return responder.send_reset(Reason::REFUSED_STREAM);
    }
    if let Err(response) = grpc::check_media_type(request.headers()) {
        connection.record_unserved(UnservedReason::Message, 1, &"the content-type is not that of gRPC");
        return drop(responder.send_response(&response, true));
    }
    let mut call = Box::pin(serve(Rc::clone(connection), request, responder));
    if call.as_mut().poll(cx).is_pending() {
        drop(tokio::task::spawn_local(call));
    }
}

async fn serve(connection: Rc<GrpcConnection>, request: Request<ReceiveStream>, mut responder: Responder) {
    let (head, stream) = request.into_parts();
    let body = Http2Body::new(&head.headers, stream);
    let served = match head.uri.path() {
        SHOULD_RATE_LIMIT | CHECK_HEALTH => connection.serve_unary(&head, body, &mut responder).await,
        STREAM_QUOTAS => Box::pin(connection.stream_quotas(&head, body, &mut responder)).await,
        WATCH_HEALTH => Box::pin(connection.watch_health(&head, body, &mut responder)).await,
        _ => Err(Status::unimplemented("no such service or method").into()),
    };
    let ended = match served {
        Err(GrpcError::Status(status)) => {
            connection.record_failure(&status);
            responder.send_response(&status.into_http(), true).map(drop)
        }
        Err(GrpcError::Ended(error)) => Err(error),
        Ok(()) => Ok(()),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "call ended");
    }
}

impl GrpcConnection {
    /// Serves a call with one message in each direction.
    async fn serve_unary(
        &self,
        head: &Parts,
        body: Http2Body,
        responder: &mut Responder,
    ) -> Result<(), GrpcError> {
        let mut calling = pin!(self.call_unary(head, body));
        let called = poll_fn(|cx| match calling.as_mut().poll(cx) {
            Poll::Ready(result) => Poll::Ready(result.map_err(GrpcError::Status)),
            // The client may have cancelled the call.
            Poll::Pending => responder.poll_reset(cx).map(|error| Err(error.into())),
        });
        // The call is in flight until the client has received the response.
        let (mut message, _call) = called.await?;
        let mut stream = responder.send_response(&grpc::RESPONSE_HEAD, false)?;
        poll_fn(|cx| stream.poll_send(&mut message, false, cx)).await?;
        Ok(stream.send_trailers(&grpc::OK_TRAILERS)?)
    }

    /// Returns the response to a call, encoded.
    async fn call_unary(&self, head: &Parts, body: Http2Body) -> Result<(Bytes, UnaryCall), Status> {
        let handler = &self.port.handler;
        let body = self.read_body(head, body).await?;
        let call = self.calls.start_call()?;
        let response = match head.uri.path() {
            CHECK_HEALTH => grpc::encode_message(&health::check(handler, &grpc::decode_request(&body)?)?)?,
            _ => {
                let request = grpc::decode_request(&body)?;
                grpc::encode_message(&ratelimit::decide(handler, self.worker.id, request).await?)?
            }
        };
        Ok((response, call))
    }

    async fn watch_health(
        &self,
        head: &Parts,
        body: Http2Body,
        responder: &mut Responder,
    ) -> Result<(), GrpcError> {
        let request = grpc::decode_request(&self.read_body(head, body).await?)?;
        let _stream = self.calls.start_stream()?;
        let stream = responder.send_response(&grpc::RESPONSE_HEAD, false)?;
        health::watch(&self.port.handler, &request, stream).await
    }

    async fn stream_quotas(
        &self,
        head: &Parts,
        body: Http2Body,
        responder: &mut Responder,
    ) -> Result<(), GrpcError> {
        let _stream = self.calls.start_stream()?;
        grpc::check_encoding(&head.headers)?;
        let port = &self.port;
        let incomplete = Arc::clone(&port.incomplete_bytes);
        let reports = ReportReader::new(body, incomplete, self.permit.activity().clone());
        let (quotas, responses) = QuotaStream::open(&port.handler, &port.quota_streams)?;
        let mut sending = SentBody::new(responder.send_response(&grpc::RESPONSE_HEAD, false)?, responses);
        // Drops the queue at its end, which ends the reading of reports.
        let sending = async move { poll_fn(|cx| sending.poll(cx)).await };
        let (result, sent) = tokio::join!(quotas.run(reports), sending);
        if let Err(status) = result {
            self.record_failure(&status);
        }
        Ok(sent?)
    }

    /// Reads the body of a call with one message.
    async fn read_body(&self, head: &Parts, body: Http2Body) -> Result<Bytes, Status> {
        let body = self.worker.message_reader.read_message(body).await?;
        self.permit.activity().record_call();
        grpc::check_encoding(&head.headers)?;
        Ok(body)
    }

    /// Counts and logs a call that fails.
    fn record_failure(&self, status: &Status) {
        let reason = match status.code() {
            // The client has cancelled the call, or asks for the health of another service.
            Code::Ok | Code::Cancelled | Code::NotFound => return,
            Code::Unimplemented => UnservedReason::Unimplemented,
            Code::ResourceExhausted | Code::DeadlineExceeded => UnservedReason::Bound,
            // The statuses of a request without a decision.
            Code::Unknown | Code::InvalidArgument | Code::Unavailable => UnservedReason::Undecided,
            _ => UnservedReason::Message,
        };
        self.record_unserved(reason, 1, &format_args!("{:?}: {}", status.code(), status.message()));
    }
}
