//! Error bound of shared limits: how many units all instances may admit beyond what a single instance would.
//!
//! For limits counted in the store the bound is proven in `docs/design/023-shared-limits.md`. This module computes it,
//! and the excess that a rule accepts while the store is unreachable, or responds too late for single requests. A window is
//! as long as the limit's period.

use std::num::NonZeroU32;
use std::time::Duration;

use super::cost::Cost;
use super::rule::LimitAction;
use super::shared_limit::{InstanceSource, Mode, OnStoreLoss, SharedLimit};
use weir_limiter::InstanceCounts;
use weir_limiter::leases;
use weir_limiter::quota::{Period, Quota};

/// What an instance has learnt about its fleet.
#[derive(Clone, Debug)]
pub struct FleetState {
    /// Numbers of instances by which limits are divided.
    pub instance_counts: InstanceCounts,
    /// Whether the store is unreachable.
    pub is_unreachable: bool,
    /// Maximum time that a request waits for the store, unless its rule has one of its own.
    pub wait: Duration,
}

/// The requests that a limit counts.
#[derive(Clone, Copy)]
struct CountedRequests {
    /// Maximum units of one request.
    max_cost: u32,
    /// Whether they are stored calls.
    are_stored: bool,
    /// Time since one of them last waited for the store without a response; `None` if none has.
    since_unanswered: Option<Duration>,
}

impl SharedLimit {
    /// Returns the replacement of the store while it is unreachable; `None` while it is reachable, and for limits that
    /// are never counted there.
    pub fn store_loss_policy(&self, fleet: &FleetState) -> Option<OnStoreLoss> {
        (fleet.is_unreachable && self.mode != Mode::Split).then_some(self.on_store_loss)
    }

    /// Returns the number of instances by which the limit is divided.
    pub fn instance_count(&self, divisors: &InstanceCounts) -> NonZeroU32 {
        match &self.instances {
            Some(InstanceSource::Count(count)) => *count,
            Some(InstanceSource::Dns(name)) => {
                divisors.instances_by_name.get(name).copied().unwrap_or(NonZeroU32::MIN)
            }
            Some(InstanceSource::Members) | None => divisors.members,
        }
    }

    fn excess(&self, quota: &Quota, requests: CountedRequests, fleet: &FleetState) -> f64 {
        match (self.mode, fleet.is_unreachable) {
            (Mode::Split, _) => self.split_excess(quota, fleet),
            (Mode::Lease | Mode::Exact, true) => self.store_loss_excess(quota, fleet),
            (Mode::Lease | Mode::Exact, false) if self.may_be_unanswered(quota.window(), requests) => {
                self.counted_excess(quota, requests, fleet) + self.store_loss_excess(quota, fleet)
            }
            (Mode::Lease | Mode::Exact, false) => self.counted_excess(quota, requests, fleet),
        }
    }

    /// Whether a request of this limit may have waited without a response within the last `period`. Such a request is
    /// decided as by an unreachable store, in addition to what the store grants.
    fn may_be_unanswered(&self, period: Period, requests: CountedRequests) -> bool {
        let never_waits = self.wait.is_some_and(|wait| wait.is_zero());
        !never_waits
            && requests.since_unanswered.is_some_and(|since| since.as_nanos() < period.nanos().into())
    }

    /// Excess of limits that the store counts.
    fn counted_excess(&self, quota: &Quota, requests: CountedRequests, fleet: &FleetState) -> f64 {
        let units = u32::from(quota.units_per_request().get());
        let policy = self.lease_policy(requests.are_stored).with_wait(fleet.wait);
        leases::excess(quota, requests.max_cost.saturating_mul(units), &policy) / f64::from(units)
    }

    fn split_excess(&self, quota: &Quota, fleet: &FleetState) -> f64 {
        let (instances, period) = (self.instance_count(&fleet.instance_counts), quota.window());
        let together = admitted(&quota.split_among(instances), period) * f64::from(instances.get());
        (together - admitted(quota, period)).max(0.0)
    }

    /// Excess of requests that [`Self::on_store_loss`] decides.
    fn store_loss_excess(&self, quota: &Quota, fleet: &FleetState) -> f64 {
        let limit = admitted(quota, quota.window());
        match self.on_store_loss {
            // Some instances may still reach the store.
            OnStoreLoss::Split => limit,
            OnStoreLoss::Local => limit * f64::from(fleet.instance_counts.members.get() - 1),
            OnStoreLoss::Allow => f64::INFINITY,
            OnStoreLoss::StrictSplit | OnStoreLoss::Deny => 0.0,
        }
    }
}

impl LimitAction {
    /// Returns the maximum number of units by which all instances together may exceed any of its limits; `None` if the
    /// rule is not shared. `since_unanswered` is the time since one of its requests last waited for the store without a
    /// response, if ever.
    pub fn error_bound(&self, fleet: &FleetState, since_unanswered: Option<Duration>) -> Option<f64> {
        let shared = self.shared()?;
        let limits = self.limits.iter().map(|limit| limit.quota_with_margin.unwrap_or(limit.quota));
        let quotas = limits.chain(self.in_flight.map(Quota::in_flight));
        let max_cost = match &self.cost_model.cost {
            Cost::Fixed(units) => *units,
            Cost::Header(told) => told.max_units.unwrap_or(u32::MAX),
            Cost::RequestField(stated) => stated.max_units.unwrap_or(u32::MAX),
            Cost::ResponseFields(stated) => stated.max_units.unwrap_or(u32::MAX),
            Cost::RequestBytes(measure) => measure.max_units.unwrap_or(u32::MAX),
            // The units reserved on arrival.
            Cost::ResponseHeader(told) => told.default,
            Cost::ResponseBytes(_) => 1,
        };
        let requests = CountedRequests { max_cost, are_stored: self.deferral.is_some(), since_unanswered };
        Some(quotas.map(|quota| shared.excess(&quota, requests, fleet)).fold(0.0, f64::max))
    }
}

/// Returns the maximum number of units that one instance admits by `quota` in a window of this period.
fn admitted(quota: &Quota, period: Period) -> f64 {
    let (count, burst) = (f64::from(quota.limit().count.get()), f64::from(quota.burst().get()));
    let periods = period.nanos() as f64 / quota.window().nanos() as f64;
    if quota.algorithm().has_burst() { count * periods + burst } else { burst }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::rule::LimitSource;
    use crate::rules::rule::RuleLimit;
    use crate::rules::shared_limit::Fairness;
    use weir_limiter::algorithm::Algorithm;
    use weir_limiter::quota::{Limit, TimeUnit};

    fn shared(mode: Mode, on_store_loss: OnStoreLoss) -> SharedLimit {
        let instances = (mode == Mode::Split).then_some(InstanceSource::Members);
        let (wait, fairness) = (Some(Duration::ZERO), Fairness::default());
        SharedLimit { mode, wait, on_store_loss, fairness, priority: 0, instances }
    }

    fn bound(shared: SharedLimit, algorithm: Algorithm, count: u32, burst: u32, is_unreachable: bool) -> f64 {
        bound_since(shared, algorithm, (count, burst), is_unreachable, None)
    }

    fn bound_since(
        shared: SharedLimit,
        algorithm: Algorithm,
        (count, burst): (u32, u32),
        is_unreachable: bool,
        since_unanswered: Option<Duration>,
    ) -> f64 {
        let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(TimeUnit::Second));
        let burst = NonZeroU32::new(burst).filter(|_| algorithm.has_burst());
        let quota = Quota::new(algorithm, limit, burst).unwrap();
        let limit =
            RuleLimit { quota, quota_with_margin: None, elastic_costs: None, nested: None, stated: None };
        let (limits, source) = (Box::new([limit]), LimitSource::Shared(shared));
        let limiting = LimitAction { limits, source, ..LimitAction::default() };
        let divisors = InstanceCounts { members: NonZeroU32::new(4).unwrap(), ..InstanceCounts::single() };
        limiting
            .error_bound(
                &FleetState { instance_counts: divisors, is_unreachable, wait: Duration::ZERO },
                since_unanswered,
            )
            .unwrap()
    }

    #[test]
    fn store_counted_limit_is_exceeded_at_most_by_late_charges() {
        let lease = || shared(Mode::Lease, OnStoreLoss::Split);
        let exact = || shared(Mode::Exact, OnStoreLoss::Split);
        assert_eq!(bound(lease(), Algorithm::Gcra, 1000, 1000, false), 0.0);
        assert_eq!(bound(lease(), Algorithm::Gcra, 1000, 5, false), 20.0, "the burst drains in 5 ms");
        assert_eq!(bound(exact(), Algorithm::Gcra, 1000, 1000, false), 20.0);
        for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
            assert_eq!(bound(exact(), algorithm, 1000, 0, false), 0.0, "{algorithm}");
            assert_eq!(bound(lease(), algorithm, 1000, 0, false), 0.0, "{algorithm}");
        }
    }

    #[test]
    fn error_bound_without_the_store_follows_on_store_loss() {
        let of = |loss, is_away| bound(shared(Mode::Lease, loss), Algorithm::Gcra, 100, 50, is_away);
        let away = [OnStoreLoss::Split, OnStoreLoss::Local, OnStoreLoss::Allow, OnStoreLoss::Deny]
            .map(|loss| of(loss, true));
        assert_eq!(away, [150.0, 450.0, f64::INFINITY, 0.0]);
        assert_eq!(of(OnStoreLoss::Allow, false), 0.0);
    }

    #[test]
    fn wait_without_a_response_within_the_period_counts_as_a_loss_of_the_store() {
        let of = |loss, wait: Option<Duration>, since| {
            let shared = SharedLimit { wait, ..shared(Mode::Lease, loss) };
            bound_since(shared, Algorithm::Gcra, (100, 50), false, Some(Duration::from_millis(since)))
        };
        let losses = [OnStoreLoss::Split, OnStoreLoss::Local, OnStoreLoss::Allow, OnStoreLoss::Deny];
        assert_eq!(losses.map(|loss| of(loss, None, 900)), [150.0, 450.0, f64::INFINITY, 0.0]);
        assert_eq!(losses.map(|loss| of(loss, None, 1000)), [0.0; 4], "more than a period ago");
        assert_eq!(losses.map(|loss| of(loss, Some(Duration::ZERO), 900)), [0.0; 4], "no request waits");
    }

    #[test]
    fn split_limit_is_exceeded_when_instances_outnumber_units() {
        let split = || shared(Mode::Split, OnStoreLoss::Split);
        assert_eq!(bound(split(), Algorithm::Gcra, 100, 10, true), 0.0, "not counted by the store");
        assert_eq!(bound(split(), Algorithm::Gcra, 100, 1, false), 3.0, "four instances, one unit each");
        assert_eq!(bound(split(), Algorithm::FixedWindow, 2, 0, false), 2.0);
    }
}
