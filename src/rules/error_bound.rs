//! How many units instances that share a limit may admit beyond what one instance would.
//!
//! Limits that are counted in the store have a proof (`docs/design/023-shared-limits.md`); this is what it leaves open, and
//! what a rule gives up while the store is away. A window is as long as the limit's period.

use std::num::NonZeroU32;

use super::rule::{LimitSource, Limiting};
use super::shared_limit::{Instances, Mode, OnStoreLoss, SharedLimit};
use super::tariff::Cost;
use crate::limiter::Divisors;
use crate::limiter::claims;
use crate::limiter::quota::{Period, Quota};

/// What an instance knows of its fleet.
#[derive(Clone, Debug)]
pub struct FleetState {
    /// How many instances there are.
    pub divisors: Divisors,
    /// Whether the store does not respond.
    pub is_away: bool,
}

impl SharedLimit {
    /// What takes the place of the store while it does not respond; `None` while limits are counted there, and where they
    /// never are.
    pub fn in_place_of_store(&self, fleet: &FleetState) -> Option<OnStoreLoss> {
        (fleet.is_away && self.mode != Mode::Split).then_some(self.on_store_loss)
    }

    /// By how many instances the limit is divided.
    pub fn divided_by(&self, divisors: &Divisors) -> NonZeroU32 {
        match &self.instances {
            Some(Instances::Count(count)) => *count,
            Some(Instances::Dns(name)) => divisors.named.get(name).copied().unwrap_or(NonZeroU32::MIN),
            Some(Instances::Members) | None => divisors.members,
        }
    }

    fn excess(&self, quota: &Quota, cost: u32, fleet: &FleetState) -> f64 {
        let (instances, period) = (self.divided_by(&fleet.divisors), quota.window());
        match (self.in_place_of_store(fleet), self.mode) {
            (None, Mode::Split) => {
                let together = admitted(&quota.divided(instances), period) * f64::from(instances.get());
                (together - admitted(quota, period)).max(0.0)
            }
            (None, Mode::Lease | Mode::Exact) => claims::excess(quota, cost, self.mode == Mode::Exact),
            // Others may still have the store.
            (Some(OnStoreLoss::Split), _) => admitted(quota, period),
            (Some(OnStoreLoss::Local), _) => {
                admitted(quota, period) * f64::from(fleet.divisors.members.get() - 1)
            }
            (Some(OnStoreLoss::Allow), _) => f64::INFINITY,
            (Some(OnStoreLoss::Deny), _) => 0.0,
        }
    }
}

impl Limiting {
    /// The most that any of its limits may be exceeded by all instances together; `None` where it is not shared.
    pub fn error_bound(&self, fleet: &FleetState) -> Option<f64> {
        let LimitSource::Shared(shared) = &self.source else { return None };
        let limits = self.limits.iter().map(|limit| limit.raised.unwrap_or(limit.quota));
        let quotas = limits.chain(self.in_flight.map(Quota::in_flight));
        let cost = match &self.tariff.cost {
            Cost::Fixed(units) => *units,
            Cost::Header(told) => told.most.unwrap_or(u32::MAX),
            Cost::RequestBytes(measure) => measure.most.unwrap_or(u32::MAX),
            // What is reserved on arrival.
            Cost::ResponseHeader(told) => told.otherwise,
            Cost::ResponseBytes(_) => 1,
        };
        Some(quotas.map(|quota| shared.excess(&quota, cost, fleet)).fold(0.0, f64::max))
    }
}

/// The most units that one instance admits by `quota` in a window as long as this period.
fn admitted(quota: &Quota, period: Period) -> f64 {
    let (count, burst) = (f64::from(quota.limit().count.get()), f64::from(quota.burst().get()));
    let periods = period.nanos() as f64 / quota.window().nanos() as f64;
    if quota.algorithm().has_burst() { count * periods + burst } else { burst }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limiter::algorithm::Algorithm;
    use crate::limiter::quota::{Limit, Unit};
    use crate::rules::rule::RuleLimit;
    use crate::rules::shared_limit::Fairness;

    fn shared(mode: Mode, on_store_loss: OnStoreLoss) -> SharedLimit {
        let instances = (mode == Mode::Split).then_some(Instances::Members);
        let (wait, fairness) = (Duration::ZERO, Fairness::default());
        SharedLimit { mode, wait, on_store_loss, fairness, priority: 0, instances }
    }

    fn bound(shared: SharedLimit, (algorithm, count, burst): (Algorithm, u32, u32), is_away: bool) -> f64 {
        let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(Unit::Second));
        let burst = NonZeroU32::new(burst).filter(|_| algorithm.has_burst());
        let quota = Quota::new(algorithm, limit, burst).unwrap();
        let limit = RuleLimit { quota, raised: None, prices: None, nested: None };
        let (limits, source) = (Box::new([limit]), LimitSource::Shared(shared));
        let limiting = Limiting { limits, source, ..Limiting::default() };
        let divisors = Divisors { members: NonZeroU32::new(4).unwrap(), ..Divisors::alone() };
        limiting.error_bound(&FleetState { divisors, is_away }).unwrap()
    }

    #[test]
    fn what_the_store_counts_is_exceeded_by_what_arrives_late_at_most() {
        let lease = || shared(Mode::Lease, OnStoreLoss::Split);
        let exact = || shared(Mode::Exact, OnStoreLoss::Split);
        assert_eq!(bound(lease(), (Algorithm::Gcra, 1000, 1000), false), 0.0);
        assert_eq!(bound(lease(), (Algorithm::Gcra, 1000, 5), false), 20.0, "it drains in 5 ms");
        assert_eq!(bound(exact(), (Algorithm::Gcra, 1000, 1000), false), 20.0);
        for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
            assert_eq!(bound(exact(), (algorithm, 1000, 0), false), 0.0, "{algorithm}");
            assert_eq!(bound(lease(), (algorithm, 1000, 0), false), 0.0, "{algorithm}");
        }
    }

    #[test]
    fn without_the_store_it_is_what_the_rule_gives_up() {
        let of = |loss, is_away| bound(shared(Mode::Lease, loss), (Algorithm::Gcra, 100, 50), is_away);
        let away = [OnStoreLoss::Split, OnStoreLoss::Local, OnStoreLoss::Allow, OnStoreLoss::Deny]
            .map(|loss| of(loss, true));
        assert_eq!(away, [150.0, 450.0, f64::INFINITY, 0.0]);
        assert_eq!(of(OnStoreLoss::Allow, false), 0.0);
    }

    #[test]
    fn a_limit_that_is_divided_is_exceeded_where_there_are_more_instances_than_units() {
        let split = || shared(Mode::Split, OnStoreLoss::Split);
        assert_eq!(bound(split(), (Algorithm::Gcra, 100, 10), true), 0.0, "the store counts nothing");
        assert_eq!(bound(split(), (Algorithm::Gcra, 100, 1), false), 3.0, "one at once, in each of four");
        assert_eq!(bound(split(), (Algorithm::FixedWindow, 2, 0), false), 2.0);
    }
}
