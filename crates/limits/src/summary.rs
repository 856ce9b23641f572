//! Summary of a request's decision, for logs: the rule that mattered most, and what its limit had left.

use std::time::Duration;

use super::AppliedLimits;
use weir_limiter::decision::Verdict;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::outcome::DecisionOutcome;
use weir_policy::rules::selection::SelectedCheck;
use weir_store::remote::service::ServiceDescriptorStatus;

/// A limit and what it had left after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Units that the limit admits in its period.
    pub limit: u32,
    /// Units left.
    pub remaining: u32,
}

/// The decision of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionSummary {
    /// The rule that rejected, marked, delayed, exempted or would have rejected the request. If all admit it, the rule
    /// with the fewest units left.
    pub rule: RuleIndex,
    /// What that rule did.
    pub outcome: DecisionOutcome,
    /// Its limit with the fewest units left; `None` without a counted limit.
    pub standing: Option<Standing>,
    /// Time for which the request is delayed.
    pub delay: Duration,
}

impl Standing {
    /// Returns what another service has reported.
    pub(super) fn from_service(status: &ServiceDescriptorStatus) -> Option<Self> {
        let (limit, _) = status.limit?;
        Some(Self { limit, remaining: status.remaining })
    }
}

impl DecisionSummary {
    /// Returns the summary of a rule that decided without a limit.
    pub const fn without_limit(rule: RuleIndex, outcome: DecisionOutcome) -> Self {
        Self { rule, outcome, standing: None, delay: Duration::ZERO }
    }

    /// How much it matters in comparison with the decisions of other rules.
    fn weight(&self) -> (u8, u32) {
        (self.outcome.weight(), self.standing.map_or(0, |standing| u32::MAX - standing.remaining))
    }
}

impl AppliedLimits {
    /// Returns the summary of a request that `rejecting` rejects, or that is admitted; `None` if no rule applies.
    pub fn summary(&self, rejecting: Option<RuleIndex>) -> Option<DecisionSummary> {
        let is_rejected = self.is_rejected() || rejecting.is_some();
        let local = self.by_rule().filter_map(|(checks, verdicts)| {
            Some(DecisionSummary {
                rule: checks[0].rule,
                outcome: DecisionOutcome::from_verdicts(checks, verdicts, is_rejected)?,
                standing: self.standing(checks, verdicts),
                delay: verdicts.iter().map(Verdict::delay).max().unwrap_or_default(),
            })
        });
        let remote = self.verdicts().into_iter().flat_map(|verdicts| &verdicts.outcomes).map(|decided| {
            let summary = DecisionSummary::without_limit(decided.rule, decided.outcome);
            DecisionSummary { standing: decided.standing, ..summary }
        });
        let before_limits = self
            .shadow_rules
            .iter()
            .map(|rule| DecisionSummary::without_limit(*rule, DecisionOutcome::Shadow));
        let mut decided = local.chain(remote).chain(before_limits);
        match rejecting {
            Some(rule) => {
                let rejection = DecisionSummary::without_limit(rule, DecisionOutcome::Limited);
                Some(decided.find(|summary| summary.rule == rule).unwrap_or(rejection))
            }
            // The first of equals, as headers show it.
            None => decided.reduce(|best, next| if next.weight() > best.weight() { next } else { best }),
        }
    }

    /// Returns what the rules did together with a request that `rejecting` rejects, or that is admitted: the outcome of
    /// its [summary](Self::summary). `None` if no rule applies.
    pub fn outcome(&self, rejecting: Option<RuleIndex>) -> Option<DecisionOutcome> {
        let verdicts = self.decision.verdicts();
        // Fast path: almost every request conforms to all limits.
        if rejecting.is_none()
            && self.shadow_rules.is_empty()
            && self.verdicts().is_none()
            && verdicts.iter().all(Verdict::conforms_at_once)
        {
            return (!verdicts.is_empty()).then_some(DecisionOutcome::Allowed);
        }
        let is_rejected = self.is_rejected() || rejecting.is_some();
        let local = self.by_rule().filter_map(|(checks, verdicts)| {
            Some((checks[0].rule, DecisionOutcome::from_verdicts(checks, verdicts, is_rejected)?))
        });
        let remote = self.verdicts().into_iter().flat_map(|verdicts| &verdicts.outcomes);
        let before_limits = self.shadow_rules.iter().map(|rule| (*rule, DecisionOutcome::Shadow));
        let mut decided =
            local.chain(remote.map(|decided| (decided.rule, decided.outcome))).chain(before_limits);
        match rejecting {
            Some(rule) => {
                let found = decided.find(|(of, _)| *of == rule).map(|(_, outcome)| outcome);
                Some(found.unwrap_or(DecisionOutcome::Limited))
            }
            None => decided.map(|(_, outcome)| outcome).max_by_key(|outcome| outcome.weight()),
        }
    }

    /// Yields the rules in shadow mode whose limits the request exceeds.
    pub fn rules_in_shadow(&self) -> impl Iterator<Item = RuleIndex> {
        let is_rejected = self.is_rejected();
        let local = self.by_rule().filter_map(move |(checks, verdicts)| {
            let outcome = DecisionOutcome::from_verdicts(checks, verdicts, is_rejected)?;
            (outcome == DecisionOutcome::Shadow).then_some(checks[0].rule)
        });
        self.shadow_rules.iter().copied().chain(local)
    }

    /// Returns the limit of a rule with the fewest units left.
    pub(super) fn standing(&self, checks: &[SelectedCheck], verdicts: &[Verdict]) -> Option<Standing> {
        let standing = |(selected, verdict): (&SelectedCheck, &Verdict)| {
            selected.role.reported_limit()?;
            let usage = verdict.usage(self.decided_at)?.in_requests(selected.unit_cost);
            let is_closed = verdict.is_paused() || self.time_closed(selected, verdict).is_some();
            let remaining = if is_closed { 0 } else { usage.remaining };
            Some(Standing { limit: verdict.quota()?.limit().count.get(), remaining })
        };
        checks.iter().zip(verdicts).filter_map(standing).min_by_key(|standing| standing.remaining)
    }
}
