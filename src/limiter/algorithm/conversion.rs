//! What becomes of a counter when the limit it counts for changes.

use schemars::JsonSchema;
use serde::Deserialize;

use super::claim::Held;
use super::{Algorithm, History, State, charge, is_in_debt, lapsing, usage};
use crate::limiter::quota::Quota;
use crate::limiter::timestamp::Timestamp;

/// What a reload does to the counters when it changes a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnChange {
    /// Units used stay used.
    #[default]
    Keep,
    /// They grow and shrink with the limit.
    Proportional,
    /// Everybody starts anew.
    Reset,
}

/// A limit that is about to change.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// What counters were written under.
    pub from: &'a Quota,
    /// What they will be read under.
    pub to: &'a Quota,
    /// What to do about it.
    pub on_change: OnChange,
}

impl Change<'_> {
    /// The counter under the new quota; `None` if nothing is in use of it.
    ///
    /// Rounds up to whole units, so that a reload gives nothing away that it was not asked to.
    pub fn convert(&self, state: State, now: Timestamp) -> Option<State> {
        let Self { from, to, .. } = *self;
        // What is under way is under way, and a ban that runs is in nobody's units.
        let are = |algorithm| from.algorithm() == algorithm && to.algorithm() == algorithm;
        if from == to || are(Algorithm::Ban) || are(Algorithm::InFlight) {
            return Some(state);
        }
        // Units that the store has granted are units of what it counts, whatever the limit is now; that it has none to grant
        // was said of the limit before.
        if from.is_claimed() || to.is_claimed() {
            let holds = matches!(Held::of(Some(state)), Held::Units(..));
            return (from.is_claimed() && to.is_claimed() && holds).then_some(state);
        }
        // A client that was within its limit owes nothing, however much the limit is lowered.
        let owes = is_in_debt(state, from, now);
        let fitted = |state| if owes { state } else { lapsing(state, to, now) };
        let scaled = match self.on_change {
            // Of a lump in debt the rounds are those of its count.
            OnChange::Keep if from.counts_like(to) && !(owes && to.looks_back()) => {
                return Some(fitted(charge(Some(state), from, 0, now)));
            }
            OnChange::Keep => |used, change: &Self| in_units_of(change.to, used, change.from),
            OnChange::Proportional => |used, change: &Self| proportional(change.to, used, change.from),
            OnChange::Reset => return None,
        };
        match usage(Some(state), from, now).used {
            0 => None,
            used => Some(fitted(charge(None, to, scaled(used, self), now))),
        }
    }

    /// Whether a history goes on under the new quota; where it does, it has been fitted to it.
    pub(in crate::limiter) fn carries(&self, history: &mut History) -> bool {
        let Self { from, to, on_change } = *self;
        if from == to {
            return true;
        }
        if on_change == OnChange::Proportional && from.counts_like(to) {
            history.scale(from.capacity(), to.capacity());
        }
        let carries = from.counts_like(to) && on_change != OnChange::Reset;
        if carries {
            history.pass_to(from, to);
        }
        carries
    }
}

/// The same requests in use under another quota. `None` if nothing was in use.
pub fn convert(state: State, from: &Quota, to: &Quota, now: Timestamp) -> Option<State> {
    Change { from, to, on_change: OnChange::Keep }.convert(state, now)
}

/// Units of one quota in those of another: both are shares of a request, of different size where limits
/// stretch differently.
fn in_units_of(to: &Quota, used: u32, from: &Quota) -> i64 {
    let (used, shares) = (u64::from(used), u64::from(to.shares().get()));
    i64::try_from((used * shares).div_ceil(from.shares().get().into())).unwrap_or(i64::MAX)
}

/// As large a part of one quota as of the other.
fn proportional(to: &Quota, used: u32, from: &Quota) -> i64 {
    let part = u64::from(used) * u64::from(to.capacity());
    i64::try_from(part.div_ceil(from.capacity().max(1).into())).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::limiter::quota::{Limit, Period, Unit};

    const NOW: Timestamp = Timestamp::from_secs(1_795_248_000);

    fn per_hour(algorithm: Algorithm, count: u32) -> Quota {
        let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(Unit::Hour));
        Quota::new(algorithm, limit, None).unwrap()
    }

    /// Units in use of so many an hour, after they were `used` of `from`.
    fn used_after(on_change: OnChange, [from, to]: [Quota; 2], used: u32) -> u32 {
        let state = charge(None, &from, used.into(), NOW);
        let change = Change { from: &from, to: &to, on_change };
        usage(change.convert(state, NOW), &to, NOW).used
    }

    #[test]
    fn ten_of_ten_become_what_the_rule_says_of_a_hundred() {
        for from in Algorithm::RATES {
            for to in Algorithm::RATES {
                let quotas = [per_hour(from, 10), per_hour(to, 100)];
                assert_eq!(used_after(OnChange::Keep, quotas, 10), 10, "{from} to {to}");
                assert_eq!(used_after(OnChange::Proportional, quotas, 10), 100, "{from} to {to}");
                assert_eq!(used_after(OnChange::Reset, quotas, 10), 0, "{from} to {to}");
            }
        }
    }

    #[test]
    fn a_part_of_a_unit_is_rounded_against_the_client() {
        let lowered = |used| {
            let quotas = [per_hour(Algorithm::FixedWindow, 100), per_hour(Algorithm::FixedWindow, 3)];
            used_after(OnChange::Proportional, quotas, used)
        };
        assert_eq!([0, 1, 33, 34, 100].map(lowered), [0, 1, 1, 2, 3]);
    }

    #[test]
    fn a_limit_that_does_not_change_is_never_reset() {
        let quota = per_hour(Algorithm::Gcra, 10);
        assert_eq!(used_after(OnChange::Reset, [quota, quota], 7), 7);
        assert_eq!(used_after(OnChange::Proportional, [quota, quota], 7), 7);
    }

    #[test]
    fn what_is_under_way_stays_under_way() {
        let most = |most| Quota::in_flight(NonZeroU32::new(most).unwrap());
        for on_change in [OnChange::Keep, OnChange::Proportional, OnChange::Reset] {
            assert_eq!(used_after(on_change, [most(10), most(100)], 4), 4);
        }
    }

    #[test]
    fn a_history_keeps_its_times_where_only_the_count_changes() {
        let (from, to) = (per_hour(Algorithm::SlidingLog, 10), per_hour(Algorithm::SlidingLog, 20));
        let mut history = History::default();
        for minutes in [0, 10, 20] {
            let now = Timestamp::from_secs(NOW.as_secs() + 60 * minutes);
            let used = history.in_short(&from, now).extra;
            history.follow(State { word: 0, extra: used + 2 }, &from, now, true);
        }
        let later = Timestamp::from_secs(NOW.as_secs() + 60 * 65);
        let mut kept = history.clone();
        assert!(Change { from: &from, to: &to, on_change: OnChange::Keep }.carries(&mut kept));
        assert_eq!(kept.in_short(&to, later).extra, 4);
        assert!(Change { from: &from, to: &to, on_change: OnChange::Proportional }.carries(&mut history));
        assert_eq!(history.in_short(&to, later).extra, 8);
        assert!(!Change { from: &from, to: &to, on_change: OnChange::Reset }.carries(&mut history));
    }
}
