//! The service's ports of HTTP/1.1: questions in JSON and health on one, what operators want to see on another, numbers
//! for Prometheus on a third. Paths and answers are the reference's.

use std::sync::Arc;

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use tokio::net::TcpListener;

use super::answer::{Code, Undecided};
use super::desk::Desk;
use super::json;
use crate::side_door::{self, Reply, reply};

/// Bytes of a request in JSON. Envoy does not send these.
const MAX_JSON: usize = 256 * 1024;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Which of the ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Door {
    /// `POST /json` and `GET /healthcheck`.
    Http,
    /// `/rlconfig` and `/stats`.
    Debug,
    /// Numbers for Prometheus, at this path.
    Metrics(Box<str>),
}

/// Answers at `listener` until the drain has reached its last phase.
pub async fn serve(listener: TcpListener, desk: Arc<Desk>, door: Door) {
    let drain = Arc::clone(desk.drain());
    let answer = move |request| answer(Arc::clone(&desk), door.clone(), request);
    side_door::serve(listener, drain, answer).await;
}

async fn answer(desk: Arc<Desk>, door: Door, request: Request<Incoming>) -> Reply {
    match (&door, request.uri().path()) {
        (Door::Http, "/json") => decided(&desk, request).await,
        (Door::Http, "/healthcheck") => match desk.is_healthy() {
            true => reply(StatusCode::OK, TEXT, "OK"),
            false => reply(StatusCode::INTERNAL_SERVER_ERROR, TEXT, ""),
        },
        (Door::Debug, "/") => reply(StatusCode::OK, TEXT, INDEX),
        (Door::Debug, "/rlconfig") => reply(StatusCode::OK, TEXT, desk.dump()),
        (Door::Debug, "/stats") => reply(StatusCode::OK, TEXT, stats(&desk)),
        (Door::Metrics(path), asked) if **path == *asked => {
            reply(StatusCode::OK, PROMETHEUS, desk.stats().render())
        }
        _ => reply(StatusCode::NOT_FOUND, TEXT, "404 page not found\n"),
    }
}

const INDEX: &str = "/rlconfig: print out the currently loaded configuration for debugging\n\
                     /stats: print out stats\n";

/// `NAME: VALUE`, a line each.
fn stats(desk: &Desk) -> String {
    desk.stats().counters().iter().map(|(name, count)| format!("{name}: {count}\n")).collect()
}

/// 200 or 429 with the response; 400 without a reason as in the reference, or with it where the request is over a bound
/// that the reference does not have.
async fn decided(desk: &Desk, request: Request<Incoming>) -> Reply {
    let bad = || reply(StatusCode::BAD_REQUEST, TEXT, "Bad Request\n");
    let body = match Limited::new(request.into_body(), MAX_JSON).collect().await {
        Ok(body) => body,
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("request too large, at most {MAX_JSON} bytes\n");
            return reply(StatusCode::PAYLOAD_TOO_LARGE, TEXT, message);
        }
        Err(_) => return bad(),
    };
    let Ok(asked) = json::request(&body.to_bytes()) else { return bad() };
    let answer = match desk.decide(&asked).await {
        Ok(answer) => answer,
        Err(over @ (Undecided::TooManyDescriptors(_) | Undecided::TooManyEntries(..))) => {
            return reply(StatusCode::BAD_REQUEST, TEXT, format!("{over}\n"));
        }
        Err(_) => return bad(),
    };
    let status = match answer.overall {
        Code::Ok => StatusCode::OK,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
    };
    reply(status, JSON, json::answer(&answer).to_string())
}
