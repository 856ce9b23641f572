//! Fixed window: so many from one mark of the clock to the next, then all of them again.
//!
//! The right choice for quotas people read off a calendar ("1000 a day"); the wrong one for rates, since two
//! windows' worth can pass around a mark. Seconds to hours are aligned to the Unix epoch, days to midnight,
//! weeks to Monday, months and years to their first day, in the quota's time zone. The state is the window's end and what
//! has been used of it, so a clock that steps back can never open the same window twice.
//!
//! A debt, which is what a late charge adds beyond the count, does not end with its window: every window that ends
//! pays one count of it. What a lowered limit leaves beyond the count is no debt, and ends with the window.

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
static UTC: TimeZone = TimeZone::UTC;
/// Set beside a window's end where what is beyond the count is no debt. Windows end at whole milliseconds, so the bit
/// is free, and an end that carries it is a nanosecond late.
const LAPSES: u64 = 1;

pub(super) fn evaluate(state: Option<State>, quota: &Quota, cost: u32, now: Timestamp) -> (State, Outcome) {
    let window = current(state, quota, now);
    let count = quota.count();
    if let Some(used) = window.extra.checked_add(cost).filter(|used| u64::from(*used) <= count) {
        return (State { extra: used, ..window }, Outcome::Conform);
    }
    let room = count.checked_sub(cost.into());
    let retry_after = room.map(|room| until_used(window, room, quota, now));
    (window, Outcome::Exceed { retry_after })
}

pub(super) fn charge(state: Option<State>, quota: &Quota, amount: i64, now: Timestamp) -> State {
    let window = current(state, quota, now);
    let used = i64::from(window.extra).saturating_add(amount).clamp(0, i64::from(u32::MAX));
    State { extra: u32::try_from(used).unwrap_or(u32::MAX), ..window }
}

/// What was charged to a window that is over is gone with it, or is a debt by now and stays one.
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

/// Whole again at the window's end, or at the end of the window that pays the last of a debt.
pub(super) fn usage(state: Option<State>, quota: &Quota, now: Timestamp) -> Usage {
    let window = current(state, quota, now);
    Usage {
        used: window.extra,
        remaining: quota.count().saturating_sub(window.extra.into()) as u32,
        reset: until_used(window, 0, quota, now),
    }
}

pub(super) fn is_unused(state: State, quota: &Quota, now: Timestamp) -> bool {
    state.extra == 0 || (state.word <= now.as_nanos() && current(Some(state), quota, now).extra == 0)
}

/// Whether more is in use than the count, and stays so beyond the window's end.
pub(super) fn is_in_debt(state: State, quota: &Quota, now: Timestamp) -> bool {
    let window = current(Some(state), quota, now);
    u64::from(window.extra) > quota.count() && window.word & LAPSES == 0
}

/// What is in use beyond the count is no debt: it ends with the window.
pub(super) fn lapsing(state: State, quota: &Quota, now: Timestamp) -> State {
    let window = current(Some(state), quota, now);
    let is_beyond = u64::from(window.extra) > quota.count();
    State { word: if is_beyond { window.word | LAPSES } else { window.word }, ..window }
}

/// The window that `now` is in: the one remembered, while it lasts, else a new one with what is still owed.
fn current(state: Option<State>, quota: &Quota, now: Timestamp) -> State {
    match state {
        Some(state) if state.word > now.as_nanos() => state,
        Some(state) => State { word: window_end(quota, now), extra: owed(state, quota, now) },
        None => State { word: window_end(quota, now), extra: 0 },
    }
}

/// What is left of a debt after the window remembered has ended, and perhaps others since.
fn owed(past: State, quota: &Quota, now: Timestamp) -> u32 {
    let Some(debt) = u64::from(past.extra).checked_sub(quota.count()).filter(|debt| *debt > 0) else {
        return 0;
    };
    if past.word & LAPSES != 0 {
        return 0;
    }
    let paid = windows_between(quota, past.word, now.as_nanos()).saturating_mul(quota.count());
    u32::try_from(debt.saturating_sub(paid)).unwrap_or(u32::MAX)
}

/// How long until no more than `units` are in use, which are at most the count.
fn until_used(window: State, units: u64, quota: &Quota, now: Timestamp) -> Duration {
    let more = u64::from(window.extra).saturating_sub(units).div_ceil(quota.count()).saturating_sub(1);
    let end = match window.word & LAPSES {
        0 if more > 0 => later_end(quota, window.word, more),
        _ => window.word,
    };
    Duration::from_nanos(end.saturating_sub(now.as_nanos()))
}

/// The first mark of the quota's windows after `now`, in nanoseconds since the epoch.
pub(super) fn window_end(quota: &Quota, now: Timestamp) -> u64 {
    mark_after(quota.window(), quota.zone(), now.as_nanos())
}

/// The start of the window around `now`, its end, and the end of the next.
pub(in crate::limiter) fn marks(quota: &Quota, now: Timestamp) -> [Timestamp; 3] {
    let end = window_end(quota, now);
    let next = later_end(quota, end, 1);
    // Marks are sought forwards only: from a window's length before, the last one that is not after `now`.
    let (period, zone) = (quota.window(), quota.zone());
    let mut start = mark_after(period, zone, now.as_nanos().saturating_sub(period.nanos().saturating_mul(2)));
    while mark_after(period, zone, start) <= now.as_nanos() {
        start = mark_after(period, zone, start);
    }
    [start, end, next].map(Timestamp::from_nanos)
}

fn mark_after(period: Period, zone: Zone, now: u64) -> u64 {
    let length = period.nanos();
    let end = match (calendar_of(period, zone), period.unit()) {
        (Some(calendar), _) => calendar::next_mark(period, calendar, now).unwrap_or(u64::MAX),
        (None, Unit::Week) => {
            next_multiple(now.saturating_add(EPOCH_AFTER_MONDAY), length) - EPOCH_AFTER_MONDAY
        }
        (None, _) => next_multiple(now, length),
    };
    // At the end of time the marks run out; a window that never ends is the safe reading.
    if end > now { end } else { u64::MAX }
}

/// How many windows begin after the mark `from` and not after `to`.
fn windows_between(quota: &Quota, from: u64, to: u64) -> u64 {
    let period = quota.window();
    match calendar_of(period, quota.zone()) {
        Some(calendar) => calendar::marks_between(period, calendar, from, to).unwrap_or(0),
        None => to.saturating_sub(from) / period.nanos(),
    }
}

/// The mark so many windows after the one at `mark`.
fn later_end(quota: &Quota, mark: u64, windows: u64) -> u64 {
    let period = quota.window();
    match calendar_of(period, quota.zone()) {
        Some(calendar) => calendar::mark_after(period, calendar, mark, windows).unwrap_or(u64::MAX),
        None => mark.saturating_add(period.nanos().saturating_mul(windows)),
    }
}

/// The calendar that windows of `period` follow; `None` where they are all of the same length.
fn calendar_of(period: Period, zone: Zone) -> Option<&'static TimeZone> {
    match (period.unit(), zone.rules()) {
        (Unit::Month | Unit::Year, None) => Some(&UTC),
        (Unit::Day | Unit::Week | Unit::Month | Unit::Year, rules) => rules,
        _ => None,
    }
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
