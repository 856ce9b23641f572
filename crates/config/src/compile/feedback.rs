//! Limits that follow a provider.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::cost::parse_statuses_or_word;
use super::{map_items, nested_networks};
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::quoting::quoted;
use crate::{defaults, parse, raw};
use weir_limiter::feedback::LimitShare;
use weir_limiter::feedback::controller::ControllerSettings;
use weir_limiter::percent::Percent;
use weir_policy::rules::cost::Statuses;
use weir_policy::rules::feedback::Feedback;
use weir_policy::rules::grpc::{GrpcStatus, GrpcStatuses};
use weir_policy::rules::rule::{RuleLimit, Throttle};

const MIN_BOUNDS: RangeInclusive<Percent> = bounds(100, 10_000);
const DECREASE_BOUNDS: RangeInclusive<Percent> = bounds(100, 9000);
const INCREASE_BOUNDS: RangeInclusive<Percent> = bounds(10, 10_000);

/// Returns bounds in hundredths of a per cent.
const fn bounds(min: u32, max: u32) -> RangeInclusive<Percent> {
    Percent::from_hundredths(min)..=Percent::from_hundredths(max)
}

/// Compiles `feedback` of the rule at `rule_at`, and makes its limits count in finer units.
pub(super) fn compile(
    rule: &raw::Rule,
    throttle: Throttle,
    limits: &mut [RuleLimit],
    rule_at: At<'_>,
) -> Option<Feedback> {
    let at = rule_at.key("feedback");
    let default = raw::FeedbackMap::default();
    let map = match rule.feedback.as_deref()? {
        raw::Feedback::Switch(false) => return None,
        raw::Feedback::Switch(true) => &default,
        raw::Feedback::Map(map) => map,
    };
    check_combination(rule, throttle, at);
    let periods = || limits.iter().map(|limit| limit.quota.limit().period.duration());
    let (shortest, longest) = (periods().min().unwrap_or_default(), periods().max().unwrap_or_default());
    let feedback = Feedback { period: longest, ..compile_map(map, shortest, at) };
    for limit in limits {
        match limit.quota.to_following() {
            Some(quota) => limit.quota = quota,
            None => {
                let error = format!("too large for `feedback`, got {}", limit.quota.limit());
                at.single_item().error(error);
            }
        }
    }
    Some(feedback)
}

/// Reports other settings of the rule under which a limit cannot follow.
fn check_combination(rule: &raw::Rule, throttle: Throttle, at: At<'_>) {
    let other = match throttle {
        Throttle::Soft { .. } => Some("soft"),
        Throttle::Elastic(_) => Some("elastic"),
        Throttle::Hard | Throttle::Shadow | Throttle::Delay(_) | Throttle::Wait => None,
    };
    if let Some(other) = other {
        let error = ValueError::new(format!("`feedback` cannot be combined with `throttle: {other}`"));
        at.key_error(error.with_hint("use `hard`, `delay` or `wait`"));
    }
    if nested_networks::parts_with_prefixes(rule).next().is_some() {
        let error = ValueError::new("`feedback` cannot be combined with `prefixes`");
        at.key_error(error.with_hint("use one rule for each prefix"));
    }
}

fn compile_map(map: &raw::FeedbackMap, period: Duration, at: At<'_>) -> Feedback {
    let percent = |raw: &Option<raw::Percentage>, key, range, default| {
        let given = raw.as_ref().and_then(|raw| at.key(key).ok(read_percentage(&raw.0, &range)));
        given.unwrap_or(default)
    };
    let min = percent(&map.min, "min", MIN_BOUNDS, defaults::FEEDBACK_MIN);
    let decrease = percent(&map.decrease, "decrease", DECREASE_BOUNDS, defaults::FEEDBACK_DECREASE);
    let increase = percent(&map.increase, "increase", INCREASE_BOUNDS, defaults::FEEDBACK_INCREASE);
    let (statuses, calls) = match &map.rejections {
        Some(raw) => compile_rejections(raw, at.key("rejections")),
        None => ([429..=429].into_iter().collect(), [GrpcStatus::RESOURCE_EXHAUSTED].into_iter().collect()),
    };
    Feedback {
        controller: ControllerSettings::new(LimitShare::from_percent(min), decrease, increase, period),
        statuses,
        calls,
        period,
        reads_headers: map.headers.unwrap_or(true),
    }
}

fn read_percentage(text: &str, bounds: &RangeInclusive<Percent>) -> Result<Percent, ValueError> {
    match parse::percentage(text)? {
        given if bounds.contains(&given) => Ok(given),
        _ => {
            let (min, max) = (bounds.start(), bounds.end());
            Err(ValueError::new(format!("expected {min} to {max}, got {}", quoted(text))))
        }
    }
}

fn compile_rejections(raw: &raw::OneOrMany<raw::OutcomePattern>, at: At<'_>) -> (Statuses, GrpcStatuses) {
    let mut calls = Vec::new();
    let statuses = map_items(raw, at, |raw, at| {
        let text = match raw {
            raw::OutcomePattern::Code(code) => code.to_string(),
            raw::OutcomePattern::Pattern(text) => text.clone(),
        };
        if let Some(call) = GrpcStatus::from_name(&text) {
            calls.push(call);
            return None;
        }
        let expected = "status codes such as `429`, or gRPC statuses such as `resource_exhausted`";
        at.ok(parse_statuses_or_word(GrpcStatus::names(), expected, &text))
    });
    (statuses.into_iter().collect(), calls.into_iter().collect())
}
