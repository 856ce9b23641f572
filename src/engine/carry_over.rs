//! Which counters go on when one policy replaces another, as the limiter itself decides it.

use std::collections::HashSet;

use super::PolicySpec;
use crate::limiter::algorithm::Counts;
use crate::limiter::timestamp::Timestamp;
use crate::limiter::{self, Limiter, Lineage, MeterSpec};
use crate::rules::meter_specs;
use crate::rules::rule::Rule;

/// The limits whose counters go on.
#[derive(Debug)]
pub struct CarryOver(HashSet<Lineage>);

impl CarryOver {
    /// From `old` to `new`, tried out on a limiter of their own.
    pub fn between(old: &PolicySpec, new: &PolicySpec) -> Self {
        let limiter = Limiter::new(limiter::Settings { max_keys: 1, secret: [0; 2] });
        let install = |specs: &[MeterSpec]| limiter.install(specs, Timestamp::default());
        let specs = meter_specs(&new.rules);
        let (before, after) = (install(&meter_specs(&old.rules)), install(&specs));
        let known: HashSet<_> = before.iter().map(|meter| meter.id).collect();
        let kept = counting(specs).zip(after).filter(|(_, meter)| known.contains(&meter.id));
        Self(kept.filter_map(|(lineage, _)| lineage).collect())
    }

    /// Whether counters of `rule` go on, be it an old rule or a new one.
    pub fn keeps(&self, rule: &Rule) -> bool {
        let mut lineages = counting(meter_specs(std::slice::from_ref(rule))).flatten();
        lineages.any(|lineage| self.0.contains(&lineage))
    }
}

/// Whose counters the limits of `specs` are, one for each; `None` for bans, which count nothing.
fn counting(specs: Vec<MeterSpec>) -> impl Iterator<Item = Option<Lineage>> {
    specs.into_iter().map(|MeterSpec { lineage, quota, .. }| {
        (quota.algorithm().counts() != Counts::Bans).then_some(lineage)
    })
}
