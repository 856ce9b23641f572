//! Settings of window algorithms: the time zone of calendar windows, and the precision of sliding windows.

use crate::at::At;
use crate::diagnostic::ValueError;
use crate::parse;
use crate::raw;
use weir_limiter::quota::{Params, TimeUnit};
use weir_limiter::zone::Zone;
use weir_policy::rules::rule::RuleLimit;

/// Applies `timezone` and `precision` of the rule at `at` to its limits.
pub(super) fn apply_to_limits(raw: &raw::Rule, limits: &mut [RuleLimit], at: At<'_>) {
    let zone_at = at.key("timezone");
    let zone = raw.timezone.as_ref().and_then(|name| zone_at.single_item().ok(register_zone(&name.0)));
    // The settings may belong to a limit or an algorithm that could not be read.
    if limits.is_empty() || at.key("algorithm").is_reported() {
        return;
    }
    let uses_calendar = limits.iter().any(|limit| matches!(limit.quota.params(), Params::Calendar(_)));
    if raw.timezone.is_some() && !uses_calendar {
        let hint = "only `algorithm: fixed_window` uses a time zone";
        at.inapplicable_key("timezone", for_algorithms(limits).with_hint(hint));
    }
    if raw.precision.is_some()
        && !limits.iter().any(|limit| matches!(limit.quota.params(), Params::SubWindows(_)))
    {
        let hint = "only `algorithm: sliding_window` has sub-windows";
        at.inapplicable_key("precision", for_algorithms(limits).with_hint(hint));
    }
    let is_short = |limit: &RuleLimit| limit.quota.window().unit() < TimeUnit::Day;
    if zone.is_some() && uses_calendar && limits.iter().all(is_short) {
        let note = "has no effect, windows of hours and less are the same in every time zone";
        zone_at.note(note);
    }
    for limit in limits {
        let fitted = match limit.quota.params() {
            Params::Calendar(_) => zone.and_then(|zone| limit.quota.in_zone(zone)),
            Params::SubWindows(_) => raw.precision.and_then(|windows| limit.quota.with_precision(windows)),
            Params::None => None,
        };
        limit.quota = fitted.unwrap_or(limit.quota);
    }
}

fn register_zone(name: &str) -> Result<Zone, ValueError> {
    Zone::register(&parse::time_zone(name)?)
        .ok_or_else(|| ValueError::new(format!("too many time zones, got {name}")))
}

/// Names the algorithms of limits to which a setting does not apply.
fn for_algorithms(limits: &[RuleLimit]) -> ValueError {
    match limits {
        [limit] => ValueError::new(format!("for {}", limit.quota.algorithm())),
        _ => ValueError::new("for any of `limits`"),
    }
}
