//! Every variable of the reference's settings, and what becomes of it.
//!
//! A variable that is not honoured is ignored with a notice, so that its effect is not taken for granted.

use std::collections::BTreeMap;

use super::go_values::parse_bool;

/// What becomes of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Treatment {
    /// It has the effect that it has in the reference.
    Honoured,
    /// It concerns counters in a store, of which each instance has its own in memory.
    CountsInMemory,
    /// It concerns the connection to Redis, which a start and a request do not wait for.
    StoreInBackground,
    /// It is not supported.
    Unsupported,
}

use Treatment::{CountsInMemory, Honoured, StoreInBackground, Unsupported};

/// All 114 variables of the reference, and one of its statistics library.
pub(super) const VARIABLES: [(&str, Treatment); 115] = [
    ("HOST", Honoured),
    ("PORT", Honoured),
    ("DEBUG_HOST", Honoured),
    ("DEBUG_PORT", Honoured),
    ("GRPC_UDS", Honoured),
    ("GRPC_HOST", Honoured),
    ("GRPC_PORT", Honoured),
    ("GRPC_MAX_CONNECTION_AGE", Honoured),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", Honoured),
    ("GRPC_SERVER_USE_TLS", Honoured),
    ("GRPC_SERVER_TLS_CERT", Honoured),
    ("GRPC_SERVER_TLS_KEY", Honoured),
    ("GRPC_CLIENT_TLS_CACERT", Honoured),
    ("GRPC_CLIENT_TLS_SAN", Honoured),
    ("LOG_LEVEL", Honoured),
    ("LOG_FORMAT", Honoured),
    ("CONFIG_TYPE", Honoured),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", Honoured),
    ("CONFIG_GRPC_XDS_NODE_ID", Honoured),
    ("CONFIG_GRPC_XDS_NODE_METADATA", Honoured),
    ("CONFIG_GRPC_XDS_SERVER_URL", Honoured),
    ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", Unsupported),
    ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", Honoured),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", Honoured),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", Honoured),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", Honoured),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", Honoured),
    ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", Honoured),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", Honoured),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", Honoured),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", Unsupported),
    ("XDS_CLIENT_BACKOFF_JITTER", Unsupported),
    ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", Honoured),
    ("USE_DOG_STATSD", Honoured),
    ("USE_DOG_STATSD_MOGRIFIERS", Unsupported),
    ("USE_STATSD", Honoured),
    ("STATSD_HOST", Honoured),
    ("STATSD_PORT", Honoured),
    ("STATSD_PROTOCOL", Honoured),
    ("EXTRA_TAGS", Honoured),
    ("STATS_FLUSH_INTERVAL", Honoured),
    ("DISABLE_STATS", Honoured),
    ("USE_PROMETHEUS", Honoured),
    ("PROMETHEUS_ADDR", Honoured),
    ("PROMETHEUS_PATH", Honoured),
    ("PROMETHEUS_MAPPER_YAML", Unsupported),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", Unsupported),
    ("RUNTIME_ROOT", Honoured),
    ("RUNTIME_SUBDIRECTORY", Honoured),
    ("RUNTIME_APPDIRECTORY", Honoured),
    ("RUNTIME_IGNOREDOTFILES", Honoured),
    ("RUNTIME_WATCH_ROOT", Honoured),
    ("EXPIRATION_JITTER_MAX_SECONDS", CountsInMemory),
    ("LOCAL_CACHE_SIZE_IN_BYTES", CountsInMemory),
    ("NEAR_LIMIT_RATIO", Honoured),
    ("CACHE_KEY_PREFIX", Honoured),
    ("BACKEND_TYPE", Honoured),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", Honoured),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", Honoured),
    ("LIMIT_LIMIT_HEADER", Honoured),
    ("LIMIT_REMAINING_HEADER", Honoured),
    ("LIMIT_RESET_HEADER", Honoured),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", Honoured),
    ("REDIS_SOCKET_TYPE", Honoured),
    ("REDIS_TYPE", Honoured),
    ("REDIS_URL", Honoured),
    ("REDIS_POOL_SIZE", CountsInMemory),
    ("REDIS_AUTH", Honoured),
    ("REDIS_TLS", Honoured),
    ("REDIS_TLS_CLIENT_CERT", Honoured),
    ("REDIS_TLS_CLIENT_KEY", Honoured),
    ("REDIS_TLS_CACERT", Honoured),
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", Unsupported),
    ("REDIS_PIPELINE_WINDOW", CountsInMemory),
    ("REDIS_PIPELINE_LIMIT", CountsInMemory),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", CountsInMemory),
    ("REDIS_PERSECOND", CountsInMemory),
    ("REDIS_PERSECOND_SOCKET_TYPE", CountsInMemory),
    ("REDIS_PERSECOND_TYPE", CountsInMemory),
    ("REDIS_PERSECOND_URL", CountsInMemory),
    ("REDIS_PERSECOND_POOL_SIZE", CountsInMemory),
    ("REDIS_PERSECOND_AUTH", CountsInMemory),
    ("REDIS_PERSECOND_TLS", CountsInMemory),
    ("REDIS_SENTINEL_AUTH", Honoured),
    ("REDIS_PERSECOND_SENTINEL_AUTH", CountsInMemory),
    ("REDIS_PERSECOND_PIPELINE_WINDOW", CountsInMemory),
    ("REDIS_PERSECOND_PIPELINE_LIMIT", CountsInMemory),
    ("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", CountsInMemory),
    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", StoreInBackground),
    ("REDIS_TIMEOUT", StoreInBackground),
    ("REDIS_PERSECOND_TIMEOUT", CountsInMemory),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", CountsInMemory),
    ("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", CountsInMemory),
    ("REDIS_STARTUP_INITIAL_INTERVAL", StoreInBackground),
    ("REDIS_STARTUP_MAX_INTERVAL", StoreInBackground),
    ("REDIS_STARTUP_MAX_ELAPSED_TIME", StoreInBackground),
    ("MEMCACHE_HOST_PORT", CountsInMemory),
    ("MEMCACHE_MAX_IDLE_CONNS", CountsInMemory),
    ("MEMCACHE_SRV", CountsInMemory),
    ("MEMCACHE_SRV_REFRESH", CountsInMemory),
    ("MEMCACHE_TLS", CountsInMemory),
    ("MEMCACHE_TLS_CLIENT_CERT", CountsInMemory),
    ("MEMCACHE_TLS_CLIENT_KEY", CountsInMemory),
    ("MEMCACHE_TLS_CACERT", CountsInMemory),
    ("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", CountsInMemory),
    ("SHADOW_MODE", Honoured),
    ("QUOTA_MODE", Honoured),
    ("RESPONSE_DYNAMIC_METADATA", Honoured),
    ("MERGE_DOMAIN_CONFIG", Honoured),
    ("TRACING_ENABLED", Unsupported),
    ("TRACING_SERVICE_NAME", Unsupported),
    ("TRACING_SERVICE_NAMESPACE", Unsupported),
    ("TRACING_SERVICE_INSTANCE_ID", Unsupported),
    ("TRACING_EXPORTER_PROTOCOL", Unsupported),
    ("TRACING_SAMPLING_RATE", Unsupported),
];

/// Returns one line for each reason for which variables are ignored. A feature that is switched off is not missed.
pub(super) fn ignored_variable_notices(variables: &BTreeMap<String, String>) -> Vec<String> {
    let is_missed = |name: &str| {
        variables.get(name).is_some_and(|value| !value.is_empty() && parse_bool(value) != Some(false))
    };
    let reasons = [
        (CountsInMemory, "variables ignored, because each instance decides in memory"),
        (StoreInBackground, "variables ignored, because neither the start nor a call waits for Redis"),
        (Unsupported, "unsupported variables ignored"),
    ];
    let notice = |(treatment, reason): (Treatment, &str)| {
        let ignored = VARIABLES.iter().filter(|(_, how)| *how == treatment).map(|(name, _)| *name);
        let names: Vec<_> = ignored.filter(|name| is_missed(name)).collect();
        (!names.is_empty()).then(|| format!("{reason}: {}", names.join(", ")))
    };
    reasons.into_iter().filter_map(notice).collect()
}
