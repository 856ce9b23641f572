//! The policies of an import, and which limits of which policies a request has.
//!
//! A gateway has routes and a route has rules, each with at most one policy. From the gateway down, `defaults` give way
//! to closer policies and `overrides` do not, as a whole (`atomic`) or limit by limit (`merge`).

use super::super::gateway_api::targets::{PolicyTarget, TargetLevel, targets};
use super::super::gateway_api::{GatewayRoutes, PartId};
use super::super::kubernetes::Manifest;
use super::super::ledger::Ledger;
use super::super::remark::Effect;
use super::super::selection::RequestSet;
use super::super::tree::{entries, field_text, get, scalar_text};
use super::conditions::read_conditions;
use super::limits::PolicyLimit;
use super::messages;

/// How a policy is combined with closer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strategy {
    /// A closer policy replaces it.
    AtomicDefaults,
    /// Closer policies replace limits of the same name.
    MergedDefaults,
    /// It replaces closer policies.
    AtomicOverrides,
    /// It replaces limits of the same name.
    MergedOverrides,
}

/// A policy, read.
#[derive(Debug)]
pub(super) struct LimitPolicy<'n> {
    pub(super) manifest: Manifest<'n>,
    pub(super) targets: Vec<PolicyTarget>,
    strategy: Strategy,
    /// Conditions of all its limits.
    pub(super) when: Option<RequestSet>,
    pub(super) limits: Vec<PolicyLimit<'n>>,
}

/// The limits that a part of a route has: each with the index of its policy, its index there, and the index of the
/// policy whose conditions hold for all.
#[derive(Clone, Debug, Default)]
pub(super) struct EffectiveLimits {
    pub(super) limits: Vec<(usize, usize)>,
    pub(super) when: Option<usize>,
}

impl<'n> LimitPolicy<'n> {
    pub(super) fn read(manifest: Manifest<'n>, routes: &GatewayRoutes<'n>, ledger: &Ledger) -> Self {
        manifest.mark(ledger, &["v1", "v1beta3", "v1beta2"]);
        let mut policy = Self {
            manifest,
            targets: Vec::new(),
            strategy: Strategy::AtomicDefaults,
            when: None,
            limits: Vec::new(),
        };
        let Some(spec) = manifest.spec() else { return policy };
        ledger.message(spec, &messages::SPEC);
        policy.targets = targets(&manifest, spec, routes, ledger);
        let (node, is_override) = match (get(spec, "defaults"), get(spec, "overrides")) {
            (Some(defaults), _) => (defaults, false),
            (None, Some(overrides)) => (overrides, true),
            (None, None) => (spec, false),
        };
        if !std::ptr::eq(node, spec) {
            ledger.message(node, &messages::COMMON);
        }
        if let Some(strategy) = get(node, "strategy") {
            ledger.lose(strategy, Effect::None, "how it is combined with policies of routes");
        }
        policy.strategy = match (is_override, field_text(node, "strategy") == Some("merge")) {
            (false, false) => Strategy::AtomicDefaults,
            (false, true) => Strategy::MergedDefaults,
            (true, false) => Strategy::AtomicOverrides,
            (true, true) => Strategy::MergedOverrides,
        };
        policy.when = get(node, "when").map(|when| read_conditions(Some(when), ledger));
        let limits = get(node, "limits").map(entries).unwrap_or_default().iter();
        policy.limits = limits
            .map(|(name, limit)| PolicyLimit::read(scalar_text(name).unwrap_or("?"), limit, ledger))
            .collect();
        policy
    }

    fn level(&self, part: PartId) -> Option<TargetLevel> {
        self.targets.iter().filter(|target| target.parts.contains(&part)).map(|target| target.level).max()
    }
}

/// Returns the limits that a part of a route has.
pub(super) fn effective_limits(policies: &[LimitPolicy<'_>], part: PartId) -> EffectiveLimits {
    let mut own: Vec<usize> =
        (0..policies.len()).filter(|index| policies[*index].level(part).is_some()).collect();
    own.sort_by_key(|index| (policies[*index].level(part), policies[*index].manifest.created(), *index));
    // Of several policies for one target, the oldest counts.
    own.dedup_by_key(|index| policies[*index].level(part));
    let mut closest_first = own.into_iter().rev();
    let mut effective = closest_first.next().map(|index| all_of(policies, index)).unwrap_or_default();
    for index in closest_first {
        effective = combined(policies, all_of(policies, index), policies[index].strategy, effective);
    }
    effective
}

fn all_of(policies: &[LimitPolicy<'_>], index: usize) -> EffectiveLimits {
    let policy = &policies[index];
    EffectiveLimits {
        limits: (0..policy.limits.len()).map(|limit| (index, limit)).collect(),
        when: policy.when.as_ref().map(|_| index),
    }
}

/// Combines the limits of a policy with those of closer policies.
fn combined(
    policies: &[LimitPolicy<'_>],
    wider: EffectiveLimits,
    strategy: Strategy,
    closer: EffectiveLimits,
) -> EffectiveLimits {
    let merged = |first: EffectiveLimits, second: EffectiveLimits| {
        let name = |limit: &(usize, usize)| policies[limit.0].limits[limit.1].name.as_str();
        let mut all = first;
        let new: Vec<(usize, usize)> = second
            .limits
            .into_iter()
            .filter(|limit| !all.limits.iter().any(|known| name(known) == name(limit)))
            .collect();
        all.limits.extend(new);
        all.when = all.when.or(second.when);
        all
    };
    match strategy {
        Strategy::AtomicDefaults if closer.limits.is_empty() => wider,
        Strategy::AtomicDefaults => closer,
        Strategy::AtomicOverrides if wider.limits.is_empty() => closer,
        Strategy::AtomicOverrides => wider,
        Strategy::MergedDefaults => merged(closer, wider),
        Strategy::MergedOverrides => merged(wider, closer),
    }
}
