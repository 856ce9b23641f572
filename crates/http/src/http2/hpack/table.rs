//! The dynamic table of a decoder (RFC 7541, section 2.3.2).

use std::collections::VecDeque;

use super::MAX_TABLE_SIZE;
use super::field::{HeaderField, Name, Parsed, size};

/// Entries for which memory is allocated at least, rather than doubling it: a connection typically has few.
const MIN_GROWTH: usize = 2;

/// A parsed field with its size.
#[derive(Debug)]
pub(super) struct DecodedEntry {
    parsed: Parsed,
    /// In bytes (RFC 7541, section 4.1).
    size: u32,
}

impl DecodedEntry {
    pub(super) fn new(name: Name, value: &[u8]) -> Self {
        let size = u32::try_from(size(name.as_bytes(), value)).unwrap_or(u32::MAX);
        Self { parsed: Parsed::new(name, value, false), size }
    }

    #[inline]
    pub(super) const fn size(&self) -> usize {
        self.size as usize
    }

    pub(super) fn name(&self) -> Name {
        self.parsed.name()
    }

    #[inline]
    pub(super) fn field(&self) -> HeaderField {
        self.parsed.field()
    }
}

/// Recently received fields. The newest one has index 0.
#[derive(Debug)]
pub(super) struct Table {
    entries: VecDeque<DecodedEntry>,
    /// Sum of the sizes of all entries.
    size: u32,
    /// Bound of `size`, chosen by the peer.
    max_size: u32,
}

impl Table {
    pub(super) const fn new() -> Self {
        Self { entries: VecDeque::new(), size: 0, max_size: MAX_TABLE_SIZE }
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&DecodedEntry> {
        self.entries.get(index)
    }

    pub(super) fn set_max_size(&mut self, bytes: u32) {
        self.max_size = bytes;
        self.evict(bytes);
    }

    /// Adds `entry`. One that exceeds the table leaves it empty (RFC 7541, section 4.4).
    pub(super) fn insert(&mut self, entry: DecodedEntry) {
        self.evict(self.max_size.saturating_sub(entry.size));
        if entry.size > self.max_size {
            return;
        }
        self.size += entry.size;
        if self.entries.len() == self.entries.capacity() {
            // In proportion to the entries, so that all of them together are moved a constant number of times.
            self.entries.reserve_exact(MIN_GROWTH.max(self.entries.len() / 2));
        }
        self.entries.push_front(entry);
    }

    /// Removes the oldest entries until the others have at most `bytes`.
    fn evict(&mut self, bytes: u32) {
        while self.size > bytes {
            let Some(entry) = self.entries.pop_back() else { return };
            self.size -= entry.size;
        }
    }

    /// Sum of the sizes of all entries, counted anew.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn counted_size(&self) -> usize {
        self.entries.iter().map(DecodedEntry::size).sum()
    }

    /// Number of entries for which there is memory.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) const fn max_size(&self) -> u32 {
        self.max_size
    }
}
