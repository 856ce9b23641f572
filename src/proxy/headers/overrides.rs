//! The fields by which Envoy's neighbours steer single requests, and are told how those went.
//!
//! Only internal requests are steered: those whose client is trusted, not only the peer that forwards them (Envoy,
//! "internal request"). From all others these are taken off unread. None of them goes on to the upstream but what we say
//! ourselves.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

use crate::upstream::settings::RetryOn;

/// The most attempts that a field may ask for.
const MOST_RETRIES: u32 = 10;

const MAX_RETRIES: &str = "x-envoy-max-retries";
const RETRY_ON: &str = "x-envoy-retry-on";
const TIMEOUT: &str = "x-envoy-upstream-rq-timeout-ms";
const PER_TRY_TIMEOUT: &str = "x-envoy-upstream-rq-per-try-timeout-ms";

/// How long the upstream has, as it is told.
pub(in crate::proxy) const EXPECTED_TIMEOUT: HeaderName =
    HeaderName::from_static("x-envoy-expected-rq-timeout-ms");
/// Which attempt this is, from 1.
pub(in crate::proxy) const ATTEMPT_COUNT: HeaderName = HeaderName::from_static("x-envoy-attempt-count");
/// How long the upstream took, as the client is told.
pub(in crate::proxy) const SERVICE_TIME: HeaderName =
    HeaderName::from_static("x-envoy-upstream-service-time");

/// Everything that steers.
const OVERRIDES: [&str; 13] = [
    MAX_RETRIES,
    RETRY_ON,
    TIMEOUT,
    PER_TRY_TIMEOUT,
    "x-envoy-expected-rq-timeout-ms",
    "x-envoy-attempt-count",
    "x-envoy-retry-grpc-on",
    "x-envoy-retriable-status-codes",
    "x-envoy-retriable-header-names",
    "x-envoy-hedge-on-per-try-timeout",
    "x-envoy-upstream-alt-stat-name",
    "x-envoy-upstream-stream-duration-ms",
    "x-envoy-upstream-rq-timeout-alt-response",
];

/// What somebody inside asks for one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::proxy) struct RequestOverrides {
    /// For the answer's head, all attempts together.
    pub(in crate::proxy) timeout: Option<Duration>,
    /// For each attempt.
    pub(in crate::proxy) per_try_timeout: Option<Duration>,
    /// Attempts after the first.
    pub(in crate::proxy) retries: Option<u32>,
    /// What is worth another attempt.
    pub(in crate::proxy) retry_on: Option<RetryOn>,
}

/// Whether a field steers.
pub(in crate::proxy) fn is_override(name: &str) -> bool {
    name.starts_with("x-envoy-") && OVERRIDES.contains(&name)
}

/// Takes all of these off; answers what they say, if the request is `internal`.
pub(in crate::proxy) fn take_overrides(
    headers: &mut HeaderMap,
    internal: bool,
) -> Option<Box<RequestOverrides>> {
    let overrides = internal.then(|| Box::new(read(headers)));
    for name in OVERRIDES {
        headers.remove(name);
    }
    overrides.filter(|overrides| **overrides != RequestOverrides::default())
}

fn read(headers: &HeaderMap) -> RequestOverrides {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let number = |name: &str| text(name)?.parse::<u64>().ok();
    let time = |name: &str| match number(name)? {
        // Envoy: none at all.
        0 => Some(Duration::MAX),
        milliseconds => Some(Duration::from_millis(milliseconds)),
    };
    RequestOverrides {
        timeout: time(TIMEOUT),
        per_try_timeout: time(PER_TRY_TIMEOUT).filter(|time| *time < Duration::MAX),
        retries: number(MAX_RETRIES).map(|count| u32::try_from(count).unwrap_or(u32::MAX).min(MOST_RETRIES)),
        retry_on: text(RETRY_ON).map(retry_on),
    }
}

/// Envoy's words; what is not among them asks for nothing.
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
    fn who_is_inside_steers_and_who_is_outside_does_not() {
        let given = headers(&[
            (MAX_RETRIES, "3"),
            (RETRY_ON, "gateway-error, connect-failure,unknown"),
            (TIMEOUT, "250"),
            (PER_TRY_TIMEOUT, "100"),
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
    fn what_cannot_be_read_asks_for_nothing() {
        let mut given = headers(&[(MAX_RETRIES, "-1"), (TIMEOUT, "1s"), (PER_TRY_TIMEOUT, "")]);
        assert_eq!(take_overrides(&mut given, true), None);
        let mut most = headers(&[(MAX_RETRIES, "4294967296"), (TIMEOUT, "0")]);
        let overrides = take_overrides(&mut most, true).unwrap();
        assert_eq!((overrides.retries, overrides.timeout), (Some(MOST_RETRIES), Some(Duration::MAX)));
    }
}
