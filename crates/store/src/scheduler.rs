//! Scheduler of queries to the store: which counters, and when.
//!
//! Queries of one group are batched: while a call is in flight, further queries wait for the next one. So a busy
//! instance makes one call per response of the store, each for more counters.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::call_latency::CallLatency;
use super::parts::{PartRenewal, StoreParts};
use super::protocol::{self, InstanceInfo};
use super::regions::Region;
use super::regions::errands::ErrandBook;
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
    parts: Arc<StoreParts>,
    /// Whether calls renew this instance's parts of the limits.
    pub renews_parts: bool,
    /// Errands of this instance, if regions share the limits.
    pub errands: Option<ErrandBook>,
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
    /// The renewal of this instance's part of the limits, encoded for the script.
    pub renewal: Option<String>,
    /// The last known generation of the group's data.
    pub generation: Option<Box<str>>,
    /// Whether regions share the limits.
    pub is_regional: bool,
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
    /// The renewed part of the limits; negative if none was renewed.
    pub part: i64,
    /// The result of each query.
    pub grants: Vec<Vec<i64>>,
}

impl LeaseBatch {
    /// Returns the keys of the call: of the group's generation and parts, of the counters, and of the bans.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let of_group =
            [protocol::generation_key(prefix, self.group), protocol::parts_key(prefix, self.group)];
        let counters = self.requests.iter().map(|it| protocol::counter_key(prefix, self.group, it.counter));
        let bans = self.bans.iter().map(|(counter, _)| protocol::ban_key(prefix, self.group, *counter));
        let allotments = self.requests.iter().filter(|_| self.is_regional);
        let allotments = allotments.map(|it| protocol::allotment_key(prefix, self.group, it.counter));
        of_group.into_iter().chain(counters).chain(bans).chain(allotments).collect()
    }

    /// Returns the call of the script.
    pub fn call(&self, prefix: &str) -> CounterCall<'_> {
        let (generation, renewal) = (self.generation.as_deref(), self.renewal.as_deref());
        CounterCall { keys: self.keys(prefix), generation, renewal, encoded: &self.encoded }
    }
}

/// A call of the script about counters of one group.
#[derive(Debug)]
pub struct CounterCall<'c> {
    /// Keys: of the group's generation and parts, of the counters and bans, and of allotments.
    pub keys: Vec<String>,
    /// The last known generation of the group's data.
    pub generation: Option<&'c str>,
    pub renewal: Option<&'c str>,
    /// All queries, encoded for the script.
    pub encoded: &'c [String],
}

impl CounterCall<'_> {
    /// Returns the arguments of the call: the known generation, the server's `run_id`, the `new_generation`
    /// in case the data belongs to another run, the renewal, and the queries.
    pub fn arguments(&self, run_id: impl fmt::Display, new_generation: String) -> Vec<String> {
        let [known, renewal] = [self.generation, self.renewal].map(|text| text.unwrap_or("-").to_owned());
        let of_call = [known, run_id.to_string(), new_generation, renewal];
        of_call.into_iter().chain(self.encoded.iter().cloned()).collect()
    }
}

impl BatchReply {
    /// Whether it has a result for each of this many queries.
    pub fn fits(&self, queries: usize) -> bool {
        self.grants.len() == queries && self.grants.iter().all(|grant| grant.len() >= protocol::GRANT_NUMBERS)
    }
}

impl CounterGroup {
    fn has_queued(&self) -> bool {
        !self.queued.is_empty() || !self.new_bans.is_empty()
    }

    /// Takes the counters of the next call, each once.
    fn take_queued(&mut self) -> Vec<SharedCounter> {
        let count = self.queued.len().min(MAX_BATCH);
        let mut counters: Vec<_> = self.queued.drain(..count).collect();
        counters.sort_unstable();
        counters.dedup();
        counters
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
            parts: Arc::default(),
            renews_parts: false,
            errands: None,
        }
    }

    /// Shares the limits between regions, of which this is one.
    pub fn with_region(self, region: Option<Region>) -> Self {
        let groups = self.groups.len() as u16;
        Self { errands: region.map(|region| ErrandBook::new(region, groups)), ..self }
    }

    /// The last known generation of a group's data.
    pub fn generation(&self, group: u16) -> Option<Box<str>> {
        self.groups[usize::from(group)].generation.clone()
    }

    /// Renews these parts, which the store holds back for the time `valid` after a renewal.
    pub fn with_parts(self, parts: Arc<StoreParts>, valid: Duration) -> Self {
        parts.configure(self.groups.len() as u16, valid);
        Self { parts, ..self }
    }

    /// Sets the number of instances that share limits.
    pub fn set_instances(&mut self, instances: u32) {
        self.instance.instances = instances;
        self.parts.set_instances(instances);
    }

    /// Time at which the next part has to be renewed, of the groups without a call in flight.
    pub fn next_renewal(&self) -> Option<Timestamp> {
        let idle = (0..).zip(&self.groups).filter(|(_, group)| !group.is_call_in_flight);
        idle.filter_map(|(index, _)| self.parts.due(index)).min().filter(|_| self.renews_parts)
    }

    /// Gives the parts up with the next calls; returns whether there are any.
    pub fn give_up_parts(&self, now: Timestamp) -> bool {
        self.parts.give_up(now)
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

    /// Whether no query waits or is in flight.
    pub fn is_idle(&self) -> bool {
        !self.groups.iter().any(|group| group.is_call_in_flight || group.has_queued())
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
            let has_renewal = |index| self.renews_parts && self.parts.is_due(index as u16, now);
            let mut groups = self.groups.iter().enumerate();
            let (index, _) = groups.find(|(index, group)| {
                !group.is_call_in_flight && (group.has_queued() || has_renewal(*index))
            })?;
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
        let mut counters = group.take_queued();
        let skipped: Vec<_> = counters.extract_if(.., |counter| is_abandoned(*counter)).collect();
        skipped.iter().for_each(|counter| limiter.cancel_request(*counter));
        let latency =
            StoreLatency { next_call: self.latency.of_next_call(now), wait: self.latency.wait(now) };
        let mut request = |counter| {
            let request = limiter.lease_request(counter, latency, now);
            self.removed.extend(request.is_none().then_some(counter));
            request
        };
        let requests: Vec<_> = counters.into_iter().filter_map(&mut request).collect();
        let encode = |it| {
            let request = protocol::encode_request(it, instance, now);
            match self.errands.as_ref().and_then(|errands| errands.head_of_query(it)) {
                Some(head) => format!("{head};{request}"),
                None => request,
            }
        };
        let mut encoded: Vec<_> = requests.iter().map(encode).collect();
        let mut bans = Vec::new();
        for (counter, is_new) in group.take_bans(&requests) {
            if let Some((ban, began)) = limiter.ban_of_counter(counter, now) {
                encoded.push(protocol::encode_ban(ban, began.filter(|_| is_new)));
                bans.push((counter, is_new));
            }
        }
        let (renewal, is_due) = self.renew_parts(index as u16, &requests, now);
        let group = &mut self.groups[index];
        group.is_call_in_flight = !encoded.is_empty() || is_due;
        let (generation, is_sent) = (group.generation.clone(), group.is_call_in_flight);
        for counter in skipped {
            self.schedule_review(counter, now.saturating_add(GIVE_BACK_DELAY));
        }
        let group = index as u16;
        let is_regional = self.errands.is_some();
        is_sent.then_some(LeaseBatch {
            group,
            requests,
            bans,
            encoded,
            renewal,
            generation,
            is_regional,
            sent_at: now,
        })
    }

    /// Returns the renewal of a group's part in a call with these requests, and whether it is due. It is due without a
    /// renewal if the time of the store is not known, which every reply has.
    fn renew_parts(&self, group: u16, requests: &[LeaseRequest], now: Timestamp) -> (Option<String>, bool) {
        for request in requests.iter().filter(|request| request.settle_time_of_parts().is_some()) {
            self.parts.record_demand(group, request.demanded_time(), now);
        }
        let is_due = self.renews_parts && self.parts.is_due(group, now);
        let renewal = is_due.then(|| self.parts.renew(group, now)).flatten();
        (renewal.map(|renewal: PartRenewal| renewal.encode(self.instance.id)), is_due)
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
        let clock_lead = store_nanos.saturating_sub(i64::try_from(now.as_nanos()).unwrap_or(i64::MAX));
        self.instance.clock_lead = clock_lead;
        self.parts.record_clock_lead(batch.group, clock_lead, now);
        if batch.renewal.is_some() {
            self.parts.apply(batch.group, reply.part, batch.sent_at, now);
        }
        for (request, grant) in batch.requests.iter().zip(&reply.grants) {
            if let Some(errands) = &mut self.errands
                && grant.get(protocol::GRANT_NUMBERS) == Some(&1)
            {
                errands.send(request);
            }
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
        self.parts.record_failure(batch.group);
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
mod tests;
