//! The fields of Envoy's messages that concern limits, and what becomes of them.
//!
//! The names are those of Envoy's v3 API. A field that is in none of these lists is unknown to Envoy.

use super::super::ledger::Message;
use super::super::remark::Effect::{self, Differs, Looser, None as Same, Tighter};

/// `extensions.filters.http.local_ratelimit.v3.LocalRateLimit`
pub(super) static FILTER: Message = Message {
    name: "the local rate limit filter",
    read: &[
        "@type",
        "stat_prefix",
        "status",
        "token_bucket",
        "filter_enabled",
        "filter_enforced",
        "response_headers_to_add",
        "descriptors",
        "stage",
        "vh_rate_limits",
        "always_consume_default_token_bucket",
        "rate_limits",
        "local_rate_limit_per_downstream_connection",
    ],
    lost: &[
        ("enable_x_ratelimit_headers", Same, "`ratelimit_headers` decides, and sends them by default"),
        ("enable_retry_after_header", Same, "rejections always have `retry-after`"),
        ("max_dynamic_descriptors", Same, "`limiter.max_keys` bounds the buckets of all clients"),
        ("rate_limited_as_resource_exhausted", Same, "rejected gRPC calls always get RESOURCE_EXHAUSTED"),
        ("request_headers_to_add_when_not_enforced", Same, "requests in shadow mode get no header"),
        (
            "local_cluster_rate_limit",
            Looser,
            "each instance has the whole limit: use `scope: shared`, or `scope: { instances: N }`",
        ),
    ],
    other: &[],
};

/// `extensions.common.ratelimit.v3.LocalRateLimitDescriptor`
pub(super) static DESCRIPTOR: Message = Message {
    name: "a descriptor",
    read: &["entries", "token_bucket", "shadow_mode"],
    lost: &[],
    other: &[],
};

/// `extensions.common.ratelimit.v3.RateLimitDescriptor.Entry`
pub(super) static ENTRY: Message =
    Message { name: "an entry", read: &["key", "value"], lost: &[], other: &[] };

/// `config.core.v3.RuntimeFractionalPercent`
pub(super) static FRACTION: Message = Message {
    name: "a share of requests",
    read: &["default_value"],
    lost: &[(
        "runtime_key",
        Differs,
        "Envoy's runtime may replace the share, which here is the default value",
    )],
    other: &[],
};

/// `type.v3.FractionalPercent`
pub(super) static PERCENT: Message =
    Message { name: "a percentage", read: &["numerator", "denominator"], lost: &[], other: &[] };

/// `config.route.v3.RateLimit`
pub(super) static RATE_LIMIT: Message = Message {
    name: "a rate limit",
    read: &["actions", "stage", "hits_addend"],
    lost: &[
        ("disable_key", Differs, "Envoy's runtime can switch the limit off by this key"),
        ("limit", Differs, "overrides the limit of a rate limit service, and has no effect on a local limit"),
        ("apply_on_stream_done", Differs, "a rule charges a request when it arrives, Envoy when it ends"),
        ("x_ratelimit_option", Same, "`ratelimit_headers` of the rule decides"),
    ],
    other: &[],
};

/// `config.route.v3.VirtualHost`
pub(super) static VIRTUAL_HOST: Message = Message {
    name: "a virtual host",
    read: &["domains", "routes", "rate_limits", "typed_per_filter_config"],
    lost: &[("matcher", Tighter, "routes of a matcher tree are not supported: rules apply to all requests")],
    other: &[
        "name",
        "require_tls",
        "virtual_clusters",
        "request_headers_to_add",
        "request_headers_to_remove",
        "response_headers_to_add",
        "response_headers_to_remove",
        "cors",
        "per_filter_config",
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
    ],
};

/// `config.route.v3.Route`
pub(super) static ROUTE: Message = Message {
    name: "a route",
    read: &["match", "route", "typed_per_filter_config"],
    lost: &[],
    other: &[
        "name",
        "redirect",
        "direct_response",
        "filter_action",
        "non_forwarding_action",
        "metadata",
        "decorator",
        "per_filter_config",
        "request_headers_to_add",
        "request_headers_to_remove",
        "response_headers_to_add",
        "response_headers_to_remove",
        "tracing",
        "per_request_buffer_limit_bytes",
        "request_body_buffer_limit",
        "stat_prefix",
    ],
};

/// `config.route.v3.RouteAction`
pub(super) static ROUTE_ACTION: Message = Message {
    name: "a route action",
    read: &["rate_limits", "include_vh_rate_limits"],
    lost: &[],
    other: &[
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
        "host_rewrite",
        "host_rewrite_literal",
        "auto_host_rewrite",
        "auto_host_rewrite_header",
        "host_rewrite_header",
        "host_rewrite_path_regex",
        "append_x_forwarded_host",
        "timeout",
        "idle_timeout",
        "flush_timeout",
        "early_data_policy",
        "retry_policy",
        "retry_policy_typed_config",
        "request_mirror_policy",
        "request_mirror_policies",
        "priority",
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
    ],
};

/// `config.route.v3.RouteConfiguration`
pub(super) static ROUTE_TABLE: Message = Message {
    name: "a route configuration",
    read: &["@type", "name", "virtual_hosts", "typed_per_filter_config"],
    lost: &[
        ("vhds", Differs, "virtual hosts that another server sends are not known here"),
        ("vhost_header", Differs, "selects the virtual host in place of `host`, by which the rules match"),
    ],
    other: &[
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
        "ignore_path_parameters_in_path_matching",
        "metadata",
    ],
};

/// `extensions.filters.network.http_connection_manager.v3.HttpFilter`
pub(super) static HTTP_FILTER: Message = Message {
    name: "an HTTP filter",
    read: &["name", "typed_config", "disabled"],
    lost: &[("config_discovery", Looser, "a configuration that another server sends is not known here")],
    other: &["is_optional", "config"],
};

/// `config.route.v3.FilterConfig`
pub(super) static ROUTE_FILTER: Message = Message {
    name: "the filter's configuration of a route",
    read: &["@type", "config", "disabled"],
    lost: &[],
    other: &["is_optional"],
};

/// Fields of `config.route.v3.RouteMatch` that rules do not express.
pub(super) const UNSUPPORTED_ROUTE_MATCH: [&str; 11] = [
    "safe_regex",
    "regex",
    "connect_matcher",
    "path_match_policy",
    "runtime_fraction",
    "query_parameters",
    "cookies",
    "grpc",
    "tls_context",
    "dynamic_metadata",
    "filter_state",
];

/// Fields of `config.route.v3.RouteMatch` that rules express.
pub(super) const ROUTE_MATCH: [&str; 5] =
    ["prefix", "path", "path_separated_prefix", "headers", "case_sensitive"];

/// Types of filters that limit something else, by the end of the name, with the effect and the reason.
pub(super) const OTHER_FILTERS: [(&str, Effect, &str); 13] = [
    (
        "filters.http.ratelimit.v3.RateLimit",
        Looser,
        "asks a rate limit service, whose limits are not in this file",
    ),
    (
        "filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig",
        Looser,
        "asks a rate limit quota service, whose limits are not in this file",
    ),
    (
        "filters.http.rate_limit_quota.v3.RateLimitQuotaOverride",
        Looser,
        "asks a rate limit quota service, whose limits are not in this file",
    ),
    ("filters.network.ratelimit.v3.RateLimit", Looser, "asks a rate limit service about connections"),
    ("filters.network.local_ratelimit.v3.LocalRateLimit", Looser, CONNECTIONS),
    ("filters.listener.local_ratelimit.v3.LocalRateLimit", Looser, CONNECTIONS),
    ("filters.network.connection_limit.v3.ConnectionLimit", Looser, CONNECTIONS),
    ("filters.http.bandwidth_limit.v3.BandwidthLimit", Looser, BYTES),
    ("filters.network.bandwidth_limit.v3.BandwidthLimit", Looser, BYTES),
    ("filters.network.tcp_bandwidth_limit.v3.TcpBandwidthLimit", Looser, BYTES),
    ("filters.http.body_size_limit.v3.BodySizeLimit", Looser, "limits the size of bodies"),
    (
        "filters.http.adaptive_concurrency.v3.AdaptiveConcurrency",
        Looser,
        "limits concurrency: use a rule with `in_flight: auto`",
    ),
    (
        "filters.http.admission_control.v3.AdmissionControl",
        Looser,
        "rejects requests while the upstream fails: use `elastic` or the circuit breaker",
    ),
];

const CONNECTIONS: &str = "limits connections, and rules limit requests";
const BYTES: &str = "limits bytes a second: use a rule with `bandwidth`";

/// Fields of the connection manager that decide which address a client has.
pub(super) const CLIENT_ADDRESS_FIELDS: [&str; 6] = [
    "use_remote_address",
    "xff_num_trusted_hops",
    "skip_xff_append",
    "original_ip_detection_extensions",
    "forward_client_cert_details",
    "early_header_mutation_extensions",
];

/// The reason that stands beside those.
pub(super) const CLIENT_ADDRESS_REASON: &str = "decides which address a client has: set `client_ip.trusted_proxies` to the \
     proxies in front of Weir";

/// Values that a field has if it is not given, by the field's name; `false` is one of any.
pub(super) const DEFAULTS: [(&str, &str); 22] = [
    ("always_consume_default_token_bucket", "true"),
    ("case_sensitive", "true"),
    ("expect_match", "true"),
    ("denominator", "HUNDRED"),
    ("denominator", "0"),
    ("vh_rate_limits", "OVERRIDE"),
    ("vh_rate_limits", "0"),
    ("stage", "0"),
    ("value", ""),
    ("tokens_per_fill", "1"),
    ("v4_prefix_mask_len", "32"),
    ("v6_prefix_mask_len", "128"),
    ("descriptor_key", "generic_key"),
    ("descriptor_key", "header_match"),
    ("descriptor_key", "remote_address_match"),
    ("descriptor_key", ""),
    ("descriptor_value", ""),
    ("prefix", "/"),
    ("prefix", ""),
    ("present_match", "true"),
    ("number", "1"),
    ("prefix_len", "0"),
];
