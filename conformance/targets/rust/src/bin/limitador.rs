//! An HTTP server that admits requests by the library of Limitador. Usage: limitador SETTINGS

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use conformance_targets::{serve, settings};
use limitador::RateLimiter;
use limitador::limit::Limit;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const NAMESPACE: &str = "conformance";
/// Counters of keys that are remembered. Others are forgotten before their window ends.
const COUNTERS: u64 = 1_000_000;

struct Rules {
    key_header: String,
    limiter: RateLimiter,
}

async fn decide(
    State(rules): State<Arc<Rules>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    let mut values = HashMap::from([("address".to_owned(), peer.ip().to_string())]);
    if let Some(key) = request.headers().get(&rules.key_header) {
        values.insert("header".to_owned(), String::from_utf8_lossy(key.as_bytes()).into());
    }
    let mut decision = rules
        .limiter
        .check_rate_limited_and_update(&NAMESPACE.into(), &values.into(), 1)
        .expect("memory does not fail");
    let mut headers = decision.response_header();
    if decision.limited {
        let full = decision.counters.iter().filter(|counter| counter.remaining() == Some(0));
        let wait = full.filter_map(|counter| counter.expires_in()).max().unwrap_or(Duration::ZERO);
        headers.insert("retry-after".to_owned(), wait.as_secs_f64().ceil().max(1.0).to_string());
    }
    let (status, body) = if decision.limited {
        (StatusCode::TOO_MANY_REQUESTS, "too many requests")
    } else {
        (StatusCode::OK, "ok")
    };
    let mut response = (status, body).into_response();
    for (name, value) in headers {
        let name = axum::http::HeaderName::try_from(name).expect("a name of a header");
        response.headers_mut().insert(name, value.try_into().expect("a value of a header"));
    }
    response
}

#[tokio::main]
async fn main() {
    let settings = settings();
    let limiter = RateLimiter::new(COUNTERS);
    for (place, limit) in settings.limits.into_iter().enumerate() {
        let variables = (limit.key != "all").then(|| limit.key.as_str().try_into().expect("CEL"));
        limiter.add_limit(Limit::with_id(
            format!("limit-{place}"),
            NAMESPACE,
            limit.count.get().into(),
            limit.period.into(),
            None::<limitador::limit::Predicate>,
            variables,
        ));
    }
    let rules = Rules { key_header: settings.key_header, limiter };
    serve(settings.port, Router::new().fallback(decide).with_state(Arc::new(rules))).await;
}
