//! Saves the counters of a process as bytes, from which the next process continues.
//!
//! The saved state is what a reload needs to keep a counter: the secret under which keys were hashed, every limit with
//! its identity and its quota, and every counter in use. The next process restores the state of the one that saved, and
//! then installs its own configuration as on a reload. So a limit that has changed meanwhile is treated like one that
//! changes in a running process. The bytes come in parts; the caller is responsible for their place in a file, their
//! lengths and checksums. Design note 008 has the format.

pub(super) mod bytes;

mod restore;

use std::collections::HashMap;

use self::bytes::ByteWriter;
pub use self::restore::{RestoreError, Restored, Restorer};
use super::Limiter;
use super::algorithm::{self, CounterState};
use super::registry::LimitRegistry;
use super::table::{Copied, LimitId, QuotaTable};
use super::timestamp::Timestamp;

/// Counters per part, so that a part has about 128 KiB.
const COUNTERS_PER_PART: u64 = 4096;

/// Limits per part.
const LIMITS_PER_PART: usize = 256;

/// Maximum number of limits, more than a configuration can have.
const MAX_LIMITS: usize = 1 << 20;

/// Kind of a part, in the order in which parts are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SavedPart {
    /// Time of saving, the secret, and the number of shards; one part.
    Head,
    /// Limits.
    Limits,
    /// Counters.
    Counters,
    /// Overflow counters.
    Overflow,
    /// Number of counters; one part.
    End,
}

impl SavedPart {
    const ALL: [Self; 5] = [Self::Head, Self::Limits, Self::Counters, Self::Overflow, Self::End];

    /// Returns the byte that identifies it.
    pub const fn tag(self) -> u8 {
        self as u8
    }

    /// Returns the part that `tag` identifies.
    pub fn from_tag(tag: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.tag() == tag)
    }
}

/// Why nothing was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveError<E> {
    /// Another configuration was applied meanwhile; saving can be retried.
    Changed,
    /// The write failed.
    Write(E),
}

/// The limits whose counters are saved, numbered in order.
pub(super) struct NumberedLimits {
    parts: Vec<Vec<u8>>,
    pub(super) numbers: HashMap<LimitId, u32>,
    quotas: QuotaTable,
}

impl Limiter {
    /// Passes every counter in use to `write`, part by part; returns their number.
    ///
    /// Requests continue meanwhile: shards are locked one after the other, each for as long as it takes to copy it.
    /// Requests in flight and leases are not saved, because they end with this process.
    ///
    /// # Errors
    /// The first error of `write`, or [`SaveError::Changed`]; what has been written is then invalid.
    pub fn save<E>(
        &self,
        now: Timestamp,
        write: impl FnMut(SavedPart, &[u8]) -> Result<(), E>,
    ) -> Result<u64, SaveError<E>> {
        let limits = self.number_limits();
        self.write_parts(&limits, now, |shard, copied| self.table.copy(shard, now, copied), write)
    }

    /// Numbers the limits whose counters are written.
    pub(super) fn number_limits(&self) -> NumberedLimits {
        // A change of the limits holds this lock until all shards have the new quotas, so all shards have the same
        // table here.
        let registry = self.registry.lock();
        NumberedLimits::from_registry(&registry, self.table.lock(0).quotas().clone())
    }

    /// Passes the limits, and the counters that `copy` copies of each shard, to `write`.
    pub(super) fn write_parts<E>(
        &self,
        limits: &NumberedLimits,
        now: Timestamp,
        mut copy: impl FnMut(usize, &mut Copied),
        mut write: impl FnMut(SavedPart, &[u8]) -> Result<(), E>,
    ) -> Result<u64, SaveError<E>> {
        let quotas = &limits.quotas;
        write(SavedPart::Head, &self.head(now)).map_err(SaveError::Write)?;
        for part in &limits.parts {
            write(SavedPart::Limits, part).map_err(SaveError::Write)?;
        }
        let (mut copied, mut counters) = (Copied::default(), 0);
        for shard in 0..self.table.shards() {
            copy(shard, &mut copied);
            if !copied.quotas.is_same_table(quotas) {
                return Err(SaveError::Changed);
            }
            let in_use = |limit, state| match quotas.get(limit) {
                Some(quota) => !algorithm::is_unused(state, quota, now),
                None => false,
            };
            let used = copied.counters().filter(|(_, limit, state)| in_use(*limit, *state));
            let name =
                |key: [u64; 2], out: &mut ByteWriter<'_>| key.into_iter().for_each(|word| out.u64(word));
            let written = limits.write(SavedPart::Counters, used, name, &mut write);
            counters += written.map_err(SaveError::Write)?;
            let used = copied.overflow().filter(|(limit, state)| in_use(*limit, *state));
            let used = used.map(|(limit, state)| (shard as u32, limit, state));
            let name = |shard: u32, out: &mut ByteWriter<'_>| out.u32(shard);
            limits.write(SavedPart::Overflow, used, name, &mut write).map_err(SaveError::Write)?;
        }
        write(SavedPart::End, &counters.to_le_bytes()).map_err(SaveError::Write)?;
        Ok(counters)
    }

    fn head(&self, now: Timestamp) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut out = ByteWriter(&mut bytes);
        out.u64(now.as_nanos());
        self.hasher.secret().into_iter().for_each(|word| out.u64(word));
        out.u32(self.table.shards() as u32);
        bytes
    }
}

impl NumberedLimits {
    fn from_registry(registry: &LimitRegistry, quotas: QuotaTable) -> Self {
        let mut limits = Self { parts: Vec::new(), numbers: HashMap::new(), quotas };
        for (number, limit) in
            registry.all().filter(|limit| limit.quota.algorithm().survives_restart()).enumerate()
        {
            if number % LIMITS_PER_PART == 0 {
                limits.parts.push(Vec::new());
            }
            let Some(part) = limits.parts.last_mut() else { continue };
            let mut out = ByteWriter(part);
            out.text(limit.rule);
            out.text(limit.key);
            out.u16(limit.serial);
            limit.quota.write(&mut out);
            limits.numbers.insert(limit.id, number as u32);
        }
        limits
    }

    /// Passes `counters` to `write`, in as many parts as needed; `name` writes their identity. Returns the number of
    /// counters.
    fn write<K, E>(
        &self,
        part: SavedPart,
        counters: impl Iterator<Item = (K, LimitId, CounterState)>,
        name: impl Fn(K, &mut ByteWriter<'_>),
        write: &mut impl FnMut(SavedPart, &[u8]) -> Result<(), E>,
    ) -> Result<u64, E> {
        let mut bytes = Vec::new();
        let mut count: u64 = 0;
        for (key, limit, state) in counters {
            let Some(number) = self.numbers.get(&limit) else { continue };
            let mut out = ByteWriter(&mut bytes);
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
