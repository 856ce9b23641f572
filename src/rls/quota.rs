//! Envoy's rate limit quota service (RLQS), without the network: buckets, the clients that report on them, and their
//! assignments.
//!
//! Envoys decide by themselves, with an assigned token bucket, and report their admitted and rejected requests. A
//! rule's limit is divided among all clients that report on the same bucket (`division`). No assignment is raised
//! before the tokens for it have been given up elsewhere (`bucket`): assignments that may be in force together never
//! exceed the limit.

mod bound;
mod bucket;
mod division;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use self::bound::limit;
use self::bucket::Bucket;
use super::rules::Rules;
use crate::limiter::timestamp::Timestamp;

/// Validity of an assignment. Envoy reports every 5 s, so a few reports may be lost.
pub const TIME_TO_LIVE: Duration = Duration::from_secs(20);

/// Maximum number of buckets.
const MAX_BUCKETS: usize = 100_000;
/// Maximum clients per bucket.
const MAX_CLIENTS: usize = 10_000;
/// Maximum clients of all buckets together, counted once per bucket; each takes about 200 bytes.
const MAX_SHARES: usize = 200_000;

/// Identity of a client: one stream.
pub type StreamId = u64;

/// Identity of a bucket: its keys and values.
pub type BucketId = BTreeMap<String, String>;

/// Usage of a bucket since the last report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The bucket.
    pub bucket: BucketId,
    /// Time since the last report; zero in the first one.
    pub elapsed: Duration,
    /// Number of admitted requests.
    pub allowed: u64,
    /// Number of rejected requests.
    pub denied: u64,
}

/// Which requests an Envoy may admit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// All requests.
    AllowAll,
    /// No requests.
    DenyAll,
    /// A token bucket.
    Tokens {
        /// Capacity of the bucket, and tokens added per period.
        count: u32,
        /// Period.
        per: Duration,
    },
}

/// An assignment of a bucket to one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The client.
    pub to: StreamId,
    /// The bucket.
    pub bucket: BucketId,
    /// The strategy for the next [`TIME_TO_LIVE`]; `None` if no rule applies to the bucket any more.
    pub strategy: Option<Strategy>,
}

/// A bucket of one domain.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    domain: Box<str>,
    bucket: BucketId,
}

/// All buckets and their clients.
#[derive(Debug, Default)]
pub struct Quotas {
    buckets: HashMap<Arc<Key>, Bucket>,
    /// The buckets of each client.
    streams: HashMap<StreamId, HashSet<Arc<Key>>>,
    /// Number of clients of all buckets.
    shares: usize,
    last_sweep: Timestamp,
}

impl Quotas {
    /// Processes a report and returns the assignments to send, in order. The reporter gets an assignment for each
    /// reported bucket to which a rule applies. Other clients get one if their share changes.
    pub fn report(
        &mut self,
        rules: &Rules,
        (from, domain): (StreamId, &str),
        usages: Vec<Usage>,
        now: Timestamp,
    ) -> Vec<Assignment> {
        self.sweep(now);
        let mut assignments = Vec::new();
        for usage in usages {
            let bound = limit(rules, domain, &usage.bucket);
            let key = Key { domain: domain.into(), bucket: usage.bucket.clone() };
            let Some(bound) = bound else {
                // A rule applied before, so the assignment is withdrawn.
                if self.give_up(&key, from) {
                    assignments.push(Assignment { to: from, bucket: usage.bucket, strategy: None });
                }
                continue;
            };
            let Some(bucket) = self.admit(key, from) else { continue };
            let assigned = bucket.report(from, &usage, bound, now);
            assignments.extend(assigned.into_iter().map(|(to, tokens)| Assignment {
                to,
                bucket: usage.bucket.clone(),
                strategy: Some(bound.strategy(tokens)),
            }));
        }
        assignments
    }

    /// Returns the bucket of `key` if `from` is a client of it or can become one.
    fn admit(&mut self, key: Key, from: StreamId) -> Option<&mut Bucket> {
        let (known, clients) =
            self.buckets.get(&key).map_or((false, 0), |bucket| (bucket.has(from), bucket.clients()));
        let has_room = clients < MAX_CLIENTS
            && self.shares < MAX_SHARES
            && (clients > 0 || self.buckets.len() < MAX_BUCKETS);
        if !known && !has_room {
            return None;
        }
        let key = Arc::new(key);
        self.shares += usize::from(!known);
        // Also for a known client, which may have left and returned.
        self.streams.entry(from).or_default().insert(Arc::clone(&key));
        Some(self.buckets.entry(key).or_default())
    }

    /// Removes a client from a bucket; returns whether it was there.
    fn give_up(&mut self, key: &Key, from: StreamId) -> bool {
        let Some(bucket) = self.buckets.get_mut(key) else { return false };
        let was_there = bucket.forget(from);
        if bucket.clients() == 0 {
            self.buckets.remove(key);
        }
        self.shares -= usize::from(was_there);
        if let Some(keys) = self.streams.get_mut(&from) {
            keys.remove(key);
        }
        was_there
    }

    /// Handles the end of a client's stream. Its assignments count until they expire, because the client may still use
    /// them.
    pub fn leave(&mut self, stream: StreamId) {
        for key in self.streams.remove(&stream).into_iter().flatten() {
            if let Some(bucket) = self.buckets.get_mut(&key) {
                bucket.leave(stream);
            }
        }
    }

    /// Removes expired clients; runs at most once per [`TIME_TO_LIVE`].
    fn sweep(&mut self, now: Timestamp) {
        if now.since(self.last_sweep) < TIME_TO_LIVE {
            return;
        }
        self.last_sweep = now;
        self.buckets.retain(|key, bucket| {
            for stream in bucket.sweep(now) {
                self.shares -= 1;
                if let Some(keys) = self.streams.get_mut(&stream) {
                    keys.remove(key);
                }
            }
            bucket.clients() > 0
        });
    }
}

#[cfg(test)]
mod tests;
