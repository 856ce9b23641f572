//! Claims on shared limits: what counters of this process have of the units that the store counts.
//!
//! A counter of a shared limit spends the claim in its slot as it would spend any quota. Beside the slot, a [`Book`] keeps
//! what only matters when the claim runs out: units held back so that the next claim is asked for in time, a later claim,
//! and the demand. [`Limiter::claim`] is for a request that found its counter short; [`Limiter::question`] and
//! [`Limiter::grant`] are for the task that speaks with the store.

mod bans;
mod book;
mod question;
mod standing;

use std::collections::BTreeMap;
use std::time::Duration;

pub(super) use self::bans::SharedBans;
pub(super) use self::book::Book;
pub use self::question::{Grant, Kind, Question, excess};
pub use self::standing::{CounterStanding, Standing};
use super::algorithm::claim::{self, Held};
use super::decision::Verdict;
use super::key::Fingerprint;
use super::quota::Quota;
use super::store::{MeterId, Place, Shard};
use super::timestamp::Timestamp;
use super::{Check, Limiter, tally};

/// How the units of a limit are shared among instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sharing {
    /// Each request asks for its own units: nothing is claimed ahead.
    pub is_exact: bool,
    /// Requests may wait for the store. Where they may not, units are claimed ahead however few they are.
    pub waits: bool,
    /// Demand of a lower number is served first.
    pub priority: u8,
    /// Under contention every instance gets as much as any other, not as much as its part of the demand.
    pub is_max_min: bool,
}

/// One counter of a shared limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedCounter {
    /// Whose.
    pub meter: MeterId,
    pub(super) key: Fingerprint,
}

impl SharedCounter {
    /// What the store calls it: the same on all instances of a fleet.
    pub fn name(&self) -> u128 {
        let [first, second] = self.key.words();
        u128::from(first) << 64 | u128::from(second)
    }
}

/// What becomes of a request whose counter is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// There are units by now: check again. With `true`, the store is to be asked for more in time.
    Ready(bool),
    /// The store has to be asked. With `true`, by the caller; else that is on its way.
    Asked(bool),
    /// The store has nothing for so long.
    Rejected(Duration),
    /// The limit is gone, or there is no room for the claims of another key.
    Gone,
}

/// The books of one shard.
pub(super) type Books = BTreeMap<Fingerprint, Book>;

impl Verdict {
    /// Whether the request was rejected only because the store has to be asked first.
    pub fn is_short(&self) -> bool {
        self.refuses() && self.lacks_units()
    }

    /// Whether a counter of a shared limit is out of units, and the store has not said that there are none: also of a check that
    /// is not enforced.
    pub fn lacks_units(&self) -> bool {
        self.exceeds() && self.quota().is_some_and(Quota::is_claimed) && claim::is_short(self.outcome)
    }
}

impl Limiter {
    /// The counter of `check`.
    pub fn shared_counter(&self, check: &Check) -> SharedCounter {
        SharedCounter { meter: check.meter.id, key: check.key.salted(check.meter.salt) }
    }

    /// Brings units for a request whose counter is short out of what is held back, or says that the store has to be asked.
    pub fn claim(&self, check: &Check, now: Timestamp) -> Claimed {
        self.claim_units(self.shared_counter(check), (check.cost, None), now)
    }

    /// The same of `cost` units; the counter is held against `limit` units where its meter does not say how many.
    pub(super) fn claim_units(
        &self,
        SharedCounter { meter, key }: SharedCounter,
        (cost, limit): (u32, Option<u32>),
        now: Timestamp,
    ) -> Claimed {
        let mut shard = self.store.lock(self.store.shard_of(key));
        let Some(quota) = shard.quota(meter).filter(|quota| quota.is_claimed()).copied() else {
            return Claimed::Gone;
        };
        let quota = tally::limited(quota, limit);
        if cost > quota.capacity() {
            // As much as that is never left; a client must be told something finite.
            return Claimed::Rejected(quota.refill());
        }
        let is_exact = shard.quotas().sharing(meter).is_some_and(|sharing| sharing.is_exact);
        let needed = shard.held_of(key, meter).saturating_add(cost.into());
        let held = Held::of(shard.state(shard.find(key), meter, now));
        let Some(book) = shard.book(key, meter, now) else { return Claimed::Gone };
        book.limit = limit;
        if book.is_of_other(&quota) {
            book.unpause();
        }
        let left = book.expire(held, now);
        let held = book.replenish(left, needed, now);
        let units = held.units(now);
        if u64::from(units) < needed {
            book.pause(now);
        }
        let outcome = if u64::from(units) >= needed {
            Claimed::Ready(book.wants_more(now))
        } else if book.pauses_until > now {
            Claimed::Rejected(book.pauses_until.since(now))
        } else {
            book.need(cost, &quota, is_exact);
            Claimed::Asked(book.begins_to_ask(now))
        };
        let held = match outcome {
            Claimed::Rejected(_) if units == 0 => Held::Nothing { until: book.pauses_until, rejected: cost },
            _ => held,
        };
        write(&mut shard, (key, meter), held, now);
        outcome
    }

    /// What to ask the store about a counter now; `None` if there is nothing to ask. The counter is asked about until
    /// [`Self::grant`] or [`Self::abandon`].
    pub fn question(&self, counter: SharedCounter, now: Timestamp) -> Option<Question> {
        let SharedCounter { meter, key } = counter;
        let mut shard = self.store.lock(self.store.shard_of(key));
        let quota = shard.quota(meter).filter(|quota| quota.is_claimed()).copied();
        let sharing = shard.quotas().sharing(meter);
        let (Some(quota), Some(sharing)) = (quota, sharing) else {
            shard.books_mut().remove(&key);
            return None;
        };
        let state = shard.state(shard.find(key), meter, now);
        let in_use = shard.held_of(key, meter);
        let book = shard.books_mut().get_mut(&key)?;
        let quota = tally::limited(quota, book.limit);
        let (question, held) = book.question(counter, Held::of(state), (quota, sharing), in_use, now);
        write(&mut shard, (key, meter), held, now);
        Some(question)
    }

    /// Puts what the store has granted where requests spend it. `sent` is when the question was sent: the claim lapses by
    /// this process's clock, counted from then. Returns when the counter is to be asked about again, if it holds units.
    pub fn grant(
        &self,
        question: &Question,
        grant: Grant,
        (sent, now): (Timestamp, Timestamp),
    ) -> Option<Timestamp> {
        let SharedCounter { meter, key } = question.counter;
        let mut shard = self.store.lock(self.store.shard_of(key));
        let quota = shard.quota(meter).filter(|quota| quota.is_claimed()).copied();
        let held = Held::of(shard.state(shard.find(key), meter, now));
        let book = shard.books_mut().get_mut(&key)?;
        let Some(quota) = quota else {
            shard.books_mut().remove(&key);
            return None;
        };
        // What was asked of another limit says nothing of when this one has more.
        let none = Duration::ZERO;
        let grant = match book.is_of_other(&quota) {
            true => Grant { wait: none, spread: none, pause: none, ..grant },
            false => grant,
        };
        let held = book.grant(question, grant, held, (sent, now));
        let review = book.review_at(now);
        let is_idle = book.is_idle(now);
        if !write(&mut shard, (key, meter), held, now) || is_idle {
            shard.books_mut().remove(&key);
        }
        review
    }

    /// The question was not answered: whatever it granted lapses unspent.
    pub fn abandon(&self, question: &Question) {
        let key = question.counter.key;
        let mut shard = self.store.lock(self.store.shard_of(key));
        if let Some(book) = shard.books_mut().get_mut(&key) {
            book.abandon(question);
        }
    }

    /// A question that was to be asked is not: the next request that wants it asks anew.
    pub fn forget_question(&self, counter: SharedCounter) {
        let mut shard = self.store.lock(self.store.shard_of(counter.key));
        if let Some(book) = shard.books_mut().get_mut(&counter.key) {
            book.is_not_asking();
        }
    }

    /// Whether a counter holds units that are about to lapse, or should be forgotten; then it is to be asked about.
    pub fn review(&self, counter: SharedCounter, now: Timestamp) -> Review {
        let SharedCounter { meter, key } = counter;
        let mut shard = self.store.lock(self.store.shard_of(key));
        let held = Held::of(shard.state(shard.find(key), meter, now));
        let in_use = shard.held_of(key, meter);
        let Some(book) = shard.books_mut().get_mut(&key) else { return Review::Done };
        let (review, held) = book.review(held, in_use, now);
        write(&mut shard, (key, meter), held, now);
        if review == Review::Done {
            shard.books_mut().remove(&key);
        }
        review
    }

    /// Counters of shared limits that have a book.
    pub fn shared_counters(&self) -> usize {
        (0..self.store.shards()).map(|shard| self.store.lock(shard).books_mut().len()).sum()
    }
}

impl Book {
    /// One more request waits. Those that would not fit into one claim together are not asked for: units that are counted
    /// without regard to when they are spent are for a request that costs as much by itself.
    fn need(&mut self, cost: u32, quota: &Quota, is_exact: bool) {
        let kind = Kind::of(quota, 0);
        let needed = self.needed.saturating_add(cost);
        if self.needed == 0 || f64::from(needed) <= kind.claimable(kind.valid_to_arrive(is_exact)) {
            self.needed = needed;
        }
    }
}

/// What a review of a counter leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Review {
    /// Units are about to lapse: ask.
    Ask,
    /// Look again at this moment.
    Later(Timestamp),
    /// Nothing is held.
    Done,
}

/// Has the counter say `held`; whether there was room for it. A claim never goes to a counter that keys share.
pub(super) fn write(
    shard: &mut Shard,
    (key, meter): (Fingerprint, MeterId),
    held: Held,
    now: Timestamp,
) -> bool {
    let (place, state) = (shard.find(key), held.into());
    if matches!(place, Place::Absent) && claim::says_nothing(state, now) {
        return true;
    }
    shard.keep_own(place, key, meter, state, now)
}
