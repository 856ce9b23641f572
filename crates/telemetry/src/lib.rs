//! Metrics, access log, traces and log messages.
//!
//! Telemetry never delays a request, and its memory does not grow with client input. Metrics are counted in memory of
//! each worker. Log lines and spans that cannot be written in time are dropped and counted.
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod access_log;
pub mod alerts;
pub mod atomic_counter;
pub mod histogram;
pub mod log_interval;
pub mod logging;
pub mod malformed_streams;
pub mod metrics;
pub mod observe;
pub mod panics;
pub mod spans;
pub mod statsd;

use weir_limiter::timestamp::Timestamp;

/// Formats a timestamp as RFC 3339 in UTC, with milliseconds.
pub fn rfc3339(timestamp: Timestamp) -> String {
    format!("{:.3}", jiff_timestamp(timestamp))
}

fn jiff_timestamp(timestamp: Timestamp) -> jiff::Timestamp {
    let nanos = i128::from(timestamp.as_nanos());
    // Every timestamp is within jiff's range, which extends to the year 9999.
    jiff::Timestamp::from_nanosecond(nanos).unwrap_or(jiff::Timestamp::MAX)
}
