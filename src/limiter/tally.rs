//! Counts what happens whether there is room for it or not, and says what each counter read.
//!
//! A check is charged only if the request passes. Services that count as Envoy's rate limit service does
//! need the opposite: what is over the limit counts too, some counters of a request may count and others not,
//! and the answer is made from the numbers. All counters of a request are read and written under the locks
//! of all their shards, so the numbers are those of one moment and no count is lost. The limits are the
//! caller's: the meter says only how long a window lasts.

use smallvec::SmallVec;

use super::algorithm::{self, State};
use super::key::{Fingerprint, KeyHash};
use super::quota::Quota;
use super::store::Locked;
use super::timestamp::Timestamp;
use super::{Limiter, Meter};

/// One counter that one request counts on.
#[derive(Clone, Copy, Debug)]
pub struct Tally {
    /// Whose windows.
    pub meter: Meter,
    /// Which counter of it.
    pub key: KeyHash,
    /// Units to count; negative ones are given back, at most down to an unused counter.
    pub amount: i64,
    /// Above so many units the counter is over.
    pub limit: u32,
}

/// Which counters of a request count, once all are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counting {
    /// All.
    #[default]
    All,
    /// Only those that are over with this request.
    Over,
    /// Only those that are not.
    Within,
    /// None.
    Nothing,
}

/// What one counter read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tallied {
    /// Units before the request.
    pub before: u64,
    /// Units with it. A counter that is within its limit and does not count reads as before; one that is over
    /// reads as if it had counted.
    pub after: u64,
    /// Whether `after` is more than the limit.
    pub is_over: bool,
}

impl Counting {
    const fn covers(self, is_over: bool) -> bool {
        match self {
            Self::All => true,
            Self::Over => is_over,
            Self::Within => !is_over,
            Self::Nothing => false,
        }
    }
}

/// The counters of one request.
pub(super) struct Counters<'a> {
    limiter: &'a Limiter,
    tallies: &'a [Tally],
    keys: SmallVec<[Fingerprint; 4]>,
}

/// Counts `tallies` as `counting` says, which is asked once with what all of them would read.
pub(super) fn tally(
    limiter: &Limiter,
    tallies: &[Tally],
    counting: impl FnOnce(&[Tallied]) -> Counting,
    now: Timestamp,
) -> SmallVec<[Tallied; 4]> {
    let counters = Counters::new(limiter, tallies);
    let mut locked = limiter.store.lock_all(counters.keys.iter().copied());
    let read = counters.read(&locked, now);
    let counting = counting(&read);
    counters.count_all(read, counting, &mut locked, now)
}

impl<'a> Counters<'a> {
    pub(super) fn new(limiter: &'a Limiter, tallies: &'a [Tally]) -> Self {
        let keys = tallies.iter().map(|tally| tally.key.salted(tally.meter.salt)).collect();
        Self { limiter, tallies, keys }
    }

    /// What has to be locked.
    pub(super) fn keys(&self) -> &[Fingerprint] {
        &self.keys
    }

    /// Counts on those that `counting` covers; answers what they say then.
    pub(super) fn count_all(
        &self,
        mut read: SmallVec<[Tallied; 4]>,
        counting: Counting,
        locked: &mut Locked<'_>,
        now: Timestamp,
    ) -> SmallVec<[Tallied; 4]> {
        for (position, read) in read.iter_mut().enumerate() {
            if counting.covers(read.is_over) {
                self.count(position, locked, now);
            } else if !read.is_over {
                read.after = read.before;
                // What was to be given back has not been.
                read.is_over = read.after > u64::from(self.tallies[position].limit);
            }
        }
        read
    }

    /// What every counter would read if all counted. One that is named twice is read as its first naming
    /// leaves it.
    pub(super) fn read(&self, locked: &Locked<'_>, now: Timestamp) -> SmallVec<[Tallied; 4]> {
        let mut states: SmallVec<[Option<State>; 4]> = SmallVec::new();
        let mut read = SmallVec::new();
        for (position, tally) in self.tallies.iter().enumerate() {
            let (key, shard) = (self.keys[position], locked.shard(self.keys[position]));
            let Some(quota) = shard.quota(tally.meter.id) else {
                states.push(None);
                read.push(Tallied { before: 0, after: 0, is_over: false });
                continue;
            };
            let earlier = (0..position).rev().find(|earlier| self.keys[*earlier] == key);
            let state = match earlier {
                Some(earlier) => states[earlier],
                None => shard.state(shard.find(key), tally.meter.id, now),
            };
            read.push(reading(state, quota, tally, now));
            states.push(Some(algorithm::charge(state, quota, tally.amount, now)));
        }
        read
    }

    fn count(&self, position: usize, locked: &mut Locked<'_>, now: Timestamp) {
        let (key, tally) = (self.keys[position], self.tallies[position]);
        let shard = locked.shard_mut(key);
        // A look leaves no counter behind.
        let Some(quota) = shard.quota(tally.meter.id).copied().filter(|_| tally.amount != 0) else { return };
        let place = shard.find(key);
        let state = shard.state(place, tally.meter.id, now);
        let next = algorithm::charge(state, &quota, tally.amount, now);
        let kept = shard.keep(place, key, tally.meter.id, next, now);
        self.limiter.note(kept);
    }
}

fn reading(state: Option<State>, quota: &Quota, tally: &Tally, now: Timestamp) -> Tallied {
    let before = u64::from(algorithm::usage(state, quota, now).used);
    // Wider than the counter, so that even a counter that is full to the brim can be over.
    let after = before.saturating_add_signed(tally.amount);
    Tallied { before, after, is_over: after > u64::from(tally.limit) }
}

#[cfg(test)]
mod tests;
