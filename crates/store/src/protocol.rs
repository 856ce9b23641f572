//! Encoding of queries and grants in calls of the store's script.

use std::fmt::Write as _;
use std::time::Duration;

use super::settings::Topology;
use weir_limiter::leases::{
    LeaseGrant, LeaseRequest, PartsByGroup, ReturnedUnits, SharedCounter, StoreCounterKind,
};
use weir_limiter::quota::Ban;
use weir_limiter::timestamp::Timestamp;

/// The script that the store runs.
pub const SCRIPT: &str = concat!(
    include_str!("state.lua"),
    include_str!("fast_path.lua"),
    include_str!("parts.lua"),
    include_str!("counters.lua"),
    include_str!("regions.lua"),
    include_str!("script.lua"),
);

/// The script that the global store of several regions runs.
pub const GLOBAL_SCRIPT: &str = concat!(include_str!("state.lua"), include_str!("global.lua"));

/// Version of the keys and their values. Instances with different versions count separately.
const VERSION: u32 = 2;

/// Returns the number of groups of counters. The keys of a group are in one slot of a Redis Cluster, and an instance
/// has at most one call per group in flight.
///
/// In a Cluster, groups are spread over the servers. A single server benefits from larger calls rather than from more
/// of them: with 16 groups, 96 instances had 1536 calls in flight while a server was busy. Responses then arrived after
/// their leases had expired, and requests queried for others.
pub const fn group_count(topology: &Topology) -> u16 {
    match topology {
        Topology::Single(_) | Topology::Sentinel(_) => 2,
        Topology::Cluster(_) => 16,
    }
}

/// Returns the group of a counter, which is less than `groups`.
pub fn group_index(counter: SharedCounter, groups: u16) -> u16 {
    PartsByGroup::group_of(counter, groups.into()) as u16
}

/// Returns the key of a group's generation.
pub fn generation_key(prefix: &str, group: u16) -> String {
    format!("{prefix}:{VERSION}:{{{prefix}.{group}}}:generation")
}

/// Returns the key of the parts of a group's limits that instances may spend without the store.
pub fn parts_key(prefix: &str, group: u16) -> String {
    format!("{prefix}:{VERSION}:{{{prefix}.{group}}}:parts")
}

pub fn counter_key(prefix: &str, group: u16, counter: SharedCounter) -> String {
    format!("{prefix}:{VERSION}:{{{prefix}.{group}}}:{:032x}", counter.name())
}

/// Returns the key of the bans kept with a counter.
pub fn ban_key(prefix: &str, group: u16, counter: SharedCounter) -> String {
    format!("{}:ban", counter_key(prefix, group, counter))
}

/// Returns the key of what a region may count of the limit of a counter.
pub fn allotment_key(prefix: &str, group: u16, counter: SharedCounter) -> String {
    format!("{}:region", counter_key(prefix, group, counter))
}

/// Returns the keys of a call about counters of one group that regions share.
pub fn regional_keys(prefix: &str, group: u16, counters: &[SharedCounter]) -> Vec<String> {
    let of_group = [generation_key(prefix, group), parts_key(prefix, group)];
    let of_counters = counters.iter().map(|counter| counter_key(prefix, group, *counter));
    let allotments = counters.iter().map(|counter| allotment_key(prefix, group, *counter));
    of_group.into_iter().chain(of_counters).chain(allotments).collect()
}

/// Encodes a query about a ban. `began` is the time since a ban began; the store begins it unless one is running.
pub fn encode_ban(
    Ban { initial_duration: first, max_duration: max }: Ban,
    began: Option<Duration>,
) -> String {
    let ago = began.map_or_else(|| "-1".to_owned(), |ago| micros(ago).to_string());
    format!("x {} {} {ago}", micros(first), micros(max))
}

/// Returns the keys of the fleet's secret and of its instances.
pub fn fleet_keys(prefix: &str) -> [String; 2] {
    ["secret", "instances"].map(|name| fleet_key(prefix, name))
}

/// Returns a key of what all instances have in common.
pub fn fleet_key(prefix: &str, name: &str) -> String {
    format!("{prefix}:{VERSION}:{{{prefix}.fleet}}:{name}")
}

/// The instance that queries the store.
#[derive(Clone, Copy, Debug)]
pub struct InstanceInfo {
    /// Random number that identifies the instance.
    pub id: u32,
    /// Weight under contention.
    pub weight: f64,
    /// Number of instances that share limits, as far as is known.
    pub instances: u32,
    /// Lead of the store's clock over this process's, in nanoseconds.
    pub clock_lead: i64,
}

/// Encodes a query for the script.
pub fn encode_request(request: &LeaseRequest, instance: InstanceInfo, now: Timestamp) -> String {
    let LeaseRequest { lease_policy: policy, needed, least, requested, demanded, owed, .. } = *request;
    let ReturnedUnits { units: returned, granted_at } = request.returned;
    let [valid, elapsed, period] = [request.valid, request.elapsed, request.period].map(micros);
    let instances = instance.instances;
    let (priority, fair, weight) = (policy.priority, u8::from(policy.is_max_min), instance.weight);
    let demand = format!("{needed} {requested} {demanded} {elapsed} {returned} {granted_at} {owed} {period}");
    let name = |kind: &str| match request.settle_time_of_parts() {
        Some(settle) => format!("{} {}", kind.to_uppercase(), micros(settle)),
        None => kind.to_owned(),
    };
    match request.kind {
        StoreCounterKind::Bucket { interval, burst } => {
            let kind = name("b");
            format!(
                "{kind} {interval} {burst} {valid} {priority} {fair} {weight} {demand} {instances} {least}"
            )
        }
        StoreCounterKind::Window { count, quota } => {
            let mut text = format!("{} {count} {valid} {priority} {weight} {demand}", name("w"));
            let store_now = to_store_time(now, instance.clock_lead);
            for bound in LeaseRequest::window_bounds(&quota, store_now) {
                // The last boundary of all exceeds the precision of a double.
                let _ = write!(text, " {}", (bound.as_nanos() / 1000).min(1 << 52));
            }
            let _ = write!(text, " {instances} {least}");
            text
        }
        StoreCounterKind::Sliding { count, length, sub_windows: parts } => {
            let (kind, length) = (name("s"), micros(length));
            format!(
                "{kind} {count} {length} {parts} {valid} {priority} {weight} {demand} {instances} {least}"
            )
        }
        StoreCounterKind::Refill { count, every, burst } => {
            let (kind, every) = (name("r"), micros(every));
            format!("{kind} {count} {every} {burst} {valid} {priority} {weight} {demand} {instances} {least}")
        }
        StoreCounterKind::Permits { count, used, held } => {
            let (instance, sent) = (instance.id, now.as_nanos() / 1000);
            format!("p {count} {valid} {instance} {used} {requested} {held} {sent}")
        }
    }
}

/// Number of numbers in the result of one query. For limits that regions share there is one more: whether the instance is to
/// go on an errand.
pub const GRANT_NUMBERS: usize = 6;

/// Decodes the result of one query. `store_time` is the store's time in microseconds. `None` if the result is
/// invalid.
pub fn decode_grant(reply: &[i64], store_time: u64) -> Option<LeaseGrant> {
    let &[granted, valid, wait, spread, pause, remaining, ..] = reply else { return None };
    let micros = |number: i64| Some(Duration::from_micros(u64::try_from(number).ok()?));
    Some(LeaseGrant {
        granted: u32::try_from(granted).ok()?,
        valid: micros(valid)?,
        granted_at: store_time,
        wait: micros(wait)?,
        spread: micros(spread)?,
        pause: micros(pause)?,
        remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
    })
}

fn to_store_time(now: Timestamp, clock_lead: i64) -> Timestamp {
    Timestamp::from_nanos(now.as_nanos().saturating_add_signed(clock_lead))
}

fn micros(duration: Duration) -> u128 {
    duration.as_micros()
}
