//! Every field of the policies of gateways, and of Traefik's middlewares, is known to the imports.

use serde_json::{Map, Value, json};
use weir_import::{IMPORTERS, ImportSource};

use crate::import_fields::{assert_known, with_fields};

const METADATA: [&str; 13] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];
const TRAFFIC_POLICY: [&str; 25] = [
    "mergeType",
    "bandwidthLimit",
    "circuitBreaker",
    "admissionControl",
    "requestBuffer",
    "faultInjection",
    "responseOverride",
    "loadBalancer",
    "retry",
    "proxyProtocol",
    "tcpKeepalive",
    "healthCheck",
    "timeout",
    "connection",
    "dns",
    "http2",
    "useClientProtocol",
    "compression",
    "compressor",
    "httpUpgrade",
    "telemetry",
    "routingType",
    "tracing",
    "metrics",
    "routeStatName",
];
const ROUTE_RULE: [&str; 5] = ["filters", "backendRefs", "timeouts", "retry", "sessionPersistence"];
const MIDDLEWARE: [&str; 23] = [
    "addPrefix",
    "stripPrefix",
    "stripPrefixRegex",
    "replacePath",
    "replacePathRegex",
    "ipWhiteList",
    "ipAllowList",
    "headers",
    "encodedCharacters",
    "errors",
    "redirectRegex",
    "redirectScheme",
    "basicAuth",
    "digestAuth",
    "forwardAuth",
    "buffering",
    "circuitBreaker",
    "compress",
    "passTLSClientCert",
    "retry",
    "contentType",
    "grpcWeb",
    "plugin",
];

fn import(format: &str, documents: &[Value]) -> String {
    let text: Vec<String> = documents.iter().map(ToString::to_string).collect();
    let source = ImportSource { path: "f".into(), name: "f".to_owned(), text: text.join("\n---\n") };
    let importer = IMPORTERS.iter().find(|importer| importer.name == format).expect("a format");
    importer.import(&[source], None).expect("an input").rules
}

fn object(version: &str, kind: &str, spec: &Value) -> Value {
    let mut metadata = with_fields(&METADATA, &json!("x"));
    metadata.insert("name".to_owned(), json!("n"));
    metadata.insert("namespace".to_owned(), json!("s"));
    json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec, "status": {} })
}

fn route() -> Value {
    let mut rule = with_fields(&ROUTE_RULE, &json!("x"));
    rule.insert("name".to_owned(), json!("one"));
    let header = json!({ "type": "Exact", "name": "a", "value": "b" });
    rule.insert(
        "matches".to_owned(),
        json!([{
            "path": { "type": "PathPrefix", "value": "/a" },
            "method": "GET",
            "headers": [header],
            "queryParams": [header],
        }]),
    );
    let spec = json!({
        "parentRefs": [{ "name": "g" }],
        "hostnames": ["a.example"],
        "rules": [rule],
        "useDefaultGateways": "All",
    });
    object("gateway.networking.k8s.io/v1", "HTTPRoute", &spec)
}

fn target() -> Value {
    json!({ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "n", "sectionName": "one" })
}

/// Returns these fields, and others with values that do not matter.
fn with_others(others: &[&str], fields: &Value) -> Map<String, Value> {
    let mut all = with_fields(others, &json!("x"));
    all.extend(fields.as_object().expect("a map").clone());
    all
}

#[test]
fn fields_of_envoy_gateway_are_known() {
    let matcher = json!({ "type": "Exact", "name": "h", "value": "v", "invert": false });
    let rule = json!({
        "clientSelectors": [{
            "headers": [matcher],
            "methods": [{ "value": "GET", "invert": false }],
            "path": { "type": "Exact", "value": "/a", "invert": false },
            "sourceCIDR": { "type": "Exact", "value": "10.0.0.0/8", "invert": false },
            "queryParams": [matcher],
        }],
        "limit": { "requests": 5, "unit": "Second", "fromMetadata": {} },
        "cost": {
            "request": { "from": "Number", "number": 1 },
            "response": { "from": "Metadata", "metadata": { "namespace": "a", "key": "b" } },
        },
        "shared": true,
        "shadowMode": false,
        "xRateLimitHeaders": "Off",
    });
    let spec = with_others(
        &TRAFFIC_POLICY,
        &json!({
            "targetRef": target(),
            "targetRefs": [target()],
            "targetSelectors": [{
                "group": "gateway.networking.k8s.io", "kind": "HTTPRoute",
                "matchLabels": { "a": "b" }, "matchExpressions": [], "namespaces": {},
            }],
            "rateLimit": { "global": { "rules": [rule] }, "local": { "rules": [rule] } },
        }),
    );
    let policy = object("gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy", &spec.into());
    let rules = import("envoy-gateway", &[policy, route()]);
    assert_known(&rules);
    assert!(rules.contains("limit: 5/s\n    algorithm: fixed_window"), "{rules}");
    assert!(rules.contains("limit: 5/s\n    algorithm: token_bucket"), "{rules}");
}

#[test]
fn fields_of_kuadrant_are_known() {
    let limit = json!({
        "rates": [{ "limit": 5, "window": "10s" }, { "limit": 9, "duration": 1, "unit": "minute" }],
        "counters": [{ "expression": "request.host" }],
        "when": [{ "predicate": "true" }, { "selector": "request.method", "operator": "eq", "value": "GET" }],
        "routeSelectors": [{ "hostnames": ["a.example"], "matches": [{ "path": { "type": "Exact", "value": "/a" } }] }],
    });
    let limits = json!({ "limits": { "l": limit }, "when": [{ "predicate": "true" }] });
    for content in [
        limits.clone(),
        json!({ "defaults": with_others(&["strategy"], &limits) }),
        json!({ "overrides": with_others(&["strategy"], &limits) }),
    ] {
        let spec = with_others(&[], &content);
        let mut spec = Value::from(spec);
        spec["targetRef"] = target();
        let rules = import("kuadrant", &[object("kuadrant.io/v1", "RateLimitPolicy", &spec), route()]);
        assert_known(&rules);
        assert!(rules.contains("limits: [{ token_bucket: { refill: 5, every: 10s } }, "), "{rules}");
    }
}

#[test]
fn fields_of_linkerd_are_known() {
    let client = json!({ "group": "", "kind": "ServiceAccount", "name": "a", "namespace": "b" });
    let spec = json!({
        "targetRef": { "group": "policy.linkerd.io", "kind": "Server", "name": "n" },
        "total": { "requestsPerSecond": 1 },
        "identity": { "requestsPerSecond": 2 },
        "overrides": [{ "requestsPerSecond": 3, "clientRefs": [client] }],
    });
    let rules = import("linkerd", &[object("policy.linkerd.io/v1alpha1", "HTTPLocalRateLimitPolicy", &spec)]);
    assert_known(&rules);
    assert_eq!(rules.matches("- name: s.n.").count(), 3, "{rules}");
}

#[test]
fn fields_of_traefik_are_known() {
    let criterion = json!({
        "ipStrategy": { "depth": 1, "excludedIPs": ["10.0.0.0/8"], "ipv6Subnet": 64 },
        "requestHeaderName": "", "requestHost": false,
    });
    let limit = json!({
        "average": 1, "period": "1s", "burst": 2, "sourceCriterion": criterion,
        "redis": { "endpoints": ["a:1"], "password": "swordfish", "tls": {} },
    });
    let mut spec = Value::from(with_fields(&MIDDLEWARE, &json!("swordfish")));
    spec["rateLimit"] = limit;
    let others = json!({ "chain": { "middlewares": [{ "name": "n", "namespace": "s" }] } });
    let route = json!({
        "entryPoints": ["web"], "parentRefs": [], "ingressClassName": "x", "tls": {},
        "routes": [{
            "match": "Host(`a.example`)", "kind": "Rule", "priority": 1, "syntax": "v3", "services": [],
            "observability": {}, "middlewares": [{ "name": "n", "namespace": "s" }],
        }],
    });
    let rules = import(
        "traefik",
        &[
            object("traefik.io/v1alpha1", "Middleware", &spec),
            object("traefik.io/v1alpha1", "Middleware", &others),
            object("traefik.io/v1alpha1", "IngressRoute", &route),
        ],
    );
    assert_known(&rules);
    assert!(rules.contains("limit: 1/s\n    burst: 2\n    throttle: delay 500ms"), "{rules}");
    // The list of clients, and the plugin, are shown; credentials are not.
    let shown = rules.lines().filter(|line| line.contains("swordfish"));
    let hidden = ["basicAuth", "digestAuth", "redis", "forwardAuth"];
    assert!(shown.into_iter().all(|line| !hidden.iter().any(|name| line.contains(name))), "{rules}");
}
