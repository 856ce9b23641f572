//! Records decisions: in the metrics, among the heaviest keys, and in the trace.
//!
//! A decision that is made at once is recorded with the request at hand. If the store or another service decides, the
//! request has been rewritten for the upstream by then, so what is recorded of it is copied before.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use smallvec::SmallVec;

use super::summary::Standing;
use super::{AppliedLimits, LimitsView};
use weir_limiter::decision::Verdict;
use weir_limiter::key::KeyHash;
use weir_limiter::timestamp::Timestamp;
use weir_policy::identify::Attributes;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::outcome::{self, DecisionOutcome};
use weir_policy::rules::selection::SelectedCheck;
use weir_telemetry::observe::decision_trace::{self, TracedDecision};

/// What is recorded of a request whose decision takes time.
#[derive(Debug)]
pub(super) struct RequestCopy {
    /// Method and path, only if decisions are traced.
    method: Option<Method>,
    path: Box<str>,
    keys: SmallVec<[(RuleIndex, Arc<str>); 2]>,
}

/// The request whose decision is recorded.
#[derive(Clone, Copy, Debug)]
pub(super) enum DecisionSubject<'a, 'r> {
    /// The request itself.
    Present(&'a Attributes<'r>),
    /// A copy of what is recorded; `None` if nothing was copied.
    Copied(Option<&'a RequestCopy>),
}

/// Records decisions of other services for one request.
#[derive(Debug)]
pub(super) struct DecisionRecorder {
    view: Rc<LimitsView>,
    copy: Option<Rc<RequestCopy>>,
}

impl RequestCopy {
    /// Copies what is recorded of `request`. The queries to other services must still be pending.
    pub(super) fn new(view: &LimitsView, limits: &AppliedLimits, request: &Attributes<'_>) -> Self {
        let is_traced = decision_trace::is_enabled();
        let mut keys = SmallVec::<[(RuleIndex, Arc<str>); 2]>::new();
        let queried = limits.remote.queries().iter().map(|query| query.rule);
        for rule in limits.selected.iter().map(|selected| selected.rule).chain(queried) {
            if keys.last().is_none_or(|(last, _)| *last != rule)
                && let Some(text) = view.key_text(rule, request)
            {
                keys.push((rule, text.into()));
            }
        }
        Self {
            method: request.method.filter(|_| is_traced).cloned(),
            path: if is_traced { (*request.path).into() } else { Box::default() },
            keys,
        }
    }

    fn key_text(&self, rule: RuleIndex) -> Option<&Arc<str>> {
        self.keys.iter().find(|(of, _)| *of == rule).map(|(_, text)| text)
    }
}

impl DecisionSubject<'_, '_> {
    fn key_text(self, view: &LimitsView, rule: RuleIndex) -> Option<Arc<str>> {
        match self {
            Self::Present(request) => view.key_text(rule, request).map(Arc::from),
            Self::Copied(copy) => copy?.key_text(rule).cloned(),
        }
    }

    #[cold]
    fn trace(
        self,
        view: &LimitsView,
        rule: RuleIndex,
        outcome: DecisionOutcome,
        standing: Option<Standing>,
        retry_after: Duration,
    ) {
        let (method, path) = match self {
            Self::Present(request) => (request.method, &*request.path),
            Self::Copied(copy) => {
                (copy.and_then(|copy| copy.method.as_ref()), copy.map_or("", |copy| &*copy.path))
            }
        };
        decision_trace::write(&TracedDecision {
            method: method.map(Method::as_str),
            path,
            rule: view.rule_name(rule),
            key: self.key_text(view, rule).as_deref(),
            outcome,
            remaining: standing.map(|standing| standing.remaining),
            retry_after,
        });
    }
}

impl LimitsView {
    /// Records the outcome of a rule that decided without a limit.
    pub fn record_without_limit(
        &self,
        rule: RuleIndex,
        outcome: DecisionOutcome,
        request: &Attributes<'_>,
        now: Timestamp,
    ) {
        self.record_keyless(rule, outcome, DecisionSubject::Present(request), now);
    }

    /// Records the outcome of a rule for a request that it can assign to no key.
    fn record_keyless(
        &self,
        rule: RuleIndex,
        outcome: DecisionOutcome,
        subject: DecisionSubject<'_, '_>,
        now: Timestamp,
    ) {
        self.record_and_trace(rule, outcome, subject);
        self.record_incomplete_key(rule, outcome, now);
    }

    fn record_and_trace(&self, rule: RuleIndex, outcome: DecisionOutcome, subject: DecisionSubject<'_, '_>) {
        self.record(rule, outcome);
        if decision_trace::is_enabled() {
            subject.trace(self, rule, outcome, None, Duration::ZERO);
        }
    }
}

impl DecisionRecorder {
    /// Returns the view by which the request is decided.
    pub(super) fn view(&self) -> &LimitsView {
        &self.view
    }

    /// Records the outcome of a rule that another service decided.
    pub(super) fn record(&self, rule: RuleIndex, outcome: DecisionOutcome, key: KeyHash) {
        let subject = DecisionSubject::Copied(self.copy.as_deref());
        self.view.record_and_trace(rule, outcome, subject);
        let text = || subject.key_text(&self.view, rule).unwrap_or_default();
        self.view.record_key(&mut None, rule, outcome, key, self.view.clock.now(), text);
    }
}

impl AppliedLimits {
    /// Returns a recorder of what other services decide for this request.
    pub(super) fn recorder(&self, view: &Rc<LimitsView>) -> DecisionRecorder {
        DecisionRecorder { view: Rc::clone(view), copy: self.copy.clone() }
    }

    /// Returns the key under a rule as it was copied for a decision that takes time.
    pub fn copied_key_text(&self, rule: RuleIndex) -> Option<&str> {
        self.copy.as_ref()?.key_text(rule).map(|text| &**text)
    }

    /// Records the decision, unless the store or another service has yet to decide.
    pub(super) fn record_if_decided(&self, view: &LimitsView, subject: DecisionSubject<'_, '_>) {
        if !self.is_held() && (!self.is_pending() || self.decision.is_rejected()) && !self.is_postponed(view)
        {
            self.record(view, subject);
        }
    }

    /// Whether a stored call waits for room. It is not rejected, and it is decided again.
    fn is_postponed(&self, view: &LimitsView) -> bool {
        let is_deferral = |selected: &SelectedCheck| view.policy.rules.is_deferral(selected.rule);
        self.decision.is_rejected() && self.selected.first().is_some_and(is_deferral)
    }

    /// As [`Self::record_if_decided`], for a request that has been rewritten.
    pub(super) fn record_copied_if_decided(&self, view: &LimitsView) {
        self.record_if_decided(view, DecisionSubject::Copied(self.copy.as_deref()));
    }

    /// Records the decision of a request that has been rewritten.
    pub(super) fn record_copied(&self, view: &LimitsView) {
        self.record(view, DecisionSubject::Copied(self.copy.as_deref()));
    }

    /// Records one decision per rule, that of its strictest limit. If another rule rejected the request, rules that
    /// would have admitted it record nothing.
    fn record(&self, view: &LimitsView, subject: DecisionSubject<'_, '_>) {
        let is_traced = decision_trace::is_enabled();
        self.shadow_rules
            .iter()
            .for_each(|rule| view.record_keyless(*rule, DecisionOutcome::Shadow, subject, self.decided_at));
        let rejected = self.is_rejected();
        let mut locked = None;
        for (checks, verdicts) in self.by_rule() {
            if checks.iter().any(|one| one.states_unreadable_limit) {
                view.record_unreadable_limit(checks[0].rule);
            }
            let Some(outcome) = DecisionOutcome::from_verdicts(checks, verdicts, rejected) else { continue };
            let SelectedCheck { rule, check, .. } = checks[0];
            view.record(rule, outcome);
            let text = || subject.key_text(view, rule).unwrap_or_default();
            view.record_key(&mut locked, rule, outcome, check.key, self.decided_at, text);
            if is_traced {
                // Readers do not wait for the log.
                locked = None;
                let retry_after = verdicts.iter().map(Verdict::retry_after).max().unwrap_or_default();
                subject.trace(view, rule, outcome, self.standing(checks, verdicts), retry_after);
            }
        }
    }

    /// Yields the checks of each rule, of which there is at least one, with their verdicts.
    pub(super) fn by_rule(&self) -> impl Iterator<Item = (&[SelectedCheck], &[Verdict])> {
        outcome::by_rule(&self.selected, &self.decision)
    }
}
