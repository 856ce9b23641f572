//! Envoy's rate limit quota service, as far as it needs no network: buckets, the clients that report on them, and what
//! each is assigned.
//!
//! Envoys decide by themselves, with a token bucket that they are assigned, and report what they let pass and what not.
//! Here a rule's limit is divided among those that report on the same bucket (`division`), and no assignment is raised
//! before what it takes has been given up elsewhere (`bucket`): assignments that may be in force never exceed the limit
//! together.

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

/// How long an assignment holds. Envoy reports every five seconds; this is what it may miss.
pub const TIME_TO_LIVE: Duration = Duration::from_secs(20);

/// Buckets in all.
const MAX_BUCKETS: usize = 100_000;
/// Clients of one bucket.
const MAX_CLIENTS: usize = 10_000;
/// Clients of all buckets, each counted in every bucket that it has: some 200 bytes each.
const MAX_SHARES: usize = 200_000;

/// Who reports: one stream.
pub type StreamId = u64;

/// What a bucket is known by.
pub type BucketId = BTreeMap<String, String>;

/// What happened in a bucket since the last report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The bucket.
    pub bucket: BucketId,
    /// Since the last report; nothing in the first one.
    pub elapsed: Duration,
    /// Requests that passed.
    pub allowed: u64,
    /// Requests that did not.
    pub denied: u64,
}

/// What an Envoy may let pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Everything.
    AllowAll,
    /// Nothing.
    DenyAll,
    /// So many at once, and as many again over this time.
    Tokens {
        /// How many.
        count: u32,
        /// Over which time.
        per: Duration,
    },
}

/// What one client is told of one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The client.
    pub to: StreamId,
    /// The bucket.
    pub bucket: BucketId,
    /// What it may have from now on, for [`TIME_TO_LIVE`]; `None` if nothing is said of the bucket any more.
    pub strategy: Option<Strategy>,
}

/// A bucket of one domain.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    domain: Box<str>,
    bucket: BucketId,
}

/// Everything that is divided.
#[derive(Debug, Default)]
pub struct Quotas {
    buckets: HashMap<Arc<Key>, Bucket>,
    /// The buckets of each client.
    streams: HashMap<StreamId, HashSet<Arc<Key>>>,
    /// Clients of all buckets.
    shares: usize,
    last_sweep: Timestamp,
}

impl Quotas {
    /// Takes a report, and returns the assignments to send, in their order. The reporter is assigned something for every
    /// bucket that it reports on and that a rule is for; others where their share changes.
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
                // What a rule was for until now is given back.
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

    /// The bucket of `key`, if `from` is in it or there is room.
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
        // Also of one that is known: it may have left, and come again.
        self.streams.entry(from).or_default().insert(Arc::clone(&key));
        Some(self.buckets.entry(key).or_default())
    }

    /// Forgets a client of a bucket; whether there was one.
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

    /// A client has gone. What it was assigned holds until it runs out, since it may go on using it.
    pub fn leave(&mut self, stream: StreamId) {
        for key in self.streams.remove(&stream).into_iter().flatten() {
            if let Some(bucket) = self.buckets.get_mut(&key) {
                bucket.leave(stream);
            }
        }
    }

    /// Forgets what has run out, once in a while.
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
