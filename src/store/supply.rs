//! Units for a counter that is out of units: from the reserve, or from the store, for which a request may wait.
//!
//! Nearly all requests use units of a lease that this instance holds, and do not reach this module. The proxy and the
//! rate limit service get units here and then decide again.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tokio::sync::oneshot;

use super::handle::Handle;
use crate::limiter::leases::{LeaseOutcome, SharedCounter};

/// Result for one counter that is out of units.
#[derive(Debug)]
pub enum Supply {
    /// Units are available; decide again.
    There,
    /// The store is being queried.
    Asked(Lacking),
    /// No units are available before this time has elapsed; zero if that is unknown.
    Rejected(Duration),
    /// The store is unreachable, and the configured fallback applies.
    Away,
}

/// A counter for which the store is being queried.
#[derive(Debug)]
pub struct Lacking {
    waiter: oneshot::Receiver<()>,
    wait: Duration,
}

/// The store's responses for which a request waits.
#[derive(Debug, Default)]
pub struct Waiting(SmallVec<[Lacking; 1]>);

impl Handle {
    /// Evaluates the result of [`Limiter::acquire_units`] for `counter`. The request waits for the store for at most
    /// `wait`.
    ///
    /// [`Limiter::acquire_units`]: crate::limiter::Limiter::acquire_units
    pub fn supply(&self, counter: SharedCounter, claimed: LeaseOutcome, wait: Duration) -> Supply {
        match claimed {
            LeaseOutcome::Ready(asks) => {
                if asks {
                    self.want(counter);
                }
                Supply::There
            }
            LeaseOutcome::Requested(asks) if wait.is_zero() => {
                if asks {
                    self.want(counter);
                }
                Supply::Rejected(Duration::ZERO)
            }
            LeaseOutcome::Requested(asks) => {
                Supply::Asked(Lacking { waiter: self.wait(counter, asks), wait })
            }
            LeaseOutcome::Rejected(wait) => Supply::Rejected(wait),
            LeaseOutcome::Gone => Supply::Away,
        }
    }
}

impl From<Lacking> for Waiting {
    fn from(lacking: Lacking) -> Self {
        Self(smallvec![lacking])
    }
}

impl Waiting {
    /// Adds another response to wait for.
    pub fn add(&mut self, lacking: Lacking) {
        self.0.push(lacking);
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
    pub async fn done(self) {
        let Some(wait) = self.0.iter().map(|lacking| lacking.wait).min() else { return };
        let all = async {
            for lacking in self.0 {
                // A query that was not sent has no response.
                drop(lacking.waiter.await);
            }
        };
        drop(tokio::time::timeout(wait, all).await);
    }
}
