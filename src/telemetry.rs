//! What operators see of a running process: numbers, request lines and log messages.
//!
//! Nothing here may slow a request down or grow with what clients send: numbers are counted in memory that
//! each worker has to itself, and lines are dropped, and counted, where nobody takes them off our hands.

pub mod access_log;
pub mod count;
pub mod histogram;
pub mod logging;
pub mod metrics;
pub mod panics;
pub mod spans;
pub mod statsd;

use crate::limiter::timestamp::Timestamp;

/// A moment as people and parsers read it: RFC 3339 in UTC, with milliseconds.
pub fn rfc3339(moment: Timestamp) -> String {
    let nanos = i128::from(moment.as_nanos());
    // Every timestamp of ours is one of jiff's, which go on to the year 9999.
    let moment = jiff::Timestamp::from_nanosecond(nanos).unwrap_or(jiff::Timestamp::MAX);
    format!("{moment:.3}")
}
