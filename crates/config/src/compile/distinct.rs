//! Values of which a rule counts different ones, in place of requests (`distinct`).

use super::context::CompileContext;
use super::{given_keys, map_items, matching, nested_networks};
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::quoting::backquoted;
use crate::raw;
use weir_limiter::algorithm::Algorithm;
use weir_limiter::check_options::OnDenied;
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::key::KeyTemplate;
use weir_policy::rules::rule::RuleLimit;

/// Compiles `distinct` of the rule at `rule`, which has this key and these limits. Returns the key followed by the value.
pub(super) fn compile(
    raw: &raw::Rule,
    key: &KeyTemplate,
    limits: &[RuleLimit],
    rule: At<'_>,
    context: &CompileContext<'_>,
) -> Option<KeyTemplate> {
    let list = raw.distinct.as_deref()?;
    let at = rule.key("distinct");
    let mut parts = key.0.to_vec();
    let before = parts.len();
    map_items(list, at, |raw, at| {
        let part = matching::compile_key_part(raw, at, context)?;
        if part == Attribute::Route {
            at.error(ValueError::new("`route` is no value of a request").with_hint("use `path`"));
        } else if key.0.contains(&part) {
            let part = backquoted(&part.to_string());
            at.error(format!("{part} is a part of `key`, so all requests of a key have the same value"));
        } else if parts.contains(&part) {
            at.error(format!("duplicate part `{part}`"));
        }
        parts.push(part);
        Some(())
    });
    nested_networks::report_limits(list, at, "a value has no limits of its own");
    check_combination(raw, rule);
    check_limit(limits, rule);
    if parts.len() == before && !at.is_reported() {
        at.error(ValueError::new("empty list").with_hint("such as `distinct: { json: username }`"));
    }
    Some(KeyTemplate(parts.into()))
}

/// Requires one limit with a period, in which a value is counted once.
fn check_limit(limits: &[RuleLimit], rule: At<'_>) {
    let at = rule.key("distinct");
    if limits.len() > 1 {
        let error = ValueError::new("several limits, expected one");
        at.key_error(error.with_hint("use a rule for each limit, so that each has a period for its values"));
    }
    if limits.iter().any(|limit| limit.quota.algorithm() == Algorithm::RefillBucket) {
        let error = ValueError::new("`token_bucket` has no period in which a value is counted once");
        at.key_error(error.with_hint("use `limit`, such as `20/h`"));
    }
}

/// Reports keys that have no meaning beside `distinct`.
fn check_combination(raw: &raw::Rule, rule: At<'_>) {
    let throttle = raw.throttle.as_deref().is_some_and(|throttle| match throttle {
        raw::Throttle::Words(words) => !matches!(words.0.trim(), "hard" | "shadow"),
        raw::Throttle::Map(_) => true,
    });
    let charges_denied = raw.on_denied == Some(OnDenied::Charge);
    let diverts = raw.on_limit.as_deref().is_some_and(|on_limit| on_limit.upstream.is_some());
    let states_limit = matches!(raw.limit, Some(raw::LimitValue::Stated(_)));
    let keys = [
        ("cost", raw.cost.is_some()),
        ("feedback", raw.feedback.is_some()),
        ("in_flight", raw.in_flight.is_some()),
        ("on_denied", charges_denied),
        ("respond", raw.respond.is_some()),
        ("throttle", throttle),
    ];
    for key in given_keys(keys) {
        let error = ValueError::new("cannot be combined with `distinct`");
        rule.key(key).key_error(match key {
            "cost" => error.with_hint("each different value costs 1"),
            "throttle" => error.with_hint("`hard` and `shadow` can"),
            _ => error.with_hint("use a separate rule"),
        });
    }
    if diverts {
        rule.key("on_limit").key("upstream").key_error("cannot be combined with `distinct`");
    }
    if states_limit {
        rule.key("limit").error("a limit that requests state cannot be combined with `distinct`");
    }
    if nested_networks::parts_with_prefixes(raw).next().is_some() {
        rule.key("distinct").key_error("cannot be combined with `client_ip: { prefixes: … }`");
    }
}
