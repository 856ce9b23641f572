//! Envoy's `x-envoy-*` headers that override timeouts and retries of a request, and that report on its handling.
//!
//! Overrides are only used for internal requests: those whose client is trusted, not only the peer that forwards them
//! (Envoy, "internal request"). They are removed from all requests. The upstream only receives those that Weir itself
//! sets.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

use weir_policy::rules::grpc::GrpcStatus;
use weir_upstream::settings::RetryOn;

/// Maximum retries that a header may set.
const MAX_RETRIES: u32 = 10;

const X_ENVOY_MAX_RETRIES: &str = "x-envoy-max-retries";
const X_ENVOY_RETRY_ON: &str = "x-envoy-retry-on";
const X_ENVOY_RETRY_GRPC_ON: &str = "x-envoy-retry-grpc-on";
const X_ENVOY_UPSTREAM_RQ_TIMEOUT_MS: &str = "x-envoy-upstream-rq-timeout-ms";
const X_ENVOY_UPSTREAM_RQ_PER_TRY_TIMEOUT_MS: &str = "x-envoy-upstream-rq-per-try-timeout-ms";

/// Response timeout of the upstream, sent to it.
pub(in crate::proxy) const X_ENVOY_EXPECTED_RQ_TIMEOUT_MS: HeaderName =
    HeaderName::from_static("x-envoy-expected-rq-timeout-ms");
/// Number of the attempt, from 1, sent to the upstream.
pub(in crate::proxy) const X_ENVOY_ATTEMPT_COUNT: HeaderName =
    HeaderName::from_static("x-envoy-attempt-count");
/// Time that the upstream took, sent to the client.
pub(in crate::proxy) const X_ENVOY_UPSTREAM_SERVICE_TIME: HeaderName =
    HeaderName::from_static("x-envoy-upstream-service-time");

/// All headers that override the handling of a request.
const OVERRIDE_HEADERS: [&str; 13] = [
    X_ENVOY_MAX_RETRIES,
    X_ENVOY_RETRY_ON,
    X_ENVOY_UPSTREAM_RQ_TIMEOUT_MS,
    X_ENVOY_UPSTREAM_RQ_PER_TRY_TIMEOUT_MS,
    "x-envoy-expected-rq-timeout-ms",
    "x-envoy-attempt-count",
    X_ENVOY_RETRY_GRPC_ON,
    "x-envoy-retriable-status-codes",
    "x-envoy-retriable-header-names",
    "x-envoy-hedge-on-per-try-timeout",
    "x-envoy-upstream-alt-stat-name",
    "x-envoy-upstream-stream-duration-ms",
    "x-envoy-upstream-rq-timeout-alt-response",
];

/// Overrides that an internal client sets for one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::proxy) struct RequestOverrides {
    /// Timeout for the head of the response, over all attempts.
    pub(in crate::proxy) timeout: Option<Duration>,
    /// Timeout of each attempt.
    pub(in crate::proxy) per_try_timeout: Option<Duration>,
    /// Maximum retries after the first attempt.
    pub(in crate::proxy) retries: Option<u32>,
    /// Outcomes after which a retry is made.
    pub(in crate::proxy) retry_on: Option<RetryOn>,
}

/// Whether a header overrides the handling of a request.
pub(in crate::proxy) fn is_override(name: &str) -> bool {
    name.starts_with("x-envoy-") && OVERRIDE_HEADERS.contains(&name)
}

/// Removes all of these headers; returns the overrides if the request is `internal`.
pub(in crate::proxy) fn take_overrides(
    headers: &mut HeaderMap,
    internal: bool,
) -> Option<Box<RequestOverrides>> {
    let overrides = internal.then(|| Box::new(read(headers)));
    for name in OVERRIDE_HEADERS {
        headers.remove(name);
    }
    overrides.filter(|overrides| **overrides != RequestOverrides::default())
}

fn read(headers: &HeaderMap) -> RequestOverrides {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let number = |name: &str| text(name)?.parse::<u64>().ok();
    let time = |name: &str| match number(name)? {
        // Envoy: zero disables the timeout.
        0 => Some(Duration::MAX),
        milliseconds => Some(Duration::from_millis(milliseconds)),
    };
    RequestOverrides {
        timeout: time(X_ENVOY_UPSTREAM_RQ_TIMEOUT_MS),
        per_try_timeout: time(X_ENVOY_UPSTREAM_RQ_PER_TRY_TIMEOUT_MS).filter(|time| *time < Duration::MAX),
        retries: number(X_ENVOY_MAX_RETRIES)
            .map(|count| u32::try_from(count).unwrap_or(u32::MAX).min(MAX_RETRIES)),
        retry_on: match (text(X_ENVOY_RETRY_ON), text(X_ENVOY_RETRY_GRPC_ON)) {
            (None, None) => None,
            (on, calls) => Some(RetryOn {
                grpc_codes: calls.map_or_else(Box::default, grpc_codes),
                ..on.map_or_else(connect_failure_only, retry_on)
            }),
        },
    }
}

/// Parses Envoy's list of retry conditions; unknown ones are ignored.
fn retry_on(text: &str) -> RetryOn {
    let mut on = RetryOn::default();
    let mut statuses = Vec::new();
    for word in text.split(',').map(str::trim) {
        match word {
            "5xx" => {
                on = RetryOn { connect_failure: true, reset: true, timeout: true, ..on };
                statuses.push((500, 599));
            }
            "gateway-error" => statuses.push((502, 504)),
            "reset" => on = RetryOn { connect_failure: true, reset: true, timeout: true, ..on },
            "connect-failure" => on.connect_failure = true,
            "retriable-4xx" => statuses.push((409, 409)),
            _ => {}
        }
    }
    RetryOn { statuses: statuses.into(), ..on }
}

/// Returns the condition that applies whatever else is configured: nothing was sent.
fn connect_failure_only() -> RetryOn {
    RetryOn { connect_failure: true, ..RetryOn::default() }
}

/// Parses Envoy's list of gRPC statuses, such as `resource-exhausted`; unknown ones are ignored.
fn grpc_codes(text: &str) -> Box<[u8]> {
    let status = |word: &str| GrpcStatus::from_name(&word.trim().replace('-', "_"));
    text.split(',').filter_map(status).map(GrpcStatus::code).collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn envoy_overrides_are_honoured_from_internal_clients_only() {
        let given = headers(&[
            (X_ENVOY_MAX_RETRIES, "3"),
            (X_ENVOY_RETRY_ON, "gateway-error, connect-failure,unknown"),
            (X_ENVOY_UPSTREAM_RQ_TIMEOUT_MS, "250"),
            (X_ENVOY_UPSTREAM_RQ_PER_TRY_TIMEOUT_MS, "100"),
            ("x-envoy-attempt-count", "7"),
            ("x-other", "stays"),
        ]);
        let (mut inside, mut outside) = (given.clone(), given);
        let overrides = take_overrides(&mut inside, true).unwrap();
        assert_eq!(overrides.timeout, Some(Duration::from_millis(250)));
        assert_eq!(overrides.per_try_timeout, Some(Duration::from_millis(100)));
        assert_eq!(overrides.retries, Some(3));
        let on = overrides.retry_on.unwrap();
        assert!(on.connect_failure && !on.reset && *on.statuses == [(502, 504)], "{on:?}");
        assert_eq!(take_overrides(&mut outside, false), None);
        assert_eq!((inside.len(), outside.len()), (1, 1));
    }

    #[test]
    fn envoy_grpc_retry_conditions_are_read() {
        let mut given = headers(&[(X_ENVOY_RETRY_GRPC_ON, "unavailable, resource-exhausted,unknown-one")]);
        let on = take_overrides(&mut given, true).and_then(|overrides| overrides.retry_on).unwrap();
        assert!(*on.grpc_codes == [14, 8] && on.statuses.is_empty(), "{on:?}");
        assert!(on.connect_failure && !on.reset, "{on:?}");
    }

    #[test]
    fn invalid_envoy_overrides_are_ignored() {
        let mut given = headers(&[
            (X_ENVOY_MAX_RETRIES, "-1"),
            (X_ENVOY_UPSTREAM_RQ_TIMEOUT_MS, "1s"),
            (X_ENVOY_UPSTREAM_RQ_PER_TRY_TIMEOUT_MS, ""),
        ]);
        assert_eq!(take_overrides(&mut given, true), None);
        let mut most = headers(&[(X_ENVOY_MAX_RETRIES, "4294967296"), (X_ENVOY_UPSTREAM_RQ_TIMEOUT_MS, "0")]);
        let overrides = take_overrides(&mut most, true).unwrap();
        assert_eq!((overrides.retries, overrides.timeout), (Some(MAX_RETRIES), Some(Duration::MAX)));
    }
}
