//! How shared limits stand: what counts them, how many instances there are, and what this one has of the units.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::State;
use super::scrape::fleet;
use crate::limiter::MeterId;
use crate::limiter::algorithm::Algorithm;
use crate::limiter::claims::{CounterStanding, Standing};
use crate::limiter::quota::Quota;
use crate::rules::error_bound::FleetState;
use crate::rules::rule::{Action, LimitSource, Rule};
use crate::rules::selection::Part;
use crate::rules::shared_limit::Mode;
use crate::rules::{RuleIndex, RuleSet};

/// Counters of one limit that are shown: there may be one for each client.
const MAX_SHOWN: usize = 10;

/// The shared limits of this instance at one moment.
pub(super) struct Sharing<'s> {
    rules: &'s RuleSet,
    fleet: FleetState,
    has_store: bool,
    standings: HashMap<MeterId, Standing>,
}

impl<'s> Sharing<'s> {
    /// Those of `rules`.
    pub(super) fn of(state: &State, rules: &'s RuleSet) -> Self {
        let standings = match rules.is_shared() {
            true => state.limiter.standings(MAX_SHOWN, state.process.now()),
            false => HashMap::new(),
        };
        let has_store = state.process.is_store_away().is_some();
        Self { rules, fleet: fleet(state), has_store, standings }
    }

    /// How the limits of the rule at `index` stand; `None` where they are not shared.
    pub(super) fn show(&self, index: RuleIndex, rule: &Rule) -> Option<Value> {
        let Action::Limit(limiting) = &rule.action else { return None };
        let LimitSource::Shared(shared) = &limiting.source else { return None };
        let lost = shared.in_place_of_store(&self.fleet);
        let in_force = lost.map_or_else(|| shared.mode.as_str(), |lost| lost.as_str());
        let limits = self.rules.parts(index).filter_map(|(part, meter)| {
            let quota = limiting.quota(part)?;
            let name = match part {
                Part::Ban => return None,
                Part::Permit => "in_flight".to_owned(),
                Part::Limit(_) | Part::Margin(_) | Part::Mark(_) => quota.limit().to_string(),
            };
            let mut shown = match shared.mode {
                Mode::Split => divided(&quota.divided(shared.divided_by(&self.fleet.divisors))),
                Mode::Lease | Mode::Exact => self.claimed(meter.id),
            };
            shown["limit"] = name.into();
            Some(shown)
        });
        let bound = limiting.error_bound(&self.fleet).unwrap_or_default();
        Some(json!({
            "store": self.has_store.then_some(if self.fleet.is_away { "away" } else { "up" }),
            "in_force": in_force,
            "instances": shared.divided_by(&self.fleet.divisors),
            // JSON has no number for what has no bound.
            "error_bound": if bound.is_finite() { bound.into() } else { Value::from("unbounded") },
            "limits": limits.collect::<Value>(),
        }))
    }

    fn claimed(&self, meter: MeterId) -> Value {
        let nothing = Standing::default();
        let Standing { counters, held, demand, busiest } = self.standings.get(&meter).unwrap_or(&nothing);
        json!({
            "counters": counters,
            "held": held,
            "demand_per_second": demand,
            "busiest": busiest.iter().map(counter).collect::<Value>(),
        })
    }
}

/// The part of this instance.
fn divided(here: &Quota) -> Value {
    let has_rate = here.algorithm() != Algorithm::InFlight;
    json!({
        "limit_here": has_rate.then(|| here.limit().to_string()),
        "burst_here": here.burst(),
    })
}

fn counter(counter: &CounterStanding) -> Value {
    json!({
        "counter": format!("{:032x}", counter.name),
        "held": counter.held,
        "demand_per_second": counter.demand,
        "remaining": counter.remaining,
        "pause_seconds": counter.pause.as_secs_f64(),
    })
}
