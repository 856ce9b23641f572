//! Scheduler of queries to the store: which counters, and when.
//!
//! Queries of one group are batched: while a call is in flight, further queries wait for the next one. So a busy
//! instance makes one call per response of the store, each for more counters.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::fmt;
use std::time::Duration;

use super::call_latency::CallLatency;
use super::protocol::{self, InstanceInfo};
use weir_limiter::Limiter;
use weir_limiter::leases::{
    AfterGrant, AppliedGrant, LeaseGrant, LeaseRequest, LeaseReview, SharedCounter, StoreLatency,
};
use weir_limiter::timestamp::Timestamp;

/// Maximum counters per call, which bounds how long a call occupies the store.
const MAX_BATCH: usize = 64;

/// Delay of queries that only give units back, while the store is overloaded.
const GIVE_BACK_DELAY: Duration = Duration::from_millis(500);

/// Queries that are waiting or in flight.
#[derive(Debug)]
pub struct LeaseScheduler {
    groups: Vec<CounterGroup>,
    reviews: BinaryHeap<Reverse<(Timestamp, SharedCounter)>>,
    /// When each counter is due for a review. Entries of the heap with another time are stale.
    due: BTreeMap<SharedCounter, Timestamp>,
    /// Counters that were to be queried, but whose limits are gone.
    removed: Vec<SharedCounter>,
    latency: CallLatency,
    /// This instance, as the store sees it.
    pub instance: InstanceInfo,
}

#[derive(Debug, Default)]
struct CounterGroup {
    queued: VecDeque<SharedCounter>,
    /// Counters with which a ban has begun.
    new_bans: BTreeSet<SharedCounter>,
    is_call_in_flight: bool,
    generation: Option<Box<str>>,
}

/// One call of the script.
#[derive(Debug)]
pub struct LeaseBatch {
    /// The group of all counters in the call.
    pub group: u16,
    /// Queries, one per counter.
    pub requests: Vec<LeaseRequest>,
    /// Queries about bans, which follow the others, and whether each ban begins.
    pub bans: Vec<(SharedCounter, bool)>,
    /// All queries, encoded for the script.
    pub encoded: Vec<String>,
    /// The last known generation of the group's data.
    pub generation: Option<Box<str>>,
    /// When the call was sent.
    pub sent_at: Timestamp,
}

/// The store's reply to a call.
#[derive(Debug)]
pub struct BatchReply {
    /// Generation of the group's data.
    pub generation: Box<str>,
    /// The store's time, in microseconds.
    pub store_time: u64,
    /// The result of each query.
    pub grants: Vec<Vec<i64>>,
}

impl LeaseBatch {
    /// Returns the keys of the call: of the group's generation, of the counters, and of the bans.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let generation = protocol::generation_key(prefix, self.group);
        let counters = self.requests.iter().map(|it| protocol::counter_key(prefix, self.group, it.counter));
        let bans = self.bans.iter().map(|(counter, _)| protocol::ban_key(prefix, self.group, *counter));
        std::iter::once(generation).chain(counters).chain(bans).collect()
    }

    /// Returns the arguments of the call: the known generation, the server's `run_id`, the `new_generation`
    /// in case the data belongs to another run, and the queries.
    pub fn arguments(&self, run_id: impl fmt::Display, new_generation: String) -> Vec<String> {
        let known = self.generation.as_deref().unwrap_or("-").to_owned();
        [known, run_id.to_string(), new_generation].into_iter().chain(self.encoded.iter().cloned()).collect()
    }
}

impl BatchReply {
    /// Whether it has a result for each query of the batch.
    pub fn fits(&self, batch: &LeaseBatch) -> bool {
        self.grants.len() == batch.encoded.len()
            && self.grants.iter().all(|grant| grant.len() == protocol::GRANT_NUMBERS)
    }
}

impl CounterGroup {
    fn has_queued(&self) -> bool {
        !self.queued.is_empty() || !self.new_bans.is_empty()
    }

    /// Returns the counters whose bans are queried, and whether a ban has begun with them. These are the counters of
    /// `requests`, and up to a full call of others with which a ban has begun.
    fn take_bans(&mut self, requests: &[LeaseRequest]) -> BTreeMap<SharedCounter, bool> {
        let mut bans: BTreeMap<_, _> = requests
            .iter()
            .map(|request| (request.counter, self.new_bans.remove(&request.counter)))
            .collect();
        while bans.len() < MAX_BATCH
            && let Some(counter) = self.new_bans.pop_first()
        {
            bans.insert(counter, true);
        }
        bans
    }
}

impl LeaseScheduler {
    /// Creates a scheduler without queries, with this number of `groups` of counters.
    pub fn new(instance: InstanceInfo, groups: u16) -> Self {
        Self {
            groups: (0..groups).map(|_| CounterGroup::default()).collect(),
            reviews: BinaryHeap::new(),
            due: BTreeMap::new(),
            removed: Vec::new(),
            latency: CallLatency::default(),
            instance,
        }
    }

    /// Queries `counter` with the next call of its group.
    pub fn enqueue(&mut self, counter: SharedCounter) {
        self.group_mut(counter).queued.push_back(counter);
    }

    /// Reports to the store, with the next call of its group, that a ban has begun with `counter`.
    pub fn enqueue_ban(&mut self, counter: SharedCounter) {
        self.group_mut(counter).new_bans.insert(counter);
    }

    fn group_mut(&mut self, counter: SharedCounter) -> &mut CounterGroup {
        let group = protocol::group_index(counter, self.groups.len() as u16);
        &mut self.groups[usize::from(group)]
    }

    /// Records the latency of a call that does not query counters, or that has failed.
    pub fn record_other_call(&mut self, latency: Duration, now: Timestamp) {
        self.latency.record_peak(latency, now);
    }

    /// Returns the time that requests wait for the store, unless their rule has a maximum of its own.
    pub fn default_wait(&self, now: Timestamp) -> Duration {
        self.latency.wait(now)
    }

    /// Returns the latency to expect of a call if the store is overloaded; zero if it is not.
    pub fn overload_latency(&self, now: Timestamp) -> Duration {
        if self.latency.is_overloaded(now) { self.latency.expected(now) } else { Duration::ZERO }
    }

    /// Reviews the counters that are due; returns when the next one is due.
    pub fn review_due(&mut self, limiter: &Limiter, now: Timestamp) -> Option<Timestamp> {
        while let Some(Reverse((at, counter))) = self.reviews.peek().copied() {
            if at > now {
                return Some(at);
            }
            self.reviews.pop();
            if self.due.get(&counter) != Some(&at) {
                continue;
            }
            self.due.remove(&counter);
            match limiter.review(counter, now) {
                LeaseReview::GiveBack if self.latency.is_overloaded(now) => {
                    limiter.cancel_request(counter);
                    self.schedule_review(counter, now.saturating_add(GIVE_BACK_DELAY));
                }
                LeaseReview::Query | LeaseReview::GiveBack => self.enqueue(counter),
                LeaseReview::Later(at) => self.schedule_review(counter, at),
                LeaseReview::Done => {}
            }
        }
        None
    }

    /// Returns the next call to make. Must be called repeatedly until it returns `None`. Counters that
    /// `is_abandoned` accepts, because no request waits for them any more, are left out.
    pub fn next_batch(
        &mut self,
        limiter: &Limiter,
        now: Timestamp,
        is_abandoned: &mut impl FnMut(SharedCounter) -> bool,
    ) -> Option<LeaseBatch> {
        loop {
            let index =
                self.groups.iter().position(|group| !group.is_call_in_flight && group.has_queued())?;
            if let Some(batch) = self.batch_of_group(index, limiter, now, is_abandoned) {
                return Some(batch);
            }
        }
    }

    /// Takes queries of a group from its queue; `None` if none of them is to be sent.
    fn batch_of_group(
        &mut self,
        index: usize,
        limiter: &Limiter,
        now: Timestamp,
        is_abandoned: &mut impl FnMut(SharedCounter) -> bool,
    ) -> Option<LeaseBatch> {
        let (instance, group) = (self.instance, &mut self.groups[index]);
        let count = group.queued.len().min(MAX_BATCH);
        let mut counters: Vec<_> = group.queued.drain(..count).collect();
        counters.sort_unstable();
        counters.dedup();
        let skipped: Vec<_> = counters.extract_if(.., |counter| is_abandoned(*counter)).collect();
        skipped.iter().for_each(|counter| limiter.cancel_request(*counter));
        let latency =
            StoreLatency { next_call: self.latency.of_next_call(now), wait: self.latency.wait(now) };
        let mut requests = Vec::with_capacity(counters.len());
        for counter in counters {
            match limiter.lease_request(counter, latency, now) {
                Some(request) => requests.push(request),
                None => self.removed.push(counter),
            }
        }
        let mut encoded: Vec<_> =
            requests.iter().map(|request| protocol::encode_request(request, instance, now)).collect();
        let mut bans = Vec::new();
        for (counter, is_new) in group.take_bans(&requests) {
            if let Some((ban, began)) = limiter.ban_of_counter(counter, now) {
                encoded.push(protocol::encode_ban(ban, began.filter(|_| is_new)));
                bans.push((counter, is_new));
            }
        }
        group.is_call_in_flight = !encoded.is_empty();
        let generation = group.generation.clone();
        for counter in skipped {
            self.schedule_review(counter, now.saturating_add(GIVE_BACK_DELAY));
        }
        (!encoded.is_empty()).then_some(LeaseBatch {
            group: index as u16,
            requests,
            bans,
            encoded,
            generation,
            sent_at: now,
        })
    }

    /// Takes the counters that were to be queried since the last call, but whose limits are gone.
    pub fn take_removed(&mut self) -> Vec<SharedCounter> {
        std::mem::take(&mut self.removed)
    }

    /// Stores what the store has granted. Counters for which the store granted nothing, because its clock was outside
    /// of the windows in the query, are queried again.
    pub fn apply_reply(
        &mut self,
        batch: &LeaseBatch,
        reply: &BatchReply,
        limiter: &Limiter,
        now: Timestamp,
        mut on_grant: impl FnMut(&LeaseRequest, LeaseGrant, AppliedGrant),
    ) {
        self.latency.record(now.since(batch.sent_at), now);
        let group = &mut self.groups[usize::from(batch.group)];
        group.is_call_in_flight = false;
        group.generation = Some(reply.generation.clone());
        let store_nanos = i64::try_from(reply.store_time.saturating_mul(1000)).unwrap_or(i64::MAX);
        self.instance.clock_lead =
            store_nanos.saturating_sub(i64::try_from(now.as_nanos()).unwrap_or(i64::MAX));
        for (request, grant) in batch.requests.iter().zip(&reply.grants) {
            let Some(grant) = protocol::decode_grant(grant, reply.store_time) else {
                limiter.repeat_request(request);
                self.enqueue(request.counter);
                continue;
            };
            let applied = limiter.apply_grant(request, grant, batch.sent_at, now);
            on_grant(request, grant, applied);
            match applied.next {
                AfterGrant::Query => self.enqueue(request.counter),
                AfterGrant::Review(at) => self.schedule_review(request.counter, at),
                AfterGrant::Done => {}
            }
        }
        let ban_grants = reply.grants.iter().skip(batch.requests.len());
        for (&(counter, _), ban) in batch.bans.iter().zip(ban_grants) {
            if let Some(LeaseGrant { granted: doubled, wait: remaining, .. }) =
                protocol::decode_grant(ban, reply.store_time)
            {
                limiter.apply_shared_ban(counter, remaining, doubled, now);
            }
        }
    }

    /// Handles a failed call. Units that it may have granted expire unspent, and its counters are queried again when
    /// requests need units. The counters are reviewed after 1 s.
    pub fn apply_failure(&mut self, batch: &LeaseBatch, limiter: &Limiter, now: Timestamp) {
        self.latency.record_peak(now.since(batch.sent_at), now);
        self.groups[usize::from(batch.group)].is_call_in_flight = false;
        for request in &batch.requests {
            limiter.abandon_request(request);
            self.schedule_review(request.counter, now.saturating_add(Duration::from_secs(1)));
        }
        let new_bans = batch.bans.iter().filter(|(_, begins)| *begins).map(|(counter, _)| *counter);
        self.groups[usize::from(batch.group)].new_bans.extend(new_bans);
    }

    /// Reviews `counter` at `at`, unless an earlier review is due.
    pub fn schedule_review(&mut self, counter: SharedCounter, at: Timestamp) {
        if self.due.get(&counter).is_none_or(|due| at < *due) {
            self.due.insert(counter, at);
            self.reviews.push(Reverse((at, counter)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limiter::leases::LeaseOutcome;
    use weir_limiter::testing::{NOW, limiter};

    fn at(millis: u64) -> Timestamp {
        NOW.saturating_add(Duration::from_millis(millis))
    }

    fn scheduler() -> LeaseScheduler {
        LeaseScheduler::new(InstanceInfo { id: 1, weight: 1.0, instances: 1, clock_lead: 0 }, 1)
    }

    /// Leases 10 units for a second, which nothing spends.
    fn lease(scheduler: &mut LeaseScheduler) -> Limiter {
        let (limiter, check) = limiter();
        limiter.acquire_units(&check, at(0));
        scheduler.enqueue(limiter.shared_counter(&check));
        let batch = scheduler.next_batch(&limiter, at(0), &mut |_| false).unwrap();
        let grants = vec![vec![10, 1_000_000, 0, 0, 0, 50]];
        let reply = BatchReply { generation: "1".into(), store_time: 1, grants };
        scheduler.apply_reply(&batch, &reply, &limiter, at(1), |_, _, _| {});
        limiter
    }

    /// Returns whether a query is sent in a span of milliseconds in which the store responds to other calls with this
    /// latency.
    fn sends_query(
        scheduler: &mut LeaseScheduler,
        limiter: &Limiter,
        span: std::ops::Range<u64>,
        latency: Duration,
    ) -> bool {
        span.into_iter().any(|millis| {
            scheduler.latency.record(latency, at(millis));
            scheduler.review_due(limiter, at(millis));
            scheduler.next_batch(limiter, at(millis), &mut |_| false).is_some()
        })
    }

    #[test]
    fn request_that_arrives_during_a_query_is_in_the_next_one() {
        let (limiter, check) = limiter();
        let counter = limiter.shared_counter(&check);
        let mut scheduler = scheduler();
        let next = |scheduler: &mut LeaseScheduler, millis| {
            scheduler
                .next_batch(&limiter, at(millis), &mut |_| false)
                .map(|batch| (batch.requests[0].needed, batch))
        };
        assert_eq!(limiter.acquire_units(&check, at(0)), LeaseOutcome::Requested(true));
        scheduler.enqueue(counter);
        let (needed, first) = next(&mut scheduler, 0).unwrap();
        assert_eq!(limiter.acquire_units(&check, at(1)), LeaseOutcome::Requested(false));
        let reply = |granted| BatchReply {
            generation: "1".into(),
            store_time: 1,
            grants: vec![vec![granted, 20_000, 0, 0, 0, 50]],
        };
        scheduler.apply_reply(&first, &reply(1), &limiter, at(2), |_, _, _| {});
        assert!(limiter.is_request_pending(counter));
        let (needed_next, second) = next(&mut scheduler, 2).unwrap();
        assert_eq!([needed, needed_next], [1, 1]);
        scheduler.apply_reply(&second, &reply(1), &limiter, at(3), |_, _, _| {});
        assert!(!limiter.is_request_pending(counter) && next(&mut scheduler, 3).is_none());
    }

    #[test]
    fn any_number_of_abandoned_queries_is_skipped() {
        let (limiter, check) = limiter();
        let mut scheduler = scheduler();
        for key in 0..10_000_u32 {
            let check = weir_limiter::Check { key: limiter.hasher().hash_u32(key), ..check };
            scheduler.enqueue(limiter.shared_counter(&check));
        }
        limiter.acquire_units(&check, at(0));
        scheduler.enqueue(limiter.shared_counter(&check));
        let batch = scheduler.next_batch(&limiter, at(0), &mut |_| false).unwrap();
        assert_eq!(batch.requests.len(), 1);
        assert_eq!(scheduler.take_removed().len(), 10_000);
    }

    #[test]
    fn default_wait_follows_calls_that_fail() {
        let (limiter, check) = limiter();
        let mut scheduler = scheduler();
        let before = scheduler.default_wait(at(0));
        limiter.acquire_units(&check, at(0));
        scheduler.enqueue(limiter.shared_counter(&check));
        let batch = scheduler.next_batch(&limiter, at(0), &mut |_| false).unwrap();
        scheduler.apply_failure(&batch, &limiter, at(100));
        assert!(scheduler.default_wait(at(100)) > 4 * before, "{:?}", scheduler.default_wait(at(100)));
    }

    #[test]
    fn units_are_given_back_later_while_the_store_is_overloaded() {
        const FAST: Duration = Duration::from_millis(1);
        const SLOW: Duration = Duration::from_millis(50);
        let mut scheduler = scheduler();
        let limiter = lease(&mut scheduler);
        assert!(sends_query(&mut scheduler, &limiter, 2..1000, FAST));
        let mut overloaded = self::scheduler();
        let limiter = lease(&mut overloaded);
        assert!(!sends_query(&mut overloaded, &limiter, 2..2000, SLOW));
        assert_eq!(overloaded.overload_latency(at(2000)), SLOW);
        assert!(sends_query(&mut overloaded, &limiter, 2000..4000, FAST));
    }
}
