//! Calls that are accepted now and sent later, through a real Redis.

mod delivery;
mod listeners;
mod outages;
mod shared_limits;
mod topologies;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::servers::Server;
use crate::support::{
    AfterResponse, Client, Origin, Request, Response, Weir, config, fetch, run_concurrently, wait,
};

const NO_CONTENT: &str = "HTTP/1.1 204 No Content\r\n\r\n";

/// Returns a configuration whose rule `hooks` defers `POST /hooks/…`; `settings` are its other keys.
fn deferring(store: &str, upstream: &Origin, settings: &str) -> String {
    deferring_to(store, &upstream.address().to_string(), settings)
}

fn deferring_to(store: &str, upstream: &str, settings: &str) -> String {
    config(
        upstream,
        &format!(
            "store: {{ redis: {store}, timeout: 2s }}\nrules:\n  - name: hooks\n    \
             match: {{ method: POST, path: /hooks/* }}\n{settings}"
        ),
    )
}

/// A rule that sends as fast as it can, with short pauses before retries.
const FAST: &str = "    limit: 100000/s\n    respond: { status: 202, backoff: 10ms..50ms }\n";

/// Sends a call and returns its ID.
fn accept(weir: &Weir, path: &str, body: &str) -> String {
    let accepted = fetch(weir.address(), &Request::post(path, body));
    assert_eq!(accepted.status, 202, "{}", accepted.body.text());
    id_of(&accepted)
}

fn id_of(accepted: &Response) -> String {
    let body: serde_json::Value = serde_json::from_slice(&accepted.body.bytes).unwrap();
    body["id"].as_str().unwrap().to_owned()
}

/// Sends `count` calls over `clients` connections.
fn accept_many(weir: &Weir, clients: usize, count: usize) {
    run_concurrently(clients, |client| {
        let mut connection = Client::connect(weir.address());
        for number in 0..count / clients {
            let path = format!("/hooks/{client}-{number}");
            assert_eq!(connection.fetch(&Request::post(&path, "x")).status, 202);
        }
    });
}

/// Returns how often each target has reached the upstream.
fn deliveries(upstream: &Origin) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for request in upstream.requests() {
        *counts.entry(request.head.word(1).to_owned()).or_default() += 1;
    }
    counts
}

fn until_delivered(upstream: &Origin, calls: usize) {
    let delivered =
        wait::within(Duration::from_secs(60), || (deliveries(upstream).len() >= calls).then_some(()));
    assert!(delivered.is_some(), "{} of {calls} calls delivered", deliveries(upstream).len());
}

fn stored(weir: &Weir) -> f64 {
    weir.metric("weir_deferred_calls", &[("rule", "hooks")])
}

/// The state of the rule on the admin port.
fn status(weir: &Weir) -> serde_json::Value {
    let all = weir.admin_json("/deferred");
    all["rules"].as_array().unwrap().iter().find(|rule| rule["rule"] == "hooks").cloned().unwrap_or_default()
}

fn until_status(weir: &Weir, what: &str, holds: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    wait::until(what, || Some(status(weir)).filter(|status| holds(status)))
}

/// An upstream that responds with 503 while the switch is off.
fn switched_origin(is_up: &Arc<AtomicBool>) -> Origin {
    let is_up = Arc::clone(is_up);
    Origin::start(move |request| {
        request.body()?;
        let response = match is_up.load(Ordering::SeqCst) {
            true => NO_CONTENT,
            false => "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
        };
        request.send(response)?;
        Ok(AfterResponse::Keep)
    })
}
