//! Requests that are held before their limits decide: until the store responds, or until a queue admits them.

use std::rc::Rc;
use std::time::Duration;

use super::waiting::{HeldDelay, Hold};
use super::{AppliedLimits, LimitsView, leases, waiting};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::wait_queue::Evicted;
use weir_policy::rules::RuleIndex;
use weir_policy::throttle;

/// The limits of a request that has to be held before they decide.
#[derive(Debug)]
pub struct HeldLimits<'a> {
    view: &'a Rc<LimitsView>,
    limits: &'a mut AppliedLimits,
}

/// Why a held request is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// A rule rejects it, with this `retry-after`.
    Rejected(RuleIndex, Duration),
    /// The configuration does not have one of its limits any more. The request is to be decided again.
    Superseded,
}

impl<'a> HeldLimits<'a> {
    pub(super) const fn new(view: &'a Rc<LimitsView>, limits: &'a mut AppliedLimits) -> Self {
        Self { view, limits }
    }

    /// Holds the request through `hold`, and decides. `hold` returns the time, and whether the request has kept its place.
    /// Returns the delay of an admitted request that `hold` has not performed yet.
    ///
    /// # Errors
    /// Why the request is not admitted.
    pub async fn resolve(
        self,
        mut hold: impl AsyncFnMut(Hold<'_>) -> (Timestamp, Result<(), Evicted>),
    ) -> Result<Option<HeldDelay>, NotAdmitted> {
        let Self { view, limits } = self;
        let left = match limits.wait.is_some() {
            true => Some(waiting::resolve(view, limits, &mut hold).await.ok_or(NotAdmitted::Superseded)?),
            false => {
                leases::resolve(view, limits, &mut hold).await;
                None
            }
        };
        limits.leave_leases_undecided();
        limits.record_copied_if_decided(view);
        match throttle::resolve(&limits.decision) {
            throttle::ThrottleAction::Forward => Ok(None),
            // The delay of a request that has waited includes its wait.
            throttle::ThrottleAction::Delay(time) => {
                let delay = left.unwrap_or(HeldDelay { time, memory: None });
                Ok(Some(delay).filter(|delay| !delay.time.is_zero()))
            }
            throttle::ThrottleAction::Reject { position: by, retry_after } => {
                Err(NotAdmitted::Rejected(limits.rule(by), retry_after))
            }
        }
    }
}
