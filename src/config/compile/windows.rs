//! What only windows have: a time zone whose calendar they follow, and how finely they look back.

use crate::config::at::At;
use crate::config::parse;
use crate::config::problem::{Fault, Report};
use crate::config::raw;
use crate::limiter::quota::{Params, Unit};
use crate::limiter::zone::Zone;
use crate::rules::rule::RuleLimit;

/// Fits the limits of the rule at `at` to its `timezone` and `precision`.
pub(super) fn fit(raw: &raw::Rule, limits: &mut [RuleLimit], at: At<'_>, report: &mut Report<'_>) {
    let zone_at = at.key("timezone");
    let zone = raw.timezone.as_ref().and_then(|name| report.take(zone_at.same(), zone(&name.0)));
    // A limit that could not be read might have been the one.
    if limits.is_empty() || report.is_faulty(at.key("algorithm")) {
        return;
    }
    let follow_calendar = limits.iter().any(|limit| matches!(limit.quota.params(), Params::Calendar(_)));
    if raw.timezone.is_some() && !follow_calendar {
        let fault = Fault::new(format!("`timezone` has no meaning for {}", algorithm(limits)));
        report.key(at.key("timezone"), fault.hint("`algorithm: fixed_window` goes by a calendar"));
    }
    if raw.precision.is_some()
        && !limits.iter().any(|limit| matches!(limit.quota.params(), Params::SubWindows(_)))
    {
        let fault = Fault::new(format!("`precision` has no meaning for {}", algorithm(limits)));
        report.key(at.key("precision"), fault.hint("`algorithm: sliding_window` has sub-windows"));
    }
    let is_short = |limit: &RuleLimit| limit.quota.window().unit() < Unit::Day;
    if zone.is_some() && follow_calendar && limits.iter().all(is_short) {
        let note = "changes nothing, windows of hours and less are the same in every time zone";
        report.note(zone_at, note);
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

fn zone(name: &str) -> Result<Zone, Fault> {
    Zone::of(&parse::zone(name)?).ok_or_else(|| Fault::new(format!("too many time zones, got {name}")))
}

/// What to call the algorithms of limits of which none is the right one.
fn algorithm(limits: &[RuleLimit]) -> String {
    match limits {
        [limit] => limit.quota.algorithm().to_string(),
        _ => "any of `limits`".to_owned(),
    }
}
