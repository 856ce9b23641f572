//! Handling of requests above a limit, and the combinations of its settings.

use crate::at::At;
use crate::diagnostic::ValueError;
use crate::{defaults, parse, raw};
use weir_limiter::algorithm::Algorithm;
use weir_limiter::check_options::DelayPolicy;
use weir_limiter::percent::Percent;
use weir_limiter::quota::Ban;
use weir_limiter::reservation::ChargeTiming;
use weir_policy::rules::cost::CostModel;
use weir_policy::rules::enforced_share::EnforcedShare;
use weir_policy::rules::key::KeyTemplate;
use weir_policy::rules::rule::{RuleLimit, Throttle};

pub(super) fn compile(raw: Option<&raw::Throttle>, at: At<'_>) -> Throttle {
    match raw {
        None => Throttle::default(),
        Some(raw::Throttle::Words(words)) => at.ok(parse::throttle(&words.0)).unwrap_or_default(),
        Some(raw::Throttle::Map(map)) => compile_map(map, at),
    }
}

fn compile_map(map: &raw::ThrottleMap, at: At<'_>) -> Throttle {
    let soft = map.soft.as_ref().and_then(|soft| at.key("soft").ok(parse::margin(&soft.0)));
    let elastic = map.elastic.as_ref().and_then(|raw| at.key("elastic").ok(parse::elastic_factor(&raw.0)));
    let delay = map.delay.as_ref();
    let delay = delay.and_then(|delay| at.key("delay").ok(parse::delay(&delay.0)));
    if at.single_item().is_reported() {
        return Throttle::default();
    }
    let (first, other) = match (soft, elastic, &map.wait, &map.delay) {
        (Some(_), Some(_), ..) => ("soft", Some("elastic")),
        (_, Some(_), Some(_), _) => ("elastic", Some("wait")),
        (_, Some(_), _, Some(_)) => ("elastic", Some("delay")),
        (_, _, Some(_), Some(_)) => ("delay", Some("wait")),
        (Some(_), _, Some(_), _) => ("soft", Some("wait")),
        _ => ("", None),
    };
    if let Some(other) = other {
        let error = ValueError::new(format!("both `{first}` and `{other}`, expected one of them"));
        at.key(other).key_error(match (first, other) {
            ("delay", "wait") => error.with_hint("`delay` charges on arrival, `wait` when there is room"),
            ("soft", "wait") => error.with_hint("use `delay` with `soft`"),
            _ => error,
        });
    }
    if map.queue.is_some() && (delay.is_none() || soft.is_some()) {
        let error = ValueError::new("`queue` needs `delay`, without `soft`");
        let error = match &map.wait {
            Some(_) => error.with_hint("write it into `wait`, as in `wait: { max: 2s, queue: 100 }`"),
            None => error,
        };
        at.key("queue").key_error(error);
    }
    match (soft, elastic, delay) {
        (Some(margin), None, delay) => Throttle::Soft { margin, delay },
        (None, Some(factor), None) => Throttle::Elastic(factor),
        (None, None, Some(delay)) => Throttle::Delay(DelayPolicy::new(delay, map.queue)),
        _ if other.is_some() => Throttle::default(),
        _ if map.wait.is_some() => Throttle::Wait,
        _ => {
            let error = ValueError::new("missing, expected `soft`, `delay`, `wait` or `elastic`");
            at.error(error.with_hint("`throttle: hard` rejects requests over the limit"));
            Throttle::default()
        }
    }
}

/// Adapts the limits to the throttle: raises soft and elastic limits, and reports limits that cannot delay.
pub(super) fn apply_to_limits(throttle: Throttle, limits: &mut [RuleLimit], at: At<'_>) {
    for limit in limits {
        let algorithm = limit.quota.algorithm();
        match throttle {
            // The clock of this bucket restarts whenever the bucket is full, so a larger bucket may reject a
            // request that the configured one admits.
            Throttle::Soft { .. } | Throttle::Elastic(_) if algorithm == Algorithm::RefillBucket => {
                let error =
                    ValueError::new("a `token_bucket` with refills supports neither `soft` nor `elastic`");
                at.single_item().error(error.with_hint("use `limit` with `algorithm: token_bucket`"));
                return;
            }
            Throttle::Soft { margin, .. } => match limit.quota.with_margin(margin) {
                Some(raised) => limit.quota_with_margin = Some(raised),
                None => {
                    let written = limit.quota.limit();
                    at.single_item().error(format!("{margin} above {written} exceeds the maximum limit"));
                }
            },
            Throttle::Delay(_) if !algorithm.can_delay() => {
                let error = ValueError::new(format!("{algorithm} does not support `delay`"));
                at.single_item().error(error.with_hint("use gcra, token_bucket or leaky_bucket"));
                return;
            }
            Throttle::Elastic(factor) => match limit.quota.to_elastic(factor) {
                Ok((quota, costs)) => (limit.quota, limit.elastic_costs) = (quota, Some(costs)),
                Err(error) => {
                    let written = limit.quota.limit();
                    at.single_item().error(format!("{error}, got {written}"));
                }
            },
            Throttle::Hard | Throttle::Shadow | Throttle::Delay(_) | Throttle::Wait => {}
        }
    }
}

/// Reports `delay` for a charge that depends on the response: a delayed request is charged before it is
/// forwarded.
pub(super) fn check_charge_timing(throttle: Throttle, cost_model: &CostModel, at: At<'_>) {
    if matches!(throttle, Throttle::Delay(_)) && cost_model.charge_timing() == ChargeTiming::OnResponse {
        let error = ValueError::new("`delay` cannot be combined with charges that depend on the response");
        at.error(error.with_hint("remove `count` and `cost.response_header`"));
    }
}

/// Compiles the share of keys for which the rule with this `key` is enforced.
pub(super) fn compile_enforced_share(
    raw: &raw::Rule,
    throttle: Throttle,
    key: &KeyTemplate,
    at: At<'_>,
) -> EnforcedShare {
    let Some(raw) = raw.enforce.as_deref() else { return EnforcedShare::default() };
    let enforce_at = at.key("enforce");
    if throttle == Throttle::Shadow {
        let hint = "without `throttle`, `enforce: 10%` enforces the limit for a tenth of the keys";
        at.inapplicable_key("enforce", ValueError::new("with `throttle: shadow`").with_hint(hint));
    }
    let (share, seed) = match raw {
        raw::Enforce::Share(share) => (enforce_at.single_item().ok(parse::percentage(&share.0)), None),
        raw::Enforce::Map(map) => {
            let share = map.share.as_ref();
            (
                share.and_then(|share| enforce_at.key("share").ok(parse::percentage(&share.0))),
                map.seed.as_deref(),
            )
        }
    };
    if seed == Some("") {
        let error = ValueError::new("empty, expected text that selects the keys");
        enforce_at.key("seed").error(error.with_hint(format!("`{}` by default", defaults::ENFORCE_SEED)));
    }
    let Some(share) = share else { return EnforcedShare::default() };
    let enforce = EnforcedShare::new(share, seed.unwrap_or(defaults::ENFORCE_SEED));
    let is_partial = !enforce.is_for_all() && share != Percent::from_hundredths(0);
    if is_partial && key.0.is_empty() && !at.key("key").is_reported() {
        let requests = if enforce.includes(&[]) { "all requests" } else { "no request" };
        let note = ValueError::new(format!("the rule has a single key, so it is enforced for {requests}"));
        enforce_at.note(note.with_hint("`key: client_ip` gives each client its own key"));
    }
    enforce
}

pub(super) fn compile_ban(raw: Option<&raw::OnLimit>, at: At<'_>) -> Option<Ban> {
    let raw = raw?;
    let first = at.key("ban").nonzero_duration(raw.ban.as_ref());
    let max = at.key("ban_max").timeout(&raw.ban_max, defaults::MAX_BAN);
    if raw.ban.is_none() && raw.ban_max.is_some() && !at.key("ban").is_reported() {
        at.inapplicable_key("ban_max", "without `ban`");
    }
    let first = first?;
    if first > max {
        let (first, max_text) = (parse::format_duration(first), parse::format_duration(max));
        let error = ValueError::new(format!("longer than `ban_max`, {first} > {max_text}"));
        let hint =
            if raw.ban_max.is_none() { "set `ban_max`, which defaults to 24h" } else { "raise `ban_max`" };
        at.key("ban").error(error.with_hint(hint));
    }
    Some(Ban { initial_duration: first, max_duration: max })
}
