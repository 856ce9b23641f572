//! Reloads of listeners that decide, and rules that are restricted to other listeners.

use super::{config, forward_auth, start};
use crate::support::{Client, Origin, Request, Weir};

#[test]
fn listener_changes_between_forwarding_and_deciding() {
    let origin = Origin::hello();
    let upstream = format!("upstream: \"{}\"\nrules: []", origin.address());
    let deciding = config("forward_auth", &upstream);
    let forwarding = deciding.replace(", decide: forward_auth", "");
    let weir = Weir::start(&forwarding);
    let mut client = Client::connect(weir.address());
    let ask = forward_auth("192.0.2.1", "GET", "a.test", "/");
    assert_eq!(client.fetch(&ask).body.text(), "hello");
    weir.reload(&deciding);
    assert_eq!(client.fetch(&ask).body.text(), "", "also on a connection that is open");
    assert_eq!(client.fetch(&Request::get("/")).status, 400);
    weir.reload(&forwarding);
    assert_eq!(client.fetch(&ask).body.text(), "hello");
    assert_eq!(origin.requests().len(), 2);
}

#[test]
fn rule_restricted_to_a_forwarding_listener_may_need_responses() {
    let origin = Origin::hello();
    let rest = format!(
        "upstream: \"{}\"\nrules:\n- {{ name: busy, match: {{ listener: front }}, in_flight: 1, limit: 1/h, count: {{ response_status: 200 }} }}",
        origin.address()
    );
    let both = config("forward_auth", &rest)
        .replace("listeners: [", "listeners: [{ name: front, address: 127.0.0.1:0 }, ");
    let weir = Weir::start(&both);
    let front = weir.listener("front");
    let statuses: Vec<_> = (0..2).map(|_| Client::connect(front).get("/").status).collect();
    assert_eq!(statuses, [200, 429]);
    let mut asking = Client::connect(weir.listener("asked"));
    for _ in 0..3 {
        assert_eq!(asking.fetch(&forward_auth("192.0.2.1", "GET", "a.test", "/")).status, 200);
    }
}

#[test]
fn connection_stays_open_between_decisions() {
    let weir = start("forward_auth", "rules: []");
    let mut client = Client::connect(weir.address());
    for method in ["GET", "HEAD", "OPTIONS", "POST"] {
        let response = client.fetch(&forward_auth("192.0.2.1", method, "a.test", "/"));
        assert_eq!((response.status, response.body.text().as_str()), (200, ""), "{method}");
    }
    assert_eq!(client.fetch(&forward_auth("192.0.2.1", "CONNECT", "a.test", "/")).status, 405);
}
