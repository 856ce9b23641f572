//! Timeouts that the client has set: such requests are charged, whatever the rule refunds.

use std::time::Duration;

use h2::Reason;
use http::{HeaderMap, HeaderName, HeaderValue, Response};

use super::{scripted_upstream, start_with_rule, start_with_short_timeout};
use crate::support::h2::H2Client;
use crate::support::h2_origin::H2Origin;
use crate::support::{AfterResponse, Client, LISTENER, Origin, Request, Weir, config_with, wait};

const REFUND_RULE: &str = "rules:\n  - { name: all, key: [], limit: 3/year, algorithm: fixed_window, refund_on: [timeout, reset, 5xx] }\n";

/// Returns a gRPC upstream that accepts calls and never responds.
fn silent_upstream() -> H2Origin {
    H2Origin::start(None, |_, respond| async move {
        std::future::pending::<()>().await;
        drop(respond);
        Ok(())
    })
}

/// Starts a proxy in front of `origin` whose only rule refunds failed requests.
fn start_with_refund_rule(origin: &H2Origin, settings: &str) -> Weir {
    let upstream = format!("{{ address: \"{}\", {settings} }}", origin.address());
    Weir::start(&config_with(LISTENER, &upstream, REFUND_RULE))
}

/// Makes `count` calls with this deadline in order, and returns the `grpc-status` of each.
fn call_statuses(weir: &Weir, count: usize, deadline: &str) -> Vec<String> {
    let mut client = H2Client::connect(weir.address());
    let mut call =
        || client.fetch(client.call().header("grpc-timeout", deadline)).header("grpc-status").to_owned();
    (0..count).map(|_| call()).collect()
}

#[test]
fn expired_client_deadline_is_not_refunded() {
    let origin = silent_upstream();
    let weir = start_with_refund_rule(&origin, "timeout: 1h");
    assert_eq!(call_statuses(&weir, 6, "50m"), ["4", "4", "4", "8", "8", "8"]);
    assert_eq!(origin.streams(), 3, "more calls were forwarded than the limit admits");
}

#[test]
fn expired_client_deadline_costs_the_maximum() {
    let origin = silent_upstream();
    let upstream = format!("{{ address: \"{}\", timeout: 1h }}", origin.address());
    let rule = "rules:\n  - { name: tokens, key: [], limit: 150/year, algorithm: fixed_window, cost: { response_header: x-tokens, estimate: 1, max: 100 } }\n";
    let weir = Weir::start(&config_with(LISTENER, &upstream, rule));
    assert_eq!(call_statuses(&weir, 3, "50m"), ["4", "4", "8"]);
}

#[test]
fn client_deadline_that_expires_before_anything_was_sent_costs_the_estimate() {
    // It accepts connections, and no handshake.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = format!(
        "{{ address: \"https://{}\", timeout: 1h, connect_timeout: 1h, tls: {{ verify: insecure }} }}",
        silent.local_addr().unwrap()
    );
    let rule = "rules:\n  - { name: tokens, key: [], limit: 3/year, algorithm: fixed_window, cost: { response_header: x-tokens, estimate: 1, max: 100 } }\n";
    let weir = Weir::start(&config_with(LISTENER, &upstream, rule));
    assert_eq!(call_statuses(&weir, 4, "50m"), ["4", "4", "4", "8"]);
}

#[test]
fn configured_timeout_before_the_client_deadline_is_refunded() {
    let origin = silent_upstream();
    let weir = start_with_refund_rule(&origin, "timeout: 200ms");
    assert_eq!(call_statuses(&weir, 5, "1H"), ["4"; 5]);
    assert_eq!(origin.streams(), 5);
}

#[test]
fn upstream_reset_at_the_client_deadline_is_not_refunded() {
    let origin = H2Origin::start(None, |request, mut respond| async move {
        let deadline =
            request.headers()["grpc-timeout"].to_str().unwrap().trim_end_matches('m').parse().unwrap();
        tokio::time::sleep(Duration::from_millis(deadline)).await;
        respond.send_reset(Reason::CANCEL);
        Ok(())
    });
    let weir = start_with_refund_rule(&origin, "timeout: 1h");
    let statuses = call_statuses(&weir, 4, "60m");
    assert!(statuses[..3].iter().all(|status| ["4", "14"].contains(&status.as_str())), "{statuses:?}");
    assert_eq!((statuses[3].as_str(), origin.streams()), ("8", 3));
}

/// Returns an upstream that starts a response at once, and ends it with this `grpc-status` after the deadline of 60 ms.
fn late_trailers(status: &'static str) -> H2Origin {
    H2Origin::start(None, move |_, mut respond| async move {
        let mut stream = respond.send_response(Response::new(()), false)?;
        tokio::time::sleep(Duration::from_millis(100)).await;
        stream.send_trailers(HeaderMap::from_iter([(
            HeaderName::from_static("grpc-status"),
            HeaderValue::from_static(status),
        )]))
    })
}

fn start_with_grpc_refund_rule(origin: &H2Origin) -> Weir {
    let rule = "rules:\n  - { name: all, key: [], limit: 3/year, algorithm: fixed_window, \
                refund_on: [unavailable, internal, deadline_exceeded] }\n";
    let upstream = format!("{{ address: \"{}\", http2: true, timeout: 1h }}", origin.address());
    Weir::start(&config_with(LISTENER, &upstream, rule))
}

#[test]
fn error_in_trailers_after_the_client_deadline_is_not_refunded() {
    for status in ["4", "14", "13"] {
        let origin = late_trailers(status);
        let weir = start_with_grpc_refund_rule(&origin);
        assert_eq!(call_statuses(&weir, 4, "60m"), ["", "", "", "8"], "{status}");
        let origin = late_trailers(status);
        let weir = start_with_grpc_refund_rule(&origin);
        assert_eq!(call_statuses(&weir, 4, "1H"), [""; 4], "{status} before the deadline");
    }
}

/// Servers may respond in any way after a deadline: here with an error in a header section without a body.
#[test]
fn error_in_headers_after_the_client_deadline_is_not_refunded() {
    let origin = H2Origin::start(None, |_, mut respond| async move {
        // Sent at once, so that it arrives no later than the proxy's own timer fires.
        let response = Response::builder().header("grpc-status", "14").body(()).unwrap();
        respond.send_response(response, true).map(drop)
    });
    let weir = start_with_grpc_refund_rule(&origin);
    let statuses = call_statuses(&weir, 4, "1n");
    assert!(statuses[..3].iter().all(|status| ["4", "14"].contains(&status.as_str())), "{statuses:?}");
    assert_eq!(statuses[3], "8");
}

#[test]
fn shortest_of_repeated_grpc_timeout_headers_applies() {
    let origin = silent_upstream();
    let weir = start_with_refund_rule(&origin, "timeout: 1h");
    let mut client = H2Client::connect(weir.address());
    let mut status = || {
        let call = client.call().header("grpc-timeout", "1H").header("grpc-timeout", "50m");
        client.fetch(call).header("grpc-status").to_owned()
    };
    assert_eq!([status(), status(), status(), status()], ["4", "4", "4", "8"]);
}

/// The upstream is a gRPC server and resets the request at the deadline, although the proxy does not treat it as a
/// call.
#[test]
fn deadline_header_of_http1_request_prevents_refund() {
    for (name, value) in [("grpc-timeout", "60m"), ("grpc-timeout", "+60m"), ("connect-timeout-ms", "60")] {
        let origin = H2Origin::start(None, |_, mut respond| async move {
            tokio::time::sleep(Duration::from_millis(80)).await;
            respond.send_reset(Reason::CANCEL);
            Ok(())
        });
        let weir = start_with_refund_rule(&origin, "http2: true, timeout: 1h");
        let request =
            Request::post("/p.S/M", "call").header("content-type", "application/grpc").header(name, value);
        let status = || Client::connect(weir.address()).fetch(&request).status;
        assert_eq!([status(), status(), status(), status()], [503, 503, 503, 429], "{name}: {value}");
        assert_eq!(origin.streams(), 3);
    }
}

#[test]
fn upstream_reset_before_the_client_deadline_is_refunded() {
    let origin = H2Origin::start(None, |_, mut respond| async move {
        respond.send_reset(Reason::INTERNAL_ERROR);
        Ok(())
    });
    let weir = start_with_refund_rule(&origin, "timeout: 1h");
    assert_eq!(call_statuses(&weir, 5, "1H"), ["14"; 5]);
}

#[test]
fn expired_client_deadlines_do_not_eject_an_endpoint() {
    let origins = [silent_upstream(), silent_upstream()];
    let upstream = format!(
        "{{ address: ['{}', '{}'], timeout: 1h, outliers: {{ failures: 1 }} }}",
        origins[0].address(),
        origins[1].address()
    );
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    assert_eq!(call_statuses(&weir, 4, "1m"), ["4"; 4]);
    assert_eq!(weir.metric("weir_upstream_ejections_total", &[]), 0.0);
}

/// Returns a request by which an external client demands a shorter timeout and more retries than configured.
fn request_with_overrides() -> Request {
    Request::get("/")
        .header("x-envoy-upstream-rq-timeout-ms", "1")
        .header("x-envoy-upstream-rq-per-try-timeout-ms", "1")
        .header("x-envoy-max-retries", "10")
        .header("x-envoy-retry-on", "5xx,reset,gateway-error,retriable-4xx")
}

/// Starts a proxy that trusts its peer, an ingress, and 10.0.0.0/8.
fn start_behind_ingress(origin: &Origin) -> Weir {
    let rest = format!("client_ip: {{ trusted_proxies: [127.0.0.1, 10.0.0.0/8] }}\n{REFUND_RULE}");
    Weir::start(&config_with(
        LISTENER,
        &format!("{{ address: \"{}\", timeout: 20s }}", origin.address()),
        &rest,
    ))
}

#[test]
fn envoy_override_headers_of_external_clients_are_ignored_and_removed() {
    let origin = Origin::start(|turn| {
        turn.body()?;
        wait::pause(Duration::from_millis(300));
        turn.send("HTTP/1.1 503 Away\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_behind_ingress(&origin);
    // It makes no difference if the client forged an address, if one is unreadable, or if trusted hops are on either
    // side.
    let external = ["192.0.2.1", "127.0.0.1, 192.0.2.1", "10.0.0.9, unknown", "192.0.2.1, 10.0.0.5"];
    for forwarded in external {
        let response =
            Client::connect(weir.address()).fetch(&request_with_overrides().forwarded_for(forwarded));
        assert_eq!(response.status, 503, "{forwarded}");
    }
    assert_eq!(origin.requests().len(), external.len(), "requests of an external client were retried");
    for seen in origin.requests() {
        assert_eq!(seen.head.get("x-envoy-expected-rq-timeout-ms"), Some("20000"));
        let left = |name: &&str| seen.head.get(name).is_some();
        let overrides = [
            "x-envoy-upstream-rq-timeout-ms",
            "x-envoy-upstream-rq-per-try-timeout-ms",
            "x-envoy-max-retries",
            "x-envoy-retry-on",
        ];
        assert_eq!(overrides.iter().find(|name| left(name)), None);
    }
}

#[test]
fn timeout_set_by_an_internal_client_is_not_refunded() {
    for header in ["x-envoy-upstream-rq-timeout-ms", "x-envoy-upstream-rq-per-try-timeout-ms"] {
        let origin = scripted_upstream();
        let weir = start_behind_ingress(&origin);
        let request = Request::get("/late").forwarded_for("10.0.0.7").header(header, "50");
        let status = || Client::connect(weir.address()).fetch(&request).status;
        assert_eq!([status(), status(), status(), status()], [504, 504, 504, 429], "{header}");
    }
}

#[test]
fn configured_timeout_is_refunded() {
    let origin = scripted_upstream();
    let weir = start_with_short_timeout(&origin, "{ name: all, key: [], limit: 1/d, refund_on: timeout }");
    let late = || Client::connect(weir.address()).get("/late").status;
    assert_eq!([late(), late(), late()], [504; 3]);
    let weir = start_with_rule(&origin, "{ name: all, key: [], limit: 1/d, refund_on: timeout }");
    assert_eq!(Client::connect(weir.address()).get("/200").status, 200);
}
