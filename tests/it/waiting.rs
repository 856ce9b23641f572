//! Requests that wait in a queue for room in a limit (`throttle.wait`).

mod admission;
mod departures;
mod load;
mod order;
mod rejections;
mod reload;
mod shared;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{AfterResponse, Client, Origin, Request, Weir, config, wait};

/// Starts a proxy in front of `origin` with these rules.
fn start(origin: &Origin, rules: &[&str]) -> Weir {
    Weir::start(&config_with_rules(origin, rules))
}

fn config_with_rules(origin: &Origin, rules: &[&str]) -> String {
    let rules: String = rules.iter().map(|rule| format!("  - {rule}\n")).collect();
    config(origin.address(), &format!("rules:\n{rules}"))
}

/// Returns the number of requests that wait for a rule.
fn waiting(weir: &Weir, rule: &str) -> f64 {
    weir.metric("weir_wait_queue_requests", &[("rule", rule)])
}

fn until_waiting(weir: &Weir, rule: &str, count: usize) {
    wait::until_true("the number of waiting requests", || waiting(weir, rule) == count as f64);
}

fn rejections(weir: &Weir, rule: &str, reason: &str) -> f64 {
    weir.metric("weir_wait_rejections_total", &[("rule", rule), ("reason", reason)])
}

fn decisions(weir: &Weir, rule: &str, outcome: &str) -> f64 {
    weir.metric("weir_decisions_total", &[("rule", rule), ("outcome", outcome)])
}

fn send(weir: &Weir, request: &Request) -> Client {
    let client = Client::connect(weir.address());
    client.send(request.to_bytes());
    client
}

/// Sends each request on a connection of its own, once the one before waits for the rule.
fn send_all<'a>(weir: &Weir, rule: &str, requests: impl IntoIterator<Item = &'a Request>) -> Vec<Client> {
    let before = waiting(weir, rule) as usize;
    let numbered = (before + 1..).zip(requests);
    let send_one = |(count, request)| {
        let client = send(weir, request);
        until_waiting(weir, rule, count);
        client
    };
    numbered.map(send_one).collect()
}

/// Returns requests for `/0`, `/1` and so on.
fn numbered(count: usize) -> Vec<Request> {
    (0..count).map(|number| Request::get(&format!("/{number}"))).collect()
}

/// Reads a response on each connection, and returns the status codes.
fn statuses(clients: Vec<Client>) -> Vec<u16> {
    clients.into_iter().map(|mut client| client.read_response("GET").status).collect()
}

/// Returns the paths of the requests that reached the upstream after the first `skip`.
fn paths(origin: &Origin, skip: usize) -> Vec<String> {
    origin.requests().iter().skip(skip).map(|seen| seen.head.word(1).to_owned()).collect()
}

/// Makes the rule admit another request.
fn reset(weir: &Weir, rule: &str) {
    assert_eq!(weir.admin_post(&format!("/limits/reset?rule={rule}")).status, 200);
}

/// A proxy whose rule `q` admits one request at a time. The first one is at the upstream, until [`Self::open`].
struct Gate {
    origin: Origin,
    weir: Weir,
    first: Client,
    is_open: Arc<AtomicBool>,
}

impl Gate {
    /// Starts a proxy whose rule has these additional settings.
    fn start(settings: &str) -> Self {
        let is_open = Arc::new(AtomicBool::new(false));
        let gate = Arc::clone(&is_open);
        let origin = Origin::start(move |turn| {
            if turn.head.word(1) == "/first" {
                wait::until_true("the test's signal", || gate.load(Ordering::SeqCst));
            }
            turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
            Ok(AfterResponse::Keep)
        });
        let weir = start(&origin, &[&format!("{{ name: q, key: [], in_flight: 1, {settings} }}")]);
        let first = send(&weir, &Request::get("/first"));
        origin.until_request("the first request", |seen| seen.head.word(1) == "/first");
        Self { origin, weir, first, is_open }
    }

    /// Lets the first request end.
    fn open(&mut self) {
        self.is_open.store(true, Ordering::SeqCst);
        assert_eq!(self.first.read_response("GET").status, 200);
    }

    /// Sends the requests one after the other, lets all of them pass, and returns their paths in the order in which they
    /// reached the upstream.
    fn order_of(mut self, requests: &[Request]) -> Vec<String> {
        let clients = send_all(&self.weir, "q", requests);
        self.open();
        assert!(statuses(clients).iter().all(|status| *status == 200));
        paths(&self.origin, 1)
    }
}
