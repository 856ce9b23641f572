//! Units in use of one counter, by independent arithmetic: no number comes from the limiter.
//!
//! Each algorithm is compared with its own definition. The limiter may round, and it may store less than was charged:
//! the units of a history that a reload or a restart has compacted expire together. So there are two values: the
//! minimum and the maximum of what is in use. For the minimum, the debt of a window ends with the window, as with a
//! lowered limit. For the maximum, each window that ends pays for one count of the debt.

use weir_limiter::algorithm::Algorithm;
use weir_limiter::quota::Quota;

use super::marks::window_of;

/// Maximum number of charges that are stored separately, so that one of them can be refunded.
const MAX_EVENTS: usize = 64;

/// Which bound is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BoundKind {
    Lower,
    Upper,
}

#[derive(Clone, Debug)]
pub(crate) enum ModelUsage {
    /// A level, in units multiplied by the period's nanoseconds, at one time, and the charges since then.
    Level { base: u128, since: u64, events: Vec<(u64, u64)> },
    /// Units of one fixed window.
    Window { window: u64, units: u64, has_debt: bool },
    /// Units of a window and of the one before it.
    Sliding { window: u64, current: u64, previous: u64, has_debt: bool },
    /// Units by the tick in which they were charged. With `is_aggregate` they expire together.
    Ticks { entries: Vec<(u64, u64)>, is_aggregate: bool },
    /// Units are only held, never charged.
    Nothing,
}

impl ModelUsage {
    /// Returns a value of `units` units, all charged at `now`.
    pub(crate) fn new(quota: &Quota, units: u64, now: u64) -> Self {
        let window = window_of(quota, now);
        match (quota.algorithm(), quota.needs_history()) {
            (Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket, _) => {
                Self::Level { base: u128::from(units) * period(quota), since: now, events: Vec::new() }
            }
            (Algorithm::FixedWindow, _) => Self::Window { window, units, has_debt: false },
            (Algorithm::SlidingWindow, false) => {
                Self::Sliding { window, current: units, previous: 0, has_debt: false }
            }
            (Algorithm::SlidingWindow | Algorithm::SlidingLog, _) => {
                let entries = if units > 0 { vec![(tick_of(quota, now), units)] } else { Vec::new() };
                Self::Ticks { is_aggregate: !entries.is_empty(), entries }
            }
            (Algorithm::RefillBucket, _) => unreachable!("the simulation has no refill buckets"),
            (Algorithm::InFlight | Algorithm::Ban | Algorithm::Lease(_), _) => Self::Nothing,
        }
    }

    /// Turns the value into a minimum: units that may expire together may also expire one by one.
    pub(crate) fn into_lower_bound(mut self) -> Self {
        if let Self::Ticks { is_aggregate: lump, .. } = &mut self {
            *lump = false;
        }
        self
    }

    /// Turns the value into a maximum: units beyond the count are a debt.
    pub(crate) fn into_upper_bound(mut self, quota: &Quota, now: u64) -> Self {
        if let Self::Window { has_debt: owes, .. } | Self::Sliding { has_debt: owes, .. } = &mut self {
            *owes = true;
        }
        self.postpone_debt(quota, now);
        self
    }

    /// Whether `units` more are within the limit.
    pub(crate) fn fits(&self, quota: &Quota, units: u64, now: u64) -> bool {
        let (in_use, whole) = self.in_use(quota, now);
        in_use + u128::from(units) * whole <= u128::from(capacity(quota)) * whole
    }

    /// Returns the whole units in use: rounded down for the minimum, up for the maximum.
    pub(crate) fn units(&self, quota: &Quota, now: u64, side: BoundKind) -> u64 {
        let (in_use, whole) = self.in_use(quota, now);
        let units = if side == BoundKind::Lower { in_use / whole } else { in_use.div_ceil(whole) };
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    pub(crate) fn charge(&mut self, quota: &Quota, units: u64, now: u64, side: BoundKind) {
        self.advance_to(quota, now);
        match self {
            Self::Level { base, since, events } => {
                events.push((now, units));
                if events.len() > MAX_EVENTS {
                    let old: Vec<_> = events.drain(..MAX_EVENTS / 2).collect();
                    (*base, *since) = level(quota, (*base, *since), &old);
                }
            }
            Self::Window { units: used, .. } => *used += units,
            Self::Sliding { current, .. } => *current += units,
            Self::Ticks { entries, is_aggregate: lump } => {
                if std::mem::take(lump) && units > 0 {
                    // The history is rewritten, and begins with all the units.
                    entries.iter_mut().for_each(|(at, _)| *at = tick_of(quota, now).max(*at));
                }
                let tick = entries.last().map_or(0, |(at, _)| *at).max(tick_of(quota, now));
                match entries.last_mut().filter(|(at, _)| *at == tick) {
                    Some((_, charged_units)) => *charged_units += units,
                    None => entries.push((tick, units)),
                }
            }
            Self::Nothing => {}
        }
        if side == BoundKind::Upper {
            self.postpone_debt(quota, now);
        }
    }

    /// Postpones a debt: all units expire together, at most one period later for each full count.
    fn postpone_debt(&mut self, quota: &Quota, now: u64) {
        let capacity = capacity(quota);
        let Self::Ticks { entries, is_aggregate: lump } = self else { return };
        let units: u64 = entries.iter().map(|(_, units)| units).sum();
        let rounds = units.saturating_sub(1) / capacity;
        if rounds > 0 {
            let tick = entries
                .last()
                .map_or(0, |(at, _)| *at)
                .max(tick_of(quota, now) + rounds * full_duration(quota));
            (*entries, *lump) = (vec![(tick, units)], true);
        }
    }

    /// Refunds units that were charged at `charged`, as far as they still count.
    pub(crate) fn refund(&mut self, quota: &Quota, units: u64, (charged, now): (u64, u64), side: BoundKind) {
        self.advance_to(quota, now);
        match self {
            Self::Level { base, since, events } => {
                let found =
                    events.iter_mut().find(|(at, charged_units)| *at == charged && *charged_units >= units);
                match found.filter(|_| side == BoundKind::Lower) {
                    // As if the charge had never been made.
                    Some((_, charged_units)) => *charged_units -= units,
                    None => {
                        (*base, *since) =
                            level(quota, (*base, *since), &[std::mem::take(events), vec![(now, 0)]].concat());
                        let earned = u128::from(now.saturating_sub(charged)) * count(quota);
                        let back = (u128::from(units) * period(quota)).saturating_sub(earned);
                        *base = base.saturating_sub(back);
                    }
                }
            }
            Self::Window { window, units: used, .. } => {
                if window_of(quota, charged) == *window {
                    *used = used.saturating_sub(units);
                }
            }
            Self::Sliding { window, current, previous, .. } => {
                let its_window = window_of(quota, charged);
                if its_window == *window {
                    *current = current.saturating_sub(units);
                } else if its_window + 1 == *window {
                    if side == BoundKind::Lower {
                        // A debt, or a reload that counts differently, may have moved the units into the current
                        // window.
                        *current = current.saturating_sub(units.saturating_sub(*previous));
                    }
                    *previous = previous.saturating_sub(units);
                }
            }
            Self::Ticks { entries, is_aggregate: lump } => {
                *lump = false;
                let tick = tick_of(quota, charged);
                // If there was no entry for the tick, the units are in a later one.
                let found = entries.iter_mut().find(|(at, _)| *at >= tick);
                if let Some((_, charged_units)) = found.filter(|_| end_of(quota, tick) > now) {
                    *charged_units = charged_units.saturating_sub(units);
                }
            }
            Self::Nothing => {}
        }
    }

    /// Applies a change of only the count, in the ratio of the two counts.
    pub(crate) fn scale(&mut self, (to, from): (u64, u64), side: BoundKind) {
        let scaled = |units: u64| {
            if side == BoundKind::Lower { units * to / from } else { (units * to).div_ceil(from) }
        };
        if let Self::Ticks { entries, .. } = self {
            entries.iter_mut().for_each(|(_, units)| *units = scaled(*units));
        }
    }

    /// Whether all units expire together.
    pub(crate) fn is_aggregate(&self) -> bool {
        matches!(self, Self::Ticks { is_aggregate: true, .. })
    }

    /// Applies a restart, which compacts histories.
    pub(crate) fn aggregate(&mut self, quota: &Quota, now: u64) {
        let units = self.units(quota, now, BoundKind::Upper);
        if let Self::Ticks { entries, is_aggregate: lump } = self
            && let Some((last, _)) = entries.last().copied().filter(|_| !*lump)
        {
            (*entries, *lump) = (vec![(last, units)], true);
        }
    }

    /// Returns the units in use as a fraction: numerator and denominator.
    fn in_use(&self, quota: &Quota, now: u64) -> (u128, u128) {
        match self {
            Self::Level { base, since, events } => {
                let events = [events.as_slice(), &[(now, 0)]].concat();
                (level(quota, (*base, *since), &events).0, period(quota))
            }
            Self::Window { window, units, has_debt: owes } => {
                let ended = window_of(quota, now).saturating_sub(*window);
                (u128::from(remaining_after(ended, *units, *owes, quota)), 1)
            }
            Self::Nothing => (0, 1),
            Self::Sliding { window, current, previous, has_debt: owes } => {
                let (at, period) = (window_of(quota, now), period(quota));
                let elapsed = if at < *window { 0 } else { u128::from(now) % period };
                let (current, previous) =
                    slide(at.saturating_sub(*window), (*current, *previous), *owes, quota);
                (u128::from(current) + (u128::from(previous) * (period - elapsed)).div_ceil(period), 1)
            }
            Self::Ticks { entries, is_aggregate: lump } => {
                let now = entries.last().map_or(0, |(at, _)| *at).max(now);
                let tick = tick_length(quota);
                let weight = |(at, units): &(u64, u64)| {
                    let left = end_of(quota, *at).saturating_sub(now);
                    let left = if *lump && left > 0 { tick } else { left.min(tick) };
                    u128::from(*units) * u128::from(left)
                };
                (entries.iter().map(weight).sum::<u128>().div_ceil(tick.into()), 1)
            }
        }
    }

    /// Drops units that no longer count.
    pub(crate) fn advance_to(&mut self, quota: &Quota, now: u64) {
        let at = window_of(quota, now);
        match self {
            Self::Window { window, units, has_debt: owes } if *window < at => {
                (*window, *units) = (at, remaining_after(at - *window, *units, *owes, quota));
            }
            Self::Sliding { window, current, previous, has_debt: owes } if *window < at => {
                (*current, *previous) = slide(at - *window, (*current, *previous), *owes, quota);
                *window = at;
            }
            Self::Ticks { entries, is_aggregate: lump } => {
                entries.retain(|(tick, _)| end_of(quota, *tick) > now);
                *lump &= !entries.is_empty();
            }
            _ => {}
        }
    }
}

/// Returns the units left of a window after `ended` windows have ended.
fn remaining_after(ended: u64, units: u64, owes: bool, quota: &Quota) -> u64 {
    match ended {
        0 => units,
        _ if owes => units.saturating_sub(ended.saturating_mul(capacity(quota))),
        _ => 0,
    }
}

/// Returns the same for a window and the one before it.
fn slide(ended: u64, (current, previous): (u64, u64), owes: bool, quota: &Quota) -> (u64, u64) {
    match ended {
        0 => (current, previous),
        _ if owes => {
            let before = remaining_after(ended - 1, current, owes, quota);
            (before.saturating_sub(capacity(quota)), before.min(capacity(quota)))
        }
        1 => (0, current),
        _ => (0, 0),
    }
}

/// Returns how long units count fully, in nanoseconds.
fn full_duration(quota: &Quota) -> u64 {
    end_of(quota, 0) - tick_length(quota)
}

/// Returns the maximum number of units in use.
pub(crate) fn capacity(quota: &Quota) -> u64 {
    u64::from(quota.burst().get()) * u64::from(quota.units_per_request().get())
}

/// Returns a level that drains at the rate of the limit, after these charges.
fn level(quota: &Quota, (mut level, mut last): (u128, u64), charged: &[(u64, u64)]) -> (u128, u64) {
    for (at, units) in charged.iter().copied() {
        level = level.saturating_sub(u128::from(at.saturating_sub(last)) * count(quota));
        level += u128::from(units) * period(quota);
        last = at.max(last);
    }
    (level, last)
}

fn count(quota: &Quota) -> u128 {
    u128::from(quota.limit().count.get()) * u128::from(quota.units_per_request().get())
}

fn period(quota: &Quota) -> u128 {
    quota.limit().period.nanos().into()
}

fn tick_length(quota: &Quota) -> u64 {
    match quota.algorithm() {
        Algorithm::SlidingLog => 1,
        _ => quota.limit().period.nanos().div_ceil(quota.precision().into()),
    }
}

fn tick_of(quota: &Quota, at: u64) -> u64 {
    at - at % tick_length(quota)
}

/// Returns the time from which the units of this tick no longer count.
fn end_of(quota: &Quota, tick: u64) -> u64 {
    match quota.algorithm() {
        Algorithm::SlidingLog => tick + quota.limit().period.nanos(),
        _ => tick + (u64::from(quota.precision()) + 1) * tick_length(quota),
    }
}
