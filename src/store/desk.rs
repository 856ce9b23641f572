//! Which counters the store is asked about, and when.
//!
//! Questions of one group travel together: while a call is on its way, what is wanted meanwhile waits for the next one. So a
//! busy instance makes calls as often as the store responds, each for more counters.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::time::Duration;

use super::protocol::{self, Asker, GROUPS};
use crate::limiter::Limiter;
use crate::limiter::claims::{Grant, Question, Review, SharedCounter};
use crate::limiter::timestamp::Timestamp;

/// Counters in one call: bounds how long the store is busy with it.
const MAX_BATCH: usize = 64;

/// What is to be asked, and what is on its way.
#[derive(Debug)]
pub struct Desk {
    groups: Vec<Group>,
    reviews: BinaryHeap<Reverse<(Timestamp, SharedCounter)>>,
    /// When each is due: what the heap has of it for other moments is stale.
    due: BTreeMap<SharedCounter, Timestamp>,
    /// Who asks.
    pub asker: Asker,
}

#[derive(Debug, Default)]
struct Group {
    wanted: VecDeque<SharedCounter>,
    /// Counters beside which a ban has begun.
    begun: BTreeSet<SharedCounter>,
    is_asking: bool,
    generation: Option<Box<str>>,
}

/// One call.
#[derive(Debug)]
pub struct Batch {
    /// The group of all its counters.
    pub group: u16,
    /// What is asked, one for each counter.
    pub questions: Vec<Question>,
    /// Behind those, what is asked about bans beside counters, and whether one begins.
    pub bans: Vec<(SharedCounter, bool)>,
    /// The questions as the script reads them.
    pub encoded: Vec<String>,
    /// The generation of the group that is known.
    pub generation: Option<Box<str>>,
    /// When it was sent.
    pub sent: Timestamp,
}

/// What the store has replied to a call.
#[derive(Debug)]
pub struct Reply {
    /// The group's generation.
    pub generation: Box<str>,
    /// The store's time, in microseconds.
    pub at: u64,
    /// For each question.
    pub grants: Vec<Vec<i64>>,
}

impl Group {
    fn has_questions(&self) -> bool {
        !self.wanted.is_empty() || !self.begun.is_empty()
    }

    /// The counters whose bans are asked about, and whether one has begun beside them: those where one has, as many as go
    /// into a call, and those of `questions`.
    fn bans(&mut self, questions: &[Question]) -> BTreeMap<SharedCounter, bool> {
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
    /// Nothing to ask yet.
    pub fn new(asker: Asker) -> Self {
        Self {
            groups: (0..GROUPS).map(|_| Group::default()).collect(),
            reviews: BinaryHeap::new(),
            due: BTreeMap::new(),
            asker,
        }
    }

    /// Has `counter` asked about with the next call of its group.
    pub fn want(&mut self, counter: SharedCounter) {
        self.groups[usize::from(protocol::group(counter))].wanted.push_back(counter);
    }

    /// Tells the store with the next call of its group that a ban has begun beside `counter`.
    pub fn ban(&mut self, counter: SharedCounter) {
        self.groups[usize::from(protocol::group(counter))].begun.insert(counter);
    }

    /// Reviews the counters whose time has come; returns when the next one is due.
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

    /// The next call to make, if there is one: to be called until there is none.
    pub fn next(&mut self, limiter: &Limiter, now: Timestamp) -> Option<Batch> {
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
        let questions: Vec<_> =
            counters.into_iter().filter_map(|counter| limiter.question(counter, now)).collect();
        let mut encoded: Vec<_> =
            questions.iter().map(|question| protocol::encode(question, asker, now)).collect();
        let mut bans = Vec::new();
        for (counter, begins) in group.bans(&questions) {
            if let Some((ban, began)) = limiter.ban_beside(counter, now) {
                encoded.push(protocol::encode_ban(ban, began.filter(|_| begins)));
                bans.push((counter, begins));
            }
        }
        if encoded.is_empty() {
            return self.next(limiter, now);
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

    /// Puts what the store has granted where requests spend it. Counters about which the store could not say anything, since
    /// its clock is elsewhere, are asked about again.
    pub fn reply(
        &mut self,
        batch: &Batch,
        reply: &Reply,
        (limiter, now): (&Limiter, Timestamp),
        mut granted: impl FnMut(&Question, Grant),
    ) {
        let group = &mut self.groups[usize::from(batch.group)];
        group.is_asking = false;
        group.generation = Some(reply.generation.clone());
        let there = i64::try_from(reply.at.saturating_mul(1000)).unwrap_or(i64::MAX);
        self.asker.ahead = there.saturating_sub(i64::try_from(now.as_nanos()).unwrap_or(i64::MAX));
        for (question, grant) in batch.questions.iter().zip(&reply.grants) {
            let Some(grant) = protocol::decode(grant, reply.at) else {
                limiter.abandon(question);
                self.want(question.counter);
                continue;
            };
            granted(question, grant);
            if let Some(at) = limiter.grant(question, grant, (batch.sent, now)) {
                self.review_at(question.counter, at);
            }
        }
        let of_bans = reply.grants.iter().skip(batch.questions.len());
        for (&(counter, _), ban) in batch.bans.iter().zip(of_bans) {
            if let Some(Grant { granted: doubled, wait: rest, .. }) = protocol::decode(ban, reply.at) {
                limiter.banned(counter, (rest, doubled), now);
            }
        }
    }

    /// The call has failed: whatever it granted lapses unspent. Its counters are asked about again when requests want it.
    pub fn fail(&mut self, batch: &Batch, limiter: &Limiter, now: Timestamp) {
        self.groups[usize::from(batch.group)].is_asking = false;
        for question in &batch.questions {
            limiter.abandon(question);
            self.review_at(question.counter, now.saturating_add(Duration::from_secs(1)));
        }
        let begun = batch.bans.iter().filter(|(_, begins)| *begins).map(|(counter, _)| *counter);
        self.groups[usize::from(batch.group)].begun.extend(begun);
    }

    fn review_at(&mut self, counter: SharedCounter, at: Timestamp) {
        if self.due.get(&counter).is_none_or(|due| at < *due) {
            self.due.insert(counter, at);
            self.reviews.push(Reverse((at, counter)));
        }
    }
}
