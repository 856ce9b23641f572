//! What to do about a decision: forward, at once or later, or refuse and say for how long.

use std::time::Duration;

use crate::limiter::decision::Decision;

/// What happens to a request after the limiter has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Goes on to the upstream.
    Forward,
    /// Goes on after so long.
    Delay(Duration),
    /// Is answered here.
    Refuse {
        /// Position of the check that answers, among the checks of the decision.
        by: usize,
        /// How long the client should wait.
        retry_after: Duration,
    },
}

/// The action for a decision. Of several refusing limits the longest wait answers; ties go to the first.
/// Otherwise the longest of its delays holds it back.
pub fn resolve(decision: &Decision) -> Action {
    let mut action = match decision.delay() {
        Duration::ZERO => Action::Forward,
        delay => Action::Delay(delay),
    };
    for (by, verdict) in decision.verdicts().iter().enumerate().filter(|(_, verdict)| verdict.refuses()) {
        let wait = verdict.wait();
        if !matches!(action, Action::Refuse { retry_after, .. } if wait <= retry_after) {
            action = Action::Refuse { by, retry_after: wait };
        }
    }
    action
}
