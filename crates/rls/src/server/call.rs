//! One call: reads its message, calls the service in the path, and sends the response.
//!
//! `ShouldRateLimit` is decoded, decided and encoded here; the generated service only returns the errors of messages that
//! are not one uncompressed message. The header `grpc-encoding` is not read, since the prefix of a message states whether
//! it is compressed. A panic ends the calls of its connection.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use http_body_util::{Empty, Full};
use hyper::body::Body as _;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::{Code, Status};

use super::calls::CallGuard;
use super::connection::GrpcConnection;
use super::ratelimit::SHOULD_RATE_LIMIT;
use super::relayed_body::RelayedBody;
use super::report_reader::{ReportHandover, ReportReader};
use weir_http::http2::{Http2Error, Reason, ReceiveStream, Responder};
use weir_net::transport::{Http2Body, SentBody};
use weir_telemetry::metrics::UnservedReason;

/// The response to a call.
enum CallResponse {
    /// Success, with this message and its prefix.
    Message(Bytes),
    /// Any response.
    Http(Response<Body>),
}

type CallResult = Result<(CallResponse, CallGuard), Status>;

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
    let mut call = Box::pin(serve(Rc::clone(connection), request, responder));
    if call.as_mut().poll(cx).is_pending() {
        drop(tokio::task::spawn_local(call));
    }
}

async fn serve(connection: Rc<GrpcConnection>, request: Request<ReceiveStream>, mut responder: Responder) {
    let (head, stream) = request.into_parts();
    let body = Http2Body::new(&head.headers, stream);
    let mut handling = pin!(connection.dispatch(Request::from_parts(head, body)));
    let result = poll_fn(|cx| match handling.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        // The client may have cancelled the call.
        Poll::Pending => responder.poll_reset(cx).map(|_| None),
    });
    let Some(result) = result.await else { return };
    connection.record_failure(&result);
    let failed = |status: Status| (CallResponse::Http(status.into_http()), CallGuard::default());
    // The guard is held until the client has received the response.
    let (response, _guard) = result.unwrap_or_else(failed);
    if let Err(error) = send(response, &mut responder).await {
        tracing::debug!(%error, "call ended");
    }
}

impl GrpcConnection {
    /// Calls the service in the path, within the bounds of the worker.
    async fn dispatch(&self, request: Request<Http2Body>) -> CallResult {
        match (service_name(request.uri().path()), request.uri().path()) {
            (_, SHOULD_RATE_LIMIT) => self.call_rate_limit(request).await,
            ("envoy.service.rate_limit_quota.v3.RateLimitQuotaService", _) => {
                Box::pin(self.stream_quota(request)).await
            }
            (_, "/grpc.health.v1.Health/Watch") => Box::pin(self.watch_health(request)).await,
            _ => Box::pin(self.call_unary(request)).await,
        }
    }

    /// Counts and logs a call that fails.
    fn record_failure(&self, result: &CallResult) {
        let status = match result {
            Ok((CallResponse::Message(_), _)) => return,
            Ok((CallResponse::Http(response), _)) => Status::from_header_map(response.headers()),
            Err(status) => Some(status.clone()),
        };
        let Some(status) = status else { return };
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

    /// Decides a request directly. What is not a single uncompressed message is left to the general service, which returns
    /// the error.
    async fn call_rate_limit(&self, request: Request<Http2Body>) -> CallResult {
        let (head, message) = self.read_message(request).await?.into_parts();
        let call = self.calls.start_call()?;
        if let Some(decided) = self.services.decider.call(&message).await {
            return decided.map(|message| (CallResponse::Message(message), call.into()));
        }
        let request = Request::from_parts(head, Full::new(message));
        http_response(Box::pin(self.services.rate_limit.clone().call(request)).await, call)
    }

    /// Calls any other service, of which only the one that the call needs is cloned.
    async fn call_unary(&self, request: Request<Http2Body>) -> CallResult {
        let request = self.read_message(request).await?.map(Full::new);
        let call = self.calls.start_call()?;
        let response = match service_name(request.uri().path()) {
            "envoy.service.ratelimit.v3.RateLimitService" => {
                self.services.rate_limit.clone().call(request).await
            }
            "grpc.health.v1.Health" => self.services.health.clone().call(request).await,
            _ => Ok(unimplemented_response()),
        };
        http_response(response, call)
    }

    async fn watch_health(&self, request: Request<Http2Body>) -> CallResult {
        let request = self.read_message(request).await?.map(Full::new);
        let stream = self.calls.start_stream()?;
        http_response(self.services.health.clone().call(request).await, stream)
    }

    async fn stream_quota(&self, request: Request<Http2Body>) -> CallResult {
        let stream = self.calls.start_stream()?;
        let (incomplete, activity) = (&self.services.incomplete_bytes, self.permit.activity());
        let (mut head, body) = request.into_parts();
        let reports = ReportReader::new(RelayedBody::new(body), Arc::clone(incomplete), activity.clone());
        head.extensions.insert(ReportHandover::new(reports));
        let request = Request::from_parts(head, Empty::<Bytes>::new());
        http_response(self.services.quota.clone().call(request).await, stream)
    }

    /// Returns the request with its complete message.
    async fn read_message(&self, request: Request<Http2Body>) -> Result<Request<Bytes>, Status> {
        let (head, body) = request.into_parts();
        let message = self.worker.message_reader.read_message(body).await?;
        self.permit.activity().record_call();
        Ok(Request::from_parts(head, message))
    }
}

/// Returns the response of a generated service, with what counts the call.
fn http_response(response: Result<Response<Body>, Infallible>, guard: impl Into<CallGuard>) -> CallResult {
    response.map(|response| (CallResponse::Http(response), guard.into())).map_err(|never| match never {})
}

/// Sends a response to its end.
async fn send(response: CallResponse, responder: &mut Responder) -> Result<(), Http2Error> {
    match response {
        CallResponse::Message(mut message) => {
            let mut stream = responder.send_response(&message_head(), false)?;
            poll_fn(|cx| stream.poll_send(&mut message, false, cx)).await?;
            stream.send_trailers(&HeaderMap::from_iter([(GRPC_STATUS, OK)]))
        }
        CallResponse::Http(response) => {
            let (head, body) = response.into_parts();
            let has_body = !body.is_end_stream();
            let stream = responder.send_response(&Response::from_parts(head, ()), !has_body)?;
            if has_body {
                let mut sending = SentBody::new(stream, body);
                poll_fn(|cx| sending.poll(cx)).await?;
            }
            Ok(())
        }
    }
}

/// Returns the service of a path `/SERVICE/METHOD`.
fn service_name(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.split_once('/').map_or("", |(service, _)| service)
}

/// Value of `content-type`.
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
/// Header with the status of a call.
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// Its value after a message.
const OK: HeaderValue = HeaderValue::from_static("0");

/// Returns the head of a response with a message (gRPC over HTTP/2, "Responses").
fn message_head() -> Response<()> {
    let mut head = Response::new(());
    head.headers_mut().insert(http::header::CONTENT_TYPE, GRPC);
    head
}

/// Returns a response with trailers only (gRPC over HTTP/2, "Responses").
fn unimplemented_response() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    let fields = response.headers_mut();
    fields.insert(http::header::CONTENT_TYPE, GRPC);
    fields.insert(GRPC_STATUS, HeaderValue::from_static("12"));
    fields.insert("grpc-message", HeaderValue::from_static("no such service"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_name_is_the_path_without_the_method() {
        assert_eq!(service_name("/grpc.health.v1.Health/Check"), "grpc.health.v1.Health");
        assert_eq!(service_name("/"), "");
        assert_eq!(service_name("nothing"), "");
    }
}
