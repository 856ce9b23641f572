//! Experiments with a fleet: what is planned, and what came of it.

use std::num::NonZeroU32;

use weir::limiter::algorithm::Algorithm;
use weir::limiter::claims::Sharing;
use weir::limiter::quota::{Limit, Period, Quota, Unit};

use crate::model::Tally;

/// How the demand is spread over instances.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pattern {
    Even,
    Zipf,
    /// Most of it is on a third of the instances, another one every second.
    Shifting,
    /// Each instance has all of its demand in 200 ms of every second.
    Bursts,
    /// Each instance has demand now and then, and it begins and ends at once.
    OnAndOff,
}

/// What happens on the way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// Of so many messages one is lost, and one is duplicated.
    pub(crate) lost: Option<u32>,
    /// The longest a message takes, in microseconds.
    pub(crate) delay: u64,
    /// Clock rates differ by up to so many parts in a thousand.
    pub(crate) drift: i64,
    /// Kills an instance or flushes the store every so many milliseconds.
    pub(crate) crash: Option<u64>,
}

/// What sets an instance apart from others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Role {
    /// Its weight under contention.
    pub(crate) weight: f64,
    /// The priority of its requests, in place of that of the plan.
    pub(crate) priority: Option<u8>,
    /// Times the demand of the pattern.
    pub(crate) demand: f64,
    /// Requests arrive from this millisecond on.
    pub(crate) from: u64,
}

impl Role {
    pub(crate) const USUAL: Self = Self { weight: 1.0, priority: None, demand: 1.0, from: 0 };
}

/// One experiment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// By the number of the instance.
    pub(crate) role: fn(usize) -> Role,
    pub(crate) instances: usize,
    pub(crate) quota: Quota,
    /// Times the limit.
    pub(crate) demand: f64,
    pub(crate) pattern: Pattern,
    pub(crate) keys: u64,
    pub(crate) sharing: Sharing,
    /// How long a request waits for the store, in microseconds.
    pub(crate) wait: u64,
    pub(crate) millis: u64,
    /// What is counted begins after so many microseconds.
    pub(crate) warm_up: u64,
    pub(crate) faults: Faults,
    /// What is admitted is spent up to so many microseconds later, by instances behind: see docs/design/025-regions.md.
    pub(crate) second_tier: Option<u64>,
    /// Another limit, which instances have within 300 ms of this moment in milliseconds.
    pub(crate) change: Option<(Quota, u64)>,
    pub(crate) seed: u64,
}

impl Plan {
    /// Requests of an instance in one millisecond.
    pub(crate) fn demand(&self, number: usize, milli: u64) -> f64 {
        let role = (self.role)(number);
        if milli < role.from {
            return 0.0;
        }
        let all = rate(&self.quota) * self.demand * self.keys as f64 / 1000.0;
        let instances = self.instances as f64;
        let part = match self.pattern {
            Pattern::Even => 1.0 / instances,
            Pattern::Zipf => {
                let sum: f64 = (1..=self.instances).map(|rank| 1.0 / rank as f64).sum();
                1.0 / (number + 1) as f64 / sum
            }
            Pattern::Shifting => {
                let hot = number as u64 % 3 == milli / 1000 % 3;
                if hot { 0.9 * 3.0 / instances } else { 0.1 * 1.5 / instances }
            }
            Pattern::Bursts => {
                let phase = (milli + number as u64 * 1000 / self.instances as u64) % 1000;
                if phase < 200 { 5.0 / instances } else { 0.0 }
            }
            Pattern::OnAndOff => {
                let turn = (milli + number as u64 * 131) / (120 + number as u64 * 37);
                let is_on = (turn + number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 62 == 0;
                if is_on { 4.0 / instances } else { 0.0 }
            }
        };
        all * part * role.demand
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) admitted: u64,
    /// What one instance would have admitted of the same requests.
    pub(crate) possible: u64,
    pub(crate) calls: u64,
    /// By how many units the bound was exceeded at the worst.
    pub(crate) excess: f64,
    /// How often an instance spent or gave back what it did not have.
    pub(crate) unlawful: u64,
    /// The instance that got least of what it demanded, beside the mean.
    pub(crate) least: f64,
    /// Requests of each instance, and how many of them were admitted.
    pub(crate) got: Vec<(u64, u64)>,
    /// Where the units went.
    pub(crate) tally: Tally,
}

pub(crate) fn rate(quota: &Quota) -> f64 {
    let limit = quota.limit();
    f64::from(limit.count.get()) / limit.period.duration().as_secs_f64()
}

pub(crate) fn gcra(count: u32, burst: u32) -> Quota {
    let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(Unit::Second));
    Quota::new(Algorithm::Gcra, limit, NonZeroU32::new(burst)).unwrap()
}

pub(crate) const LEASE: Sharing = Sharing { is_exact: false, waits: true, priority: 1, is_max_min: false };
