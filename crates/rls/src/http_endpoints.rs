//! HTTP/1.1 listeners of the rate limit service: JSON requests and health on one, debug information on another,
//! Prometheus metrics on a third. Paths and responses are the reference's.

use std::fmt::Display;
use std::sync::Arc;

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use tokio::net::TcpListener;

use super::handler::RlsHandler;
use super::json;
use super::response::{Code, RlsError};
use weir_net::http_server::{self, FullResponse, PeerAddress, response};
use weir_telemetry::metrics::UnservedReason;
use weir_telemetry::observe::top_keys::WorkerId;

/// Maximum size of a JSON request in bytes. Envoy does not send these.
const MAX_JSON_BYTES: usize = 256 * 1024;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Function of an HTTP/1.1 listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpEndpoint {
    /// `POST /json` and `GET /healthcheck`.
    Http,
    /// `/rlconfig` and `/stats`.
    Debug,
    /// Prometheus metrics at this path.
    Metrics(Box<str>),
}

/// Serves `listener` on the thread of `worker` until the last phase of the graceful shutdown.
pub async fn serve(
    listener: TcpListener,
    handler: Arc<RlsHandler>,
    endpoint: HttpEndpoint,
    worker: WorkerId,
) {
    let drain = Arc::clone(handler.drain());
    let respond = move |request| handle_request(Arc::clone(&handler), endpoint.clone(), worker, request);
    http_server::serve(listener, drain, respond).await;
}

async fn handle_request(
    handler: Arc<RlsHandler>,
    endpoint: HttpEndpoint,
    worker: WorkerId,
    request: Request<Incoming>,
) -> FullResponse {
    match (&endpoint, request.uri().path()) {
        (HttpEndpoint::Http, "/json") => decide_json(&handler, worker, request).await,
        (HttpEndpoint::Http, "/healthcheck") => match handler.is_healthy() {
            true => response(StatusCode::OK, TEXT, "OK"),
            false => response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, ""),
        },
        (HttpEndpoint::Debug, "/") => response(StatusCode::OK, TEXT, INDEX),
        (HttpEndpoint::Debug, "/rlconfig") => response(StatusCode::OK, TEXT, handler.dump_rules()),
        (HttpEndpoint::Debug, "/stats") => response(StatusCode::OK, TEXT, stats_text(&handler)),
        (HttpEndpoint::Metrics(path), requested_path) if **path == *requested_path => {
            response(StatusCode::OK, PROMETHEUS, handler.stats().render())
        }
        _ => response(StatusCode::NOT_FOUND, TEXT, "404 page not found\n"),
    }
}

const INDEX: &str = "/rlconfig: print out the currently loaded configuration for debugging\n\
                     /stats: print out stats\n";

/// Returns the statistics as `NAME: VALUE`, one per line.
fn stats_text(handler: &RlsHandler) -> String {
    handler.stats().counters().iter().map(|(name, count)| format!("{name}: {count}\n")).collect()
}

/// Returns 200 or 429 with the response. Errors are 400 without a reason, as in the reference, and with a reason for
/// bounds that the reference does not have.
async fn decide_json(handler: &RlsHandler, worker: WorkerId, request: Request<Incoming>) -> FullResponse {
    let bad_request = || response(StatusCode::BAD_REQUEST, TEXT, "Bad Request\n");
    let client = request.extensions().get::<PeerAddress>().map(|peer| peer.0);
    let report = |reason, detail: &dyn Display| handler.record_unserved(reason, 1, client, detail);
    let body = match Limited::new(request.into_body(), MAX_JSON_BYTES).collect().await {
        Ok(body) => body,
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("request too large, at most {MAX_JSON_BYTES} bytes\n");
            report(UnservedReason::Bound, &format_args!("/json: {}", message.trim_end()));
            return response(StatusCode::PAYLOAD_TOO_LARGE, TEXT, message);
        }
        Err(error) => {
            report(UnservedReason::Message, &format_args!("/json: {error}"));
            return bad_request();
        }
    };
    let rls_request = match json::parse_request(&body.to_bytes()) {
        Ok(rls_request) => rls_request,
        Err(error) => {
            report(UnservedReason::Message, &format_args!("/json: {error}"));
            return bad_request();
        }
    };
    let rls_response = match handler.decide(&rls_request, worker).await {
        Ok(rls_response) => rls_response,
        Err(error @ (RlsError::TooManyDescriptors(_) | RlsError::TooManyEntries(..))) => {
            report(UnservedReason::Bound, &format_args!("/json: {error}"));
            return response(StatusCode::BAD_REQUEST, TEXT, format!("{error}\n"));
        }
        Err(error) => {
            report(UnservedReason::Undecided, &format_args!("/json: {error}"));
            return bad_request();
        }
    };
    let status = match rls_response.overall_code {
        Code::Ok => StatusCode::OK,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
    };
    response(status, JSON, json::response_to_json(&rls_response).to_string())
}
