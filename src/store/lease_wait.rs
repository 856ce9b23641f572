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
    /// The store is unreachable, and the configured fallback applies.
    Unavailable,
}

/// A counter for which the store is being queried.
#[derive(Debug)]
pub struct LeaseWait {
    response: oneshot::Receiver<()>,
    max_wait: Duration,
}

/// The store's responses for which a request waits.
#[derive(Debug, Default)]
pub struct LeaseWaits(SmallVec<[LeaseWait; 1]>);

impl StoreHandle {
    /// Evaluates the result of [`Limiter::acquire_units`] for `counter`. The request waits for the store for at most
    /// `wait`.
    ///
    /// [`Limiter::acquire_units`]: crate::limiter::Limiter::acquire_units
    pub fn decide_lease(
        &self,
        counter: SharedCounter,
        outcome: LeaseOutcome,
        max_wait: Duration,
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
            LeaseOutcome::Requested(needs_query) => LeaseDecision::Pending(LeaseWait {
                response: self.wait_for_response(counter, needs_query, max_wait),
                max_wait,
            }),
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

    /// Completes when the store has responded to all queries, or when the shortest wait has elapsed.
    pub async fn wait_all(self) {
        let Some(max_wait) = self.0.iter().map(|lacking| lacking.max_wait).min() else { return };
        let all = async {
            for wait in self.0 {
                // A query that was not sent has no response.
                drop(wait.response.await);
            }
        };
        drop(tokio::time::timeout(max_wait, all).await);
    }
}
