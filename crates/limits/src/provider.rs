//! Limits of a request that follow the provider to which it is forwarded.
//!
//! A [`FollowedLimits`] accompanies such a request. Every response of the provider leads here, also one that is
//! retried. Local replies do not. Requests without such a limit have none.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use smallvec::SmallVec;

use super::provider_signals::ProviderSignals;
use super::{AppliedLimits, LimitsView};
use weir_limiter::decision::Verdict;
use weir_limiter::feedback::states::RuleFeedback;
use weir_limiter::key::KeyHash;
use weir_limiter::quota::Quota;
use weir_limiter::reservation::{ChargeTiming, DebtLimit, Reservation};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Check, Limiter};
use weir_policy::engine::Policy;
use weir_policy::rules::feedback::{Feedback, MAX_PAUSE};
use weir_policy::rules::grpc::{CallStatus, GrpcStatus};
use weir_policy::rules::selection::{CheckRole, SelectedCheck};

/// The limits of one request that follow the provider.
#[derive(Debug)]
pub struct FollowedLimits {
    policy: Arc<Policy>,
    limiter: Arc<Limiter>,
    checks: SmallVec<[FollowedCheck; 2]>,
    /// When the limits last admitted the request. It may have waited since.
    decided_at: Timestamp,
    /// When what the request owes in addition was charged.
    surcharged_at: Option<Timestamp>,
}

/// A check that has been charged, and the quota that decided.
#[derive(Clone, Copy, Debug)]
struct FollowedCheck {
    selected: SelectedCheck,
    quota: Quota,
    /// Units that the request owes in addition.
    owed: u32,
}

/// A rule that follows the provider, and the key of the request under it.
struct FollowedRule<'a> {
    settings: &'a Feedback,
    state: &'a Arc<RuleFeedback>,
    key: KeyHash,
}

impl FollowedLimits {
    /// Returns the limits that follow the provider among those of a request that is admitted here; `None` if there are
    /// none. Charges what the request owes in addition, unless another service may still reject it.
    pub(super) fn new(limits: &AppliedLimits, view: &LimitsView) -> Option<Box<Self>> {
        let rules = &view.policy.rules;
        if !rules.has_feedback() {
            return None;
        }
        let follows = |selected: &SelectedCheck| rules.feedback(selected.rule).is_some();
        let checked = limits.selected.iter().zip(limits.decision.verdicts());
        let (mut checks, now) = (SmallVec::<[FollowedCheck; 2]>::new(), limits.decided_at);
        for (selected, verdict) in checked.filter(|(selected, _)| follows(selected) && counts(selected.role))
        {
            record_use(limits, view, selected, verdict);
            let Some(quota) = verdict.quota() else { continue };
            let is_owed = selected.check.charge_timing == ChargeTiming::OnArrival && !verdict.exceeds();
            let owed = if is_owed { selected.surcharge } else { 0 };
            checks.push(FollowedCheck { selected: *selected, quota: *quota, owed });
        }
        if checks.is_empty() {
            return None;
        }
        let (policy, limiter) = (Arc::clone(&view.policy), Arc::clone(&view.limiter));
        let mut followed = Box::new(Self { policy, limiter, checks, decided_at: now, surcharged_at: None });
        if !limits.is_pending() {
            followed.charge_owed(now);
        }
        Some(followed)
    }

    /// Charges what an admitted request owes in addition, once.
    pub fn charge_owed(&mut self, now: Timestamp) {
        if self.surcharged_at.is_none() {
            self.surcharged_at = Some(now);
            self.checks.iter().for_each(|followed| followed.charge(followed.owed, &self.limiter, now));
        }
    }

    /// Gives back what the request has been charged in addition, because it is not forwarded.
    pub fn refund_owed(self, now: Timestamp) {
        if let Some(charged_at) = self.surcharged_at {
            self.checks.iter().for_each(|followed| followed.refund_owed(&self.limiter, charged_at, now));
        }
    }

    /// Applies what the head of a response signals. `call` is what is known of the status of a gRPC call.
    pub fn responded(&self, status: StatusCode, call: CallStatus, signals: ProviderSignals, now: Timestamp) {
        let known = match call {
            CallStatus::Known(call) => Some(call),
            CallStatus::None | CallStatus::Awaited => None,
        };
        for rule in self.rules() {
            if rule.settings.is_rejection(status, known, signals.retry_after.is_some()) {
                self.rejected(&rule, signals, now);
                continue;
            }
            // A provider that fails shows nothing about its limit.
            if call != CallStatus::Awaited && !status.is_server_error() {
                self.succeeded(&rule, signals.limit, now);
            }
            if rule.settings.reads_headers {
                self.pause(&rule, rule.settings.pause_after_success(signals.used_up_for), now);
            }
        }
    }

    /// Applies the status of a gRPC call, which came with the trailers.
    pub fn call_ended(&self, call: GrpcStatus, signals: ProviderSignals, now: Timestamp) {
        for rule in self.rules() {
            if rule.settings.is_rejection(StatusCode::OK, Some(call), signals.retry_after.is_some()) {
                self.rejected(&rule, signals, now);
            } else {
                self.succeeded(&rule, None, now);
            }
        }
    }

    /// Charges a retry of the request as another request, even beyond its limits.
    pub fn charge_retry(&mut self, now: Timestamp) {
        self.decided_at = now;
        for followed in &self.checks {
            let SelectedCheck { check, surcharge, .. } = followed.selected;
            followed.charge(check.cost.saturating_add(surcharge), &self.limiter, now);
        }
    }

    /// Time until the last pause of the request's limits ends; zero if none is in force.
    pub fn paused_for(&self, now: Timestamp) -> Duration {
        let pauses = self.rules().map(|rule| rule.state.status_of(rule.key).1.since(now));
        pauses.max().unwrap_or_default()
    }

    /// Counts a retry that waits because the provider has signalled to.
    pub fn record_delayed_retry(&self) {
        self.rules().for_each(|rule| rule.state.record_delayed_retry());
    }

    fn rejected(&self, rule: &FollowedRule<'_>, signals: ProviderSignals, now: Timestamp) {
        let closed_for = signals.closed_for().filter(|_| rule.settings.reads_headers);
        let (decided_at, settings) = (self.decided_at, &rule.settings.controller);
        rule.state.record_rejection(rule.key, decided_at, closed_for.unwrap_or_default(), now, settings);
        self.pause(rule, closed_for, now);
    }

    fn succeeded(&self, rule: &FollowedRule<'_>, stated: Option<u64>, now: Timestamp) {
        let stated = stated.filter(|_| rule.settings.reads_headers);
        let settings = &rule.settings.controller;
        rule.state.record_success(rule.key, self.decided_at, stated, now, settings);
    }

    /// Pauses the limits of a rule for the key of the request.
    fn pause(&self, rule: &FollowedRule<'_>, time: Option<Duration>, now: Timestamp) {
        let Some(time) = time.filter(|time| !time.is_zero()) else { return };
        rule.state.pause(rule.key, now.saturating_add(time.min(MAX_PAUSE)), now, &self.limiter);
    }

    /// Yields each rule once, although it may have several limits.
    fn rules(&self) -> impl Iterator<Item = FollowedRule<'_>> {
        let mut last = None;
        self.checks
            .iter()
            .map(|followed| &followed.selected)
            .filter(move |selected| last.replace(selected.rule) != Some(selected.rule))
            .filter_map(|selected| {
                let settings = self.policy.rules.get(selected.rule)?.feedback()?;
                let state = self.policy.rules.feedback(selected.rule)?;
                Some(FollowedRule { settings, state, key: selected.check.key })
            })
    }
}

impl FollowedCheck {
    /// Charges `units` in addition to what the check has been charged.
    fn charge(&self, units: u32, limiter: &Limiter, now: Timestamp) {
        if units > 0 {
            let charged = Reservation::charged(&self.selected.check, now);
            let mut charged = charged.in_units_of(&self.quota).with_debt_limit(DebtLimit::Unlimited);
            let _ = limiter.settle(&mut charged, self.selected.check.cost.saturating_add(units), now);
        }
    }

    /// Gives back what was charged at `charged_at` in addition.
    fn refund_owed(&self, limiter: &Limiter, charged_at: Timestamp, now: Timestamp) {
        if self.owed > 0 {
            let cost = self.selected.check.cost;
            let whole = Check { cost: cost.saturating_add(self.owed), ..self.selected.check };
            let mut charged = Reservation::charged(&whole, charged_at).in_units_of(&self.quota);
            let _ = limiter.settle(&mut charged, cost, now);
        }
    }
}

/// Records that limits that follow the provider have rejected a request, and so are in use.
// Out of line, because no request without such limits calls this.
#[inline(never)]
pub(super) fn record_rejection(limits: &AppliedLimits, view: &LimitsView) {
    for (selected, verdict) in limits.selected.iter().zip(limits.decision.verdicts()) {
        record_use(limits, view, selected, verdict);
    }
}

/// Records the use of a limit. It is limiting if less than half of a burst is left.
fn record_use(limits: &AppliedLimits, view: &LimitsView, selected: &SelectedCheck, verdict: &Verdict) {
    let Some(state) = view.policy.rules.feedback(selected.rule).filter(|_| counts(selected.role)) else {
        return;
    };
    let usage = verdict.usage(limits.decided_at);
    let is_scarce = usage.is_some_and(|usage| usage.remaining <= usage.used);
    let is_limiting = !verdict.is_paused() && (verdict.exceeds() || !verdict.delay().is_zero() || is_scarce);
    state.record_use(selected.check.key, is_limiting, limits.decided_at);
}

const fn counts(role: CheckRole) -> bool {
    match role {
        CheckRole::Limit(_) | CheckRole::Margin(_) | CheckRole::Mark(_) => true,
        CheckRole::Ban | CheckRole::Permit | CheckRole::Seen | CheckRole::Stream(_) => false,
    }
}
