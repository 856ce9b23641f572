//! Fixed window: so many from one mark of the clock to the next, then all of them again.
//!
//! The right choice for quotas people read off a calendar ("1000 a day"); the wrong one for rates, since two
//! windows' worth can pass around a mark. Seconds to hours are aligned to the Unix epoch, days to midnight,
//! weeks to Monday, months and years to their first day, in the quota's time zone. The state is the window's end and what
//! has been used of it, so a clock that steps back can never open the same window twice.

mod calendar;

use std::time::Duration;

use jiff::tz::TimeZone;

use super::{Outcome, State, Usage};
use crate::limiter::quota::{Period, Quota, Unit};
use crate::limiter::timestamp::Timestamp;
use crate::limiter::zone::Zone;

const DAY: u64 = 86_400_000_000_000;
/// 1970-01-01 was a Thursday: the Monday before lies three days back.
const EPOCH_AFTER_MONDAY: u64 = 3 * DAY;

pub(super) fn evaluate(state: Option<State>, quota: &Quota, cost: u32, now: Timestamp) -> (State, Outcome) {
    let window = current(state, quota, now);
    let count = quota.count();
    if let Some(used) = window.extra.checked_add(cost).filter(|used| u64::from(*used) <= count) {
        return (State { extra: used, ..window }, Outcome::Conform);
    }
    let retry_after = (u64::from(cost) <= count).then(|| left(window, now));
    (window, Outcome::Exceed { retry_after })
}

pub(super) fn charge(state: Option<State>, quota: &Quota, amount: i64, now: Timestamp) -> State {
    let window = current(state, quota, now);
    let used = i64::from(window.extra).saturating_add(amount).clamp(0, i64::from(u32::MAX));
    State { extra: u32::try_from(used).unwrap_or(u32::MAX), ..window }
}

/// What was charged to a window that is over is gone with it.
pub(super) fn refund(
    state: Option<State>,
    quota: &Quota,
    amount: u32,
    (charged, now): (Timestamp, Timestamp),
) -> State {
    let window = current(state, quota, now);
    let is_of_it = window_end(quota, charged) > now.as_nanos();
    State { extra: window.extra.saturating_sub(if is_of_it { amount } else { 0 }), ..window }
}

pub(super) fn usage(state: Option<State>, quota: &Quota, now: Timestamp) -> Usage {
    let window = current(state, quota, now);
    Usage {
        used: window.extra,
        remaining: quota.count().saturating_sub(window.extra.into()) as u32,
        reset: left(window, now),
    }
}

pub(super) fn is_unused(state: State, now: Timestamp) -> bool {
    state.word <= now.as_nanos() || state.extra == 0
}

/// The window that `now` is in: the one remembered, while it lasts, else a new one.
fn current(state: Option<State>, quota: &Quota, now: Timestamp) -> State {
    match state {
        Some(state) if state.word > now.as_nanos() => state,
        _ => State { word: window_end(quota, now), extra: 0 },
    }
}

fn left(window: State, now: Timestamp) -> Duration {
    Duration::from_nanos(window.word.saturating_sub(now.as_nanos()))
}

/// The first mark of the quota's windows after `now`, in nanoseconds since the epoch.
fn window_end(quota: &Quota, now: Timestamp) -> u64 {
    mark_after(quota.window(), quota.zone(), now.as_nanos())
}

fn mark_after(period: Period, zone: Zone, now: u64) -> u64 {
    let length = period.nanos();
    let end = match (period.unit(), zone.rules()) {
        (Unit::Week, None) => {
            next_multiple(now.saturating_add(EPOCH_AFTER_MONDAY), length) - EPOCH_AFTER_MONDAY
        }
        (Unit::Month | Unit::Year, None) => {
            calendar::next_mark(period, &TimeZone::UTC, now).unwrap_or(u64::MAX)
        }
        (Unit::Day | Unit::Week | Unit::Month | Unit::Year, Some(zone)) => {
            calendar::next_mark(period, zone, now).unwrap_or(u64::MAX)
        }
        _ => next_multiple(now, length),
    };
    // At the end of time the marks run out; a window that never ends is the safe reading.
    if end > now { end } else { u64::MAX }
}

fn next_multiple(now: u64, length: u64) -> u64 {
    (now / length).saturating_add(1).saturating_mul(length)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn end(count: u32, unit: Unit, at: &str) -> String {
        let now: jiff::Timestamp = at.parse().unwrap();
        let period = Period::new(NonZeroU32::new(count).unwrap(), unit);
        let end = mark_after(period, Zone::UTC, now.as_nanosecond() as u64);
        jiff::Timestamp::from_nanosecond(end.into()).unwrap().to_string()
    }

    #[test]
    fn windows_end_where_people_expect() {
        let at = "2024-02-28T13:37:42.5Z"; // a Wednesday of a leap year
        assert_eq!(end(1, Unit::Second, at), "2024-02-28T13:37:43Z");
        assert_eq!(end(30, Unit::Second, at), "2024-02-28T13:38:00Z");
        assert_eq!(end(15, Unit::Minute, at), "2024-02-28T13:45:00Z");
        assert_eq!(end(1, Unit::Hour, at), "2024-02-28T14:00:00Z");
        assert_eq!(end(1, Unit::Day, at), "2024-02-29T00:00:00Z");
        assert_eq!(end(1, Unit::Week, at), "2024-03-04T00:00:00Z");
        assert_eq!(end(1, Unit::Month, at), "2024-03-01T00:00:00Z");
        assert_eq!(end(3, Unit::Month, at), "2024-04-01T00:00:00Z");
        assert_eq!(end(1, Unit::Year, at), "2025-01-01T00:00:00Z");
    }

    #[test]
    fn a_mark_belongs_to_the_window_it_opens() {
        assert_eq!(end(1, Unit::Week, "2024-03-04T00:00:00Z"), "2024-03-11T00:00:00Z");
        assert_eq!(end(1, Unit::Month, "2024-12-01T00:00:00Z"), "2025-01-01T00:00:00Z");
    }

    #[test]
    fn the_last_window_never_ends() {
        assert_eq!(mark_after(Period::one(Unit::Year), Zone::UTC, u64::MAX), u64::MAX);
        assert_eq!(mark_after(Period::one(Unit::Second), Zone::UTC, u64::MAX), u64::MAX);
    }
}
