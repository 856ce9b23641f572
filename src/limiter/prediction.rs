//! Decisions without an effect: what would be decided now, and how long several requests have to wait at least.

use std::time::Duration;

use super::algorithm::{Algorithm, Outcome};
use super::decision::{Decision, Verdict, Verdicts};
use super::evaluation::{self, CounterView};
use super::quota::Quota;
use super::timestamp::Timestamp;
use super::{Check, Limiter};

impl Limiter {
    /// Returns the verdicts that `checks` would have now, each on its own. Nothing is charged.
    pub fn peek(&self, checks: impl IntoIterator<Item = Check>, now: Timestamp) -> Decision {
        let verdicts = checks.into_iter().map(|check| self.peek_one(&check, now)).collect();
        Decision { verdicts: Verdicts::Several(verdicts), overflowed: false }
    }

    fn peek_one(&self, check: &Check, now: Timestamp) -> Verdict {
        let key = check.key.salted(check.handle.salt);
        let mut shard = self.table.lock(self.table.shard_of(key));
        shard.end_overrides(now);
        let place = shard.find(key);
        let before = CounterView::new(&shard, check, key, place, now);
        evaluation::evaluate(&shard, check, key, before, now).0
    }
}

impl Verdict {
    /// Returns a lower bound of the time until the same request conforms, if `ahead` others of `cost` units are charged
    /// before it. `cost` is that of this request, too. Zero if nothing is known, as for concurrency limits.
    pub fn min_wait_behind(&self, ahead: usize, cost: u32, now: Timestamp) -> Duration {
        let Some((quota, usage)) = self.quota().zip(self.usage(now)) else { return Duration::ZERO };
        let own = match self.outcome {
            Outcome::Conform => Duration::ZERO,
            // The store knows.
            Outcome::Exceed { .. } if self.needs_lease() => Duration::ZERO,
            Outcome::Exceed { .. } => self.retry_after(),
        };
        let of_others = u64::try_from(ahead).unwrap_or(u64::MAX).saturating_mul(cost.into());
        match own {
            // One unit less, for what is refilled in part.
            Duration::ZERO => {
                let left = u64::from(usage.remaining).saturating_add(1);
                refill_time(quota, of_others.saturating_add(cost.into()).saturating_sub(left))
            }
            // The units of this request are refilled by then, and possibly others, but no more than the limit holds.
            own if quota.algorithm().refills_continuously() => {
                own.saturating_add(refill_time(quota, of_others))
            }
            own => {
                let others = quota.capacity().saturating_sub(cost);
                own.saturating_add(refill_time(quota, of_others.saturating_sub(others.into())))
            }
        }
    }
}

/// Returns a lower bound of the time in which `units` are refilled.
fn refill_time(quota: &Quota, units: u64) -> Duration {
    let quota = if quota.is_leased() { quota.store_quota() } else { *quota };
    let (count, period) = (u64::from(quota.limit().count.get()), quota.limit().period.nanos());
    let count = count.saturating_mul(u64::from(quota.units_per_request().get())).max(1);
    let nanos = match quota.algorithm() {
        Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            u128::from(units) * u128::from(period) / u128::from(count)
        }
        // Units come back together, at most all of them in a period.
        Algorithm::RefillBucket
        | Algorithm::FixedWindow
        | Algorithm::SlidingWindow
        | Algorithm::SlidingLog => u128::from(units / count) * u128::from(period),
        Algorithm::InFlight | Algorithm::Ban | Algorithm::Lease(_) => 0,
    };
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
