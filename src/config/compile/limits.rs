//! Limits of a rule: rates with their bursts and algorithms.

use std::num::NonZeroU32;

use super::{each, given, remote_limit};
use crate::config::at::At;
use crate::config::parse::{self, word};
use crate::config::problem::{Fault, Report};
use crate::config::raw;
use crate::limiter::algorithm::Algorithm;
use crate::limiter::quota::{Limit, MAX_LOGGED_UNITS, Quota, QuotaError, TimeUnit};
use crate::rules::rule::{RuleLimit, Throttle};

/// Minimum period for the note on what GCRA and the token buckets admit in the first period. `100/min` may be
/// meant as a quota, but admits up to 199 requests in the first minute.
const SURPRISING: TimeUnit = TimeUnit::Minute;

/// A limit and the positions of its parts.
struct Entry<'a> {
    written: Written<'a>,
    at: At<'a>,
    burst: Option<NonZeroU32>,
    burst_at: At<'a>,
    algorithm: Algorithm,
}

/// The notation of a limit.
#[derive(Clone, Copy)]
enum Written<'a> {
    /// Units per period, such as `100/s`.
    Rate(&'a str),
    /// A number of units that is refilled at once, at an interval.
    Bucket(&'a raw::TokenBucket),
}

/// Compiles the limits of the rule at `at`, which has the given `throttle`.
pub(super) fn compile(
    raw: &raw::Rule,
    throttle: Throttle,
    at: At<'_>,
    report: &mut Report<'_>,
) -> Vec<RuleLimit> {
    if let Some(bucket) = &raw.token_bucket {
        return bucket_of(raw, bucket, at, report).into_iter().collect();
    }
    match (&raw.limit, &raw.limits) {
        (None, None) if written_keys(raw).iter().any(|(key, _)| report.is_faulty(at.key(key))) => Vec::new(),
        (None, None) if remote_limit::needs_no_limit(raw) || report.is_faulty(at.key("scope")) => Vec::new(),
        (None, None) if raw.in_flight.is_some() || report.is_faulty(at.key("in_flight")) => Vec::new(),
        (None, None) if remote_limit::of(raw).is_some() => {
            let missing = "missing, `on_error: local` needs `limit` or `limits`";
            let hint = "they apply if the rate limit service does not respond";
            report.value(at.key("scope"), Fault::new(missing).hint(hint));
            Vec::new()
        }
        (None, None) => {
            let missing =
                "missing, a rule that limits needs `limit`, `limits`, `token_bucket` or `in_flight`";
            report.value(at.key("limit"), Fault::new(missing).hint("`action: allow` or `deny` needs none"));
            Vec::new()
        }
        (Some(_), Some(_)) => {
            report.key(at.key("limits"), "both `limit` and `limits`, expected one of them");
            Vec::new()
        }
        (Some(rate), None) => {
            let algorithm = raw.algorithm.unwrap_or_default();
            let entry = Entry {
                written: Written::Rate(&rate.0),
                at: at.key("limit"),
                burst: raw.burst.or_else(|| queued(algorithm, throttle)),
                burst_at: at.key("burst"),
                algorithm,
            };
            quota(&entry, report).into_iter().collect()
        }
        (None, Some(entries)) => several(entries, at.key("limits"), (raw, throttle), at, report),
    }
}

/// Compiles the bucket that is the only limit of the rule at `at`.
fn bucket_of(
    raw: &raw::Rule,
    bucket: &raw::TokenBucket,
    at: At<'_>,
    report: &mut Report<'_>,
) -> Option<RuleLimit> {
    for other in given([("limit", raw.limit.is_some()), ("limits", raw.limits.is_some())]) {
        let fault = Fault::new(format!("both `{other}` and `token_bucket`, expected one of them"));
        report.key(at.key(other), fault.hint("use `limits` for several, each a rate or a `token_bucket`"));
    }
    only_algorithm(raw.algorithm.is_some(), at, report);
    let entry = Entry {
        written: Written::Bucket(bucket),
        at: at.key("token_bucket"),
        burst: raw.burst,
        burst_at: at.key("burst"),
        algorithm: Algorithm::RefillBucket,
    };
    quota(&entry, report)
}

/// Reports `algorithm` next to `token_bucket`, which is an algorithm itself.
fn only_algorithm(is_given: bool, at: At<'_>, report: &mut Report<'_>) {
    if is_given {
        report.key(at.key("algorithm"), "`algorithm` has no meaning with `token_bucket`");
    }
}

/// Returns the keys that define a rule's limits, and whether they are given.
pub(super) fn written_keys(raw: &raw::Rule) -> [(&'static str, bool); 3] {
    [
        ("limit", raw.limit.is_some()),
        ("limits", raw.limits.is_some()),
        ("token_bucket", raw.token_bucket.is_some()),
    ]
}

/// Compiles the entries at `list` of the rule at `at`. Entries without a burst or an algorithm inherit the
/// rule's, the burst only if their algorithm has one.
pub(super) fn several(
    entries: &raw::OneOrMany<raw::Limit>,
    list: At<'_>,
    (rule, throttle): (&raw::Rule, Throttle),
    at: At<'_>,
    report: &mut Report<'_>,
) -> Vec<RuleLimit> {
    let inherited = rule.algorithm.unwrap_or_default();
    let mut takes_burst = false;
    let limits = each(entries, list, |raw, entry_at| {
        let map = match raw {
            raw::Limit::Rate(_) => None,
            raw::Limit::Map(map) => Some(map),
        };
        let (written, name) = written(raw, entry_at, report)?;
        let algorithm = match written {
            Written::Bucket(_) => Algorithm::RefillBucket,
            Written::Rate(_) => map.and_then(|map| map.algorithm).unwrap_or(inherited),
        };
        let own = map.and_then(|map| map.burst);
        let from_rule = rule.burst.filter(|_| own.is_none() && algorithm.has_burst());
        takes_burst |= from_rule.is_some();
        let entry = Entry {
            written,
            at: name.map_or_else(|| entry_at.same(), |name| entry_at.key(name)),
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

/// Returns the notation of an entry of `limits`, and the key that contains it, if any.
fn written<'a>(
    raw: &'a raw::Limit,
    at: At<'_>,
    report: &mut Report<'_>,
) -> Option<(Written<'a>, Option<&'static str>)> {
    let map = match raw {
        raw::Limit::Rate(rate) => return Some((Written::Rate(&rate.0), None)),
        raw::Limit::Map(map) => map,
    };
    match (&map.limit, &map.token_bucket) {
        (Some(_), Some(_)) => {
            report.key(at.key("token_bucket"), "both `limit` and `token_bucket`, expected one of them");
            None
        }
        (None, None) => {
            let is_faulty = report.is_faulty(at.key("limit")) || report.is_faulty(at.key("token_bucket"));
            if !is_faulty {
                report.value(at.key("limit"), "missing, expected `limit` or `token_bucket`");
            }
            None
        }
        (Some(rate), None) => Some((Written::Rate(&rate.0), Some("limit"))),
        (None, Some(bucket)) => {
            only_algorithm(map.algorithm.is_some(), at, report);
            Some((Written::Bucket(bucket), Some("token_bucket")))
        }
    }
}

/// Converts a bucket's refills to a rate.
fn refills(bucket: &raw::TokenBucket, at: At<'_>, report: &mut Report<'_>) -> Option<Limit> {
    let every_at = at.key("every");
    let every = report.take(every_at.same(), parse::duration(&bucket.every.as_ref()?.0))?;
    match parse::whole_period(every) {
        Some(period) => Some(Limit::new(bucket.refill?, period)),
        None => {
            report.value(every_at, "must be at least 1ms, got 0");
            None
        }
    }
}

fn quota(entry: &Entry<'_>, report: &mut Report<'_>) -> Option<RuleLimit> {
    let limit = match entry.written {
        Written::Rate(rate) => report.take(entry.at.same(), parse::rate(rate))?,
        Written::Bucket(bucket) => refills(bucket, entry.at.same(), report)?,
    };
    match Quota::new(entry.algorithm, limit, entry.burst) {
        Ok(quota) => {
            note_first_period(&quota, entry.at.same(), report);
            Some(quota.into())
        }
        Err(error) => {
            let fault = Fault::new(error.to_string());
            match (error, entry.burst) {
                (QuotaError::NoBurst(_), _) => report.key(entry.burst_at, fault),
                (QuotaError::TooSlow, Some(burst)) => {
                    report.value(entry.burst_at, format!("{error}, got {burst} at {limit}"));
                }
                (QuotaError::TooSlow, None) => report.value(entry.at.same(), format!("{error}, got {limit}")),
                (QuotaError::TooManyToLog(_), _) => {
                    let hint = "`algorithm: sliding_window` with `precision` stores only sums";
                    report.value(entry.at.same(), fault.hint(hint));
                }
                (QuotaError::TooFast(_) | QuotaError::TooLargeForElastic(_), _) => {
                    report.value(entry.at.same(), fault)
                }
                (QuotaError::RefillAboveBurst(_), _) => report.value(entry.at.key("refill"), fault),
            }
            None
        }
    }
}

/// Adds a note if more than the limit's count may be admitted in the first period: the burst, and units that
/// are returned one by one before the period ends.
fn note_first_period(quota: &Quota, at: At<'_>, report: &mut Report<'_>) {
    let Limit { count, period } = quota.limit();
    let most = u64::from(count.get()).saturating_add(u64::from(quota.burst().get())).saturating_sub(1);
    if !quota.algorithm().refills_continuously()
        || period.nanos() < SURPRISING.nanos()
        || most <= count.get().into()
    {
        return;
    }
    let length = match period.count().get() {
        1 => word(period.unit()).to_owned(),
        several => format!("{several} {}s", word(period.unit())),
    };
    let note = format!("{} admits burst plus refill: up to {most} in the first {length}", quota.algorithm());
    let log = if count.get() <= MAX_LOGGED_UNITS { ", `sliding_log` in any" } else { "" };
    let hint = format!(
        "`algorithm: fixed_window` admits at most {count} in each {length} of the clock{log}, \
         `burst: 1` spaces them evenly"
    );
    report.note(at, Fault::new(note).hint(hint));
}

/// Reports a cost above the burst, because such a request could never be admitted.
pub(super) fn check_cost(cost: u32, limits: &[RuleLimit], at: At<'_>, report: &mut Report<'_>) {
    let least = limits.iter().map(|limit| limit.quota_with_margin.unwrap_or(limit.quota).burst().get()).min();
    if let Some(least) = least.filter(|least| cost > *least) {
        report.value(
            at,
            format!("no request would ever be admitted: at most {least} units at once, got {cost}"),
        );
    }
}

/// Returns the default burst of a queue: one, so that requests leave evenly spaced. `None` if the limit is
/// not a queue.
fn queued(algorithm: Algorithm, throttle: Throttle) -> Option<NonZeroU32> {
    let is_queue = algorithm == Algorithm::LeakyBucket && matches!(throttle, Throttle::Delay(_));
    is_queue.then_some(NonZeroU32::MIN)
}
