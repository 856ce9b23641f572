//! The explanation as plain data, in the form in which the admin port sends it.

use std::net::IpAddr;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};

use super::decide::{PredictedAction, Prediction};
use super::{ExplainContext, seconds};
use crate::engine::overrides::{ActiveOverride, OverrideAction};
use crate::headers::Headers;
use crate::identify::Attributes;
use crate::limiter::algorithm::{Algorithm, CounterUsage};
use crate::limiter::decision::Verdict;
use crate::limits::{AppliedLimits, HeaderTables};
use crate::response::rate_limit_headers::X_WEIR_OVER_LIMIT;
use crate::response::rejection::{RejectionResponse, limited_headers};
use crate::rules::RuleIndex;
use crate::rules::explain::{ExplainedKey, Mismatch, RuleExplanation, RuleStatus};
use crate::rules::outcome::DecisionOutcome;
use crate::rules::rule::{LimitAction, LimitSource, OnMissing};
use crate::rules::selection::{CheckRole, Denial, SelectedCheck};
use crate::telemetry::rfc3339;

/// What would happen to a request, and why.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Explanation {
    /// Outcome as in `weir_decisions_total`, `malformed`, or `undecided` if the store or another service decides.
    pub outcome: String,
    /// The rule that decides, if one does.
    pub rule: Option<String>,
    /// The outcome as a sentence.
    pub reason: String,
    /// Status of the local reply; `None` if the request is forwarded or undecided.
    pub status: Option<u16>,
    /// Time for `retry-after`, if the request is rejected by a limit.
    pub retry_after_seconds: Option<f64>,
    /// Delay before the request is forwarded.
    pub delay_seconds: Option<f64>,
    /// Headers about limits that the response has.
    pub headers: Vec<HeaderLine>,
    /// The request as rules see it; `None` if it is malformed.
    pub request: Option<ClientReport>,
    /// Every rule, in file order.
    pub rules: Vec<RuleReport>,
    /// Time of the explanation.
    pub time: String,
    /// Generation of the configuration that decides.
    pub generation: u64,
    /// Hash of the text of that configuration, if it runs.
    pub config_hash: Option<String>,
}

/// One header of a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderLine {
    /// Name, in lower case.
    pub name: String,
    /// Value.
    pub value: String,
}

/// A request as rules see it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientReport {
    /// Method; `None` for a descriptor without one.
    pub method: Option<String>,
    /// Normalised path.
    pub path: String,
    /// Query, undecoded.
    pub query: Option<String>,
    /// Host in normal form.
    pub host: String,
    /// Address from which the request arrives.
    pub peer: String,
    /// Whether its `x-forwarded-for` is trusted.
    pub peer_is_trusted: bool,
    /// Address of the client.
    pub client_ip: Option<String>,
    /// Country of the client, as a code.
    pub country: Option<String>,
    /// Continent of the client, as a code.
    pub continent: Option<String>,
    /// Autonomous system of the client.
    pub asn: Option<u32>,
}

/// One rule and what it would do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RuleReport {
    /// Name of the rule.
    pub name: String,
    /// `allow`, `deny` or `limit`.
    pub action: String,
    /// Whether it applies to the request.
    pub applies: bool,
    /// Why it does not apply or is not evaluated, or what is special about it.
    pub note: Option<String>,
    /// The first field of `match` that does not hold.
    pub mismatch: Option<MismatchReport>,
    /// The path pattern that matched, if the rule has any.
    pub route: Option<String>,
    /// The request's key, if the rule limits it.
    pub key: Option<KeyReport>,
    /// What the rule would do, as in `weir_decisions_total`.
    pub outcome: Option<String>,
    /// Its limits.
    pub limits: Vec<LimitReport>,
    /// Overrides in force for the key.
    pub overrides: Vec<OverrideReport>,
}

/// A field of `match` that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MismatchReport {
    /// The field.
    pub field: String,
    /// The request's value.
    pub actual: Option<String>,
    /// The configured values, unless they may be secrets.
    pub expected: Option<String>,
}

/// The key of a request under one rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyReport {
    /// The key as text, for `POST /limits/...`.
    pub text: String,
    /// The key's fingerprint; `None` if the request has no key.
    pub fingerprint: Option<String>,
    /// Whether every part is present.
    pub is_complete: bool,
    /// Whether the rule is enforced for the key. If not, it is in shadow mode.
    pub is_enforced: bool,
}

/// One limit and its counter, before the request is charged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LimitReport {
    /// `limit`, `margin` of a soft limit, `mark` of a soft limit, `in_flight`, or `ban`.
    pub role: String,
    /// The limit in force, such as `100/s`; a number for `in_flight`.
    pub limit: Option<String>,
    /// The algorithm.
    pub algorithm: String,
    /// Maximum number of requests at once, if the algorithm has a burst.
    pub burst: Option<u32>,
    /// Units used.
    pub used: Option<u32>,
    /// Units left.
    pub remaining: Option<u32>,
    /// Time until the quota is whole, or until the window ends.
    pub reset_seconds: Option<f64>,
    /// Units that the request costs.
    pub cost: u32,
    /// Whether the request is within the limit.
    pub conforms: bool,
    /// Time until the request would conform.
    pub retry_after_seconds: Option<f64>,
    /// Delay until the request conforms, if the rule delays.
    pub delay_seconds: Option<f64>,
    /// End of the ban, if one runs.
    pub banned_until: Option<String>,
    /// Units of a shared limit that this instance holds.
    pub leased: Option<u64>,
    /// Whether an override has raised the limit.
    pub is_boosted: bool,
}

/// An override in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideReport {
    /// Name of the rule.
    pub rule: String,
    /// The key as text; `None` if it may be a secret.
    pub key: Option<String>,
    /// The key's fingerprint.
    pub fingerprint: String,
    /// `boost` or `ban`.
    pub action: String,
    /// Factor or limit of a boost.
    pub change: Option<String>,
    /// When it ends.
    pub until: String,
}

impl Explanation {
    /// Returns the explanation of a request that is rejected as malformed.
    pub(super) fn malformed(problem: &str, context: &ExplainContext<'_>) -> Self {
        let status = Some(StatusCode::BAD_REQUEST.as_u16());
        let reason = format!("rejected as malformed: {problem}");
        Self { status, reason, ..Self::new("malformed", context) }
    }

    fn new(outcome: &str, context: &ExplainContext<'_>) -> Self {
        Self {
            outcome: outcome.to_owned(),
            rule: None,
            reason: String::new(),
            status: None,
            retry_after_seconds: None,
            delay_seconds: None,
            headers: Vec::new(),
            request: None,
            rules: Vec::new(),
            time: rfc3339(context.wall_clock),
            generation: context.policy.generation,
            config_hash: None,
        }
    }
}

/// Returns an override as data, given the wall-clock time of its end.
pub fn override_report(entry: &ActiveOverride, until: String) -> OverrideReport {
    OverrideReport {
        rule: entry.rule.to_string(),
        key: entry.key_text.as_ref().map(ToString::to_string),
        fingerprint: entry.key.to_string(),
        action: entry.action.kind().as_str().to_owned(),
        change: match entry.action {
            OverrideAction::Boost(change) => Some(change.to_string()),
            OverrideAction::Ban => None,
        },
        until,
    }
}

/// Puts a prediction and the description of every rule together.
pub(super) fn report(
    request: &Attributes<'_>,
    peer: IpAddr,
    rules: &[RuleExplanation<'_>],
    prediction: &Prediction,
    context: &ExplainContext<'_>,
) -> Explanation {
    let mut explanation = verdict(prediction, context);
    explanation.request = Some(client_report(request, peer));
    explanation.rules = rules.iter().map(|rule| rule_report(rule, prediction, context)).collect();
    explanation
}

fn client_report(request: &Attributes<'_>, peer: IpAddr) -> ClientReport {
    let location = request.location();
    ClientReport {
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

/// Returns the explanation without its rules.
fn verdict(prediction: &Prediction, context: &ExplainContext<'_>) -> Explanation {
    let name = |rule: RuleIndex| context.policy.rules.get(rule).map(|rule| rule.name.to_string());
    let of = |outcome: &str, rule: Option<RuleIndex>| Explanation {
        rule: rule.and_then(name),
        ..Explanation::new(outcome, context)
    };
    let quoted = |rule: RuleIndex| format!("`{}`", name(rule).unwrap_or_default());
    match &prediction.action {
        PredictedAction::Exempt(rule) => {
            let reason = format!("{} exempts it from all rules", quoted(*rule));
            Explanation { reason, ..of("exempt", Some(*rule)) }
        }
        PredictedAction::Denied(rule, denial) => {
            let (status, why) = match denial {
                Denial::Forbidden => (context.policy.denied.status, "denies it".to_owned()),
                Denial::Ambiguous(ambiguity) => {
                    (StatusCode::BAD_REQUEST, format!("rejects it as ambiguous: {ambiguity}"))
                }
            };
            let reason = format!("{} {why}", quoted(*rule));
            Explanation { reason, status: Some(status.as_u16()), ..of("denied", Some(*rule)) }
        }
        PredictedAction::Reject(rule, retry_after) => {
            let outcome = outcome_of(*rule, prediction).unwrap_or(DecisionOutcome::Limited);
            let reason = match outcome {
                DecisionOutcome::Banned => format!("{} has banned its key", quoted(*rule)),
                _ => format!("over the limit of {}", quoted(*rule)),
            };
            Explanation {
                reason,
                status: context.policy.rejection(*rule).map(|reply| reply.status.as_u16()),
                retry_after_seconds: Some(seconds(*retry_after)),
                headers: rejection_headers(*rule, *retry_after, prediction, context),
                ..of(outcome.as_str(), Some(*rule))
            }
        }
        PredictedAction::StoreDecides(rule) => {
            let reason = format!("this instance holds no units of {}: it asks the store", quoted(*rule));
            Explanation { reason, ..of("undecided", Some(*rule)) }
        }
        PredictedAction::ServiceDecides(rule) => {
            let reason = format!("another rate limit service decides for {}", quoted(*rule));
            Explanation { reason, ..of("undecided", Some(*rule)) }
        }
        PredictedAction::Forward(delay) => {
            let (outcome, rule) = forwarded(prediction);
            let reason = match (outcome, rule) {
                (DecisionOutcome::Soft, Some(rule)) => format!("forwarded; over the soft limit of {}", quoted(rule)),
                (DecisionOutcome::Delayed, Some(rule)) => format!("forwarded after a delay by {}", quoted(rule)),
                (DecisionOutcome::Shadow, Some(rule)) => {
                    format!("forwarded; {} would reject it if it were enforced", quoted(rule))
                }
                _ => "forwarded".to_owned(),
            };
            Explanation {
                reason,
                delay_seconds: delay.map(seconds),
                headers: forwarded_headers(&prediction.limits, context),
                ..of(outcome.as_str(), rule)
            }
        }
    }
}

/// Returns the most notable outcome of a forwarded request, and its rule.
fn forwarded(prediction: &Prediction) -> (DecisionOutcome, Option<RuleIndex>) {
    let (selected, _) = prediction.limits.checks();
    let rules = || selected.iter().map(|one| one.rule);
    for wanted in [DecisionOutcome::Soft, DecisionOutcome::Delayed, DecisionOutcome::Shadow] {
        let of_checks = rules().find(|rule| outcome_of(*rule, prediction) == Some(wanted));
        let early = prediction.shadow_rules.first().copied();
        let early = early.filter(|_| wanted == DecisionOutcome::Shadow);
        if let Some(rule) = of_checks.or(early) {
            return (wanted, Some(rule));
        }
    }
    (DecisionOutcome::Allowed, None)
}

/// Returns the outcome of one rule's checks, as it is recorded in the metrics.
pub(super) fn outcome_of(rule: RuleIndex, prediction: &Prediction) -> Option<DecisionOutcome> {
    let (selected, decision) = prediction.limits.checks();
    let is_of_rule = |one: &SelectedCheck| one.rule == rule;
    let start = selected.iter().position(is_of_rule)?;
    let count = selected[start..].iter().take_while(|one| is_of_rule(one)).count();
    let (checks, verdicts) =
        (&selected[start..start + count], decision.verdicts().get(start..start + count)?);
    DecisionOutcome::from_verdicts(checks, verdicts, decision.is_rejected())
}

fn rejection_headers(
    rule: RuleIndex,
    retry_after: Duration,
    prediction: &Prediction,
    context: &ExplainContext<'_>,
) -> Vec<HeaderLine> {
    let default = RejectionResponse::default();
    let configured = &context.policy.rejection(rule).unwrap_or(&default).headers;
    let mut headers = Headers::from(limited_headers(configured, retry_after));
    let tables = HeaderTables::new(context.policy, context.limiter.hasher());
    prediction.limits.write_limit_status(&mut headers, &tables, Some(retry_after));
    lines(&headers.into_map())
}

fn forwarded_headers(limits: &AppliedLimits, context: &ExplainContext<'_>) -> Vec<HeaderLine> {
    let mut headers = Headers::from(HeaderMap::new());
    let tables = HeaderTables::new(context.policy, context.limiter.hasher());
    limits.write_limit_status(&mut headers, &tables, None);
    let mut lines = lines(&headers.into_map());
    let marked = limits.marked_rules().filter_map(|rule| context.policy.rules.get(rule));
    lines.extend(marked.map(|rule| HeaderLine {
        name: X_WEIR_OVER_LIMIT.to_string(),
        value: rule.name.to_string(),
    }));
    lines
}

/// Returns headers as lines, `retry-after` first.
fn lines(headers: &HeaderMap) -> Vec<HeaderLine> {
    let mut lines: Vec<HeaderLine> = headers
        .iter()
        .map(|(name, value)| HeaderLine {
            name: name.to_string(),
            value: String::from_utf8_lossy(value.as_bytes()).into_owned(),
        })
        .collect();
    lines.sort_by(|one, other| {
        let order = |line: &HeaderLine| (line.name != RETRY_AFTER.as_str(), line.name.clone());
        order(one).cmp(&order(other))
    });
    lines
}

fn rule_report(
    explained: &RuleExplanation<'_>,
    prediction: &Prediction,
    context: &ExplainContext<'_>,
) -> RuleReport {
    let rule = explained.rule;
    let (mismatch, route) = match &explained.status {
        RuleStatus::Mismatch(Mismatch { field, actual, expected }) => {
            let (field, actual, expected) = (field.clone(), actual.clone(), expected.clone());
            (Some(MismatchReport { field, actual, expected }), None)
        }
        RuleStatus::Applies(route) => (None, Some(route.clone()).filter(|route| !route.is_empty())),
        RuleStatus::Excepted(_) | RuleStatus::MissingKey(_) | RuleStatus::Ambiguous(_) => (None, None),
    };
    let (selected, decision) = prediction.limits.checks();
    let checks = selected.iter().zip(decision.verdicts()).zip(&prediction.usages);
    let limits = checks
        .filter(|((one, _), _)| one.rule == explained.index)
        .filter_map(|((one, verdict), usage)| limit_report(rule.action.limiting()?, one, verdict, *usage, prediction, context));
    RuleReport {
        name: rule.name.to_string(),
        action: rule.action.as_str().to_owned(),
        applies: matches!(explained.status, RuleStatus::Applies(_)),
        note: note(explained, prediction),
        mismatch,
        route,
        outcome: rule_outcome(explained, prediction).map(|outcome| outcome.as_str().to_owned()),
        limits: limits.collect(),
        overrides: overrides(explained, context),
        key: explained.key.as_ref().map(key_report),
    }
}

fn key_report(key: &ExplainedKey) -> KeyReport {
    KeyReport {
        text: key.text.clone(),
        fingerprint: key.hash.map(|hash| hash.to_string()),
        is_complete: key.is_complete,
        is_enforced: key.is_enforced,
    }
}

fn overrides(explained: &RuleExplanation<'_>, context: &ExplainContext<'_>) -> Vec<OverrideReport> {
    let Some(hash) = explained.key.as_ref().and_then(|key| key.hash) else { return Vec::new() };
    let found = context.overrides.of_key(&explained.rule.name, hash, context.now);
    found.iter().map(|entry| override_report(entry, rfc3339(context.wall_clock_at(entry.until)))).collect()
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

/// Returns why a rule does not apply or is not evaluated.
fn note(explained: &RuleExplanation<'_>, prediction: &Prediction) -> Option<String> {
    let limiting = explained.rule.action.limiting();
    match &explained.status {
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
            PredictedAction::Exempt(rule) | PredictedAction::Denied(rule, _) if rule != explained.index => {
                Some("not evaluated: another rule decides first".to_owned())
            }
            _ if prediction.remote_rules.contains(&explained.index) => {
                Some("another rate limit service decides (`scope: rls`)".to_owned())
            }
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
    let (role, limit) = match selected.role {
        CheckRole::Ban => ("ban", None),
        CheckRole::Permit => ("in_flight", Some(quota.burst().to_string())),
        CheckRole::Limit(_) => ("limit", Some(quota.limit().to_string())),
        CheckRole::Margin(_) => ("margin", Some(quota.limit().to_string())),
        CheckRole::Mark(_) => ("mark", Some(quota.limit().to_string())),
    };
    let is_banned = verdict.is_banned() || (is_ban && verdict.exceeds());
    let wait = verdict.retry_after();
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
        remaining: shown.map(|usage| usage.remaining),
        reset_seconds: shown.map(|usage| seconds(usage.reset)),
        cost: selected.check.cost / selected.unit_cost,
        conforms: !verdict.exceeds(),
        retry_after_seconds: verdict.exceeds().then(|| seconds(wait)),
        delay_seconds: Some(verdict.delay()).filter(|delay| !delay.is_zero()).map(seconds),
        banned_until: is_banned
            .then(|| rfc3339(context.wall_clock_at(context.now.saturating_add(wait)))),
        leased,
        is_boosted: verdict.is_boosted(),
    })
}
