//! The outcome of an explanation, as a sentence and with the headers of the response.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};

use super::decide::{PredictedAction, Prediction};
use super::report::{Explanation, HeaderLine};
use super::{ExplainContext, seconds};
use crate::headers::Headers;
use crate::limits::{AppliedLimits, HeaderTables};
use crate::response::rate_limit_headers::X_WEIR_OVER_LIMIT;
use crate::response::rejection::{RejectionResponse, limited_headers};
use crate::rules::RuleIndex;
use crate::rules::outcome::DecisionOutcome;
use crate::rules::selection::{Denial, SelectedCheck};

/// Returns the explanation without its rules.
pub(super) fn explain_outcome(prediction: &Prediction, context: &ExplainContext<'_>) -> Explanation {
    match &prediction.action {
        PredictedAction::Exempt(rule) => {
            let reason = format!("{} exempts it from all rules", quoted(*rule, context));
            Explanation { reason, ..decided_by("exempt", *rule, context) }
        }
        PredictedAction::Denied(rule, denial) => denied(*rule, *denial, context),
        PredictedAction::Reject(rule, retry_after) => rejected(*rule, *retry_after, prediction, context),
        PredictedAction::StoreDecides(rule) => {
            let reason =
                format!("this instance holds no units of {}: it asks the store", quoted(*rule, context));
            Explanation { reason, ..decided_by("undecided", *rule, context) }
        }
        PredictedAction::ServiceDecides(rule) => {
            let reason = format!("another rate limit service decides for {}", quoted(*rule, context));
            Explanation { reason, ..decided_by("undecided", *rule, context) }
        }
        PredictedAction::Forward(delay) => Explanation {
            delay_seconds: delay.map(seconds),
            headers: forwarded_headers(&prediction.limits, context),
            ..forwarded(prediction, context)
        },
    }
}

/// Returns an explanation with this outcome, for which `rule` is the reason.
fn decided_by(outcome: &str, rule: RuleIndex, context: &ExplainContext<'_>) -> Explanation {
    Explanation { rule: name(rule, context), ..Explanation::new(outcome, context) }
}

fn name(rule: RuleIndex, context: &ExplainContext<'_>) -> Option<String> {
    context.policy.rules.get(rule).map(|rule| rule.name.to_string())
}

fn quoted(rule: RuleIndex, context: &ExplainContext<'_>) -> String {
    format!("`{}`", name(rule, context).unwrap_or_default())
}

fn denied(rule: RuleIndex, denial: Denial, context: &ExplainContext<'_>) -> Explanation {
    let (status, why) = match denial {
        Denial::Forbidden => (context.policy.denied.status, "denies it".to_owned()),
        Denial::Ambiguous(ambiguity) => {
            (StatusCode::BAD_REQUEST, format!("rejects it as ambiguous: {ambiguity}"))
        }
    };
    let reason = format!("{} {why}", quoted(rule, context));
    Explanation { reason, status: Some(status.as_u16()), ..decided_by("denied", rule, context) }
}

fn rejected(
    rule: RuleIndex,
    retry_after: Duration,
    prediction: &Prediction,
    context: &ExplainContext<'_>,
) -> Explanation {
    let outcome = outcome_of(rule, prediction).unwrap_or(DecisionOutcome::Limited);
    let reason = match outcome == DecisionOutcome::Banned {
        true => format!("{} has banned its key", quoted(rule, context)),
        false => format!("over the limit of {}", quoted(rule, context)),
    };
    Explanation {
        reason,
        status: context.policy.rejection(rule).map(|reply| reply.status.as_u16()),
        retry_after_seconds: Some(seconds(retry_after)),
        headers: rejection_headers(rule, retry_after, prediction, context),
        ..decided_by(outcome.as_str(), rule, context)
    }
}

/// Returns the explanation of a forwarded request, by its most notable outcome.
fn forwarded(prediction: &Prediction, context: &ExplainContext<'_>) -> Explanation {
    let (selected, _) = prediction.limits.checks();
    for (wanted, before, after) in [
        (DecisionOutcome::Soft, "forwarded; over the soft limit of ", ""),
        (DecisionOutcome::Delayed, "forwarded after a delay by ", ""),
        (DecisionOutcome::Shadow, "forwarded; ", " would reject it if it were enforced"),
    ] {
        let mut rules = selected.iter().map(|one| one.rule);
        let of_checks = rules.find(|rule| outcome_of(*rule, prediction) == Some(wanted));
        let early = prediction.shadow_rules.first().copied().filter(|_| wanted == DecisionOutcome::Shadow);
        if let Some(rule) = of_checks.or(early) {
            let reason = format!("{before}{}{after}", quoted(rule, context));
            return Explanation { reason, ..decided_by(wanted.as_str(), rule, context) };
        }
    }
    let outcome = DecisionOutcome::Allowed.as_str();
    Explanation { reason: "forwarded".to_owned(), ..Explanation::new(outcome, context) }
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
    lines.extend(
        marked.map(|rule| HeaderLine { name: X_WEIR_OVER_LIMIT.to_string(), value: rule.name.to_string() }),
    );
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
