//! What is asked of the store about one counter, and what it grants.

use std::time::Duration;

use super::{SharedCounter, Sharing};
use crate::limiter::algorithm::{Algorithm, fixed_window};
use crate::limiter::quota::Quota;
use crate::limiter::timestamp::Timestamp;

/// No claim is valid for longer: so long a unit may be out of use, and so long a limit's change takes at most.
pub(super) const MAX_VALID: Duration = Duration::from_secs(1);
/// Claims that would be valid for less are for requests that wait, one by one.
const MIN_VALID: Duration = Duration::from_millis(4);
/// A claim for a waiting request is decided when it is granted; it has so long to get there.
const TO_ARRIVE: Duration = Duration::from_millis(20);
/// Sub-windows in which the store looks at a sliding window.
const PARTS: u32 = 100;
/// How long permits are out without a word from their instance.
const PERMITS_VALID: Duration = Duration::from_secs(3);

/// What is asked about one counter.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Which.
    pub counter: SharedCounter,
    /// How the store counts it.
    pub kind: Kind,
    /// How it is shared.
    pub sharing: Sharing,
    /// How long a claim is valid from the question on; zero where it is for requests that wait.
    pub valid: Duration,
    /// Units for requests that wait: all of them or none are granted.
    pub needed: u32,
    /// Units that would be spent within `period`, those included.
    pub wanted: u32,
    /// Units demanded since the last question, spent or rejected.
    pub demanded: u32,
    /// How long ago that was.
    pub elapsed: Duration,
    /// Units given back, which were granted at this time of the store's or later.
    pub returned: (u32, u64),
    /// Units spent beyond what was granted.
    pub owed: u32,
    /// The time that `wanted` is for.
    pub period: Duration,
}

/// How the store counts a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A bucket that drains one unit each so many microseconds.
    Bucket {
        /// Microseconds in which one unit drains.
        interval: f64,
        /// The most that may be in it.
        burst: u32,
    },
    /// So many per window of the clock and the calendar.
    Window {
        /// Units.
        count: u32,
        /// The quota, whose calendar gives the marks.
        quota: Quota,
    },
    /// So many in any span of this length.
    Sliding {
        /// Units.
        count: u32,
        /// The span.
        length: Duration,
        /// Sub-windows it is looked at in.
        parts: u32,
    },
    /// So many tokens each so often, up to a burst.
    Refill {
        /// Tokens of one refill.
        count: u32,
        /// From one to the next.
        every: Duration,
        /// The most there are.
        burst: u32,
    },
    /// So many at once.
    Permits {
        /// Permits.
        count: u32,
        /// Those in use here.
        used: u32,
        /// Those that may be used here until the store has responded.
        held: u32,
    },
}

/// What the store grants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Units.
    pub granted: u32,
    /// For how long from when the question was sent.
    pub valid: Duration,
    /// The store's time of the grant, in microseconds.
    pub at: u64,
    /// Where it grants nothing to requests that wait: for how long there is nothing.
    pub wait: Duration,
    /// What instances spread their questions over after that.
    pub spread: Duration,
    /// Where it has cut what was wanted: when the next share is due.
    pub pause: Duration,
    /// Units that are left for all instances.
    pub remaining: u32,
}

impl Question {
    /// A number from 0 to 1 that differs from instance to instance, so that not all of them ask at one moment.
    pub(super) fn part(&self) -> f64 {
        let (name, nanos) = (self.counter.name() as u64, self.elapsed.as_nanos() as u64);
        let mixed = (name ^ nanos).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }
}

impl Kind {
    pub(super) fn of(quota: &Quota, in_use: u64) -> Self {
        let quota = quota.counted();
        let count = u32::try_from(quota.count()).unwrap_or(u32::MAX);
        match quota.algorithm() {
            Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket => Self::Bucket {
                interval: quota.period() as f64 / 1000.0 / f64::from(count),
                burst: quota.capacity(),
            },
            Algorithm::RefillBucket => {
                Self::Refill { count, every: quota.window().duration(), burst: quota.capacity() }
            }
            Algorithm::FixedWindow => Self::Window { count, quota },
            Algorithm::SlidingWindow | Algorithm::SlidingLog => {
                Self::Sliding { count, length: quota.window().duration(), parts: PARTS }
            }
            Algorithm::InFlight | Algorithm::Ban | Algorithm::Claim(_) => {
                let used = u32::try_from(in_use).unwrap_or(u32::MAX);
                Self::Permits { count: quota.capacity(), used, held: 0 }
            }
        }
    }

    /// How long a claim may be valid for the bound to hold: a bucket's burst is smaller in the store by what drains
    /// meanwhile, and half of it has to be left; what windows count has to be spent in the same part of a window.
    fn max_valid(&self) -> Duration {
        let most = match *self {
            Self::Bucket { interval, burst } => {
                Duration::from_secs_f64(interval * f64::from(burst - 1) / 2.0 / 1e6)
            }
            Self::Window { .. } => MAX_VALID,
            Self::Sliding { length, parts, .. } => length / parts,
            Self::Refill { every, .. } => every,
            Self::Permits { .. } => return PERMITS_VALID,
        };
        if most < MIN_VALID { Duration::ZERO } else { most.min(MAX_VALID) }
    }

    /// The longest that a claim is valid; zero where it is for requests that wait, and is valid until it has got there.
    pub(super) fn longest(&self, is_exact: bool) -> Duration {
        match self {
            // Not even a little of the burst is kept for what has been granted and is not spent yet.
            Self::Bucket { .. } if is_exact => Duration::ZERO,
            Self::Window { .. } | Self::Sliding { .. } | Self::Refill { .. } if is_exact => {
                self.max_valid().min(TO_ARRIVE)
            }
            _ => self.max_valid(),
        }
    }

    /// How long a claim is valid that is for requests that wait.
    pub(super) fn valid_to_arrive(&self, is_exact: bool) -> Duration {
        self.longest(is_exact).min(TO_ARRIVE)
    }

    /// The most units that one question can bring.
    pub(super) fn capacity(&self) -> u32 {
        match *self {
            Self::Bucket { burst, .. } | Self::Refill { burst, .. } => burst,
            Self::Window { count, .. } | Self::Sliding { count, .. } | Self::Permits { count, .. } => count,
        }
    }

    /// Units that a claim which is valid for so long may have at most.
    pub(super) fn claimable(&self, valid: Duration) -> f64 {
        match *self {
            Self::Bucket { interval, burst } => f64::from(burst) - valid.as_secs_f64() * 1e6 / interval,
            _ => f64::from(self.capacity()),
        }
    }

    pub(super) const fn is_permits(&self) -> bool {
        matches!(self, Self::Permits { .. })
    }
}

/// Units that instances may admit beyond what one instance would, in any window, while the store counts `quota` and no
/// request costs more than `cost`: what it grants to requests that wait is spent up to [`TO_ARRIVE`] later than it was counted.
pub fn excess(quota: &Quota, cost: u32, is_exact: bool) -> f64 {
    let kind = Kind::of(quota, 0);
    let valid = kind.valid_to_arrive(is_exact);
    if !valid.is_zero() && f64::from(cost.min(kind.capacity())) <= kind.claimable(valid) {
        return 0.0;
    }
    match kind {
        Kind::Bucket { interval, .. } => TO_ARRIVE.as_secs_f64() * 1e6 / interval,
        Kind::Window { count, .. } | Kind::Sliding { count, .. } | Kind::Refill { count, .. } => {
            f64::from(count)
        }
        Kind::Permits { .. } => 0.0,
    }
}

impl Grant {
    /// How long the claim may be spent by this process's clock: an eighth less than by the store's, since the two may not run
    /// alike (`clock` makes time run six per cent slower while it works off a lead).
    pub(super) fn spendable(&self, question: &Question) -> Duration {
        let valid = if question.valid.is_zero() { TO_ARRIVE } else { self.valid };
        valid * 7 / 8
    }
}

impl Question {
    /// Units without which requests that wait are rejected: of permits, those in use are held already.
    pub(super) fn fewest(&self) -> u32 {
        match self.kind {
            Kind::Permits { used, .. } => used.saturating_add(self.needed),
            _ => self.needed,
        }
    }

    /// The marks of a fixed window: its start, its end, and the end of the next, around `now`.
    pub fn marks(quota: &Quota, now: Timestamp) -> [Timestamp; 3] {
        fixed_window::marks(quota, now)
    }
}
