//! Limits that change while the process runs: adaptive concurrency limits, and limits that follow a provider.
//!
//! Their state is read when a request is selected. A request that waits reads it again before each decision.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::cost::ReservedCost;
use super::planned_checks::{self, PlannedCheck};
use super::rule::{Action, LimitAction, Rule, RuleLimit};
use super::selection::{CheckRole, SelectedCheck};
use super::stated_limit::StatedValue;
use super::{RequestKey, RuleIndex, RuleSet};
use crate::identify::Attributes;
use weir_limiter::Check;
use weir_limiter::adaptive::AdaptiveRange;
use weir_limiter::adaptive::limits::AdaptiveLimits;
use weir_limiter::check_options::{CheckOptions, CounterRole, DelayPolicy, WithoutRoom};
use weir_limiter::decision::Enforcement;
use weir_limiter::elastic::Headroom;
use weir_limiter::feedback::LimitShare;
use weir_limiter::feedback::states::RuleFeedback;
use weir_limiter::key::KeyHash;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{LimitHandle, Limiter};

/// Cost of a request under a limit that follows a provider.
#[derive(Clone, Copy, Debug)]
pub(super) struct FollowingCost {
    /// Units of the limit per unit of the request.
    pub(super) unit_cost: NonZeroU32,
    /// Units that are decided on.
    pub(super) admitted: u32,
    /// Units that an admitted request owes in addition.
    pub(super) surcharge: u32,
}

impl FollowingCost {
    /// Returns the cost of `units` under a limit that follows no provider.
    const fn fixed(units: u32, unit_cost: NonZeroU32) -> Self {
        Self { unit_cost, admitted: units.saturating_mul(unit_cost.get()), surcharge: 0 }
    }

    /// Returns the cost of `units` under `limit` of a rule, while `share` of it is in force.
    pub(super) fn new(units: u32, share: LimitShare, limit: &RuleLimit, limiting: &LimitAction) -> Self {
        let unit_cost = share.cost(limit.quota.units_per_request());
        let cost = units.saturating_mul(unit_cost.get());
        // A request that would never fit a small burst is admitted if all of it is free, and owes the rest. The store
        // never grants a whole burst at once.
        let parts = if limiting.is_leased() { 2 } else { 1 };
        let admitted = cost.min(limit.quota.max_cost(units, parts));
        Self { unit_cost, admitted, surcharge: cost - admitted }
    }
}

impl RuleSet {
    /// Returns this rule set with the state of its adaptive limits. `create` gets the limit's handle and whether the rule
    /// has a key.
    pub fn with_adaptive_limits(mut self, create: impl Fn(LimitHandle, bool) -> Arc<AdaptiveLimits>) -> Self {
        for (rule, bound) in self.rules.iter().zip(&mut self.bound) {
            let limiting = rule.action.limiting().filter(|limiting| limiting.adaptive.is_some());
            let permit = bound.checks.iter().find(|planned| planned.role() == CheckRole::Permit);
            bound.adaptive_limits = limiting
                .zip(permit)
                .map(|(limiting, permit)| create(permit.handle(), !limiting.key.0.is_empty()));
        }
        self
    }

    /// Returns the adaptive limits of the rule at `index`, with their bounds; `None` if it has none.
    pub fn adaptive_limits(&self, index: RuleIndex) -> Option<(&Arc<AdaptiveLimits>, AdaptiveRange)> {
        let limits = self.bound.get(index.0)?.adaptive_limits.as_ref()?;
        Some((limits, self.rules.get(index.0)?.action.limiting()?.adaptive?))
    }

    /// Yields the rules with adaptive limits.
    pub fn adaptive_rules(&self) -> impl Iterator<Item = (&Rule, &Arc<AdaptiveLimits>, AdaptiveRange)> {
        let rules = self.rules.iter().enumerate();
        rules.filter_map(|(index, rule)| {
            let (limits, range) = self.adaptive_limits(RuleIndex(index))?;
            Some((rule, limits, range))
        })
    }

    /// Returns this rule set with the shares in `limiter` for its rules that follow a provider.
    pub fn with_feedback(mut self, limiter: &Limiter, now: Timestamp) -> Self {
        for (rule, bound) in
            self.rules.iter().zip(&mut self.bound).filter(|(rule, _)| rule.feedback().is_some())
        {
            let (limits, is_shared) = (followed_limits(&bound.checks).collect(), rule.shared().is_some());
            let feedback = limiter.feedback().of_rule(rule.counter(), limits, is_shared, limiter, now);
            bound.feedback = Some(feedback);
            self.has_feedback = true;
        }
        self
    }

    /// Whether any limit follows a provider.
    pub const fn has_feedback(&self) -> bool {
        self.has_feedback
    }

    /// Returns what the provider has signalled for the rule at `index`; `None` if the rule does not follow it.
    pub fn feedback(&self, index: RuleIndex) -> Option<&Arc<RuleFeedback>> {
        self.bound.get(index.0)?.feedback.as_ref()
    }

    /// Returns the share in force of the limits of a rule that follows a provider.
    #[inline]
    pub(super) fn share_in_force(&self, index: usize, key: KeyHash) -> Option<LimitShare> {
        if !self.has_feedback {
            return None;
        }
        Some(self.bound.get(index)?.feedback.as_ref()?.share(key))
    }

    /// Makes the checks of rules whose requests wait in a queue delay requests instead, where it is known how long they
    /// would wait. For predictions, in which no request waits.
    pub fn replace_waits(&self, selected: &mut [SelectedCheck]) {
        for one in selected {
            let Some(Action::Limit(limiting)) = self.get(one.rule).map(|rule| &rule.action) else { continue };
            let (Some(wait), CheckRole::Limit(position)) = (&limiting.wait, one.role) else { continue };
            let limit = limiting.limits.get(usize::from(position));
            let can_delay = limit.is_some_and(|limit| limit.quota.algorithm().can_delay());
            if can_delay && !limiting.is_leased() {
                let role = CounterRole::Delay(DelayPolicy::new(wait.max, Some(wait.max_queued)));
                one.check.options = Some(CheckOptions {
                    on_denied: limiting.on_denied,
                    request_limit: one.check.request_limit(),
                    role,
                    ..planned_checks::default_options(one.rule.0)
                });
            }
        }
    }

    /// Returns a check of a rule that applies to a request, if it is not the same for all requests; `None` if the request
    /// needs no such check.
    #[inline(never)]
    pub(super) fn varying_check(
        &self,
        planned: &PlannedCheck,
        limiting: &LimitAction,
        RequestKey { key, route, is_complete, is_enforced, value, hasher }: RequestKey<'_>,
        request: &Attributes<'_>,
        headroom: Headroom,
    ) -> Option<SelectedCheck> {
        let SelectedCheck { rule, role, mut check, .. } = planned.template;
        if let (Some(value), Some(options)) = (value, &mut check.options) {
            let [_, word] = value.words();
            options.without_room = WithoutRoom::Distinct(word as u32);
        }
        let enforcement = if is_enforced { check.enforcement } else { Enforcement::Shadow };
        let plain = SelectedCheck { check: Check { key, enforcement, ..check }, ..planned.template };
        let limit = match role {
            CheckRole::Limit(limit) | CheckRole::Margin(limit) | CheckRole::Mark(limit) => limit,
            // In shadow mode no ban is enforced either.
            CheckRole::Ban => return is_enforced.then_some(plain),
            CheckRole::Stream(_) => return None,
            CheckRole::Seen => {
                return value.map(|key| SelectedCheck { check: Check { key, ..plain.check }, ..plain });
            }
            CheckRole::Permit => {
                let options = self.adaptive_options(rule.0, key, check.options).or(check.options);
                return Some(SelectedCheck { check: Check { options, ..plain.check }, ..plain });
            }
        };
        let limit = limiting.limits.get(usize::from(limit))?;
        let own_key = match &limit.nested {
            Some(nested) if nested.is_wider() && request.client.ip.is_ipv4() => return None,
            Some(nested) if is_complete => {
                nested.key.as_ref().and_then(|own| own.hash(request, route, hasher).ok())
            }
            _ => None,
        };
        let ReservedCost { units, is_guess } = limiting.cost_model.reserve(request.into());
        let cost = match (limit.elastic_costs, self.share_in_force(rule.0, key)) {
            (Some(prices), _) => FollowingCost::fixed(units, prices.at_headroom(headroom)),
            (None, Some(share)) => FollowingCost::new(units, share, limit, limiting),
            (None, None) => FollowingCost::fixed(units, NonZeroU32::MIN),
        };
        let mut check = Check { key: own_key.unwrap_or(key), cost: cost.admitted, ..plain.check };
        let states_unreadable_limit = state_limit(&mut check, rule.0, limit, request);
        let (unit_cost, surcharge) = (cost.unit_cost, cost.surcharge);
        Some(SelectedCheck { unit_cost, check, surcharge, states_unreadable_limit, is_guess, ..plain })
    }

    /// Returns the options of a permit of the rule at `index` with the limit in force, if that is adaptive.
    pub(super) fn adaptive_options(
        &self,
        index: usize,
        key: KeyHash,
        options: Option<CheckOptions>,
    ) -> Option<CheckOptions> {
        let (limits, range) = self.adaptive_limits(RuleIndex(index))?;
        let options = options.unwrap_or_else(|| planned_checks::default_options(index));
        Some(CheckOptions { role: CounterRole::Adaptive(limits.limit(key, range)), ..options })
    }

    /// Applies the present state of such limits to checks that were selected earlier.
    pub fn refresh(&self, selected: &mut [SelectedCheck]) {
        for one in selected {
            let index = one.rule.0;
            let Some(Action::Limit(limiting)) = self.rules.get(index).map(|rule| &rule.action) else {
                continue;
            };
            if one.role == CheckRole::Permit {
                if let Some(options) = self.adaptive_options(index, one.check.key, one.check.options) {
                    one.check.options = Some(options);
                }
                continue;
            }
            let limit = one.role.reported_limit().and_then(|position| limiting.limits.get(position));
            let (Some(limit), Some(share)) = (limit, self.share_in_force(index, one.check.key)) else {
                continue;
            };
            let units = one.check.cost.saturating_add(one.surcharge) / one.unit_cost;
            let cost = FollowingCost::new(units, share, limit, limiting);
            (one.unit_cost, one.check.cost, one.surcharge) = (cost.unit_cost, cost.admitted, cost.surcharge);
        }
    }
}

/// Adds the limit that the request states to the check of `limit`, of the rule at `index`; returns whether it states one
/// that cannot be read.
fn state_limit(check: &mut Check, index: usize, limit: &RuleLimit, request: &Attributes<'_>) -> bool {
    let Some(stated) = &limit.stated else { return false };
    match stated.read(&limit.quota, request) {
        StatedValue::Absent => false,
        StatedValue::Unreadable => true,
        StatedValue::Limit(requested) => {
            let options = check.options.unwrap_or_else(|| planned_checks::default_options(index));
            check.options = Some(CheckOptions { request_limit: Some(requested), ..options });
            false
        }
    }
}

/// Yields the limits among these checks that follow the provider, wherever they are counted.
fn followed_limits(checks: &[PlannedCheck]) -> impl Iterator<Item = LimitHandle> + '_ {
    let limits = checks.iter().filter(|planned| planned.role().reported_limit().is_some());
    limits.flat_map(PlannedCheck::handles)
}
