//! Fixed window: a count per window of the clock or the calendar.
//!
//! Suited to quotas that follow a calendar, such as 1000 a day. Not suited to rates, because twice the count can pass
//! around a boundary. Seconds to hours are aligned to the Unix epoch, days to midnight, weeks to Monday, months and
//! years to their first day, in the quota's time zone. The state is the window's end and its usage, so a clock that
//! steps back cannot open the same window twice.
//!
//! A debt, which is what a late charge adds beyond the count, does not end with its window: every window that ends pays
//! one count of it. What a lowered limit leaves beyond the count is no debt, and ends with the window.

mod calendar;

use std::time::Duration;

use jiff::tz::TimeZone;

use super::{Algorithm, CounterState, CounterUsage, Outcome};
use crate::quota::{Period, Quota, TimeUnit};
use crate::timestamp::Timestamp;
use crate::zone::Zone;

const DAY: u64 = 86_400_000_000_000;
/// 1970-01-01 was a Thursday: the Monday before lies three days back.
const EPOCH_AFTER_MONDAY: u64 = 3 * DAY;
static UTC: TimeZone = TimeZone::UTC;
/// Bit of a window's end, set if units beyond the count are no debt. Windows end at whole milliseconds, so the bit is
/// free; an end with it is one nanosecond late.
const EXCESS_LAPSES: u64 = 1;

impl Quota {
    /// Returns the end of the window that contains `now`, if this is a fixed window. It begins the next one.
    pub fn fixed_window_end(&self, now: Timestamp) -> Option<Timestamp> {
        let is_fixed = self.algorithm() == Algorithm::FixedWindow;
        is_fixed.then(|| Timestamp::from_nanos(window_end(self, now)))
    }
}

pub(super) fn evaluate(
    state: Option<CounterState>,
    quota: &Quota,
    cost: u32,
    now: Timestamp,
) -> (CounterState, Outcome) {
    let window = current(state, quota, now);
    let count = quota.count();
    if let Some(used) = window.extra.checked_add(cost).filter(|used| u64::from(*used) <= count) {
        return (CounterState { extra: used, ..window }, Outcome::Conform);
    }
    let room = count.checked_sub(cost.into());
    let retry_after = room.map(|room| until_used(window, room, quota, now));
    (window, Outcome::Exceed { retry_after })
}

pub(super) fn charge(
    state: Option<CounterState>,
    quota: &Quota,
    amount: i64,
    now: Timestamp,
) -> CounterState {
    let window = current(state, quota, now);
    let used = i64::from(window.extra).saturating_add(amount).clamp(0, i64::from(u32::MAX));
    CounterState { extra: u32::try_from(used).unwrap_or(u32::MAX), ..window }
}

/// Gives units back to the current window. Units of an earlier window have expired with it, or are a debt now and stay
/// one.
pub(super) fn refund(
    state: Option<CounterState>,
    quota: &Quota,
    amount: u32,
    charged: Timestamp,
    now: Timestamp,
) -> CounterState {
    let window = current(state, quota, now);
    let is_of_it = window_end(quota, charged) > now.as_nanos();
    CounterState { extra: window.extra.saturating_sub(if is_of_it { amount } else { 0 }), ..window }
}

/// Usage; whole again at the window's end, or at the end of the window that pays the last of a debt.
pub(super) fn usage(state: Option<CounterState>, quota: &Quota, now: Timestamp) -> CounterUsage {
    let window = current(state, quota, now);
    CounterUsage {
        used: window.extra,
        remaining: quota.count().saturating_sub(window.extra.into()) as u32,
        reset: until_used(window, 0, quota, now),
    }
}

pub(super) fn is_unused(state: CounterState, quota: &Quota, now: Timestamp) -> bool {
    state.extra == 0 || (state.word <= now.as_nanos() && current(Some(state), quota, now).extra == 0)
}

/// Whether units beyond the count are in use and stay so after the window's end.
pub(super) fn is_in_debt(state: CounterState, quota: &Quota, now: Timestamp) -> bool {
    let window = current(Some(state), quota, now);
    u64::from(window.extra) > quota.count() && window.word & EXCESS_LAPSES == 0
}

/// Marks units beyond the count as no debt: they end with the window.
pub(super) fn with_lapsing_excess(state: CounterState, quota: &Quota, now: Timestamp) -> CounterState {
    let window = current(Some(state), quota, now);
    let is_beyond = u64::from(window.extra) > quota.count();
    CounterState { word: if is_beyond { window.word | EXCESS_LAPSES } else { window.word }, ..window }
}

/// The window at `now`: the stored one while it lasts, otherwise a new one with the rest of the debt.
fn current(state: Option<CounterState>, quota: &Quota, now: Timestamp) -> CounterState {
    match state {
        Some(state) if state.word > now.as_nanos() => state,
        Some(state) => CounterState { word: window_end(quota, now), extra: owed(state, quota, now) },
        None => CounterState { word: window_end(quota, now), extra: 0 },
    }
}

/// Rest of a debt after the stored window has ended, and possibly others since.
fn owed(past: CounterState, quota: &Quota, now: Timestamp) -> u32 {
    let Some(debt) = u64::from(past.extra).checked_sub(quota.count()).filter(|debt| *debt > 0) else {
        return 0;
    };
    if past.word & EXCESS_LAPSES != 0 {
        return 0;
    }
    let paid = windows_between(quota, past.word, now.as_nanos()).saturating_mul(quota.count());
    u32::try_from(debt.saturating_sub(paid)).unwrap_or(u32::MAX)
}

/// Time until at most `units` are in use, which are at most the count.
fn until_used(window: CounterState, units: u64, quota: &Quota, now: Timestamp) -> Duration {
    let more = u64::from(window.extra).saturating_sub(units).div_ceil(quota.count()).saturating_sub(1);
    let end = match window.word & EXCESS_LAPSES {
        0 if more > 0 => later_end(quota, window.word, more),
        _ => window.word,
    };
    Duration::from_nanos(end.saturating_sub(now.as_nanos()))
}

/// Next window boundary of the quota after `now`, in nanoseconds since the epoch.
pub(crate) fn window_end(quota: &Quota, now: Timestamp) -> u64 {
    boundary_after(quota.window(), quota.zone(), now.as_nanos())
}

/// Returns the start of the window that contains `now`, its end, and the end of the next.
pub(crate) fn window_bounds(quota: &Quota, now: Timestamp) -> [Timestamp; 3] {
    let end = window_end(quota, now);
    let next = later_end(quota, end, 1);
    // Boundaries can only be searched forwards. Begin two nominal lengths earlier, and stop at the last one that is not
    // after `now`.
    let (period, zone) = (quota.window(), quota.zone());
    let mut start =
        boundary_after(period, zone, now.as_nanos().saturating_sub(period.nanos().saturating_mul(2)));
    while boundary_after(period, zone, start) <= now.as_nanos() {
        start = boundary_after(period, zone, start);
    }
    [start, end, next].map(Timestamp::from_nanos)
}

fn boundary_after(period: Period, zone: Zone, now: u64) -> u64 {
    let length = period.nanos();
    let end = match (calendar_of(period, zone), period.unit()) {
        (Some(calendar), _) => calendar::next_boundary(period, calendar, now).unwrap_or(u64::MAX),
        (None, TimeUnit::Week) => {
            next_multiple(now.saturating_add(EPOCH_AFTER_MONDAY), length) - EPOCH_AFTER_MONDAY
        }
        (None, _) => next_multiple(now, length),
    };
    // No boundary exists after the last representable moment. A window that never ends rejects, which is the safe
    // result.
    if end > now { end } else { u64::MAX }
}

/// Number of windows that begin after the boundary `from` and not after `to`.
fn windows_between(quota: &Quota, from: u64, to: u64) -> u64 {
    let period = quota.window();
    match calendar_of(period, quota.zone()) {
        Some(calendar) => calendar::boundaries_between(period, calendar, from, to).unwrap_or(0),
        None => to.saturating_sub(from) / period.nanos(),
    }
}

/// Returns the boundary `windows` windows after the one at `mark`.
fn later_end(quota: &Quota, mark: u64, windows: u64) -> u64 {
    let period = quota.window();
    match calendar_of(period, quota.zone()) {
        Some(calendar) => calendar::later_boundary(period, calendar, mark, windows).unwrap_or(u64::MAX),
        None => mark.saturating_add(period.nanos().saturating_mul(windows)),
    }
}

/// Calendar of windows of `period`; `None` if they all have the same length.
fn calendar_of(period: Period, zone: Zone) -> Option<&'static TimeZone> {
    match (period.unit(), zone.time_zone()) {
        (TimeUnit::Month | TimeUnit::Year, None) => Some(&UTC),
        (TimeUnit::Day | TimeUnit::Week | TimeUnit::Month | TimeUnit::Year, rules) => rules,
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

    fn end_of_window(count: u32, unit: TimeUnit, at: &str) -> String {
        let now: jiff::Timestamp = at.parse().unwrap();
        let period = Period::new(NonZeroU32::new(count).unwrap(), unit);
        let end = boundary_after(period, Zone::UTC, now.as_nanosecond() as u64);
        jiff::Timestamp::from_nanosecond(end.into()).unwrap().to_string()
    }

    #[test]
    fn fixed_windows_end_at_calendar_boundaries() {
        let at = "2024-02-28T13:37:42.5Z"; // a Wednesday of a leap year
        assert_eq!(end_of_window(1, TimeUnit::Second, at), "2024-02-28T13:37:43Z");
        assert_eq!(end_of_window(30, TimeUnit::Second, at), "2024-02-28T13:38:00Z");
        assert_eq!(end_of_window(15, TimeUnit::Minute, at), "2024-02-28T13:45:00Z");
        assert_eq!(end_of_window(1, TimeUnit::Hour, at), "2024-02-28T14:00:00Z");
        assert_eq!(end_of_window(1, TimeUnit::Day, at), "2024-02-29T00:00:00Z");
        assert_eq!(end_of_window(1, TimeUnit::Week, at), "2024-03-04T00:00:00Z");
        assert_eq!(end_of_window(1, TimeUnit::Month, at), "2024-03-01T00:00:00Z");
        assert_eq!(end_of_window(3, TimeUnit::Month, at), "2024-04-01T00:00:00Z");
        assert_eq!(end_of_window(1, TimeUnit::Year, at), "2025-01-01T00:00:00Z");
    }

    #[test]
    fn window_boundary_belongs_to_the_window_it_starts() {
        assert_eq!(end_of_window(1, TimeUnit::Week, "2024-03-04T00:00:00Z"), "2024-03-11T00:00:00Z");
        assert_eq!(end_of_window(1, TimeUnit::Month, "2024-12-01T00:00:00Z"), "2025-01-01T00:00:00Z");
    }

    #[test]
    fn last_window_ends_at_the_maximum_timestamp() {
        assert_eq!(boundary_after(Period::one(TimeUnit::Year), Zone::UTC, u64::MAX), u64::MAX);
        assert_eq!(boundary_after(Period::one(TimeUnit::Second), Zone::UTC, u64::MAX), u64::MAX);
    }
}
