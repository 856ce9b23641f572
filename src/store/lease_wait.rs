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

/// What a request knows of the store when it is decided again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreResponse {
    /// It has waited for this time so far, and may wait on.
    Awaited(Duration),
    /// The store had no units for it.
    NoUnits,
    /// The store has not responded, or was not asked.
    Missing,
}

impl StoreResponse {
    /// Of a request that has not waited.
    pub const NOT_AWAITED: Self = Self::Awaited(Duration::ZERO);
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
    /// `max_wait`. If that elapses without a response, the store counts as unreachable for this request: a late response
    /// says nothing about the limit. If the store has responded that there are no units, the request is rejected.
    ///
    /// [`Limiter::acquire_units`]: crate::limiter::Limiter::acquire_units
    pub fn decide_lease(
        &self,
        counter: SharedCounter,
        outcome: LeaseOutcome,
        max_wait: Duration,
        response: StoreResponse,
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
            LeaseOutcome::Requested(needs_query) => match response {
                StoreResponse::Awaited(waited) if waited < max_wait => {
                    let max_wait = max_wait.saturating_sub(waited);
                    let response = self.wait_for_response(counter, needs_query, max_wait);
                    LeaseDecision::Pending(LeaseWait { response, max_wait })
                }
                ended => {
                    if needs_query {
                        // It would add to the load of a store that is too slow already. The next request queries it.
                        self.cancel_query(counter);
                    }
                    if ended == StoreResponse::NoUnits {
                        return LeaseDecision::Rejected(Duration::ZERO);
                    }
                    self.count_unanswered();
                    LeaseDecision::Unavailable
                }
            },
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

    /// Completes when the store has responded to all queries, or when the shortest wait has elapsed. Returns what the request
    /// then knows: `NOT_AWAITED` if there are units, and the caller knows for how long it has waited.
    pub async fn wait_all(self) -> StoreResponse {
        let Some(max_wait) = self.max_wait() else { return StoreResponse::NOT_AWAITED };
        let all = async {
            let mut combined = StoreResponse::NOT_AWAITED;
            for wait in self.0 {
                match wait.response.await {
                    Ok(true) => {}
                    Ok(false) if combined != StoreResponse::Missing => combined = StoreResponse::NoUnits,
                    Ok(false) => {}
                    // A query that was not sent has no response.
                    Err(_) => combined = StoreResponse::Missing,
                }
            }
            combined
        };
        tokio::time::timeout(max_wait, all).await.unwrap_or(StoreResponse::Missing)
    }
}
