//! Name and help of every metric; no other module defines them.
//!
//! Names follow Prometheus' conventions: base units, `_total` for counters. Label values come from the configuration or
//! from closed sets, never from a request.

/// A metric without its labels and values.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    /// Prometheus' type of metric.
    pub(super) kind: &'static str,
}

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: "counter" }
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: "gauge" }
}

const fn histogram(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: "histogram" }
}

/// Metrics of Envoy's rate limit service, which have the names of envoyproxy/ratelimit.
pub(super) static RATELIMIT_TOTAL_HITS: Family =
    counter("ratelimit_service_rate_limit_total_hits", "Requested hits, by descriptor of the configuration.");
pub(super) static RATELIMIT_OVER_LIMIT: Family =
    counter("ratelimit_service_rate_limit_over_limit", "Hits above the limit.");
pub(super) static RATELIMIT_NEAR_LIMIT: Family =
    counter("ratelimit_service_rate_limit_near_limit", "Hits near the limit, and not above it.");
pub(super) static RATELIMIT_WITHIN_LIMIT: Family =
    counter("ratelimit_service_rate_limit_within_limit", "Hits of requests within the limit.");
pub(super) static RATELIMIT_SHADOW_MODE: Family =
    counter("ratelimit_service_rate_limit_shadow_mode", "Hits over the limit of a rule in shadow mode.");
pub(super) static RATELIMIT_DOMAIN_NOT_FOUND: Family = counter(
    "ratelimit_service_rate_limit_domain_not_found",
    "Descriptors of domains that are not configured.",
);
pub(super) static RATELIMIT_ERRORS: Family =
    counter("ratelimit_service_should_rate_limit_error", "Calls that could not be decided.");
pub(super) static RATELIMIT_TOTAL_REQUESTS: Family =
    counter("ratelimit_service_total_requests", "Calls of the rate limit service.");
pub(super) static RATELIMIT_RESPONSE_TIME: Family =
    histogram("ratelimit_service_response_time_seconds", "Time to decide a call of the rate limit service.");
pub(super) static RATELIMIT_GLOBAL_SHADOW_MODE: Family = counter(
    "ratelimit_service_global_shadow_mode",
    "Calls over a limit that were admitted because the service is in shadow mode.",
);
pub(super) static RATELIMIT_LOADS: Family =
    counter("ratelimit_service_config_load_success", "Rule sets loaded.");
pub(super) static RATELIMIT_FAILED_LOADS: Family = counter(
    "ratelimit_service_config_load_error",
    "Rule sets that could not be loaded; the previous rules stay in force.",
);
pub(super) static RATELIMIT_WITHOUT_LIMIT: Family = counter(
    "weir_rate_limit_descriptors_without_limit_total",
    "Descriptors of configured domains to which no limit applies.",
);
pub(super) static RATELIMIT_UNSERVED: Family = counter(
    "weir_rate_limit_calls_not_served_total",
    "Calls of the rate limit service without a decision, and connections that were rejected, by reason.",
);
pub(super) static RATELIMIT_OVERFLOWS: Family = counter(
    "weir_rate_limit_stat_overflows_total",
    "Descriptors and domains counted under other_names: too many names, or too long ones.",
);
pub(super) static REQUESTS: Family = counter(
    "weir_requests_total",
    "Completed requests, including rejected ones, by listener and class of the status code.",
);
pub(super) static REQUESTS_RESET: Family = counter(
    "weir_requests_reset_total",
    "Requests whose client disconnected before the response was complete.",
);
pub(super) static REQUEST_OUTCOMES: Family = counter(
    "weir_request_outcomes_total",
    "Requests by their final outcome, each once: what the rules decided together, or why they did not decide.",
);
pub(super) static RATELIMIT_OUTCOMES: Family = counter(
    "weir_rate_limit_call_outcomes_total",
    "Calls of the rate limit service by their final outcome, each once.",
);
pub(super) static REQUESTS_MALFORMED: Family = counter(
    "weir_requests_malformed_total",
    "Input rejected before the header section was parsed, and HTTP/2 connections that broke the protocol.",
);
pub(super) static HTTP2_MALFORMED_STREAMS: Family = counter(
    "weir_http2_malformed_streams_total",
    "HTTP/2 streams that were reset, or rejected with 431, because the peer's message was malformed.",
);
pub(super) static REQUEST_HEADERS_REMOVED: Family = counter(
    "weir_request_headers_removed_total",
    "Request headers removed because their names differ only in - and _ from headers that are trusted or read by rules.",
);
pub(super) static UNTRUSTED_HEADERS_REMOVED: Family = counter(
    "weir_untrusted_headers_removed_total",
    "Request headers removed because an untrusted peer named a client or a target in them.",
);
pub(super) static UNREADABLE_BODIES: Family = counter(
    "weir_unreadable_bodies_total",
    "Request bodies whose fields rules need and cannot be read, by reason; also with on_unreadable: missing.",
);
pub(super) static UNCHANGED_STREAMS: Family = counter(
    "weir_unchanged_streams_total",
    "Requests for streams that inject_usage left as they were, by reason.",
);
pub(super) static REQUESTS_IN_FLIGHT: Family = gauge("weir_requests_in_flight", "Requests in flight.");
pub(super) static REQUEST_DURATION: Family = histogram(
    "weir_request_duration_seconds",
    "Time from the header section of a request to the end of its response, including rejected requests.",
);
pub(super) static REQUESTS_DELAYED: Family =
    gauge("weir_requests_delayed", "Requests that a delay holds back at the moment.");
pub(super) static REQUEST_DELAY: Family = histogram(
    "weir_request_delay_seconds",
    "Time for which delays held requests back; only requests that were delayed.",
);
pub(super) static CONNECTIONS: Family = gauge("weir_downstream_connections", "Open client connections.");
pub(super) static CONNECTIONS_OPENED: Family =
    counter("weir_downstream_connections_total", "Accepted client connections.");
pub(super) static OVERLOAD_REJECTED: Family = counter(
    "weir_overload_turned_away_total",
    "Connections closed and requests rejected by overload protection, by limit.",
);
pub(super) static ACCEPT_FAILURES: Family =
    counter("weir_accept_failures_total", "Failed accepts, for lack of file descriptors or memory.");
pub(super) static PANICS: Family =
    counter("weir_panics_total", "Panics of threads and tasks; each one is a bug.");
pub(super) static HANDSHAKES: Family =
    counter("weir_tls_handshakes_total", "TLS handshakes with clients, by outcome.");
pub(super) static HANDSHAKES_IN_FLIGHT: Family =
    gauge("weir_tls_handshakes_in_flight", "TLS handshakes with clients in flight.");
pub(super) static HANDSHAKES_WAITING: Family =
    gauge("weir_tls_handshakes_waiting", "Clients in the queue for a TLS handshake.");
pub(super) static PROXY_PROTOCOL_CONNECTIONS: Family = counter(
    "weir_proxy_protocol_connections_total",
    "Connections to listeners with the PROXY protocol, by their first bytes.",
);
pub(super) static CERTIFICATE_EXPIRY: Family = gauge(
    "weir_tls_certificate_expiry_seconds",
    "Time until a certificate that is presented to clients or upstreams expires; negative after that.",
);
pub(super) static CERTIFICATE_EXPIRY_TIME: Family = gauge(
    "weir_tls_certificate_expiry_timestamp_seconds",
    "When a certificate that is presented to clients or upstreams expires.",
);
pub(super) static CERTIFICATE_NOT_BEFORE: Family = gauge(
    "weir_tls_certificate_not_before_timestamp_seconds",
    "When the validity of a certificate that is presented to clients or upstreams began.",
);

pub(super) static UPSTREAM_REQUESTS: Family =
    counter("weir_upstream_requests_total", "Requests sent upstream, by outcome.");
pub(super) static UPSTREAM_RESPONSES: Family =
    counter("weir_upstream_responses_total", "Responses of the upstream, by class of the status code.");
pub(super) static UPSTREAM_IN_FLIGHT: Family =
    gauge("weir_upstream_requests_in_flight", "Requests that wait for the upstream's response.");
pub(super) static UPSTREAM_RETRIES: Family =
    counter("weir_upstream_retries_total", "Attempts after the first one of a request.");
pub(super) static UPSTREAM_DURATION: Family = histogram(
    "weir_upstream_request_duration_seconds",
    "Time from the request, or the end of its delay, to the header section of the upstream's response.",
);
pub(super) static UPSTREAM_CONNECTIONS: Family =
    gauge("weir_upstream_connections", "Open connections to the upstream.");
pub(super) static UPSTREAM_CONNECTIONS_OPENED: Family =
    counter("weir_upstream_connections_total", "Established connections to the upstream.");
pub(super) static UPSTREAM_CONNECTIONS_FAILED: Family = counter(
    "weir_upstream_connection_failures_total",
    "Connections to the upstream that could not be established.",
);
pub(super) static UPSTREAM_HANDSHAKES: Family = counter(
    "weir_upstream_tls_handshakes_total",
    "TLS handshakes with endpoints, including those of health checks, by outcome.",
);
pub(super) static UPSTREAM_ENDPOINTS: Family = gauge("weir_upstream_endpoints", "Endpoints of the upstream.");
pub(super) static UPSTREAM_ENDPOINTS_HEALTHY: Family =
    gauge("weir_upstream_endpoints_healthy", "Endpoints that pass their health checks and are not ejected.");
pub(super) static UPSTREAM_EJECTIONS: Family =
    counter("weir_upstream_ejections_total", "Ejections of endpoints by outlier detection.");
pub(super) static UPSTREAM_HEALTH_CHECK_FAILURES: Family =
    counter("weir_upstream_health_check_failures_total", "Failed health checks.");
pub(super) static UPSTREAM_OVERFLOWS: Family =
    counter("weir_upstream_overflows_total", "Times a circuit breaker was reached, by limit.");

pub(super) static DECISIONS: Family = counter(
    "weir_decisions_total",
    "Decisions of each rule, for the requests that it applies to, by outcome.",
);
pub(super) static UNREADABLE_LIMITS: Family = counter(
    "weir_limit_values_unreadable_total",
    "Requests that state a limit which cannot be read, so that the rule's default applies.",
);
pub(super) static DROPPED_LIMITS: Family = counter(
    "weir_limit_values_dropped_total",
    "Requests whose stated limit did not apply for lack of room, so that the rule's default did.",
);
pub(super) static WAITING: Family =
    gauge("weir_wait_queue_requests", "Requests that wait in a queue for room in a limit, by rule.");
pub(super) static WAIT_TIME: Family = histogram(
    "weir_wait_seconds",
    "Time from the arrival of a request to its admission, by rule; only admitted requests that waited in a queue.",
);
pub(super) static WAIT_REJECTIONS: Family = counter(
    "weir_wait_rejections_total",
    "Requests rejected by a rule with a queue, by reason: queue_full, evicted, no_time or expired.",
);
pub(super) static STATED_COSTS: Family = counter(
    "weir_response_costs_total",
    "Responses whose bodies state their cost, by rule and outcome: stated, absent, unreadable, broken_off or abandoned.",
);
pub(super) static STATED_COST_UNITS: Family = counter(
    "weir_response_cost_units_total",
    "Units charged for responses whose bodies state their cost, such as tokens, by rule.",
);
pub(super) static STREAM_UNITS: Family = counter(
    "weir_stream_units_total",
    "Messages and bytes inside streams that a rule limits, by rule, measure and outcome: allowed, delayed or shadow.",
);
pub(super) static STREAM_DELAYS: Family = histogram(
    "weir_stream_delay_seconds",
    "Time for which a message, or a part of a body or tunnel, was held until a limit had room, by rule.",
);
pub(super) static GEO_DECISIONS: Family = counter(
    "weir_geo_decisions_total",
    "Decided requests by the country of the client and whether a rule rejected them.",
);
pub(super) static LIMITER_KEYS: Family = gauge("weir_limiter_keys", "Counters in use, by rule.");
pub(super) static LIMITER_ENTRIES: Family =
    gauge("weir_limiter_entries", "Occupied slots of the counter table, in use or not yet reclaimed.");
pub(super) static LIMITER_CAPACITY: Family =
    gauge("weir_limiter_capacity", "Maximum number of counters in the table.");
pub(super) static LIMITER_OVERFLOWS: Family =
    counter("weir_limiter_overflow_total", "Charges to an overflow counter because the table was full.");

pub(super) static LIMIT_OVERRIDES: Family =
    gauge("weir_limit_overrides", "Overrides of single keys in force, by action: boost or ban.");

pub(super) static STATE_SAVES: Family =
    counter("weir_state_saves_total", "Attempts to write the state file, by outcome.");
pub(super) static STATE_SUCCESS_TIME: Family =
    gauge("weir_state_last_save_success_timestamp_seconds", "When the state file was last written.");
pub(super) static STATE_COUNTERS: Family =
    gauge("weir_state_counters", "Counters in the state file as last written.");
pub(super) static STATE_BYTES: Family = gauge("weir_state_bytes", "Size of the state file as last written.");

pub(super) static ELASTIC_HEADROOM: Family = gauge(
    "weir_elastic_headroom",
    "How far elastic limits may stretch: from 0, the written limit, to 1, the maximum.",
);
pub(super) static ELASTIC_FACTOR: Family =
    gauge("weir_elastic_factor", "The current limit of an elastic rule as a multiple of the written one.");
pub(super) static ELASTIC_SIGNAL: Family =
    gauge("weir_elastic_signal", "Value of a signal for elastic limits: requests, seconds, or shares of 1.");
pub(super) static ELASTIC_THRESHOLD: Family = gauge(
    "weir_elastic_signal_threshold",
    "Value from which a signal leaves no headroom, in the unit of the signal.",
);

pub(super) static CONCURRENCY_LIMIT: Family = gauge(
    "weir_concurrency_limit",
    "The adaptive concurrency limit in force; the lowest of a rule with several keys.",
);
pub(super) static CONCURRENCY_LATENCY: Family = gauge(
    "weir_concurrency_latency_seconds",
    "Recent latency of the upstream, where the limit is the lowest.",
);
pub(super) static CONCURRENCY_MIN_LATENCY: Family = gauge(
    "weir_concurrency_min_latency_seconds",
    "Latency of the upstream without a queue, where the limit is the lowest.",
);
pub(super) static CONCURRENCY_KEYS: Family =
    gauge("weir_concurrency_keys", "Keys that have an adaptive concurrency limit of their own.");
pub(super) static UPSTREAM_CONCURRENCY_LIMIT: Family = gauge(
    "weir_upstream_concurrency_limit",
    "Maximum requests in flight to an upstream, beyond which requests wait for a slot.",
);
pub(super) static CLASS_REQUESTS: Family = counter(
    "weir_class_requests_total",
    "Requests of a class that needed a slot at an upstream, by outcome.",
);
pub(super) static CLASS_IN_FLIGHT: Family =
    gauge("weir_class_in_flight", "Requests of a class that have a slot at an upstream.");
pub(super) static CLASS_WAITING: Family =
    gauge("weir_class_waiting", "Requests of a class that wait for a slot at an upstream.");
pub(super) static CLASS_SHED_SECONDS: Family = gauge(
    "weir_class_shed_seconds",
    "Time for which requests of a class have been rejected for lack of slots; 0 after 10 s without one.",
);
pub(super) static THROTTLE_PROBABILITY: Family = gauge(
    "weir_upstream_throttle_probability",
    "Probability with which a call is not sent, because the upstream would reject it, from 0 to 1.",
);
pub(super) static UNKNOWN_CLASSES: Family = counter(
    "weir_unknown_classes_total",
    "Requests of which a trusted peer named a class that is not configured.",
);
pub(super) static FEEDBACK_SHARE: Family = gauge(
    "weir_feedback_share",
    "The smallest share of a rule's limit in force, from 0 to 1, for keys that the provider has rejected.",
);
pub(super) static FEEDBACK_PAUSED: Family = gauge(
    "weir_feedback_paused_seconds",
    "Time until the provider accepts requests again: the longest pause of a rule's keys.",
);
pub(super) static FEEDBACK_KEYS: Family =
    gauge("weir_feedback_keys", "Keys of a rule whose limit is reduced or paused.");
pub(super) static FEEDBACK_REJECTIONS: Family =
    counter("weir_feedback_rejections_total", "Rejections by the provider.");
pub(super) static FEEDBACK_DECREASES: Family =
    counter("weir_feedback_decreases_total", "Decreases of a limit because of rejections by the provider.");
pub(super) static FEEDBACK_DELAYED_RETRIES: Family = counter(
    "weir_feedback_delayed_retries_total",
    "Retries that waited because the provider had stated when to retry.",
);

pub(super) static CONFIG_RELOADS: Family =
    counter("weir_config_reloads_total", "Configuration reads after the first, by outcome.");
pub(super) static CONFIG_SUCCESSFUL: Family = gauge(
    "weir_config_last_reload_successful",
    "Whether the last configuration read was valid (1) or not (0).",
);
pub(super) static CONFIG_SUCCESS_TIME: Family =
    gauge("weir_config_last_reload_success_timestamp_seconds", "When a valid configuration was last read.");
pub(super) static CONFIG_GENERATION: Family =
    gauge("weir_config_generation", "Configurations applied since the start, including the first.");

pub(super) static CONFIG_FETCHES: Family =
    counter("weir_config_fetches_total", "Requests for the configuration over HTTP, by outcome.");
pub(super) static CONFIG_FETCH_SUCCESS_TIME: Family = gauge(
    "weir_config_last_fetch_success_timestamp_seconds",
    "When the server last sent the configuration or confirmed that it is unchanged.",
);
pub(super) static CONFIG_FROM_CACHE: Family = gauge(
    "weir_config_from_cache",
    "Whether the configuration in force came from the cache and the server has not confirmed it (1) or not (0).",
);
pub(super) static CONFIG_CACHE_FAILURES: Family =
    counter("weir_config_cache_failures_total", "Failed writes of the configuration cache.");

pub(super) static ALERTS_FIRING: Family =
    gauge("weir_alerts_firing", "Alerts that are firing, by name; sent to the webhook.");
pub(super) static ALERT_NOTIFICATIONS: Family =
    counter("weir_alerts_notifications_total", "Requests to the webhook of alerts, by outcome.");
pub(super) static ALERT_SUCCESS_TIME: Family = gauge(
    "weir_alerts_last_notification_success_timestamp_seconds",
    "When the webhook of alerts last accepted a notification.",
);

pub(super) static ACCESS_LOG_DROPPED: Family =
    counter("weir_access_log_dropped_total", "Lost access log lines.");
pub(super) static SPANS_EXPORTED: Family =
    counter("weir_spans_exported_total", "Spans that the collector has accepted.");
pub(super) static SPANS_DROPPED: Family = counter(
    "weir_spans_dropped_total",
    "Lost spans: the queue was full, or the collector did not accept them.",
);
pub(super) static WORKERS: Family = gauge("weir_workers", "Worker threads.");
pub(super) static BUILD_INFO: Family = gauge("weir_build_info", "Always 1; the version is in the label.");
pub(super) static PROCESS_START: Family =
    gauge("process_start_time_seconds", "When the process started, since the Unix epoch.");
pub(super) static PROCESS_MEMORY: Family = gauge("process_resident_memory_bytes", "Resident memory size.");
pub(super) static PROCESS_CPU: Family = counter("process_cpu_seconds_total", "User and system time spent.");
pub(super) static PROCESS_FDS: Family = gauge("process_open_fds", "Open file descriptors.");
pub(super) static PROCESS_MAX_FDS: Family =
    gauge("process_max_fds", "Maximum number of open file descriptors.");

pub(super) static STORE_UP: Family = gauge(
    "weir_store_up",
    "1 while the store of shared limits responds; otherwise limits use `on_store_loss`.",
);
pub(super) static STORE_INSTANCES: Family = gauge(
    "weir_store_instances",
    "Instances that share limits through the store, as far as this instance can tell.",
);
pub(super) static STORE_COUNTERS: Family =
    gauge("weir_store_counters", "Counters of shared limits that have leases or pauses in this instance.");
pub(super) static SHARED_INSTANCES: Family = gauge(
    "weir_shared_instances",
    "Instances that share a limit or divide it, as far as this instance can tell.",
);
pub(super) static SHARED_ERROR_BOUND: Family = gauge(
    "weir_shared_error_bound",
    "Units that all instances together may admit beyond a shared limit, in any window of its period.",
);
pub(super) static STORE_CALLS: Family =
    counter("weir_store_calls_total", "Calls of the store, by outcome; one call is for many counters.");
pub(super) static STORE_CALL_SECONDS: Family =
    gauge("weir_store_call_seconds", "Duration of the last call of the store.");
pub(super) static STORE_UNANSWERED: Family = counter(
    "weir_store_unanswered_total",
    "Requests whose wait for the store ended without a response, so that `on_store_loss` decided, by reason.",
);
pub(super) static STORE_WAIT_SECONDS: Family =
    gauge("weir_store_wait_seconds", "Time that a request waits for the store, unless its rule sets `wait`.");
pub(super) static STORE_PART: Family = gauge(
    "weir_store_part",
    "Fraction of limits with `on_store_loss: strict_split` that this instance may spend without the store.",
);
pub(super) static STORE_GLOBAL_UP: Family = gauge(
    "weir_store_global_up",
    "1 while the global store of several regions responds; otherwise a region counts with its part of the limits.",
);
pub(super) static STORE_REGIONS: Family =
    gauge("weir_store_regions", "Regions that share limits through the global store, as far as it knows.");
pub(super) static STORE_ERRANDS: Family = counter(
    "weir_store_errands_total",
    "Reports of this instance to the global store about counters, by outcome.",
);
pub(super) static STORE_LEASE_REQUESTS: Family = counter(
    "weir_store_questions_total",
    "Requests for units of one counter to which the store has responded.",
);
pub(super) static STORE_GRANTED: Family =
    counter("weir_store_granted_units_total", "Units granted to this instance by the store.");
pub(super) static STORE_RETURNED: Family =
    counter("weir_store_returned_units_total", "Units that this instance has returned unspent.");

pub(super) static DEFERRED_ACCEPTED: Family =
    counter("weir_deferred_accepted_total", "Calls that a rule with `respond` was to store, by outcome.");
pub(super) static DEFERRED_SENT: Family =
    counter("weir_deferred_sent_total", "Deferred calls to which the upstream responded with success.");
pub(super) static DEFERRED_RETRIED: Family = counter(
    "weir_deferred_retried_total",
    "Failed attempts to send a deferred call that are followed by another one.",
);
pub(super) static DEFERRED_CLAIMED: Family = counter(
    "weir_deferred_claimed_total",
    "Deferred calls taken over from an instance that stopped; each may have been sent before.",
);
pub(super) static DEFERRED_DEAD: Family = counter(
    "weir_deferred_dead_total",
    "Deferred calls moved to the dead-letter stream by this instance, by reason.",
);
pub(super) static DEFERRED_STORED: Family =
    gauge("weir_deferred_calls", "Deferred calls in the store, of all instances.");
pub(super) static DEFERRED_OLDEST: Family =
    gauge("weir_deferred_oldest_seconds", "Age of the oldest deferred call in the store.");
pub(super) static DEFERRED_DEAD_LETTERS: Family =
    gauge("weir_deferred_dead_letters", "Deferred calls in the dead-letter stream.");

pub(super) static REMOTE_REQUESTS: Family = counter(
    "weir_remote_requests_total",
    "Requests to other rate limit services, by outcome; skipped ones were not sent.",
);
pub(super) static REMOTE_DURATION: Family =
    histogram("weir_remote_request_duration_seconds", "Duration of requests to other rate limit services.");
