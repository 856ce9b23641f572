//! Imported rules against Envoy itself: the same requests, in the same order, get the same decisions.
//!
//! No bucket gets a token during a test, so nothing depends on how fast it runs.

use std::fs;
use std::net::SocketAddr;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::envoy::Envoy;
use crate::support::weir::run;
use crate::support::{Request, Weir, fetch};

const TYPE: &str = "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit";
const NAME: &str = "envoy.filters.http.local_ratelimit";

/// Returns a configuration of the filter that is enforced.
fn filter(fields: &Value) -> Value {
    let all = json!({ "default_value": { "numerator": 100, "denominator": "HUNDRED" } });
    let mut filter =
        json!({ "@type": TYPE, "stat_prefix": "edge", "filter_enabled": all, "filter_enforced": all });
    filter.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    filter
}

fn bucket(tokens: u32) -> Value {
    json!({ "max_tokens": tokens, "tokens_per_fill": 1, "fill_interval": "3600s" })
}

fn descriptor(entries: &Value, tokens: u32) -> Value {
    json!({ "entries": entries, "token_bucket": bucket(tokens) })
}

fn header_action(header: &str, key: &str) -> Value {
    json!({ "request_headers": { "header_name": header, "descriptor_key": key } })
}

/// A request, as both proxies receive it: its path, and the value of `x-user`.
type Attempt = (&'static str, Option<&'static str>);

fn request((path, user): &Attempt) -> Request {
    let request = Request::new("GET", path).host("a.test");
    user.iter().fold(request, |request, user| request.header("x-user", user))
}

/// Whether a proxy rejects a request. Neither needs an upstream: a request that is admitted has another status.
fn is_rejected(status: u16) -> bool {
    matches!(status, 403 | 429)
}

/// Returns the imported rules of a connection manager with these filters and this virtual host.
#[track_caller]
fn import_rules(filters: &[Value], host: &Value) -> String {
    let manager =
        json!({ "http_filters": filters, "route_config": { "name": "r", "virtual_hosts": [host] } });
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("envoy.json");
    fs::write(&file, manager.to_string()).unwrap();
    let output = run(["import", "local-ratelimit", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn start_weir(rules: &str) -> Weir {
    Weir::start(&format!(
        "listeners: 127.0.0.1:0\nadmin: {{ address: 127.0.0.1:0 }}\nupstream: echo\n{rules}"
    ))
}

/// Sends the requests to Envoy and to Weir with the imported rules, and compares each decision. Returns the number of
/// rejected requests.
#[track_caller]
fn assert_same_decisions(filters: &[Value], host: &Value, attempts: &[Attempt]) -> usize {
    let rules = import_rules(filters, host);
    let weir = start_weir(&rules);
    let envoy = Envoy::start(filters, host, SocketAddr::from(([127, 0, 0, 1], 1)), &[]);
    let mut rejected = 0;
    for (index, attempt) in attempts.iter().enumerate() {
        let expected = is_rejected(envoy.fetch(&request(attempt)).status);
        let decided = is_rejected(fetch(weir.address(), &request(attempt)).status);
        assert_eq!(decided, expected, "request {index}: {attempt:?}\n{rules}");
        rejected += usize::from(expected);
    }
    rejected
}

fn repeat(attempts: &[Attempt], count: usize) -> Vec<Attempt> {
    attempts.iter().flat_map(|attempt| vec![*attempt; count]).collect()
}

#[test]
fn imported_limits_of_routes_are_those_of_envoy() {
    let route = |path: &str, tokens: u32| {
        let own = filter(&json!({
            "descriptors": [descriptor(&json!([{ "key": "user" }]), tokens)],
            "token_bucket": bucket(100),
        }));
        json!({
            "match": { "prefix": path },
            "route": { "cluster": "upstream", "rate_limits": [{ "actions": [header_action("x-user", "user")] }] },
            "typed_per_filter_config": { NAME: own },
        })
    };
    let off = json!({ "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": true });
    let host = json!({
        "name": "all", "domains": ["*"],
        "routes": [
            route("/login", 2),
            route("/static", 4),
            { "match": { "path": "/health" }, "route": { "cluster": "upstream" }, "typed_per_filter_config": { NAME: off } },
            { "match": { "prefix": "/" }, "route": { "cluster": "upstream" } },
        ],
    });
    let filters = [json!({ "name": NAME, "typed_config": filter(&json!({ "token_bucket": bucket(3) })) })];
    let attempts = [
        ("/login/x", Some("a")),
        ("/static/x", Some("a")),
        ("/static/x", Some("b")),
        ("/login", None),
        ("/health", None),
        ("/other", Some("a")),
    ];
    assert_eq!(assert_same_decisions(&filters, &host, &repeat(&attempts, 6)), 4 + 2 + 2 + 3);
}

#[test]
fn imported_descriptors_share_their_buckets_as_in_envoy() {
    let limits = json!([{ "actions": [{ "generic_key": { "descriptor_value": "api" } }, header_action("x-user", "user")] }]);
    let host = json!({
        "name": "all", "domains": ["*"],
        "rate_limits": [{ "actions": [{ "generic_key": { "descriptor_value": "rest" } }] }],
        "routes": [
            { "match": { "path_separated_prefix": "/a" }, "route": { "cluster": "upstream", "rate_limits": limits } },
            { "match": { "prefix": "/a" }, "route": { "cluster": "upstream" } },
            { "match": { "safe_regex": { "regex": "/b[0-9]+" } }, "route": { "cluster": "upstream", "rate_limits": limits } },
            { "match": { "prefix": "/" }, "route": { "cluster": "upstream", "include_vh_rate_limits": true } },
        ],
    });
    let api = |value: Value, tokens: u32| {
        descriptor(&json!([{ "key": "generic_key", "value": "api" }, value]), tokens)
    };
    let filters = [json!({ "name": NAME, "typed_config": filter(&json!({
        "token_bucket": bucket(100),
        "descriptors": [
            api(json!({ "key": "user" }), 3),
            api(json!({ "key": "user", "value": "vip" }), 5),
            descriptor(&json!([{ "key": "generic_key", "value": "rest" }]), 2),
        ],
    })) })];
    let attempts = [
        ("/a/x", Some("a")),
        ("/b7", Some("a")),
        ("/b7", Some("vip")),
        ("/a", Some("vip")),
        ("/abc", None),
        ("/c", None),
        ("/a", None),
    ];
    assert_eq!(assert_same_decisions(&filters, &host, &repeat(&attempts, 3)), 3 + 1 + 1 + 3);
}

#[test]
fn imported_header_matches_and_hits_are_those_of_envoy() {
    let path = |test: &Value, value: &str| json!({ "header_value_match": { "descriptor_value": value, "headers": [{ "name": ":path", "string_match": test }] } });
    let host = json!({
        "name": "all", "domains": ["*"],
        "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "upstream" } }],
    });
    let vip = json!({ "header_value_match": {
        "descriptor_value": "guest", "expect_match": false, "headers": [{ "name": "x-user", "string_match": { "exact": "vip" } }],
    } });
    let filters = [json!({ "name": NAME, "typed_config": filter(&json!({
        "token_bucket": bucket(100),
        "rate_limits": [
            { "actions": [path(&json!({ "prefix": "/productpage", "ignore_case": true }), "product")], "hits_addend": { "number": 2 } },
            { "actions": [path(&json!({ "safe_regex": { "regex": "/reviews/[0-9]+" } }), "reviews"), vip] },
            { "actions": [path(&json!({ "exact": "/closed" }), "closed")] },
        ],
        "descriptors": [
            descriptor(&json!([{ "key": "header_match", "value": "product" }]), 5),
            descriptor(&json!([{ "key": "header_match", "value": "reviews" }, { "key": "header_match", "value": "guest" }]), 1),
            { "entries": [{ "key": "header_match", "value": "closed" }], "token_bucket": { "max_tokens": 0, "fill_interval": "1s" } },
        ],
    })) })];
    let attempts = [
        ("/productpage/1", None),
        ("/ProductPage", None),
        ("/reviews/12", None),
        ("/reviews/12", Some("vip")),
        ("/reviews/12", Some("b")),
        ("/reviews/x", None),
        ("/closed", None),
        ("/", None),
    ];
    assert_eq!(assert_same_decisions(&filters, &host, &repeat(&attempts, 2)), 2 + 1 + 2 + 2);
}

#[test]
fn imported_default_bucket_is_for_requests_without_a_descriptor_as_in_envoy() {
    let limits = json!([{ "actions": [{ "generic_key": { "descriptor_value": "api" } }, header_action("x-user", "user")] }]);
    let rest = json!([{ "actions": [{ "generic_key": { "descriptor_value": "rest" } }] }]);
    let host = json!({
        "name": "all", "domains": ["*"], "rate_limits": rest,
        "routes": [
            { "match": { "path_separated_prefix": "/a" }, "route": { "cluster": "upstream", "rate_limits": limits } },
            { "match": { "prefix": "/a" }, "route": { "cluster": "upstream" } },
            { "match": { "safe_regex": { "regex": "/b[0-9]+" } }, "route": { "cluster": "upstream", "rate_limits": limits } },
            { "match": { "prefix": "/" }, "route": { "cluster": "upstream", "include_vh_rate_limits": true } },
        ],
    });
    let api = |value: Value, tokens: u32| {
        descriptor(&json!([{ "key": "generic_key", "value": "api" }, value]), tokens)
    };
    let filters = [json!({ "name": NAME, "typed_config": filter(&json!({
        "token_bucket": bucket(2),
        "always_consume_default_token_bucket": false,
        "descriptors": [
            api(json!({ "key": "user" }), 3),
            api(json!({ "key": "user", "value": "vip" }), 5),
            descriptor(&json!([{ "key": "generic_key", "value": "rest" }]), 2),
        ],
    })) })];
    let attempts = [
        ("/a/x", Some("a")),
        ("/b7", Some("a")),
        ("/b7", Some("vip")),
        ("/a", Some("vip")),
        ("/abc", None),
        ("/c", None),
        ("/a", None),
        ("/b7", None),
    ];
    let of_default_bucket = 1 + 3;
    let rejected = assert_same_decisions(&filters, &host, &repeat(&attempts, 3));
    assert_eq!(rejected, 3 + 1 + 1 + 3 + of_default_bucket);
}

#[test]
fn imported_default_buckets_of_routes_beside_limits_of_the_virtual_host_are_those_of_envoy() {
    let route = |path: &str, tokens: u32| {
        let own = filter(&json!({
            "always_consume_default_token_bucket": false,
            "descriptors": [descriptor(&json!([{ "key": "user" }]), tokens)],
            "token_bucket": bucket(2),
        }));
        json!({
            "match": { "prefix": path },
            "route": { "cluster": "upstream", "rate_limits": [{ "actions": [header_action("x-user", "user")] }] },
            "typed_per_filter_config": { NAME: own },
        })
    };
    let host = json!({
        "name": "all", "domains": ["*"],
        "rate_limits": [{ "actions": [{ "generic_key": { "descriptor_value": "rest" } }] }],
        "routes": [
            route("/login", 4),
            route("/static", 1),
            { "match": { "path": "/own" }, "route": { "cluster": "upstream", "rate_limits": [{ "actions": [{ "remote_address": {} }] }] } },
            { "match": { "prefix": "/" }, "route": { "cluster": "upstream" } },
        ],
    });
    let filters = [json!({ "name": NAME, "typed_config": filter(&json!({
        "token_bucket": bucket(1),
        "always_consume_default_token_bucket": false,
        "descriptors": [descriptor(&json!([{ "key": "generic_key", "value": "rest" }]), 2)],
    })) })];
    let attempts = [
        ("/login", Some("a")),
        ("/login", None),
        ("/static/x", Some("a")),
        ("/static/x", None),
        ("/own", None),
        ("/other", Some("a")),
    ];
    // The virtual host's limit is not for `/own`, so its requests take from the filter's bucket.
    assert_eq!(assert_same_decisions(&filters, &host, &repeat(&attempts, 3)), 1 + 2 + 1 + 2 + 1);
}

#[test]
fn imported_bucket_without_tokens_has_the_response_of_envoy() {
    let reply = json!({
        "status": { "code": "ServiceUnavailable" },
        "token_bucket": bucket(100),
        "response_headers_to_add": [{ "header": { "key": "x-reason", "value": "closed" } }],
        "rate_limits": [{ "actions": [{ "header_value_match": {
            "descriptor_value": "closed", "headers": [{ "name": ":path", "string_match": { "exact": "/closed" } }],
        } }] }],
        "descriptors": [{
            "entries": [{ "key": "header_match", "value": "closed" }],
            "token_bucket": { "max_tokens": 0, "fill_interval": "1s" },
        }],
    });
    let host = json!({
        "name": "all", "domains": ["*"],
        "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "upstream" } }],
    });
    for (fields, status) in [(reply.clone(), 503), (without_status(reply), 429)] {
        let filters = [json!({ "name": NAME, "typed_config": filter(&fields) })];
        let rules = import_rules(&filters, &host);
        let weir = start_weir(&rules);
        let envoy = Envoy::start(&filters, &host, SocketAddr::from(([127, 0, 0, 1], 1)), &[]);
        let closed = request(&("/closed", None));
        for response in [envoy.fetch(&closed), fetch(weir.address(), &closed)] {
            assert_eq!((response.status, response.header("x-reason")), (status, "closed"), "{rules}");
        }
    }
}

fn without_status(mut filter: Value) -> Value {
    filter.as_object_mut().unwrap().remove("status");
    filter
}
