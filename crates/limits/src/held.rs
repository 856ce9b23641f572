//! Progress of a request that is held before its limits decide: until the store responds, or until a queue admits it.
//!
//! The state is plain data: [`PendingLimits::progress`] decides as far as possible and says what to wait for, and the
//! caller waits with [`PendingLimits::until_woken`].

use std::rc::Rc;

use super::progress::{HeldDelay, HeldProgress, NotAdmitted, Wait, Woken};
use super::{AppliedLimits, LimitsView, PendingLimits};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::wait_queue::Evicted;
use weir_policy::throttle;

impl PendingLimits {
    /// Decides a held request as far as possible: first as of its arrival, then as of the end of each wait.
    pub fn progress(&mut self, view: &Rc<LimitsView>, woken: Option<Woken>) -> HeldProgress {
        let limits = &mut self.0;
        let now = woken.map_or(limits.decided_at, |woken| woken.at);
        let undecided = match woken {
            Some(Woken { place: Err(Evicted), .. }) => {
                limits.evict(view, now);
                None
            }
            _ if limits.wait.is_some() => limits.decide_waiting(view, now),
            _ => limits.decide_leased(view, woken).map(HeldProgress::Wait),
        };
        undecided.unwrap_or_else(|| limits.finish(view, now))
    }

    /// Resolves when the request is to be decided again, with [`Self::progress`].
    ///
    /// # Errors
    /// If the request has lost its place in a full queue.
    pub async fn until_woken(&mut self, wait: Wait) -> Result<(), Evicted> {
        match wait {
            Wait::Lease => {
                // Boxed: it is larger than the others, for which more requests wait.
                Box::pin(self.0.lease_waits.wait()).await;
                Ok(())
            }
            Wait::Turn(turn) => match self.0.wait.as_ref().and_then(|waiting| waiting.ticket()) {
                Some(ticket) => turn.wait(ticket).await,
                None => Ok(()),
            },
        }
    }
}

impl AppliedLimits {
    /// Ends the wait of a request that is decided.
    fn finish(&mut self, view: &Rc<LimitsView>, now: Timestamp) -> HeldProgress {
        let left = self.wait.is_some().then(|| self.end_wait(view, now));
        self.leave_leases_undecided();
        self.record_copied_if_decided(view);
        match throttle::resolve(&self.decision) {
            throttle::ThrottleAction::Forward => HeldProgress::Admitted(None),
            // The delay of a request that has waited includes its wait.
            throttle::ThrottleAction::Delay(time) => {
                let delay = left.unwrap_or(HeldDelay { time, memory: None });
                HeldProgress::Admitted(Some(delay).filter(|delay| !delay.time.is_zero()))
            }
            throttle::ThrottleAction::Reject { position: by, retry_after } => {
                HeldProgress::NotAdmitted(NotAdmitted::Rejected(self.rule(by), retry_after))
            }
        }
    }
}
