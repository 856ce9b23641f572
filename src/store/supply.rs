//! Units for a counter that is short: out of what is held back, else from the store, for which a request may wait.
//!
//! Nearly all requests spend units that this instance has claimed, and never come here. Whoever decides by shared limits,
//! the proxy and the rate limit service, gets units here and then decides again.

use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::handle::Handle;
use crate::limiter::claims::{Claimed, SharedCounter};

/// What becomes of one counter that is short.
#[derive(Debug)]
pub enum Supply {
    /// There are units: decide again.
    There,
    /// The store is asked.
    Asked(Lacking),
    /// There are none for so long.
    Rejected(Duration),
    /// What counts while the store is away counts.
    Away,
}

/// A counter whose units the store is asked for.
#[derive(Debug)]
pub struct Lacking {
    waiter: oneshot::Receiver<()>,
    wait: Duration,
}

/// The responses of the store that a request waits for.
#[derive(Debug, Default)]
pub struct Waiting(SmallVec<[Lacking; 1]>);

impl Handle {
    /// What becomes of a request whose `counter` is short, once the limiter has `claimed` units for it. It waits for the
    /// store no longer than `wait`.
    pub fn supply(&self, counter: SharedCounter, claimed: Claimed, wait: Duration) -> Supply {
        match claimed {
            Claimed::Ready(asks) => {
                if asks {
                    self.want(counter);
                }
                Supply::There
            }
            Claimed::Asked(asks) if wait.is_zero() => {
                if asks {
                    self.want(counter);
                }
                Supply::Rejected(Duration::ZERO)
            }
            Claimed::Asked(asks) => Supply::Asked(Lacking { waiter: self.wait(counter, asks), wait }),
            Claimed::Rejected(wait) => Supply::Rejected(wait),
            Claimed::Gone => Supply::Away,
        }
    }
}

impl Waiting {
    /// One more response to wait for.
    pub fn add(&mut self, lacking: Lacking) {
        self.0.push(lacking);
    }

    /// Nothing is waited for.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether there is nothing to wait for.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns when the store has responded to all, or the shortest wait is over.
    pub async fn done(self) {
        let Some(wait) = self.0.iter().map(|lacking| lacking.wait).min() else { return };
        let all = async {
            for lacking in self.0 {
                // A question that is not asked after all is one that has no response.
                drop(lacking.waiter.await);
            }
        };
        drop(tokio::time::timeout(wait, all).await);
    }
}
