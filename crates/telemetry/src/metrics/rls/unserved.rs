//! Calls of the rate limit service that were not served, by reason.
//!
//! An Envoy that gets no response usually lets its requests pass, so each of these calls may be a request without a limit.
//! Clients can cause any number of them. So the log has one line for each reason and interval, with the number of calls
//! since the line before.

use std::fmt::Display;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;

use super::super::exporter::render_header;
use super::super::families;
use weir_limiter::timestamp::Timestamp;

/// Minimum time between two log lines about the same reason.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Why a call was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnservedReason {
    /// The header section violates HTTP/2 or is too large, or there are too many calls at once: the call was reset.
    Reset,
    /// The connection violates HTTP/2, or does not use it.
    Protocol,
    /// The TLS handshake has failed.
    Handshake,
    /// The client's certificate has none of the required names.
    ClientName,
    /// There is no such service or method.
    Unimplemented,
    /// The message cannot be read.
    Message,
    /// The call exceeds a bound.
    Bound,
    /// The request cannot be decided.
    Undecided,
}

impl UnservedReason {
    const ALL: [Self; 8] = [
        Self::Reset,
        Self::Protocol,
        Self::Handshake,
        Self::ClientName,
        Self::Unimplemented,
        Self::Message,
        Self::Bound,
        Self::Undecided,
    ];

    /// Returns the label value.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Protocol => "protocol",
            Self::Handshake => "handshake",
            Self::ClientName => "client_name",
            Self::Unimplemented => "unimplemented",
            Self::Message => "message",
            Self::Bound => "bound",
            Self::Undecided => "undecided",
        }
    }
}

/// Numbers of calls, and what of them is still to be logged.
#[derive(Debug, Default)]
pub(super) struct UnservedCalls([Mutex<UnservedCount>; UnservedReason::ALL.len()]);

#[derive(Debug, Default)]
struct UnservedCount {
    total: u64,
    /// Calls since the last line.
    unlogged: u64,
    logged_at: Option<Timestamp>,
}

impl UnservedCount {
    /// Counts calls; returns the number to be logged if a line is due.
    fn add(&mut self, calls: u64, now: Timestamp) -> Option<u64> {
        self.total = self.total.saturating_add(calls);
        self.unlogged = self.unlogged.saturating_add(calls);
        if self.logged_at.is_some_and(|before| now.since(before) < LOG_INTERVAL) {
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

impl UnservedCalls {
    /// Counts calls of `client`, and logs them with what is wrong.
    pub(super) fn record(
        &self,
        reason: UnservedReason,
        calls: u64,
        client: Option<SocketAddr>,
        now: Timestamp,
        detail: &dyn Display,
    ) {
        let due = self.0[reason as usize].lock().add(calls, now);
        if let Some(calls) = due {
            let client = client.map(tracing::field::display);
            tracing::warn!(
                reason = reason.as_str(),
                client,
                calls,
                %detail,
                "rate limit service: calls not served; their requests may pass without a limit"
            );
        }
    }

    pub(super) fn render(&self, text: &mut String) {
        let family = &families::RATELIMIT_UNSERVED;
        text.push_str(&render_header(family));
        for (reason, count) in UnservedReason::ALL.iter().zip(&self.0) {
            // Writing to a string cannot fail.
            let _ =
                writeln!(text, "{}{{reason=\"{}\"}} {}", family.name, reason.as_str(), count.lock().total);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_an_interval_has_all_calls_since_the_last_one() {
        let start = Timestamp::from_nanos(1);
        let at = |seconds| start.saturating_add(Duration::from_secs(seconds));
        let mut count = UnservedCount::default();
        assert_eq!(count.add(2, at(0)), Some(2));
        assert_eq!((count.add(1, at(1)), count.add(3, at(9))), (None, None));
        assert_eq!(count.add(1, at(10)), Some(5));
        assert_eq!(count.total, 7);
    }
}
