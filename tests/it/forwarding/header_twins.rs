//! Headers whose names differ only in `-` and `_`, which CGI, WSGI and PHP read as one.

use crate::support::h2::H2Client;
use crate::support::{Client, Origin, Request, Weir, config, fetch};

fn start(origin: &Origin, rules: &str) -> Weir {
    Weir::start(&config(origin.address(), &format!("rules:\n{rules}")))
}

const KEY_RULE: &str = "  - { name: a, key: { header: x-api-key }, on_missing: deny, limit: 1/d }\n";

#[test]
fn twin_of_a_rules_header_does_not_reach_the_upstream() {
    let origin = Origin::hello();
    let weir = start(&origin, KEY_RULE);
    let request = Request::get("/").header("X-Api-Key", "1").header("x_api_key", "2").header("X_Other", "3");
    assert_eq!(fetch(weir.address(), &request).status, 200);
    let seen = origin.only_request();
    assert_eq!(seen.head.get("x-api-key"), Some("1"));
    assert_eq!((seen.head.get("x_api_key"), seen.head.get("x_other")), (None, Some("3")));
    assert_eq!(weir.metric("weir_request_headers_removed_total", &[]), 1.0);
}

#[test]
fn twin_neither_evades_nor_doubles_a_limit() {
    let origin = Origin::hello();
    let weir = start(&origin, KEY_RULE);
    let mut client = Client::connect(weir.address());
    // The service behind CGI would take this for the key, so a request with it alone has none.
    for name in ["x_api_key", "x-api_key", "X_Api-Key"] {
        assert_eq!(client.fetch(&Request::get("/").header(name, "1")).status, 403, "{name}");
    }
    let status = |other: &str| {
        let request = Request::get("/").header("x-api-key", "1").header("x_api_key", other);
        fetch(weir.address(), &request).status
    };
    assert_eq!([status("2"), status("3"), status("4")], [200, 429, 429]);
}

#[test]
fn underscore_in_the_rules_own_header_is_kept() {
    let origin = Origin::hello();
    let weir = start(&origin, "  - { name: a, key: { header: x_api_key }, limit: 1/d }\n");
    let request = |name: &str| Request::get("/").header(name, "1");
    let mut client = Client::connect(weir.address());
    let statuses = [1, 2].map(|_| client.fetch(&request("x_api_key")).status);
    assert_eq!(statuses, [200, 429]);
    assert_eq!(origin.last_request().head.get("x_api_key"), Some("1"));
    assert_eq!(client.fetch(&request("x-api-key")).status, 200);
    assert_eq!(origin.last_request().head.get("x-api-key"), None);
}

#[test]
fn headers_of_matches_costs_and_upstreams_have_no_twins() {
    let origin = Origin::hello();
    let weir = start(
        &origin,
        "  - { name: a, match: { header: { x-tier: gold } }, action: allow }\n  \
         - { name: b, cost: { header: x-cost, max: 5 }, limit: 1000/d }\n",
    );
    let request = Request::get("/").header("x_tier", "gold").header("x_cost", "1").header("x_free", "1");
    assert_eq!(fetch(weir.address(), &request).status, 200);
    let seen = origin.only_request();
    assert_eq!((seen.head.get("x_tier"), seen.head.get("x_cost")), (None, None));
    assert_eq!(seen.head.get("x_free"), Some("1"));
    assert_eq!(weir.metric("weir_request_headers_removed_total", &[]), 2.0);
}

#[test]
fn twins_of_headers_about_the_client_are_removed_over_both_protocols() {
    let origin = Origin::hello();
    let weir = start(&origin, KEY_RULE);
    let imitations = ["x_forwarded_for", "x-forwarded_proto", "x_real_ip", "true_client_ip", "x_api_key"];
    let one = imitations.iter().fold(Request::get("/1").header("x-api-key", "1"), |request, name| {
        request.header(name, "203.0.113.9")
    });
    assert_eq!(fetch(weir.address(), &one).status, 200);
    let mut client = H2Client::connect(weir.address());
    let two = client.request("GET", "/2").header("x-api-key", "2");
    let two = imitations.iter().fold(two, |request, name| request.header(*name, "203.0.113.9"));
    assert_eq!(client.fetch(two).status.as_u16(), 200);
    for seen in origin.requests() {
        for name in imitations {
            assert_eq!(seen.head.get(name), None, "{name}");
        }
    }
    assert_eq!(weir.metric("weir_request_headers_removed_total", &[]), 10.0);
}
