//! Converts counters when their limit changes.

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Deserialize;

use super::lease::LeaseState;
use super::{
    Algorithm, CounterState, History, charge, gcra, is_in_debt, is_unused, token_bucket, usage,
    with_lapsing_excess,
};
use crate::quota::Quota;
use crate::timestamp::Timestamp;

/// What a reload does to a limit's counters when the limit changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnChange {
    /// Units in use stay in use.
    #[default]
    Keep,
    /// Units in use are scaled with the limit.
    Proportional,
    /// Counters start again, unused.
    Reset,
}

/// A change of a limit.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Quota under which counters were written.
    pub from: &'a Quota,
    /// Quota under which they will be read.
    pub to: &'a Quota,
    /// What to do with the counters.
    pub on_change: OnChange,
}

impl Change<'_> {
    /// Converts a counter to the new quota; `None` if nothing of it is in use.
    ///
    /// Rounds up, so that a reload never frees capacity by rounding: to whole units, unless fractions of them can be kept
    /// because both quotas refill continuously by one algorithm.
    pub fn convert(&self, state: CounterState, now: Timestamp) -> Option<CounterState> {
        let Self { from, to, .. } = *self;
        // Requests in flight stay in flight, and a running ban has no units to convert.
        let are = |algorithm| from.algorithm() == algorithm && to.algorithm() == algorithm;
        if from == to || are(Algorithm::Ban) || are(Algorithm::InFlight) {
            return Some(state);
        }
        // Units that the store granted stay valid whatever the limit is now. A time before which the store had nothing
        // to grant does not: it was computed for the old limit.
        if from.is_leased() || to.is_leased() {
            let holds = matches!(LeaseState::from_counter(Some(state)), LeaseState::Units(..));
            return (from.is_leased() && to.is_leased() && holds).then_some(state);
        }
        if self.on_change == OnChange::Keep
            && let Some(exact) = rescale(state, from, to, now)
        {
            return (!is_unused(exact, to, now)).then_some(exact);
        }
        // A client that was within its limit is not in debt, however much the limit is lowered.
        let owes = is_in_debt(state, from, now);
        let fitted = |state| if owes { state } else { with_lapsing_excess(state, to, now) };
        let scaled = match self.on_change {
            // The rounds of an aggregate in debt depend on the count.
            OnChange::Keep if from.has_compatible_counters(to) && !(owes && to.needs_history()) => {
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

    /// Whether a history continues under the new quota; if so, it has been adapted to it.
    pub(crate) fn carry_history(&self, history: &mut History) -> bool {
        let Self { from, to, on_change } = *self;
        if from == to {
            return true;
        }
        if on_change == OnChange::Proportional && from.has_compatible_counters(to) {
            history.scale(from.capacity(), to.capacity());
        }
        let carries = from.has_compatible_counters(to) && on_change != OnChange::Reset;
        if carries {
            history.adopt_quota(from, to);
        }
        carries
    }
}

/// Converts the units in use to another quota. `None` if nothing was in use.
pub fn convert(state: CounterState, from: &Quota, to: &Quota, now: Timestamp) -> Option<CounterState> {
    Change { from, to, on_change: OnChange::Keep }.convert(state, now)
}

/// Converts a counter with the fraction of a unit that it has earned; `None` if that is not possible.
fn rescale(state: CounterState, from: &Quota, to: &Quota, now: Timestamp) -> Option<CounterState> {
    if from.units_per_request() != to.units_per_request() || from.algorithm() != to.algorithm() {
        return None;
    }
    match to.algorithm() {
        Algorithm::Gcra | Algorithm::LeakyBucket => gcra::rescale(state, from, to, now),
        Algorithm::TokenBucket => token_bucket::rescale(state, from, to, now),
        Algorithm::RefillBucket
        | Algorithm::FixedWindow
        | Algorithm::SlidingWindow
        | Algorithm::SlidingLog
        | Algorithm::InFlight
        | Algorithm::Ban
        | Algorithm::Lease(_) => None,
    }
}

/// Converts units of one quota to units of another. Both are shares of a request, which differ in size if the elastic
/// limits grow by different factors.
fn in_units_of(to: &Quota, used: u32, from: &Quota) -> i64 {
    let (used, shares) = (u64::from(used), u64::from(to.units_per_request().get()));
    i64::try_from((used * shares).div_ceil(from.units_per_request().get().into())).unwrap_or(i64::MAX)
}

/// Scales units in use from one quota's burst to the other's, rounded up.
fn proportional(to: &Quota, used: u32, from: &Quota) -> i64 {
    let part = u64::from(used) * u64::from(to.capacity());
    i64::try_from(part.div_ceil(from.capacity().max(1).into())).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::quota::{Limit, Period, TimeUnit};

    const NOW: Timestamp = Timestamp::from_secs(1_795_248_000);

    fn per_hour(algorithm: Algorithm, count: u32) -> Quota {
        let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(TimeUnit::Hour));
        Quota::new(algorithm, limit, None).unwrap()
    }

    /// Units in use under the second quota, after `used` were in use under the first.
    fn used_after(on_change: OnChange, [from, to]: [Quota; 2], used: u32) -> u32 {
        let state = charge(None, &from, used.into(), NOW);
        let change = Change { from: &from, to: &to, on_change };
        usage(change.convert(state, NOW), &to, NOW).used
    }

    #[test]
    fn on_change_converts_usage_between_all_algorithms() {
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
    fn proportional_conversion_rounds_used_units_up() {
        let lowered = |used| {
            let quotas = [per_hour(Algorithm::FixedWindow, 100), per_hour(Algorithm::FixedWindow, 3)];
            used_after(OnChange::Proportional, quotas, used)
        };
        assert_eq!([0, 1, 33, 34, 100].map(lowered), [0, 1, 1, 2, 3]);
    }

    #[test]
    fn unchanged_limit_keeps_its_usage() {
        let quota = per_hour(Algorithm::Gcra, 10);
        assert_eq!(used_after(OnChange::Reset, [quota, quota], 7), 7);
        assert_eq!(used_after(OnChange::Proportional, [quota, quota], 7), 7);
    }

    #[test]
    fn in_flight_count_survives_a_limit_change() {
        let limit = |most| Quota::in_flight(NonZeroU32::new(most).unwrap());
        for on_change in [OnChange::Keep, OnChange::Proportional, OnChange::Reset] {
            assert_eq!(used_after(on_change, [limit(10), limit(100)], 4), 4);
        }
    }

    #[test]
    fn history_keeps_its_timestamps_when_only_the_count_changes() {
        let (from, to) = (per_hour(Algorithm::SlidingLog, 10), per_hour(Algorithm::SlidingLog, 20));
        let mut history = History::default();
        for minutes in [0, 10, 20] {
            let now = Timestamp::from_secs(NOW.as_secs() + 60 * minutes);
            let used = history.compact_state(&from, now).extra;
            history.apply_state(CounterState { word: 0, extra: used + 2 }, &from, now, true);
        }
        let later = Timestamp::from_secs(NOW.as_secs() + 60 * 65);
        let mut carried = history.clone();
        assert!(Change { from: &from, to: &to, on_change: OnChange::Keep }.carry_history(&mut carried));
        assert_eq!(carried.compact_state(&to, later).extra, 4);
        assert!(
            Change { from: &from, to: &to, on_change: OnChange::Proportional }.carry_history(&mut history)
        );
        assert_eq!(history.compact_state(&to, later).extra, 8);
        assert!(!Change { from: &from, to: &to, on_change: OnChange::Reset }.carry_history(&mut history));
    }
}
