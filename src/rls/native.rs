//! Rules of Weir's own configuration, applied to requests of the rate limit service in a domain.
//!
//! The rules treat each descriptor like a request of the proxy: `allow` exempts it, `deny` rejects it, and the limits
//! of all matching rules become checks. The checks of all descriptors are decided as one, so a rejected request is
//! charged nowhere. Refunds are applied in any case, because these units were charged before.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::answer::{Code, CurrentLimit, Status};
use super::request::{Descriptor, Request};
use super::sharing;
use super::unit::Unit;
use crate::engine::Policy;
use crate::identify::descriptor::ParsedDescriptor as Said;
use crate::limiter::algorithm::CounterUsage;
use crate::limiter::decision::{Enforcement, Verdict};
use crate::limiter::quota::Quota;
use crate::limiter::timestamp::Timestamp;
use crate::limiter::{Check, Limiter};
use crate::rules::RuleIndex;
use crate::rules::outcome::DecisionOutcome;
use crate::rules::selection::{CheckRole, SelectedCheck, Selection};

/// The selected rules of one domain for one request, before the limits are checked.
#[derive(Debug)]
pub(super) struct Native<'p> {
    policy: &'p Policy,
    cases: SmallVec<[Case; 4]>,
    /// Selected limits of all descriptors, concatenated.
    selected: SmallVec<[SelectedCheck; 4]>,
    /// The corresponding checks for the limiter.
    pub(super) checks: SmallVec<[Check; 4]>,
}

/// Result of the rules for one descriptor.
#[derive(Debug)]
enum Case {
    /// No rule applies.
    Free,
    Exempt(RuleIndex),
    Denied(RuleIndex),
    /// These checks must pass.
    Limited {
        checks: Range<usize>,
        shadow_rules: Vec<RuleIndex>,
    },
}

impl<'p> Native<'p> {
    /// Selects the rules for `request`; `None` if no rule has its domain. In `shadow` mode, no limit rejects.
    pub(super) fn ask(policy: &'p Policy, request: &Request, shadow: bool, now: Timestamp) -> Option<Self> {
        if !policy.rules.has_domain(&request.domain) {
            return None;
        }
        let (cases, selected) = (SmallVec::new(), SmallVec::new());
        let mut native = Self { policy, cases, selected, checks: SmallVec::new() };
        for descriptor in &request.descriptors {
            let case = native.select(request, descriptor, shadow, now);
            native.cases.push(case);
        }
        Some(native)
    }

    fn select(&mut self, request: &Request, descriptor: &Descriptor, shadow: bool, now: Timestamp) -> Case {
        let said = Said::new(descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value)));
        let attributes = said.attributes(&self.policy.identify, now);
        let (selected, shadow_rules) = match self.policy.rules.select_in(&request.domain, &attributes) {
            Selection::Exempt(rule) => return Case::Exempt(rule),
            Selection::Denied(rule, _) => return Case::Denied(rule),
            // A limit that comes with the request replaces the configured ones.
            Selection::Limited(..) if descriptor.limit.is_some() => return Case::Free,
            Selection::Limited(selected, beside) => (selected, beside.shadow_rules),
        };
        if selected.is_empty() && shadow_rules.is_empty() {
            return Case::Free;
        }
        let hits = request.hits(descriptor);
        let from = self.selected.len();
        // A refund is not rejected because of a ban.
        let is_asked = |one: &SelectedCheck| !(hits.are_given_back() && one.role == CheckRole::Ban);
        for one in selected.into_iter().filter(is_asked) {
            let looks_on = shadow || hits.are_given_back();
            let enforcement = match one.check.enforcement {
                Enforcement::Enforced if looks_on => Enforcement::Shadow,
                as_written => as_written,
            };
            self.checks.push(Check {
                cost: one.check.cost.saturating_mul(hits.cost()),
                enforcement,
                ..one.check
            });
            self.selected.push(one);
        }
        Case::Limited { checks: from..self.selected.len(), shadow_rules }
    }

    /// Returns the maximum time that a request may wait for units of the check at `position`.
    pub(super) fn wait(&self, position: usize) -> Duration {
        sharing::wait_of(self.policy, &self.selected[position])
    }

    /// Replaces the check at `position` by the limit for an unreachable store; returns whether there is one.
    pub(super) fn go_without_store(&mut self, position: usize) -> bool {
        self.policy.rules.use_store_loss_fallback(&mut self.checks[position])
    }

    /// Returns whether a `deny` rule rejects the request.
    pub(super) fn is_denied(&self) -> bool {
        self.cases.iter().any(|case| matches!(case, Case::Denied(_)))
    }

    /// Returns whether an enforced limit is exceeded, also if the service is in shadow mode.
    pub(super) fn is_over(&self, request: &Request, verdicts: &[Verdict]) -> bool {
        let mut limited = self.cases.iter().zip(&request.descriptors);
        limited.any(|(case, descriptor)| match case {
            Case::Limited { checks, .. } => {
                self.over(checks, is_back(request, descriptor), verdicts).is_some()
            }
            Case::Free | Case::Exempt(_) | Case::Denied(_) => false,
        })
    }

    /// Refunds the hits that the request returns.
    pub(super) fn give_back(&self, request: &Request, limiter: &Limiter, now: Timestamp) {
        for (case, descriptor) in self.cases.iter().zip(&request.descriptors) {
            let (Case::Limited { checks, .. }, true) = (case, is_back(request, descriptor)) else { continue };
            for one in &self.selected[checks.clone()] {
                let amount = request.hits(descriptor).amount().saturating_mul(one.check.cost.into());
                limiter.charge(one.check.handle, one.check.key, amount, now);
            }
        }
    }

    /// Yields the status of each descriptor after the limiter's `verdicts`.
    pub(super) fn statuses<'n>(
        &'n self,
        request: &'n Request,
        verdicts: &'n [Verdict],
        now: Timestamp,
    ) -> impl Iterator<Item = Status> + 'n {
        self.cases.iter().zip(&request.descriptors).map(move |(case, descriptor)| match case {
            Case::Free | Case::Exempt(_) => Status::default(),
            Case::Denied(_) => Status { code: Code::OverLimit, ..Status::default() },
            Case::Limited { checks, .. } => self.status(checks, is_back(request, descriptor), verdicts, now),
        })
    }

    /// Returns the position of the exceeded check with the longest wait; the first of equals.
    fn over(&self, checks: &Range<usize>, is_back: bool, verdicts: &[Verdict]) -> Option<usize> {
        let refuses = |at: &usize| {
            self.selected[*at].check.enforcement == Enforcement::Enforced && verdicts[*at].exceeds()
        };
        let refusing = checks.clone().filter(|at| !is_back && refuses(at));
        refusing.rev().max_by_key(|at| verdicts[*at].retry_after())
    }

    /// Returns the status by the exceeded limit with the longest wait, or else by the limit with the fewest units left;
    /// the first of equals. Limits in shadow mode are not shown.
    fn status(&self, checks: &Range<usize>, is_back: bool, verdicts: &[Verdict], now: Timestamp) -> Status {
        let told = |at: &usize| {
            let one = &self.selected[*at];
            one.role.reported_limit().is_some() && one.check.enforcement != Enforcement::Shadow
        };
        let over = self.over(checks, is_back, verdicts);
        // For a ban or a margin, a limit of the same rule is shown.
        let rule = over.map(|at| self.selected[at].rule);
        let of_rule = |at: &usize| rule.is_none_or(|rule| self.selected[*at].rule == rule);
        let itself = over.filter(told);
        let standings =
            checks.clone().filter(|at| told(at) && of_rule(at) && itself.is_none_or(|it| it == *at));
        let usages = standings.filter_map(|at| Some((at, verdicts[at].quota()?, verdicts[at].usage(now)?)));
        let least = usages.min_by_key(|(_, _, usage)| usage.remaining);
        let wait = over.map(|at| verdicts[at].retry_after());
        Status {
            code: if over.is_some() { Code::OverLimit } else { Code::Ok },
            duration_until_reset: wait
                .map(|wait| whole_seconds(wait).max(Duration::from_secs(1)))
                .or_else(|| least.map(|(_, _, CounterUsage { reset, .. })| whole_seconds(reset))),
            limit_remaining: least.map_or(0, |(_, _, usage)| usage.remaining),
            current_limit: least.map(|(at, quota, _)| self.current_limit(at, quota)),
        }
    }

    fn current_limit(&self, at: usize, quota: &Quota) -> CurrentLimit {
        let rule = self.policy.rules.get(self.selected[at].rule);
        CurrentLimit {
            requests_per_unit: quota.limit().count.get(),
            unit: Unit::as_long_as(quota.limit().period),
            name: rule.map_or_else(|| Arc::from(""), |rule| Arc::from(rule.counter())),
        }
    }

    /// Returns the outcome of each rule for each matching descriptor, given whether the request was `refused`.
    pub(super) fn outcomes(&self, verdicts: &[Verdict], refused: bool) -> Vec<(RuleIndex, DecisionOutcome)> {
        let mut outcomes = Vec::new();
        for case in &self.cases {
            match case {
                Case::Free => {}
                Case::Exempt(rule) => outcomes.push((*rule, DecisionOutcome::Exempt)),
                Case::Denied(rule) => outcomes.push((*rule, DecisionOutcome::Denied)),
                Case::Limited { checks, shadow_rules } => {
                    outcomes.extend(shadow_rules.iter().map(|rule| (*rule, DecisionOutcome::Shadow)));
                    let mut at = checks.start;
                    for of_rule in self.selected[checks.clone()].chunk_by(|one, next| one.rule == next.rule) {
                        let verdicts = &verdicts[at..at + of_rule.len()];
                        at += of_rule.len();
                        let outcome = DecisionOutcome::from_verdicts(of_rule, verdicts, refused);
                        outcomes.extend(outcome.map(|outcome| (of_rule[0].rule, outcome)));
                    }
                }
            }
        }
        outcomes
    }
}

fn is_back(request: &Request, descriptor: &Descriptor) -> bool {
    request.hits(descriptor).are_given_back()
}

/// Rounds up to whole seconds, so that clients do not retry too early.
pub(super) fn whole_seconds(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0)))
}
