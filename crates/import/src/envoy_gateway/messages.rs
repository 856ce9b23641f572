//! The fields of `BackendTrafficPolicy` that concern limits, and what becomes of them.
//!
//! The names are those of `api/v1alpha1/ratelimit_types.go` and `api/v1alpha1/backendtrafficpolicy_types.go` in
//! envoyproxy/gateway.

use super::super::ledger::Message;
use super::super::remark::Effect::{Differs, Looser, None as Same};

/// `BackendTrafficPolicySpec`
pub(super) static SPEC: Message = Message {
    name: "BackendTrafficPolicy",
    read: &["targetRef", "targetRefs", "targetSelectors", "rateLimit"],
    lost: &[
        (
            "mergeType",
            Differs,
            "Envoy Gateway merges the policy with that of the gateway, and here a route has its own rules only",
        ),
        ("bandwidthLimit", Looser, "limits bytes a second: use a rule with `bandwidth`"),
        (
            "circuitBreaker",
            Looser,
            "limits requests to the service: use `in_flight`, or limits of the upstream",
        ),
        ("admissionControl", Looser, "rejects requests while the service fails: use `elastic`"),
        ("requestBuffer", Looser, "rejects bodies above a size"),
        ("faultInjection", Looser, "rejects some requests on purpose"),
        ("responseOverride", Same, "changes responses: `on_limit` has those of a rule"),
    ],
    other: &[
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
    ],
};

/// `RateLimitSpec`
pub(super) static RATE_LIMIT: Message =
    Message { name: "rateLimit", read: &["type", "global", "local"], lost: &[], other: &[] };

/// `GlobalRateLimit` and `LocalRateLimit`
pub(super) static SECTION: Message =
    Message { name: "global or local limits", read: &["rules"], lost: &[], other: &[] };

/// `RateLimitRule`
pub(super) static RULE: Message = Message {
    name: "a rule",
    read: &["clientSelectors", "limit", "cost", "shared", "shadowMode"],
    lost: &[("xRateLimitHeaders", Same, "`ratelimit_headers` decides, and sends them by default")],
    other: &[],
};

/// `RateLimitValue`
pub(super) static LIMIT: Message = Message {
    name: "limit",
    read: &["requests", "unit"],
    lost: &[(
        "fromMetadata",
        Differs,
        "a limit from metadata of a request is not supported: `limit.from` reads headers and claims",
    )],
    other: &[],
};

/// `RateLimitCost`
pub(super) static COST: Message =
    Message { name: "cost", read: &["request", "response"], lost: &[], other: &[] };

/// `RateLimitCostSpecifier`
pub(super) static SPECIFIER: Message =
    Message { name: "a cost", read: &["from", "number", "metadata"], lost: &[], other: &[] };

/// `RateLimitSelectCondition`
pub(super) static SELECTOR: Message = Message {
    name: "a selector of clients",
    read: &["headers", "methods", "path", "sourceCIDR", "queryParams"],
    lost: &[],
    other: &[],
};

/// `HeaderMatch`, and `QueryParamMatch`, which has the same fields.
pub(super) static NAMED_MATCH: Message =
    Message { name: "a matcher", read: &["type", "name", "value", "invert"], lost: &[], other: &[] };

/// `MethodMatch`
pub(super) static METHOD: Message =
    Message { name: "a method", read: &["value", "invert"], lost: &[], other: &[] };

/// `PathMatch`, and `SourceMatch`, which has the same fields.
pub(super) static VALUE_MATCH: Message =
    Message { name: "a matcher", read: &["type", "value", "invert"], lost: &[], other: &[] };

/// Values that a field has if it is not given.
pub(super) const DEFAULTS: [(&str, &str); 6] = [
    ("type", "Exact"),
    ("type", "PathPrefix"),
    ("value", "/"),
    ("number", "1"),
    ("from", "Number"),
    ("group", "gateway.networking.k8s.io"),
];
