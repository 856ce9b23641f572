//! A response that breaks off before any of it was sent results in a 502, not in a connection closed without a
//! response.

use crate::support::h2::H2;
use crate::support::{Client, Origin, Then, Weir, config, wait};

/// Returns an upstream that sends these bytes at once and closes the connection.
fn breaking(response: &'static str) -> Origin {
    Origin::start(move |turn| {
        turn.body()?;
        turn.send(response)?;
        Ok(Then::Close)
    })
}

/// Responses whose body is truncated or malformed.
const BROKEN: [&str; 3] = [
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nxyz\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
];

#[test]
fn a_body_that_is_none_from_its_beginning_is_a_bad_gateway() {
    for response in BROKEN {
        let origin = breaking(response);
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
        let mut client = H2::connect(weir.address());
        assert_eq!(client.ask(client.request("GET", "/")).status, 502, "over HTTP/2");
    }
}

#[test]
fn a_response_cut_off_before_any_of_it_went_out_is_a_bad_gateway_or_looks_cut_off() {
    let origin = breaking("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello");
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
fn a_response_that_broke_off_unseen_is_logged_counted_and_refunded_as_what_the_client_got() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let origin = breaking(BROKEN[0]);
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
fn a_response_that_broke_off_unseen_is_counted_by_the_status_that_the_client_got() {
    let origin = breaking(BROKEN[0]);
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
