//! Rate limiting algorithms, with one set of functions for all of them.
//!
//! An algorithm is a pure function of a counter's state, the quota, the cost and the time. It neither stores state nor
//! reads a clock; the caller decides whether the next state is kept. A new algorithm needs a file under `algorithm/`
//! and an arm in each `match` below, which the compiler requires.

pub mod conversion;
pub mod history;

pub(super) mod ban;
pub(super) mod fixed_window;
pub(super) mod lease;
pub(super) mod saved;

mod aggregate;
mod bucket;
mod counter;
mod gcra;
mod in_flight;
mod leaky_bucket;
mod lookback;
mod refill_bucket;
mod sliding_log;
mod sliding_window;
mod token_bucket;

use std::fmt;
use std::time::Duration;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Deserialize;

pub use self::conversion::convert;
pub use self::counter::{Counter, CounterState, CounterUsage};
use self::history::History;
use super::quota::Quota;
use super::timestamp::Timestamp;

/// Algorithm by which a limit is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Generic cell rate algorithm (ITU-T I.371): evenly spaced, with a burst. The state is one arrival time.
    #[default]
    Gcra,
    /// Token bucket: tokens refill one by one at the limit's rate, up to the burst.
    TokenBucket,
    /// Token bucket whose tokens refill in batches, up to the burst. It has no name of its own; `token_bucket` with
    /// `refill` selects it.
    #[serde(skip)]
    RefillBucket,
    /// Leaky bucket: a level that drains at the limit's rate. Delayed requests leave it evenly spaced.
    LeakyBucket,
    /// Count per window, aligned to the clock and the calendar.
    FixedWindow,
    /// Count per window that ends now, estimated from two fixed windows.
    SlidingWindow,
    /// Exact count in any span of one period.
    SlidingLog,
    /// Concurrency limit: units are returned when a request ends. It has no name of its own; `in_flight` selects it.
    #[serde(skip)]
    InFlight,
    /// End of a ban, which rejects every request of a key. It has no name of its own; `on_limit.ban` selects it.
    #[serde(skip)]
    Ban,
    /// Units that the store granted of a shared limit, which the store counts by the named algorithm. It has no name of
    /// its own; `scope: shared` selects it.
    #[serde(skip)]
    Lease(StoreAlgorithm),
}

/// Algorithm by which the store counts a shared limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreAlgorithm {
    /// [`Algorithm::Gcra`].
    Gcra,
    /// [`Algorithm::TokenBucket`].
    TokenBucket,
    /// [`Algorithm::RefillBucket`].
    RefillBucket,
    /// [`Algorithm::LeakyBucket`].
    LeakyBucket,
    /// [`Algorithm::FixedWindow`].
    FixedWindow,
    /// [`Algorithm::SlidingWindow`].
    SlidingWindow,
    /// [`Algorithm::SlidingLog`].
    SlidingLog,
    /// [`Algorithm::InFlight`].
    InFlight,
}

impl StoreAlgorithm {
    /// Returns the algorithm.
    pub const fn algorithm(self) -> Algorithm {
        match self {
            Self::Gcra => Algorithm::Gcra,
            Self::TokenBucket => Algorithm::TokenBucket,
            Self::RefillBucket => Algorithm::RefillBucket,
            Self::LeakyBucket => Algorithm::LeakyBucket,
            Self::FixedWindow => Algorithm::FixedWindow,
            Self::SlidingWindow => Algorithm::SlidingWindow,
            Self::SlidingLog => Algorithm::SlidingLog,
            Self::InFlight => Algorithm::InFlight,
        }
    }
}

/// How the units of a limit become free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refill {
    /// One by one at the limit's rate, up to a burst.
    Continuous,
    /// The limit's count at once, after each period, up to a burst.
    Batches,
    /// All at the end of a window.
    Window,
    /// Each at some time in the period after it was charged, or in the one after that.
    Sliding,
    /// Not with time alone.
    None,
}

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// Units per time.
    Rate,
    /// Requests in flight.
    InFlight,
    /// Consecutive bans.
    Bans,
}

impl Algorithm {
    /// Every algorithm that a limit can name, in the order of the documentation.
    pub const ALL: [Self; 6] = [
        Self::Gcra,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingLog,
    ];

    /// Every algorithm that counts a rate: [`Self::ALL`] and the bucket with refills.
    pub const RATES: [Self; 7] = [
        Self::Gcra,
        Self::TokenBucket,
        Self::RefillBucket,
        Self::LeakyBucket,
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingLog,
    ];

    /// Returns the name in configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gcra => "gcra",
            Self::TokenBucket => "token_bucket",
            Self::RefillBucket => "refill_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindow => "sliding_window",
            Self::SlidingLog => "sliding_log",
            Self::InFlight => "in_flight",
            Self::Ban => "ban",
            Self::Lease(origin) => origin.algorithm().as_str(),
        }
    }

    /// Whether the algorithm has a `burst`.
    pub const fn has_burst(self) -> bool {
        match self {
            Self::Gcra | Self::TokenBucket | Self::RefillBucket | Self::LeakyBucket => true,
            Self::FixedWindow | Self::SlidingWindow | Self::SlidingLog | Self::InFlight | Self::Ban => false,
            Self::Lease(origin) => origin.algorithm().has_burst(),
        }
    }

    /// Whether the time until there is room is known for certain, so that a request can be delayed until then.
    pub const fn can_delay(self) -> bool {
        match self {
            Self::Gcra | Self::TokenBucket | Self::RefillBucket | Self::LeakyBucket => true,
            Self::FixedWindow | Self::SlidingWindow | Self::SlidingLog | Self::InFlight | Self::Ban => false,
            Self::Lease(_) => false,
        }
    }

    /// Returns how units become free in this process; those of leases come from the store.
    pub(crate) const fn refill(self) -> Refill {
        match self {
            Self::Gcra | Self::TokenBucket | Self::LeakyBucket => Refill::Continuous,
            Self::RefillBucket => Refill::Batches,
            Self::FixedWindow => Refill::Window,
            Self::SlidingWindow | Self::SlidingLog => Refill::Sliding,
            Self::InFlight | Self::Ban | Self::Lease(_) => Refill::None,
        }
    }

    /// Whether units return one by one during the period, so that more than the limit can pass in one period.
    pub const fn refills_continuously(self) -> bool {
        let counted_by = if let Self::Lease(origin) = self { origin.algorithm() } else { self };
        matches!(counted_by.refill(), Refill::Continuous)
    }

    /// Returns the algorithm for leases on a limit that the store counts by this one; `None` for bans.
    pub const fn leased(self) -> Option<Self> {
        Some(Self::Lease(match self {
            Self::Gcra => StoreAlgorithm::Gcra,
            Self::TokenBucket => StoreAlgorithm::TokenBucket,
            Self::RefillBucket => StoreAlgorithm::RefillBucket,
            Self::LeakyBucket => StoreAlgorithm::LeakyBucket,
            Self::FixedWindow => StoreAlgorithm::FixedWindow,
            Self::SlidingWindow => StoreAlgorithm::SlidingWindow,
            Self::SlidingLog => StoreAlgorithm::SlidingLog,
            Self::InFlight => StoreAlgorithm::InFlight,
            Self::Lease(origin) => origin,
            Self::Ban => return None,
        }))
    }

    /// Returns what its counters count.
    pub const fn counter_kind(self) -> CounterKind {
        match self {
            Self::Gcra
            | Self::TokenBucket
            | Self::RefillBucket
            | Self::LeakyBucket
            | Self::FixedWindow
            | Self::SlidingWindow
            | Self::SlidingLog => CounterKind::Rate,
            Self::InFlight => CounterKind::InFlight,
            Self::Ban => CounterKind::Bans,
            Self::Lease(origin) => origin.algorithm().counter_kind(),
        }
    }

    /// Whether its counters are valid in another process. Requests in flight and leases end with the process.
    pub fn survives_restart(self) -> bool {
        self.counter_kind() != CounterKind::InFlight && !matches!(self, Self::Lease(_))
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Result of one limit for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Within the limit.
    Conform,
    /// Over the limit.
    Exceed {
        /// Time until the same request would conform, if nothing else is charged; `None` if it costs more than the
        /// burst.
        retry_after: Option<Duration>,
    },
}

/// Evaluates a request: returns the next state and the outcome. On [`Outcome::Exceed`] the state is unchanged except
/// that it is brought forward to `now`.
///
/// `None` is an unused counter. Costs saturate; a `cost` of zero conforms unless the counter is in debt. For a
/// [`History`] the returned state is the one to pass to [`History::apply_state`].
// Inline for the algorithm that most limits use, so that its state stays in registers.
#[inline(always)]
pub fn evaluate<'a>(
    counter: impl Into<Counter<'a>>,
    quota: &Quota,
    cost: u32,
    now: Timestamp,
) -> (CounterState, Outcome) {
    let state = match counter.into() {
        Counter::Unused => None,
        Counter::Compact(state) => Some(state),
        Counter::WithHistory(history) => return history.evaluate(quota, cost, now),
    };
    if quota.algorithm() == Algorithm::Gcra {
        return gcra::evaluate(state, quota, cost, now);
    }
    evaluate_other(state, quota, cost, now)
}

#[inline(never)]
fn evaluate_other(
    state: Option<CounterState>,
    quota: &Quota,
    cost: u32,
    now: Timestamp,
) -> (CounterState, Outcome) {
    match quota.algorithm() {
        Algorithm::Gcra => gcra::evaluate(state, quota, cost, now),
        Algorithm::TokenBucket => token_bucket::evaluate(state, quota, cost, now),
        Algorithm::RefillBucket => refill_bucket::evaluate(state, quota, cost, now),
        Algorithm::LeakyBucket => leaky_bucket::evaluate(state, quota, cost, now),
        Algorithm::FixedWindow => fixed_window::evaluate(state, quota, cost, now),
        Algorithm::SlidingWindow if !quota.needs_history() => {
            sliding_window::evaluate(state, quota, cost, now)
        }
        Algorithm::SlidingWindow | Algorithm::SlidingLog => aggregate::evaluate(state, quota, cost, now),
        Algorithm::InFlight => in_flight::evaluate(state, quota, cost),
        Algorithm::Ban => ban::evaluate(state, now),
        Algorithm::Lease(_) => lease::evaluate(state, cost, now),
    }
}

/// Charges `amount` units without rejecting, for costs that are known later and for charged rejections. A negative
/// `amount` gives units back, at most down to an unused quota.
pub fn charge(state: Option<CounterState>, quota: &Quota, amount: i64, now: Timestamp) -> CounterState {
    match quota.algorithm() {
        Algorithm::Gcra => gcra::charge(state, quota, amount, now),
        Algorithm::TokenBucket => token_bucket::charge(state, quota, amount, now),
        Algorithm::RefillBucket => refill_bucket::charge(state, quota, amount, now),
        Algorithm::LeakyBucket => leaky_bucket::charge(state, quota, amount, now),
        Algorithm::FixedWindow => fixed_window::charge(state, quota, amount, now),
        Algorithm::SlidingWindow if !quota.needs_history() => {
            sliding_window::charge(state, quota, amount, now)
        }
        Algorithm::SlidingWindow | Algorithm::SlidingLog => aggregate::charge(state, quota, amount, now),
        Algorithm::InFlight => in_flight::charge(state, amount),
        Algorithm::Ban => ban::charge(state),
        Algorithm::Lease(_) => lease::charge(state, amount, now),
    }
}

/// Gives back `amount` units that were charged at `charged`, as of `now`. Units that time has already given
/// back are not given back again. The result is at most an unused quota.
pub fn refund(
    state: Option<CounterState>,
    quota: &Quota,
    amount: u32,
    charged: Timestamp,
    now: Timestamp,
) -> CounterState {
    match quota.algorithm() {
        Algorithm::Gcra => gcra::refund(state, quota, amount, charged, now),
        Algorithm::TokenBucket => token_bucket::refund(state, quota, amount, charged, now),
        Algorithm::RefillBucket => refill_bucket::refund(state, quota, amount, charged, now),
        Algorithm::LeakyBucket => leaky_bucket::refund(state, quota, amount, charged, now),
        Algorithm::FixedWindow => fixed_window::refund(state, quota, amount, charged, now),
        Algorithm::SlidingWindow if !quota.needs_history() => {
            sliding_window::refund(state, quota, amount, charged, now)
        }
        Algorithm::SlidingWindow | Algorithm::SlidingLog => {
            aggregate::refund(state, quota, amount, charged, now)
        }
        Algorithm::InFlight | Algorithm::Ban | Algorithm::Lease(_) => {
            charge(state, quota, -i64::from(amount), now)
        }
    }
}

/// Returns the units used, the units left, and the time until the quota is whole again.
#[inline]
pub fn usage<'a>(counter: impl Into<Counter<'a>>, quota: &Quota, now: Timestamp) -> CounterUsage {
    let state = counter.into().compact_state(quota, now);
    if quota.algorithm() == Algorithm::Gcra {
        return gcra::usage(state, quota, now);
    }
    usage_of_other(state, quota, now)
}

#[inline(never)]
fn usage_of_other(state: Option<CounterState>, quota: &Quota, now: Timestamp) -> CounterUsage {
    match quota.algorithm() {
        Algorithm::Gcra => gcra::usage(state, quota, now),
        Algorithm::TokenBucket => token_bucket::usage(state, quota, now),
        Algorithm::RefillBucket => refill_bucket::usage(state, quota, now),
        Algorithm::LeakyBucket => leaky_bucket::usage(state, quota, now),
        Algorithm::FixedWindow => fixed_window::usage(state, quota, now),
        Algorithm::SlidingWindow if !quota.needs_history() => sliding_window::usage(state, quota, now),
        Algorithm::SlidingWindow | Algorithm::SlidingLog => aggregate::usage(state, quota, now),
        Algorithm::InFlight => in_flight::usage(state, quota),
        Algorithm::Ban => ban::usage(state, now),
        Algorithm::Lease(_) => lease::usage(state, quota, now),
    }
}

/// Whether a counter is equivalent to an unused one. Only then may it be removed.
pub fn is_unused(state: CounterState, quota: &Quota, now: Timestamp) -> bool {
    match quota.algorithm() {
        Algorithm::Gcra => gcra::is_unused(state, now),
        Algorithm::TokenBucket => token_bucket::is_unused(state, quota, now),
        Algorithm::RefillBucket => refill_bucket::is_unused(state, quota, now),
        Algorithm::LeakyBucket => leaky_bucket::is_unused(state, now),
        Algorithm::FixedWindow => fixed_window::is_unused(state, quota, now),
        Algorithm::SlidingWindow if !quota.needs_history() => sliding_window::is_unused(state, quota, now),
        Algorithm::SlidingWindow | Algorithm::SlidingLog => aggregate::is_unused(state, now),
        Algorithm::InFlight => in_flight::is_unused(state),
        Algorithm::Ban => ban::is_unused(state, quota, now),
        Algorithm::Lease(_) => lease::is_unused(state, now),
    }
}

/// Time until a request of `cost` would leave the counter owing at most `owed` units beyond its burst, if nothing else
/// is charged. Zero for algorithms that cannot delay.
pub(super) fn time_until_debt(
    state: Option<CounterState>,
    quota: &Quota,
    cost: u32,
    owed: u64,
    now: Timestamp,
) -> Duration {
    match quota.algorithm() {
        Algorithm::Gcra => gcra::time_until_debt(state, quota, cost, owed, now),
        Algorithm::LeakyBucket => leaky_bucket::time_until_debt(state, quota, cost, owed, now),
        Algorithm::TokenBucket => token_bucket::time_until_debt(state, quota, cost, owed, now),
        Algorithm::RefillBucket => refill_bucket::time_until_debt(state, quota, cost, owed, now),
        Algorithm::FixedWindow
        | Algorithm::SlidingWindow
        | Algorithm::SlidingLog
        | Algorithm::InFlight
        | Algorithm::Ban
        | Algorithm::Lease(_) => Duration::ZERO,
    }
}

/// Maximum by which rounding can extend an announced wait, though nothing else is charged.
pub(super) fn rounding(quota: &Quota) -> Duration {
    match quota.algorithm() {
        Algorithm::TokenBucket => token_bucket::rounding(quota),
        Algorithm::Gcra
        | Algorithm::RefillBucket
        | Algorithm::LeakyBucket
        | Algorithm::FixedWindow
        | Algorithm::SlidingWindow
        | Algorithm::SlidingLog
        | Algorithm::InFlight
        | Algorithm::Ban
        | Algorithm::Lease(_) => Duration::ZERO,
    }
}

/// Whether state has the same format under two quotas that differ only in their counts.
pub(super) fn has_compatible_state(one: &Quota, other: &Quota) -> bool {
    one.algorithm() != Algorithm::SlidingWindow
        || sliding_window::has_lapse_bit(one) == sliding_window::has_lapse_bit(other)
}

/// Whether more units are in use than the quota has, as a debt that time pays at the quota's rate.
fn is_in_debt(state: CounterState, quota: &Quota, now: Timestamp) -> bool {
    match quota.algorithm() {
        Algorithm::FixedWindow => fixed_window::is_in_debt(state, quota, now),
        Algorithm::SlidingWindow if !quota.needs_history() => sliding_window::is_in_debt(state, quota, now),
        Algorithm::SlidingWindow | Algorithm::SlidingLog => aggregate::is_in_debt(state, quota, now),
        Algorithm::Gcra
        | Algorithm::TokenBucket
        | Algorithm::RefillBucket
        | Algorithm::LeakyBucket
        | Algorithm::InFlight
        | Algorithm::Ban => usage(Some(state), quota, now).used > quota.capacity(),
        // The debt of a lease is to the store.
        Algorithm::Lease(_) => false,
    }
}

/// Returns the same usage with no debt: units beyond a window's count expire with it instead of carrying over.
fn with_lapsing_excess(state: CounterState, quota: &Quota, now: Timestamp) -> CounterState {
    match quota.algorithm() {
        Algorithm::FixedWindow => fixed_window::with_lapsing_excess(state, quota, now),
        Algorithm::SlidingWindow if !quota.needs_history() => {
            sliding_window::with_lapsing_excess(state, quota, now)
        }
        Algorithm::SlidingWindow | Algorithm::SlidingLog => aggregate::with_lapsing_excess(state, quota, now),
        Algorithm::Gcra
        | Algorithm::TokenBucket
        | Algorithm::RefillBucket
        | Algorithm::LeakyBucket
        | Algorithm::InFlight
        | Algorithm::Ban
        | Algorithm::Lease(_) => state,
    }
}

#[cfg(test)]
mod tests;
