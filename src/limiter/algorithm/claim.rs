//! Units of a shared limit that the store has granted to this instance, valid until a moment.
//!
//! The limit itself is counted in the store. Here a counter only spends what was granted, so a decision needs no round
//! trip. The state is the moment at which the claim lapses and the units that are left of it. Where nothing is left and
//! the store has said from when on it is worth asking again, the state is that moment, marked [`REJECTING`], and how many
//! units were rejected meanwhile: the store is told the demand with the next question.
//!
//! A counter that is *short* (no units, and nothing said against asking) rejects with a wait of zero; see [`is_short`].

use std::time::Duration;

use super::{Outcome, State, Usage};
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
pub(super) fn evaluate(state: Option<State>, cost: u32, now: Timestamp) -> (State, Outcome) {
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

/// Whether a claim has lapsed or was spent, or a rejection is over.
pub(in crate::limiter) fn says_nothing(state: State, now: Timestamp) -> bool {
    state.word <= now.as_nanos() || state.extra == 0
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_comes_back_to_a_lapsed_claim_lapses_with_it() {
        let claim = Some(State::from(Held::Units(3, at(100))));
        assert_eq!(Held::of(Some(charge(claim, -2, at(99)))), Held::Units(5, at(100)));
        assert_eq!(Held::of(Some(charge(claim, -2, at(100)))).units(at(100)), 0);
        assert_eq!(Held::of(Some(charge(claim, 9, at(99)))), Held::Units(0, at(100)));
    }
}
