//! `GET /limits`: the rules, their counters and their decisions, and the limits of documents.

use serde_json::{Map, Value, json};

use super::query::Query;
use super::response::{self, FullResponse};
use super::scrape::keys_per_rule;
use super::shared_limits::SharedLimitsView;
use super::{AdminState, document_limits, status, streams};
use weir_limiter::adaptive::limits::AdaptiveState;
use weir_limiter::check_options::OnDenied;
use weir_limiter::elastic::controller::Assessment;
use weir_limiter::elastic::signal::SignalLevel;
use weir_limiter::feedback::states::FeedbackStatus;
use weir_limiter::quota::{Ban, Quota};
use weir_policy::rules::RuleIndex;
use weir_policy::rules::cost::Cost;
use weir_policy::rules::cost_unit::CostUnit;
use weir_policy::rules::remote_limit::RemoteLimit;
use weir_policy::rules::rule::{Action, LimitAction, LimitSource, OnMissing, Rule, RuleLimit};
use weir_telemetry::metrics::DecisionCounts;
use weir_telemetry::rfc3339;

/// `GET /limits`
pub(super) fn limits(state: &AdminState, _: &Query<'_>) -> FullResponse {
    let policy = state.process.policy();
    let assessment = state.process.elastic_assessment();
    let shared_limits = SharedLimitsView::from_state(state, &policy.rules);
    let counted = policy.rules.rules().iter().enumerate().zip(keys_per_rule(state, &policy));
    let rules: Vec<Value> = counted
        .map(|((index, rule), counters)| {
            let mut fields = summary(rule);
            if let Some(place) = policy.rules.group_place(RuleIndex(index)) {
                let names = policy.rules.rules_of_group(place.group).map(|rule| &*rule.name);
                fields.insert("any_of".to_owned(), names.collect());
            }
            if matches!(rule.action, Action::Limit(_)) {
                fields.insert("counters".to_owned(), counters.into());
            }
            if let Some((range, assessment)) = rule.elastic_range().zip(assessment) {
                fields.insert("factor".to_owned(), range.factor_at(assessment.headroom).into());
            }
            if let Some((limits, range)) = policy.rules.adaptive_limits(RuleIndex(index)) {
                fields.insert("concurrency".to_owned(), adaptive_state(limits.state(range)));
            }
            if let Some(feedback) = policy.rules.feedback(RuleIndex(index)) {
                fields.insert("feedback".to_owned(), feedback_status(&feedback.status(state.process.now())));
            }
            if let Some(shared) = shared_limits.rule_json(RuleIndex(index), rule) {
                fields.insert("sharing".to_owned(), shared);
            }
            if let Some(streams) = streams::list(state, rule, |limit| quota(&limit.quota)) {
                fields.insert("streams".to_owned(), streams);
            }
            fields.insert("decisions".to_owned(), decisions(&state.metrics.decisions(&rule.name)));
            fields.into()
        })
        .collect();
    let (overflowing, shards) = state.limiter.overflowing_shards();
    response::json(&json!({
        "config": status::config_status(&state.process.configuration()),
        "table": {
            "live": state.limiter.live_keys(),
            "capacity": state.limiter.max_keys(),
            "overflows": state.limiter.overflows(),
            "shards": shards,
            "crowded_shards": overflowing,
        },
        "state": state.process.state_file().map(|file| json!({
            "file": file.file.display().to_string(),
            "restored": file.restored,
            "saved": file.saved,
            "failed": file.failed,
            "last_saved": file.last_saved.map(rfc3339),
            "counters": file.counters,
            "bytes": file.bytes,
            "problem": file.problem,
        })),
        "elastic": assessment.as_ref().map(elastic),
        "rules": rules,
        "documents": document_limits::list(state),
    }))
}

/// State of an adaptive concurrency limit, where it is the lowest.
pub(super) fn adaptive_state(AdaptiveState { keys, lowest }: AdaptiveState) -> Value {
    json!({
        "limit": lowest.limit,
        "latency_seconds": lowest.latency,
        "min_latency_seconds": lowest.baseline,
        "keys": keys,
    })
}

/// What the provider has signalled, and the share of the limit that is in force.
fn feedback_status(status: &FeedbackStatus) -> Value {
    json!({
        "share": status.share.fraction(),
        "paused_seconds": status.paused_for.as_secs_f64(),
        "keys": status.keys,
        "rejections": status.rejections,
        "decreases": status.decreases,
        "delayed_retries": status.delayed_retries,
    })
}

/// Headroom, and each signal with its threshold.
pub(super) fn elastic(assessment: &Assessment) -> Value {
    let signal = |level: &SignalLevel| {
        let fields =
            json!({ "value": level.value, "threshold": level.threshold, "pressure": level.pressure() });
        (level.signal.as_str().to_owned(), fields)
    };
    json!({
        "headroom": assessment.headroom.fraction(),
        "trend": assessment.trend.as_str(),
        "binding": assessment.binding().map(|level| level.signal.as_str()),
        "signals": assessment.levels.iter().flatten().map(signal).collect::<Map<_, _>>(),
    })
}

/// Returns a rule as compiled.
pub(super) fn summary(rule: &Rule) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("name".to_owned(), (*rule.name).into());
    fields.insert("action".to_owned(), rule.action.as_str().into());
    if let Action::Limit(limiting) = &rule.action {
        if let Some(counter) = &limiting.counter {
            fields.insert("counter".to_owned(), (**counter).into());
        }
        add_limit_fields(&mut fields, limiting);
        if let Some(upstream) = &limiting.divert_to {
            fields.insert("upstream".to_owned(), (**upstream).into());
        }
    }
    fields
}

fn add_limit_fields(fields: &mut Map<String, Value>, limiting: &LimitAction) {
    let on_missing = match limiting.on_missing {
        OnMissing::Skip => "skip",
        OnMissing::Shared => "shared",
        OnMissing::Deny => "deny",
    };
    let limits: Vec<Value> = limiting.limits.iter().map(limit).collect();
    fields.insert("key".to_owned(), limiting.key_text().into());
    if let Some(distinct) = &limiting.distinct {
        fields.insert("distinct".to_owned(), distinct.to_string().into());
    }
    fields.insert("on_missing".to_owned(), on_missing.into());
    fields.insert("cost".to_owned(), cost(&limiting.cost_model.cost));
    fields.insert("unit".to_owned(), CostUnit::of(limiting).as_str().into());
    fields.insert("throttle".to_owned(), limiting.throttle.to_string().into());
    fields.insert("limits".to_owned(), limits.into());
    if !limiting.enforced_share.is_for_all() {
        fields.insert("enforce".to_owned(), limiting.enforced_share.share().to_string().into());
        if let Some(seed) = limiting.enforced_share.own_seed() {
            fields.insert("enforce_seed".to_owned(), seed.into());
        }
    }
    let fixed = limiting.in_flight.map(|max| max.get().into());
    let adaptive =
        limiting.adaptive.map(|range| json!({ "auto": { "min": range.min(), "max": range.max() } }));
    if let Some(in_flight) = adaptive.or(fixed) {
        fields.insert("in_flight".to_owned(), in_flight);
    }
    if let Some(Ban { initial_duration: first, max_duration: max }) = limiting.ban {
        let (first, max) = (first.as_secs_f64(), max.as_secs_f64());
        fields.insert("ban".to_owned(), json!({ "seconds": first, "most_seconds": max }));
    }
    if let Some(scope) = scope(&limiting.source) {
        fields.insert("scope".to_owned(), scope);
    }
    if limiting.on_denied == OnDenied::Charge {
        fields.insert("on_denied".to_owned(), "charge".into());
    }
}

/// Returns where the limit is counted; `None` if in this process.
fn scope(source: &LimitSource) -> Option<Value> {
    match source {
        LimitSource::Local => None,
        LimitSource::Remote(remote) => {
            let RemoteLimit { service_address: address, domain, on_error, .. } = &**remote;
            Some(json!({ "rls": address, "domain": domain, "on_error": on_error.as_str() }))
        }
        LimitSource::Shared(shared) => Some(json!({
            "shared": shared.mode.as_str(),
            "wait_seconds": shared.wait.map_or_else(|| "auto".into(), |wait| Value::from(wait.as_secs_f64())),
            "on_store_loss": shared.on_store_loss.as_str(),
            "fairness": shared.fairness.as_str(),
            "priority": shared.priority,
            "instances": shared.instances.as_ref().map(ToString::to_string),
        })),
    }
}

fn limit(limit: &RuleLimit) -> Value {
    let mut shown = quota(&limit.quota);
    if let (Some(nested), Value::Object(shown)) = (&limit.nested, &mut shown) {
        shown.insert("ipv6_prefix".to_owned(), nested.prefix.into());
    }
    if let (Some(stated), Value::Object(shown)) = (&limit.stated, &mut shown) {
        shown.insert("stated".to_owned(), stated.to_string().into());
    }
    shown
}

fn cost(cost: &Cost) -> Value {
    match cost {
        Cost::Fixed(units) => (*units).into(),
        measured => measured.to_string().into(),
    }
}

fn quota(quota: &Quota) -> Value {
    let algorithm = quota.algorithm();
    json!({
        "limit": quota.limit().to_string(),
        "algorithm": algorithm.as_str(),
        "burst": algorithm.has_burst().then_some(quota.burst()),
        "period_seconds": quota.limit().period.duration().as_secs_f64(),
    })
}

pub(super) fn decisions(decisions: &DecisionCounts) -> Value {
    decisions.iter().map(|(outcome, count)| (outcome.as_str().to_owned(), Value::from(count))).collect()
}
