//! The caller's own limits, at a path of the listener (`quota`). Reading them charges none of them.
//!
//! Rules apply to paths and methods, and the caller may ask before it chooses one. So the rules are selected for an example
//! of each path and method that they name, with everything else as the caller sent it.

use http::{Method, Uri, request};
use serde_json::{Value, json};
use smallvec::SmallVec;

use super::connection::DownstreamConnection;
use super::decide::identify_as;
use super::local_reply::LocalReply;
use super::view::GenerationView;
use weir_http::headers::Headers;
use weir_limiter::Check;
use weir_limiter::decision::{Decision, Enforcement, Verdict};
use weir_limiter::quota::Quota;
use weir_limiter::timestamp::Timestamp;
use weir_limits::AppliedLimits;
use weir_policy::identify::Attributes;
use weir_policy::response::rate_limit_headers::whole_seconds;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::outcome::{is_banned, unit_of};
use weir_policy::rules::own_limits::{counts_by_path, examples};
use weir_policy::rules::rule::Action;
use weir_policy::rules::selection::{CheckRole, SelectedCheck, Selection};

/// Maximum number of limits in a response.
const MAX_LIMITS: usize = 100;

/// A limit of the caller, and what is left of it.
struct CallerLimit {
    rule: RuleIndex,
    /// Order within the rule.
    limit: u32,
    left: f64,
    shown: Value,
    /// The selection that has the limit.
    selection: usize,
}

/// Responds to a request; `None` if it is for another path, or a rule denies it.
pub(super) fn respond(
    connection: &DownstreamConnection,
    view: &GenerationView,
    head: &request::Parts,
    attributes: &Attributes<'_>,
    now: Timestamp,
) -> Option<LocalReply<'static>> {
    let own_limits = view.own_limits(connection.listener)?;
    let is_of_path = *attributes.path == *own_limits.settings().path && connection.stored.is_none();
    if !is_of_path || is_denied(connection, view, attributes) {
        return None;
    }
    if head.method != Method::GET && head.method != Method::HEAD {
        return Some(LocalReply::own_limits_are_only_read());
    }
    if let Err(wait) = own_limits.check(attributes.client_network, now) {
        return Some(LocalReply::own_limits_read_too_often(wait));
    }
    Some(report(connection, view, head, now))
}

fn is_denied(connection: &DownstreamConnection, view: &GenerationView, attributes: &Attributes<'_>) -> bool {
    let headroom = connection.worker.shared.elastic.headroom();
    matches!(view.policy.rules.select(attributes, headroom), Selection::Denied(..))
}

/// Responds with the limits of the caller.
fn report(
    connection: &DownstreamConnection,
    view: &GenerationView,
    head: &request::Parts,
    now: Timestamp,
) -> LocalReply<'static> {
    let (examples, mut is_complete) = examples(view.policy.rules.rules());
    let mut decided: Vec<AppliedLimits> = Vec::new();
    let mut limits: Vec<CallerLimit> = Vec::new();
    for (method, path) in &examples {
        let Ok(uri) = Uri::try_from(path) else { continue };
        let Ok(request) = identify_as(connection, view, method, &uri, &head.headers, now) else { continue };
        request.body_size.set(Some(0));
        let Selection::Limited(selected, _) =
            view.policy.rules.select(&request, connection.worker.shared.elastic.headroom())
        else {
            continue;
        };
        let selection = decided.len();
        let applied = read_counters(connection, selected, now);
        limits.extend(limits_of(view, &applied, selection, now));
        decided.push(applied);
    }
    limits.sort_by_key(|limit| (limit.rule, limit.limit));
    limits.dedup_by(|next, one| (next.rule, &next.shown) == (one.rule, &one.shown));
    is_complete &= limits.len() <= MAX_LIMITS;
    limits.truncate(MAX_LIMITS);
    let mut headers = Headers::default();
    let tightest = limits.iter().min_by(|one, other| one.left.total_cmp(&other.left));
    if let Some(applied) = tightest.and_then(|limit| decided.get(limit.selection)) {
        applied.write_all(&mut headers, &view.limits);
    }
    let shown: Vec<Value> = limits.into_iter().map(|limit| limit.shown).collect();
    let body = json!({ "limits": shown, "complete": is_complete });
    LocalReply::own_limits(headers, format!("{body}\n"))
}

/// Reads the counters of the checks, without charging them.
fn read_counters(
    connection: &DownstreamConnection,
    mut selected: SmallVec<[SelectedCheck; 2]>,
    now: Timestamp,
) -> AppliedLimits {
    for one in &mut selected {
        one.check.cost = 0;
    }
    let checks: SmallVec<[Check; 4]> = selected.iter().map(|one| one.check).collect();
    let copy = connection.worker.shared.limiter.copy_for(&checks, now);
    let decision: Decision = copy.check(&checks, now);
    AppliedLimits::decided(selected, decision, now)
}

fn limits_of(
    view: &GenerationView,
    applied: &AppliedLimits,
    selection: usize,
    now: Timestamp,
) -> Vec<CallerLimit> {
    let (selected, decision) = applied.checks();
    let checks = selected.iter().zip(decision.verdicts());
    let limit = |(one, verdict): (&SelectedCheck, &Verdict)| {
        let rule = view.policy.rules.get(one.rule)?;
        let Action::Limit(limiting) = &rule.action else { return None };
        let is_shown = matches!(one.role, CheckRole::Limit(_) | CheckRole::Permit);
        let is_shown = is_shown && !counts_by_path(limiting);
        if !is_shown || matches!(verdict.enforcement, Enforcement::Shadow | Enforcement::PassedOver) {
            return None;
        }
        let bans = selected.iter().zip(decision.verdicts()).filter(|(other, _)| other.rule == one.rule);
        let ban = bans.filter(|(one, verdict)| is_banned(one, verdict)).map(|(_, it)| it.retry_after()).max();
        let usage = verdict.usage(now)?.in_requests(one.unit_cost);
        let quota = verdict.quota()?;
        let (remaining, reset) = match ban {
            Some(ban) => (0, ban),
            None => (
                one.check.adaptive_limit().map_or(usage.remaining, |max| max.saturating_sub(usage.used)),
                usage.reset,
            ),
        };
        let total = remaining.saturating_add(usage.used).max(1);
        Some(CallerLimit {
            rule: one.rule,
            limit: one.role.reported_limit().map_or(u32::MAX, |limit| limit as u32),
            left: f64::from(remaining) / f64::from(total),
            selection,
            shown: json!({
                "rule": &*rule.name,
                "limit": limit_text(one, quota),
                "unit": unit_of(limiting, one.role).as_str(),
                "used": usage.used,
                "remaining": remaining,
                "reset_seconds": whole_seconds(reset),
                "banned": ban.is_some(),
                "shared": quota.is_leased(),
                "methods": rule.matcher.methods.iter().map(Method::as_str).collect::<Vec<_>>(),
                "paths": rule.matcher.paths.iter().map(|path| path.as_str()).collect::<Vec<_>>(),
            }),
        })
    };
    checks.filter_map(limit).collect()
}

fn limit_text(one: &SelectedCheck, quota: &Quota) -> String {
    match one.role {
        CheckRole::Permit => {
            let max = one.check.adaptive_limit().unwrap_or_else(|| quota.burst().get());
            format!("{max} in flight")
        }
        _ => quota.limit().to_string(),
    }
}
