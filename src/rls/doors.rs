//! HTTP/1.1 listeners of the rate limit service: JSON requests and health on one, debug information on another,
//! Prometheus metrics on a third. Paths and responses are the reference's.

use std::sync::Arc;

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use tokio::net::TcpListener;

use super::answer::{Code, Undecided};
use super::desk::Desk;
use super::json;
use crate::http_server::{self, FullResponse, response};

/// Maximum size of a JSON request in bytes. Envoy does not send these.
const MAX_JSON: usize = 256 * 1024;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Function of an HTTP/1.1 listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Door {
    /// `POST /json` and `GET /healthcheck`.
    Http,
    /// `/rlconfig` and `/stats`.
    Debug,
    /// Prometheus metrics at this path.
    Metrics(Box<str>),
}

/// Serves `listener` until the last phase of the graceful shutdown.
pub async fn serve(listener: TcpListener, desk: Arc<Desk>, door: Door) {
    let drain = Arc::clone(desk.drain());
    let answer = move |request| answer(Arc::clone(&desk), door.clone(), request);
    http_server::serve(listener, drain, answer).await;
}

async fn answer(desk: Arc<Desk>, door: Door, request: Request<Incoming>) -> FullResponse {
    match (&door, request.uri().path()) {
        (Door::Http, "/json") => decided(&desk, request).await,
        (Door::Http, "/healthcheck") => match desk.is_healthy() {
            true => response(StatusCode::OK, TEXT, "OK"),
            false => response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, ""),
        },
        (Door::Debug, "/") => response(StatusCode::OK, TEXT, INDEX),
        (Door::Debug, "/rlconfig") => response(StatusCode::OK, TEXT, desk.dump()),
        (Door::Debug, "/stats") => response(StatusCode::OK, TEXT, stats(&desk)),
        (Door::Metrics(path), asked) if **path == *asked => {
            response(StatusCode::OK, PROMETHEUS, desk.stats().render())
        }
        _ => response(StatusCode::NOT_FOUND, TEXT, "404 page not found\n"),
    }
}

const INDEX: &str = "/rlconfig: print out the currently loaded configuration for debugging\n\
                     /stats: print out stats\n";

/// Returns the statistics as `NAME: VALUE`, one per line.
fn stats(desk: &Desk) -> String {
    desk.stats().counters().iter().map(|(name, count)| format!("{name}: {count}\n")).collect()
}

/// Returns 200 or 429 with the response. Errors are 400 without a reason, as in the reference, and with a reason for
/// bounds that the reference lacks.
async fn decided(desk: &Desk, request: Request<Incoming>) -> FullResponse {
    let bad = || response(StatusCode::BAD_REQUEST, TEXT, "Bad Request\n");
    let body = match Limited::new(request.into_body(), MAX_JSON).collect().await {
        Ok(body) => body,
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("request too large, at most {MAX_JSON} bytes\n");
            return response(StatusCode::PAYLOAD_TOO_LARGE, TEXT, message);
        }
        Err(_) => return bad(),
    };
    let Ok(asked) = json::request(&body.to_bytes()) else { return bad() };
    let answer = match desk.decide(&asked).await {
        Ok(answer) => answer,
        Err(over @ (Undecided::TooManyDescriptors(_) | Undecided::TooManyEntries(..))) => {
            return response(StatusCode::BAD_REQUEST, TEXT, format!("{over}\n"));
        }
        Err(_) => return bad(),
    };
    let status = match answer.overall {
        Code::Ok => StatusCode::OK,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
    };
    response(status, JSON, json::answer(&answer).to_string())
}
