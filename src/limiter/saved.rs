//! The counters of a process as bytes, so that the next one can go on from them.
//!
//! What is saved is what a reload needs to keep a counter: the secret under which keys were hashed, every limit
//! with its lineage and its quota, and every counter in use. The next process becomes the one that saved, and
//! then installs its own configuration as on a reload; so a limit that has changed meanwhile is treated no
//! differently from one that changes in a running process. The bytes come in parts, whose place in a file,
//! lengths and checksums are the business of whoever writes them. Design note 008 has the format.

pub(super) mod bytes;

mod restoring;

use std::collections::HashMap;

use self::bytes::Output;
pub use self::restoring::{Damage, Restored, Restorer};
use super::Limiter;
use super::algorithm::{self, State};
use super::meters::Meters;
use super::store::{Copied, MeterId};
use super::timestamp::Timestamp;

/// Counters of one part, so that a part stays small: some 128 KiB.
const COUNTERS_PER_PART: u64 = 4096;

/// Limits of one part.
const LIMITS_PER_PART: usize = 256;

/// More limits than a configuration can have.
const MOST_LIMITS: usize = 1 << 20;

/// What a part holds, in the order in which they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// When it was saved, the secret, and how many shards there were; one.
    Head,
    /// Limits.
    Limits,
    /// Counters.
    Counters,
    /// Overflow counters.
    Shared,
    /// How many counters there were; one.
    End,
}

impl Part {
    const ALL: [Self; 5] = [Self::Head, Self::Limits, Self::Counters, Self::Shared, Self::End];

    /// The byte that stands for it.
    pub const fn tag(self) -> u8 {
        self as u8
    }

    /// The part that `tag` stands for.
    pub fn from_tag(tag: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.tag() == tag)
    }
}

/// Why nothing was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveError<E> {
    /// Another configuration came into force meanwhile: to be tried again.
    Changed,
    /// Whoever writes could not.
    Write(E),
}

/// The limits whose counters are saved, numbered in the order in which they are.
struct Limits {
    parts: Vec<Vec<u8>>,
    numbers: HashMap<MeterId, u32>,
}

impl Limiter {
    /// Hands every counter in use to `write`, part by part, and answers how many there were.
    ///
    /// Requests go on meanwhile: one shard after the other is locked for as long as it takes to copy it. What
    /// is under way is not saved, since it ends with this process.
    ///
    /// # Errors
    /// The first of `write`, or [`SaveError::Changed`]; what has been written is then worth nothing.
    pub fn save<E>(
        &self,
        now: Timestamp,
        mut write: impl FnMut(Part, &[u8]) -> Result<(), E>,
    ) -> Result<u64, SaveError<E>> {
        let (limits, quotas) = {
            // Whoever changes the limits holds this until all shards know: they have one and the same table.
            let meters = self.meters.lock();
            (Limits::of(&meters), self.store.lock(0).quotas().clone())
        };
        write(Part::Head, &self.head(now)).map_err(SaveError::Write)?;
        for part in &limits.parts {
            write(Part::Limits, part).map_err(SaveError::Write)?;
        }
        let (mut copied, mut counters) = (Copied::default(), 0);
        for shard in 0..self.store.shards() {
            self.store.copy(shard, now, &mut copied);
            if !copied.quotas.is(&quotas) {
                return Err(SaveError::Changed);
            }
            let in_use = |meter, state| match quotas.get(meter) {
                Some(quota) => !algorithm::is_unused(state, quota, now),
                None => false,
            };
            let used = copied.counters().filter(|(_, meter, state)| in_use(*meter, *state));
            let name = |key: [u64; 2], out: &mut Output<'_>| key.into_iter().for_each(|word| out.u64(word));
            let written = limits.write(Part::Counters, used, name, &mut write);
            counters += written.map_err(SaveError::Write)?;
            let used = copied.overflow().filter(|(meter, state)| in_use(*meter, *state));
            let used = used.map(|(meter, state)| (shard as u32, meter, state));
            let name = |shard: u32, out: &mut Output<'_>| out.u32(shard);
            limits.write(Part::Shared, used, name, &mut write).map_err(SaveError::Write)?;
        }
        write(Part::End, &counters.to_le_bytes()).map_err(SaveError::Write)?;
        Ok(counters)
    }

    fn head(&self, now: Timestamp) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut out = Output(&mut bytes);
        out.u64(now.as_nanos());
        self.hasher.secret().into_iter().for_each(|word| out.u64(word));
        out.u32(self.store.shards() as u32);
        bytes
    }
}

impl Limits {
    fn of(meters: &Meters) -> Self {
        let mut limits = Self { parts: Vec::new(), numbers: HashMap::new() };
        for (number, limit) in
            meters.all().filter(|limit| limit.quota.algorithm().outlives_process()).enumerate()
        {
            if number % LIMITS_PER_PART == 0 {
                limits.parts.push(Vec::new());
            }
            let Some(part) = limits.parts.last_mut() else { continue };
            let mut out = Output(part);
            out.text(limit.rule);
            out.text(limit.key);
            out.u16(limit.serial);
            limit.quota.write(&mut out);
            limits.numbers.insert(limit.id, number as u32);
        }
        limits
    }

    /// Hands `counters` to `write`, in as many parts as it takes; `name` writes what tells them apart. How many there were.
    fn write<K, E>(
        &self,
        part: Part,
        counters: impl Iterator<Item = (K, MeterId, State)>,
        name: impl Fn(K, &mut Output<'_>),
        write: &mut impl FnMut(Part, &[u8]) -> Result<(), E>,
    ) -> Result<u64, E> {
        let mut bytes = Vec::new();
        let mut count: u64 = 0;
        for (key, meter, state) in counters {
            let Some(number) = self.numbers.get(&meter) else { continue };
            let mut out = Output(&mut bytes);
            name(key, &mut out);
            out.u32(*number);
            out.short(|bytes| algorithm::saved::export(state, bytes));
            count += 1;
            if count.is_multiple_of(COUNTERS_PER_PART) {
                write(part, &bytes)?;
                bytes.clear();
            }
        }
        if !bytes.is_empty() {
            write(part, &bytes)?;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
