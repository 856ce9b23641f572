//! Decisions without an effect: what would be decided now, and how long several requests have to wait at least.

use std::time::Duration;

use smallvec::SmallVec;

use super::algorithm::{Algorithm, CounterKind, Outcome};
use super::decision::{Decision, Verdict, Verdicts};
use super::evaluation::{self, CounterView};
use super::quota::Quota;
use super::timestamp::Timestamp;
use super::transaction::{CheckList, alternatives};
use super::{Check, Limiter};

impl Limiter {
    /// Returns the verdicts that `checks` would have now, each on its own, except that another group of a set may decide.
    /// Nothing is charged.
    pub fn peek(&self, checks: impl IntoIterator<Item = Check>, now: Timestamp) -> Decision {
        let checks: SmallVec<[Check; 4]> = checks.into_iter().collect();
        let mut verdicts: SmallVec<[Verdict; 2]> =
            checks.iter().map(|check| self.peek_one(check, now)).collect();
        alternatives::apply_to_independent(&checks.iter().collect::<CheckList<'_>>(), &mut verdicts);
        Decision { verdicts: Verdicts::Several(verdicts), overflowed: false }
    }

    fn peek_one(&self, check: &Check, now: Timestamp) -> Verdict {
        let key = check.key.salted(check.handle.salt);
        let mut shard = self.table.lock(self.table.shard_of(key));
        shard.end_overrides(now);
        let slot = shard.find(key);
        let before = CounterView::new(&shard, check, key, slot, now);
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
            // It is in the store.
            Outcome::Exceed { .. } if self.needs_lease() => Duration::ZERO,
            Outcome::Exceed { .. } => self.retry_after(),
        };
        let others = u64::try_from(ahead).unwrap_or(u64::MAX).saturating_mul(cost.into());
        let all = others.saturating_add(cost.into());
        match (own, quota.algorithm()) {
            (Duration::ZERO, algorithm) => {
                let left = usage.remaining.into();
                // A verdict that conforms has charged this request.
                let missing =
                    if self.exceeds() { all.saturating_sub(left) } else { others.saturating_sub(left) };
                match algorithm.refills_continuously() {
                    // One unit less, for what is refilled in part.
                    true => refill_time(quota, missing.saturating_sub(1)),
                    false => full_periods(quota, missing),
                }
            }
            (own, algorithm) if algorithm.refills_continuously() => {
                own.saturating_add(refill_time(quota, others))
            }
            // The own wait ends with the window.
            (own, Algorithm::FixedWindow) => own.saturating_add(full_periods(quota, all)),
            (own, _) => own.max(full_periods(quota, all)),
        }
    }
}

/// Returns a lower bound of the time in which `units` are refilled one by one.
fn refill_time(quota: &Quota, units: u64) -> Duration {
    let (count, period) = count_and_period(quota);
    let nanos = u128::from(units) * u128::from(period) / u128::from(count);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Returns a lower bound of the time in which `units` come back, at most all units of the limit in any period.
fn full_periods(quota: &Quota, units: u64) -> Duration {
    if quota.algorithm().counter_kind() != CounterKind::Rate {
        return Duration::ZERO;
    }
    let (count, period) = count_and_period(quota);
    Duration::from_nanos(units.div_ceil(count).saturating_sub(1).saturating_mul(period))
}

/// Returns the units that a limit has for each period, which lasts this many nanoseconds.
fn count_and_period(quota: &Quota) -> (u64, u64) {
    let quota = if quota.is_leased() { quota.store_quota() } else { *quota };
    let count = u64::from(quota.limit().count.get());
    let units = count.saturating_mul(u64::from(quota.units_per_request().get()));
    (units.max(1), quota.limit().period.nanos())
}

#[cfg(test)]
mod tests;
