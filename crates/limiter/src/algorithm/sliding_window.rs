//! Sliding window: the usage of the current window, and that of the previous one as far as it still overlaps.
//!
//! An approximation in twelve bytes: of the previous window only the sum is known, and its charges are assumed to be
//! spread evenly. It never admits more than the count between two window boundaries. In a span across a boundary it
//! admits at most twice the count, if all of the previous window was charged at its end.
//!
//! The state is the window's number, its count, and the previous count. All three fit because a limit is at most 10⁹
//! per second: a window never admits more units than it has nanoseconds, and its number times that is at most the
//! nanoseconds since the epoch.
//!
//! A debt, which is what a late charge adds beyond the count, is paid at the limit's rate: when a window ends, the
//! excess carries over to the next one. The format of the state bounds debts. What a lowered limit leaves beyond the
//! count is no debt; a bit of the previous count marks it, if the quota's count leaves that bit free.
//!
//! With `precision` the window has that many sub-windows, and only the oldest is assumed to be spread evenly. That
//! needs a [`super::history`]. It never admits more than the count in a span that is shorter than the window by one
//! sub-window.

use std::time::Duration;

use super::lookback::LookbackWindow;
use super::{CounterState, CounterUsage, Outcome};
use crate::quota::Quota;
use crate::timestamp::Timestamp;

/// The current and the previous window, as of one moment.
#[derive(Clone, Copy)]
struct WindowPair {
    number: u64,
    current: u32,
    previous: u32,
    /// Units beyond the count are no debt, and expire with the others.
    excess_lapses: bool,
    /// Nanoseconds since the start of the window; zero if the clock has stepped back before it.
    elapsed: u64,
}

/// Bit of the previous count; used only if the quota's count is smaller.
const EXCESS_LAPSES: u32 = 1 << 31;

/// Returns the lookback of a precise window; `None` for a plain one. If the period is not a multiple of the precision,
/// sub-windows are longer by less than a nanosecond each, never shorter.
pub(super) fn lookback(quota: &Quota) -> Option<LookbackWindow> {
    let precision = u64::from(quota.precision());
    let tick = quota.period_nanos().div_ceil(precision);
    (precision > 1).then(|| LookbackWindow { tick, full: tick.saturating_mul(precision) })
}

pub(super) fn evaluate(
    state: Option<CounterState>,
    quota: &Quota,
    cost: u32,
    now: Timestamp,
) -> (CounterState, Outcome) {
    let windows = windows_at(state, quota, now);
    let used = windows.used(quota.period_nanos());
    if used.saturating_add(cost.into()) <= quota.count() {
        return (windows.with(windows.current.saturating_add(cost)).pack(quota), Outcome::Conform);
    }
    let room = quota.count().checked_sub(cost.into());
    let retry_after = room.map(|room| windows.until_used(room, quota, now));
    (windows.pack(quota), Outcome::Exceed { retry_after })
}

/// Units charged last are given back first.
pub(super) fn charge(
    state: Option<CounterState>,
    quota: &Quota,
    amount: i64,
    now: Timestamp,
) -> CounterState {
    let windows = windows_at(state, quota, now);
    let units = u32::try_from(amount.unsigned_abs()).unwrap_or(u32::MAX);
    if amount >= 0 {
        return windows.with(windows.current.saturating_add(units)).pack(quota);
    }
    let rest = units.saturating_sub(windows.current);
    let left = windows.overlap(quota.period_nanos()).saturating_sub(rest.into());
    let whole = windows.max_units_with_overlap(left, quota.period_nanos());
    let previous = if rest == 0 { windows.previous } else { windows.previous.min(saturating(whole)) };
    WindowPair { previous, ..windows.with(windows.current.saturating_sub(units)) }.pack(quota)
}

/// Gives units back to the window that they were charged to, as far as it still counts.
pub(super) fn refund(
    state: Option<CounterState>,
    quota: &Quota,
    amount: u32,
    charged: Timestamp,
    now: Timestamp,
) -> CounterState {
    let mut windows = windows_at(state, quota, now);
    let number = number_at(quota.period_nanos(), charged);
    if number == windows.number {
        windows.current = windows.current.saturating_sub(amount);
    } else if number.saturating_add(1) == windows.number {
        // What that window had beyond its count has carried over to the current one.
        windows.current = windows.current.saturating_sub(amount.saturating_sub(windows.previous));
        windows.previous = windows.previous.saturating_sub(amount);
    }
    windows.pack(quota)
}

/// Whether the current window has more than its count, which the next one has to pay.
pub(super) fn is_in_debt(state: CounterState, quota: &Quota, now: Timestamp) -> bool {
    let windows = windows_at(Some(state), quota, now);
    u64::from(windows.current) > quota.count() && !windows.excess_lapses
}

/// Marks units beyond the count as no debt: they expire as if they were within it.
pub(super) fn with_lapsing_excess(state: CounterState, quota: &Quota, now: Timestamp) -> CounterState {
    WindowPair { excess_lapses: true, ..windows_at(Some(state), quota, now) }.pack(quota)
}

/// Whether the previous count leaves a bit free.
pub(super) const fn has_lapse_bit(quota: &Quota) -> bool {
    quota.count() < EXCESS_LAPSES as u64
}

/// Returns the larger count of each of the two windows.
pub(super) fn merge_fuller(a: CounterState, b: CounterState, quota: &Quota, now: Timestamp) -> CounterState {
    let (first, second) = (windows_at(Some(a), quota, now), windows_at(Some(b), quota, now));
    // Counters of different windows: the later one alone decides.
    if first.number != second.number {
        return if first.number > second.number { a } else { b };
    }
    let (current, previous) = (first.current.max(second.current), first.previous.max(second.previous));
    WindowPair { previous, excess_lapses: first.excess_lapses && second.excess_lapses, ..first.with(current) }
        .pack(quota)
}

/// Usage of both windows; whole again when nothing of either overlaps any more.
pub(super) fn usage(state: Option<CounterState>, quota: &Quota, now: Timestamp) -> CounterUsage {
    let windows = windows_at(state, quota, now);
    let used = windows.used(quota.period_nanos());
    let reset = if used == 0 { Duration::ZERO } else { windows.until_used(0, quota, now) };
    CounterUsage { used: saturating(used), remaining: saturating(quota.count().saturating_sub(used)), reset }
}

pub(super) fn is_unused(state: CounterState, quota: &Quota, now: Timestamp) -> bool {
    windows_at(Some(state), quota, now).used(quota.period_nanos()) == 0
}

impl WindowPair {
    fn with(self, current: u32) -> Self {
        Self { current, ..self }
    }

    fn used(self, length: u64) -> u64 {
        u64::from(self.current).saturating_add(self.overlap(length))
    }

    /// Units of the previous window that still count, rounded up.
    fn overlap(self, length: u64) -> u64 {
        let (previous, overlapping) = (u64::from(self.previous), self.overlapping(length));
        match previous.checked_mul(overlapping) {
            Some(product) => product.div_ceil(length),
            None => {
                let units = (u128::from(previous) * u128::from(overlapping)).div_ceil(length.into());
                u64::try_from(units).unwrap_or(u64::MAX)
            }
        }
    }

    /// Nanoseconds of the previous window that still overlap.
    fn overlapping(self, length: u64) -> u64 {
        length.saturating_sub(self.elapsed)
    }

    /// Maximum previous count of which at most `units` overlap.
    fn max_units_with_overlap(self, units: u64, length: u64) -> u64 {
        let whole = u128::from(units) * u128::from(length) / u128::from(self.overlapping(length).max(1));
        u64::try_from(whole).unwrap_or(u64::MAX)
    }

    /// Time until at most `units` are in use, which are fewer than now.
    fn until_used(self, units: u64, quota: &Quota, now: Timestamp) -> Duration {
        let (length, count) = (quota.period_nanos(), quota.count());
        // The window in which that happens: each that ends pays one count of this one.
        let windows = u64::from(self.current).saturating_sub(units).div_ceil(count);
        let windows = if self.excess_lapses { windows.min(1) } else { windows };
        let Self { current, previous, .. } = self.after(windows, count);
        let left = units.saturating_sub(current.into());
        let mark = self.number.saturating_add(windows).saturating_mul(length);
        let moment = mark.saturating_add(length - part_of_length(left, length, u64::from(previous).max(1)));
        Duration::from_nanos(moment.saturating_sub(now.as_nanos()))
    }

    /// The same windows after `windows` have ended.
    fn after(self, windows: u64, count: u64) -> Self {
        let Some(ended) = windows.checked_sub(1) else { return self };
        let number = self.number.saturating_add(windows);
        let (current, previous) = match self.excess_lapses {
            true => (0, if ended == 0 { self.current } else { 0 }),
            false => {
                let owed = u64::from(self.current).saturating_sub(ended.saturating_mul(count));
                (saturating(owed.saturating_sub(count)), saturating(owed.min(count)))
            }
        };
        Self { number, current, previous, excess_lapses: false, elapsed: 0 }
    }

    fn pack(self, quota: &Quota) -> CounterState {
        let radix = radix(quota.period_nanos());
        let current = u64::from(self.current).min(radix - 1);
        let lapses = self.excess_lapses && current > quota.count() && current < EXCESS_LAPSES.into();
        let extra = match has_lapse_bit(quota) {
            true => self.previous.min(EXCESS_LAPSES - 1) | if lapses { EXCESS_LAPSES } else { 0 },
            false => self.previous,
        };
        CounterState { word: self.number * radix + current, extra }
    }
}

/// Decodes the state as of `now`: the stored windows, advanced by the number of windows that have ended.
fn windows_at(state: Option<CounterState>, quota: &Quota, now: Timestamp) -> WindowPair {
    let length = quota.period_nanos();
    let number = number_at(length, now);
    let elapsed = now.as_nanos() - number * length;
    let Some(CounterState { word, extra }) = state else {
        return WindowPair { number, current: 0, previous: 0, excess_lapses: false, elapsed };
    };
    let lapses = has_lapse_bit(quota) && extra & EXCESS_LAPSES != 0;
    let previous = if lapses { extra & !EXCESS_LAPSES } else { extra };
    let radix = radix(length);
    // Less than the radix, which fits.
    let (known, current) = (word / radix, (word % radix) as u32);
    let windows = WindowPair { number: known, current, previous, excess_lapses: lapses, elapsed: 0 };
    match number.checked_sub(known) {
        Some(ended) => WindowPair { elapsed, ..windows.after(ended, quota.count()) },
        None => windows,
    }
}

/// Number of the window that contains `now`. The last window whose number fits the state never ends.
fn number_at(length: u64, now: Timestamp) -> u64 {
    (now.as_nanos() / length).min(u64::MAX / radix(length) - 1)
}

/// One more than the units that a window of `length` nanoseconds can count.
fn radix(length: u64) -> u64 {
    length.min(u32::MAX.into()) + 1
}

/// `units / of` of the window's length, rounded down.
fn part_of_length(units: u64, length: u64, of: u64) -> u64 {
    let part = u128::from(units) * u128::from(length) / u128::from(of);
    u64::try_from(part).unwrap_or(u64::MAX).min(length)
}

fn saturating(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}
