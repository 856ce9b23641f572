//! A limiter from what another process has saved.
//!
//! Reading is total: whatever the bytes are, the answer is a limiter or what is wrong with them, and memory is
//! bounded by the size of the table and of the parts. Doubt is resolved against the client: a counter for which
//! there is no room makes an overflow counter fuller, and one from the future is as full as it was.

use super::bytes::Input;
use super::{MOST_LIMITS, Part};
use crate::limiter::algorithm::{self, State};
use crate::limiter::key::Fingerprint;
use crate::limiter::quota::Quota;
use crate::limiter::store::MeterId;
use crate::limiter::timestamp::Timestamp;
use crate::limiter::{Limiter, Settings};

/// More shards than any table has.
const MOST_SHARDS: u32 = 1 << 24;

/// What is wrong with the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// They come in an order in which nobody writes them.
    #[error("its parts are out of order")]
    Order,
    /// There is no end.
    #[error("it has no end")]
    Endless,
    /// A part does not say what such a part says.
    #[error("a part of it means nothing")]
    Content,
    /// There are more or fewer counters than its end says.
    #[error("counters are missing or too many")]
    Count,
}

/// What became of the counters.
#[derive(Debug)]
pub struct Restored {
    /// Goes on where the other process has ended.
    pub limiter: Limiter,
    /// When that was.
    pub at: Timestamp,
    /// Counters that are in use.
    pub counters: u64,
    /// How many of them had to share, for want of room.
    pub shared: u64,
}

/// Takes the parts one by one, in the order in which they were written.
#[derive(Debug)]
pub struct Restorer {
    max_keys: usize,
    now: Timestamp,
    last: Option<Part>,
    begun: Option<Begun>,
}

/// What is known once the head has been read.
#[derive(Debug)]
struct Begun {
    restored: Restored,
    /// Shards of the table that was saved.
    shards: u32,
    limits: Vec<(MeterId, Quota)>,
    read: u64,
}

impl Restorer {
    /// For a table of `max_keys` counters, at `now`.
    pub const fn new(max_keys: usize, now: Timestamp) -> Self {
        Self { max_keys, now, last: None, begun: None }
    }

    /// Takes the next part.
    ///
    /// # Errors
    /// [`Damage`], after which nothing can be restored.
    pub fn take(&mut self, part: Part, bytes: &[u8]) -> Result<(), Damage> {
        let is_next = match (self.last, part) {
            (None, Part::Head) => true,
            (None, _) | (_, Part::Head) | (Some(Part::End), _) => false,
            // Each shard has both, one after the other.
            (Some(Part::Shared), Part::Counters) => true,
            (Some(last), part) => last <= part,
        };
        if !is_next {
            return Err(Damage::Order);
        }
        let had_counters = self.last.is_some_and(|last| last > Part::Limits);
        self.last = Some(part);
        let input = Input(bytes);
        let now = self.now;
        let Some(begun) = &mut self.begun else {
            self.begun = Some(begin(input, self.max_keys).ok_or(Damage::Content)?);
            return Ok(());
        };
        if part > Part::Limits && !had_counters {
            let Limiter { store, meters, .. } = &begun.restored.limiter;
            store.adopt(&meters.lock().quotas(), now);
        }
        let is_whole = match part {
            Part::Limits => begun.limits(input),
            Part::Counters => begun.counters(input, now),
            Part::Shared => begun.shared(input, now),
            Part::Head | Part::End => begun.end(input),
        };
        is_whole.ok_or(if part == Part::End { Damage::Count } else { Damage::Content })
    }

    /// The limiter, provided that the last part was the end.
    ///
    /// # Errors
    /// [`Damage::Endless`].
    pub fn finish(self) -> Result<Restored, Damage> {
        match (self.begun, self.last) {
            (Some(begun), Some(Part::End)) => Ok(begun.restored),
            _ => Err(Damage::Endless),
        }
    }
}

fn begin(mut input: Input<'_>, max_keys: usize) -> Option<Begun> {
    let at = Timestamp::from_nanos(input.u64()?);
    let secret = [input.u64()?, input.u64()?];
    let shards = input.u32().filter(|shards| shards.is_power_of_two() && *shards <= MOST_SHARDS)?;
    let limiter = Limiter::new(Settings { max_keys, secret });
    let restored = Restored { limiter, at, counters: 0, shared: 0 };
    input.is_empty().then_some(Begun { restored, shards, limits: Vec::new(), read: 0 })
}

impl Begun {
    fn limits(&mut self, mut input: Input<'_>) -> Option<()> {
        let limiter = &self.restored.limiter;
        let mut meters = limiter.meters.lock();
        while !input.is_empty() {
            let name = (input.text()?, input.text()?);
            let serial = input.u16()?;
            let quota = Quota::read(&mut input).filter(|_| self.limits.len() < MOST_LIMITS)?;
            let id = meters.put_back(name, serial, quota, limiter.hasher)?;
            self.limits.push((id, quota));
        }
        Some(())
    }

    fn counters(&mut self, mut input: Input<'_>, now: Timestamp) -> Option<()> {
        while !input.is_empty() {
            let key = Fingerprint::from_words([input.u64()?, input.u64()?])?;
            let (meter, state) = self.counter(&mut input, now)?;
            self.read += 1;
            let Some(state) = state else { continue };
            let store = &self.restored.limiter.store;
            let has_room = store.lock(store.shard_of(key)).put_back(key, meter, state, now);
            self.restored.counters += 1;
            self.restored.shared += u64::from(!has_room);
        }
        Some(())
    }

    /// An overflow counter counts for every key that would have found it in the table that was saved.
    fn shared(&mut self, mut input: Input<'_>, now: Timestamp) -> Option<()> {
        while !input.is_empty() {
            let saved = input.u32().filter(|shard| *shard < self.shards)? as usize;
            let (meter, Some(state)) = self.counter(&mut input, now)? else { continue };
            let store = &self.restored.limiter.store;
            // Shards go by the lowest bits of a key; the smaller of two tables knows fewer of them.
            let common = store.shards().min(self.shards as usize);
            for shard in (saved % common..store.shards()).step_by(common) {
                store.lock(shard).put_back_shared(meter, state, now);
            }
        }
        Some(())
    }

    /// A limit's number and what a counter of it remembers; of that nothing where nothing is in use.
    fn counter(&self, input: &mut Input<'_>, now: Timestamp) -> Option<(MeterId, Option<State>)> {
        let (meter, quota) = self.limits.get(input.u32()? as usize)?;
        let state = algorithm::saved::import(input.short()?, quota)?;
        let at = self.restored.at;
        let state = if at > now { algorithm::saved::rebase(state, quota, (at, now)) } else { Some(state) };
        Some((*meter, state.filter(|state| !algorithm::is_unused(*state, quota, now))))
    }

    fn end(&self, mut input: Input<'_>) -> Option<()> {
        (input.u64()? == self.read && input.is_empty()).then_some(())
    }
}
