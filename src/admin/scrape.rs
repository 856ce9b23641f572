//! Values for metrics that are collected at the time of a scrape.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use parking_lot::Mutex;

use super::State;
use crate::engine::Policy;
use crate::limiter::LimitId;
use crate::limiter::elastic::Headroom;
use crate::limiter::timestamp::Timestamp;
use crate::rules::RuleIndex;
use crate::rules::error_bound::FleetState;
use crate::rules::rule::{Action, Rule};
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::metrics::{Elastic, Saves, Scrape, SharedLimit};
use crate::tls::key_pair::CertificateKeyPair;

/// Minimum time between two counts of the counters. A count walks the whole table and takes the locks of its shards, so
/// frequent scrapes of the probes' address must not repeat it.
const FRESH: Duration = Duration::from_secs(1);

type Counts = HashMap<LimitId, u64>;

/// Cached numbers of counters per limit, with the time of the count.
#[derive(Debug, Default)]
pub struct KeyCounts(Mutex<Option<(Timestamp, Counts)>>);

/// Returns the number of counters in use for each rule of `policy`.
pub(super) fn keys(state: &State, policy: &Policy) -> Vec<u64> {
    let now = state.process.now();
    let mut latest = state.keys.0.lock();
    let counts = match latest.take() {
        Some((at, counts)) if now.since(at) < FRESH => latest.insert((at, counts)),
        _ => latest.insert((now, state.limiter.keys_per_limit(now))),
    };
    let of_rule = |index| -> u64 {
        let meters = policy.rules.limit_handles(RuleIndex(index));
        meters.filter_map(|meter| counts.1.get(&meter.id)).sum()
    };
    (0..policy.rules.rules().len()).map(of_rule).collect()
}

/// Collects all values for a scrape.
pub(super) fn scrape(state: &State) -> Scrape {
    let policy = state.process.policy();
    let names = policy.rules.rules().iter().map(|rule| rule.name.clone());
    let keys: BTreeMap<_, _> = names.zip(keys(state, &policy)).collect();
    Scrape {
        certificates: certificates(state),
        clusters: state.process.upstreams(),
        now: state.process.wall_clock(),
        started: state.started,
        is_live: state.drain.is_ready(),
        keys,
        entries: state.limiter.live_keys(),
        capacity: state.capacity,
        overflows: state.limiter.overflows(),
        access_log_dropped: state.access_log.as_ref().map_or(0, AccessLog::dropped),
        saves: state.process.state_file().map(|file| Saves {
            saved: file.saved,
            failed: file.failed,
            last: file.last_saved,
            counters: file.counters,
            bytes: file.bytes,
        }),
        shared_limits: shared_limits(&policy, &fleet(state)).collect(),
        elastic: state.process.elastic().map(|assessment| Elastic {
            factors: factors(&policy, assessment.headroom).collect(),
            assessment,
        }),
    }
}

/// Returns this instance's view of the fleet.
pub(super) fn fleet(state: &State) -> FleetState {
    let is_away = state.process.is_store_away().unwrap_or(true);
    FleetState { instance_counts: state.limiter.instance_counts(), is_away }
}

/// Yields the number of instances and the error bound of each shared limit.
fn shared_limits(policy: &Policy, fleet: &FleetState) -> impl Iterator<Item = SharedLimit> {
    policy.rules.rules().iter().filter_map(move |rule| {
        let Action::Limit(limiting) = &rule.action else { return None };
        let shared = limiting.shared()?;
        let (rule, instances) = (rule.name.clone(), shared.instance_count(&fleet.instance_counts).get());
        Some(SharedLimit { rule, instances, error_bound: limiting.error_bound(fleet)? })
    })
}

/// Returns the expiry of each certificate file, in seconds since the epoch; of several certificates in one file, the
/// earliest.
fn certificates(state: &State) -> BTreeMap<Box<str>, u64> {
    let mut certificates = BTreeMap::new();
    let mut note = |pair: &CertificateKeyPair| {
        let expires = certificates.entry(pair.file.clone()).or_insert(u64::MAX);
        *expires = pair.chain.info.expires.min(*expires);
    };
    state.process.server_tls().iter().flat_map(|server| &server.settings().key_pairs).for_each(&mut note);
    state
        .process
        .client_tls()
        .iter()
        .filter_map(|client| client.settings().key_pair.as_ref())
        .for_each(&mut note);
    certificates
}

/// Yields the factor that each elastic rule applies to its limit at this headroom.
fn factors(policy: &Policy, headroom: Headroom) -> impl Iterator<Item = (Box<str>, f64)> {
    let factor = move |rule: &Rule| Some((rule.name.clone(), rule.elastic_range()?.factor_at(headroom)));
    policy.rules.rules().iter().filter_map(factor)
}
