//! Targets of log lines. A level for a target that no line has would change nothing, so it is an error.

use super::LoggingError;

/// Modules that write to the log, and `weir::audit` and `weir::decision`. A test compares the list with the sources.
pub const KNOWN_TARGETS: [&str; 32] = [
    "weir",
    "weir::admin",
    "weir::app",
    "weir::audit",
    "weir::decision",
    "weir::proxy",
    "weir_config::central",
    "weir_config::reload",
    "weir_net::http_server",
    "weir_net::listener",
    "weir_net::watch",
    "weir_net::worker",
    "weir_rls::call_log",
    "weir_rls::server",
    "weir_rls::source",
    "weir_store::deferred",
    "weir_store::redis",
    "weir_store::remote",
    "weir_store::state_file",
    "weir_store::task",
    "weir_telemetry::access_log",
    "weir_telemetry::alerts",
    "weir_telemetry::malformed_streams",
    "weir_telemetry::metrics",
    "weir_telemetry::spans",
    "weir_telemetry::statsd",
    "weir_upstream",
    "weir_upstream::cluster",
    "weir_upstream::connect",
    "weir_upstream::health_check",
    "weir_upstream::http2",
    "weir_upstream::resolve",
];

/// Libraries that write to the log.
const LIBRARIES: [&str; 4] = ["h2", "hyper_util", "tonic", "tower"];

/// Returns the target as log lines have it: `weir::store` stands for the crate `weir_store`.
///
/// # Errors
/// [`LoggingError::UnknownTarget`] if no log line has it.
pub(super) fn resolve(target: &str) -> Result<String, LoggingError> {
    let in_crate = target.strip_prefix("weir::").map(|path| format!("weir_{path}"));
    let mut candidates = std::iter::once(target.to_owned()).chain(in_crate);
    candidates
        .find(|candidate| is_known(candidate))
        .ok_or_else(|| LoggingError::UnknownTarget(target.to_owned()))
}

/// Whether a log line may have this target or one below it.
fn is_known(target: &str) -> bool {
    let mut known = KNOWN_TARGETS.iter().filter(|known| **known != "weir").chain(&LIBRARIES);
    target == "weir" || known.any(|known| is_within(target, known) || is_within(known, target))
}

/// Whether `target` is `module` or a module below it.
fn is_within(target: &str, module: &str) -> bool {
    target.strip_prefix(module).is_some_and(|below| below.is_empty() || below.starts_with("::"))
}

/// Returns all known targets, for messages.
pub(super) fn known_list() -> String {
    KNOWN_TARGETS.iter().chain(&LIBRARIES).copied().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crate_has_the_name_of_a_module_of_the_program() {
        for (given, expected) in [
            ("weir::store", "weir_store"),
            ("weir::store::redis", "weir_store::redis"),
            ("weir::upstream", "weir_upstream"),
            ("weir::proxy::worker", "weir::proxy::worker"),
            ("weir_rls", "weir_rls"),
            ("weir", "weir"),
            ("h2::codec", "h2::codec"),
        ] {
            assert_eq!(resolve(given).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn target_that_no_line_has_is_an_error_that_lists_the_known_ones() {
        for unknown in ["weir::stor", "weir_store::redi", "weir::", "weird", "weir_limiter", "proxy", "h3"] {
            let error = resolve(unknown).expect_err(unknown);
            assert_eq!(error, LoggingError::UnknownTarget(unknown.to_owned()));
            let text = error.to_string();
            assert!(
                text.contains(unknown) && KNOWN_TARGETS.iter().all(|known| text.contains(known)),
                "{text}"
            );
        }
    }
}
