//! Envoy's rate limit quota service (RLQS), without the network: buckets, the clients that report on them, and their
//! assignments.
//!
//! Envoys decide by themselves, with an assigned token bucket, and report their admitted and rejected requests. A
//! rule's limit is divided among all clients that report on the same bucket (`division`). No assignment is raised
//! before the tokens for it have been given up elsewhere (`bucket`): assignments that may be in force together never
//! exceed the limit.

mod bucket;
mod bucket_limit;
mod division;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use self::bucket::QuotaBucket;
use self::bucket_limit::find_bucket_limit;
use super::rules::DescriptorRules;
use weir_limiter::timestamp::Timestamp;

/// Validity of an assignment. Envoy reports every 5 s, so a few reports may be lost.
pub const ASSIGNMENT_TIME_TO_LIVE: Duration = Duration::from_secs(20);

/// Maximum number of buckets.
const MAX_BUCKETS: usize = 100_000;
/// Maximum clients per bucket.
const MAX_CLIENTS_PER_BUCKET: usize = 10_000;
/// Maximum clients of all buckets together, counted once per bucket; each takes about 200 bytes.
const MAX_TOTAL_CLIENTS: usize = 200_000;

/// Identity of a client: one stream.
pub type StreamId = u64;

/// Identity of a bucket: its keys and values.
pub type BucketId = BTreeMap<String, String>;

/// Usage of a bucket since the last report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketUsage {
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
pub enum AssignedStrategy {
    /// All requests.
    AllowAll,
    /// No requests.
    DenyAll,
    TokenBucket {
        /// Capacity of the bucket, and tokens added per period.
        tokens: u32,
        period: Duration,
    },
}

/// An assignment of a bucket to one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub client: StreamId,
    pub bucket: BucketId,
    /// The strategy for the next [`ASSIGNMENT_TIME_TO_LIVE`]; `None` if no rule applies to the bucket any more.
    pub strategy: Option<AssignedStrategy>,
}

/// A bucket of one domain.
#[derive(Debug, PartialEq, Eq, Hash)]
struct BucketKey {
    domain: Box<str>,
    bucket: BucketId,
}

/// All buckets and their clients.
#[derive(Debug, Default)]
pub struct QuotaBuckets {
    buckets: HashMap<Arc<BucketKey>, QuotaBucket>,
    /// The buckets of each client.
    streams: HashMap<StreamId, HashSet<Arc<BucketKey>>>,
    total_clients: usize,
    last_sweep: Timestamp,
}

impl QuotaBuckets {
    /// Processes a report and returns the assignments to send, in order. The reporter gets an assignment for each
    /// reported bucket to which a rule applies. Other clients get one if their share changes.
    pub fn process_report(
        &mut self,
        rules: &DescriptorRules,
        reporter: StreamId,
        domain: &str,
        usages: Vec<BucketUsage>,
        now: Timestamp,
    ) -> Vec<Assignment> {
        self.sweep(now);
        let mut assignments = Vec::new();
        for usage in usages {
            let limit = find_bucket_limit(rules, domain, &usage.bucket);
            let key = BucketKey { domain: domain.into(), bucket: usage.bucket.clone() };
            let Some(limit) = limit else {
                // A rule applied before, so the assignment is withdrawn.
                if self.remove_client(&key, reporter) {
                    assignments.push(Assignment { client: reporter, bucket: usage.bucket, strategy: None });
                }
                continue;
            };
            let Some(bucket) = self.join_bucket(key, reporter) else { continue };
            let assigned_tokens = bucket.record_report(reporter, &usage, limit, now);
            assignments.extend(assigned_tokens.into_iter().map(|(client, tokens)| Assignment {
                client,
                bucket: usage.bucket.clone(),
                strategy: Some(limit.strategy(tokens)),
            }));
        }
        assignments
    }

    /// Returns the bucket of `key` if `from` is a client of it or can become one.
    fn join_bucket(&mut self, key: BucketKey, reporter: StreamId) -> Option<&mut QuotaBucket> {
        let (is_known, clients) = self
            .buckets
            .get(&key)
            .map_or((false, 0), |bucket| (bucket.has_client(reporter), bucket.client_count()));
        let has_room = clients < MAX_CLIENTS_PER_BUCKET
            && self.total_clients < MAX_TOTAL_CLIENTS
            && (clients > 0 || self.buckets.len() < MAX_BUCKETS);
        if !is_known && !has_room {
            return None;
        }
        let key = Arc::new(key);
        self.total_clients += usize::from(!is_known);
        // Also for a known client, which may have left and returned.
        self.streams.entry(reporter).or_default().insert(Arc::clone(&key));
        Some(self.buckets.entry(key).or_default())
    }

    /// Removes a client from a bucket; returns whether it was there.
    fn remove_client(&mut self, key: &BucketKey, client: StreamId) -> bool {
        let Some(bucket) = self.buckets.get_mut(key) else { return false };
        let was_client = bucket.remove_client(client);
        if bucket.client_count() == 0 {
            self.buckets.remove(key);
        }
        self.total_clients -= usize::from(was_client);
        if let Some(keys) = self.streams.get_mut(&client) {
            keys.remove(key);
        }
        was_client
    }

    /// Handles the end of a client's stream. Its assignments count until they expire, because the client may still use
    /// them.
    pub fn close_stream(&mut self, stream: StreamId) {
        for key in self.streams.remove(&stream).into_iter().flatten() {
            if let Some(bucket) = self.buckets.get_mut(&key) {
                bucket.mark_as_left(stream);
            }
        }
    }

    /// Removes expired clients; runs at most once per [`ASSIGNMENT_TIME_TO_LIVE`].
    fn sweep(&mut self, now: Timestamp) {
        if now.since(self.last_sweep) < ASSIGNMENT_TIME_TO_LIVE {
            return;
        }
        self.last_sweep = now;
        self.buckets.retain(|key, bucket| {
            for stream in bucket.sweep(now) {
                self.total_clients -= 1;
                if let Some(keys) = self.streams.get_mut(&stream) {
                    keys.remove(key);
                }
            }
            bucket.client_count() > 0
        });
    }
}

#[cfg(test)]
mod tests;
