//! How the counters of shared limits stand in this instance, for operators.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Duration;

use super::{Book, SharedCounter};
use crate::limiter::Limiter;
use crate::limiter::algorithm::claim::Held;
use crate::limiter::store::MeterId;
use crate::limiter::timestamp::Timestamp;

/// Demand that was last measured before this is over.
const RECENT: Duration = Duration::from_secs(2);

/// The counters of one shared limit that have claims, pauses or demand in this instance.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// How many.
    pub counters: usize,
    /// Units that this instance may spend of all of them.
    pub held: u64,
    /// Units that are demanded of all of them in this instance, per second.
    pub demand: f64,
    /// Those with the highest demand, highest first.
    pub busiest: Vec<CounterStanding>,
}

/// One counter of a shared limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CounterStanding {
    /// What the store calls it.
    pub name: u128,
    /// Units that this instance may spend.
    pub held: u32,
    /// Units that are demanded in this instance, per second.
    pub demand: f64,
    /// Units that are left for all instances together, those held here included; `None` before the store has said.
    pub remaining: Option<u32>,
    /// For how long the store has nothing.
    pub pause: Duration,
}

impl Limiter {
    /// How shared limits stand, each with at most `most` of its counters; walks the table, one shard locked at a time.
    pub fn standings(&self, most: usize, now: Timestamp) -> HashMap<MeterId, Standing> {
        let mut standings = HashMap::<MeterId, Standing>::new();
        for shard in 0..self.store.shards() {
            let shard = self.store.lock(shard);
            for (key, book) in shard.books() {
                let held = Held::of(shard.state(shard.find(*key), book.meter, now)).units(now);
                // What requests hold that are being served is not to be had.
                let in_use = u32::try_from(shard.held_of(*key, book.meter)).unwrap_or(u32::MAX);
                let counter = SharedCounter { meter: book.meter, key: *key };
                let counter = book.standing(counter, held.saturating_sub(in_use), now);
                standings.entry(book.meter).or_default().add(counter, most);
            }
        }
        for standing in standings.values_mut() {
            standing.shorten(most);
        }
        standings
    }
}

impl Standing {
    fn add(&mut self, counter: CounterStanding, most: usize) {
        self.counters += 1;
        self.held += u64::from(counter.held);
        self.demand += counter.demand;
        self.busiest.push(counter);
        // Sorted now and then: however many counters there are, few are kept.
        if self.busiest.len() > 2 * most {
            self.shorten(most);
        }
    }

    fn shorten(&mut self, most: usize) {
        self.busiest.sort_unstable_by(CounterStanding::busier);
        self.busiest.truncate(most);
    }
}

impl CounterStanding {
    fn busier(&self, other: &Self) -> Ordering {
        let order = |one: &Self| (one.held, one.name);
        other.demand.total_cmp(&self.demand).then_with(|| order(other).cmp(&order(self)))
    }
}

impl Book {
    /// The same where the store has responded before.
    pub(in crate::limiter) fn known_beside(&self, now: Timestamp) -> Option<u32> {
        self.remaining.map(|_| self.beside(now))
    }

    /// Units that are left for all instances, beside those in the slot: what was left when the store last responded, and
    /// what this instance holds back.
    pub(in crate::limiter) fn beside(&self, now: Timestamp) -> u32 {
        self.remaining.unwrap_or(0).saturating_add(self.held_back(now))
    }

    fn standing(&self, counter: SharedCounter, held: u32, now: Timestamp) -> CounterStanding {
        let held = held.saturating_add(self.held_back(now));
        CounterStanding {
            name: counter.name(),
            held,
            demand: if now.since(self.asked_at) < RECENT { self.rate } else { 0.0 },
            remaining: self.remaining.map(|remaining| remaining.saturating_add(held)),
            pause: self.pauses_until.since(now),
        }
    }
}
