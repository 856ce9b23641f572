//! Requests whose connection is closed without a response (`on_limit.action: close`).

use std::fs;

use crate::support::h2::H2Client;
use crate::support::{Client, Origin, Request, Weir, config, wait};

const RULES: &str = "rules:
  - { name: once, match: { path: /limited }, limit: 1/d, on_limit: { action: close } }
  - { name: blocked, match: { path: /blocked }, action: deny, on_limit: { action: close } }
  - { name: keyed, match: { path: /keyed }, key: { header: x-key }, on_missing: deny, limit: 1/d, on_limit: { action: close } }
  - { name: kept, match: { path: /kept }, action: deny, on_limit: { action: respond } }
";

#[test]
fn rejected_request_gets_no_byte_and_its_connection_is_closed() {
    let weir = Weir::start(&config("echo", RULES));
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/limited").status, 200);
    for request in [
        Request::get("/limited"),
        Request::post("/limited", vec![0; 200_000]),
        Request::get("/blocked"),
        Request::get("/keyed"),
    ] {
        client.send(request.to_bytes());
        assert!(client.is_closed(), "{:?}", String::from_utf8_lossy(&request.to_bytes()[..20]));
        client = Client::connect(weir.address());
        assert_eq!(client.get("/other").status, 200);
    }
    assert_eq!(client.get("/kept").status, 403);
    let decided =
        |rule, outcome| weir.metric("weir_decisions_total", &[("rule", rule), ("outcome", outcome)]);
    assert_eq!((decided("once", "limited"), decided("blocked", "denied")), (2.0, 1.0));
}

#[test]
fn pipelined_request_behind_it_is_not_served() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), RULES));
    let mut client = Client::connect(weir.address());
    let requests = [Request::get("/blocked").to_bytes(), Request::get("/other").to_bytes()].concat();
    client.send(requests);
    assert!(client.is_closed());
    assert_eq!(origin.requests().len(), 0);
}

#[test]
fn access_log_has_the_reason_and_no_status() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let settings = format!("access_log: {{ path: {}, format: json }}\n{RULES}", log.display());
    let mut weir = Weir::start(&config("echo", &settings));
    let client = Client::connect(weir.address());
    client.send(Request::get("/blocked").to_bytes());
    wait::until_true("the line", || fs::read_to_string(&log).is_ok_and(|text| text.ends_with('\n')));
    weir.kill();
    let line: serde_json::Value = serde_json::from_str(&fs::read_to_string(&log).unwrap()).unwrap();
    assert_eq!((&line["response_flags"], &line["response_code"]), (&"UAEX".into(), &0.into()), "{line}");
}

#[test]
fn stream_is_reset_and_the_connection_ends_after_the_others() {
    let weir = Weir::start(&config("echo", RULES));
    let mut h2 = H2Client::connect(weir.address());
    let (open, mut sending) = h2.send_request(h2.request("POST", "/other"), false);
    let blocked = h2.request("GET", "/blocked");
    let error = h2.try_fetch(blocked).unwrap_err();
    assert_eq!(error.reason(), Some(h2::Reason::ENHANCE_YOUR_CALM));
    sending.send_data("late".into(), true).unwrap();
    assert_eq!(h2.read_response(open).unwrap().status, 200);
    h2.until_closed().unwrap();
}
