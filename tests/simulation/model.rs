//! What has been admitted, by arithmetic of its own: no nanosecond of it comes from the limiter.
//!
//! Where the limiter rounds, it does so against the client, and this model for it: so what the model has no room
//! for must not pass.

use weir::limiter::algorithm::Algorithm;
use weir::limiter::quota::Quota;

/// One key under one limit.
#[derive(Clone, Debug)]
pub(crate) struct Counter {
    used: Used,
    /// Reserved for answers that have not come.
    pub(crate) held: u64,
    /// Units that roundings may have cost the client so far; `None` where nobody can say.
    slack: Option<u64>,
}

#[derive(Clone, Debug)]
enum Used {
    /// Units times the period's nanoseconds, when last charged.
    Level { scaled: u128, at: u64 },
    /// Units between two marks of the clock.
    Window { mark: u64, units: u64 },
    /// Units by when they were charged.
    Log(Vec<(u64, u64)>),
}

impl Counter {
    pub(crate) fn new(quota: &Quota) -> Self {
        let slack = (!guesses(quota)).then_some(1);
        Self { used: Used::new(quota, 0, 0), held: 0, slack }
    }

    /// Whether the limit is kept if `cost` passes.
    pub(crate) fn has_room(&self, quota: &Quota, cost: u64, now: u64) -> bool {
        self.used.in_use(quota, now) + u128::from(self.held + cost) * period(quota)
            <= most(quota) * period(quota)
    }

    /// Whether there is so much room for `cost` that to refuse it is wrong.
    pub(crate) fn has_plenty_of_room(&self, quota: &Quota, cost: u64, now: u64) -> bool {
        let stood_still = matches!(self.used, Used::Level { at, .. } if at > now);
        self.slack.is_some_and(|slack| !stood_still && self.has_room(quota, cost + slack, now))
    }

    pub(crate) fn charge(&mut self, quota: &Quota, units: u64, now: u64) {
        let in_use = self.used.in_use(quota, now);
        match &mut self.used {
            Used::Level { scaled, at } => {
                *scaled = in_use + u128::from(units) * period(quota);
                *at = now.max(*at);
            }
            Used::Window { mark, units: used } => {
                *used = u64::try_from(in_use / period(quota)).unwrap_or(u64::MAX) + units;
                *mark = mark_of(quota, now).max(*mark);
            }
            Used::Log(charged) => {
                let now = latest(charged, now);
                charged.push((now, units));
            }
        }
    }

    /// Another quota takes over, and units in use stay in use.
    pub(crate) fn convert(&mut self, from: &Quota, to: &Quota, now: u64) {
        let is_log = |quota: &Quota| quota.algorithm() == Algorithm::SlidingLog;
        // A log goes on where only its count changes.
        if from != to && !(is_log(from) && is_log(to) && from.window() == to.window()) {
            self.carry(from, to, (now, now));
        }
    }

    /// Another process takes over whose clock is behind: no time has passed.
    pub(crate) fn rebase(&mut self, quota: &Quota, (then, now): (u64, u64)) {
        self.carry(quota, quota, (then, now));
    }

    fn carry(&mut self, from: &Quota, to: &Quota, (then, now): (u64, u64)) {
        let whole = self.used.in_use(from, then) / period(from);
        self.used = Used::new(to, u64::try_from(whole).unwrap_or(u64::MAX), now);
        let guesses = guesses(from) || guesses(to);
        self.slack = self.slack.filter(|_| !guesses).map(|slack| slack + 1);
    }
}

impl Used {
    fn new(quota: &Quota, units: u64, now: u64) -> Self {
        match quota.algorithm() {
            Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                Self::Level { scaled: u128::from(units) * period(quota), at: now }
            }
            // Between two marks a sliding window admits no more than a fixed one.
            Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                Self::Window { mark: mark_of(quota, now), units }
            }
            Algorithm::SlidingLog => Self::Log(Vec::from([(now, units)])),
            // Nothing is ever charged: all of it is held.
            Algorithm::InFlight => Self::Level { scaled: 0, at: 0 },
            Algorithm::Ban => panic!("not in this simulation"),
        }
    }

    /// Units times the period's nanoseconds.
    fn in_use(&self, quota: &Quota, now: u64) -> u128 {
        match self {
            Self::Level { scaled, at } => {
                let count = u128::from(quota.limit().count.get());
                scaled.saturating_sub(u128::from(now.saturating_sub(*at)) * count)
            }
            Self::Window { mark, units } if *mark >= mark_of(quota, now) => {
                u128::from(*units) * period(quota)
            }
            Self::Window { .. } => 0,
            Self::Log(charged) => {
                let now = u128::from(latest(charged, now));
                let counts = |(at, _): &&(u64, u64)| u128::from(*at) + period(quota) > now;
                let units: u64 = charged.iter().filter(counts).map(|(_, units)| units).sum();
                u128::from(units) * period(quota)
            }
        }
    }
}

/// Who cannot be told to be too strict: a sliding window by its nature, a log when what it remembers has been
/// said in short.
fn guesses(quota: &Quota) -> bool {
    matches!(quota.algorithm(), Algorithm::SlidingWindow | Algorithm::SlidingLog)
}

/// `now`, or the last charge where the clock has stepped back behind it.
fn latest(charged: &[(u64, u64)], now: u64) -> u64 {
    charged.last().map_or(0, |(at, _)| *at).max(now)
}

fn period(quota: &Quota) -> u128 {
    quota.limit().period.nanos().into()
}

fn most(quota: &Quota) -> u128 {
    let has_burst = quota.algorithm().has_burst();
    if has_burst { quota.burst().get().into() } else { quota.limit().count.get().into() }
}

/// Which of the windows from the epoch on; right for units up to a day.
fn mark_of(quota: &Quota, now: u64) -> u64 {
    now / quota.limit().period.nanos()
}
