//! Audit log: a line for each command that changes the process, and for requests that are rejected as unauthorised.
//!
//! The lines have the target `weir::audit` and are written at any log level. Anyone who reaches the port can cause
//! rejections, so there is at most one line about them per second, with the number of those since the line before.

use std::time::Duration;

use parking_lot::Mutex;

use super::AdminState;
use super::authorization::AdminRejection;
use super::query::Query;
use weir_limiter::timestamp::Timestamp;
use weir_telemetry::logging::AUDIT_TARGET;

/// Minimum time between two lines about rejected requests.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Rejected requests that are not in the log yet.
#[derive(Debug, Default)]
pub struct RejectionAudit(Mutex<PendingRejections>);

#[derive(Debug, Default)]
struct PendingRejections {
    last_line: Option<Timestamp>,
    unwritten: u64,
}

impl RejectionAudit {
    /// Records a rejection; returns the number of earlier ones without a line if this one is to be written.
    fn record(&self, now: Timestamp) -> Option<u64> {
        let mut pending = self.0.lock();
        if pending.last_line.is_some_and(|last| now.since(last) < MIN_INTERVAL) {
            pending.unwritten = pending.unwritten.saturating_add(1);
            return None;
        }
        pending.last_line = Some(now);
        Some(std::mem::take(&mut pending.unwritten))
    }
}

/// Writes the line of a command that has changed the process. `detail` is what it has changed, if its name does not say
/// that.
pub(super) fn record_command(query: &Query<'_>, detail: &str) {
    tracing::info!(target: AUDIT_TARGET, peer = %query.peer_text(), action = query.path, detail, "admin command");
}

/// Writes or counts a rejected request.
pub(super) fn record_rejection(state: &AdminState, query: &Query<'_>, method: &str, reason: AdminRejection) {
    if let Some(unwritten) = state.rejections.record(state.process.now()) {
        tracing::warn!(
            target: AUDIT_TARGET,
            peer = %query.peer_text(),
            method = method.get(..MAX_METHOD_LENGTH).unwrap_or(method),
            path = query.path,
            reason = reason.as_str(),
            earlier = unwritten,
            "admin request rejected"
        );
    }
}

/// Maximum length of a method in the log, in bytes.
const MAX_METHOD_LENGTH: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_have_one_line_per_second_with_their_number() {
        let audit = RejectionAudit::default();
        let at = |millis| Timestamp::from_secs(100).saturating_add(Duration::from_millis(millis));
        assert_eq!(audit.record(at(0)), Some(0));
        assert!((1..1000).all(|millis| audit.record(at(millis)).is_none()));
        assert_eq!(audit.record(at(1000)), Some(999));
        assert_eq!(audit.record(at(2000)), Some(0));
    }
}
