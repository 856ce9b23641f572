//! Units for a counter that is out of units: from the reserve, or from the store, for which a request may wait.
//!
//! Nearly all requests use units of a lease that this instance holds, and do not reach this module. The proxy and the
//! rate limit service get units here and then decide again.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tokio::sync::oneshot;

use super::handle::StoreHandle;
use crate::limiter::leases::{LeaseOutcome, SharedCounter};

/// Result for one counter that is out of units.
#[derive(Debug)]
pub enum LeaseDecision {
    /// Units are available; decide again.
    Available,
    /// The store is being queried.
    Pending(LeaseWait),
    /// No units are available before this time has elapsed; zero if that is unknown.
    Rejected(Duration),
    /// The store is unreachable, or has not responded in time, and the configured fallback applies.
    Unavailable,
}

/// A counter for which the store is being queried.
#[derive(Debug)]
pub struct LeaseWait {
    response: oneshot::Receiver<bool>,
    max_wait: Duration,
}

/// The store's responses for which a request waits.
#[derive(Debug, Default)]
pub struct LeaseWaits(SmallVec<[LeaseWait; 1]>);

impl StoreHandle {
    /// Evaluates the result of [`Limiter::acquire_units`] for `counter`. The request waits for the store for at most
    /// `max_wait`, of which `waited` have elapsed. If they elapse without a response, the store counts as unreachable for
    /// this request: a late response says nothing about the limit.
    ///
    /// [`Limiter::acquire_units`]: crate::limiter::Limiter::acquire_units
    pub fn decide_lease(
        &self,
        counter: SharedCounter,
        outcome: LeaseOutcome,
        max_wait: Duration,
        waited: Duration,
    ) -> LeaseDecision {
        match outcome {
            LeaseOutcome::Ready(needs_query) => {
                if needs_query {
                    self.query(counter);
                }
                LeaseDecision::Available
            }
            LeaseOutcome::Requested(needs_query) if max_wait.is_zero() => {
                if needs_query {
                    self.query(counter);
                }
                LeaseDecision::Rejected(Duration::ZERO)
            }
            LeaseOutcome::Requested(needs_query) if waited >= max_wait => {
                if needs_query {
                    // It would add to the load of a store that is too slow already. The next request queries it.
                    self.cancel_query(counter);
                }
                self.count_unanswered();
                LeaseDecision::Unavailable
            }
            LeaseOutcome::Requested(needs_query) => {
                let max_wait = max_wait.saturating_sub(waited);
                let response = self.wait_for_response(counter, needs_query, max_wait);
                LeaseDecision::Pending(LeaseWait { response, max_wait })
            }
            LeaseOutcome::Rejected(wait) => LeaseDecision::Rejected(wait),
            LeaseOutcome::Unavailable => LeaseDecision::Unavailable,
        }
    }
}

impl From<LeaseWait> for LeaseWaits {
    fn from(wait: LeaseWait) -> Self {
        Self(smallvec![wait])
    }
}

impl LeaseWaits {
    /// Adds another response to wait for.
    pub fn add(&mut self, wait: LeaseWait) {
        self.0.push(wait);
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns whether there is nothing to wait for.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes all if the shortest wait has elapsed; the request is then decided without the store.
    pub fn clear_elapsed(&mut self) {
        if self.max_wait().is_some_and(|max_wait| max_wait.is_zero()) {
            self.clear();
        }
    }

    fn max_wait(&self) -> Option<Duration> {
        self.0.iter().map(|wait| wait.max_wait).min()
    }

    /// Completes when the store has responded to all queries, or when the shortest wait has elapsed. Returns whether the
    /// store had units; if not, the request must not wait again.
    pub async fn wait_all(self) -> bool {
        let Some(max_wait) = self.max_wait() else { return true };
        let all = async {
            let mut have_units = true;
            for wait in self.0 {
                // A query that was not sent has no response.
                have_units &= wait.response.await.unwrap_or(false);
            }
            have_units
        };
        tokio::time::timeout(max_wait, all).await.unwrap_or(false)
    }
}
