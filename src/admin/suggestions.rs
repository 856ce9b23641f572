//! `GET /limits/suggestions`: limits from this instance's own traffic, as a dry run with reasons.
//!
//! A suggestion is what 99 of 100 keys needed at most, doubled. By default limits are only raised: that a limit was not
//! used up does not mean that it is too high.

use std::fmt::Write;
use std::num::NonZeroU32;
use std::time::Duration;

use http::StatusCode;

use super::AdminState;
use super::query::Query;
use super::response::{self, FullResponse};
use weir_config::dry_run;
use weir_limiter::algorithm::Algorithm;
use weir_limiter::quota::{Limit, Quota};
use weir_policy::rules::cost::Cost;
use weir_policy::rules::outcome::DecisionOutcome;
use weir_policy::rules::rule::{LimitAction, Rule};
use weir_telemetry::observe::demand::DemandSummary;
use weir_telemetry::observe::key_writer::key_of;
use weir_telemetry::rfc3339;

/// Of this many keys, one may need more than a suggestion is computed for.
const KEYS_PER_OUTLIER: usize = 100;
/// Room above the observed demand, as a factor.
const HEADROOM: u64 = 2;
/// Leading digits of suggested numbers, in tenths.
const ROUND_DIGITS: [u64; 8] = [10, 12, 15, 20, 30, 50, 80, 100];

/// What follows from the demand for one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Advice {
    /// Another limit, and why.
    Change(String, String),
    /// No change, and why.
    Keep(String),
}

/// `GET /limits/suggestions[?lower]`
pub(super) fn suggestions(state: &AdminState, query: &Query<'_>) -> FullResponse {
    let may_lower = query.get("lower").is_some();
    let policy = state.process.policy();
    let configuration = state.process.configuration();
    let document = configuration.document.as_ref().map(|document| &*document.text);
    let texts = [&*configuration.text].into_iter().chain(document);
    let now = state.process.now();
    let (mut changes, mut kept) = (String::new(), String::new());
    for rule in policy.rules.rules() {
        let Some(limiting) = rule.action.limiting() else { continue };
        let demand = state.demand.summary(&rule.name, now);
        let advice = match obstacle(rule, limiting) {
            Some(reason) => Advice::Keep(reason.to_owned()),
            None => advise(rule, demand.as_ref(), may_lower),
        };
        // Writing to a string cannot fail.
        let _ = match advice {
            Advice::Keep(reason) => writeln!(kept, "# {}: {reason}.", rule.name),
            Advice::Change(limit, reason) => {
                match texts.clone().find_map(|text| dry_run(text, &rule.name, &limit)) {
                    Some(yaml) => {
                        let reason = format!("{}: {reason}{}.", rule.name, share_over(state, rule));
                        write!(changes, "  # {reason}\n{}", indented(&yaml))
                    }
                    None => writeln!(kept, "# {}: {limit}, because {reason}.", rule.name),
                }
            }
        };
    }
    let time = rfc3339(state.process.wall_clock());
    let mut page = format!("# Limits from the traffic of this instance until {time}.\n");
    if state.demand.is_full() {
        page += "# Some rules are left out, because there are too many.\n";
    }
    if changes.is_empty() {
        page += "# There is nothing to change.\n";
    } else {
        page += "# These rules count beside the present ones, and reject nothing. `weir check` them with your configuration.\n";
        page += &format!("rules:\n{changes}");
    }
    response::text(StatusCode::OK, page + &kept)
}

/// Returns why no limit of the rule can be suggested; `None` if one can.
fn obstacle(rule: &Rule, limiting: &LimitAction) -> Option<&'static str> {
    let limits = rule.limits();
    if key_of(rule).is_none() {
        return Some("it has no key, and demand is observed by key");
    }
    if limits.is_empty() {
        return Some("it has no rate");
    }
    if limits.iter().any(|limit| limit.stated.is_some() || limit.nested.is_some()) {
        return Some("its limits depend on the request");
    }
    if limits.iter().any(|limit| limit.quota.algorithm() == Algorithm::RefillBucket) {
        return Some("`token_bucket` has no period");
    }
    if limiting.distinct.is_some() {
        return Some("it counts different values, and demand is observed in requests");
    }
    let is_one = limiting.cost_model.cost == Cost::Fixed(1) && limiting.cost_model.counts.is_none();
    (!is_one).then_some("its cost is not 1 for every request, and demand is observed in requests")
}

/// Returns what the demand means for a rule: a change of the first limit that is too low, or too high if it `may_lower`.
fn advise(rule: &Rule, demand: Option<&DemandSummary>, may_lower: bool) -> Advice {
    let Some(demand) = demand else {
        return Advice::Keep("no minute with requests has been observed yet".to_owned());
    };
    let mut reasons = Vec::new();
    for limit in rule.limits() {
        match advise_limit(&limit.quota, demand, may_lower) {
            change @ Advice::Change(..) => return change,
            Advice::Keep(reason) => reasons.push(reason),
        }
    }
    Advice::Keep(reasons.join("; "))
}

fn advise_limit(quota: &Quota, demand: &DemandSummary, may_lower: bool) -> Advice {
    let Limit { count, period } = quota.limit();
    let length = Duration::from_nanos(period.nanos());
    let outliers = demand.keys / KEYS_PER_OUTLIER;
    let (typical, highest) = (demand_in(demand, length, outliers), demand_in(demand, length, 0));
    let suggested = rounded(typical.saturating_mul(HEADROOM).max(1));
    let limit = Limit::new(NonZeroU32::new(suggested).unwrap_or(NonZeroU32::MIN), period);
    let observed = hours_and_minutes(demand.observed);
    let reason = format!(
        "99 of 100 keys needed at most {typical} in a period of {}, the highest {highest}, in {observed}",
        Limit::new(count, period)
    );
    // What was observed for less than a period says little about it.
    let may_lower = may_lower && demand.observed >= length.saturating_mul(2);
    let is_change = suggested > count.get() || (may_lower && suggested < count.get());
    if is_change { Advice::Change(limit.to_string(), reason) } else { Advice::Keep(reason) }
}

/// Returns the demand in a period of this length of the key at this place, the first being the one with the most. Of a
/// period shorter than a minute, the mean is known.
fn demand_in(demand: &DemandSummary, length: Duration, place: usize) -> u64 {
    let at = |(scale, peaks): &(Duration, Vec<u64>)| {
        let peak = peaks.get(place).or_else(|| peaks.last()).copied().unwrap_or_default();
        let periods = length.as_secs_f64() / scale.as_secs_f64();
        match periods <= 1.0 && *scale > Duration::from_secs(60) {
            // All of it may have been in one period.
            true => peak,
            false => (peak as f64 * periods).ceil() as u64,
        }
    };
    demand.peaks.iter().map(at).min().unwrap_or_default()
}

/// Returns the next number with few digits that is not below `number`.
fn rounded(number: u64) -> u32 {
    let mut unit: u64 = 1;
    while unit.saturating_mul(100) < number.saturating_mul(10) {
        unit *= 10;
    }
    let digits = ROUND_DIGITS.into_iter().find(|digits| digits * unit >= number.saturating_mul(10));
    let found = digits.map_or(number, |digits| (digits * unit).div_ceil(10));
    u32::try_from(found).unwrap_or(u32::MAX)
}

/// Returns the share of requests that were over the limit of a rule since the start, as the end of a sentence.
fn share_over(state: &AdminState, rule: &Rule) -> String {
    let counts = state.metrics.decisions(&rule.name);
    let over = counts.sum_of(&[DecisionOutcome::Limited, DecisionOutcome::Shadow]);
    let all: u64 = counts.iter().map(|(_, count)| count).sum();
    match all {
        0 => String::new(),
        all => format!("; {:.2} % of requests were over the limit", over as f64 * 100.0 / all as f64),
    }
}

fn indented(yaml: &str) -> String {
    yaml.lines().map(|line| format!("  {line}\n")).collect()
}

fn hours_and_minutes(time: Duration) -> String {
    let minutes = time.as_secs() / 60;
    match minutes / 60 {
        0 => format!("{minutes} min"),
        hours @ 1..48 => format!("{hours} h {} min", minutes % 60),
        hours => format!("{} d {} h", hours / 24, hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(keys: usize, minute: &[u64], hour: &[u64], day: &[u64]) -> DemandSummary {
        let scale = |seconds, peaks: &[u64]| (Duration::from_secs(seconds), peaks.to_vec());
        let peaks = [scale(60, minute), scale(3600, hour), scale(86_400, day)];
        DemandSummary { observed: Duration::from_secs(3 * 86_400), keys, peaks }
    }

    #[test]
    fn demand_of_a_period_is_bounded_by_shorter_and_longer_ones() {
        let known = demand(10, &[120], &[600], &[2000]);
        let within = |seconds| demand_in(&known, Duration::from_secs(seconds), 0);
        assert_eq!([1, 60, 120, 600].map(within), [2, 120, 240, 600]);
        assert_eq!([3600, 7200, 86_400, 172_800].map(within), [600, 1200, 2000, 4000]);
    }

    #[test]
    fn numbers_are_rounded_up() {
        assert_eq!(
            [1, 2, 7, 11, 13, 84, 100, 168, 1001].map(rounded),
            [1, 2, 8, 12, 15, 100, 100, 200, 1200]
        );
        assert_eq!(rounded(u64::from(u32::MAX)), u32::MAX);
    }

    fn quota(text: &str) -> Quota {
        let yaml = format!(
            "listeners: 127.0.0.1:0\nupstream: echo\nrules: [{{ name: a, key: client_ip, limit: {text} }}]\n"
        );
        let config = weir_config::from_text(&yaml, std::path::Path::new("a.yaml"), &|_| None).unwrap();
        config.policy.rules[0].limits()[0].quota
    }

    #[test]
    fn limit_is_raised_to_what_most_keys_need_and_only_lowered_on_request() {
        let known = demand(200, &[1900, 90, 84, 20], &[1900, 90, 84, 20], &[1900, 90, 84, 20]);
        let advise = |limit, may_lower| match advise_limit(&quota(limit), &known, may_lower) {
            Advice::Change(limit, _) => Some(limit),
            Advice::Keep(_) => None,
        };
        let raised = advise("60/min", false);
        assert_eq!(raised.as_deref(), Some("200/min"), "the two highest of 200 keys are outliers");
        assert_eq!(advise("1000/min", false), None);
        assert_eq!(advise("1000/min", true).as_deref(), Some("200/min"));
    }
}
