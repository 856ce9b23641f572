//! Status of the counters of shared limits on this instance, for operators.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Duration;

use super::{LeaseAccount, SharedCounter, lease_of};
use crate::Limiter;
use crate::table::LimitId;
use crate::timestamp::Timestamp;

/// Age from which measured demand counts as zero.
const RECENT: Duration = Duration::from_secs(2);

/// Status of one shared limit: its counters with leases, pauses or demand on this instance.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SharedLimitStatus {
    /// Number of counters with a lease, a pause or recent demand.
    pub counters: usize,
    /// Units that this instance may spend, of all counters.
    pub held: u64,
    /// Demand of this instance in units per second, of all counters.
    pub demand: f64,
    /// The counters with the highest demand, highest first.
    pub busiest: Vec<SharedCounterStatus>,
}

/// One counter of a shared limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedCounterStatus {
    /// Its name in the store.
    pub name: u128,
    /// Units that this instance may spend.
    pub held: u32,
    /// Demand of this instance in units per second.
    pub demand: f64,
    /// Units left for all instances, including those held here; `None` before the first response of the store.
    pub remaining: Option<u32>,
    /// Time until the store has units again.
    pub pause: Duration,
}

impl Limiter {
    /// Returns the status of shared limits, each with at most `max_counters` of its counters. Scans the whole
    /// table, with one shard locked at a time.
    pub fn shared_limit_statuses(
        &self,
        max_counters: usize,
        now: Timestamp,
    ) -> HashMap<LimitId, SharedLimitStatus> {
        let mut statuses = HashMap::<LimitId, SharedLimitStatus>::new();
        for shard in 0..self.table.shards() {
            let shard = self.table.lock(shard);
            for (key, account) in shard.lease_accounts() {
                let held = lease_of(&shard, *key, account.limit_id, now).units(now);
                // Permits of requests in flight are not available.
                let in_use = u32::try_from(shard.held_of(*key, account.limit_id)).unwrap_or(u32::MAX);
                let counter = SharedCounter { limit: account.limit_id, key: *key };
                let counter = account.counter_status(counter, held.saturating_sub(in_use), now);
                statuses.entry(account.limit_id).or_default().add(counter, max_counters);
            }
        }
        for standing in statuses.values_mut() {
            standing.truncate(max_counters);
        }
        statuses
    }
}

impl SharedLimitStatus {
    fn add(&mut self, counter: SharedCounterStatus, max_counters: usize) {
        self.counters += 1;
        self.held += u64::from(counter.held);
        self.demand += counter.demand;
        self.busiest.push(counter);
        // Sorting at intervals keeps the list short, however many counters there are.
        if self.busiest.len() > 2 * max_counters {
            self.truncate(max_counters);
        }
    }

    fn truncate(&mut self, max_counters: usize) {
        self.busiest.sort_unstable_by(SharedCounterStatus::cmp_by_demand);
        self.busiest.truncate(max_counters);
    }
}

impl SharedCounterStatus {
    fn cmp_by_demand(&self, other: &Self) -> Ordering {
        let order = |one: &Self| (one.held, one.name);
        other.demand.total_cmp(&self.demand).then_with(|| order(other).cmp(&order(self)))
    }
}

impl LeaseAccount {
    /// Units left for all instances, in addition to those in the slot: what was left at the last response of the store,
    /// and what this instance holds back.
    pub(crate) fn remaining_outside_slot(&self, now: Timestamp) -> u32 {
        self.remaining.unwrap_or(0).saturating_add(self.held_back(now))
    }

    /// As [`Self::remaining_outside_slot`]; `None` before the first response of the store.
    pub(crate) fn known_remaining_outside_slot(&self, now: Timestamp) -> Option<u32> {
        self.remaining.map(|_| self.remaining_outside_slot(now))
    }

    fn counter_status(&self, counter: SharedCounter, held: u32, now: Timestamp) -> SharedCounterStatus {
        let held = held.saturating_add(self.held_back(now));
        SharedCounterStatus {
            name: counter.name(),
            held,
            demand: if now.since(self.requested_at) < RECENT { self.demand_rate } else { 0.0 },
            remaining: self.remaining.map(|remaining| remaining.saturating_add(held)),
            pause: self.pauses_until.since(now),
        }
    }
}
