//! Pace: how the requests that a limit admits are spread over time.
//!
//! [`PaceMode::Even`] keeps at least the limit's interval after each unit: a leaky bucket as a queue. An interval in which
//! no request is ready is lost.
//!
//! [`PaceMode::Pid`] spreads what is left of the limit over what is left of the window, so that an interval without a
//! request is made up for by shorter ones, and the window is used up exactly at its end. How much this instance may use in
//! a window is not known if other instances share the limit. A controller with proportional, integral and derivative terms
//! learns it: its error is how long before the end of the window the limit was reached.

use std::num::NonZeroU32;
use std::time::Duration;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Deserialize;

use crate::algorithm::Refill;
use crate::quota::Quota;
use crate::timestamp::{Timestamp, saturating_nanos};

/// How requests are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum PaceMode {
    /// At a fixed interval.
    Even,
    /// At an interval that a controller adapts.
    Pid,
}

/// Pace of one limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// How requests are spread.
    pub mode: PaceMode,
    /// Maximum number of units in a window, at least 1.
    pub limit: f64,
    /// Number of units that this instance is expected to have in its first window.
    pub expected: f64,
    /// Units that the request takes, at least 1. If a provider lowers the limit, each request takes more of them.
    pub cost: f64,
    /// Length of the window.
    pub window: Duration,
    /// Whether the limit has no window that ends, because its units come back one by one.
    pub is_refilled: bool,
}

impl Pace {
    /// Creates the pace of a request that takes `cost` units of a limit with this quota, of which `instances` instances may
    /// use equal shares.
    pub fn new(mode: PaceMode, quota: &Quota, instances: NonZeroU32, cost: u32) -> Self {
        let (is_shared, quota) =
            if quota.is_leased() { (true, quota.store_quota()) } else { (false, *quota) };
        let limit = f64::from(quota.limit().count.get()) * f64::from(quota.units_per_request().get());
        let share = if is_shared { limit / f64::from(instances.get()) } else { limit };
        Self {
            mode,
            limit,
            expected: share,
            cost: f64::from(cost.max(1)),
            window: Duration::from_nanos(quota.limit().period.nanos()),
            is_refilled: matches!(quota.algorithm().refill(), Refill::Continuous | Refill::Sliding),
        }
    }
}

/// Time for which a place is taken ahead. Timers have a resolution of a millisecond and are late under load, and no
/// interval must be lost meanwhile.
pub const LOOKAHEAD: Duration = Duration::from_millis(20);

/// Maximum factor by which intervals are shortened to make up for others without a request.
const MAX_CATCH_UP: f64 = 2.0;
/// Minimum part of the regular time that requests over several windows take.
const MIN_SHARE_OF_WINDOWS: f64 = 0.9;
/// Places that may be taken earlier at the end of a window than a regular interval would permit.
const PLACES_AHEAD: f64 = 4.0;
/// Gain of the error of the last window.
const PROPORTIONAL: f64 = 0.5;
/// Gain of the sum of all errors.
const INTEGRAL: f64 = 0.1;
/// Gain of the change of the error.
const DERIVATIVE: f64 = 0.1;
/// Bound of the sum of errors: the controller must not remember a long time without room.
const MAX_INTEGRAL: f64 = 1.0;
/// Error if the expected number was used up before the limit: the limit may have more.
const PROBE: f64 = 0.1;
/// Minimum number of units that are expected in a window.
const MIN_BUDGET: f64 = 1.0;
/// Windows without requests after which the pace of earlier ones no longer matters.
const IDLE_WINDOWS: u32 = 10;

/// State of the pace of one counter.
#[derive(Clone, Debug)]
pub(super) struct Pacer {
    /// Time of the next request.
    next: Timestamp,
    /// Interval after the last place that was taken.
    interval: Duration,
    /// Units of that place.
    cost: f64,
    window_end: Timestamp,
    /// Number of units used in this window.
    used: f64,
    /// Number of units that are expected to be used in a window.
    budget: f64,
    integral: f64,
    last_error: f64,
    /// When the limit had no more room in this window.
    reached_at: Option<Timestamp>,
    /// Whether a request had to wait for its place in this window.
    has_demand: bool,
}

/// Place of a request in the pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaceSlot {
    /// Taken; the request is to be delayed by this time.
    Taken(Duration),
    /// None before this time has elapsed.
    After(Duration),
}

impl PaceSlot {
    /// Place of a request that is not paced.
    pub(super) const UNPACED: Self = Self::Taken(Duration::ZERO);
}

impl Pacer {
    pub(super) fn new(pace: &Pace, now: Timestamp) -> Self {
        Self {
            next: now,
            interval: Duration::ZERO,
            cost: 1.0,
            window_end: window_end(now, pace.window),
            used: 0.0,
            budget: pace.expected.clamp(MIN_BUDGET, pace.limit.max(MIN_BUDGET)),
            integral: 0.0,
            last_error: 0.0,
            reached_at: None,
            has_demand: false,
        }
    }

    /// Takes the next place, unless it is too far ahead.
    pub(super) fn reserve(&mut self, pace: &Pace, now: Timestamp) -> PaceSlot {
        self.end_window(pace, now);
        let slot = self.next.max(now);
        let ahead = slot.since(now);
        self.has_demand |= !ahead.is_zero();
        if ahead > LOOKAHEAD {
            return PaceSlot::After(ahead.saturating_sub(LOOKAHEAD));
        }
        self.used += pace.cost;
        self.cost = pace.cost;
        self.interval = self.interval_at(pace, slot);
        self.next = slot.saturating_add(self.interval);
        PaceSlot::Taken(ahead)
    }

    /// Returns the place that was taken last.
    pub(super) fn cancel(&mut self, is_limit_reached: bool, now: Timestamp) {
        self.used = (self.used - self.cost).max(0.0);
        self.next = self.next.saturating_sub(self.interval);
        if is_limit_reached {
            // A place that was taken ahead may be in the next window.
            let next = self.next;
            self.reached_at.get_or_insert_with(|| next.max(now));
        }
    }

    /// Returns a lower bound of the time until a request has its place, if `ahead` others that take as many units come
    /// before it.
    pub(super) fn min_wait_behind(&self, pace: &Pace, ahead: usize, now: Timestamp) -> Duration {
        let own = self.next.since(now);
        let units = ahead as f64 * pace.cost;
        let per_unit = saturating_nanos(pace.window) as f64 / pace.limit.max(1.0);
        let others = match pace.mode {
            PaceMode::Even => units * per_unit,
            PaceMode::Pid => {
                let (used, rest) = match now < self.window_end {
                    true => (self.used, self.window_end.since(now).saturating_sub(own)),
                    false => (0.0, Duration::ZERO),
                };
                // What is left of the limit fills what is left of this window; what follows has the regular pace.
                let (left, rest) = ((pace.limit - used).max(0.0), saturating_nanos(rest) as f64);
                let shortest = per_unit / MAX_CATCH_UP;
                // Intervals are not shortened further, so not all that is left may fit.
                let fitting = left.min(rest / shortest);
                match units <= fitting {
                    true => units * (rest / left.max(1.0)).max(shortest),
                    // The controller is up to this much faster over several windows, and a few places are taken ahead of time.
                    false => ((units - fitting - PLACES_AHEAD) * per_unit + rest) * MIN_SHARE_OF_WINDOWS,
                }
            }
        };
        own.saturating_add(Duration::from_nanos(others as u64))
    }

    /// Returns the number of places that may be taken at one time.
    pub(super) fn places_ahead(&self) -> u32 {
        let ahead = saturating_nanos(LOOKAHEAD) / saturating_nanos(self.interval).max(1);
        u32::try_from(ahead).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// Whether the state is that of a new pacer, or nearly so.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        now > self
            .window_end
            .saturating_add(Duration::from_secs(1))
            .saturating_add(self.interval * IDLE_WINDOWS)
    }

    fn interval_at(&self, pace: &Pace, slot: Timestamp) -> Duration {
        let (time, units) = match pace.mode {
            PaceMode::Even => (pace.window, pace.limit),
            PaceMode::Pid => match self.budget - self.used {
                // This request was the last one that was expected.
                left if left < pace.cost => (pace.window, self.budget),
                // The rest of the window, which the last interval ends.
                left => (self.window_end.since(slot), left + pace.cost),
            },
        };
        let interval = saturating_nanos(time) as f64 / units.max(1.0) * pace.cost;
        let regular = saturating_nanos(pace.window) as f64 / self.budget.max(1.0) * pace.cost;
        let least = if pace.mode == PaceMode::Pid { regular / MAX_CATCH_UP } else { interval };
        Duration::from_nanos(interval.max(least) as u64)
    }

    /// Adapts the budget if the window has ended.
    fn end_window(&mut self, pace: &Pace, now: Timestamp) {
        if now < self.window_end {
            return;
        }
        let is_next = now.since(self.window_end) < pace.window;
        if pace.mode == PaceMode::Pid && is_next {
            self.adapt(pace);
        }
        // A pause says nothing about the limit.
        if !is_next {
            (self.integral, self.last_error) = (0.0, 0.0);
        }
        self.window_end = window_end(now, pace.window);
        (self.used, self.reached_at, self.has_demand) = (0.0, None, false);
    }

    fn adapt(&mut self, pace: &Pace) {
        let max_budget = pace.limit.max(MIN_BUDGET);
        if pace.is_refilled && pace.expected >= pace.limit {
            // Nothing is to be learned: a limit without a window and without other instances has no room only because its
            // burst is smaller than what the pace makes up for.
            self.budget = max_budget;
            return;
        }
        let error = match self.reached_at {
            // Without a window, what was admitted is the share, and the time at which there was no room says nothing.
            Some(_) if pace.is_refilled => ((self.used - self.budget) / self.budget).clamp(-1.0, 0.0),
            Some(at) => -(self.window_end.since(at).as_secs_f64() / pace.window.as_secs_f64()).min(1.0),
            None if self.has_demand && self.used + self.cost >= self.budget => PROBE,
            None => 0.0,
        };
        self.integral = (self.integral + error).clamp(-MAX_INTEGRAL, MAX_INTEGRAL);
        let change = PROPORTIONAL * error + INTEGRAL * self.integral + DERIVATIVE * (error - self.last_error);
        self.last_error = error;
        // Half a window at most, in either direction.
        let budget = self.budget * (1.0 + change.clamp(-0.5, 0.5));
        let min_budget = if pace.is_refilled { self.used.clamp(MIN_BUDGET, max_budget) } else { MIN_BUDGET };
        self.budget = budget.clamp(min_budget, max_budget);
    }
}

/// Returns the end of the window at `now`. Windows are aligned to the epoch, as fixed windows of limits are.
fn window_end(now: Timestamp, window: Duration) -> Timestamp {
    let nanos = saturating_nanos(window).max(1);
    Timestamp::from_nanos((now.as_nanos() / nanos).saturating_add(1).saturating_mul(nanos))
}

#[cfg(test)]
mod bucket_tests;
#[cfg(test)]
mod tests;
