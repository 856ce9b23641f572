//! Lease: units of a shared limit that the store granted to this instance until a deadline.
//!
//! The store counts the limit; a counter here only spends what was granted, so a decision needs no round trip. The
//! state is the deadline of the lease and its remaining units. If nothing is left and the store has named a time before
//! which it has nothing more, the state is that time, marked [`REJECTING`], and the number of units rejected meanwhile.
//! The next query reports these to the store as demand.
//!
//! A counter that is out of units without such a time rejects with a wait of zero; see [`needs_lease`].

use std::time::Duration;

use super::{CounterState, CounterUsage, Outcome, Refill, fixed_window};
use crate::quota::Quota;
use crate::timestamp::Timestamp;

/// Set if the state is a time before which the store has nothing to grant.
const REJECTING: u32 = 1 << 31;
/// Maximum number of units of a lease.
pub(crate) const MAX_UNITS: u32 = REJECTING - 1;
/// Rejection by a counter that has to query the store.
const NEEDS_LEASE: Outcome = Outcome::Exceed { retry_after: Some(Duration::ZERO) };

/// State of a counter of a shared limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseState {
    /// Units that may be spent until a deadline.
    Units(u32, Timestamp),
    /// No units until a time that the store named.
    Exhausted {
        /// Time from which a query is useful.
        until: Timestamp,
        /// Units rejected meanwhile.
        rejected: u32,
    },
}

impl LeaseState {
    /// Decodes `state`.
    pub(crate) fn from_counter(state: Option<CounterState>) -> Self {
        let Some(CounterState { word, extra }) = state else { return Self::Units(0, Timestamp::EPOCH) };
        let until = Timestamp::from_nanos(word);
        match extra & REJECTING {
            0 => Self::Units(extra, until),
            _ => Self::Exhausted { until, rejected: extra & MAX_UNITS },
        }
    }

    /// Units that may be spent at `now`.
    pub(crate) fn units(self, now: Timestamp) -> u32 {
        match self {
            Self::Units(units, until) if now < until => units,
            Self::Units(..) | Self::Exhausted { .. } => 0,
        }
    }
}

impl From<LeaseState> for CounterState {
    fn from(held: LeaseState) -> Self {
        match held {
            LeaseState::Units(units, until) => Self { word: until.as_nanos(), extra: units.min(MAX_UNITS) },
            LeaseState::Exhausted { until, rejected } => {
                Self { word: until.as_nanos(), extra: REJECTING | rejected.min(MAX_UNITS) }
            }
        }
    }
}

/// Whether a rejection means that the store has to be queried.
pub(crate) fn needs_lease(outcome: Outcome) -> bool {
    outcome == NEEDS_LEASE
}

/// Spends `cost` units of the lease. A rejection is counted in the returned state, as demand.
pub(crate) fn evaluate(state: Option<CounterState>, cost: u32, now: Timestamp) -> (CounterState, Outcome) {
    match LeaseState::from_counter(state) {
        LeaseState::Units(units, until) if now < until && cost <= units => {
            (LeaseState::Units(units - cost, until).into(), Outcome::Conform)
        }
        LeaseState::Exhausted { until, rejected } if now < until => {
            let rejected = rejected.saturating_add(cost);
            let wait = until.since(now);
            (LeaseState::Exhausted { until, rejected }.into(), Outcome::Exceed { retry_after: Some(wait) })
        }
        held if cost == 0 => (held.into(), Outcome::Conform),
        held => (held.into(), NEEDS_LEASE),
    }
}

/// Spends the units that a settled cost adds, or puts back those that it did not need. Units beyond the lease are
/// a debt, which the lease account has.
pub(super) fn charge(state: Option<CounterState>, amount: i64, now: Timestamp) -> CounterState {
    match LeaseState::from_counter(state) {
        LeaseState::Units(units, until) if now < until => {
            let left = i64::from(units).saturating_sub(amount).clamp(0, MAX_UNITS.into());
            LeaseState::Units(u32::try_from(left).unwrap_or(MAX_UNITS), until).into()
        }
        held => held.into(),
    }
}

/// Usage as seen by this instance alone: what it may still admit.
pub(super) fn usage(state: Option<CounterState>, quota: &Quota, now: Timestamp) -> CounterUsage {
    let held = LeaseState::from_counter(state);
    let remaining = held.units(now).min(quota.capacity());
    let reset = match held {
        LeaseState::Exhausted { until, .. } => until.since(now),
        LeaseState::Units(..) => Duration::ZERO,
    };
    CounterUsage { used: quota.capacity() - remaining, remaining, reset }
}

/// Usage of all instances, as far as is known here: units left are those of this lease and `outside_slot`.
pub(crate) fn fleet_usage(
    state: Option<CounterState>,
    quota: &Quota,
    outside_slot: u32,
    now: Timestamp,
) -> CounterUsage {
    let remaining =
        LeaseState::from_counter(state).units(now).saturating_add(outside_slot).min(quota.capacity());
    let used = quota.capacity() - remaining;
    CounterUsage { used, remaining, reset: time_until_full(&quota.store_quota(), used, now) }
}

/// Time until more units are left, as far as is known here. Units leased to other instances may return sooner.
pub(crate) fn time_until_more(
    state: Option<CounterState>,
    quota: &Quota,
    used: u32,
    lacking: u32,
    now: Timestamp,
) -> Option<Duration> {
    match (LeaseState::from_counter(state), quota.store_quota().algorithm().refill()) {
        (LeaseState::Exhausted { until, .. }, _) if until > now => Some(until.since(now)),
        (_, Refill::Continuous) => Some(drained(quota, lacking)),
        (_, Refill::Window) => Some(time_until_full(&quota.store_quota(), used, now)),
        // Only the store has the times at which the next units return.
        (_, Refill::Batches | Refill::Sliding | Refill::None) => None,
    }
}

/// Time until nothing of `quota` is used, of which `used` units are now; an upper bound where only the store has the
/// exact time.
fn time_until_full(quota: &Quota, used: u32, now: Timestamp) -> Duration {
    if used == 0 {
        return Duration::ZERO;
    }
    let period = quota.window().duration();
    match quota.algorithm().refill() {
        Refill::Continuous => drained(quota, used),
        Refill::Batches => {
            let refills = u64::from(used).div_ceil(quota.count());
            period.saturating_mul(u32::try_from(refills).unwrap_or(u32::MAX))
        }
        Refill::Window => Timestamp::from_nanos(fixed_window::window_end(quota, now)).since(now),
        Refill::Sliding => period,
        Refill::None => Duration::ZERO,
    }
}

/// Time in which `units` drain.
fn drained(quota: &Quota, units: u32) -> Duration {
    let nanos = (u128::from(units) * u128::from(quota.period_nanos())).div_ceil(u128::from(quota.count()));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Whether the lease has expired or is used up, or the time of a rejection has passed.
pub(crate) fn is_unused(state: CounterState, now: Timestamp) -> bool {
    state.word <= now.as_nanos() || state.extra == 0
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::algorithm::Algorithm;
    use crate::quota::{Limit, Period, TimeUnit};

    const fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn leased_units_are_spent_until_the_lease_expires() {
        let lease = CounterState::from(LeaseState::Units(3, at(100)));
        let (left, outcome) = evaluate(Some(lease), 2, at(99));
        assert_eq!(
            (LeaseState::from_counter(Some(left)), outcome),
            (LeaseState::Units(1, at(100)), Outcome::Conform)
        );
        assert!(needs_lease(evaluate(Some(left), 2, at(99)).1), "one unit does not cover a cost of two");
        assert!(needs_lease(evaluate(Some(lease), 1, at(100)).1), "a lease expires");
        assert!(needs_lease(evaluate(None, 1, at(0)).1), "no lease yet");
    }

    #[test]
    fn store_rejection_is_cached_and_counts_demand() {
        let nothing = CounterState::from(LeaseState::Exhausted { until: at(50), rejected: 0 });
        let (next, outcome) = evaluate(Some(nothing), 4, at(20));
        assert_eq!(outcome, Outcome::Exceed { retry_after: Some(Duration::from_millis(30)) });
        assert_eq!(
            LeaseState::from_counter(Some(next)),
            LeaseState::Exhausted { until: at(50), rejected: 4 }
        );
        assert!(needs_lease(evaluate(Some(next), 1, at(50)).1), "a new request to the store is due");
        assert!(is_unused(next, at(50)) && !is_unused(next, at(49)));
    }

    #[test]
    fn leased_usage_reports_fleet_wide_remaining() {
        let limit = Limit::new(NonZeroU32::new(10).unwrap(), Period::one(TimeUnit::Second));
        let quota = |algorithm| Quota::new(algorithm, limit, None).unwrap().leased().unwrap();
        let claim = Some(CounterState::from(LeaseState::Units(3, at(1_100))));
        let usage = |algorithm, outside_slot| {
            let CounterUsage { used, remaining, reset } =
                fleet_usage(claim, &quota(algorithm), outside_slot, at(1_000));
            (used, remaining, reset.as_millis())
        };
        assert_eq!(usage(Algorithm::Gcra, 5), (2, 8, 200));
        assert_eq!(usage(Algorithm::Gcra, 100), (0, 10, 0), "never more than the limit");
        assert_eq!(usage(Algorithm::FixedWindow, 5), (2, 8, 1_000), "reset at the end of the window");
        assert_eq!(usage(Algorithm::SlidingLog, 5), (2, 8, 1_000), "reset after one window at the latest");
        let more = |state: LeaseState, algorithm| {
            let more = time_until_more(Some(state.into()), &quota(algorithm), 2, 1, at(1_000));
            more.map(|more| more.as_millis())
        };
        assert_eq!(more(LeaseState::Units(3, at(1_100)), Algorithm::Gcra), Some(100));
        assert_eq!(more(LeaseState::Units(3, at(1_100)), Algorithm::SlidingLog), None);
        let nothing = LeaseState::Exhausted { until: at(1_250), rejected: 0 };
        assert_eq!(more(nothing, Algorithm::SlidingLog), Some(250), "the store has stated the time");
    }

    #[test]
    fn refund_to_an_expired_lease_is_dropped() {
        let lease = Some(CounterState::from(LeaseState::Units(3, at(100))));
        assert_eq!(LeaseState::from_counter(Some(charge(lease, -2, at(99)))), LeaseState::Units(5, at(100)));
        assert_eq!(LeaseState::from_counter(Some(charge(lease, -2, at(100)))).units(at(100)), 0);
        assert_eq!(LeaseState::from_counter(Some(charge(lease, 9, at(99)))), LeaseState::Units(0, at(100)));
    }
}
