//! The ways to count, behind one signature.
//!
//! An algorithm is a pure function of what a counter remembers, the quota, the cost and the time. It neither
//! stores nor reads a clock: the caller decides whether the next state is kept. Adding one means a file
//! under `algorithm/` and an arm in each `match` below, which the compiler asks for.

pub mod conversion;
pub mod history;

pub(super) mod ban;
pub(super) mod claim;
pub(super) mod fixed_window;
pub(super) mod saved;

mod bucket;
mod gcra;
mod in_flight;
mod leaky_bucket;
mod lookback;
mod lump;
mod refill_bucket;
mod sliding_log;
mod sliding_window;
mod token_bucket;

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

pub use self::conversion::convert;
use self::history::History;
use super::quota::Quota;
use super::timestamp::Timestamp;

/// How a limit is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Generic cell rate algorithm (ITU-T I.371): evenly spaced, with a burst; one arrival time of state.
    #[default]
    Gcra,
    /// Whole tokens that refill at the limit's rate up to the burst.
    TokenBucket,
    /// Tokens of which so many come at once every so often, up to the burst. Not by name: `token_bucket` with `refill`
    /// asks for it.
    #[serde(skip)]
    RefillBucket,
    /// A level that drains at the limit's rate; where requests are delayed, a queue they leave evenly spaced.
    LeakyBucket,
    /// So many per window aligned to the clock and the calendar.
    FixedWindow,
    /// So many per window that ends now, as far as two fixed ones tell.
    SlidingWindow,
    /// So many in any span as long as the period, exactly.
    SlidingLog,
    /// So many at once: what is under way, given back when it ends. Not by name: `in_flight` asks for it.
    #[serde(skip)]
    InFlight,
    /// Until when a key is refused everything. Not by name: `on_limit.ban` asks for it.
    #[serde(skip)]
    Ban,
    /// Units that the store has granted of a limit that is counted there, by the algorithm named. Not by name:
    /// `scope: shared` asks for it.
    #[serde(skip)]
    Claim(Origin),
}

/// How the store counts a shared limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
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

impl Origin {
    /// The algorithm.
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

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// Units per time.
    Rate,
    /// Requests in flight.
    InFlight,
    /// Bans in a row.
    Bans,
}

impl Algorithm {
    /// Every algorithm that a limit may name, in the order of the documentation.
    pub const ALL: [Self; 6] = [
        Self::Gcra,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingLog,
    ];

    /// Every algorithm that counts a rate: those, and the bucket with refills.
    pub const RATES: [Self; 7] = [
        Self::Gcra,
        Self::TokenBucket,
        Self::RefillBucket,
        Self::LeakyBucket,
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingLog,
    ];

    /// The name in configuration.
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
            Self::Claim(origin) => origin.algorithm().as_str(),
        }
    }

    /// Whether `burst` means anything for it.
    pub const fn has_burst(self) -> bool {
        match self {
            Self::Gcra | Self::TokenBucket | Self::RefillBucket | Self::LeakyBucket => true,
            Self::FixedWindow | Self::SlidingWindow | Self::SlidingLog | Self::InFlight | Self::Ban => false,
            Self::Claim(origin) => origin.algorithm().has_burst(),
        }
    }

    /// Whether it knows for sure when there will be room, so that requests can be told to come then.
    pub const fn can_delay(self) -> bool {
        match self {
            Self::Gcra | Self::TokenBucket | Self::RefillBucket | Self::LeakyBucket => true,
            Self::FixedWindow | Self::SlidingWindow | Self::SlidingLog | Self::InFlight | Self::Ban => false,
            Self::Claim(_) => false,
        }
    }

    /// Whether units come back one by one while the period runs, so that more than the limit may pass in it.
    pub const fn gives_back_one_by_one(self) -> bool {
        match self {
            Self::Gcra | Self::TokenBucket | Self::LeakyBucket => true,
            Self::RefillBucket
            | Self::FixedWindow
            | Self::SlidingWindow
            | Self::SlidingLog
            | Self::InFlight
            | Self::Ban => false,
            Self::Claim(origin) => origin.algorithm().gives_back_one_by_one(),
        }
    }

    /// The claim on a limit that the store counts by this algorithm; `None` where there is none to share.
    pub const fn claim(self) -> Option<Self> {
        Some(Self::Claim(match self {
            Self::Gcra => Origin::Gcra,
            Self::TokenBucket => Origin::TokenBucket,
            Self::RefillBucket => Origin::RefillBucket,
            Self::LeakyBucket => Origin::LeakyBucket,
            Self::FixedWindow => Origin::FixedWindow,
            Self::SlidingWindow => Origin::SlidingWindow,
            Self::SlidingLog => Origin::SlidingLog,
            Self::InFlight => Origin::InFlight,
            Self::Claim(origin) => origin,
            Self::Ban => return None,
        }))
    }

    /// What its counters count.
    pub const fn counts(self) -> Counts {
        match self {
            Self::Gcra
            | Self::TokenBucket
            | Self::RefillBucket
            | Self::LeakyBucket
            | Self::FixedWindow
            | Self::SlidingWindow
            | Self::SlidingLog => Counts::Rate,
            Self::InFlight => Counts::InFlight,
            Self::Ban => Counts::Bans,
            Self::Claim(origin) => origin.algorithm().counts(),
        }
    }

    /// Whether its counters mean anything to another process: what is in flight ends with this one, and so do claims.
    pub fn outlives_process(self) -> bool {
        self.counts() != Counts::InFlight && !matches!(self, Self::Claim(_))
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What one counter says in twelve bytes that only the algorithm of its quota can read. For most algorithms it
/// is all that they remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub(super) word: u64,
    pub(super) extra: u32,
}

/// What one counter remembers, where it is kept.
#[derive(Clone, Copy, Debug)]
pub enum Counter<'a> {
    /// Nothing: a full quota.
    Unused,
    /// Twelve bytes.
    Short(State),
    /// What was charged when: logs and precise windows.
    Long(&'a History),
}

impl From<Option<State>> for Counter<'_> {
    fn from(state: Option<State>) -> Self {
        state.map_or(Self::Unused, Self::Short)
    }
}

impl<'a> From<&'a History> for Counter<'a> {
    fn from(history: &'a History) -> Self {
        Self::Long(history)
    }
}

impl Counter<'_> {
    /// The counter in twelve bytes, as it is at `now`.
    pub fn in_short(self, quota: &Quota, now: Timestamp) -> Option<State> {
        match self {
            Self::Unused => None,
            Self::Short(state) => Some(state),
            Self::Long(history) => Some(history.in_short(quota, now)),
        }
    }
}

/// The answer of one limit to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Within the limit.
    Conform,
    /// Over the limit; would conform after `retry_after`, `None` if it never can (it costs more than the burst).
    Exceed {
        /// Time until the same request would conform, if nothing else is charged.
        retry_after: Option<Duration>,
    },
}

/// A counter as people ask about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Units in use, rounded up; may exceed the burst after a late charge or a lowered limit.
    pub used: u32,
    /// Units that would pass right now, rounded down.
    pub remaining: u32,
    /// Time until the quota is whole again: full (gcra, buckets) or the window's end.
    pub reset: Duration,
}

impl Usage {
    /// In requests that cost so many units each.
    pub fn at_price(self, price: NonZeroU32) -> Self {
        Self { used: self.used.div_ceil(price.get()), remaining: self.remaining / price, ..self }
    }
}

/// State in, next state and outcome out. The caller decides whether `next` is kept: on
/// [`Outcome::Exceed`] it is the state as it was, brought forward to `now`.
///
/// `None` is a counter that nobody has used: a full quota. Costs saturate; a `cost` of zero always conforms
/// unless the counter is in debt. Of a [`History`] the answer is what it will say in short, for it to follow.
// Inline as far as the algorithm that most limits use: the state then never goes through memory.
#[inline(always)]
pub fn evaluate<'a>(
    counter: impl Into<Counter<'a>>,
    quota: &Quota,
    cost: u32,
    now: Timestamp,
) -> (State, Outcome) {
    let state = match counter.into() {
        Counter::Unused => None,
        Counter::Short(state) => Some(state),
        Counter::Long(history) => return history.evaluate(quota, cost, now),
    };
    if quota.algorithm() == Algorithm::Gcra {
        return gcra::evaluate(state, quota, cost, now);
    }
    evaluate_other(state, quota, cost, now)
}

#[inline(never)]
fn evaluate_other(state: Option<State>, quota: &Quota, cost: u32, now: Timestamp) -> (State, Outcome) {
    match quota.algorithm() {
        Algorithm::Gcra => gcra::evaluate(state, quota, cost, now),
        Algorithm::TokenBucket => token_bucket::evaluate(state, quota, cost, now),
        Algorithm::RefillBucket => refill_bucket::evaluate(state, quota, cost, now),
        Algorithm::LeakyBucket => leaky_bucket::evaluate(state, quota, cost, now),
        Algorithm::FixedWindow => fixed_window::evaluate(state, quota, cost, now),
        Algorithm::SlidingWindow if !quota.looks_back() => sliding_window::evaluate(state, quota, cost, now),
        Algorithm::SlidingWindow | Algorithm::SlidingLog => lump::evaluate(state, quota, cost, now),
        Algorithm::InFlight => in_flight::evaluate(state, quota, cost),
        Algorithm::Ban => ban::evaluate(state, now),
        Algorithm::Claim(_) => claim::evaluate(state, cost, now),
    }
}

/// Never refuses: settles a cost known later, charges a refused request where asked to; a negative
/// `amount` gives back, at most down to an unused quota.
pub fn charge(state: Option<State>, quota: &Quota, amount: i64, now: Timestamp) -> State {
    match quota.algorithm() {
        Algorithm::Gcra => gcra::charge(state, quota, amount, now),
        Algorithm::TokenBucket => token_bucket::charge(state, quota, amount, now),
        Algorithm::RefillBucket => refill_bucket::charge(state, quota, amount, now),
        Algorithm::LeakyBucket => leaky_bucket::charge(state, quota, amount, now),
        Algorithm::FixedWindow => fixed_window::charge(state, quota, amount, now),
        Algorithm::SlidingWindow if !quota.looks_back() => sliding_window::charge(state, quota, amount, now),
        Algorithm::SlidingWindow | Algorithm::SlidingLog => lump::charge(state, quota, amount, now),
        Algorithm::InFlight => in_flight::charge(state, amount),
        Algorithm::Ban => ban::charge(state),
        Algorithm::Claim(_) => claim::charge(state, amount, now),
    }
}

/// Gives back `amount` units charged at the first of two moments, at the second: as much as time has not given
/// back already, so that nothing is given back twice. Never more than an unused quota.
pub fn refund(
    state: Option<State>,
    quota: &Quota,
    amount: u32,
    (charged, now): (Timestamp, Timestamp),
) -> State {
    match quota.algorithm() {
        Algorithm::Gcra => gcra::refund(state, quota, amount, (charged, now)),
        Algorithm::TokenBucket => token_bucket::refund(state, quota, amount, (charged, now)),
        Algorithm::RefillBucket => refill_bucket::refund(state, quota, amount, (charged, now)),
        Algorithm::LeakyBucket => leaky_bucket::refund(state, quota, amount, (charged, now)),
        Algorithm::FixedWindow => fixed_window::refund(state, quota, amount, (charged, now)),
        Algorithm::SlidingWindow if !quota.looks_back() => {
            sliding_window::refund(state, quota, amount, (charged, now))
        }
        Algorithm::SlidingWindow | Algorithm::SlidingLog => {
            lump::refund(state, quota, amount, (charged, now))
        }
        Algorithm::InFlight | Algorithm::Ban | Algorithm::Claim(_) => {
            charge(state, quota, -i64::from(amount), now)
        }
    }
}

/// How much of the quota is used, left, and when it is whole again.
pub fn usage<'a>(counter: impl Into<Counter<'a>>, quota: &Quota, now: Timestamp) -> Usage {
    let state = counter.into().in_short(quota, now);
    match quota.algorithm() {
        Algorithm::Gcra => gcra::usage(state, quota, now),
        Algorithm::TokenBucket => token_bucket::usage(state, quota, now),
        Algorithm::RefillBucket => refill_bucket::usage(state, quota, now),
        Algorithm::LeakyBucket => leaky_bucket::usage(state, quota, now),
        Algorithm::FixedWindow => fixed_window::usage(state, quota, now),
        Algorithm::SlidingWindow if !quota.looks_back() => sliding_window::usage(state, quota, now),
        Algorithm::SlidingWindow | Algorithm::SlidingLog => lump::usage(state, quota, now),
        Algorithm::InFlight => in_flight::usage(state, quota),
        Algorithm::Ban => ban::usage(state, now),
        Algorithm::Claim(_) => claim::usage(state, quota, now),
    }
}

/// Whether a counter says no more than `None` would: only then may it be forgotten.
pub fn is_unused(state: State, quota: &Quota, now: Timestamp) -> bool {
    match quota.algorithm() {
        Algorithm::Gcra => gcra::is_unused(state, now),
        Algorithm::TokenBucket => token_bucket::is_unused(state, quota, now),
        Algorithm::RefillBucket => refill_bucket::is_unused(state, quota, now),
        Algorithm::LeakyBucket => leaky_bucket::is_unused(state, now),
        Algorithm::FixedWindow => fixed_window::is_unused(state, quota, now),
        Algorithm::SlidingWindow if !quota.looks_back() => sliding_window::is_unused(state, quota, now),
        Algorithm::SlidingWindow | Algorithm::SlidingLog => lump::is_unused(state, now),
        Algorithm::InFlight => in_flight::is_unused(state),
        Algorithm::Ban => ban::is_unused(state, quota, now),
        Algorithm::Claim(_) => claim::says_nothing(state, now),
    }
}

/// How long until a request of `cost` would leave the counter owing no more than `owed` units beyond its burst, if
/// nothing else is charged. Nothing for algorithms that cannot delay.
pub(super) fn until_owed(
    state: Option<State>,
    quota: &Quota,
    (cost, owed): (u32, u64),
    now: Timestamp,
) -> Duration {
    match quota.algorithm() {
        Algorithm::Gcra => gcra::until_owed(state, quota, (cost, owed), now),
        Algorithm::LeakyBucket => leaky_bucket::until_owed(state, quota, (cost, owed), now),
        Algorithm::TokenBucket => token_bucket::until_owed(state, quota, (cost, owed), now),
        Algorithm::RefillBucket => refill_bucket::until_owed(state, quota, (cost, owed), now),
        Algorithm::FixedWindow
        | Algorithm::SlidingWindow
        | Algorithm::SlidingLog
        | Algorithm::InFlight
        | Algorithm::Ban
        | Algorithm::Claim(_) => Duration::ZERO,
    }
}

/// By how much a wait that was announced may have grown when it is over, though nothing has been charged meanwhile.
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
        | Algorithm::Claim(_) => Duration::ZERO,
    }
}

/// Whether what is remembered under one of two quotas that differ in their counts alone is read alike under the other.
pub(super) fn has_like_state(one: &Quota, other: &Quota) -> bool {
    one.algorithm() != Algorithm::SlidingWindow
        || sliding_window::can_lapse(one) == sliding_window::can_lapse(other)
}

/// Whether more is in use than the quota has, and time pays it at the quota's rate.
fn is_in_debt(state: State, quota: &Quota, now: Timestamp) -> bool {
    match quota.algorithm() {
        Algorithm::FixedWindow => fixed_window::is_in_debt(state, quota, now),
        Algorithm::SlidingWindow if !quota.looks_back() => sliding_window::is_in_debt(state, quota, now),
        Algorithm::SlidingWindow | Algorithm::SlidingLog => lump::is_in_debt(state, quota, now),
        Algorithm::Gcra
        | Algorithm::TokenBucket
        | Algorithm::RefillBucket
        | Algorithm::LeakyBucket
        | Algorithm::InFlight
        | Algorithm::Ban => usage(Some(state), quota, now).used > quota.capacity(),
        // What is owed is owed to the store.
        Algorithm::Claim(_) => false,
    }
}

/// The same in use, of which what is beyond a window's count is no debt: it is not carried over to the next window.
fn lapsing(state: State, quota: &Quota, now: Timestamp) -> State {
    match quota.algorithm() {
        Algorithm::FixedWindow => fixed_window::lapsing(state, quota, now),
        Algorithm::SlidingWindow if !quota.looks_back() => sliding_window::lapsing(state, quota, now),
        Algorithm::SlidingWindow | Algorithm::SlidingLog => lump::lapsing(state, quota, now),
        Algorithm::Gcra
        | Algorithm::TokenBucket
        | Algorithm::RefillBucket
        | Algorithm::LeakyBucket
        | Algorithm::InFlight
        | Algorithm::Ban
        | Algorithm::Claim(_) => state,
    }
}

#[cfg(test)]
mod tests;
