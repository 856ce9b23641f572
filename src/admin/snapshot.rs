//! Snapshot of the process for live views: totals, rules, upstreams, configuration and the heaviest keys.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::limits::{adaptive_state, decisions, elastic};
use super::notices::notices;
use super::recent::Sample;
use super::scrape::keys_per_rule;
use super::shared_limits::SharedLimitsView;
use super::{AdminState, document_limits, streams, top};
use weir_config::reload::ReloadStatus;
use weir_limiter::classes::{ClassCounts, ClassView};
use weir_limiter::timestamp::Timestamp;
use weir_policy::engine::Policy;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::cost_unit::CostUnit;
use weir_policy::rules::rule::{Action, Rule};
use weir_telemetry::metrics::{ClusterView, ConcurrencyView, HostView, VERSION};
use weir_telemetry::observe::key_writer::key_of;
use weir_telemetry::observe::top_keys::RuleTop;
use weir_telemetry::rfc3339;

/// Keys per rule.
const MAX_KEYS: usize = 10;
/// Maximum number of rules whose keys are included: those with the most decisions.
const MAX_RULES_WITH_KEYS: usize = 32;

/// Returns the snapshot of this moment, of which `sample` has the totals.
pub(super) fn snapshot(state: &AdminState, sample: &Sample) -> Value {
    let policy = state.process.policy();
    let before = state.recent.reference();
    let traffic = &sample.traffic;
    let now = state.process.now();
    let counts = |counts: &[(&'static str, u64)]| {
        counts.iter().map(|(label, count)| ((*label).to_owned(), Value::from(*count))).collect::<Map<_, _>>()
    };
    json!({
        "time": rfc3339(state.process.wall_clock()),
        "uptime_seconds": now.since(state.start_time).as_secs(),
        "version": VERSION,
        "generation": policy.generation,
        "draining": !state.drain.is_ready(),
        "requests": {
            "total": traffic.requests,
            "by_class": counts(&traffic.by_class),
            "by_outcome": counts(&traffic.by_outcome),
        },
        "in_flight": traffic.in_flight,
        "rules": rules(state, &policy),
        "upstreams": upstreams(state, sample, before.as_deref()),
        "notices": notices(state, sample, before.as_deref()),
        "elastic": state.process.elastic_assessment().as_ref().map(elastic),
        "config": config(&state.process.configuration()),
        "top": heaviest(state, &policy, now),
        "documents": document_limits::heaviest(state, MAX_KEYS, MAX_RULES_WITH_KEYS, now),
    })
}

fn rules(state: &AdminState, policy: &Policy) -> Vec<Value> {
    let assessment = state.process.elastic_assessment();
    let shared = SharedLimitsView::from_state(state, &policy.rules);
    let counted = policy.rules.rules().iter().enumerate().zip(keys_per_rule(state, policy));
    let rule_json = |((index, rule), keys): ((usize, &Rule), u64)| {
        let (action, throttle) = match &rule.action {
            Action::Allow => ("allow", None),
            Action::Deny => ("deny", None),
            Action::Limit(limiting) => ("limit", Some(limiting.throttle.to_string())),
        };
        let range = rule.elastic_range().zip(assessment.as_ref());
        json!({
            "name": rule.name,
            "action": action,
            "limits": rule.limits().iter().map(|limit| limit.quota.limit().to_string()).collect::<Vec<_>>(),
            "streams": streams::list(state, rule, |limit| json!({ "limit": limit.to_string() })),
            "unit": rule.action.limiting().map(|limiting| CostUnit::of(limiting).as_str()),
            "charged_units": charged_units(state, rule),
            "throttle": throttle,
            "in_flight": rule.action.limiting().and_then(|limiting| limiting.in_flight),
            "decisions": decisions(&state.metrics.decisions(&rule.name)),
            "keys": keys,
            "factor": range.map(|(range, assessment)| range.factor_at(assessment.headroom)),
            "concurrency": policy.rules.adaptive_limits(RuleIndex(index)).map(|(limits, range)| {
                adaptive_state(limits.state(range))
            }),
            "shared": shared.rule_json(RuleIndex(index), rule),
        })
    };
    counted.map(rule_json).collect()
}

/// Returns the units that responses were charged, if they state the cost.
fn charged_units(state: &AdminState, rule: &Rule) -> Option<u64> {
    rule.action.limiting()?.cost_model.response_fields()?;
    state.metrics.stated_cost_units(&rule.name)
}

fn upstreams(state: &AdminState, sample: &Sample, before: Option<&Sample>) -> Vec<Value> {
    let views = state.process.upstreams();
    let upstream_json = |view: &ClusterView| {
        let of = |sample: &'_ Sample| sample.upstreams.iter().position(|totals| totals.name == view.name);
        let now = of(sample).map(|position| &sample.upstreams[position]);
        let before = before.and_then(|before| Some(&before.upstreams[of(before)?]));
        let quantile = |share| now.and_then(|now| now.quantile_since(before, share)).map(millis);
        json!({
            "name": view.name,
            "requests": now.map_or(0, |now| now.requests),
            "p50_ms": quantile(0.5),
            "p99_ms": quantile(0.99),
            "healthy": view.hosts.iter().filter(|host| HostView::is_healthy(host)).count(),
            "endpoints": view.hosts.len(),
            "concurrency": view.concurrency.as_ref().map(concurrency),
        })
    };
    views.iter().map(upstream_json).collect()
}

/// Returns the classes that share the concurrency of an upstream.
pub(super) fn concurrency(ConcurrencyView { classes, gate }: &ConcurrencyView) -> Value {
    let class = |(name, class): (&str, &ClassView)| {
        let ClassCounts { admitted, waited, shed, left } = class.counts;
        json!({
            "name": name,
            "in_flight": class.in_flight,
            "waiting": class.waiting,
            "requests": { "admitted": admitted, "waited": waited, "shed": shed, "abandoned": left },
            "shed_seconds": class.shed_for.map(|time| time.as_secs()),
        })
    };
    json!({
        "limit": gate.limit.limit,
        "in_flight": gate.in_flight,
        "latency_ms": gate.limit.latency.map(seconds_as_millis),
        "min_latency_ms": gate.limit.baseline.map(seconds_as_millis),
        "classes": classes.iter().map(|name| &**name).zip(&gate.classes).map(class).collect::<Vec<_>>(),
    })
}

fn seconds_as_millis(seconds: f64) -> f64 {
    millis(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// Returns a duration in milliseconds, to a hundredth.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 100_000.0).round() / 100.0
}

fn config(status: &ReloadStatus) -> Value {
    let last = status.last_attempt.as_ref();
    json!({
        "status": last.map_or("started", |last| last.outcome.as_str()),
        "problems": last.map_or(&[][..], |last| &last.problems),
    })
}

/// Returns the heaviest keys of the rules with the most decisions of tracked keys.
fn heaviest(state: &AdminState, policy: &Policy, now: Timestamp) -> Vec<Value> {
    let rules = policy.rules.rules().iter().enumerate().filter(|(_, rule)| key_of(rule).is_some());
    let mut tops: Vec<(usize, &Rule, RuleTop)> = rules
        .map(|(index, rule)| (index, rule, state.top_keys.top(&rule.name, MAX_KEYS, now)))
        .filter(|(_, _, top)| top.tracked > 0)
        .collect();
    tops.sort_by_key(|(_, _, top)| std::cmp::Reverse(top.decisions()));
    tops.truncate(MAX_RULES_WITH_KEYS);
    let shown = tops
        .iter()
        .map(|(index, rule, top)| top::rule_json(state, policy, RuleIndex(*index), rule, top, now));
    shown.collect()
}
