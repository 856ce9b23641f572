//! The dynamic table of an encoder, with a search by name and value.
//!
//! Names and values are one sequence of bytes, so that an entry costs little memory beyond them.

use std::collections::VecDeque;

use super::FIELD_OVERHEAD;
use super::field::size;

/// Longest name and value that enter the table, in bytes together. Longer ones would displace many others.
pub(super) const MAX_FIELD_LEN: usize = 512;

/// The hash of a field selects the set in which it is searched, both among entries and among recent fields.
const SETS: usize = 16;
/// Fields that a set can hold. If there are more, the oldest is not found any more.
const WAYS: usize = 4;

/// Entries, and bytes of names and values, for which memory is allocated at once: a connection typically has few.
const ENTRIES_GROWTH: usize = 4;
const BYTES_GROWTH: usize = 64;

/// Hash of a name and a value. Different parts of it serve different purposes.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldHash(pub(super) u64);

impl FieldHash {
    /// Distinguishes most entries of a set.
    const fn tag(self) -> u16 {
        self.0 as u16
    }

    const fn set(self) -> usize {
        (self.0 >> 16) as usize % SETS
    }

    /// Distinguishes most recent fields of a set. Never 0.
    const fn mark(self) -> u16 {
        (self.0 >> 32) as u16 | 1
    }
}

/// An entry, without its bytes.
#[derive(Clone, Copy, Debug)]
struct EncodedEntry {
    tag: u16,
    /// Where its name begins in the bytes of the table. The value follows the name.
    start: u16,
    name_len: u16,
    value_len: u16,
    /// Number of the entry that followed in the last block with this one.
    follower: u8,
}

impl EncodedEntry {
    const fn len(self) -> usize {
        self.name_len as usize + self.value_len as usize
    }
}

/// Fields that the peer's decoder has in its table.
///
/// Messages tend to have the same fields in the same order. So each entry refers to the one that followed it last,
/// which is compared before anything else.
#[derive(Debug)]
pub(super) struct EncodeTable {
    /// From the oldest to the newest.
    entries: VecDeque<EncodedEntry>,
    /// Names and values of all entries in their order, after those of evicted entries.
    bytes: Vec<u8>,
    /// Sum of the sizes of all entries (RFC 7541, section 4.1).
    size: u16,
    /// Number of the next insertion. It wraps around, since there are never more than 128 entries.
    next: u8,
    /// Number of the entry that was the first in the last block.
    first: u8,
    /// Number of the last entry in this block.
    previous: Option<u8>,
    /// Number of the entry that is likely to be next in this block.
    expected: u8,
    /// For each set: numbers of its entries.
    slots: [[u8; WAYS]; SETS],
    /// For each set: marks of recent fields outside the table, from the newest to the oldest. 0 is none.
    recent: [[u16; WAYS]; SETS],
}

impl EncodeTable {
    #[cold]
    pub(super) fn boxed() -> Box<Self> {
        Box::new(Self {
            entries: VecDeque::new(),
            bytes: Vec::new(),
            size: 0,
            next: 0,
            first: 0,
            previous: None,
            expected: 0,
            slots: [[0; WAYS]; SETS],
            recent: [[0; WAYS]; SETS],
        })
    }

    /// Begins a block.
    pub(super) fn begin(&mut self) {
        self.previous = None;
        self.expected = self.first;
    }

    /// Returns the age of a field if it is the one that is expected next. See [`Self::find`].
    #[inline]
    pub(super) fn find_expected(&mut self, name: &[u8], value: &[u8]) -> Option<usize> {
        let entry = *self.entry(self.expected)?;
        if !self.is_field(entry, name, value) {
            return None;
        }
        self.previous = Some(self.expected);
        let age = self.age(self.expected);
        self.expected = entry.follower;
        Some(age)
    }

    /// Returns how many insertions ago a field entered the table; 1 is the newest.
    pub(super) fn find(&mut self, hash: FieldHash, name: &[u8], value: &[u8]) -> Option<usize> {
        let is_found = |number: u8| {
            self.entry(number)
                .is_some_and(|entry| entry.tag == hash.tag() && self.is_field(*entry, name, value))
        };
        let number = *self.slots[hash.set()].iter().find(|number| is_found(**number))?;
        self.learn(number);
        Some(self.age(number))
    }

    /// Remembers that the entry with `number` follows the previous one.
    fn learn(&mut self, number: u8) {
        if let Some(place) = self.previous.and_then(|previous| self.place(previous)) {
            self.entries[place].follower = number;
        } else {
            self.first = number;
        }
        self.previous = Some(number);
        self.expected = self.entry(number).map_or(number, |entry| entry.follower);
    }

    /// Returns the entry that has `number`. A number that is no longer in the table may denote another entry.
    #[inline]
    fn entry(&self, number: u8) -> Option<&EncodedEntry> {
        self.entries.get(self.place(number)?)
    }

    #[inline]
    fn place(&self, number: u8) -> Option<usize> {
        self.entries.len().checked_sub(self.age(number))
    }

    /// How many insertions before the next one the insertion with `number` was, from 1 to 256.
    #[inline]
    const fn age(&self, number: u8) -> usize {
        self.next.wrapping_sub(number).wrapping_sub(1) as usize + 1
    }

    #[inline]
    fn is_field(&self, entry: EncodedEntry, name: &[u8], value: &[u8]) -> bool {
        if usize::from(entry.name_len) != name.len() || usize::from(entry.value_len) != value.len() {
            return false;
        }
        let bytes = self.bytes.get(usize::from(entry.start)..).unwrap_or_default();
        bytes
            .split_at_checked(name.len())
            .is_some_and(|(found, bytes)| found == name && bytes.starts_with(value))
    }

    /// Whether a field was sent recently, without being in the table. If not, it counts as sent from now on.
    pub(super) fn is_repeated(&mut self, hash: FieldHash) -> bool {
        let mark = hash.mark();
        let recent = &mut self.recent[hash.set()];
        if let Some(found) = recent.iter_mut().find(|recent| **recent == mark) {
            // A field that enters the table starts anew after its eviction.
            *found = 0;
            return true;
        }
        *recent = [mark, recent[0], recent[1], recent[2]];
        false
    }

    /// Adds a field that is not in the table, whose size must be at most `max_size`.
    pub(super) fn insert(&mut self, hash: FieldHash, name: &[u8], value: &[u8], max_size: usize) {
        let size = size(name, value);
        self.evict(max_size - size);
        self.make_room(name.len() + value.len());
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact(ENTRIES_GROWTH);
        }
        let number = self.next;
        self.entries.push_back(EncodedEntry {
            tag: hash.tag(),
            start: self.bytes.len() as u16,
            name_len: name.len() as u16,
            value_len: value.len() as u16,
            follower: number.wrapping_add(1),
        });
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.size += size as u16;
        *self.free_slot(hash) = number;
        self.next = number.wrapping_add(1);
        self.learn(number);
    }

    /// Returns a slot of the set that refers to no entry, or else to the oldest.
    fn free_slot(&mut self, hash: FieldHash) -> &mut u8 {
        let set = hash.set();
        let oldest = (0..WAYS).max_by_key(|way| self.age(self.slots[set][*way])).unwrap_or_default();
        &mut self.slots[set][oldest]
    }

    /// Removes the oldest entries until the others have at most `bytes`.
    pub(super) fn evict(&mut self, bytes: usize) {
        while usize::from(self.size) > bytes {
            let Some(entry) = self.entries.pop_front() else { return };
            self.size -= (entry.len() + FIELD_OVERHEAD) as u16;
        }
    }

    /// Makes room for `len` more bytes: in place of evicted entries if those are most, or else by growing.
    fn make_room(&mut self, len: usize) {
        if self.bytes.capacity() - self.bytes.len() >= len {
            return;
        }
        let evicted = self.entries.front().map_or(self.bytes.len(), |oldest| oldest.start.into());
        if evicted * 2 > self.bytes.len() {
            self.bytes.drain(..evicted);
            for entry in &mut self.entries {
                entry.start -= evicted as u16;
            }
        }
        self.bytes.reserve_exact(len.max(BYTES_GROWTH));
    }
}
