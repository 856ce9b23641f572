//! Scheduler of queries to the store: which counters, and when.
//!
//! Queries of one group are batched: while a call is in flight, further queries wait for the next one. So a busy
//! instance makes one call per response of the store, each for more counters.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::fmt;
use std::time::Duration;

use super::protocol::{self, Asker};
use crate::limiter::Limiter;
use crate::limiter::leases::{LeaseGrant, LeaseRequest, Review, SharedCounter};
use crate::limiter::timestamp::Timestamp;

/// Maximum counters per call, which bounds how long a call occupies the store.
const MAX_BATCH: usize = 64;

/// Queries that are waiting or in flight.
#[derive(Debug)]
pub struct Desk {
    groups: Vec<Group>,
    reviews: BinaryHeap<Reverse<(Timestamp, SharedCounter)>>,
    /// When each counter is due for a review. Entries of the heap with another time are stale.
    due: BTreeMap<SharedCounter, Timestamp>,
    /// This instance, as the store sees it.
    pub asker: Asker,
}

#[derive(Debug, Default)]
struct Group {
    wanted: VecDeque<SharedCounter>,
    /// Counters with which a ban has begun.
    begun: BTreeSet<SharedCounter>,
    is_asking: bool,
    generation: Option<Box<str>>,
}

/// One call of the script.
#[derive(Debug)]
pub struct Batch {
    /// The group of all counters in the call.
    pub group: u16,
    /// Queries, one per counter.
    pub questions: Vec<LeaseRequest>,
    /// Queries about bans, which follow the others, and whether each ban begins.
    pub bans: Vec<(SharedCounter, bool)>,
    /// All queries, encoded for the script.
    pub encoded: Vec<String>,
    /// The last known generation of the group's data.
    pub generation: Option<Box<str>>,
    /// When the call was sent.
    pub sent: Timestamp,
}

/// The store's reply to a call.
#[derive(Debug)]
pub struct Reply {
    /// Generation of the group's data.
    pub generation: Box<str>,
    /// The store's time, in microseconds.
    pub at: u64,
    /// The result of each query.
    pub grants: Vec<Vec<i64>>,
}

impl Batch {
    /// Returns the keys of the call: of the group's generation, of the counters, and of the bans.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let generation = protocol::generation_key(prefix, self.group);
        let counters = self.questions.iter().map(|it| protocol::counter_key(prefix, self.group, it.counter));
        let bans = self.bans.iter().map(|(counter, _)| protocol::ban_key(prefix, self.group, *counter));
        std::iter::once(generation).chain(counters).chain(bans).collect()
    }

    /// Returns the arguments of the call: the known generation, the server's `run`, the `new` generation in case the
    /// data belongs to another run, and the queries.
    pub fn arguments(&self, run: impl fmt::Display, new: String) -> Vec<String> {
        let known = self.generation.as_deref().unwrap_or("-").to_owned();
        [known, run.to_string(), new].into_iter().chain(self.encoded.iter().cloned()).collect()
    }
}

impl Group {
    fn has_questions(&self) -> bool {
        !self.wanted.is_empty() || !self.begun.is_empty()
    }

    /// Returns the counters whose bans are queried, and whether a ban has begun with them. These are the counters of
    /// `questions`, and up to a full call of others with which a ban has begun.
    fn bans(&mut self, questions: &[LeaseRequest]) -> BTreeMap<SharedCounter, bool> {
        let mut bans: BTreeMap<_, _> = questions
            .iter()
            .map(|question| (question.counter, self.begun.remove(&question.counter)))
            .collect();
        while bans.len() < MAX_BATCH
            && let Some(counter) = self.begun.pop_first()
        {
            bans.insert(counter, true);
        }
        bans
    }
}

impl Desk {
    /// Creates a desk without queries, with this number of `groups` of counters.
    pub fn new(asker: Asker, groups: u16) -> Self {
        Self {
            groups: (0..groups).map(|_| Group::default()).collect(),
            reviews: BinaryHeap::new(),
            due: BTreeMap::new(),
            asker,
        }
    }

    /// Queries `counter` with the next call of its group.
    pub fn want(&mut self, counter: SharedCounter) {
        self.group_of(counter).wanted.push_back(counter);
    }

    /// Reports to the store, with the next call of its group, that a ban has begun with `counter`.
    pub fn ban(&mut self, counter: SharedCounter) {
        self.group_of(counter).begun.insert(counter);
    }

    fn group_of(&mut self, counter: SharedCounter) -> &mut Group {
        let group = protocol::group(counter, self.groups.len() as u16);
        &mut self.groups[usize::from(group)]
    }

    /// Reviews the counters that are due; returns when the next one is due.
    pub fn review(&mut self, limiter: &Limiter, now: Timestamp) -> Option<Timestamp> {
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
                Review::Ask => self.want(counter),
                Review::Later(at) => self.review_at(counter, at),
                Review::Done => {}
            }
        }
        None
    }

    /// Returns the next call to make. Must be called repeatedly until it returns `None`. Counters that are `given_up`,
    /// because no request waits for them any more, are left out.
    pub fn next(
        &mut self,
        limiter: &Limiter,
        now: Timestamp,
        given_up: &mut impl FnMut(SharedCounter) -> bool,
    ) -> Option<Batch> {
        let asker = self.asker;
        let (index, group) = self
            .groups
            .iter_mut()
            .enumerate()
            .find(|(_, group)| !group.is_asking && group.has_questions())?;
        let count = group.wanted.len().min(MAX_BATCH);
        let mut counters: Vec<_> = group.wanted.drain(..count).collect();
        counters.sort_unstable();
        counters.dedup();
        counters.retain(|counter| {
            let is_given_up = given_up(*counter);
            if is_given_up {
                limiter.cancel_request(*counter);
            }
            !is_given_up
        });
        let questions: Vec<_> =
            counters.into_iter().filter_map(|counter| limiter.lease_request(counter, now)).collect();
        let mut encoded: Vec<_> =
            questions.iter().map(|question| protocol::encode(question, asker, now)).collect();
        let mut bans = Vec::new();
        for (counter, begins) in group.bans(&questions) {
            if let Some((ban, began)) = limiter.ban_of_counter(counter, now) {
                encoded.push(protocol::encode_ban(ban, began.filter(|_| begins)));
                bans.push((counter, begins));
            }
        }
        if encoded.is_empty() {
            return self.next(limiter, now, given_up);
        }
        group.is_asking = true;
        Some(Batch {
            group: index as u16,
            questions,
            bans,
            encoded,
            generation: group.generation.clone(),
            sent: now,
        })
    }

    /// Stores what the store has granted. Counters for which the store granted nothing, because its clock was outside
    /// of the windows in the query, are queried again.
    pub fn reply(
        &mut self,
        batch: &Batch,
        reply: &Reply,
        (limiter, now): (&Limiter, Timestamp),
        mut granted: impl FnMut(&LeaseRequest, LeaseGrant),
    ) {
        let group = &mut self.groups[usize::from(batch.group)];
        group.is_asking = false;
        group.generation = Some(reply.generation.clone());
        let there = i64::try_from(reply.at.saturating_mul(1000)).unwrap_or(i64::MAX);
        self.asker.ahead = there.saturating_sub(i64::try_from(now.as_nanos()).unwrap_or(i64::MAX));
        for (question, grant) in batch.questions.iter().zip(&reply.grants) {
            let Some(grant) = protocol::decode(grant, reply.at) else {
                limiter.abandon_request(question);
                self.want(question.counter);
                continue;
            };
            granted(question, grant);
            if let Some(at) = limiter.apply_grant(question, grant, (batch.sent, now)) {
                self.review_at(question.counter, at);
            }
        }
        let of_bans = reply.grants.iter().skip(batch.questions.len());
        for (&(counter, _), ban) in batch.bans.iter().zip(of_bans) {
            if let Some(LeaseGrant { granted: doubled, wait: rest, .. }) = protocol::decode(ban, reply.at) {
                limiter.apply_shared_ban(counter, (rest, doubled), now);
            }
        }
    }

    /// Handles a failed call. Units that it may have granted expire unspent, and its counters are queried again when
    /// requests need units. The counters are reviewed after 1 s.
    pub fn fail(&mut self, batch: &Batch, limiter: &Limiter, now: Timestamp) {
        self.groups[usize::from(batch.group)].is_asking = false;
        for question in &batch.questions {
            limiter.abandon_request(question);
            self.review_at(question.counter, now.saturating_add(Duration::from_secs(1)));
        }
        let begun = batch.bans.iter().filter(|(_, begins)| *begins).map(|(counter, _)| *counter);
        self.groups[usize::from(batch.group)].begun.extend(begun);
    }

    /// Reviews `counter` at `at`, unless an earlier review is due.
    pub fn review_at(&mut self, counter: SharedCounter, at: Timestamp) {
        if self.due.get(&counter).is_none_or(|due| at < *due) {
            self.due.insert(counter, at);
            self.reviews.push(Reverse((at, counter)));
        }
    }
}
