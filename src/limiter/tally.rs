//! Counts what happens whether there is room for it or not, and says what each counter read.
//!
//! A check is charged only if the request passes. Services that count as Envoy's rate limit service does
//! need the opposite: what is over the limit counts too, some counters of a request may count and others not,
//! and the answer is made from the numbers. All counters of a request are read and written under the locks
//! of all their shards, so the numbers are those of one moment and no count is lost. The limits are the
//! caller's: the meter says only how long a window lasts, or with `gcra`, over which time a limit is spread.

mod claimed;

use std::num::NonZeroU32;
use std::time::Duration;

use smallvec::SmallVec;

pub(super) use self::claimed::limited;
use super::algorithm::{self, Algorithm, Outcome, State};
use super::key::{Fingerprint, KeyHash};
use super::quota::{Limit, Quota};
use super::repeats::Repeats;
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
    /// Of a limit that is spread: the time until there is room for what is over, or else until all of it is there
    /// again. `None` for windows, which end for all at once.
    pub reset: Option<Duration>,
    /// It is over only because this instance has no units of a shared limit: the store may have some.
    pub is_short: bool,
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
    repeats: Repeats,
}

impl Limiter {
    /// Counts on several counters at one moment, over their limits or not, and answers what each read, in the
    /// order of `tallies`. What of it is kept, `counting` says, which sees what all of them would read; it runs
    /// under the locks and must not call the limiter.
    pub fn tally(
        &self,
        tallies: &[Tally],
        counting: impl FnOnce(&[Tallied]) -> Counting,
        now: Timestamp,
    ) -> SmallVec<[Tallied; 4]> {
        let counters = Counters::new(self, tallies);
        let mut locked = self.store.lock_all(counters.keys.iter().copied());
        let read = counters.read(&locked, now);
        let counting = counting(&read);
        counters.count_all(read, counting, &mut locked, now)
    }
}

impl<'a> Counters<'a> {
    pub(super) fn new(limiter: &'a Limiter, tallies: &'a [Tally]) -> Self {
        let keys: SmallVec<[Fingerprint; 4]> =
            tallies.iter().map(|tally| tally.key.salted(tally.meter.salt)).collect();
        let repeats = Repeats::of(&keys);
        Self { limiter, tallies, keys, repeats }
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
            } else if read.is_over {
                self.note_rejected(position, locked, now);
            } else {
                read.after = read.before;
                // What was to be given back has not been.
                read.is_over = read.after > u64::from(self.tallies[position].limit);
                read.reset = read.reset.and_then(|_| self.reset(position, locked, now));
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
            let Some(quota) = shard.quota(tally.meter.id).map(|quota| spread(quota, tally.limit)) else {
                states.push(None);
                read.push(Tallied { before: 0, after: 0, is_over: false, reset: None, is_short: false });
                continue;
            };
            if quota.is_claimed() {
                let state = match self.repeats.earlier(position) {
                    Some(earlier) => states[earlier],
                    None => shard.state(shard.find(key), tally.meter.id, now),
                };
                let (next, tallied) =
                    claimed::reading(state, &quota, shard.known_beside(key, now), tally, now);
                read.push(tallied);
                states.push(Some(next));
                continue;
            }
            let state = match self.repeats.earlier(position) {
                Some(earlier) => states[earlier],
                None => native(shard.state(shard.find(key), tally.meter.id, now), &quota),
            };
            read.push(reading(state, &quota, tally, now));
            states.push(Some(algorithm::charge(state, &quota, tally.amount, now)));
        }
        read
    }

    /// When all of a limit is there again, as its counter says.
    fn reset(&self, position: usize, locked: &Locked<'_>, now: Timestamp) -> Option<Duration> {
        let (key, tally) = (self.keys[position], self.tallies[position]);
        let shard = locked.shard(key);
        let quota = spread(shard.quota(tally.meter.id)?, tally.limit);
        let state = native(shard.state(shard.find(key), tally.meter.id, now), &quota);
        Some(algorithm::usage(state, &quota, now).reset)
    }

    /// The demand for a shared limit is what is rejected, too.
    fn note_rejected(&self, position: usize, locked: &mut Locked<'_>, now: Timestamp) {
        let (key, tally) = (self.keys[position], self.tallies[position]);
        let shard = locked.shard_mut(key);
        if shard.quota(tally.meter.id).is_some_and(Quota::is_claimed) {
            claimed::count(shard, key, tally, now);
        }
    }

    fn count(&self, position: usize, locked: &mut Locked<'_>, now: Timestamp) {
        let (key, tally) = (self.keys[position], self.tallies[position]);
        let shard = locked.shard_mut(key);
        // A look leaves no counter behind.
        let Some(quota) = shard.quota(tally.meter.id).filter(|_| tally.amount != 0) else { return };
        if quota.is_claimed() {
            return claimed::count(shard, key, tally, now);
        }
        let quota = spread(quota, tally.limit);
        let place = shard.find(key);
        let state = native(shard.state(place, tally.meter.id, now), &quota);
        let next = algorithm::charge(state, &quota, tally.amount, now);
        let kept = shard.keep(place, key, tally.meter.id, next, now);
        self.limiter.note(kept);
    }
}

fn reading(state: Option<State>, quota: &Quota, tally: &Tally, now: Timestamp) -> Tallied {
    let before = u64::from(algorithm::usage(state, quota, now).used);
    // Wider than the counter, so that even a counter that is full to the brim can be over.
    let after = before.saturating_add_signed(tally.amount);
    let tallied =
        Tallied { before, after, is_over: after > u64::from(tally.limit), reset: None, is_short: false };
    if quota.algorithm() == Algorithm::Gcra { evenly(tallied, state, quota, tally, now) } else { tallied }
}

/// The same of a limit that is spread: a unit is used in part, so the numbers alone do not say whether there is room.
fn evenly(tallied: Tallied, state: Option<State>, quota: &Quota, tally: &Tally, now: Timestamp) -> Tallied {
    let cost = u32::try_from(tally.amount.max(0)).unwrap_or(u32::MAX);
    let (next, outcome) = algorithm::evaluate(state, quota, cost, now);
    let (is_over, reset) = match outcome {
        // Nothing fits where nothing is allowed, and to look is always allowed.
        _ if tally.limit == 0 => (cost > 0, quota.refill()),
        Outcome::Exceed { retry_after } if cost > 0 => (true, retry_after.unwrap_or_else(|| quota.refill())),
        Outcome::Exceed { .. } | Outcome::Conform => (false, algorithm::usage(Some(next), quota, now).reset),
    };
    // What is over has not got anything, and what is within is not over by what a rounding adds.
    let limit = u64::from(tally.limit);
    let after = if is_over { tallied.after.max(limit.saturating_add(1)) } else { tallied.after.min(limit) };
    Tallied { after, is_over, reset: Some(reset), ..tallied }
}

/// The quota that a tally is held against: that of the meter, or where it spreads limits, this limit spread over its
/// period. As many at once as the limit has, and then one after the other.
fn spread(meter: &Quota, limit: u32) -> Quota {
    if meter.is_claimed() {
        return limited(*meter, Some(limit));
    }
    if meter.algorithm() != Algorithm::Gcra {
        return *meter;
    }
    let period = meter.limit().period;
    let count = limit.min(u32::try_from(period.nanos()).unwrap_or(u32::MAX));
    let count = NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN);
    Quota::new(Algorithm::Gcra, Limit::new(count, period), None).unwrap_or(*meter)
}

/// A state as `quota` reads it: the fraction of a nanosecond that another limit has left is none of its own.
fn native(state: Option<State>, quota: &Quota) -> Option<State> {
    let most = quota.limit().count.get() - 1;
    let fitted = |state: State| State { extra: state.extra.min(most), ..state };
    if quota.algorithm() == Algorithm::Gcra { state.map(fitted) } else { state }
}

#[cfg(test)]
mod tests;
