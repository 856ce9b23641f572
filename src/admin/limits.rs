//! `GET /limits`: the rules, their counters and their decisions.

use serde_json::{Map, Value, json};

use super::State;
use super::query::Query;
use super::reply::{self, FullResponse};
use super::scrape::keys;
use super::sharing::Sharing;
use super::status;
use crate::limiter::check_options::OnDenied;
use crate::limiter::elastic::controller::Assessment;
use crate::limiter::elastic::signal::SignalLevel;
use crate::limiter::quota::{Ban, Quota};
use crate::rules::RuleIndex;
use crate::rules::cost::Cost;
use crate::rules::remote_limit::RemoteLimit;
use crate::rules::rule::{Action, LimitAction, LimitSource, OnMissing, Rule, RuleLimit};
use crate::telemetry::metrics::Decisions;
use crate::telemetry::rfc3339;

/// `GET /limits`
pub(super) fn limits(state: &State, _: &Query<'_>) -> FullResponse {
    let policy = state.process.policy();
    let assessment = state.process.elastic();
    let sharing = Sharing::of(state, &policy.rules);
    let counted = policy.rules.rules().iter().enumerate().zip(keys(state, &policy));
    let rules: Vec<Value> = counted
        .map(|((index, rule), counters)| {
            let mut shown = summary(rule);
            if matches!(rule.action, Action::Limit(_)) {
                shown.insert("counters".to_owned(), counters.into());
            }
            if let Some((stretch, assessment)) = rule.elastic_range().zip(assessment) {
                shown.insert("factor".to_owned(), stretch.factor_at(assessment.headroom).into());
            }
            if let Some(sharing) = sharing.show(RuleIndex(index), rule) {
                shown.insert("sharing".to_owned(), sharing);
            }
            shown.insert("decisions".to_owned(), decisions(&state.metrics.decisions(&rule.name)));
            shown.into()
        })
        .collect();
    let (crowded, shards) = state.limiter.overflowing_shards();
    reply::json(&json!({
        "config": status::config(&state.process.configuration()),
        "table": {
            "live": state.limiter.live_keys(),
            "capacity": state.capacity,
            "overflows": state.limiter.overflows(),
            "shards": shards,
            "crowded_shards": crowded,
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
    }))
}

/// Headroom, and each signal with its threshold.
fn elastic(assessment: &Assessment) -> Value {
    let signal = |level: &SignalLevel| {
        let said =
            json!({ "value": level.value, "threshold": level.threshold, "pressure": level.pressure() });
        (level.signal.as_str().to_owned(), said)
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
    let mut shown = Map::new();
    shown.insert("name".to_owned(), (*rule.name).into());
    let action = match &rule.action {
        Action::Allow => "allow",
        Action::Deny => "deny",
        Action::Limit(_) => "limit",
    };
    shown.insert("action".to_owned(), action.into());
    if let Action::Limit(limiting) = &rule.action {
        if let Some(counter) = &limiting.counter {
            shown.insert("counter".to_owned(), (**counter).into());
        }
        add_limiting(&mut shown, limiting);
    }
    shown
}

fn add_limiting(shown: &mut Map<String, Value>, limiting: &LimitAction) {
    let on_missing = match limiting.on_missing {
        OnMissing::Skip => "skip",
        OnMissing::Shared => "shared",
        OnMissing::Deny => "deny",
    };
    let limits: Vec<Value> = limiting.limits.iter().map(limit).collect();
    shown.insert("key".to_owned(), limiting.key.to_string().into());
    shown.insert("on_missing".to_owned(), on_missing.into());
    shown.insert("cost".to_owned(), cost(&limiting.cost_model.cost));
    shown.insert("throttle".to_owned(), limiting.throttle.to_string().into());
    shown.insert("limits".to_owned(), limits.into());
    if !limiting.enforced_share.is_for_all() {
        shown.insert("enforce".to_owned(), limiting.enforced_share.share().to_string().into());
        if let Some(seed) = limiting.enforced_share.own_seed() {
            shown.insert("enforce_seed".to_owned(), seed.into());
        }
    }
    if let Some(most) = limiting.in_flight {
        shown.insert("in_flight".to_owned(), most.get().into());
    }
    if let Some(Ban { initial_duration: first, max_duration: most }) = limiting.ban {
        let (first, most) = (first.as_secs_f64(), most.as_secs_f64());
        shown.insert("ban".to_owned(), json!({ "seconds": first, "most_seconds": most }));
    }
    if let Some(scope) = scope(&limiting.source) {
        shown.insert("scope".to_owned(), scope);
    }
    if limiting.on_denied == OnDenied::Charge {
        shown.insert("on_denied".to_owned(), "charge".into());
    }
}

/// Returns where the limit is counted; `None` if in this process.
fn scope(source: &LimitSource) -> Option<Value> {
    match source {
        LimitSource::Local => None,
        LimitSource::Remote(remote) => {
            let RemoteLimit { service_address: place, domain, on_error, .. } = &**remote;
            Some(json!({ "rls": place, "domain": domain, "on_error": on_error.as_str() }))
        }
        LimitSource::Shared(shared) => Some(json!({
            "shared": shared.mode.as_str(),
            "wait_seconds": shared.wait.as_secs_f64(),
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
    shown
}

fn cost(cost: &Cost) -> Value {
    match cost {
        Cost::Fixed(units) => (*units).into(),
        told => told.to_string().into(),
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

fn decisions(decisions: &Decisions) -> Value {
    decisions.iter().map(|(outcome, count)| (outcome.as_str().to_owned(), Value::from(count))).collect()
}
