//! The service with a real Envoy: effects of its decisions on clients.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::{RlsService, config};
use crate::servers::Server;
use crate::support::envoy::{Envoy, grpc_cluster};
use crate::support::{Origin, Request, Weir, wait};

const RULES: &str = "\
domain: edge
descriptors:
  - key: remote_address
    rate_limit: { name: per-ip, unit: hour, requests_per_unit: 2 }
  - key: route
    value: login
    rate_limit: { unit: hour, requests_per_unit: 1 }
  - key: route
    value: looked-at
    shadow_mode: true
    rate_limit: { unit: hour, requests_per_unit: 1 }
  - key: route
    value: bought
    rate_limit: { unit: hour, requests_per_unit: 1 }
  - key: quota
    value: tokens
    rate_limit: { unit: hour, requests_per_unit: 10 }
";

/// Returns the rate limit filter with further settings.
fn rate_limit_filter(more: &Value) -> Value {
    let mut config = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
        "domain": "edge",
        "timeout": "1s",
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
        "enable_retry_after_header": true,
        "rate_limited_as_resource_exhausted": true,
        "rate_limit_service": {
            "transport_api_version": "V3",
            "grpc_service": { "envoy_grpc": { "cluster_name": "ratelimit" } },
        },
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    json!({ "name": "envoy.filters.http.ratelimit", "typed_config": config })
}

/// Returns a virtual host whose named routes send their name as a descriptor. All other routes send the client's
/// address.
fn virtual_host() -> Value {
    let to = json!({ "cluster": "upstream" });
    let named = |name: &str| {
        let action = json!({ "generic_key": { "descriptor_key": "route", "descriptor_value": name } });
        json!({
            "match": { "prefix": format!("/{name}") },
            "route": { "cluster": "upstream", "rate_limits": [{ "actions": [action] }] },
        })
    };
    let tokens = json!([{ "generic_key": { "descriptor_key": "quota", "descriptor_value": "tokens" } }]);
    let mut bought = named("bought");
    let over = json!({ "metadata_key": { "key": "test", "path": [{ "key": "limit" }] } });
    bought["route"]["rate_limits"][0]["limit"] = json!({ "dynamic_metadata": over });
    json!({
        "name": "all",
        "domains": ["*"],
        "rate_limits": [{ "actions": [{ "remote_address": {} }] }],
        "routes": [
            named("login"),
            named("looked-at"),
            bought,
            {
                "match": { "prefix": "/tokens" },
                "route": to,
                "typed_per_filter_config": { "envoy.filters.http.ratelimit": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute",
                    "rate_limits": [
                        { "actions": tokens, "hits_addend": { "number": 0 } },
                        {
                            "actions": tokens,
                            "hits_addend": { "format": "%RESP(x-tokens)%" },
                            "apply_on_stream_done": true,
                        },
                    ],
                } },
            },
            { "match": { "prefix": "/" }, "route": to },
        ],
    })
}

fn start_envoy(service: SocketAddr, upstream: &Origin, more: &Value) -> Envoy {
    let metadata = json!({
        "name": "envoy.filters.http.set_metadata",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
            "metadata": [{
                "metadata_namespace": "test",
                "value": { "limit": { "requests_per_unit": 3, "unit": "HOUR" } },
            }],
        },
    });
    let clusters = [grpc_cluster("ratelimit", service)];
    Envoy::start(&[metadata, rate_limit_filter(more)], &virtual_host(), upstream.address(), &clusters)
}

fn request_from(client: &str, path: &str) -> Request {
    Request::get(path).header("x-forwarded-for", client)
}

#[test]
fn clients_get_rate_limit_headers_and_429() {
    let (service, origin) = (RlsService::start(&[("edge.yaml", RULES)]), Origin::hello());
    let envoy = start_envoy(service.weir.rls_address("grpc"), &origin, &json!({}));
    let first = envoy.fetch(&request_from("192.0.2.1", "/"));
    assert_eq!((first.status, first.header("x-ratelimit-limit")), (200, "2, 2;w=3600;name=\"per-ip\""));
    assert_eq!(first.numeric_header("x-ratelimit-remaining"), 1);
    assert!((1..=3600).contains(&first.numeric_header("x-ratelimit-reset")));
    envoy.fetch(&request_from("192.0.2.1", "/"));
    let refused = envoy.fetch(&request_from("192.0.2.1", "/"));
    assert_eq!((refused.status, refused.header("x-envoy-ratelimited")), (429, "true"));
    assert_eq!(refused.numeric_header("x-ratelimit-remaining"), 0);
    assert!((1..=3600).contains(&refused.numeric_header("retry-after")));
    assert_eq!(envoy.fetch(&request_from("192.0.2.2", "/")).status, 200, "another client");
    assert_eq!(origin.requests().len(), 3);
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.over_limit"), 1);
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.error"), 0);
}

#[test]
fn shadow_rule_admits_and_limit_override_applies() {
    let (service, origin) = (RlsService::start(&[("edge.yaml", RULES)]), Origin::hello());
    let envoy = start_envoy(service.weir.rls_address("grpc"), &origin, &json!({}));
    let statuses =
        |path: &str, times: usize| -> Vec<u16> { (0..times).map(|_| envoy.get(path).status).collect() };
    assert_eq!(statuses("/login", 2), [200, 429]);
    assert_eq!(statuses("/looked-at", 3), [200, 200, 200]);
    assert_eq!(service.stat("ratelimit.service.rate_limit.edge.route_looked-at.shadow_mode"), 2);
    assert_eq!(statuses("/bought", 4), [200, 200, 200, 429], "the request's limit, not the rule's");
}

#[test]
fn hits_from_the_response_are_charged_on_stream_done() {
    let service = RlsService::start(&[("edge.yaml", RULES)]);
    let origin = Origin::responding_with("HTTP/1.1 200 OK\r\nx-tokens: 6\r\ncontent-length: 0\r\n\r\n");
    let envoy = start_envoy(service.weir.rls_address("grpc"), &origin, &json!({}));
    let charged = || service.stat("ratelimit.service.rate_limit.edge.quota_tokens.total_hits");
    for turn in 1..=2_u64 {
        assert_eq!(envoy.get("/tokens").status, 200);
        wait::until_true("the charge", || charged() == 6 * turn);
    }
    assert_eq!(envoy.get("/tokens").status, 429);
    assert_eq!(charged(), 12, "a request with zero hits is not charged");
}

#[test]
fn grpc_call_is_rejected_with_resource_exhausted() {
    let (service, origin) = (RlsService::start(&[("edge.yaml", RULES)]), Origin::hello());
    let envoy = start_envoy(service.weir.rls_address("grpc"), &origin, &json!({}));
    let call = || {
        let call = Request::post("/login", "").header("content-type", "application/grpc");
        envoy.fetch(&call.header("te", "trailers"))
    };
    call();
    let refused = call();
    assert_eq!((refused.status, refused.header("grpc-status")), (200, "8"));
}

#[test]
fn response_headers_of_the_service_reach_the_client() {
    let service = RlsService::start_with(&[("edge.yaml", RULES)], "  response_headers: true\n");
    let origin = Origin::hello();
    let envoy = start_envoy(service.weir.rls_address("grpc"), &origin, &json!({}));
    let passed = envoy.get("/login");
    assert_eq!(
        (passed.status, passed.header("ratelimit-limit"), passed.header("ratelimit-remaining")),
        (200, "1", "0")
    );
    let refused = envoy.get("/login");
    assert_eq!((refused.status, refused.header("ratelimit-limit")), (429, "1"));
}

#[test]
fn failure_mode_deny_decides_without_the_service() {
    let origin = Origin::hello();
    let mut service = RlsService::start(&[("edge.yaml", RULES)]);
    let grpc = service.weir.rls_address("grpc");
    let open = start_envoy(grpc, &origin, &json!({}));
    let closed = start_envoy(grpc, &origin, &json!({ "failure_mode_deny": true }));
    assert_eq!((open.get("/login").status, open.get("/login").status), (200, 429));
    service.weir.kill();
    assert_eq!((open.get("/login").status, closed.get("/login").status), (200, 500));
    assert!(open.stat("cluster.upstream.ratelimit.failure_mode_allowed") > 0);
    let text = config(service.rules_directory(), "").replacen(
        "address: 127.0.0.1:0\n  http",
        &format!("address: {grpc}\n  http"),
        1,
    );
    let again = Weir::start(&text);
    assert_eq!(again.rls_address("grpc"), grpc);
    wait::until_true("the service again", || closed.get("/login").status == 200);
    assert_eq!(open.get("/login").status, 429, "both Envoys use the same service");
}

#[test]
fn unresponsive_service_times_out() {
    let origin = Origin::hello();
    let service = RlsService::start(&[("edge.yaml", RULES)]);
    let envoy = start_envoy(service.weir.rls_address("grpc"), &origin, &json!({ "timeout": "0.2s" }));
    assert_eq!((envoy.get("/login").status, envoy.get("/login").status), (200, 429));
    service.weir.signal("STOP");
    wait::until_true("Envoy to admit requests without the service", || envoy.get("/login").status == 200);
    service.weir.signal("CONT");
    wait::until_true("the service again", || envoy.get("/login").status == 429);
}

#[test]
fn native_rules_apply_to_envoy() {
    let rules = "rls: { address: 127.0.0.1:0 }\nrules:
- { name: per-ip, domain: edge, key: client_ip, limit: 2/h, algorithm: fixed_window }
- { name: known, domain: edge, match: { client_ip: 192.0.2.9 }, action: allow }
- { name: login, domain: edge, match: { descriptor: { route: login } }, action: deny }\n";
    let (weir, origin) = (Weir::start(&crate::support::config("echo", rules)), Origin::hello());
    let envoy = start_envoy(weir.rls_address("grpc"), &origin, &json!({}));
    let first = envoy.fetch(&request_from("192.0.2.1", "/"));
    assert_eq!((first.status, first.header("x-ratelimit-limit")), (200, "2, 2;w=3600;name=\"per-ip\""));
    let statuses = [(); 2].map(|()| envoy.fetch(&request_from("192.0.2.1", "/")).status);
    assert_eq!(statuses, [200, 429]);
    assert!([(); 4].iter().all(|()| envoy.fetch(&request_from("192.0.2.9", "/")).status == 200));
    assert_eq!(envoy.fetch(&request_from("192.0.2.9", "/login")).status, 429);
}

#[test]
fn envoys_on_different_instances_share_one_limit() {
    let store = Server::start();
    let more = format!("store: {{ redis: \"{}\", timeout: 2s }}\n", store.url());
    let rules = format!(
        "{more}rls: {{ address: 127.0.0.1:0, scope: {{ shared: exact, wait: 1s }} }}\nrules:
- {{ name: per-ip, domain: edge, key: client_ip, limit: 4/d, scope: {{ shared: exact, wait: 1s }} }}\n"
    );
    let origin = Origin::hello();
    let fleet = [0, 1].map(|_| Weir::start(&crate::support::config("echo", &rules)));
    for weir in &fleet {
        wait::until_true("the fleet", || weir.metric("weir_store_instances", &[]) == 2.0);
    }
    let envoys = fleet.each_ref().map(|weir| start_envoy(weir.rls_address("grpc"), &origin, &json!({})));
    let statuses = (0..8).map(|turn: usize| envoys[turn % 2].fetch(&request_from("192.0.2.1", "/")).status);
    assert_eq!(statuses.filter(|status| *status == 200).count(), 4);
}

#[test]
fn rule_metadata_becomes_dynamic_metadata() {
    let file = "domain: edge\ndescriptors:\n- key: remote_address\n  metadata: { tier: gold }\n  \
                rate_limit: { unit: hour, requests_per_unit: 5 }\n";
    let service = RlsService::start_with(&[("edge.yaml", file)], "  dynamic_metadata: true\n");
    let origin = Origin::hello();
    let mut host = virtual_host();
    let tier = "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:tier)%";
    host["response_headers_to_add"] = json!([{ "header": { "key": "x-tier", "value": tier } }]);
    let clusters = [grpc_cluster("ratelimit", service.weir.rls_address("grpc"))];
    let envoy = Envoy::start(&[rate_limit_filter(&json!({}))], &host, origin.address(), &clusters);
    assert_eq!(envoy.get("/").header("x-tier"), "gold");
}
