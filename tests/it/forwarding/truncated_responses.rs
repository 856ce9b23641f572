//! A response that breaks off before any of it was sent results in a 502, not in a connection closed without a
//! response.

use crate::support::h2::H2Client;
use crate::support::{AfterResponse, Client, Origin, Weir, config, wait};

/// Returns an upstream that sends these bytes at once and closes the connection.
fn truncating_upstream(response: &'static str) -> Origin {
    Origin::start(move |turn| {
        turn.body()?;
        turn.send(response)?;
        Ok(AfterResponse::Close)
    })
}

/// Responses whose body is truncated or malformed.
const BROKEN_RESPONSES: [&str; 3] = [
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nxyz\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
];

#[test]
fn malformed_body_is_502() {
    for response in BROKEN_RESPONSES {
        let origin = truncating_upstream(response);
        let weir = Weir::start(&config(origin.address(), ""));
        let mut client = Client::connect(weir.address());
        for _ in 0..2 {
            let response = client.get("/");
            assert_eq!(
                (response.status, response.body.text().as_str()),
                (502, "bad gateway\n"),
                "a 502, and the connection is kept alive"
            );
        }
        let mut client = H2Client::connect(weir.address());
        assert_eq!(client.fetch(client.request("GET", "/")).status, 502, "over HTTP/2");
    }
}

/// The response that failed would have been the last: HTTP/1.0 has no other end for one of unknown length.
#[test]
fn malformed_body_is_502_over_http1_0_and_the_connection_is_kept_alive() {
    let origin = truncating_upstream(BROKEN_RESPONSES[0]);
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = Client::connect(weir.address());
    for _ in 0..2 {
        client.send("GET / HTTP/1.0\r\nhost: a.test\r\nconnection: keep-alive\r\n\r\n");
        let response = client.read_response("GET");
        assert_eq!((response.status, response.header("connection")), (502, "keep-alive"));
    }
}

#[test]
fn truncated_response_is_502_or_visibly_truncated() {
    let origin = truncating_upstream("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello");
    let weir = Weir::start(&config(origin.address(), ""));
    for _ in 0..20 {
        let mut client = Client::connect(weir.address());
        client.send("GET / HTTP/1.1\r\nhost: a.test\r\n\r\n");
        // It depends on the network whether the broken end arrives with the header section. There is a status in any
        // case.
        let head = client.wire.read_head().unwrap().expect("the connection was closed without a response");
        assert!(["200", "502"].contains(&head.word(1)), "{head:?}");
    }
}

#[test]
fn malformed_body_is_logged_and_counted_as_502_and_refunded() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let origin = truncating_upstream(BROKEN_RESPONSES[0]);
    let rest = format!(
        "access_log: {{ path: {}, format: json }}\nrules: [{{ name: all, key: [], limit: 2/d, refund_on: reset }}]",
        log.path().display()
    );
    let weir = Weir::start(&config(origin.address(), &rest));
    let mut client = Client::connect(weir.address());
    let statuses: Vec<_> = (0..5).map(|_| client.get("/").status).collect();
    assert_eq!(statuses, [502; 5], "`refund_on: reset` refunds the requests");
    let text = wait::until("the lines", || {
        let text = std::fs::read_to_string(log.path()).unwrap();
        (text.lines().count() >= 5).then_some(text)
    });
    assert_eq!(text.matches("\"response_code\":502").count(), 5, "{text}");
    assert_eq!(text.matches("\"response_flags\":\"UC\"").count(), 5, "{text}");
    assert_eq!(weir.metric("weir_requests_total", &[("code_class", "5xx")]), 5.0);
    assert_eq!(weir.metric("weir_requests_in_flight", &[]), 0.0);
}

/// The status that the client gets is counted, not the one that the broken response had.
#[test]
fn malformed_body_counts_by_status_502() {
    let origin = truncating_upstream(BROKEN_RESPONSES[0]);
    let count = |status| {
        let rule = format!(
            "rules: [{{ name: all, key: [], limit: 2/year, algorithm: fixed_window, count: {{ response_status: {status} }} }}]"
        );
        let weir = Weir::start(&config(origin.address(), &rule));
        (0..4).map(|_| Client::connect(weir.address()).get("/").status).collect::<Vec<_>>()
    };
    assert_eq!(count("5xx"), [502, 502, 429, 429]);
    assert_eq!(count("2xx"), [502; 4]);
}
