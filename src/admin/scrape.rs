//! The numbers that the metrics do not have themselves, gathered when somebody asks.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use parking_lot::Mutex;

use super::State;
use crate::engine::Policy;
use crate::limiter::MeterId;
use crate::limiter::elastic::Headroom;
use crate::limiter::timestamp::Timestamp;
use crate::rules::RuleIndex;
use crate::rules::error_bound::FleetState;
use crate::rules::rule::{Action, LimitSource, Rule};
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::metrics::{Elastic, Saves, Scrape, SharedLimit};
use crate::tls::pair::Pair;

/// Counting walks the whole table, shard by shard under the locks that requests take: whoever can reach the
/// probes' address must not be able to make that a busy loop.
const FRESH: Duration = Duration::from_secs(1);

type Counts = HashMap<MeterId, u64>;

/// The latest count of counters in use, and when that was.
#[derive(Debug, Default)]
pub struct KeyCounts(Mutex<Option<(Timestamp, Counts)>>);

/// Counters in use, beside the rules of `policy`.
pub(super) fn keys(state: &State, policy: &Policy) -> Vec<u64> {
    let now = state.process.now();
    let mut latest = state.keys.0.lock();
    let counts = match latest.take() {
        Some((at, counts)) if now.since(at) < FRESH => latest.insert((at, counts)),
        _ => latest.insert((now, state.limiter.keys_per_meter(now))),
    };
    let of_rule = |index| -> u64 {
        let meters = policy.rules.meters(RuleIndex(index));
        meters.filter_map(|meter| counts.1.get(&meter.id)).sum()
    };
    (0..policy.rules.rules().len()).map(of_rule).collect()
}

/// Everything a scrape needs.
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

/// The instances that share limits, as this one knows them.
pub(super) fn fleet(state: &State) -> FleetState {
    let is_away = state.process.is_store_away().unwrap_or(true);
    FleetState { divisors: state.limiter.divisors(), is_away }
}

/// By how many instances each shared limit is shared, and how far it may be exceeded.
fn shared_limits(policy: &Policy, fleet: &FleetState) -> impl Iterator<Item = SharedLimit> {
    policy.rules.rules().iter().filter_map(move |rule| {
        let Action::Limit(limiting) = &rule.action else { return None };
        let LimitSource::Shared(shared) = &limiting.source else { return None };
        let (rule, instances) = (rule.name.clone(), shared.divided_by(&fleet.divisors).get());
        Some(SharedLimit { rule, instances, error_bound: limiting.error_bound(fleet)? })
    })
}

/// Of several with one file, which cannot be told apart by it, the first that expires.
fn certificates(state: &State) -> BTreeMap<Box<str>, u64> {
    let mut certificates = BTreeMap::new();
    let mut note = |pair: &Pair| {
        let expires = certificates.entry(pair.file.clone()).or_insert(u64::MAX);
        *expires = pair.chain.facts.expires.min(*expires);
    };
    state.process.server_tls().iter().flat_map(|server| &server.settings().pairs).for_each(&mut note);
    state
        .process
        .client_tls()
        .iter()
        .filter_map(|client| client.settings().pair.as_ref())
        .for_each(&mut note);
    certificates
}

/// How many times its written limit each elastic rule allows with this much headroom.
fn factors(policy: &Policy, headroom: Headroom) -> impl Iterator<Item = (Box<str>, f64)> {
    let factor = move |rule: &Rule| Some((rule.name.clone(), rule.stretch()?.factor_at(headroom)));
    policy.rules.rules().iter().filter_map(factor)
}
