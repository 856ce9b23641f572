//! The fields of `RateLimitPolicy`, and what becomes of them.
//!
//! The names are those of `api/v1/ratelimitpolicy_types.go` in Kuadrant/kuadrant-operator and of its earlier versions,
//! `v1beta2` and `v1beta3`.

use super::super::ledger::Message;

/// `RateLimitPolicySpec`
pub(super) static SPEC: Message = Message {
    name: "RateLimitPolicy",
    read: &["targetRef", "limits", "when", "defaults", "overrides"],
    lost: &[],
    other: &[],
};

/// `MergeableRateLimitPolicySpec`
pub(super) static COMMON: Message =
    Message { name: "defaults or overrides", read: &["strategy", "when", "limits"], lost: &[], other: &[] };

/// `Limit`
pub(super) static LIMIT: Message = Message {
    name: "a limit",
    read: &["rates", "counters", "when", "routeSelectors"],
    lost: &[],
    other: &[],
};

/// `Rate`; the last two are those of `v1beta2`.
pub(super) static RATE: Message =
    Message { name: "a rate", read: &["limit", "window", "duration", "unit"], lost: &[], other: &[] };

/// `Counter`
pub(super) static COUNTER: Message =
    Message { name: "a counter", read: &["expression"], lost: &[], other: &[] };

/// `Predicate`; the last three are those of `v1beta2`.
pub(super) static PREDICATE: Message = Message {
    name: "a condition",
    read: &["predicate", "selector", "operator", "value"],
    lost: &[],
    other: &[],
};

/// `RouteSelector` of `v1beta2`
pub(super) static ROUTE_SELECTOR: Message =
    Message { name: "a selector of routes", read: &["hostnames", "matches"], lost: &[], other: &[] };

/// Values that a field has if it is not given.
pub(super) const DEFAULTS: [(&str, &str); 3] = [("type", "PathPrefix"), ("type", "Exact"), ("value", "/")];
