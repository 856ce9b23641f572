//! Names the variables of which a problem of the configuration made from them is.

use std::path::PathBuf;

use crate::diagnostic::Diagnostic;

/// Variables by the key that they set. The first key that a path begins with applies.
const VARIABLES: [(&str, &str); 43] = [
    ("rls.address", "GRPC_HOST, GRPC_PORT, GRPC_UDS"),
    ("rls.http", "HOST, PORT"),
    ("rls.debug", "DEBUG_HOST, DEBUG_PORT"),
    ("rls.config.directory", "RUNTIME_ROOT, RUNTIME_SUBDIRECTORY, RUNTIME_APPDIRECTORY"),
    ("rls.config.xds.tls.certificate", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT"),
    ("rls.config.xds.tls.key", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"),
    ("rls.config.xds.tls.ca", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
    ("rls.config.xds.tls.server_name", "CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
    ("rls.config.xds.tls", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT, CONFIG_GRPC_XDS_CLIENT_TLS_KEY"),
    ("rls.config.xds.address", "CONFIG_GRPC_XDS_SERVER_URL"),
    ("rls.config.xds.node", "CONFIG_GRPC_XDS_NODE_ID"),
    ("rls.config.xds.metadata", "CONFIG_GRPC_XDS_NODE_METADATA"),
    ("rls.config.xds.headers", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"),
    ("rls.config.xds.backoff", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL, XDS_CLIENT_BACKOFF_MAX_INTERVAL"),
    ("rls.config.xds.largest", "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"),
    ("rls.tls.certificate", "GRPC_SERVER_TLS_CERT"),
    ("rls.tls.key", "GRPC_SERVER_TLS_KEY"),
    ("rls.tls.client_ca", "GRPC_CLIENT_TLS_CACERT"),
    ("rls.tls", "GRPC_SERVER_TLS_CERT, GRPC_SERVER_TLS_KEY"),
    ("rls.client_names", "GRPC_CLIENT_TLS_SAN"),
    ("rls.connections.max_age", "GRPC_MAX_CONNECTION_AGE"),
    ("rls.connections.grace", "GRPC_MAX_CONNECTION_AGE_GRACE"),
    ("rls.prometheus.path", "PROMETHEUS_PATH"),
    ("rls.prometheus", "PROMETHEUS_ADDR"),
    ("rls.statsd.interval", "STATS_FLUSH_INTERVAL"),
    ("rls.statsd.tags", "EXTRA_TAGS"),
    ("rls.statsd", "STATSD_HOST, STATSD_PORT"),
    ("rls.near_limit", "NEAR_LIMIT_RATIO"),
    ("rls.response_headers.limit", "LIMIT_LIMIT_HEADER"),
    ("rls.response_headers.remaining", "LIMIT_REMAINING_HEADER"),
    ("rls.response_headers.reset", "LIMIT_RESET_HEADER"),
    ("rls.scope", "WEIR_SHARED, WEIR_SHARED_WAIT, WEIR_ON_STORE_LOSS"),
    ("store.redis.sentinel_", "REDIS_SENTINEL_AUTH"),
    ("store.redis", "REDIS_URL"),
    ("store.username", "REDIS_AUTH"),
    ("store.password", "REDIS_AUTH"),
    ("store.tls.certificate", "REDIS_TLS_CLIENT_CERT"),
    ("store.tls.key", "REDIS_TLS_CLIENT_KEY"),
    ("store.tls.ca", "REDIS_TLS_CACERT"),
    ("store.tls", "REDIS_TLS_CLIENT_CERT, REDIS_TLS_CLIENT_KEY"),
    ("store.prefix", "CACHE_KEY_PREFIX"),
    ("drain", "WEIR_DRAIN_DELAY, WEIR_DRAIN_TIMEOUT"),
    ("admin", "WEIR_ADMIN_ADDRESS"),
];

/// Returns a problem of the configuration that was made from variables as a problem of these variables.
#[must_use]
pub fn attribute_to_variables(problem: Diagnostic) -> Diagnostic {
    let names = VARIABLES.iter().find(|(key, _)| problem.path.starts_with(key)).map(|(_, names)| *names);
    match names {
        Some(names) => {
            Diagnostic { file: PathBuf::from(names), line: 0, column: 0, path: String::new(), ..problem }
        }
        None => Diagnostic { line: 0, column: 0, ..problem },
    }
}
