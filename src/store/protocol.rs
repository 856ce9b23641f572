//! Encoding of queries and grants in calls of the store's script.

use std::fmt::Write as _;
use std::time::Duration;

use super::settings::Topology;
use crate::limiter::leases::{LeaseGrant, LeaseRequest, SharedCounter, StoreCounterKind};
use crate::limiter::quota::Ban;
use crate::limiter::timestamp::Timestamp;

/// The script that the store runs.
pub const SCRIPT: &str = include_str!("script.lua");

/// Version of the keys and their values. Instances with different versions count separately.
const VERSION: u32 = 2;

/// Returns the number of groups of counters. The keys of a group are in one slot of a Redis Cluster, and an instance
/// has at most one call per group in flight.
///
/// In a Cluster, groups are spread over the servers. A single server benefits from larger calls rather than from more
/// of them: with 16 groups, 96 instances had 1536 calls in flight while a server was busy. Responses then arrived after
/// their leases had expired, and requests queried for others.
pub const fn groups(topology: &Topology) -> u16 {
    match topology {
        Topology::Single(_) | Topology::Sentinel(_) => 2,
        Topology::Cluster(_) => 16,
    }
}

/// Returns the group of a counter, which is less than `groups`.
pub fn group(counter: SharedCounter, groups: u16) -> u16 {
    (counter.name() % u128::from(groups)) as u16
}

/// Returns the key of a group's generation.
pub fn generation_key(prefix: &str, group: u16) -> String {
    format!("{prefix}:{VERSION}:{{{prefix}.{group}}}:generation")
}

/// Returns the key of a counter.
pub fn counter_key(prefix: &str, group: u16, counter: SharedCounter) -> String {
    format!("{prefix}:{VERSION}:{{{prefix}.{group}}}:{:032x}", counter.name())
}

/// Returns the key of the bans kept with a counter.
pub fn ban_key(prefix: &str, group: u16, counter: SharedCounter) -> String {
    format!("{}:ban", counter_key(prefix, group, counter))
}

/// Encodes a query about a ban. `began` is the time since a ban began; the store begins it unless one is running.
pub fn encode_ban(
    Ban { initial_duration: first, max_duration: most }: Ban,
    began: Option<Duration>,
) -> String {
    let ago = began.map_or_else(|| "-1".to_owned(), |ago| micros(ago).to_string());
    format!("x {} {} {ago}", micros(first), micros(most))
}

/// Returns the keys of the fleet's secret and of its instances.
pub fn fleet_keys(prefix: &str) -> [String; 2] {
    ["secret", "instances"].map(|name| format!("{prefix}:{VERSION}:{{{prefix}.fleet}}:{name}"))
}

/// The instance that queries the store.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// Random number that identifies the instance.
    pub instance: u32,
    /// Weight under contention.
    pub weight: f64,
    /// Lead of the store's clock over this process's, in nanoseconds.
    pub ahead: i64,
}

/// Encodes a query for the script.
pub fn encode(question: &LeaseRequest, asker: Asker, now: Timestamp) -> String {
    let LeaseRequest { lease_policy: sharing, needed, wanted, demanded, owed, .. } = *question;
    let (returned, granted_at) = question.returned;
    let [valid, elapsed, period] = [question.valid, question.elapsed, question.period].map(micros);
    let (priority, fair, weight) = (sharing.priority, u8::from(sharing.is_max_min), asker.weight);
    let demand = format!("{needed} {wanted} {demanded} {elapsed} {returned} {granted_at} {owed} {period}");
    match question.kind {
        StoreCounterKind::Bucket { interval, burst } => {
            format!("b {interval} {burst} {valid} {priority} {fair} {weight} {demand}")
        }
        StoreCounterKind::Window { count, quota } => {
            let mut text = format!("w {count} {valid} {priority} {weight} {demand}");
            let there = offset(now, asker.ahead);
            for mark in LeaseRequest::window_bounds(&quota, there) {
                // The last mark of all exceeds the precision of a double.
                let _ = write!(text, " {}", (mark.as_nanos() / 1000).min(1 << 52));
            }
            text
        }
        StoreCounterKind::Sliding { count, length, sub_windows: parts } => {
            format!("s {count} {} {parts} {valid} {priority} {weight} {demand}", micros(length))
        }
        StoreCounterKind::Refill { count, every, burst } => {
            format!("r {count} {} {burst} {valid} {priority} {weight} {demand}", micros(every))
        }
        StoreCounterKind::Permits { count, used, held } => {
            let (instance, sent) = (asker.instance, now.as_nanos() / 1000);
            format!("p {count} {valid} {instance} {used} {wanted} {held} {sent}")
        }
    }
}

/// Decodes the result of one query. `at` is the store's time in microseconds. `None` if the result is invalid.
pub fn decode(reply: &[i64], at: u64) -> Option<LeaseGrant> {
    let &[granted, valid, wait, spread, pause, remaining] = reply else { return None };
    let micros = |number: i64| Some(Duration::from_micros(u64::try_from(number).ok()?));
    Some(LeaseGrant {
        granted: u32::try_from(granted).ok()?,
        valid: micros(valid)?,
        granted_at: at,
        wait: micros(wait)?,
        spread: micros(spread)?,
        pause: micros(pause)?,
        remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
    })
}

fn offset(now: Timestamp, ahead: i64) -> Timestamp {
    Timestamp::from_nanos(now.as_nanos().saturating_add_signed(ahead))
}

fn micros(duration: Duration) -> u128 {
    duration.as_micros()
}
