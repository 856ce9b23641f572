//! The result of a check: an admission, or the time until the request can be repeated.

use std::time::Duration;

use super::{Limits, check, tightest};
use crate::algorithm::{CounterUsage, Outcome};
use crate::decision::{Decision, Verdict};
use crate::key::KeyHash;
use crate::reservation::{DebtLimit, Reservation};
use crate::timestamp::Timestamp;

/// A request that was admitted and charged. Dropping it changes nothing.
#[derive(Debug)]
pub struct Admitted<'a> {
    pub(super) limits: &'a Limits,
    pub(super) key: KeyHash,
    pub(super) units: u32,
    pub(super) at: Timestamp,
    pub(super) decision: Decision,
}

/// The error of a rejected request: how long to wait before the same request can be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAfter {
    wait: Duration,
    exceeds_quota: bool,
}

impl Admitted<'_> {
    /// Returns the units that were charged.
    pub const fn units(&self) -> u32 {
        self.units
    }

    /// Returns the units left for the key after this request.
    pub fn remaining(&self) -> u32 {
        self.usage().remaining
    }

    /// Returns the usage after this request of the quota that has the fewest units left.
    pub fn usage(&self) -> CounterUsage {
        tightest(self.decision.verdicts().iter().filter_map(|verdict| verdict.usage(self.at)))
    }

    /// Returns how long the request has to wait before it may proceed. Zero, unless it was reserved.
    pub fn delay(&self) -> Duration {
        self.decision.delay()
    }

    /// Returns whether the key had to share a counter, because the table is full.
    pub const fn is_shared(&self) -> bool {
        self.decision.overflowed
    }

    /// Gives all units back, for a request that does not count after all, or for a concurrency limit whose request has
    /// ended. Units that time has given back already are not given back again.
    pub fn refund(self, now: Timestamp) {
        self.settle(0, now);
    }

    /// Changes the charge to `units`, when the true cost is known: gives units back, or charges more of them, even
    /// beyond the limit.
    pub fn settle(self, units: u32, now: Timestamp) {
        for (handle, verdict) in self.limits.handles.iter().zip(self.decision.verdicts()) {
            let charged = Reservation::charged(&check(*handle, self.key, self.units, None), self.at)
                .with_debt_limit(DebtLimit::Unlimited);
            let mut charged = verdict.quota().map_or(charged, |quota| charged.in_units_of(quota));
            self.limits.limiter.settle(&mut charged, units, now);
        }
    }
}

impl RetryAfter {
    /// Returns the error of a rejected request: the longest wait of the limits that reject it.
    #[cold]
    pub(super) fn of(decision: &Decision) -> Self {
        let rejecting = || decision.verdicts().iter().filter(|verdict| verdict.rejects());
        let is_never = |verdict: &Verdict| verdict.outcome == Outcome::Exceed { retry_after: None };
        Self {
            wait: rejecting().map(Verdict::retry_after).max().unwrap_or_default(),
            exceeds_quota: rejecting().any(is_never),
        }
    }

    /// Returns the time until the same request is admitted, if no other is charged meanwhile. No shorter one suffices,
    /// apart from two nanoseconds of [`crate::algorithm::Algorithm::TokenBucket`]. For a concurrency limit it is a guess
    /// of one second. With several quotas it is the longest of their waits.
    ///
    /// If the request can never be admitted, it is the time in which the whole quota refills.
    pub const fn wait(self) -> Duration {
        self.wait
    }

    /// Returns whether the request can never be admitted, because it has more units than the quota admits at once.
    pub const fn exceeds_quota(self) -> bool {
        self.exceeds_quota
    }

    /// Returns the wait in seconds, rounded up, for the `Retry-After` header field of RFC 9110.
    pub const fn as_secs_rounded_up(self) -> u64 {
        self.wait.as_secs().saturating_add((self.wait.subsec_nanos() > 0) as u64)
    }
}

impl std::fmt::Display for RetryAfter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.exceeds_quota {
            true => f.write_str("request has more units than its quota"),
            false => write!(f, "rate limit exceeded, retry after {:?}", self.wait),
        }
    }
}

impl std::error::Error for RetryAfter {}
