//! The outcome of an explanation, as a sentence and with the headers of the response.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, StatusCode, Uri};

use super::decide::{PredictedAction, Prediction};
use super::report::{Explanation, HeaderLine};
use super::{ExplainContext, seconds};
use weir_http::headers::Headers;
use weir_limits::{AppliedLimits, HeaderTables};
use weir_policy::identify::Attributes;
use weir_policy::response::dynamic_reply::{ConfiguredParts, ReplyDraft};
use weir_policy::response::grpc_reply;
use weir_policy::response::rate_limit_headers::X_WEIR_OVER_LIMIT;
use weir_policy::response::rejection::{RejectionReply, RejectionResponse, limited_headers};
use weir_policy::response::request_details::RequestDetails;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::outcome::DecisionOutcome;
use weir_policy::rules::rule::Rule;
use weir_policy::rules::selection::{Denial, NOT_DEFERRABLE, SelectedCheck};

/// Returns the explanation without its rules.
pub(super) fn explain_outcome(
    request: &Attributes<'_>,
    prediction: &Prediction,
    context: &ExplainContext<'_>,
) -> Explanation {
    match &prediction.action {
        PredictedAction::Exempt(rule) => {
            let reason = format!("{} exempts it from all rules", quoted(*rule, context));
            Explanation { reason, ..decided_by("exempt", *rule, context) }
        }
        PredictedAction::Denied(rule, denial) => denied(request, *rule, *denial, context),
        PredictedAction::Reject(rule, retry_after) => {
            rejected(request, *rule, *retry_after, prediction, context)
        }
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

fn denied(
    request: &Attributes<'_>,
    rule: RuleIndex,
    denial: Denial,
    context: &ExplainContext<'_>,
) -> Explanation {
    let mut headers = HeaderMap::new();
    let denied = context.policy.denial(rule);
    let (status, body, parts, why) = match denial {
        Denial::Forbidden => {
            headers.clone_from(&denied.headers);
            headers.remove(CONTENT_TYPE);
            (denied.status, denied.body.clone(), ConfiguredParts::All, "denies it".to_owned())
        }
        Denial::NotDeferrable => {
            let body = Bytes::from_static(NOT_DEFERRABLE.as_bytes());
            (StatusCode::NOT_IMPLEMENTED, body, ConfiguredParts::None, "cannot defer it".to_owned())
        }
        Denial::Ambiguous(ambiguity) => {
            let body = Bytes::from_static(ambiguity.reply_text().as_bytes());
            let why = format!("rejects it as ambiguous: {ambiguity}");
            (StatusCode::BAD_REQUEST, body, ConfiguredParts::None, why)
        }
    };
    let reason = format!("{} {why}", quoted(rule, context));
    let draft = ReplyDraft { status, headers: headers.into(), body };
    let reply = denied.complete(&request_details(request), parts, draft);
    let mut headers = reply.headers.into_map();
    let is_grpc = grpc_reply::is_grpc(request.headers);
    let status = sent_status(reply.status, &reply.body, &mut headers, is_grpc);
    Explanation {
        reason,
        status: Some(status.as_u16()),
        headers: header_lines(&headers),
        ..decided_by("denied", rule, context)
    }
}

fn rejected(
    request: &Attributes<'_>,
    rule: RuleIndex,
    retry_after: Duration,
    prediction: &Prediction,
    context: &ExplainContext<'_>,
) -> Explanation {
    let outcome = outcome_of(rule, prediction).unwrap_or(DecisionOutcome::Limited);
    let (default, name) = (RejectionResponse::default(), quoted(rule, context));
    let rejection = context.policy.rejection(rule).unwrap_or(&default);
    let mut reason = match outcome == DecisionOutcome::Banned {
        true => format!("{name} has banned its key"),
        false => format!("over the limit of {name}"),
    };
    if request.method.is_some_and(|method| rejection.degraded(method).is_some()) {
        reason.push_str("; the degraded response is sent");
    }
    if rejection.cached_fallback.is_some() {
        reason.push_str("; a stored response is sent instead if there is one");
    }
    let RejectionReply { status, body, headers } = rejection.reply_to(request.method);
    let headers = rejection_headers(headers, retry_after, prediction, context).into();
    let draft = ReplyDraft { status, headers, body: body.clone() };
    let reply = rejection.complete(&request_details(request), ConfiguredParts::All, draft);
    let mut headers = reply.headers.into_map();
    let is_grpc = grpc_reply::is_grpc(request.headers);
    let status = sent_status(reply.status, &reply.body, &mut headers, is_grpc);
    Explanation {
        reason,
        status: Some(status.as_u16()),
        retry_after_seconds: Some(seconds(retry_after)),
        headers: header_lines(&headers),
        ..decided_by(outcome.as_str(), rule, context)
    }
}

/// Returns what the local reply to a request may repeat. The request has no ID, because it is not sent.
fn request_details(request: &Attributes<'_>) -> RequestDetails {
    let (method, uri) = (request.method.cloned().unwrap_or_default(), Uri::default());
    let details = RequestDetails::new(&method, &uri, request.headers, request.client.ip, "REQUEST_ID");
    RequestDetails { path: (&*request.path).into(), ..details }
}

/// Returns the status code of a local reply as it is sent: that of a gRPC call is 200, and headers express what `status`
/// and `body` mean.
pub(super) fn sent_status(
    status: StatusCode,
    body: &Bytes,
    headers: &mut HeaderMap,
    is_grpc: bool,
) -> StatusCode {
    if !is_grpc {
        return status;
    }
    grpc_reply::write_trailers_only(status, body, headers);
    StatusCode::OK
}

/// Returns the explanation of a forwarded request, by its most notable outcome.
fn forwarded(prediction: &Prediction, context: &ExplainContext<'_>) -> Explanation {
    let (selected, _) = prediction.limits.checks();
    if let Some(rule) = prediction.limits.diverting_rule() {
        let upstream = context.policy.rules.get(rule).and_then(Rule::divert_to).unwrap_or_default();
        let reason =
            format!("sent to the upstream `{upstream}`; over the limit of {}", quoted(rule, context));
        return Explanation { reason, ..decided_by(DecisionOutcome::Diverted.as_str(), rule, context) };
    }
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
    let reason = match charged_names(&prediction.limits, context) {
        charged if charged.is_empty() => "forwarded".to_owned(),
        charged => format!("forwarded; charged to {charged}"),
    };
    Explanation { reason, ..Explanation::new(outcome, context) }
}

/// Returns the rules of groups that an admitted request is charged to; empty if there are none.
pub(super) fn charged_names(limits: &AppliedLimits, context: &ExplainContext<'_>) -> String {
    let charged = limits.charged_alternatives(&context.policy.rules);
    charged.into_iter().map(|rule| quoted(rule, context)).collect::<Vec<_>>().join(", ")
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
    configured: &HeaderMap,
    retry_after: Duration,
    prediction: &Prediction,
    context: &ExplainContext<'_>,
) -> HeaderMap {
    let mut headers = Headers::from(limited_headers(configured, retry_after));
    let tables = HeaderTables::new(context.policy, context.limiter.hasher());
    prediction.limits.write_limit_status(&mut headers, &tables, Some(retry_after));
    headers.into_map()
}

fn forwarded_headers(limits: &AppliedLimits, context: &ExplainContext<'_>) -> Vec<HeaderLine> {
    let mut headers = Headers::from(HeaderMap::new());
    let tables = HeaderTables::new(context.policy, context.limiter.hasher());
    limits.write_limit_status(&mut headers, &tables, None);
    let mut lines = header_lines(&headers.into_map());
    let marked = limits.marked_rules().filter_map(|rule| context.policy.rules.get(rule));
    lines.extend(
        marked.map(|rule| HeaderLine { name: X_WEIR_OVER_LIMIT.to_string(), value: rule.name.to_string() }),
    );
    lines
}

/// Returns headers as lines, `retry-after` first.
pub(super) fn header_lines(headers: &HeaderMap) -> Vec<HeaderLine> {
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
