//! Outcome of a rule for a request, as a label for metrics and logs.

use std::time::Duration;

use super::cost_unit::CostUnit;
use super::rule::LimitAction;
use super::selection::{CheckRole, SelectedCheck};
use weir_limiter::decision::{Decision, Enforcement, Verdict};
use weir_limiter::timestamp::Timestamp;

/// Yields the checks of each rule, of which there is at least one, with their verdicts in `decision`.
#[inline]
pub fn by_rule<'a>(
    selected: &'a [SelectedCheck],
    decision: &'a Decision,
) -> impl Iterator<Item = (&'a [SelectedCheck], &'a [Verdict])> {
    let (mut rest, mut verdicts) = (selected, decision.verdicts());
    std::iter::from_fn(move || {
        let first = rest.first()?;
        let other = rest.iter().position(|selected| selected.rule != first.rule);
        let (checks, other_checks) = rest.split_at(other.unwrap_or(rest.len()));
        let (verdicts_of_rule, others) = verdicts.split_at(checks.len());
        (rest, verdicts) = (other_checks, others);
        Some((checks, verdicts_of_rule))
    })
}

/// Returns the time until the ban ends that this check enforces: one that an operator has set, one that runs, or one
/// that the rejection has started. `None` if there is none.
pub fn time_banned(selected: &SelectedCheck, verdict: &Verdict, now: Timestamp) -> Option<Duration> {
    if verdict.enforcement != Enforcement::Enforced {
        return None;
    }
    if verdict.is_banned() && verdict.exceeds() {
        return Some(verdict.retry_after());
    }
    let running = verdict.usage(now).filter(|usage| selected.role == CheckRole::Ban && usage.used > 0);
    running.map(|usage| usage.reset)
}

/// Whether a check bans the key, by an operator or by the rule.
pub fn is_banned(selected: &SelectedCheck, verdict: &Verdict) -> bool {
    verdict.is_banned() || (selected.role == CheckRole::Ban && verdict.exceeds())
}

/// Returns what the numbers of a check count.
pub fn unit_of(limiting: &LimitAction, role: CheckRole) -> CostUnit {
    match role {
        CheckRole::Permit | CheckRole::Ban | CheckRole::Seen | CheckRole::Stream(_) => CostUnit::Requests,
        CheckRole::Limit(_) | CheckRole::Margin(_) | CheckRole::Mark(_) => CostUnit::of(limiting),
    }
}

/// What a rule did with a request that it applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecisionOutcome {
    /// Admitted, within the limit.
    Allowed,
    /// Admitted with a mark: over a soft limit but within its margin.
    Soft,
    /// Admitted after a delay.
    Delayed,
    /// Rejected because a limit was exceeded.
    Limited,
    /// Rejected because the key is banned.
    Banned,
    /// Rejected by `action: deny`, or because a required part of the key is missing.
    Denied,
    /// Exempted by `action: allow`.
    Exempt,
    /// Over the limit of a rule in shadow mode.
    Shadow,
    /// Over the limit, and sent to another upstream instead of being rejected.
    Diverted,
}

impl DecisionOutcome {
    /// All outcomes, in the order of the documentation.
    pub const ALL: [Self; 9] = [
        Self::Allowed,
        Self::Soft,
        Self::Delayed,
        Self::Limited,
        Self::Banned,
        Self::Denied,
        Self::Exempt,
        Self::Shadow,
        Self::Diverted,
    ];

    /// Returns the outcome of a rule's checks; `None` if another rule rejected what this one would have admitted, or decided
    /// in its place.
    pub fn from_verdicts(
        selected: &[SelectedCheck],
        verdicts: &[Verdict],
        is_rejected: bool,
    ) -> Option<Self> {
        // Fast path: almost every rule has one check, and almost every check conforms.
        if let [verdict] = verdicts
            && verdict.conforms_at_once()
            && verdict.is_charged()
        {
            return (!is_rejected).then_some(Self::Allowed);
        }
        let any = |is: fn(&Verdict) -> bool| verdicts.iter().any(is);
        let banned = selected
            .iter()
            .zip(verdicts)
            .any(|(one, verdict)| (one.role == CheckRole::Ban || verdict.is_banned()) && verdict.rejects());
        if verdicts.iter().all(Verdict::is_passed_over) {
            None
        } else if banned {
            Some(Self::Banned)
        } else if any(Verdict::rejects) {
            Some(Self::Limited)
        } else if any(|verdict| verdict.exceeds() && verdict.enforcement == Enforcement::Shadow) {
            Some(Self::Shadow)
        } else if is_rejected {
            None
        } else if any(Verdict::diverts) {
            Some(Self::Diverted)
        } else if any(Verdict::marks) {
            Some(Self::Soft)
        } else if any(|verdict| !verdict.delay().is_zero()) {
            Some(Self::Delayed)
        } else {
            Some(Self::Allowed)
        }
    }

    /// Whether the request is rejected.
    pub const fn is_rejection(self) -> bool {
        matches!(self, Self::Limited | Self::Banned | Self::Denied)
    }

    /// Returns how much it matters for a request, in comparison with the outcomes of other rules.
    pub const fn weight(self) -> u8 {
        match self {
            Self::Banned | Self::Limited | Self::Denied => 5,
            Self::Diverted => 4,
            Self::Soft => 3,
            Self::Delayed => 2,
            Self::Shadow => 1,
            Self::Allowed | Self::Exempt => 0,
        }
    }

    /// Returns the label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Soft => "soft",
            Self::Delayed => "delayed",
            Self::Limited => "limited",
            Self::Banned => "banned",
            Self::Denied => "denied",
            Self::Exempt => "exempt",
            Self::Shadow => "shadow",
            Self::Diverted => "diverted",
        }
    }
}
