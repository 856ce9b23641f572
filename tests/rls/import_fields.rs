//! Every field of Envoy's API, of Istio's and every directive of nginx that concern limits are known to the imports: they
//! are expressed, or named with a reason, and never taken for a misspelling.

use serde_json::{Map, Value, json};
use weir_import::{local_ratelimit, nginx};

const FILTER_TYPE: &str =
    "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit";

const TABLE_FIELDS: [&str; 15] = [
    "vhds",
    "internal_only_headers",
    "response_headers_to_add",
    "response_headers_to_remove",
    "request_headers_to_add",
    "request_headers_to_remove",
    "most_specific_header_mutations_wins",
    "validate_clusters",
    "max_direct_response_body_size_bytes",
    "cluster_specifier_plugins",
    "request_mirror_policies",
    "ignore_port_in_host_matching",
    "vhost_header",
    "ignore_path_parameters_in_path_matching",
    "metadata",
];
const HOST_FIELDS: [&str; 19] = [
    "name",
    "matcher",
    "require_tls",
    "virtual_clusters",
    "request_headers_to_add",
    "request_headers_to_remove",
    "response_headers_to_add",
    "response_headers_to_remove",
    "cors",
    "include_request_attempt_count",
    "include_attempt_count_in_response",
    "retry_policy",
    "retry_policy_typed_config",
    "hedge_policy",
    "include_is_timeout_retry_header",
    "per_request_buffer_limit_bytes",
    "request_body_buffer_limit",
    "request_mirror_policies",
    "metadata",
];
const ROUTE_FIELDS: [&str; 15] = [
    "name",
    "redirect",
    "direct_response",
    "filter_action",
    "non_forwarding_action",
    "metadata",
    "decorator",
    "request_headers_to_add",
    "request_headers_to_remove",
    "response_headers_to_add",
    "response_headers_to_remove",
    "tracing",
    "per_request_buffer_limit_bytes",
    "request_body_buffer_limit",
    "stat_prefix",
];
const ACTION_FIELDS: [&str; 37] = [
    "cluster",
    "cluster_header",
    "weighted_clusters",
    "cluster_specifier_plugin",
    "inline_cluster_specifier_plugin",
    "cluster_not_found_response_code",
    "metadata_match",
    "prefix_rewrite",
    "regex_rewrite",
    "path_rewrite_policy",
    "path_rewrite",
    "host_rewrite_literal",
    "auto_host_rewrite",
    "host_rewrite_header",
    "host_rewrite_path_regex",
    "host_rewrite",
    "append_x_forwarded_host",
    "timeout",
    "idle_timeout",
    "flush_timeout",
    "early_data_policy",
    "retry_policy",
    "retry_policy_typed_config",
    "request_mirror_policies",
    "priority",
    "rate_limits",
    "include_vh_rate_limits",
    "hash_policy",
    "cors",
    "max_grpc_timeout",
    "grpc_timeout_offset",
    "upgrade_configs",
    "internal_redirect_policy",
    "internal_redirect_action",
    "max_internal_redirects",
    "hedge_policy",
    "max_stream_duration",
];

/// Returns a map with these fields, each with the same value.
pub(crate) fn with_fields(names: &[&str], value: &Value) -> Map<String, Value> {
    names.iter().map(|name| ((*name).to_owned(), value.clone())).collect()
}

/// Returns the filter with one bucket and these fields.
fn filter(fields: &Value) -> Value {
    let bucket = json!({ "max_tokens": 1, "fill_interval": "1s" });
    let mut filter = json!({ "@type": FILTER_TYPE, "stat_prefix": "s", "token_bucket": bucket });
    for (name, value) in fields.as_object().expect("a map") {
        filter[name] = value.clone();
    }
    filter
}

fn import(config: &Value) -> String {
    local_ratelimit::import("f", &config.to_string()).expect("an input").rules
}

#[track_caller]
pub(crate) fn assert_known(rules: &str) {
    let unknown: Vec<&str> = rules.lines().filter(|line| line.contains("unknown")).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// Returns a connection manager with a route table of these fields, and one virtual host with one route.
fn manager(table: Value, host: Value, route: Value) -> Value {
    let (mut table, mut host, mut route) = (table, host, route);
    let add = |to: &mut Value, name: &str, value: Value| to[name] = value;
    let matching = route.get("match").cloned().unwrap_or_else(|| json!({ "prefix": "/" }));
    add(&mut route, "match", matching);
    add(&mut host, "domains", json!(["*"]));
    add(&mut host, "routes", json!([route]));
    add(&mut table, "virtual_hosts", json!([host]));
    json!({ "http_filters": [{ "name": "l", "typed_config": filter(&json!({})) }], "route_config": table })
}

#[test]
fn fields_of_routes_are_known() {
    let given = |names: &[&str]| with_fields(names, &json!("x"));
    let mut route = given(&ROUTE_FIELDS);
    route.insert("route".to_owned(), given(&ACTION_FIELDS).into());
    let rules = import(&manager(given(&TABLE_FIELDS).into(), given(&HOST_FIELDS).into(), route.into()));
    assert_known(&rules);
    assert!(rules.contains("vhost_header: selects the virtual host"), "{rules}");
}

#[test]
fn fields_of_matches_are_known_and_misspelt_ones_get_a_hint() {
    let matching = |fields: Map<String, Value>| {
        import(&manager(
            json!({}),
            json!({}),
            json!({ "match": fields, "typed_per_filter_config": { "l": filter(&json!({})) } }),
        ))
    };
    let rules = matching(with_fields(
        &[
            "prefix",
            "path",
            "safe_regex",
            "connect_matcher",
            "path_separated_prefix",
            "path_match_policy",
            "case_sensitive",
            "runtime_fraction",
            "headers",
            "query_parameters",
            "cookies",
            "grpc",
            "tls_context",
            "dynamic_metadata",
            "filter_state",
        ],
        &json!("/x"),
    ));
    assert_known(&rules);
    assert!(rules.contains("`match.cookies` of the route is not supported: /x"), "{rules}");
    let rules = matching(with_fields(&["prefixx"], &json!("/x")));
    assert!(rules.contains("`match.prefixx` of the route is unknown, did you mean `prefix`?: /x"), "{rules}");
}

#[test]
fn matcher_of_an_absent_header_is_the_inverse_of_a_present_one() {
    for (test, expected) in [
        (json!({ "present_match": true }), "x-a: \"*\""),
        (json!({ "present_match": false }), "x-a: \"!present\""),
        (json!({ "present_match": true, "invert_match": true }), "x-a: \"!present\""),
        (json!({ "present_match": false, "invert_match": true }), "x-a: \"*\""),
    ] {
        let mut header = test.clone();
        header["name"] = json!("x-a");
        let matching = json!({ "prefix": "/", "headers": [header] });
        let own = json!({ "l": filter(&json!({})) });
        let route = json!({ "match": matching, "typed_per_filter_config": own });
        let rules = import(&manager(json!({}), json!({}), route));
        assert!(rules.contains(&format!("match: {{ header: {{ {expected} }} }}")), "{test}\n{rules}");
    }
}

#[test]
fn fields_of_the_filter_and_of_rate_limits_are_known() {
    let fraction =
        json!({ "default_value": { "numerator": 100, "denominator": "HUNDRED" }, "runtime_key": "k" });
    let limit = json!({
        "stage": 0,
        "disable_key": "k",
        "actions": [{ "remote_address": {} }],
        "limit": { "dynamic_metadata": {} },
        "hits_addend": { "number": 1 },
        "apply_on_stream_done": true,
        "x_ratelimit_option": "OFF",
    });
    let rules = import(&filter(&json!({
        "status": { "code": "TooManyRequests" },
        "filter_enabled": fraction,
        "filter_enforced": fraction,
        "request_headers_to_add_when_not_enforced": [],
        "response_headers_to_add": [],
        "descriptors": [{
            "entries": [{ "key": "remote_address" }],
            "token_bucket": { "max_tokens": 1, "tokens_per_fill": 1, "fill_interval": "1s" },
            "shadow_mode": false,
        }],
        "stage": 0,
        "local_rate_limit_per_downstream_connection": false,
        "local_cluster_rate_limit": {},
        "enable_x_ratelimit_headers": "OFF",
        "vh_rate_limits": "OVERRIDE",
        "always_consume_default_token_bucket": true,
        "rate_limited_as_resource_exhausted": true,
        "rate_limits": [limit],
        "max_dynamic_descriptors": 20,
        "enable_retry_after_header": true,
    })));
    assert_known(&rules);
    assert!(rules.contains("key: [client_ip]"), "{rules}");
}

#[test]
fn every_action_is_expressed_or_named_as_not_supported() {
    for (action, key) in [
        (json!({ "source_cluster": {} }), "source_cluster"),
        (json!({ "destination_cluster": {} }), "destination_cluster"),
        (json!({ "dynamic_metadata": { "descriptor_key": "k" } }), "k"),
        (json!({ "metadata": { "descriptor_key": "k" } }), "k"),
        (json!({ "extension": { "name": "e" } }), "k"),
        (json!({ "query_parameter_value_match": { "descriptor_value": "v" } }), "query_match"),
        (json!({ "generic_key": { "descriptor_value": "v", "default_value": "w" } }), "generic_key"),
        (
            json!({ "header_value_match": { "descriptor_value": "v", "default_value": "w", "headers": [] } }),
            "header_match",
        ),
        (
            json!({ "remote_address_match": { "descriptor_value": "v", "default_value": "w" } }),
            "remote_address_match",
        ),
    ] {
        let rules = import(&filter(&json!({
            "rate_limits": [{ "actions": [action] }],
            "descriptors": [{
                "entries": [{ "key": key }],
                "token_bucket": { "max_tokens": 1, "fill_interval": "1s" },
            }],
        })));
        assert!(rules.contains("not supported by rules"), "{action}\n{rules}");
        assert_known(&rules);
    }
}

#[test]
fn filters_that_limit_something_else_are_looser() {
    for kind in [
        "http.ratelimit.v3.RateLimit",
        "http.rate_limit_quota.v3.RateLimitQuotaFilterConfig",
        "http.bandwidth_limit.v3.BandwidthLimit",
        "http.adaptive_concurrency.v3.AdaptiveConcurrency",
        "http.admission_control.v3.AdmissionControl",
        "network.connection_limit.v3.ConnectionLimit",
        "network.local_ratelimit.v3.LocalRateLimit",
    ] {
        let mut config = manager(json!({}), json!({}), json!({}));
        let other =
            json!({ "@type": format!("type.googleapis.com/envoy.extensions.filters.{kind}"), "a": 1 });
        config["http_filters"].as_array_mut().unwrap().push(json!({ "name": "o", "typed_config": other }));
        let rules = import(&config);
        assert!(rules.contains("# looser: f:1:"), "{kind}\n{rules}");
    }
}

#[test]
fn patches_of_istio_name_what_they_lose() {
    let patch = |kind: &str, matching: Value, value: Value| {
        let patch = json!({
            "applyTo": kind,
            "match": matching,
            "patch": { "operation": "MERGE", "filterClass": "AUTHN", "value": value },
        });
        let http = json!({
            "applyTo": "HTTP_FILTER",
            "patch": { "operation": "ADD", "value": { "name": "l", "typed_config": filter(&json!({})) } },
        });
        import(&json!({
            "kind": "EnvoyFilter",
            "spec": { "workloadSelector": {}, "targetRefs": [], "priority": 1, "configPatches": [patch, http] },
        }))
    };
    let listener = json!({ "typed_config": { "http_filters": [{ "typed_config": filter(&json!({})) }] } });
    let rules = patch("NETWORK_FILTER", json!({}), listener);
    assert!(rules.contains("has a local limit, but patches of NETWORK_FILTER are not imported"), "{rules}");
    let route = json!({ "typed_per_filter_config": { "l": filter(&json!({})) } });
    let place =
        with_fields(&["context", "proxy", "listener", "cluster", "waypoint"], &json!({ "name": "n" }));
    let rules = patch("ROUTE_CONFIGURATION", place.into(), route);
    assert_known(&rules);
    assert!(rules.contains("match.waypoint: the rules do not know it and apply everywhere"), "{rules}");
}

#[test]
fn directives_of_limits_and_addresses_are_known_to_nginx() {
    let directives = "limit_req_status 429;\nlimit_conn_status 429;\nlimit_req_dry_run off;\nlimit_conn_dry_run off;
limit_req_log_level warn;\nlimit_conn_log_level warn;\nlimit_rate 1k;\nlimit_rate_after 1k;\nproxy_limit_rate 1k;
fastcgi_limit_rate 1k;\nscgi_limit_rate 1k;\nuwsgi_limit_rate 1k;\nlimit_zone a $binary_remote_addr 1m;
set_real_ip_from 10.0.0.0/8;\nset_real_ip_from unix:;\nset_real_ip_from proxy.example;\nreal_ip_header X-Real-IP;
real_ip_recursive on;\nlimit_req zone=z burst=5 delay=2;\nlimit_conn c 1;\n";
    let text = format!(
        "http {{\nlimit_req_zone $binary_remote_addr zone=z:1m rate=1r/s sync;
limit_conn_zone $binary_remote_addr zone=c:1m;\nserver {{\nlisten 80;\nlocation / {{\n{directives}limit_except GET {{ deny all; }}\n}}\n}}\n}}\n"
    );
    let rules = nginx::import("f", &text, &|_| Vec::new()).unwrap().rules;
    assert_known(&rules);
    for expected in [
        "`fastcgi_limit_rate 1k` is not converted",
        "`limit_zone` is not converted",
        "`set_real_ip_from unix:` is not a rule: clients of a Unix socket count as 127.0.0.1",
        "`set_real_ip_from proxy.example` is not a rule: add the addresses of this name",
        "`set_real_ip_from` is not a rule: add 10.0.0.0/8",
        "not read: sync",
    ] {
        assert!(rules.contains(expected), "{expected}\n{rules}");
    }
}
