//! The limits of a rule: rates with their bursts and algorithms.

use std::num::NonZeroU32;

use super::{each, elsewhere};
use crate::config::at::At;
use crate::config::parse::{self, word};
use crate::config::problem::{Fault, Report};
use crate::config::raw;
use crate::limiter::algorithm::Algorithm;
use crate::limiter::quota::{Limit, Quota, QuotaError, Unit};
use crate::rules::rule::{RuleLimit, Throttle};

/// From this period on, what gcra and the buckets admit in the first one surprises people: who writes
/// `1000/d` means a quota, and gets up to 2000 on the first day.
const SURPRISING: Unit = Unit::Hour;

/// One limit and where its parts stand.
struct Entry<'a> {
    rate: &'a str,
    rate_at: At<'a>,
    burst: Option<NonZeroU32>,
    burst_at: At<'a>,
    algorithm: Algorithm,
}

/// The limits of the rule at `at`, which `throttle` is for.
pub(super) fn compile(
    raw: &raw::Rule,
    throttle: Throttle,
    at: At<'_>,
    report: &mut Report<'_>,
) -> Vec<RuleLimit> {
    match (&raw.limit, &raw.limits) {
        (None, None) if report.is_faulty(at.key("limit")) || report.is_faulty(at.key("limits")) => Vec::new(),
        (None, None) if elsewhere::needs_no_limit(raw) || report.is_faulty(at.key("scope")) => Vec::new(),
        (None, None) if raw.in_flight.is_some() || report.is_faulty(at.key("in_flight")) => Vec::new(),
        (None, None) if matches!(raw.scope, Some(raw::Scope::Elsewhere(_))) => {
            let missing = "missing, `on_error: local` needs `limit` or `limits`";
            let hint = "they hold where the other service does not answer";
            report.value(at.key("scope"), Fault::new(missing).hint(hint));
            Vec::new()
        }
        (None, None) => {
            let missing = "missing, a rule that limits needs `limit`, `limits` or `in_flight`";
            report.value(at.key("limit"), Fault::new(missing).hint("`action: allow` or `deny` needs none"));
            Vec::new()
        }
        (Some(_), Some(_)) => {
            report.key(at.key("limits"), "both `limit` and `limits`, expected one of them");
            Vec::new()
        }
        (Some(rate), None) => {
            let algorithm = algorithm(raw.algorithm.as_ref()).unwrap_or_default();
            let entry = Entry {
                rate: &rate.0,
                rate_at: at.key("limit"),
                burst: burst(raw.burst).or_else(|| queued(algorithm, throttle)),
                burst_at: at.key("burst"),
                algorithm,
            };
            quota(&entry, report).into_iter().collect()
        }
        (None, Some(entries)) => several(entries, at.key("limits"), (raw, throttle), at, report),
    }
}

/// The keys that say more of a rule's limits, and whether they are there.
pub(super) fn particulars(raw: &raw::Rule) -> [(&'static str, bool); 5] {
    [
        ("burst", raw.burst.is_some()),
        ("algorithm", raw.algorithm.is_some()),
        ("timezone", raw.timezone.is_some()),
        ("precision", raw.precision.is_some()),
        ("on_change", raw.on_change.is_some()),
    ]
}

/// The entries of the list at `list`, of the rule at `at`. The rule's own burst and algorithm hold for entries that say nothing, the burst where it has a meaning.
pub(super) fn several(
    entries: &raw::OneOrMany<raw::Limit>,
    list: At<'_>,
    (rule, throttle): (&raw::Rule, Throttle),
    at: At<'_>,
    report: &mut Report<'_>,
) -> Vec<RuleLimit> {
    let inherited = algorithm(rule.algorithm.as_ref()).unwrap_or_default();
    let mut takes_burst = false;
    let limits = each(entries, list, |raw, entry_at| {
        let map = match raw {
            raw::Limit::Rate(_) => None,
            raw::Limit::Map(map) => Some(map),
        };
        let algorithm = map.and_then(|map| algorithm(map.algorithm.as_ref())).unwrap_or(inherited);
        let own = map.and_then(|map| burst(map.burst));
        let from_rule = burst(rule.burst).filter(|_| own.is_none() && algorithm.has_burst());
        takes_burst |= from_rule.is_some();
        let entry = Entry {
            rate: match raw {
                raw::Limit::Rate(rate) => &rate.0,
                raw::Limit::Map(map) => &map.limit.as_ref()?.0,
            },
            rate_at: if map.is_some() { entry_at.key("limit") } else { entry_at.same() },
            burst: own.or(from_rule).or_else(|| queued(algorithm, throttle)),
            burst_at: if own.is_some() { entry_at.key("burst") } else { at.key("burst") },
            algorithm,
        };
        quota(&entry, report)
    });
    if rule.burst.is_some() && !takes_burst {
        report.key(at.key("burst"), "`burst` has no meaning for any of `limits`");
    }
    limits
}

fn quota(entry: &Entry<'_>, report: &mut Report<'_>) -> Option<RuleLimit> {
    let limit = report.take(entry.rate_at, parse::rate(entry.rate))?;
    match Quota::new(entry.algorithm, limit, entry.burst) {
        Ok(quota) => {
            note_first_period(&quota, entry.rate_at, report);
            Some(quota.into())
        }
        Err(error) => {
            let fault = match (error, entry.burst) {
                (QuotaError::TooSlow, Some(burst)) => Fault::new(format!("{error}, got {burst} at {limit}")),
                (QuotaError::TooSlow, None) => Fault::new(format!("{error}, got {limit}")),
                (QuotaError::TooMany(_), _) => Fault::new(error.to_string())
                    .hint("`algorithm: sliding_window` with `precision` remembers sums"),
                (QuotaError::NoBurst(_) | QuotaError::TooFast(_) | QuotaError::NoShares(_), _) => {
                    Fault::new(error.to_string())
                }
            };
            match error {
                QuotaError::NoBurst(_) => report.key(entry.burst_at, fault),
                QuotaError::TooSlow if entry.burst.is_some() => report.value(entry.burst_at, fault),
                QuotaError::TooSlow
                | QuotaError::TooMany(_)
                | QuotaError::TooFast(_)
                | QuotaError::NoShares(_) => report.value(entry.rate_at, fault),
            }
            None
        }
    }
}

fn note_first_period(quota: &Quota, at: At<'_>, report: &mut Report<'_>) {
    let Limit { count, period } = quota.limit();
    if !quota.algorithm().has_burst() || period.nanos() < SURPRISING.nanos() {
        return;
    }
    let most = u64::from(count.get()).saturating_add(u64::from(quota.burst().get()));
    let length = match period.count().get() {
        1 => word(period.unit()).to_owned(),
        several => format!("{several} {}s", word(period.unit())),
    };
    let note = format!("{} admits burst plus refill: up to {most} in the first {length}", quota.algorithm());
    report
        .note(at, Fault::new(note).hint(format!("`algorithm: fixed_window` never admits more than {count}")));
}

/// A request that costs more than the burst can never pass, however long it waits.
pub(super) fn check_cost(cost: u32, limits: &[RuleLimit], at: At<'_>, report: &mut Report<'_>) {
    let least = limits.iter().map(|limit| limit.raised.unwrap_or(limit.quota).burst().get()).min();
    if let Some(least) = least.filter(|least| cost > *least) {
        report.value(
            at,
            format!("no request could ever pass, at most {least} are admitted at once, got {cost}"),
        );
    }
}

/// What a queue lets pass at once unless it is told: one, so that requests leave evenly spaced.
fn queued(algorithm: Algorithm, throttle: Throttle) -> Option<NonZeroU32> {
    let is_queue = algorithm == Algorithm::LeakyBucket && matches!(throttle, Throttle::Delay(_));
    is_queue.then_some(NonZeroU32::MIN)
}

fn algorithm(raw: Option<&raw::Algorithm>) -> Option<Algorithm> {
    raw.map(raw::Algorithm::counting)
}

/// The schema lets only numbers through that fit.
fn burst(raw: Option<u64>) -> Option<NonZeroU32> {
    raw.and_then(|burst| u32::try_from(burst).ok()).and_then(NonZeroU32::new)
}
