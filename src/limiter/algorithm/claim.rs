//! Units of a shared limit that the store has granted to this instance, valid until a moment.
//!
//! The limit itself is counted in the store. Here a counter only spends what was granted, so a decision needs no round
//! trip. The state is the moment at which the claim lapses and the units that are left of it. Where nothing is left and
//! the store has said from when on it is worth asking again, the state is that moment, marked [`REJECTING`], and how many
//! units were rejected meanwhile: the store is told the demand with the next question.
//!
//! A counter that is *short* (no units, and nothing said against asking) rejects with a wait of zero; see [`is_short`].

use std::time::Duration;

use super::{Algorithm, Outcome, State, Usage, fixed_window};
use crate::limiter::quota::Quota;
use crate::limiter::timestamp::Timestamp;

/// Set where the state is a moment before which the store has nothing to grant.
const REJECTING: u32 = 1 << 31;
/// The most units that a claim holds.
pub(in crate::limiter) const MAX_UNITS: u32 = REJECTING - 1;
/// The rejection of a counter that has to ask the store.
const SHORT: Outcome = Outcome::Exceed { retry_after: Some(Duration::ZERO) };

/// What a counter has of a shared limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::limiter) enum Held {
    /// Units that may be spent until a moment.
    Units(u32, Timestamp),
    /// Nothing until a moment; so many units have been rejected since the store said so.
    Nothing {
        /// From when on it is worth asking.
        until: Timestamp,
        /// Units rejected meanwhile.
        rejected: u32,
    },
}

impl Held {
    /// What `state` says.
    pub(in crate::limiter) fn of(state: Option<State>) -> Self {
        let Some(State { word, extra }) = state else { return Self::Units(0, Timestamp::EPOCH) };
        let until = Timestamp::from_nanos(word);
        match extra & REJECTING {
            0 => Self::Units(extra, until),
            _ => Self::Nothing { until, rejected: extra & MAX_UNITS },
        }
    }

    /// Units that may be spent at `now`.
    pub(in crate::limiter) fn units(self, now: Timestamp) -> u32 {
        match self {
            Self::Units(units, until) if now < until => units,
            Self::Units(..) | Self::Nothing { .. } => 0,
        }
    }
}

impl From<Held> for State {
    fn from(held: Held) -> Self {
        match held {
            Held::Units(units, until) => Self { word: until.as_nanos(), extra: units.min(MAX_UNITS) },
            Held::Nothing { until, rejected } => {
                Self { word: until.as_nanos(), extra: REJECTING | rejected.min(MAX_UNITS) }
            }
        }
    }
}

/// Whether a rejection means that the store has to be asked.
pub(in crate::limiter) fn is_short(outcome: Outcome) -> bool {
    outcome == SHORT
}

/// Spends `cost` units of the claim. A rejection is counted in the state returned, for the demand.
pub(in crate::limiter) fn evaluate(state: Option<State>, cost: u32, now: Timestamp) -> (State, Outcome) {
    match Held::of(state) {
        Held::Units(units, until) if now < until && cost <= units => {
            (Held::Units(units - cost, until).into(), Outcome::Conform)
        }
        Held::Nothing { until, rejected } if now < until => {
            let rejected = rejected.saturating_add(cost);
            let wait = until.since(now);
            (Held::Nothing { until, rejected }.into(), Outcome::Exceed { retry_after: Some(wait) })
        }
        held if cost == 0 => (held.into(), Outcome::Conform),
        held => (held.into(), SHORT),
    }
}

/// Spends units that a settled cost adds, or puts back what it did not need; what is owed beyond the claim is kept by
/// [`crate::limiter::claims`].
pub(super) fn charge(state: Option<State>, amount: i64, now: Timestamp) -> State {
    match Held::of(state) {
        Held::Units(units, until) if now < until => {
            let left = i64::from(units).saturating_sub(amount).clamp(0, MAX_UNITS.into());
            Held::Units(u32::try_from(left).unwrap_or(MAX_UNITS), until).into()
        }
        held => held.into(),
    }
}

/// What this instance may still admit by itself.
pub(super) fn usage(state: Option<State>, quota: &Quota, now: Timestamp) -> Usage {
    let held = Held::of(state);
    let remaining = held.units(now).min(quota.capacity());
    let reset = match held {
        Held::Nothing { until, .. } => until.since(now),
        Held::Units(..) => Duration::ZERO,
    };
    Usage { used: quota.capacity() - remaining, remaining, reset }
}

/// What all instances may still admit, as far as is known here: the units of this claim and those `beside` it.
pub(in crate::limiter) fn usage_of_all(
    state: Option<State>,
    quota: &Quota,
    beside: u32,
    now: Timestamp,
) -> Usage {
    let remaining = Held::of(state).units(now).saturating_add(beside).min(quota.capacity());
    let used = quota.capacity() - remaining;
    Usage { used, remaining, reset: until_whole(&quota.counted(), used, now) }
}

/// How long until units are left that are not now, as far as is known here: what has been granted to other instances may
/// come back sooner.
pub(in crate::limiter) fn until_more(
    state: Option<State>,
    quota: &Quota,
    (used, lacking): (u32, u32),
    now: Timestamp,
) -> Option<Duration> {
    match (Held::of(state), quota.counted().algorithm()) {
        (Held::Nothing { until, .. }, _) if until > now => Some(until.since(now)),
        (_, Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket) => {
            Some(drained(quota, lacking))
        }
        (_, Algorithm::FixedWindow) => Some(until_whole(&quota.counted(), used, now)),
        // Only the store knows when the next of them come back.
        (_, Algorithm::RefillBucket | Algorithm::SlidingWindow | Algorithm::SlidingLog) => None,
        (_, Algorithm::InFlight | Algorithm::Ban | Algorithm::Claim(_)) => None,
    }
}

/// How long until nothing is used of `quota`, of which `used` units are; at the most, where only the store knows.
fn until_whole(quota: &Quota, used: u32, now: Timestamp) -> Duration {
    if used == 0 {
        return Duration::ZERO;
    }
    let period = quota.window().duration();
    match quota.algorithm() {
        Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket => drained(quota, used),
        Algorithm::RefillBucket => {
            let refills = u64::from(used).div_ceil(quota.count());
            period.saturating_mul(u32::try_from(refills).unwrap_or(u32::MAX))
        }
        Algorithm::FixedWindow => Timestamp::from_nanos(fixed_window::window_end(quota, now)).since(now),
        Algorithm::SlidingWindow | Algorithm::SlidingLog => period,
        Algorithm::InFlight | Algorithm::Ban | Algorithm::Claim(_) => Duration::ZERO,
    }
}

/// How long it takes for so many units to drain.
fn drained(quota: &Quota, units: u32) -> Duration {
    let nanos = (u128::from(units) * u128::from(quota.period())).div_ceil(u128::from(quota.count()));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Whether a claim has lapsed or was spent, or a rejection is over.
pub(in crate::limiter) fn says_nothing(state: State, now: Timestamp) -> bool {
    state.word <= now.as_nanos() || state.extra == 0
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::limiter::quota::{Limit, Period, Unit};

    const fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn units_are_spent_until_the_claim_lapses() {
        let claim = State::from(Held::Units(3, at(100)));
        let (left, outcome) = evaluate(Some(claim), 2, at(99));
        assert_eq!((Held::of(Some(left)), outcome), (Held::Units(1, at(100)), Outcome::Conform));
        assert!(is_short(evaluate(Some(left), 2, at(99)).1), "one unit is not two");
        assert!(is_short(evaluate(Some(claim), 1, at(100)).1), "a claim has an end");
        assert!(is_short(evaluate(None, 1, at(0)).1), "nothing was granted yet");
    }

    #[test]
    fn a_rejection_by_the_store_is_remembered_and_counts_the_demand() {
        let nothing = State::from(Held::Nothing { until: at(50), rejected: 0 });
        let (next, outcome) = evaluate(Some(nothing), 4, at(20));
        assert_eq!(outcome, Outcome::Exceed { retry_after: Some(Duration::from_millis(30)) });
        assert_eq!(Held::of(Some(next)), Held::Nothing { until: at(50), rejected: 4 });
        assert!(is_short(evaluate(Some(next), 1, at(50)).1), "it is worth asking again");
        assert!(says_nothing(next, at(50)) && !says_nothing(next, at(49)));
    }

    #[test]
    fn clients_see_what_is_left_for_all() {
        let limit = Limit::new(NonZeroU32::new(10).unwrap(), Period::one(Unit::Second));
        let quota = |algorithm| Quota::new(algorithm, limit, None).unwrap().claimed().unwrap();
        let claim = Some(State::from(Held::Units(3, at(1_100))));
        let usage = |algorithm, beside| {
            let Usage { used, remaining, reset } = usage_of_all(claim, &quota(algorithm), beside, at(1_000));
            (used, remaining, reset.as_millis())
        };
        assert_eq!(usage(Algorithm::Gcra, 5), (2, 8, 200));
        assert_eq!(usage(Algorithm::Gcra, 100), (0, 10, 0), "never more than the limit");
        assert_eq!(usage(Algorithm::FixedWindow, 5), (2, 8, 1_000), "when the window ends");
        assert_eq!(usage(Algorithm::SlidingLog, 5), (2, 8, 1_000), "at the latest");
        let more = |state: Held, algorithm| {
            let more = until_more(Some(state.into()), &quota(algorithm), (2, 1), at(1_000));
            more.map(|more| more.as_millis())
        };
        assert_eq!(more(Held::Units(3, at(1_100)), Algorithm::Gcra), Some(100));
        assert_eq!(more(Held::Units(3, at(1_100)), Algorithm::SlidingLog), None);
        let nothing = Held::Nothing { until: at(1_250), rejected: 0 };
        assert_eq!(more(nothing, Algorithm::SlidingLog), Some(250), "the store has said so");
    }

    #[test]
    fn what_comes_back_to_a_lapsed_claim_lapses_with_it() {
        let claim = Some(State::from(Held::Units(3, at(100))));
        assert_eq!(Held::of(Some(charge(claim, -2, at(99)))), Held::Units(5, at(100)));
        assert_eq!(Held::of(Some(charge(claim, -2, at(100)))).units(at(100)), 0);
        assert_eq!(Held::of(Some(charge(claim, 9, at(99)))), Held::Units(0, at(100)));
    }
}
