//! Limits of a rule: rates with their bursts and algorithms.

use std::num::NonZeroU32;

use super::{given_keys, map_items, remote_limit};
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::parse;
use crate::raw;
use weir_limiter::algorithm::Algorithm;
use weir_limiter::quota::{Limit, MAX_LOGGED_UNITS, Quota, QuotaError, TimeUnit};
use weir_policy::rules::rule::{RuleLimit, Throttle};

/// Minimum period for the note on what GCRA and the token buckets admit in the first period. `100/min` may be
/// meant as a quota, but admits up to 199 requests in the first minute.
const MIN_NOTED_PERIOD: TimeUnit = TimeUnit::Minute;

/// A limit and the positions of its parts.
struct LimitEntry<'a> {
    notation: LimitNotation<'a>,
    at: At<'a>,
    burst: Option<NonZeroU32>,
    burst_at: At<'a>,
    algorithm: Algorithm,
}

/// The notation of a limit.
#[derive(Clone, Copy)]
enum LimitNotation<'a> {
    /// Units per period, such as `100/s`.
    Rate(&'a str),
    /// A number of units that is refilled at once, at an interval.
    Bucket(&'a raw::TokenBucket),
}

/// Compiles the limits of the rule at `at`, which has the given `throttle`.
pub(super) fn compile(raw: &raw::Rule, throttle: Throttle, at: At<'_>) -> Vec<RuleLimit> {
    if let Some(bucket) = &raw.token_bucket {
        return compile_token_bucket(raw, bucket, at).into_iter().collect();
    }
    match (&raw.limit, &raw.limits) {
        (None, None) if limit_keys(raw).iter().any(|(key, _)| at.key(key).is_reported()) => Vec::new(),
        (None, None) if remote_limit::needs_no_local_limit(raw) || at.key("scope").is_reported() => {
            Vec::new()
        }
        (None, None) if has_other_limit(raw, at) => Vec::new(),
        (None, None) if remote_limit::remote_scope(raw).is_some() => {
            let missing = "missing, `on_error: local` needs `limit` or `limits`";
            let hint = "they apply if the rate limit service does not respond";
            at.key("scope").error(ValueError::new(missing).with_hint(hint));
            Vec::new()
        }
        (None, None) => {
            let missing = "missing, a rule that limits needs `limit`, `limits`, `token_bucket`, `in_flight` or `bandwidth`";
            at.key("limit").error(ValueError::new(missing).with_hint("`action: allow` or `deny` needs none"));
            Vec::new()
        }
        (Some(_), Some(_)) => {
            at.key("limits").key_error("both `limit` and `limits`, expected one of them");
            Vec::new()
        }
        (Some(value), None) => {
            let algorithm = raw.algorithm.unwrap_or_default();
            let limit_at = at.key("limit");
            let Some((rate, key)) = configured_rate(value, limit_at) else { return Vec::new() };
            let entry = LimitEntry {
                notation: LimitNotation::Rate(rate),
                at: key.map_or(limit_at, |key| limit_at.key(key)),
                burst: raw.burst.or_else(|| default_queue_burst(algorithm, throttle)),
                burst_at: at.key("burst"),
                algorithm,
            };
            compile_quota(&entry).into_iter().collect()
        }
        (None, Some(entries)) => compile_list(entries, at.key("limits"), raw, throttle, at),
    }
}

/// Whether the rule at `at` limits something else than the rate of requests.
fn has_other_limit(raw: &raw::Rule, at: At<'_>) -> bool {
    let is_given = |key: &str, is_given: bool| is_given || at.key(key).is_reported();
    is_given("in_flight", raw.in_flight.is_some()) || is_given("bandwidth", raw.bandwidth.is_some())
}

/// Returns the rate that applies to requests that state none, and the key that contains it, if any. `at` is the limit.
fn configured_rate<'a>(value: &'a raw::LimitValue, at: At<'_>) -> Option<(&'a str, Option<&'static str>)> {
    let stated = match value {
        raw::LimitValue::Rate(rate) => return Some((&rate.0, None)),
        raw::LimitValue::Stated(stated) => stated,
    };
    let default_at = at.key("default");
    if stated.default.is_none() && !default_at.is_reported() {
        let error = ValueError::new("missing, the limit of requests that state none");
        default_at.error(error.with_hint("such as `default: 100/min`"));
    }
    Some((&stated.default.as_ref()?.0, Some("default")))
}

/// Compiles the bucket that is the only limit of the rule at `at`.
fn compile_token_bucket(raw: &raw::Rule, bucket: &raw::TokenBucket, at: At<'_>) -> Option<RuleLimit> {
    for other in given_keys([("limit", raw.limit.is_some()), ("limits", raw.limits.is_some())]) {
        let error = ValueError::new(format!("both `{other}` and `token_bucket`, expected one of them"));
        at.key(other).key_error(error.with_hint("use `limits` for several, each a rate or a `token_bucket`"));
    }
    report_algorithm_with_bucket(raw.algorithm.is_some(), at);
    let entry = LimitEntry {
        notation: LimitNotation::Bucket(bucket),
        at: at.key("token_bucket"),
        burst: raw.burst,
        burst_at: at.key("burst"),
        algorithm: Algorithm::RefillBucket,
    };
    compile_quota(&entry)
}

/// Reports `algorithm` next to `token_bucket`, which is an algorithm itself.
fn report_algorithm_with_bucket(is_given: bool, at: At<'_>) {
    if is_given {
        at.inapplicable_key("algorithm", "with `token_bucket`");
    }
}

/// Returns the keys that define a rule's limits, and whether they are given.
pub(super) fn limit_keys(raw: &raw::Rule) -> [(&'static str, bool); 3] {
    [
        ("limit", raw.limit.is_some()),
        ("limits", raw.limits.is_some()),
        ("token_bucket", raw.token_bucket.is_some()),
    ]
}

/// Compiles the entries at `list` of the rule at `at`. Entries without a burst or an algorithm inherit the
/// rule's, the burst only if their algorithm has one.
pub(super) fn compile_list(
    entries: &raw::OneOrMany<raw::Limit>,
    list: At<'_>,
    rule: &raw::Rule,
    throttle: Throttle,
    at: At<'_>,
) -> Vec<RuleLimit> {
    let inherited = rule.algorithm.unwrap_or_default();
    let mut uses_inherited_burst = false;
    let limits = map_items(entries, list, |raw, entry_at| {
        let map = match raw {
            raw::Limit::Rate(_) => None,
            raw::Limit::Map(map) => Some(map),
        };
        let (notation, name) = read_notation(raw, entry_at)?;
        let algorithm = match notation {
            LimitNotation::Bucket(_) => Algorithm::RefillBucket,
            LimitNotation::Rate(_) => map.and_then(|map| map.algorithm).unwrap_or(inherited),
        };
        let own_burst = map.and_then(|map| map.burst);
        let inherited_burst = rule.burst.filter(|_| own_burst.is_none() && algorithm.has_burst());
        uses_inherited_burst |= inherited_burst.is_some();
        let entry = LimitEntry {
            notation,
            at: name.map_or_else(|| entry_at.single_item(), |name| entry_at.key(name)),
            burst: own_burst.or(inherited_burst).or_else(|| default_queue_burst(algorithm, throttle)),
            burst_at: if own_burst.is_some() { entry_at.key("burst") } else { at.key("burst") },
            algorithm,
        };
        compile_quota(&entry)
    });
    if rule.burst.is_some() && !uses_inherited_burst {
        at.inapplicable_key("burst", "for any of `limits`");
    }
    limits
}

/// Returns the notation of an entry of `limits`, and the key that contains it, if any.
fn read_notation<'a>(raw: &'a raw::Limit, at: At<'_>) -> Option<(LimitNotation<'a>, Option<&'static str>)> {
    let map = match raw {
        raw::Limit::Rate(rate) => return Some((LimitNotation::Rate(&rate.0), None)),
        raw::Limit::Map(map) => map,
    };
    match (&map.limit, &map.token_bucket) {
        (Some(_), Some(_)) => {
            at.key("token_bucket").key_error("both `limit` and `token_bucket`, expected one of them");
            None
        }
        (None, None) => {
            let is_faulty = at.key("limit").is_reported() || at.key("token_bucket").is_reported();
            if !is_faulty {
                at.key("limit").error("missing, expected `limit` or `token_bucket`");
            }
            None
        }
        (Some(raw::LimitValue::Rate(rate)), None) => Some((LimitNotation::Rate(&rate.0), Some("limit"))),
        (Some(raw::LimitValue::Stated(_)), None) => {
            let error = ValueError::new("`from` is not supported in a list of limits");
            at.key("limit").error(error.with_hint("write a rule of its own, with `limit: { from: … }`"));
            None
        }
        (None, Some(bucket)) => {
            report_algorithm_with_bucket(map.algorithm.is_some(), at);
            Some((LimitNotation::Bucket(bucket), Some("token_bucket")))
        }
    }
}

/// Converts a bucket's refills to a rate.
fn refill_rate(bucket: &raw::TokenBucket, at: At<'_>) -> Option<Limit> {
    let every_at = at.key("every");
    let every = every_at.single_item().ok(parse::duration(&bucket.every.as_ref()?.0))?;
    match parse::period_from_duration(every) {
        Some(period) => Some(Limit::new(bucket.refill?, period)),
        None => {
            every_at.error("must be at least 1ms, got 0");
            None
        }
    }
}

fn compile_quota(entry: &LimitEntry<'_>) -> Option<RuleLimit> {
    let limit = match entry.notation {
        LimitNotation::Rate(rate) => entry.at.single_item().ok(parse::rate(rate))?,
        LimitNotation::Bucket(bucket) => refill_rate(bucket, entry.at.single_item())?,
    };
    match Quota::new(entry.algorithm, limit, entry.burst) {
        Ok(quota) => {
            // A burst up to the limit's count is chosen for what passes at once. A larger one may be mistaken for more.
            if entry.burst.is_none_or(|burst| burst > limit.count) {
                note_first_period(&quota, entry.at.single_item());
            }
            Some(quota.into())
        }
        Err(error) => {
            let described = ValueError::new(error.to_string());
            match (error, entry.burst) {
                (QuotaError::NoBurst(_), _) => entry.burst_at.key_error(described),
                (QuotaError::TooSlow, Some(burst)) => {
                    entry.burst_at.error(format!("{error}, got {burst} at {limit}"));
                }
                (QuotaError::TooSlow, None) => entry.at.single_item().error(format!("{error}, got {limit}")),
                (QuotaError::TooManyToLog(_), _) => {
                    let hint = "`algorithm: sliding_window` with `precision` stores only sums";
                    entry.at.single_item().error(described.with_hint(hint));
                }
                (QuotaError::TooFast(_) | QuotaError::TooLargeForElastic(_), _) => {
                    entry.at.single_item().error(described)
                }
                (QuotaError::RefillAboveBurst(_), _) => entry.at.key("refill").error(described),
            }
            None
        }
    }
}

/// Adds a note if more than the limit's count may be admitted in the first period: the burst, and units that
/// are returned one by one before the period ends.
fn note_first_period(quota: &Quota, at: At<'_>) {
    let Limit { count, period } = quota.limit();
    let max = u64::from(count.get()).saturating_add(u64::from(quota.burst().get())).saturating_sub(1);
    if !quota.algorithm().refills_continuously()
        || period.nanos() < MIN_NOTED_PERIOD.nanos()
        || max <= count.get().into()
    {
        return;
    }
    let length = match period.count().get() {
        1 => period.unit().word().to_owned(),
        periods => format!("{periods} {}s", period.unit().word()),
    };
    let note = format!("{} admits burst plus refill: up to {max} in the first {length}", quota.algorithm());
    let log = if count.get() <= MAX_LOGGED_UNITS { ", `sliding_log` in any" } else { "" };
    let hint = format!(
        "`algorithm: fixed_window` admits at most {count} in each {length} of the clock{log}, \
         `burst: 1` spaces them evenly; an explicit `burst` up to {count} has no note"
    );
    at.note(ValueError::new(note).with_hint(hint));
}

/// Reports a cost above the burst, because such a request could never be admitted.
pub(super) fn check_cost(cost: u32, limits: &[RuleLimit], at: At<'_>) {
    let min_burst = limits.iter().filter_map(RuleLimit::max_burst).map(NonZeroU32::get).min();
    if let Some(min) = min_burst.filter(|min| cost > *min) {
        at.error(format!("no request would ever be admitted: at most {min} units at once, got {cost}"));
    }
}

/// Returns the default burst of a queue: one, so that requests leave evenly spaced. `None` if the limit is
/// not a queue.
pub(super) fn default_queue_burst(algorithm: Algorithm, throttle: Throttle) -> Option<NonZeroU32> {
    let is_queue =
        algorithm == Algorithm::LeakyBucket && matches!(throttle, Throttle::Delay(_) | Throttle::Wait);
    is_queue.then_some(NonZeroU32::MIN)
}
