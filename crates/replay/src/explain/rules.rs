//! The rules of an explanation: each with its key, its limits and their counters.

use std::net::IpAddr;
use std::time::Duration;

use super::decide::{PredictedAction, Prediction};
use super::outcome::{charged_names, explain_outcome, outcome_of};
use super::report::{
    ExplainedClient, ExplainedKeyText, ExplainedRule, Explanation, LimitReport, OverrideReport,
    override_report,
};
use super::{ExplainContext, seconds};
use weir_limiter::LimitHandle;
use weir_limiter::algorithm::{Algorithm, CounterUsage};
use weir_limiter::decision::Verdict;
use weir_limiter::key::KeyHasher;
use weir_limiter::quota::Quota;
use weir_policy::engine::overrides::ActiveOverride;
use weir_policy::identify::Attributes;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::explain::{ExplainedKey, RuleExplanation, RuleStatus};
use weir_policy::rules::outcome::{DecisionOutcome, is_banned, unit_of};
use weir_policy::rules::rule::{Action, LimitAction, LimitSource, OnMissing};
use weir_policy::rules::selection::{CheckRole, SelectedCheck};
use weir_policy::rules::stream_limit::{STREAM_KEY, StreamLimit};
use weir_telemetry::rfc3339;

/// Puts a prediction and the description of every rule together.
pub(super) fn report(
    request: &Attributes<'_>,
    peer: IpAddr,
    rules: &[RuleExplanation<'_>],
    prediction: &Prediction,
    context: &ExplainContext<'_>,
) -> Explanation {
    let mut explanation = explain_outcome(request, prediction, context);
    explanation.request = Some(client_report(request, peer));
    explanation.rules = rules.iter().map(|rule| rule_report(rule, prediction, context)).collect();
    explanation
}

fn client_report(request: &Attributes<'_>, peer: IpAddr) -> ExplainedClient {
    let location = request.location();
    ExplainedClient {
        method: request.method.map(ToString::to_string),
        path: request.path.to_string(),
        query: request.query.map(str::to_owned),
        host: request.host.as_str().to_owned(),
        peer: peer.to_string(),
        peer_is_trusted: request.client.peer_is_trusted,
        client_ip: request.client_ip().map(|ip| ip.to_string()),
        country: location.country.map(|country| country.to_string()),
        continent: location.continent.map(|continent| continent.code().to_owned()),
        asn: request.autonomous_system().map(|system| system.0),
    }
}

fn rule_report(
    explained: &RuleExplanation<'_>,
    prediction: &Prediction,
    context: &ExplainContext<'_>,
) -> ExplainedRule {
    let rule = explained.rule;
    let (mismatch, route) = match &explained.status {
        RuleStatus::Mismatch(mismatch) => (Some(mismatch.clone()), None),
        RuleStatus::Applies(route) => (None, Some(route.clone()).filter(|route| !route.is_empty())),
        RuleStatus::Excepted(_) | RuleStatus::MissingKey(_) | RuleStatus::Ambiguous(_) => (None, None),
    };
    let (selected, decision) = prediction.limits.checks();
    let verdicts = selected.iter().zip(decision.verdicts()).filter(|(one, _)| one.rule == explained.index);
    let ban = verdicts.filter(|(one, verdict)| is_banned(one, verdict)).map(|(_, it)| it.retry_after()).max();
    let checks = selected.iter().zip(decision.verdicts()).zip(&prediction.usages);
    let limits =
        checks.filter(|((one, _), _)| one.rule == explained.index).filter_map(|((one, verdict), usage)| {
            let closed = usage.map(|usage| closed_by(ban, usage, verdict));
            limit_report(rule.action.limiting()?, one, verdict, closed, prediction, context)
        });
    ExplainedRule {
        name: rule.name.to_string(),
        action: rule.action.as_str().to_owned(),
        applies: applies(explained),
        note: note(explained, prediction, context),
        mismatch,
        route,
        outcome: rule_outcome(explained, prediction).map(|outcome| outcome.as_str().to_owned()),
        limits: limits.chain(stream_reports(explained, context)).collect(),
        overrides: overrides(explained, context),
        key: explained.key.as_ref().map(|key| key_report(key, context.limiter.hasher())),
    }
}

/// Returns the usage of a limit as headers show it: nothing is left while a ban runs.
fn closed_by(ban: Option<Duration>, usage: CounterUsage, verdict: &Verdict) -> CounterUsage {
    ban.map_or(usage, |ban| CounterUsage { remaining: 0, reset: ban.max(verdict.retry_after()), ..usage })
}

fn key_report(key: &ExplainedKey, hasher: KeyHasher) -> ExplainedKeyText {
    ExplainedKeyText {
        text: key.text.clone(),
        fingerprint: key.hash.map(|hash| hasher.fingerprint(hash)),
        is_complete: key.is_complete,
        is_enforced: key.is_enforced,
    }
}

fn overrides(explained: &RuleExplanation<'_>, context: &ExplainContext<'_>) -> Vec<OverrideReport> {
    let Some((key, hash)) = explained.key.as_ref().and_then(|key| Some((key, key.hash?))) else {
        return Vec::new();
    };
    let report = |entry: &ActiveOverride| {
        let until = rfc3339(context.wall_clock_at(entry.until));
        override_report(entry, Some(key.text.clone()), context.limiter.hasher(), until)
    };
    context.overrides.of_key(explained.rule, hash, context.now).iter().map(report).collect()
}

fn rule_outcome(explained: &RuleExplanation<'_>, prediction: &Prediction) -> Option<DecisionOutcome> {
    match prediction.action {
        PredictedAction::Exempt(rule) => (rule == explained.index).then_some(DecisionOutcome::Exempt),
        PredictedAction::Denied(rule, _) => (rule == explained.index).then_some(DecisionOutcome::Denied),
        PredictedAction::StoreDecides(rule) if rule == explained.index => None,
        _ if prediction.shadow_rules.contains(&explained.index) => Some(DecisionOutcome::Shadow),
        _ => outcome_of(explained.index, prediction),
    }
}

/// Whether a rule applies to the request, be it only to reject it because it has no key or is ambiguous.
fn applies(explained: &RuleExplanation<'_>) -> bool {
    let action = &explained.rule.action;
    match &explained.status {
        RuleStatus::Applies(_) => true,
        RuleStatus::MissingKey(_) => action.limiting().is_some_and(|of| of.on_missing == OnMissing::Deny),
        // An ambiguous request is never exempt.
        RuleStatus::Ambiguous(_) => !matches!(action, Action::Allow),
        RuleStatus::Mismatch(_) | RuleStatus::Excepted(_) => false,
    }
}

/// Returns why a rule does not apply or is not evaluated.
fn note(
    explained: &RuleExplanation<'_>,
    prediction: &Prediction,
    context: &ExplainContext<'_>,
) -> Option<String> {
    let limiting = explained.rule.action.limiting();
    let is_decided_by_other = match prediction.action {
        PredictedAction::Exempt(rule) | PredictedAction::Denied(rule, _) => rule != explained.index,
        _ => false,
    };
    match &explained.status {
        _ if is_decided_by_other && applies(explained) => {
            Some("not evaluated: another rule decides first".to_owned())
        }
        RuleStatus::Mismatch(_) => None,
        RuleStatus::Excepted(position) => Some(format!("except[{position}] holds")),
        RuleStatus::Ambiguous(ambiguity) => Some(format!("rejects the request as ambiguous: {ambiguity}")),
        RuleStatus::MissingKey(part) => {
            let on_missing = limiting.map(|limiting| limiting.on_missing);
            Some(match on_missing {
                Some(OnMissing::Deny) => format!("the request has no `{part}`: denied (`on_missing: deny`)"),
                _ => format!("the request has no `{part}` (`on_missing: skip`)"),
            })
        }
        RuleStatus::Applies(_) => match prediction.action {
            _ if prediction.remote_rules.contains(&explained.index) => {
                Some("another rate limit service decides (`scope: rls`)".to_owned())
            }
            _ if limiting.is_some_and(|limiting| limiting.deferral.is_some()) => Some(
                "the call is stored and sent later (`respond`): the limit applies to the sending".to_owned(),
            ),
            _ if limiting.is_some_and(|limiting| limiting.distinct.is_some()) => {
                let known = is_passed_over(explained.index, prediction);
                known.then(|| "not charged: the value has been counted before (`distinct`)".to_owned())
            }
            _ if is_passed_over(explained.index, prediction) => Some(note_on_group(prediction, context)),
            _ => match (limiting.map(|limiting| &limiting.source), &explained.key) {
                (Some(LimitSource::Shared(shared)), _) => Some(format!(
                    "shared by all instances ({}): the counter is that of this instance",
                    shared.mode.as_str()
                )),
                (_, Some(key)) if !key.is_complete => {
                    Some("all requests without some part of the key share one counter".to_owned())
                }
                _ => None,
            },
        },
    }
}

/// Whether another rule of its group decides in place of the rule at `index`.
fn is_passed_over(index: RuleIndex, prediction: &Prediction) -> bool {
    let (selected, decision) = prediction.limits.checks();
    let mut checks = selected.iter().zip(decision.verdicts());
    checks.any(|(one, verdict)| one.rule == index && verdict.is_passed_over())
}

/// Returns why a rule is passed over.
fn note_on_group(prediction: &Prediction, context: &ExplainContext<'_>) -> String {
    let charged = charged_names(&prediction.limits, context);
    match prediction.action {
        PredictedAction::Reject(..) => "passed over: a rule of its group in `any_of` decides".to_owned(),
        _ => format!("passed over: the request is charged to {charged} (`any_of`)"),
    }
}

fn limit_report(
    limiting: &LimitAction,
    selected: &SelectedCheck,
    verdict: &Verdict,
    usage: Option<CounterUsage>,
    prediction: &Prediction,
    context: &ExplainContext<'_>,
) -> Option<LimitReport> {
    let quota = verdict.quota().copied().or_else(|| limiting.quota(selected.role))?;
    let is_ban = selected.role == CheckRole::Ban;
    let (role, limit) = role_and_limit(selected, &quota);
    let wait = verdict.retry_after();
    let is_banned = is_banned(selected, verdict);
    let ends_at = || rfc3339(context.wall_clock_at(context.now.saturating_add(wait)));
    let statuses = quota.is_leased().then(|| prediction.counters.shared_limit_statuses(1, context.now));
    let leased = statuses.map(|of| of.get(&selected.check.handle.id).map_or(0, |status| status.held));
    let shown = usage.filter(|_| !is_ban);
    let has_burst = quota.algorithm().has_burst() && quota.algorithm() != Algorithm::InFlight;
    Some(LimitReport {
        role: role.to_owned(),
        limit,
        algorithm: quota.algorithm().as_str().to_owned(),
        burst: has_burst.then(|| quota.burst().get()),
        used: shown.map(|usage| usage.used),
        remaining: shown.map(|usage| match selected.check.adaptive_limit() {
            Some(limit) => limit.saturating_sub(usage.used),
            None => usage.remaining,
        }),
        reset_seconds: shown.map(|usage| seconds(usage.reset)),
        cost: selected.check.cost.saturating_add(selected.surcharge) / selected.unit_cost,
        unit: unit_of(limiting, selected.role).as_str().to_owned(),
        conforms: !verdict.exceeds(),
        retry_after_seconds: verdict.exceeds().then(|| seconds(wait)),
        delay_seconds: Some(verdict.delay()).filter(|delay| !delay.is_zero()).map(seconds),
        banned_until: is_banned.then(ends_at),
        leased,
        is_boosted: verdict.is_boosted(),
        share: share_in_force(selected, &quota, context),
        paused_until: verdict.is_paused().then(ends_at),
    })
}

/// Returns the limits inside streams, with the counters of the request's key.
fn stream_reports(explained: &RuleExplanation<'_>, context: &ExplainContext<'_>) -> Vec<LimitReport> {
    let limiting = explained.rule.action.limiting();
    let streams = limiting.and_then(|limiting| limiting.streams.as_deref());
    let Some(streams) = streams.filter(|_| matches!(explained.status, RuleStatus::Applies(_))) else {
        return Vec::new();
    };
    let hash = explained.key.as_ref().and_then(|key| key.hash).filter(|_| !streams.is_per_stream);
    let report = |(limit, handle): (&StreamLimit, LimitHandle)| {
        let usage = hash.and_then(|key| context.limiter.usage(handle, key, context.now));
        let StreamLimit { quota, measure } = limit;
        LimitReport {
            role: STREAM_KEY.to_owned(),
            limit: Some(quota.limit().to_string()),
            algorithm: quota.algorithm().as_str().to_owned(),
            burst: quota.algorithm().has_burst().then(|| quota.burst().get()),
            used: usage.map(|usage| usage.used),
            remaining: usage.map(|usage| usage.remaining),
            reset_seconds: usage.map(|usage| seconds(usage.reset)),
            cost: measure.units(),
            unit: measure.unit(),
            // Nothing is decided on arrival.
            conforms: true,
            retry_after_seconds: None,
            delay_seconds: None,
            banned_until: None,
            leased: None,
            is_boosted: false,
            share: None,
            paused_until: None,
        }
    };
    context.policy.rules.stream_limits(explained.index).map(report).collect()
}

/// Returns the share of a limit that is in force, if its rule follows the provider.
fn share_in_force(selected: &SelectedCheck, quota: &Quota, context: &ExplainContext<'_>) -> Option<f64> {
    context.policy.rules.feedback(selected.rule).filter(|_| selected.role.reported_limit().is_some())?;
    let (units, cost) = (u32::from(quota.units_per_request().get()), selected.unit_cost.get());
    Some((f64::from(units) / f64::from(cost)).min(1.0))
}

/// Returns the name of a role, and the limit as text.
fn role_and_limit(selected: &SelectedCheck, quota: &Quota) -> (&'static str, Option<String>) {
    let rate = || Some(quota.limit().to_string());
    match selected.role {
        CheckRole::Ban => ("ban", None),
        CheckRole::Permit => {
            let adaptive = selected.check.adaptive_limit();
            ("in_flight", Some(adaptive.unwrap_or_else(|| quota.burst().get()).to_string()))
        }
        CheckRole::Limit(_) => ("limit", rate()),
        CheckRole::Margin(_) => ("margin", rate()),
        CheckRole::Mark(_) => ("mark", rate()),
        CheckRole::Seen => ("seen", rate()),
        CheckRole::Stream(_) => ("stream", rate()),
    }
}
