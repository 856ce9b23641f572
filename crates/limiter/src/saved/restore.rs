//! Restores a limiter from what another process saved.
//!
//! Any input either yields a limiter or a description of the damage, and memory is bounded by the size of the table and
//! of the parts. Doubt is resolved against the client: a counter for which there is no room raises an overflow counter,
//! and one from the future stays as full as it was.

use super::bytes::ByteReader;
use super::{MAX_LIMITS, SavedPart};
use crate::algorithm::{self, CounterState};
use crate::key::Fingerprint;
use crate::quota::Quota;
use crate::table::LimitId;
use crate::timestamp::Timestamp;
use crate::{LimitIdentity, Limiter, LimiterSettings};

/// Maximum number of shards, more than any table has.
const MAX_SHARDS: u32 = 1 << 24;

/// What is wrong with the saved parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// Parts are in an impossible order.
    #[error("parts out of order")]
    Order,
    /// The last part is missing.
    #[error("the last part is missing")]
    MissingEnd,
    /// The content of a part is not valid.
    #[error("invalid content of a part")]
    Content,
    /// The number of counters is not that in the last part.
    #[error("wrong number of counters")]
    Count,
}

/// The restored state.
#[derive(Debug)]
pub struct Restored {
    /// The limiter, with the state of the other process.
    pub limiter: Limiter,
    /// When it was saved.
    pub saved_at: Timestamp,
    /// Number of counters in use.
    pub counters: u64,
    /// Number of those that had to share an overflow counter, because the table is full.
    pub overflowed: u64,
}

/// Restores a limiter from parts, in the order in which they were written.
#[derive(Debug)]
pub struct Restorer {
    max_keys: usize,
    now: Timestamp,
    last: Option<SavedPart>,
    progress: Option<RestoreProgress>,
}

/// State after the first part has been read.
#[derive(Debug)]
struct RestoreProgress {
    restored: Restored,
    /// Number of shards of the saved table.
    shards: u32,
    limits: Vec<(LimitId, Quota)>,
    read: u64,
}

impl Restorer {
    /// Restores into a table of `max_keys` counters, at `now`.
    pub const fn new(max_keys: usize, now: Timestamp) -> Self {
        Self { max_keys, now, last: None, progress: None }
    }

    /// Processes the next part.
    ///
    /// # Errors
    /// [`RestoreError`], after which nothing can be restored.
    pub fn read_part(&mut self, part: SavedPart, bytes: &[u8]) -> Result<(), RestoreError> {
        let is_next = match (self.last, part) {
            (None, SavedPart::Head) => true,
            (None, _) | (_, SavedPart::Head) | (Some(SavedPart::End), _) => false,
            // Each shard has both, one after the other.
            (Some(SavedPart::Overflow), SavedPart::Counters) => true,
            (Some(last), part) => last <= part,
        };
        if !is_next {
            return Err(RestoreError::Order);
        }
        let had_counters = self.last.is_some_and(|last| last > SavedPart::Limits);
        self.last = Some(part);
        let input = ByteReader(bytes);
        let now = self.now;
        let Some(progress) = &mut self.progress else {
            self.progress = Some(read_header(input, self.max_keys).ok_or(RestoreError::Content)?);
            return Ok(());
        };
        if part > SavedPart::Limits && !had_counters {
            let Limiter { table: store, registry, .. } = &progress.restored.limiter;
            store.adopt_quotas(&registry.lock().quotas(), now);
        }
        let result = match part {
            SavedPart::Limits => progress.limits(input),
            SavedPart::Counters => progress.counters(input, now),
            SavedPart::Overflow => progress.shared(input, now),
            SavedPart::Head | SavedPart::End => progress.end(input),
        };
        result.ok_or(if part == SavedPart::End { RestoreError::Count } else { RestoreError::Content })
    }

    /// Returns the limiter, if the last part was processed.
    ///
    /// # Errors
    /// [`RestoreError::MissingEnd`].
    pub fn finish(self) -> Result<Restored, RestoreError> {
        match (self.progress, self.last) {
            (Some(progress), Some(SavedPart::End)) => Ok(progress.restored),
            _ => Err(RestoreError::MissingEnd),
        }
    }
}

fn read_header(mut input: ByteReader<'_>, max_keys: usize) -> Option<RestoreProgress> {
    let at = Timestamp::from_nanos(input.u64()?);
    let secret = [input.u64()?, input.u64()?];
    let shards = input.u32().filter(|shards| shards.is_power_of_two() && *shards <= MAX_SHARDS)?;
    let limiter = Limiter::new(LimiterSettings { max_keys, secret });
    let restored = Restored { limiter, saved_at: at, counters: 0, overflowed: 0 };
    input.is_empty().then_some(RestoreProgress { restored, shards, limits: Vec::new(), read: 0 })
}

impl RestoreProgress {
    fn limits(&mut self, mut input: ByteReader<'_>) -> Option<()> {
        let limiter = &self.restored.limiter;
        let mut registry = limiter.registry.lock();
        while !input.is_empty() {
            let identity = LimitIdentity { rule: input.text()?.into(), key: input.text()?.into() };
            let serial = input.u16()?;
            let quota = Quota::read(&mut input).filter(|_| self.limits.len() < MAX_LIMITS)?;
            let id = registry.restore_limit(identity, serial, quota, limiter.hasher)?;
            self.limits.push((id, quota));
        }
        Some(())
    }

    fn counters(&mut self, mut input: ByteReader<'_>, now: Timestamp) -> Option<()> {
        while !input.is_empty() {
            let key = Fingerprint::from_words([input.u64()?, input.u64()?])?;
            let (limit, state) = self.counter(&mut input, now)?;
            self.read += 1;
            let Some(state) = state else { continue };
            let store = &self.restored.limiter.table;
            let has_room = store.lock(store.shard_of(key)).put_back(key, limit, state, now);
            self.restored.counters += 1;
            self.restored.overflowed += u64::from(!has_room);
        }
        Some(())
    }

    /// Restores overflow counters. Each applies to all keys that would have shared it in the saved table.
    fn shared(&mut self, mut input: ByteReader<'_>, now: Timestamp) -> Option<()> {
        while !input.is_empty() {
            let saved = input.u32().filter(|shard| *shard < self.shards)? as usize;
            let (limit, Some(state)) = self.counter(&mut input, now)? else { continue };
            let store = &self.restored.limiter.table;
            // Shards are selected by the lowest bits of a key; the smaller of two tables uses fewer of them.
            let common = store.shards().min(self.shards as usize);
            for shard in (saved % common..store.shards()).step_by(common) {
                store.lock(shard).put_back_shared(limit, state, now);
            }
        }
        Some(())
    }

    /// Reads a limit's number and the state of a counter; the state is `None` if nothing is in use.
    fn counter(&self, input: &mut ByteReader<'_>, now: Timestamp) -> Option<(LimitId, Option<CounterState>)> {
        let (limit, quota) = self.limits.get(input.u32()? as usize)?;
        let state = algorithm::saved::import(input.short()?, quota)?;
        let at = self.restored.saved_at;
        let state = if at > now { algorithm::saved::rebase(state, quota, at, now) } else { Some(state) };
        Some((*limit, state.filter(|state| !algorithm::is_unused(*state, quota, now))))
    }

    fn end(&self, mut input: ByteReader<'_>) -> Option<()> {
        (input.u64()? == self.read && input.is_empty()).then_some(())
    }
}
