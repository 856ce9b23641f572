//! Applies the limits of a request, wherever they are counted.
//!
//! Each rule's limit has a source ([`LimitSource`]). Limits that this process counts are checked at once, by
//! [`PendingLimits::check`]. Limits of other rate limit services are queried next ([`PendingRemote`]), while
//! the caller holds the request. The result is [`AppliedLimits`]: decided, recorded in the metrics, and ready
//! to be settled and shown. If the request is rejected later, its charges are refunded through its
//! [`Settlement`]. This module does not depend on connections or bodies.
//!
//! [`LimitSource`]: weir_policy::rules::rule::LimitSource
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod header_tables;
mod headers;
mod held;
mod leases;
mod progress;
mod provider;
mod provider_signals;
mod quota_policies;
mod record;
mod remote;
mod rule_recorder;
mod settlement;
mod streams;
mod summary;
mod tables;
mod view;
mod waiting;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;

pub use self::header_tables::HeaderTables;
pub use self::progress::{HeldDelay, HeldProgress, NotAdmitted, Wait, Woken};
pub use self::provider::FollowedLimits;
pub use self::provider_signals::ProviderSignals;
use self::record::{DecisionSubject, RequestCopy};
pub use self::remote::{PendingRemote, ServiceQueries, ServiceResponses};
use self::remote::{RemoteState, RemoteVerdicts};
pub use self::settlement::{FieldsRead, Settlement, TunnelRoom};
pub use self::streams::{StreamLimiter, StreamRoom};
pub use self::summary::{DecisionSummary, Standing};
pub use self::tables::LimitTables;
pub use self::view::{LimitResources, LimitsView};
use self::waiting::WaitingRequest;
pub use self::waiting::{QueueArrival, waiting_size};
use weir_limiter::decision::{Decision, Verdict};
use weir_limiter::reservation::{Reservation, SettledCounter};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Check, Limiter};
use weir_net::in_place;
use weir_policy::engine::Policy;
use weir_policy::identify::Attributes;
use weir_policy::identify::body::BodyFields;
use weir_policy::rules::cost::ResponseFieldsCost;
use weir_policy::rules::selection::{CheckRole, SelectedCheck, SideEffects};
use weir_policy::rules::{RuleIndex, RuleSet};
use weir_policy::throttle;
use weir_store::lease_wait::LeaseWaits;

/// The limits of a request after the local decision; the store or another service may still have to be queried.
#[derive(Debug)]
// Boxed, because it is large and passes through many functions.
pub struct PendingLimits(Box<AppliedLimits>);

/// Result of the limits that are counted here.
#[derive(Debug)]
pub enum Admission<'a> {
    /// The request conforms, and is to be forwarded after this delay.
    Pass(Option<Duration>),
    /// A limit rejects the request.
    Reject(LimitRejection<'a>),
    /// A limit has no room, and the request waits for it; or it is out of units, and the store may grant more. Continue
    /// with [`PendingLimits::progress`].
    Held,
}

/// Which sources decide a request that the local limits admit.
#[derive(Debug)]
pub enum DecisionSource<'a> {
    /// Only the limits that are counted here. They are decided.
    Local(&'a mut AppliedLimits),
    /// Other rate limit services, too.
    Remote(PendingRemote<'a>),
}

/// The limits of a rejected request, and the reason.
#[derive(Debug)]
pub struct LimitRejection<'a> {
    /// All limits of the request.
    pub limits: &'a mut AppliedLimits,
    /// The rule that rejects the request.
    pub rule: RuleIndex,
    /// Time for `retry-after`.
    pub retry_after: Duration,
    /// Why the rule rejects the request.
    pub reason: RejectionReason,
}

/// Why a rule rejects a request.
#[derive(Clone, Debug)]
pub enum RejectionReason {
    /// Its limit is exceeded.
    Limit,
    /// Another service reports that its limit is exceeded. The body of its response; empty to use the rule's.
    Remote(Bytes),
    /// The other service did not respond, and the rule fails closed.
    NoResponse,
}

/// The limits of a request and their decision.
#[derive(Debug)]
pub struct AppliedLimits {
    selected: SmallVec<[SelectedCheck; 2]>,
    /// Rules in shadow mode that would have rejected the request before any limit.
    shadow_rules: Vec<RuleIndex>,
    decision: Decision,
    /// Time of the last decision or settlement.
    decided_at: Timestamp,
    remote: RemoteState,
    /// What the request knows of the store's responses, and for which it waits.
    lease_waits: LeaseWaits,
    /// The request's wait in a queue, if a limit has no room.
    wait: Option<Box<WaitingRequest>>,
    /// What is recorded of the request, if the store or another service decides.
    copy: Option<Rc<RequestCopy>>,
}

impl PendingLimits {
    /// Returns the state of a request to which no limit applies.
    pub fn none(at: Timestamp) -> Self {
        Self(in_place::boxed!(AppliedLimits::none(at)))
    }

    /// Decides the local limits of `request`, and records the decision unless the store or another service is queried
    /// first. The `selected` checks and what else applies are taken from their lists, because they are large. A request that
    /// has waited for limits of another configuration keeps its `arrival`.
    pub fn check(
        view: &LimitsView,
        selected: &mut SmallVec<[SelectedCheck; 2]>,
        SideEffects { shadow_rules, queries }: &mut SideEffects,
        request: &Attributes<'_>,
        now: Timestamp,
        arrival: Option<QueueArrival>,
    ) -> Self {
        let Self(mut limits) = Self::none(now);
        std::mem::swap(&mut limits.selected, selected);
        std::mem::swap(&mut limits.shadow_rules, shadow_rules);
        if !queries.is_empty() {
            limits.remote = RemoteState::Pending(std::mem::take(queries));
        }
        if view.may_wait(&limits.selected) {
            limits.decide_on_arrival(view, request, arrival);
        } else {
            limits.decision = check(&view.limiter, &limits.selected, now);
            if view.policy.rules.is_shared() && limits.decision.verdicts().iter().any(Verdict::needs_lease) {
                leases::acquire_leases(view, &mut limits);
            }
        }
        if limits.is_pending() || limits.is_held() {
            limits.copy = Some(Rc::new(RequestCopy::new(view, &limits, request)));
        }
        if view.policy.rules.has_feedback() && limits.decision.is_rejected() {
            provider::record_rejection(&limits, view);
        }
        if view.policy.rules.is_shared() && limits.decision.is_rejected() {
            limits.leave_leases_undecided();
        }
        limits.record_if_decided(view, DecisionSubject::Present(request));
        Self(limits)
    }

    /// Returns the result of the limits that are counted here.
    pub fn admission(&mut self) -> Admission<'_> {
        if self.0.is_held() {
            return Admission::Held;
        }
        match throttle::resolve(&self.0.decision) {
            throttle::ThrottleAction::Forward => Admission::Pass(None),
            throttle::ThrottleAction::Delay(delay) => Admission::Pass(Some(delay)),
            throttle::ThrottleAction::Reject { position: by, retry_after } => {
                let rule = self.0.rule(by);
                Admission::Reject(LimitRejection {
                    limits: &mut self.0,
                    rule,
                    retry_after,
                    reason: RejectionReason::Limit,
                })
            }
        }
    }

    /// Returns when a request that waits in a queue has arrived.
    pub fn arrival(&self) -> Option<QueueArrival> {
        self.0.wait.as_ref().map(|line| line.arrival())
    }

    /// Removes the limits that the current configuration does not have, so that they no longer hold the request.
    pub fn remove_uninstalled_limits(&mut self, view: &LimitsView) {
        self.0.remove_uninstalled_limits(view);
    }

    /// Returns whether the request must be held until the store responds, or until a queue admits it.
    pub fn is_held(&self) -> bool {
        self.0.is_held()
    }

    /// Returns whether the request waits in a queue.
    pub const fn waits(&self) -> bool {
        self.0.wait.is_some()
    }

    /// Returns which sources decide a request that the local limits admit.
    pub fn decision_source<'a>(&'a mut self, view: &'a Rc<LimitsView>) -> DecisionSource<'a> {
        let limits = &mut self.0;
        if limits.is_pending() {
            DecisionSource::Remote(PendingRemote::new(view, limits))
        } else {
            DecisionSource::Local(limits)
        }
    }

    /// Returns whether the store or another service must be queried.
    pub fn is_pending(&self) -> bool {
        self.0.is_pending() || self.is_held()
    }

    /// Yields the rules that may still reject the request.
    pub fn pending_rules(&self) -> impl Iterator<Item = RuleIndex> + '_ {
        let held = if self.is_held() { &self.0.selected[..] } else { &[] };
        held.iter().map(|selected| selected.rule).chain(self.remote_rules())
    }

    /// Yields the rules whose limits another service counts.
    fn remote_rules(&self) -> impl Iterator<Item = RuleIndex> + '_ {
        self.0.remote.queries().iter().map(|query| query.rule)
    }

    /// Returns the rejection by a rule that [`Self::progress`] has returned.
    pub fn rejection(&mut self, rule: RuleIndex, retry_after: Duration) -> LimitRejection<'_> {
        LimitRejection { limits: &mut self.0, rule, retry_after, reason: RejectionReason::Limit }
    }

    /// Yields the rules whose limits apply, once for each limit.
    pub fn rules(&self) -> impl Iterator<Item = RuleIndex> + '_ {
        self.0.selected.iter().map(|selected| selected.rule).chain(self.remote_rules())
    }

    /// Whether fields of the response's body state the cost under any of these rules.
    pub fn response_states_cost(&self, policy: &Policy) -> bool {
        self.response_costs(policy).next().is_some()
    }

    /// Whether a request for a stream is to ask for its usage.
    pub fn injects_usage(&self, policy: &Policy) -> bool {
        self.response_costs(policy).any(|stated| stated.injects_usage.is_some())
    }

    /// Whether a request with these fields asks for a stream without its usage.
    pub fn lacks_usage(&self, policy: &Policy, fields: &BodyFields) -> bool {
        self.response_costs(policy)
            .any(|stated| fields.of_elements().any(|element| stated.lacks_usage(element)))
    }

    /// Yields the costs that fields of the response's body state, of rules that are charged.
    fn response_costs<'p>(&self, policy: &'p Policy) -> impl Iterator<Item = &'p ResponseFieldsCost> {
        let charged = policy.response_fields.is_some().then(|| self.0.reservations());
        charged.into_iter().flatten().filter_map(|(_, selected, _)| {
            policy.rules.get(selected.rule)?.action.limiting()?.cost_model.response_fields()
        })
    }

    /// Returns what to settle at the end of an admitted request; `None` if there is nothing, or if the request is held.
    pub fn settlement(&self, view: &LimitsView) -> Option<Box<Settlement>> {
        let settlement = if self.is_held() { None } else { self.0.settlement(&view.policy) };
        settlement.map(|settlement| settlement.recorded_in(view))
    }

    /// Returns the limits of an admitted request that follow the provider; `None` if there are none, or if the request is held.
    pub fn followed(&self, view: &LimitsView) -> Option<Box<FollowedLimits>> {
        if self.is_held() { None } else { FollowedLimits::new(&self.0, view) }
    }

    /// Returns the limits as far as they are decided.
    pub const fn limits(&self) -> &AppliedLimits {
        &self.0
    }

    /// Returns the limits as far as they are decided, to be refunded.
    pub const fn limits_mut(&mut self) -> &mut AppliedLimits {
        &mut self.0
    }
}

impl AppliedLimits {
    /// Returns limits that were decided elsewhere at `at`, to be shown.
    pub fn decided(selected: SmallVec<[SelectedCheck; 2]>, decision: Decision, at: Timestamp) -> Self {
        let (shadow_rules, remote) = (Vec::new(), RemoteState::None);
        Self {
            selected,
            shadow_rules,
            decision,
            decided_at: at,
            remote,
            lease_waits: LeaseWaits::default(),
            wait: None,
            copy: None,
        }
    }

    pub fn checks(&self) -> (&[SelectedCheck], &Decision) {
        (&self.selected, &self.decision)
    }

    /// Returns the state of a request to which no limit applies.
    pub fn none(at: Timestamp) -> Self {
        Self::decided(SmallVec::new(), Decision::default(), at)
    }

    /// Returns the time of the last decision or settlement.
    pub const fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// Yields the rules whose limits the request exceeds, and that admit it with a mark: within their margin, or because it
    /// is sent to another upstream.
    pub fn marked_rules(&self) -> impl Iterator<Item = RuleIndex> + '_ {
        let mut last = None;
        let is_marked = |verdict: &Verdict| verdict.marks() || verdict.diverts();
        let marks =
            self.selected.iter().zip(self.decision.verdicts()).filter(move |(_, verdict)| is_marked(verdict));
        // A rule with several limits marks once.
        marks.map(|(selected, _)| selected.rule).filter(move |rule| last.replace(*rule) != Some(*rule))
    }

    /// Returns the rules of groups that the request is charged to, each once.
    pub fn charged_alternatives(&self, rules: &RuleSet) -> SmallVec<[RuleIndex; 2]> {
        let mut charged = SmallVec::new();
        for (selected, verdict) in self.selected.iter().zip(self.decision.verdicts()) {
            let rule = selected.rule;
            if verdict.is_charged() && rules.group_place(rule).is_some() && !charged.contains(&rule) {
                charged.push(rule);
            }
        }
        charged
    }

    /// Returns the first rule over whose limit the request is, and that sends it to another upstream.
    pub fn diverting_rule(&self) -> Option<RuleIndex> {
        let checked = self.selected.iter().zip(self.decision.verdicts());
        checked.filter(|(_, verdict)| verdict.diverts()).map(|(selected, _)| selected.rule).next()
    }

    /// Records the settlement of the check at `position`, so that headers show the state at `now`.
    pub fn record_settlement(&mut self, position: usize, settled: SettledCounter, now: Timestamp) {
        self.decision.record_settlement(position, settled);
        if let Some(last) = self.last_of_counter(position) {
            self.decision.record_settlement(last, settled);
        }
        self.decided_at = now;
    }

    /// Returns whether the request must be held before its limits decide.
    fn is_held(&self) -> bool {
        self.lease_waits.is_pending() || self.wait.is_some()
    }

    /// Returns whether another service must still be queried.
    fn is_pending(&self) -> bool {
        !self.remote.queries().is_empty()
    }

    fn is_rejected(&self) -> bool {
        self.decision.is_rejected() || self.verdicts().is_some_and(|verdicts| verdicts.rejects)
    }

    /// Returns the results of other services.
    fn verdicts(&self) -> Option<&RemoteVerdicts> {
        match &self.remote {
            RemoteState::Decided(verdicts) => Some(verdicts),
            RemoteState::None | RemoteState::Pending(_) => None,
        }
    }

    /// Returns the rule of the check at `position`.
    fn rule(&self, position: usize) -> RuleIndex {
        self.selected[position].rule
    }

    /// Checks `more` limits and adds their decision.
    fn check_more(&mut self, limiter: &Limiter, more: SmallVec<[SelectedCheck; 2]>, now: Timestamp) {
        let decision = check(limiter, &more, now);
        self.selected.extend(more);
        self.decision.extend(&decision);
        self.decided_at = now;
    }

    /// Yields what to settle of this request, with the positions of the checks. Only conforming checks have charged or
    /// reserved units. While another service may still reject the request, all of them may have to be refunded.
    fn reservations(&self) -> impl Iterator<Item = (usize, &SelectedCheck, Reservation)> + '_ {
        self.charged(|selected| selected.needs_settlement || self.is_pending())
    }

    /// Refunds the charges that its [`Settlement`] does not cover, of an admitted request that is rejected for another reason
    /// than its limits.
    pub fn refund_unsettled(&mut self, limiter: &Limiter, now: Timestamp) {
        // While another service may reject the request, the settlement covers everything.
        if !matches!(self.remote, RemoteState::None) {
            return;
        }
        let unsettled = self.charged(|selected| !selected.needs_settlement);
        let unsettled: SmallVec<[(usize, Reservation); 2]> =
            unsettled.map(|(position, _, reservation)| (position, reservation)).collect();
        for (position, mut reservation) in unsettled {
            if let Some(settled) = limiter.settle(&mut reservation, 0, now) {
                self.record_settlement(position, settled, now);
            }
        }
    }

    /// Yields what the wanted checks have charged or reserved, with their positions.
    fn charged<'a>(
        &'a self,
        is_wanted: impl Fn(&SelectedCheck) -> bool + 'a,
    ) -> impl Iterator<Item = (usize, &'a SelectedCheck, Reservation)> + 'a {
        let is_counted = move |selected: &SelectedCheck| match selected.role {
            CheckRole::Ban | CheckRole::Permit | CheckRole::Stream(_) => false,
            CheckRole::Limit(_) | CheckRole::Margin(_) | CheckRole::Mark(_) | CheckRole::Seen => {
                is_wanted(selected)
            }
        };
        let checked = self.selected.iter().zip(self.decision.verdicts()).enumerate();
        checked.filter(move |(_, (selected, verdict))| is_counted(selected) && verdict.is_charged()).map(
            |(position, (selected, verdict))| {
                let reservation = Reservation::new(&selected.check, self.decided_at);
                (
                    position,
                    selected,
                    verdict.quota().map_or(reservation, |quota| reservation.in_units_of(quota)),
                )
            },
        )
    }

    /// Yields the permits of an admitted request; they are held until it ends.
    fn permits(&self) -> impl Iterator<Item = (&SelectedCheck, Reservation)> + '_ {
        let checked = self.selected.iter().zip(self.decision.verdicts());
        checked
            .filter(|(selected, verdict)| selected.role == CheckRole::Permit && verdict.is_charged())
            .map(|(selected, _)| (selected, Reservation::new(&selected.check, self.decided_at)))
    }

    /// Returns the position of the last check of the same counter after `position`, which has the counter's final
    /// state; `None` if there is none.
    fn last_of_counter(&self, position: usize) -> Option<usize> {
        let Check { handle, key, .. } = self.selected.get(position)?.check;
        let mut later = self.selected.get(position + 1..)?.iter();
        let last = later.rposition(|it| it.check.handle == handle && it.check.key == key)?;
        Some(position + 1 + last)
    }

    /// Returns the rules in shadow mode that would have rejected the request before any limit.
    pub fn shadow_rules(&self) -> &[RuleIndex] {
        &self.shadow_rules
    }

    /// Returns what to settle at the end of an admitted request whose limits `policy` selected; `None` if there is
    /// nothing.
    pub fn settlement(&self, policy: &Arc<Policy>) -> Option<Box<Settlement>> {
        Settlement::new(self, policy)
    }
}

/// Decides limits that are all counted in this process, and records nothing.
#[inline]
pub fn check(limiter: &Limiter, selected: &[SelectedCheck], now: Timestamp) -> Decision {
    limiter.check(selected.iter().map(|selected| &selected.check), now)
}
