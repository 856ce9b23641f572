//! State of the shared limits: mode, number of instances, and the leases of this instance.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::AdminState;
use super::scrape::{fleet_state, since_unanswered};
use weir_limiter::LimitId;
use weir_limiter::algorithm::Algorithm;
use weir_limiter::leases::{SharedCounterStatus, SharedLimitStatus};
use weir_limiter::quota::Quota;
use weir_policy::rules::error_bound::FleetState;
use weir_policy::rules::rule::{Action, Rule};
use weir_policy::rules::selection::CheckRole;
use weir_policy::rules::shared_limit::Mode;
use weir_policy::rules::{RuleIndex, RuleSet};
use weir_store::regions::RegionStatus;

/// Maximum number of counters shown per limit; there may be one for each client.
const MAX_COUNTERS_SHOWN: usize = 10;

/// The shared limits of this instance at one moment.
pub(super) struct SharedLimitsView<'s> {
    state: &'s AdminState,
    rules: &'s RuleSet,
    fleet: FleetState,
    has_store: bool,
    statuses: HashMap<LimitId, SharedLimitStatus>,
}

impl<'s> SharedLimitsView<'s> {
    /// Reads the state of the limits of `rules`.
    pub(super) fn from_state(state: &'s AdminState, rules: &'s RuleSet) -> Self {
        let statuses = match rules.is_shared() {
            true => state.limiter.shared_limit_statuses(MAX_COUNTERS_SHOWN, state.process.now()),
            false => HashMap::new(),
        };
        let has_store = state.process.is_store_unreachable().is_some();
        Self { state, rules, fleet: fleet_state(state), has_store, statuses }
    }

    /// Returns the state of the limits of the rule at `index`; `None` if they are not shared.
    pub(super) fn rule_json(&self, index: RuleIndex, rule: &Rule) -> Option<Value> {
        let Action::Limit(limiting) = &rule.action else { return None };
        let shared = limiting.shared()?;
        let loss_policy = shared.store_loss_policy(&self.fleet);
        let in_force = loss_policy.map_or_else(|| shared.mode.as_str(), |policy| policy.as_str());
        let limits = self.rules.rule_checks(index).filter_map(|(role, handle)| {
            let quota = limiting.quota(role)?;
            let name = match role {
                CheckRole::Ban | CheckRole::Seen => return None,
                CheckRole::Permit => "in_flight".to_owned(),
                CheckRole::Limit(_) | CheckRole::Margin(_) | CheckRole::Mark(_) | CheckRole::Stream(_) => {
                    quota.limit().to_string()
                }
            };
            let mut shown = match shared.mode {
                Mode::Split => {
                    split_json(&quota.split_among(shared.instance_count(&self.fleet.instance_counts)))
                }
                Mode::Lease | Mode::Exact => self.lease_json(handle.id),
            };
            shown["limit"] = name.into();
            Some(shown)
        });
        let since = since_unanswered(self.state, self.rules, index);
        let bound = limiting.error_bound(&self.fleet, since).unwrap_or_default();
        Some(json!({
            "store": self.has_store.then_some(if self.fleet.is_unreachable { "away" } else { "up" }),
            "region": (shared.mode != Mode::Split).then(|| self.state.process.region()).flatten().map(region_json),
            "in_force": in_force,
            "instances": shared.instance_count(&self.fleet.instance_counts),
            // JSON cannot represent infinity.
            "error_bound": if bound.is_finite() { bound.into() } else { Value::from("unbounded") },
            "limits": limits.collect::<Value>(),
        }))
    }

    fn lease_json(&self, limit: LimitId) -> Value {
        let empty = SharedLimitStatus::default();
        let SharedLimitStatus { counters, held, demand, busiest } =
            self.statuses.get(&limit).unwrap_or(&empty);
        json!({
            "counters": counters,
            "held": held,
            "demand_per_second": demand,
            "busiest": busiest.iter().map(counter_json).collect::<Value>(),
        })
    }
}

fn region_json(status: RegionStatus) -> Value {
    let RegionStatus { name, regions, is_global_away, reported_counters } = status;
    json!({
        "name": name,
        "regions": regions,
        "global_store": if is_global_away { "away" } else { "up" },
        "reported_counters": reported_counters,
    })
}

/// Returns this instance's part of a split limit.
fn split_json(quota: &Quota) -> Value {
    let has_rate = quota.algorithm() != Algorithm::InFlight;
    json!({
        "limit_here": has_rate.then(|| quota.limit().to_string()),
        "burst_here": quota.burst(),
    })
}

fn counter_json(counter: &SharedCounterStatus) -> Value {
    json!({
        "counter": format!("{:032x}", counter.name),
        "held": counter.held,
        "demand_per_second": counter.demand,
        "remaining": counter.remaining,
        "pause_seconds": counter.pause.as_secs_f64(),
    })
}
