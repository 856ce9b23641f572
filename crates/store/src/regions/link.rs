//! The link of this region to the global store: whether it is up, and which regions there are.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::calls::GlobalCalls;

/// Interval between two registrations of a region by one of its instances.
const REGISTRATION_INTERVAL: Duration = Duration::from_secs(2);
/// Time for which a registration is valid.
pub(crate) const REGISTRATION_TTL: Duration = Duration::from_secs(8);
/// Time for which all regions have to be registered before the global store can know all allotments after a loss of data.
/// Allotments without demand are reported every 15 s.
const COMPLETE_AFTER: Duration = Duration::from_secs(20);

pub(crate) struct RegionLink {
    pub(crate) calls: Arc<GlobalCalls>,
    /// Secret of all regions, once it is known.
    pub(crate) secret: Option<[u64; 2]>,
    /// Result of the last registration; `None` before the first.
    is_up: Option<bool>,
    /// Registered regions, and the number of all.
    pub(crate) regions: u32,
    count: u32,
    /// Since when all regions are registered.
    complete_since: Option<Instant>,
    is_registering: bool,
    next_registration: Instant,
}

impl RegionLink {
    /// Creates the link of one of `count` regions.
    pub(crate) fn new(calls: GlobalCalls, count: u32) -> Self {
        Self {
            calls: Arc::new(calls),
            secret: None,
            is_up: None,
            regions: 0,
            count,
            complete_since: None,
            is_registering: false,
            next_registration: Instant::now(),
        }
    }

    /// Whether the last registration has failed.
    pub(crate) fn is_down(&self) -> bool {
        self.is_up == Some(false)
    }

    /// Whether the global store can know all allotments, also if it has lost its data.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete_since.is_some_and(|since| since.elapsed() >= COMPLETE_AFTER)
    }

    /// Time of the next registration; `None` while one is in flight.
    pub(crate) fn next_registration(&self) -> Option<Instant> {
        (!self.is_registering).then_some(self.next_registration)
    }

    /// Whether to register now. Then it counts as begun.
    pub(crate) fn begin_registration(&mut self) -> bool {
        let now = Instant::now();
        let begins = !self.is_registering && now >= self.next_registration;
        if begins {
            (self.is_registering, self.next_registration) = (true, now + REGISTRATION_INTERVAL);
        }
        begins
    }

    /// Records the result of a registration: the secret and the number of regions, or `None` if it has failed. Returns whether
    /// the link has come up or gone down.
    pub(crate) fn end_registration(&mut self, registered: Option<([u64; 2], u32)>) -> bool {
        self.is_registering = false;
        match registered {
            Some((secret, regions)) => {
                (self.secret, self.regions) = (Some(secret), regions);
                let is_complete = regions >= self.count;
                self.complete_since = is_complete.then(|| self.complete_since.unwrap_or_else(Instant::now));
            }
            None => self.complete_since = None,
        }
        self.is_up.replace(registered.is_some()) != Some(registered.is_some())
    }
}
