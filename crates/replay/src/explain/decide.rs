//! Decides a described request on copies of its counters.

use std::time::Duration;

use smallvec::SmallVec;

use super::ExplainContext;
use weir_limiter::algorithm::CounterUsage;
use weir_limiter::decision::Decision;
use weir_limiter::leases::acquisition::{self, LeaseDecision, LeasedRequest, MIN_RETRY_AFTER};
use weir_limiter::leases::{LeaseOutcome, UnitSource};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Check, Limiter};
use weir_limits::AppliedLimits;
use weir_policy::identify::Attributes;
use weir_policy::identify::body::BodyFields;
use weir_policy::rules::rule::Rule;
use weir_policy::rules::selection::{Denial, SelectedCheck, Selection, SideEffects};
use weir_policy::rules::{RuleIndex, RuleSet};
use weir_policy::throttle::{self, ThrottleAction};

/// State of the store of shared limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreState {
    /// It responds.
    Reachable,
    /// It does not respond, or there is none.
    Unreachable,
}

/// What would happen to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PredictedAction {
    /// This rule exempts it from all others.
    Exempt(RuleIndex),
    /// This rule rejects it before any limit is evaluated.
    Denied(RuleIndex, Denial),
    /// It is forwarded, after this delay if there is one.
    Forward(Option<Duration>),
    /// This rule rejects it, with this time for `retry-after`.
    Reject(RuleIndex, Duration),
    /// The store has to be queried for units of this rule's limit.
    StoreDecides(RuleIndex),
    /// Another rate limit service decides for this rule.
    ServiceDecides(RuleIndex),
}

/// The prediction for one request.
#[derive(Debug)]
pub struct Prediction {
    /// What would happen.
    pub action: PredictedAction,
    /// The limits that apply, decided.
    pub limits: AppliedLimits,
    /// Usage of each check's counter before the decision.
    pub usages: Vec<Option<CounterUsage>>,
    /// Rules in shadow mode that would have rejected the request before any limit.
    pub shadow_rules: Vec<RuleIndex>,
    /// Rules whose limits another service counts.
    pub remote_rules: Vec<RuleIndex>,
    /// Copies of the counters before the decision.
    pub(super) counters: Limiter,
}

/// Predicts what would happen to `request` with these fields of its body, which is a descriptor of the Envoy domain `domain` if that is set.
pub fn predict<'f>(
    request: &Attributes<'f>,
    fields: &'f BodyFields,
    domain: Option<&str>,
    context: &ExplainContext<'_>,
) -> Prediction {
    let ExplainContext { policy, limiter, now, .. } = *context;
    request.body_size.set(fields.size);
    let mut selections = fields.of_elements().map(|element| {
        request.body.set(element);
        match domain {
            Some(domain) => policy.rules.select_in(domain, request),
            None => policy.rules.select(request, context.headroom),
        }
    });
    let first = selections.next().unwrap_or_default();
    let selection = selections.fold(first, Selection::joined);
    let undecided = |action| Prediction {
        action,
        limits: AppliedLimits::none(now),
        usages: Vec::new(),
        shadow_rules: Vec::new(),
        remote_rules: Vec::new(),
        counters: limiter.copy_for(&[], now),
    };
    let (selected, SideEffects { shadow_rules, queries }) = match selection {
        Selection::Exempt(rule) => return undecided(PredictedAction::Exempt(rule)),
        Selection::Denied(rule, denial) => return undecided(PredictedAction::Denied(rule, denial)),
        Selection::Limited(selected, side_effects) => (selected, side_effects),
    };
    let remote_rules: Vec<RuleIndex> = queries.iter().map(|query| query.rule).collect();
    let Decided { selected, decision, counters, waiting } = decide(selected, context);
    let action = match (throttle::resolve(&decision), waiting, remote_rules.first()) {
        (_, Some(rule), _) => PredictedAction::StoreDecides(rule),
        (ThrottleAction::Reject { retry_after, .. }, ..) if waits(&policy.rules, &selected, &decision) => {
            PredictedAction::Forward(Some(retry_after))
        }
        (ThrottleAction::Reject { position, retry_after }, ..) => {
            PredictedAction::Reject(selected[position].rule, retry_after)
        }
        (_, _, Some(rule)) => PredictedAction::ServiceDecides(*rule),
        (ThrottleAction::Forward, ..) => PredictedAction::Forward(None),
        (ThrottleAction::Delay(delay), ..) => PredictedAction::Forward(Some(delay)),
    };
    let usage = |one: &SelectedCheck| {
        let usage = counters.usage_with_holds(one.check.handle, one.check.key, now)?;
        Some(usage.in_requests(one.unit_cost))
    };
    Prediction {
        action,
        usages: selected.iter().map(usage).collect(),
        limits: AppliedLimits::decided(selected, decision, now),
        shadow_rules,
        remote_rules,
        counters,
    }
}

/// Whether the request waits for room in all limits that it exceeds, as far as their waits are known.
fn waits(rules: &RuleSet, selected: &[SelectedCheck], decision: &Decision) -> bool {
    let mut rejecting = selected.iter().zip(decision.verdicts()).filter(|(_, verdict)| verdict.rejects());
    rejecting.all(|(one, verdict)| {
        let max = rules.get(one.rule).and_then(Rule::wait).map(|wait| wait.max);
        !verdict.is_banned() && max.is_some_and(|max| verdict.retry_after() <= max)
    })
}

struct Decided {
    selected: SmallVec<[SelectedCheck; 2]>,
    decision: Decision,
    /// The counters before the decision.
    counters: Limiter,
    /// A rule whose shared limit needs units that only the store can grant.
    waiting: Option<RuleIndex>,
}

/// Checks that are decided on a copy of their counters.
struct CopiedChecks<'a> {
    copy: Limiter,
    context: &'a ExplainContext<'a>,
    selected: SmallVec<[SelectedCheck; 2]>,
    decision: Decision,
    /// The first rule whose shared limit needs units that only the store can grant.
    waiting: Option<RuleIndex>,
}

impl LeasedRequest for CopiedChecks<'_> {
    type Counter = usize;

    fn counters_without_units(&mut self) -> SmallVec<[usize; 2]> {
        acquisition::checks_without_units(self.decision.verdicts())
    }

    fn acquire(&mut self, position: usize) -> LeaseDecision {
        let SelectedCheck { check, rule, .. } = &self.selected[position];
        let counter = self.copy.shared_counter(check);
        let source = match (self.context.store, self.context.parts.part_of(counter)) {
            (StoreState::Reachable, _) => UnitSource::Store,
            (StoreState::Unreachable, Some(part)) => UnitSource::Part(part),
            (StoreState::Unreachable, None) => return LeaseDecision::Unavailable,
        };
        match self.copy.acquire_units_from(source, check, self.context.now) {
            LeaseOutcome::Ready(_) => LeaseDecision::Available,
            LeaseOutcome::Requested(_) => {
                self.waiting.get_or_insert(*rule);
                LeaseDecision::Pending
            }
            LeaseOutcome::Rejected(wait) => LeaseDecision::Rejected(wait),
            LeaseOutcome::Unavailable => LeaseDecision::Unavailable,
        }
    }

    fn use_store_loss_fallback(&mut self, position: usize) {
        if !self.context.policy.rules.use_store_loss_fallback(&mut self.selected[position].check) {
            self.decision.reject(position, MIN_RETRY_AFTER);
        }
    }

    fn reject(&mut self, rejected: &[(usize, Duration)]) -> bool {
        rejected.iter().for_each(|(position, wait)| self.decision.reject(*position, *wait));
        acquisition::is_rejected_otherwise(self.decision.verdicts())
    }

    fn decide_again(&mut self) {
        self.decision = check(&self.copy, &self.selected, self.context.now);
    }
}

/// Decides the checks on a copy, and obtains units for shared limits as a request does, except that it does not wait
/// for the store.
fn decide(mut selected: SmallVec<[SelectedCheck; 2]>, context: &ExplainContext<'_>) -> Decided {
    let (rules, now) = (&context.policy.rules, context.now);
    rules.replace_waits(&mut selected);
    let counters = context.limiter.copy_for(&with_fallbacks(rules, &selected), now);
    let copy = counters.copy_for(&with_fallbacks(rules, &selected), now);
    let decision = check(&copy, &selected, now);
    let mut copied = CopiedChecks { copy, context, selected, decision, waiting: None };
    let must_wait = acquisition::acquire_units(&mut copied);
    let CopiedChecks { selected, mut decision, waiting, .. } = copied;
    allow_unenforced(&mut decision);
    Decided { selected, decision, counters, waiting: waiting.filter(|_| must_wait) }
}

/// A check that is not enforced and lacks units counts as conforming until the store has responded.
fn allow_unenforced(decision: &mut Decision) {
    for position in 0..decision.verdicts().len() {
        let verdict = &decision.verdicts()[position];
        if verdict.needs_lease() && !verdict.rejects() {
            decision.allow(position);
        }
    }
}

/// Returns the checks, and those that replace them while the store is unreachable.
fn with_fallbacks(rules: &RuleSet, selected: &[SelectedCheck]) -> Vec<Check> {
    let fallback = |one: &SelectedCheck| {
        let mut check = one.check;
        rules.use_store_loss_fallback(&mut check).then_some(check)
    };
    selected.iter().map(|one| one.check).chain(selected.iter().filter_map(fallback)).collect()
}

fn check(limiter: &Limiter, selected: &[SelectedCheck], now: Timestamp) -> Decision {
    let checks: SmallVec<[Check; 4]> = selected.iter().map(|one| one.check).collect();
    limiter.check(&checks, now)
}
