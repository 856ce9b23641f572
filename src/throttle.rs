//! What to do about a decision: forward, or refuse and say for how long.

use std::time::Duration;

use crate::limiter::decision::Decision;

/// What happens to a request after the limiter has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Goes on to the upstream.
    Forward,
    /// Is answered here.
    Refuse {
        /// Position of the check that answers, among the checks of the decision.
        by: usize,
        /// How long the client should wait.
        retry_after: Duration,
    },
}

/// The action for a decision. Of several refusing limits the longest wait answers; ties go to the first.
pub fn resolve(decision: &Decision) -> Action {
    let mut action = Action::Forward;
    for (by, verdict) in decision.verdicts().iter().enumerate().filter(|(_, verdict)| verdict.refuses()) {
        let wait = verdict.wait();
        match action {
            Action::Refuse { retry_after, .. } if wait <= retry_after => {}
            _ => action = Action::Refuse { by, retry_after: wait },
        }
    }
    action
}
