//! Maps a decision to an action: forward, delay or reject.

use std::time::Duration;

use weir_limiter::decision::Decision;

/// What to do with a request after the limiter's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleAction {
    /// Forward the request to the upstream.
    Forward,
    /// Forward the request after this delay.
    Delay(Duration),
    /// Send a local reply.
    Reject {
        /// Index of the decisive check among the checks of the decision.
        position: usize,
        /// Time for `retry-after`.
        retry_after: Duration,
    },
}

/// Returns the action for a decision. If several limits reject, the longest wait decides, and the first of equals.
/// Otherwise the longest delay applies.
#[inline]
pub fn resolve(decision: &Decision) -> ThrottleAction {
    // Almost every request conforms.
    if decision.conforms_at_once() { ThrottleAction::Forward } else { resolve_other(decision) }
}

fn resolve_other(decision: &Decision) -> ThrottleAction {
    let mut action = match decision.delay() {
        Duration::ZERO => ThrottleAction::Forward,
        delay => ThrottleAction::Delay(delay),
    };
    for (index, verdict) in decision.verdicts().iter().enumerate().filter(|(_, verdict)| verdict.rejects()) {
        let wait = verdict.retry_after();
        if !matches!(action, ThrottleAction::Reject { retry_after, .. } if wait <= retry_after) {
            action = ThrottleAction::Reject { position: index, retry_after: wait };
        }
    }
    action
}
