//! Limits that requests state, in place of the configured one.

use super::context::CompileContext;
use super::limits;
use super::matching::{compile_claim_part, compile_named_part};
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::{parse, raw};
use weir_limiter::quota::Limit;
use weir_limiter::request_limit::RequestLimit;
use weir_policy::rules::rule::{LimitAction, LimitSource, RuleLimit, Throttle};
use weir_policy::rules::stated_limit::{LimitValueSource, StatedLimit};

/// Adds to the limit of the rule at `at` how requests state it, if they do.
pub(super) fn apply_to_limits(
    raw: &raw::Rule,
    limits: &mut [RuleLimit],
    throttle: Throttle,
    at: At<'_>,
    context: &CompileContext<'_>,
) {
    let Some(raw::LimitValue::Stated(stated)) = &raw.limit else { return };
    let at = at.key("limit");
    let source = compile_source(stated.from.as_ref(), at.key("from"), context);
    let max = match &stated.max {
        None => {
            require_max(source.as_ref(), at.key("max"));
            None
        }
        Some(rate) => match at.key("max").ok(parse::rate(&rate.0)) {
            Some(max) => Some(max),
            None => return,
        },
    };
    let ([limit], Some(source)) = (limits, source) else { return };
    let queue_burst = || limits::default_queue_burst(limit.quota.algorithm(), throttle);
    let burst = raw.burst.or_else(queue_burst);
    if let Some(max) = max {
        check_max(max, limit, at.key("max"));
    }
    limit.stated = Some(Box::new(StatedLimit { source, max, burst }));
}

fn compile_source(
    raw: Option<&raw::RateSource>,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> Option<LimitValueSource> {
    match raw {
        None => {
            if !at.is_reported() {
                at.error("missing, expected `member`, or a map with `jwt` or `header`");
            }
            None
        }
        Some(raw::RateSource::Member(_)) => {
            if !context.has_plans {
                at.error("`member` needs `plans`, and there is none");
            }
            context.plans.clone().map(LimitValueSource::Member)
        }
        Some(raw::RateSource::Named(raw::NamedRateSource { jwt: Some(_), header: Some(_) })) => {
            if !at.is_reported() {
                at.key("header").key_error("both `jwt` and `header`, expected one of them");
            }
            None
        }
        Some(raw::RateSource::Named(raw::NamedRateSource { jwt: Some(claim), .. })) => {
            compile_claim_part(claim, at.key("jwt"), context).map(LimitValueSource::Attribute)
        }
        Some(raw::RateSource::Named(raw::NamedRateSource { header, .. })) => {
            if header.is_some() && !context.has_trusted_proxies {
                let note = "never applies, because headers that state a limit are believed only from trusted proxies";
                let hint = "add the peers that set it to `client_ip.trusted_proxies`";
                at.key("header").note(ValueError::new(note).with_hint(hint));
            }
            compile_named_part(header, &None, &None, at).map(LimitValueSource::Attribute)
        }
    }
}

/// Reports a missing maximum, unless the operator writes the values.
fn require_max(source: Option<&LimitValueSource>, at: At<'_>) {
    if matches!(source, Some(LimitValueSource::Attribute(_))) && !at.is_reported() {
        let error = ValueError::new("missing, the highest limit that a claim or a header may state");
        at.error(error.with_hint("such as `max: 1000000/min`"));
    }
}

/// Reports a maximum that cannot be counted, or that is below the default.
fn check_max(max: Limit, limit: &RuleLimit, at: At<'_>) {
    let default = limit.quota.limit();
    if !limit.quota.algorithm().refills_continuously() && max.period != default.period {
        let error = format!("a window cannot change its length, expected a rate per {}", default.period);
        at.error(ValueError::new(error).with_hint("gcra and the buckets count limits of any period"));
    } else if max.is_slower_than(default) {
        at.error(format!("below the default, {default}"));
    } else if limit.quota.with_request_limit(RequestLimit { limit: max, burst: max.count }).is_none() {
        at.error(format!("cannot be counted by {}, got {max}", limit.quota.algorithm()));
    }
}

/// Reports settings of the rule at `at` with which a limit that requests state cannot be counted.
pub(super) fn check(raw: &raw::Rule, action: &LimitAction, at: At<'_>) {
    if !matches!(raw.limit, Some(raw::LimitValue::Stated(_))) {
        return;
    }
    let throttle = match action.throttle {
        Throttle::Soft { .. } => Some("soft"),
        Throttle::Elastic(_) => Some("elastic"),
        Throttle::Wait => Some("wait"),
        Throttle::Hard | Throttle::Shadow | Throttle::Delay(_) => None,
    };
    if let Some(throttle) = throttle {
        let error = ValueError::new(format!("`limit.from` cannot be combined with `throttle: {throttle}`"));
        at.key("throttle").key_error(error.with_hint("use `hard`, `shadow` or `delay`"));
    }
    let others = [
        (
            "scope",
            action.source != LimitSource::Local,
            "other instances and services know one limit for each rule",
        ),
        ("counter", raw.counter.is_some(), "each rule would change the limit of the others"),
        ("feedback", action.feedback.is_some(), "the limit cannot follow a provider, too"),
        ("domain", raw.domain.is_some(), "calls from Envoy state no limits"),
        ("respond", raw.respond.is_some(), "stored calls are sent at one rate"),
    ];
    for (key, _, reason) in others.into_iter().filter(|(_, is_given, _)| *is_given) {
        at.key(key).key_error(format!("`limit.from` cannot be combined with `{key}`: {reason}"));
    }
}
