//! An HTTP server that admits requests by governor. Usage: governor SETTINGS

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse as _, Response};
use conformance_targets::{Limit, clean_up, serve, settings};
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::net::SocketAddr;
use std::sync::Arc;

struct Rules {
    key_header: String,
    limits: Vec<(Limit, DefaultKeyedRateLimiter<String>)>,
    clock: DefaultClock,
}

async fn decide(
    State(rules): State<Arc<Rules>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    for (limit, limiter) in &rules.limits {
        let key = match limit.key.as_str() {
            "header" => request
                .headers()
                .get(&rules.key_header)
                .map(|key| String::from_utf8_lossy(key.as_bytes()).into()),
            "address" => Some(peer.ip().to_string()),
            _ => Some(String::new()),
        };
        let Some(key) = key else { continue };
        if let Err(rejection) = limiter.check_key(&key) {
            let wait = rejection.wait_time_from(rules.clock.now()).as_secs_f64().ceil().max(1.0);
            return (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, wait.to_string())], "too many requests")
                .into_response();
        }
    }
    "ok".into_response()
}

#[tokio::main]
async fn main() {
    let settings = settings();
    let limits = settings.limits.into_iter().map(|limit| {
        let quota = Quota::with_period(limit.interval()).expect("a period").allow_burst(limit.count);
        (limit, RateLimiter::keyed(quota))
    });
    let rules =
        Rules { key_header: settings.key_header, limits: limits.collect(), clock: DefaultClock::default() };
    let rules = Arc::new(rules);
    let cleaned = Arc::clone(&rules);
    clean_up(move || {
        for (_, limiter) in &cleaned.limits {
            limiter.retain_recent();
            limiter.shrink_to_fit();
        }
    });
    serve(settings.port, Router::new().fallback(decide).with_state(rules)).await;
}
