//! Compiles rules, and checks which keys need or exclude one another and which have no effect.

use std::collections::HashMap;

use super::context::{CompileContext, MatcherOwner};
use super::{
    cost, counters, decisions, distinct, diversion, domain, feedback, given_keys, in_flight, limit_scope,
    limits, map_items, matching, nested_networks, rejection, remote_limit, respond, stated_limit, streams,
    throttle, wait, windows,
};
use crate::applicability::{self, CheckedRule, RuleKind};
use crate::at::At;
use crate::defaults::MAX_NAME_LENGTH;
use crate::diagnostic::ValueError;
use crate::quoting::{backquoted, quoted};
use crate::raw;
use weir_policy::rules::key::KeyTemplate;
use weir_policy::rules::matcher::Matcher;
use weir_policy::rules::rule::{Action, LimitAction, Rule, Throttle};

/// Compiles all rules in file order, each with its local reply.
pub(super) fn compile(raw: &raw::Rules, at: At<'_>, context: &mut CompileContext<'_>) -> Vec<Rule> {
    let mut indices = raw.items().map(|(index, _)| index);
    let mut first_uses = HashMap::new();
    let rules = map_items(raw, at, |raw, rule_at| {
        let index = indices.next().flatten();
        let name = raw.name.as_deref().unwrap_or_default();
        if raw.name.is_some() {
            let name_at = rule_at.key("name");
            name_at.ok(check_name(name));
            let first = *first_uses.entry(name).or_insert(index);
            if first != index {
                let first = name_place(first, at);
                let error = ValueError::new(format!("duplicate rule name {}", backquoted(name)));
                name_at.error(error.with_hint(format!("first in {first}")));
            }
        }
        Some(compile_rule(raw, name, rule_at, context))
    });
    counters::check(raw, &rules, at);
    rules
}

/// Returns a rule's name and place for a message.
pub(super) fn describe(rule: &Rule, index: Option<usize>, rules: At<'_>) -> String {
    format!("{} in {}", backquoted(&rule.name), name_place(index, rules))
}

/// Returns the place of the name of the rule with this index in the list at `rules`; `None` for a single rule in place of
/// a list.
fn name_place(index: Option<usize>, rules: At<'_>) -> String {
    rule_position(index, &rules).key("name").place()
}

/// Returns the position of the rule with this index in the list at `rules`; `None` for a single rule in place of a list.
pub(super) fn rule_position<'p>(index: Option<usize>, rules: &'p At<'p>) -> At<'p> {
    index.map_or_else(|| rules.single_item(), |index| rules.item(index))
}

/// Checks a name, which becomes part of metrics, headers and log lines without escaping.
pub(super) fn check_name(name: &str) -> Result<(), ValueError> {
    let bad = name.chars().find(|letter| !letter.is_ascii_graphic() || matches!(letter, '"' | '\\'));
    if name.is_empty() {
        return Err(ValueError::new("empty name"));
    }
    if let Some(bad) = bad {
        return Err(ValueError::new(format!(
            "invalid name, expected visible ASCII without quotes and backslashes, got {}",
            quoted(name)
        ))
        .with_hint(format!("remove {}", backquoted(&bad.to_string()))));
    }
    if name.len() > MAX_NAME_LENGTH {
        return Err(ValueError::new(format!(
            "a name has at most {MAX_NAME_LENGTH} characters, got {}",
            name.len()
        )));
    }
    Ok(())
}

fn compile_rule(raw: &raw::Rule, name: &str, at: At<'_>, context: &mut CompileContext<'_>) -> Rule {
    context.matcher_owner = if raw.domain.is_some() || at.key("domain").is_reported() {
        MatcherOwner::DomainRule
    } else {
        MatcherOwner::Rule
    };
    let matcher = matching::compile_matcher(raw.matching.as_deref(), at.key("match"), context);
    let except = raw.except.as_deref().map_or_else(Vec::new, |list| {
        map_items(list, at.key("except"), |except, at| Some(matching::compile_except(except, at, context)))
    });
    let mut rejection = rejection::compile(raw, name, at, context);
    wait::set_status(raw, &mut rejection, at);
    let action = match raw.action.unwrap_or_default() {
        raw::Action::Limit if at.key("action").is_reported() => Action::Deny,
        raw::Action::Limit => Action::Limit(compile_limit_action(raw, &matcher, at, context)),
        raw::Action::Allow => Action::Allow,
        raw::Action::Deny => Action::Deny,
    };
    note_unconditional_action(raw, &matcher, at);
    context.matcher_owner = MatcherOwner::default();
    let domain = domain::read_name(raw, at, context);
    let rule = Rule { name: name.into(), matcher, except: except.into(), action, rejection, domain };
    domain::note_unavailable_attributes(&rule, at);
    check_applicability(raw, &rule, at, context);
    diversion::check_rule(raw, &rule, at);
    rule
}

/// Reports keys of the rule at `at` that have no meaning in it.
fn check_applicability(raw: &raw::Rule, rule: &Rule, at: At<'_>, context: &CompileContext<'_>) {
    let (throttle, is_shared) = match &rule.action {
        Action::Limit(limiting) => (limiting.throttle, limiting.shared().is_some()),
        Action::Allow | Action::Deny => (Throttle::default(), false),
    };
    let is_remote = remote_limit::remote_scope(raw).is_some();
    let is_limit = matches!(rule.action, Action::Limit(_));
    let is_limited = given_keys(limits::limit_keys(raw)).next().is_some()
        || nested_networks::parts_with_prefixes(raw).next().is_some();
    let is_streams_only = is_limit
        && (raw.counts_messages() || (raw.bandwidth.is_some() && !is_limited && raw.in_flight.is_none()));
    let checked = CheckedRule { rule: raw, throttle, is_streams_only };
    let decides = decisions::may_apply(rule, &context.deciding_listeners);
    if decides {
        decisions::check_attributes(rule, at);
    }
    let kinds = [
        (RuleKind::AllowOrDeny, raw.action.unwrap_or_default() != raw::Action::Limit),
        (RuleKind::Allow, raw.action == Some(raw::Action::Allow)),
        (RuleKind::Deny, raw.action == Some(raw::Action::Deny)),
        (RuleKind::StreamsOnly, is_streams_only),
        (
            RuleKind::WithoutLimit,
            is_limit && !is_limited && (raw.in_flight.is_some() || raw.bandwidth.is_some()),
        ),
        (RuleKind::Remote, is_limit && is_remote),
        (RuleKind::RemoteOnly, is_limit && remote_limit::needs_no_local_limit(raw)),
        (RuleKind::Shared, is_shared),
        (RuleKind::Domain, rule.domain.is_some()),
        (RuleKind::Descriptors, rule.domain.is_some() && rule.reads_descriptors()),
        (RuleKind::Decide, decides),
    ];
    for (kind, _) in kinds.into_iter().filter(|(_, applies)| *applies) {
        applicability::check(&checked, kind, at);
    }
}

fn compile_limit_action(
    raw: &raw::Rule,
    matcher: &Matcher,
    at: At<'_>,
    context: &mut CompileContext<'_>,
) -> LimitAction {
    let key = match &raw.key {
        Some(_) if streams::is_keyed_by_stream(raw) => streams::stream_key(raw, at),
        Some(key) => matching::compile_key(key, matcher, at, context),
        None => KeyTemplate::default(),
    };
    let throttle = throttle::compile(raw.throttle.as_deref(), at.key("throttle"));
    let nested = nested_networks::compile_limits(raw, &key, throttle, at);
    let mut limits = nested.unwrap_or_else(|| limits::compile(raw, throttle, at));
    windows::apply_to_limits(raw, &mut limits, at);
    stated_limit::apply_to_limits(raw, &mut limits, throttle, at, context);
    throttle::apply_to_limits(throttle, &mut limits, at.key("throttle"));
    let feedback = feedback::compile(raw, throttle, &mut limits, at);
    let cost_model = cost::compile(raw, &limits, at, context);
    let streams = streams::compile(raw, &mut limits, at);
    throttle::check_charge_timing(throttle, &cost_model, at.key("throttle"));
    let source = limit_scope::compile_source(raw, &key, at, context);
    let enforce = throttle::compile_enforced_share(raw, throttle, &key, at);
    let distinct = distinct::compile(raw, &key, &limits, at, context);
    let in_flight = in_flight::compile(raw.in_flight.as_deref(), at);
    let action = LimitAction {
        counter: counters::read_name(raw, at),
        key,
        distinct,
        on_missing: raw.on_missing.unwrap_or_default(),
        limits: limits.into(),
        streams,
        cost_model,
        throttle,
        wait: wait::compile(raw, at, context),
        enforced_share: enforce,
        in_flight: in_flight.max,
        adaptive: in_flight.adaptive,
        ban: throttle::compile_ban(raw.on_limit.as_deref(), at.key("on_limit")),
        divert_to: diversion::read_name(raw).map(Into::into),
        // Set when all rules are known.
        group_place: None,
        on_denied: raw.on_denied.unwrap_or_default(),
        on_change: raw.on_change.unwrap_or_default(),
        feedback,
        source,
        deferral: respond::compile(raw, at, context),
    };
    limit_scope::note_undivided_limits(&action, at.key("scope"), context);
    limit_scope::check_regions(&action, at, context);
    wait::check(raw, &action, at);
    stated_limit::check(raw, &action, at);
    action
}

/// Adds a note for an `allow` or `deny` of every request, because other rules never apply then.
fn note_unconditional_action(raw: &raw::Rule, matcher: &Matcher, at: At<'_>) {
    if !matcher.holds_for_all() || raw.except.is_some() {
        return;
    }
    match raw.action.unwrap_or_default() {
        raw::Action::Allow => at.key("action").note("exempts every request, so no other rule ever applies"),
        raw::Action::Deny => at.key("action").note("rejects every request that no other rule allows"),
        raw::Action::Limit => {}
    }
}
