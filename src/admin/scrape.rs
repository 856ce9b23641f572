//! Values for metrics that are collected at the time of a scrape.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use parking_lot::Mutex;

use super::AdminState;
use weir_limiter::LimitId;
use weir_limiter::elastic::Headroom;
use weir_limiter::feedback::states::FeedbackStatus;
use weir_limiter::timestamp::Timestamp;
use weir_net::tls::key_pair::{CertificateValidity, validity_by_file};
use weir_policy::engine::Policy;
use weir_policy::engine::overrides::OverrideKind;
use weir_policy::rules::error_bound::FleetState;
use weir_policy::rules::rule::{Action, Rule};
use weir_policy::rules::{RuleIndex, RuleSet};
use weir_telemetry::metrics::{
    AdaptiveLimitSample, ElasticSample, Scrape, SharedLimitSample, StateFileSample,
};

/// Minimum time between two counts of the counters. A count walks the whole table and takes the locks of its shards, so
/// frequent scrapes of the probes' address must not repeat it.
const MIN_COUNT_INTERVAL: Duration = Duration::from_secs(1);

type KeysByLimit = HashMap<LimitId, u64>;

/// Cached numbers of counters per limit, with the time of the count.
#[derive(Debug, Default)]
pub struct KeyCounts(Mutex<Option<(Timestamp, KeysByLimit)>>);

/// Returns the number of counters in use for each rule of `policy`.
pub(super) fn keys_per_rule(state: &AdminState, policy: &Policy) -> Vec<u64> {
    let now = state.process.now();
    let mut cached = state.key_counts.0.lock();
    let counts = match cached.take() {
        Some((at, counts)) if now.since(at) < MIN_COUNT_INTERVAL => cached.insert((at, counts)),
        _ => cached.insert((now, state.limiter.keys_per_limit(now))),
    };
    let rule_keys = |index| -> u64 {
        let handles = policy.rules.limit_handles(RuleIndex(index));
        handles.filter_map(|handle| counts.1.get(&handle.id)).sum()
    };
    (0..policy.rules.rules().len()).map(rule_keys).collect()
}

/// Collects all values for a scrape.
pub(super) fn scrape(state: &AdminState) -> Scrape {
    let policy = state.process.policy();
    let names = policy.rules.rules().iter().map(|rule| rule.name.clone());
    let keys: BTreeMap<_, _> = names.zip(keys_per_rule(state, &policy)).collect();
    Scrape {
        certificates: certificates(state),
        clusters: state.process.upstreams(),
        now: state.process.wall_clock(),
        start_time: state.start_time,
        is_live: state.drain.is_ready(),
        keys_per_rule: keys,
        table_entries: state.limiter.live_keys(),
        table_capacity: state.limiter.max_keys(),
        table_overflows: state.limiter.overflows(),
        dropped_limits: state.limiter.request_limits_dropped(),
        access_log_dropped: state.access_logs.lost_lines(),
        state_file: state.process.state_file().map(|file| StateFileSample {
            saves: file.saved,
            failed_saves: file.failed,
            last_saved: file.last_saved,
            counters: file.counters,
            bytes: file.bytes,
        }),
        limit_overrides: override_counts(state),
        feedback: feedback_statuses(&policy, state.process.now()),
        shared_limits: shared_limit_samples(state, &policy, &fleet_state(state)).collect(),
        adaptive_limits: adaptive_limit_samples(&policy).collect(),
        elastic: state.process.elastic_assessment().map(|assessment| ElasticSample {
            factors: elastic_factors(&policy, assessment.headroom).collect(),
            assessment,
        }),
    }
}

/// Returns what the provider has signalled for each rule that follows it.
fn feedback_statuses(policy: &Policy, now: Timestamp) -> Vec<(Box<str>, FeedbackStatus)> {
    let rules = policy.rules.rules().iter().enumerate();
    let status = |(index, rule): (usize, &Rule)| {
        Some((rule.name.clone(), policy.rules.feedback(RuleIndex(index))?.status(now)))
    };
    rules.filter_map(status).collect()
}

/// Returns the number of overrides in force, by kind.
fn override_counts(state: &AdminState) -> [(OverrideKind, usize); OverrideKind::ALL.len()] {
    let active = state.overrides.active(state.process.now());
    OverrideKind::ALL.map(|kind| (kind, active.iter().filter(|entry| entry.action.kind() == kind).count()))
}

/// Returns this instance's view of the fleet.
pub(super) fn fleet_state(state: &AdminState) -> FleetState {
    let is_away = state.process.is_store_unreachable().unwrap_or(true);
    let wait = state.process.store_wait();
    let instance_counts = state.limiter.instance_counts();
    FleetState { instance_counts, is_unreachable: is_away, wait }
}

/// Returns the time since a request last waited without a response of the store for a limit of the rule at `index`.
pub(super) fn since_unanswered(state: &AdminState, rules: &RuleSet, index: RuleIndex) -> Option<Duration> {
    let limits: Vec<_> = rules.rule_checks(index).map(|(_, handle)| handle.id).collect();
    let last = state.process.last_unanswered_wait(&limits)?;
    Some(state.process.now().since(last))
}

/// Yields the number of instances and the error bound of each shared limit.
fn shared_limit_samples(
    state: &AdminState,
    policy: &Policy,
    fleet: &FleetState,
) -> impl Iterator<Item = SharedLimitSample> {
    policy.rules.rules().iter().enumerate().filter_map(move |(index, rule)| {
        let Action::Limit(limiting) = &rule.action else { return None };
        let shared = limiting.shared()?;
        let (rule, instances) = (rule.name.clone(), shared.instance_count(&fleet.instance_counts).get());
        let since = since_unanswered(state, &policy.rules, RuleIndex(index));
        let error_bound = limiting.error_bound(fleet, since)?;
        Some(SharedLimitSample { rule, instances, error_bound })
    })
}

/// Yields the state of each adaptive concurrency limit.
fn adaptive_limit_samples(policy: &Policy) -> impl Iterator<Item = AdaptiveLimitSample> {
    policy.rules.adaptive_rules().map(|(rule, limits, range)| AdaptiveLimitSample {
        rule: rule.name.clone(),
        state: limits.state(range),
    })
}

/// Returns the validity of each certificate file.
pub(super) fn certificates(state: &AdminState) -> BTreeMap<Box<str>, CertificateValidity> {
    let (servers, clients) = (state.process.server_tls(), state.process.client_tls());
    let of_clients = clients.iter().filter_map(|client| client.settings().key_pair.as_ref());
    validity_by_file(servers.iter().flat_map(|server| &server.settings().key_pairs).chain(of_clients))
}

/// Yields the factor that each elastic rule applies to its limit at this headroom.
fn elastic_factors(policy: &Policy, headroom: Headroom) -> impl Iterator<Item = (Box<str>, f64)> {
    let factor = move |rule: &Rule| Some((rule.name.clone(), rule.elastic_range()?.factor_at(headroom)));
    policy.rules.rules().iter().filter_map(factor)
}
