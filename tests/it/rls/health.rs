//! Health reporting and graceful shutdown of the service.

use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;

use super::client::descriptor;
use super::{RlsService, config};
use crate::support::h2::H2Client;
use crate::support::{Weir, get, wait};

const RULES: &str =
    "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: hour, requests_per_unit: 1 }\n";
const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;

#[test]
fn grpc_and_http_health_follow_readiness() {
    let service = RlsService::start(&[("d.yaml", RULES)]);
    let http = service.weir.rls_address("http");
    let says = |status: i32| {
        wait::until_true("health", || {
            ["", "ratelimit"].iter().all(|name| service.client.health(name).unwrap() == status)
        });
    };
    says(SERVING);
    assert_eq!(get(http, "/healthcheck").body.text(), "OK");
    assert_eq!(service.client.health("another").unwrap_err().code(), tonic::Code::NotFound);
    service.weir.admin_post("/healthcheck/fail");
    says(NOT_SERVING);
    let failed = get(http, "/healthcheck");
    assert_eq!((failed.status, failed.body.text().as_str()), (500, ""));
    service.weir.admin_post("/healthcheck/ok");
    says(SERVING);
}

#[test]
fn health_watch_reports_changes() {
    let service = RlsService::start(&[("d.yaml", RULES)]);
    wait::until_true("health", || service.client.health("").unwrap() == SERVING);
    let mut watched = service.client.watch("ratelimit");
    assert_eq!(watched.next(), SERVING);
    service.weir.admin_post("/healthcheck/fail");
    assert_eq!(watched.next(), NOT_SERVING);
    service.weir.admin_post("/healthcheck/ok");
    assert_eq!(watched.next(), SERVING);
}

#[test]
fn drain_reports_not_serving_and_still_serves_calls() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("d.yaml"), RULES).unwrap();
    let text = format!("{}drain: {{ delay: 60s, timeout: 5s }}\n", config(directory.path(), ""));
    let mut weir = Weir::start(&text);
    let client = super::RlsClient::connect(weir.rls_address("grpc"));
    wait::until_true("health", || client.health("").unwrap() == SERVING);
    weir.terminate();
    wait::until_true("the announcement", || client.health("").unwrap() == NOT_SERVING);
    assert_eq!(client.check("d", "k=x").statuses.len(), 1, "calls are served after the announcement");
    weir.admin_post("/drain_listeners");
    assert!(weir.wait_exit().success());
    let log = weir.log().join("\n");
    assert!(log.contains("\"outcome\":\"drained\""), "idle connections are closed gracefully: {log}");
}

#[test]
fn max_connection_age_closes_gracefully() {
    let service =
        RlsService::start_with(&[("d.yaml", RULES)], "  connections: { max_age: 300ms, grace: 5s }\n");
    let mut first = H2Client::connect(service.weir.rls_address("grpc"));
    assert!(first.until_closed().is_ok(), "closed with GOAWAY and without an error");
    let request =
        RateLimitRequest { domain: "d".to_owned(), descriptors: vec![descriptor("k=x")], hits_addend: 0 };
    let until = wait::now() + Duration::from_secs(1);
    let (mut calls, mut unsent) = (0, 0);
    while wait::now() < until {
        match service.client.try_check(request.clone()) {
            Ok(response) => {
                assert_eq!(response.statuses.len(), 1);
                calls += 1;
            }
            // The client had not sent the call when the connection ended, which happens once per connection at most.
            Err(status) => {
                assert_eq!(status.code(), tonic::Code::Cancelled, "{status}");
                unsent += 1;
            }
        }
    }
    assert!(unsent <= 5, "{unsent} calls were cancelled");
    assert!(calls > 10, "only {calls} calls");
}
