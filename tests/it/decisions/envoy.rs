//! `ext_authz` of a real Envoy over gRPC and over HTTP, with the filters of the guide.

use std::net::SocketAddr;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{LIMITS, guide_block, start};
use crate::support::envoy::{Envoy, cluster, grpc_cluster};
use crate::support::h2::H2Client;
use crate::support::{Client, Origin, Request, Weir};

/// Starts Envoy with the filter of a guide's section.
fn start_envoy(heading: &str, weir: SocketAddr, origin: &Origin) -> Envoy {
    let filter: Value = serde_yaml::from_str(guide_block(heading, "yml")).unwrap();
    let host = json!({
        "name": "all",
        "domains": ["*"],
        "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "upstream" } }],
    });
    let weir = match heading {
        "Envoy over gRPC" => grpc_cluster("weir", weir),
        _ => cluster("weir", weir),
    };
    Envoy::start(&[filter], &host, origin.address(), &[weir])
}

fn post() -> Request {
    Request::post("/api/orders?a=b", "body").host("shop.test")
}

#[test]
fn envoy_gets_decisions_over_grpc() {
    let (weir, origin) = (start("ext_authz", LIMITS), Origin::hello());
    let envoy = start_envoy("Envoy over gRPC", weir.address(), &origin);
    let first = envoy.fetch(&post());
    assert_eq!((first.status, first.numeric_header("x-ratelimit-remaining")), (200, 1));
    assert_eq!(envoy.fetch(&post()).status, 200);
    let rejected = envoy.fetch(&post());
    assert_eq!((rejected.status, rejected.header("x-envoy-ratelimited")), (429, "true"));
    assert!((1..=3600).contains(&rejected.numeric_header("retry-after")));
    assert_eq!((rejected.header("x-by"), rejected.header("content-type")), ("writes", "application/json"));
    assert!(rejected.body.text().contains(r#""path":"/api/orders""#), "{}", rejected.body.text());
    assert_eq!(envoy.fetch(&post().with_method("PUT")).status, 200, "another method");
    let closed = envoy.fetch(&Request::get("/closed").host("shop.test"));
    assert_eq!((closed.status, closed.header("retry-after")), (503, "600"));
    assert_eq!(closed.body.text(), "back at noon");
    assert_eq!(origin.requests().len(), 3);
    let stats =
        ["ok", "denied", "error"].map(|name| envoy.stat(&format!("cluster.upstream.ext_authz.{name}")));
    assert_eq!(stats, [3, 2, 0]);
}

#[test]
fn envoy_gets_decisions_over_http() {
    let (weir, origin) = (start("ext_authz", LIMITS), Origin::hello());
    let envoy = start_envoy("Envoy over HTTP", weir.address(), &origin);
    let post = || post().forwarded_for("192.0.2.1");
    let first = envoy.fetch(&post());
    assert_eq!((first.status, first.numeric_header("x-ratelimit-remaining")), (200, 1));
    assert_eq!(envoy.fetch(&post()).status, 200);
    let rejected = envoy.fetch(&post());
    assert_eq!((rejected.status, rejected.header("x-envoy-ratelimited")), (429, "true"));
    assert!((1..=3600).contains(&rejected.numeric_header("retry-after")));
    assert!(rejected.body.text().contains(r#""path":"/api/orders""#), "{}", rejected.body.text());
    // 503 would be a failure of Weir to Envoy, which may admit the request then.
    assert_eq!(envoy.fetch(&Request::get("/closed").host("shop.test")).status, 403);
    assert_eq!(origin.requests().len(), 2);
}

#[test]
fn over_limit_mark_reaches_the_upstream_and_cannot_be_forged() {
    let rules = "rules: [{ name: soft, limit: 1/h, burst: 1, throttle: soft 100% }]";
    let (weir, origin) = (start("ext_authz", rules), Origin::hello());
    let envoy = start_envoy("Envoy over gRPC", weir.address(), &origin);
    let forged = || Request::get("/").header("x-weir-over-limit", "forged");
    let marks: Vec<_> = (0..3)
        .map(|_| {
            let status = envoy.fetch(&forged()).status;
            (status, origin.last_request().head.get("x-weir-over-limit").map(str::to_owned))
        })
        .collect();
    assert_eq!((marks[0].clone(), marks[1].clone()), ((200, None), (200, Some("soft".to_owned()))));
    assert_eq!(marks[2].0, 429);
}

#[test]
fn call_that_describes_no_request_fails() {
    let weir = start("ext_authz", LIMITS);
    let mut client = H2Client::connect(weir.address());
    let mut check = |content: &[u8]| {
        let call = client.request("POST", "/envoy.service.auth.v3.Authorization/Check");
        let (response, mut sending) =
            client.send_request(call.header("content-type", "application/grpc"), false);
        sending.send_data(Bytes::copy_from_slice(content), true).unwrap();
        let failed = client.read_response(response).unwrap();
        assert_eq!((failed.status.as_u16(), failed.header("grpc-status")), (200, "13"));
        failed.header("grpc-message").to_owned()
    };
    assert_eq!(check(&[0, 0, 0, 0, 0]), "invalid CheckRequest: attributes are missing");
    assert_eq!(
        check(&[0, 0, 0, 0, 2, 1]),
        "invalid CheckRequest: the length of the message is not that of its prefix"
    );
    assert_eq!(check(&vec![0; 1024 * 1024 + 1]), "invalid CheckRequest: longer than 1 MiB");
    let request = client.request("GET", "/api/orders").header("x-forwarded-for", "192.0.2.1");
    let response = client.fetch(request);
    assert_eq!(response.status, 404, "the HTTP service over HTTP/2");
}

#[test]
fn peer_that_is_not_trusted_is_denied_over_grpc() {
    let rest = "rules: []";
    let config = super::config("ext_authz", rest).replace("[127.0.0.1]", "[192.0.2.1]");
    let (weir, origin) = (Weir::start(&config), Origin::hello());
    let envoy = start_envoy("Envoy over gRPC", weir.address(), &origin);
    assert_eq!(envoy.get("/").status, 403, "a decision, which `failure_mode_allow` does not admit");
    assert_eq!(origin.requests().len(), 0);
    assert_eq!(Client::connect(weir.address()).get("/").status, 403);
}
