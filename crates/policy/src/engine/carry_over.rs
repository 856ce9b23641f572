//! Predicts which counters survive a change of the configuration, using the limiter's own code.

use std::collections::HashSet;

use super::PolicySpec;
use crate::rules::limit_specs;
use crate::rules::rule::Rule;
use weir_limiter::algorithm::CounterKind;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{self as limiter, LimitIdentity, LimitSpec, Limiter};

/// The limits whose counters survive a change.
#[derive(Debug)]
pub struct CarryOver(HashSet<LimitIdentity>);

impl CarryOver {
    /// Compares `old` with `new` by installing both in a temporary limiter.
    pub fn between(old: &PolicySpec, new: &PolicySpec) -> Self {
        let limiter = Limiter::new(limiter::LimiterSettings { max_keys: 1, secret: [0; 2] });
        let install = |specs: &[LimitSpec]| limiter.install(specs, Timestamp::default());
        let specs = limit_specs(&new.rules);
        let (before, after) = (install(&limit_specs(&old.rules)), install(&specs));
        let known: HashSet<_> = before.iter().map(|handle| handle.id).collect();
        let retained = counter_identities(specs).zip(after).filter(|(_, handle)| known.contains(&handle.id));
        Self(retained.filter_map(|(identity, _)| identity).collect())
    }

    /// Returns whether counters of `rule` survive; the rule may be from the old or the new policy.
    pub fn keeps_counters_of(&self, rule: &Rule) -> bool {
        let mut identities = counter_identities(limit_specs(std::slice::from_ref(rule))).flatten();
        identities.any(|identity| self.0.contains(&identity))
    }
}

/// Returns the limit identity of each of `specs`; `None` for bans, which are not counters.
fn counter_identities(specs: Vec<LimitSpec>) -> impl Iterator<Item = Option<LimitIdentity>> {
    specs.into_iter().map(|LimitSpec { identity, quota, .. }| {
        (quota.algorithm().counter_kind() != CounterKind::Bans).then_some(identity)
    })
}
