//! Sliding window: what has been used of this window, and of the one before as much as still overlaps.
//!
//! An approximation in twelve bytes: of the window before only the sum is known, and what happened in it is
//! taken to have been spread evenly. So it never admits more than the count between two marks, and at most twice
//! the count in a span across one: where all of the last window came at its end.
//!
//! The state is the window's number, its count, and the count before. All three fit, for a limit is at most 10⁹
//! a second: a window of so many nanoseconds never admits more units than it has nanoseconds, and its number
//! times that stays within the nanoseconds since the epoch.
//!
//! A debt, which is what a late charge adds beyond the count, is paid at the limit's rate: when a window ends, what is
//! beyond its count goes on to the next one. Debts end at the bound of the state. What a lowered limit leaves beyond the
//! count is no debt: a bit beside the count before says so, where that leaves one free.
//!
//! With `precision` the window is looked at in that many sub-windows, of which only the oldest is taken to be
//! spread evenly. That needs a [`super::history`], and never admits more than the count in a span that is
//! shorter than the window by one of them.

use std::time::Duration;

use super::lookback::LookbackWindow;
use super::{Outcome, State, Usage};
use crate::limiter::quota::Quota;
use crate::limiter::timestamp::Timestamp;

/// The window that counts and the one before, as they are at one moment.
#[derive(Clone, Copy)]
struct Windows {
    number: u64,
    current: u32,
    previous: u32,
    /// What is beyond the count is no debt, and leaves with the rest.
    lapses: bool,
    /// Since the window's mark; nothing where the clock has stepped back behind it.
    elapsed: u64,
}

/// Beside the count before; only of quotas whose counts are smaller.
const LAPSES: u32 = 1 << 31;

/// How a precise window looks back; `None` for a plain one. Sub-windows that do not come out even are longer by
/// less than a nanosecond each, never shorter.
pub(super) fn lookback(quota: &Quota) -> Option<LookbackWindow> {
    let precision = u64::from(quota.precision());
    let tick = quota.period().div_ceil(precision);
    (precision > 1).then(|| LookbackWindow { tick, full: tick.saturating_mul(precision) })
}

pub(super) fn evaluate(state: Option<State>, quota: &Quota, cost: u32, now: Timestamp) -> (State, Outcome) {
    let windows = at(state, quota, now);
    let used = windows.used(quota.period());
    if used.saturating_add(cost.into()) <= quota.count() {
        return (windows.with(windows.current.saturating_add(cost)).pack(quota), Outcome::Conform);
    }
    let room = quota.count().checked_sub(cost.into());
    let retry_after = room.map(|room| windows.until_used(room, quota, now));
    (windows.pack(quota), Outcome::Exceed { retry_after })
}

/// What was charged last is given back first.
pub(super) fn charge(state: Option<State>, quota: &Quota, amount: i64, now: Timestamp) -> State {
    let windows = at(state, quota, now);
    let units = u32::try_from(amount.unsigned_abs()).unwrap_or(u32::MAX);
    if amount >= 0 {
        return windows.with(windows.current.saturating_add(units)).pack(quota);
    }
    let rest = units.saturating_sub(windows.current);
    let left = windows.overlap(quota.period()).saturating_sub(rest.into());
    let whole = windows.of_which_overlap(left, quota.period());
    let previous = if rest == 0 { windows.previous } else { windows.previous.min(saturating(whole)) };
    Windows { previous, ..windows.with(windows.current.saturating_sub(units)) }.pack(quota)
}

/// From the window it was charged to, as far as that still counts.
pub(super) fn refund(
    state: Option<State>,
    quota: &Quota,
    amount: u32,
    (charged, now): (Timestamp, Timestamp),
) -> State {
    let mut windows = at(state, quota, now);
    let number = number_at(quota.period(), charged);
    if number == windows.number {
        windows.current = windows.current.saturating_sub(amount);
    } else if number.saturating_add(1) == windows.number {
        // What that window had beyond its count is among what this one has.
        windows.current = windows.current.saturating_sub(amount.saturating_sub(windows.previous));
        windows.previous = windows.previous.saturating_sub(amount);
    }
    windows.pack(quota)
}

/// Whether a window has more than its count, which the next one has to pay.
pub(super) fn is_in_debt(state: State, quota: &Quota, now: Timestamp) -> bool {
    let windows = at(Some(state), quota, now);
    u64::from(windows.current) > quota.count() && !windows.lapses
}

/// What is in use beyond the count is no debt: it leaves as if it were within.
pub(super) fn lapsing(state: State, quota: &Quota, now: Timestamp) -> State {
    Windows { lapses: true, ..at(Some(state), quota, now) }.pack(quota)
}

/// Whether the count before leaves a bit free.
pub(super) const fn can_lapse(quota: &Quota) -> bool {
    quota.count() < LAPSES as u64
}

/// Of either window the fuller.
pub(super) fn fuller(a: State, b: State, quota: &Quota, now: Timestamp) -> State {
    let (first, second) = (at(Some(a), quota, now), at(Some(b), quota, now));
    // One of a window to come is as full as it is by itself.
    if first.number != second.number {
        return if first.number > second.number { a } else { b };
    }
    let (current, previous) = (first.current.max(second.current), first.previous.max(second.previous));
    Windows { previous, lapses: first.lapses && second.lapses, ..first.with(current) }.pack(quota)
}

/// Whole again when nothing of either window overlaps any more.
pub(super) fn usage(state: Option<State>, quota: &Quota, now: Timestamp) -> Usage {
    let windows = at(state, quota, now);
    let used = windows.used(quota.period());
    let reset = if used == 0 { Duration::ZERO } else { windows.until_used(0, quota, now) };
    Usage { used: saturating(used), remaining: saturating(quota.count().saturating_sub(used)), reset }
}

pub(super) fn is_unused(state: State, quota: &Quota, now: Timestamp) -> bool {
    at(Some(state), quota, now).used(quota.period()) == 0
}

impl Windows {
    fn with(self, current: u32) -> Self {
        Self { current, ..self }
    }

    fn used(self, length: u64) -> u64 {
        u64::from(self.current).saturating_add(self.overlap(length))
    }

    /// Units of the window before that still count, rounded up.
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

    /// How much of the window before is still looked at.
    fn overlapping(self, length: u64) -> u64 {
        length.saturating_sub(self.elapsed)
    }

    /// The most of the window before of which no more than `units` overlap.
    fn of_which_overlap(self, units: u64, length: u64) -> u64 {
        let whole = u128::from(units) * u128::from(length) / u128::from(self.overlapping(length).max(1));
        u64::try_from(whole).unwrap_or(u64::MAX)
    }

    /// How long until no more than `units` are in use, which are fewer than there are now.
    fn until_used(self, units: u64, quota: &Quota, now: Timestamp) -> Duration {
        let (length, count) = (quota.period(), quota.count());
        // In which window: each that ends pays a count of what this one has.
        let windows = u64::from(self.current).saturating_sub(units).div_ceil(count);
        let windows = if self.lapses { windows.min(1) } else { windows };
        let Self { current, previous, .. } = self.after(windows, count);
        let left = units.saturating_sub(current.into());
        let mark = self.number.saturating_add(windows).saturating_mul(length);
        let moment = mark.saturating_add(length - share(left, length, u64::from(previous).max(1)));
        Duration::from_nanos(moment.saturating_sub(now.as_nanos()))
    }

    /// The same when so many windows have ended.
    fn after(self, windows: u64, count: u64) -> Self {
        let Some(ended) = windows.checked_sub(1) else { return self };
        let number = self.number.saturating_add(windows);
        let (current, previous) = match self.lapses {
            true => (0, if ended == 0 { self.current } else { 0 }),
            false => {
                let owed = u64::from(self.current).saturating_sub(ended.saturating_mul(count));
                (saturating(owed.saturating_sub(count)), saturating(owed.min(count)))
            }
        };
        Self { number, current, previous, lapses: false, elapsed: 0 }
    }

    fn pack(self, quota: &Quota) -> State {
        let radix = radix(quota.period());
        let current = u64::from(self.current).min(radix - 1);
        let lapses = self.lapses && current > quota.count() && current < LAPSES.into();
        let extra = match can_lapse(quota) {
            true => self.previous.min(LAPSES - 1) | if lapses { LAPSES } else { 0 },
            false => self.previous,
        };
        State { word: self.number * radix + current, extra }
    }
}

/// The windows at `now`: those remembered, moved on by as many windows as have ended.
fn at(state: Option<State>, quota: &Quota, now: Timestamp) -> Windows {
    let length = quota.period();
    let number = number_at(length, now);
    let elapsed = now.as_nanos() - number * length;
    let Some(State { word, extra }) = state else {
        return Windows { number, current: 0, previous: 0, lapses: false, elapsed };
    };
    let lapses = can_lapse(quota) && extra & LAPSES != 0;
    let previous = if lapses { extra & !LAPSES } else { extra };
    let radix = radix(length);
    // Less than the radix, which fits.
    let (known, current) = (word / radix, (word % radix) as u32);
    let windows = Windows { number: known, current, previous, lapses, elapsed: 0 };
    match number.checked_sub(known) {
        Some(ended) => Windows { elapsed, ..windows.after(ended, quota.count()) },
        None => windows,
    }
}

/// The window that `now` is in; at the end of time the last one whose state still fits never ends.
fn number_at(length: u64, now: Timestamp) -> u64 {
    (now.as_nanos() / length).min(u64::MAX / radix(length) - 1)
}

/// One more than the units a window of so many nanoseconds can count.
fn radix(length: u64) -> u64 {
    length.min(u32::MAX.into()) + 1
}

/// `units / of` of the window's length, rounded down.
fn share(units: u64, length: u64, of: u64) -> u64 {
    let part = u128::from(units) * u128::from(length) / u128::from(of);
    u64::try_from(part).unwrap_or(u64::MAX).min(length)
}

fn saturating(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}
