//! Rules of Weir's own configuration, applied to requests of the rate limit service in a domain.
//!
//! The rules treat each descriptor like a request of the proxy: `allow` exempts it, `deny` rejects it, and the limits
//! of all matching rules become checks. The checks of all descriptors are decided as one, so a rejected request is
//! charged nowhere. Refunds are applied in any case, because these units were charged before.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::request::{RlsDescriptor, RlsRequest};
use super::response::{Code, CurrentLimit, RlsDescriptorStatus};
use super::shared_limits;
use super::stats::RuleDecision;
use super::unit::RlsUnit;
use weir_limiter::algorithm::CounterUsage;
use weir_limiter::decision::{Enforcement, Verdict};
use weir_limiter::quota::Quota;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Check, Limiter};
use weir_policy::engine::Policy;
use weir_policy::identify::descriptor::ParsedDescriptor as Said;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::outcome::{self, DecisionOutcome};
use weir_policy::rules::selection::{CheckRole, SelectedCheck, Selection};

/// The selected rules of one domain for one request, before the limits are checked.
#[derive(Debug)]
pub(super) struct NativeChecks<'p> {
    policy: &'p Policy,
    outcomes: SmallVec<[NativeOutcome; 4]>,
    /// Selected limits of all descriptors, concatenated.
    selected: SmallVec<[SelectedCheck; 4]>,
    /// The corresponding checks for the limiter.
    pub(super) checks: SmallVec<[Check; 4]>,
}

/// Result of the rules for one descriptor.
#[derive(Debug)]
enum NativeOutcome {
    /// No rule applies.
    NoRule,
    Exempt(RuleIndex),
    Denied(RuleIndex),
    /// These checks must pass.
    Limited {
        checks: Range<usize>,
        shadow_rules: Vec<RuleIndex>,
    },
}

impl<'p> NativeChecks<'p> {
    /// Selects the rules for `request`; `None` if no rule has its domain. In `shadow` mode, no limit rejects.
    pub(super) fn for_request(
        policy: &'p Policy,
        request: &RlsRequest,
        shadow: bool,
        now: Timestamp,
    ) -> Option<Self> {
        if !policy.rules.has_domain(&request.domain) {
            return None;
        }
        let (outcomes, selected) = (SmallVec::new(), SmallVec::new());
        let mut native = Self { policy, outcomes, selected, checks: SmallVec::new() };
        for descriptor in &request.descriptors {
            let outcome = native.select_for_descriptor(request, descriptor, shadow, now);
            native.outcomes.push(outcome);
        }
        Some(native)
    }

    fn select_for_descriptor(
        &mut self,
        request: &RlsRequest,
        descriptor: &RlsDescriptor,
        shadow: bool,
        now: Timestamp,
    ) -> NativeOutcome {
        let parsed = Said::new(descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value)));
        let attributes = parsed.attributes(&self.policy.identify, now);
        let (selected, shadow_rules) = match self.policy.rules.select_in(&request.domain, &attributes) {
            Selection::Exempt(rule) => return NativeOutcome::Exempt(rule),
            Selection::Denied(rule, _) => return NativeOutcome::Denied(rule),
            // A limit that comes with the request replaces the configured ones.
            Selection::Limited(..) if descriptor.limit.is_some() => return NativeOutcome::NoRule,
            Selection::Limited(selected, side_effects) => (selected, side_effects.shadow_rules),
        };
        if selected.is_empty() && shadow_rules.is_empty() {
            return NativeOutcome::NoRule;
        }
        let hits = request.hits(descriptor);
        let start = self.selected.len();
        // A refund is not rejected because of a ban.
        let applies = |one: &SelectedCheck| !(hits.is_refund() && one.role == CheckRole::Ban);
        for one in selected.into_iter().filter(applies) {
            let is_shadow = shadow || hits.is_refund();
            let enforcement = match one.check.enforcement {
                Enforcement::Enforced if is_shadow => Enforcement::Shadow,
                as_written => as_written,
            };
            self.checks.push(Check {
                cost: one.check.cost.saturating_mul(hits.cost()),
                enforcement,
                ..one.check
            });
            self.selected.push(one);
        }
        NativeOutcome::Limited { checks: start..self.selected.len(), shadow_rules }
    }

    /// Returns the maximum time that a request may wait for units of the check at `position`; `None` for the default.
    pub(super) fn max_wait(&self, position: usize) -> Option<Duration> {
        shared_limits::max_lease_wait(self.policy, &self.selected[position])
    }

    pub(super) fn rule(&self, position: usize) -> RuleIndex {
        self.selected[position].rule
    }

    /// Replaces the check at `position` by the limit for an unreachable store; returns whether there is one.
    pub(super) fn use_store_loss_fallback(&mut self, position: usize) -> bool {
        self.policy.rules.use_store_loss_fallback(&mut self.checks[position])
    }

    /// Returns whether a `deny` rule rejects the request.
    pub(super) fn is_denied(&self) -> bool {
        self.outcomes.iter().any(|outcome| matches!(outcome, NativeOutcome::Denied(_)))
    }

    /// Returns whether an enforced limit is exceeded, also if the service is in shadow mode.
    pub(super) fn is_over_limit(&self, request: &RlsRequest, verdicts: &[Verdict]) -> bool {
        let mut limited = self.outcomes.iter().zip(&request.descriptors);
        limited.any(|(outcome, descriptor)| match outcome {
            NativeOutcome::Limited { checks, .. } => {
                self.find_exceeded(checks, is_refund(request, descriptor), verdicts).is_some()
            }
            NativeOutcome::NoRule | NativeOutcome::Exempt(_) | NativeOutcome::Denied(_) => false,
        })
    }

    pub(super) fn refund_hits(&self, request: &RlsRequest, limiter: &Limiter, now: Timestamp) {
        for (outcome, descriptor) in self.outcomes.iter().zip(&request.descriptors) {
            let (NativeOutcome::Limited { checks, .. }, true) = (outcome, is_refund(request, descriptor))
            else {
                continue;
            };
            for one in &self.selected[checks.clone()] {
                let amount = request.hits(descriptor).signed_amount().saturating_mul(one.check.cost.into());
                limiter.charge(one.check.handle, one.check.key, amount, now);
            }
        }
    }

    /// Yields the status of each descriptor after the limiter's `verdicts`.
    pub(super) fn statuses<'n>(
        &'n self,
        request: &'n RlsRequest,
        verdicts: &'n [Verdict],
        now: Timestamp,
    ) -> impl Iterator<Item = RlsDescriptorStatus> + 'n {
        self.outcomes.iter().zip(&request.descriptors).map(move |(outcome, descriptor)| match outcome {
            NativeOutcome::NoRule | NativeOutcome::Exempt(_) => RlsDescriptorStatus::default(),
            NativeOutcome::Denied(_) => {
                RlsDescriptorStatus { code: Code::OverLimit, ..RlsDescriptorStatus::default() }
            }
            NativeOutcome::Limited { checks, .. } => {
                self.descriptor_status(checks, is_refund(request, descriptor), verdicts, now)
            }
        })
    }

    /// Returns the position of the exceeded check with the longest wait; the first of equals.
    fn find_exceeded(&self, checks: &Range<usize>, is_refund: bool, verdicts: &[Verdict]) -> Option<usize> {
        let rejects = |at: &usize| {
            self.selected[*at].check.enforcement == Enforcement::Enforced && verdicts[*at].exceeds()
        };
        let rejecting = checks.clone().filter(|at| !is_refund && rejects(at));
        rejecting.rev().max_by_key(|at| verdicts[*at].retry_after())
    }

    /// Returns the status by the exceeded limit with the longest wait, or else by the limit with the fewest units left;
    /// the first of equals. Limits in shadow mode are not shown.
    fn descriptor_status(
        &self,
        checks: &Range<usize>,
        is_refund: bool,
        verdicts: &[Verdict],
        now: Timestamp,
    ) -> RlsDescriptorStatus {
        let is_reported = |at: &usize| {
            let one = &self.selected[*at];
            one.role.reported_limit().is_some() && one.check.enforcement != Enforcement::Shadow
        };
        let exceeded = self.find_exceeded(checks, is_refund, verdicts);
        // For a ban or a margin, a limit of the same rule is shown.
        let rule = exceeded.map(|at| self.selected[at].rule);
        let is_same_rule = |at: &usize| rule.is_none_or(|rule| self.selected[*at].rule == rule);
        let shown = exceeded.filter(is_reported);
        let candidates = checks
            .clone()
            .filter(|at| is_reported(at) && is_same_rule(at) && shown.is_none_or(|it| it == *at));
        let usages = candidates.filter_map(|at| Some((at, verdicts[at].quota()?, verdicts[at].usage(now)?)));
        let tightest = usages.min_by_key(|(_, _, usage)| usage.remaining);
        let wait = exceeded.map(|at| verdicts[at].retry_after());
        let is_banned = exceeded.is_some()
            && checks.clone().any(|at| {
                is_same_rule(&at) && outcome::time_banned(&self.selected[at], &verdicts[at], now).is_some()
            });
        RlsDescriptorStatus {
            code: if exceeded.is_some() { Code::OverLimit } else { Code::Ok },
            duration_until_reset: wait
                .map(|wait| ceil_seconds(wait).max(Duration::from_secs(1)))
                .or_else(|| tightest.map(|(_, _, CounterUsage { reset, .. })| ceil_seconds(reset))),
            // Nothing is left of a limit while a ban runs.
            limit_remaining: tightest.filter(|_| !is_banned).map_or(0, |(_, _, usage)| usage.remaining),
            current_limit: tightest.map(|(at, quota, _)| self.current_limit(at, quota)),
        }
    }

    fn current_limit(&self, at: usize, quota: &Quota) -> CurrentLimit {
        let rule = self.policy.rules.get(self.selected[at].rule);
        CurrentLimit {
            requests_per_unit: quota.limit().count.get(),
            unit: RlsUnit::from_period(quota.limit().period),
            name: rule.map_or_else(|| Arc::from(""), |rule| Arc::from(rule.counter())),
        }
    }

    /// Returns the decision of each rule on each matching descriptor, given whether the request was `rejected`.
    pub(super) fn rule_decisions(
        &self,
        request: &RlsRequest,
        verdicts: &[Verdict],
        rejected: bool,
    ) -> Vec<RuleDecision> {
        let mut decisions = Vec::new();
        let outcomes = self.outcomes.iter().zip(&request.descriptors).enumerate();
        for (position, (descriptor_outcome, descriptor)) in outcomes {
            let has_hits = request.hits(descriptor).counted_hits() > 0;
            let keyless =
                |rule, outcome| RuleDecision { rule, outcome, descriptor: position, key: None, has_hits };
            match descriptor_outcome {
                NativeOutcome::NoRule => {}
                NativeOutcome::Exempt(rule) => decisions.push(keyless(*rule, DecisionOutcome::Exempt)),
                NativeOutcome::Denied(rule) => decisions.push(keyless(*rule, DecisionOutcome::Denied)),
                NativeOutcome::Limited { checks, shadow_rules } => {
                    decisions.extend(shadow_rules.iter().map(|rule| keyless(*rule, DecisionOutcome::Shadow)));
                    let mut at = checks.start;
                    for rule_checks in
                        self.selected[checks.clone()].chunk_by(|one, next| one.rule == next.rule)
                    {
                        let verdicts = &verdicts[at..at + rule_checks.len()];
                        at += rule_checks.len();
                        let outcome = DecisionOutcome::from_verdicts(rule_checks, verdicts, rejected);
                        let SelectedCheck { rule, check, .. } = rule_checks[0];
                        decisions.extend(
                            outcome.map(|outcome| RuleDecision {
                                key: Some(check.key),
                                ..keyless(rule, outcome)
                            }),
                        );
                    }
                }
            }
        }
        decisions
    }
}

fn is_refund(request: &RlsRequest, descriptor: &RlsDescriptor) -> bool {
    request.hits(descriptor).is_refund()
}

/// Rounds up to whole seconds, so that clients do not retry too early.
pub(super) fn ceil_seconds(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0)))
}
