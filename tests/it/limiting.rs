//! Behaviour of rules, seen from outside: which requests are admitted, and what the responses contain.

mod algorithms;
mod any_of;
mod closed_connections;
mod counts;
mod keys;
mod local_replies;
mod matching;
mod rejected_bodies;
mod responses;

use crate::support::{Client, Request, Weir, config};

/// Starts an echoing proxy with these rules, which trusts the X-Forwarded-For of the test.
fn start_with_rules(rules: &str) -> Weir {
    start_with_settings("", rules)
}

/// Starts such a proxy with further top-level settings.
fn start_with_settings(settings: &str, rules: &str) -> Weir {
    let trust = "client_ip: { trusted_proxies: [127.0.0.1] }";
    Weir::start(&config("echo", &format!("{trust}\n{settings}\nrules:\n{rules}\n")))
}

/// Sends these requests in order on one connection, and returns the status codes.
fn statuses(weir: &Weir, requests: &[Request]) -> Vec<u16> {
    let mut client = Client::connect(weir.address());
    requests.iter().map(|request| client.fetch(request).status).collect()
}

/// Returns how many of `count` such requests are admitted; all others must get 429.
fn count_admitted(weir: &Weir, count: usize, request: &Request) -> usize {
    let statuses = statuses(weir, &vec![request.clone(); count]);
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    statuses.iter().filter(|status| **status == 200).count()
}
