//! Experiments with a fleet: the parameters and the results.

use std::num::NonZeroU32;
use std::time::Duration;

use weir_limiter::algorithm::Algorithm;
use weir_limiter::leases::LeasePolicy;
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};

use crate::model::UnitFlow;

/// Distribution of the demand over instances.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pattern {
    Even,
    Zipf,
    /// Most of the demand is at one third of the instances, and moves to another third every second.
    Shifting,
    /// The same, once, at this millisecond.
    ShiftedAt(u64),
    /// Each instance has all of its demand within 200 ms of every second.
    Bursts,
    /// Each instance has demand from time to time, which starts and ends at once.
    OnAndOff,
}

/// Faults that are injected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// One message in this many is lost, and one is duplicated.
    pub(crate) lost_one_in: Option<u32>,
    /// Maximum delay of a message, in microseconds.
    pub(crate) delay: u64,
    /// Maximum difference of clock rates, in parts per thousand.
    pub(crate) drift: i64,
    /// Milliseconds between two crashes, each of an instance or the store.
    pub(crate) crash_interval: Option<u64>,
}

/// Properties in which instances differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Role {
    /// Weight when the limit is contended.
    pub(crate) weight: f64,
    /// Priority of the instance's requests; replaces that of the plan.
    pub(crate) priority: Option<u8>,
    /// Factor applied to the demand of the pattern.
    pub(crate) demand: f64,
    /// First millisecond in which requests arrive.
    pub(crate) from: u64,
}

impl Role {
    pub(crate) const USUAL: Self = Self { weight: 1.0, priority: None, demand: 1.0, from: 0 };
}

/// Partitions between instances and the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Partitions {
    pub(crate) schedule: Schedule,
    /// Time for which the store holds parts back.
    pub(crate) valid: Duration,
    pub(crate) breach: Option<PartBreach>,
}

/// When instances do not reach the store.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Schedule {
    /// At random, each instance alone.
    Random,
    /// One instance in `every`, between two milliseconds.
    Once { from: u64, until: u64, every: usize },
}

/// What breaks an assumption about parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartBreach {
    /// Instances spend their parts before the store holds them back.
    SpentAtOnce,
    /// Instances spend their parts after the store has granted them to others.
    SpentForever,
    /// Each instance spends the whole limit.
    Whole,
}

/// Parameters of one experiment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Role of an instance, by its number.
    pub(crate) role: fn(usize) -> Role,
    pub(crate) instances: usize,
    pub(crate) quota: Quota,
    /// Demand as a multiple of the limit.
    pub(crate) demand: f64,
    pub(crate) pattern: Pattern,
    pub(crate) keys: u64,
    pub(crate) lease_policy: LeasePolicy,
    /// How long a request may wait for the store, in microseconds.
    pub(crate) wait: u64,
    pub(crate) millis: u64,
    /// Start of the measurement, in microseconds.
    pub(crate) warm_up: u64,
    pub(crate) faults: Faults,
    /// With a second tier, admitted units are spent up to this many microseconds later: see docs/design/025-regions.md.
    pub(crate) second_tier: Option<u64>,
    /// A new limit, which instances apply within 300 ms of this millisecond.
    pub(crate) change: Option<(Quota, u64)>,
    pub(crate) partitions: Option<Partitions>,
    pub(crate) seed: u64,
}

impl Plan {
    /// Returns the number of requests at an instance in one millisecond.
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
            Pattern::Shifting => third(number, milli / 1000) / instances,
            Pattern::ShiftedAt(shift) => third(number, u64::from(milli >= shift)) / instances,
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

/// Returns the demand of an instance as a multiple of the mean, while most of it is at one third of the instances.
fn third(number: usize, turn: u64) -> f64 {
    if number as u64 % 3 == turn % 3 { 0.9 * 3.0 } else { 0.1 * 1.5 }
}

/// Results of an experiment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) admitted: u64,
    /// Admissions that a single instance would have made of the same requests.
    pub(crate) possible: u64,
    pub(crate) calls: u64,
    /// Maximum number of units beyond the bound.
    pub(crate) excess: f64,
    /// Number of times that an instance spent or returned units that it did not have.
    pub(crate) invalid_uses: u64,
    /// Smallest fraction of its demand that an instance got, relative to the mean.
    pub(crate) worst_share: f64,
    /// Requests of each instance, and how many of them were admitted.
    pub(crate) requests_and_admissions: Vec<(u64, u64)>,
    /// Units by their outcome.
    pub(crate) unit_flow: UnitFlow,
}

pub(crate) fn rate(quota: &Quota) -> f64 {
    let limit = quota.limit();
    f64::from(limit.count.get()) / limit.period.duration().as_secs_f64()
}

pub(crate) fn gcra(count: u32, burst: u32) -> Quota {
    let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(TimeUnit::Second));
    Quota::new(Algorithm::Gcra, limit, NonZeroU32::new(burst)).unwrap()
}

pub(crate) const LEASE: LeasePolicy = LeasePolicy {
    is_exact: false,
    max_wait: Some(Duration::from_millis(5)),
    priority: 1,
    is_max_min: false,
    has_parts: false,
};
