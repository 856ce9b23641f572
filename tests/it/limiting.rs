//! What the rules promise, seen from outside: who passes, who does not, and what they are told.

mod algorithms;
mod answers;
mod counts;
mod keys;
mod matching;
mod refused_bodies;

use crate::support::{Client, Request, Weir, config};

/// An echoing proxy with these rules that believes the test's X-Forwarded-For.
fn with_rules(rules: &str) -> Weir {
    with_settings("", rules)
}

/// The same with more top-level settings.
fn with_settings(settings: &str, rules: &str) -> Weir {
    let trust = "client_ip: { trusted_proxies: [127.0.0.1] }";
    Weir::start(&config("echo", &format!("{trust}\n{settings}\nrules:\n{rules}\n")))
}

/// The statuses of these requests, one after the other on one connection.
fn statuses(weir: &Weir, requests: &[Request]) -> Vec<u16> {
    let mut client = Client::connect(weir.address());
    requests.iter().map(|request| client.ask(request).status).collect()
}

/// How many of `count` such requests pass; the others must all be 429.
fn passing(weir: &Weir, count: usize, request: &Request) -> usize {
    let statuses = statuses(weir, &vec![request.clone(); count]);
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    statuses.iter().filter(|status| **status == 200).count()
}
