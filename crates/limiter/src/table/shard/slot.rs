//! Layout of a slot, and the order of slots in a group.

use crate::algorithm::CounterState;
use crate::key::Fingerprint;
use crate::table::LimitId;

/// Fingerprint (two words, the first zero if free), state word, and state extra with the quota's number and the limit id. Module
/// `history_slots` has the layout of counters with a history.
pub(super) type Slot = [u64; 4];
/// Slots that are searched at once. The home of an entry is a group, not a slot.
pub(super) type SlotGroup = [Slot; SLOTS_PER_GROUP];
pub(super) const SLOTS_PER_GROUP: usize = 4;
pub(super) const FREE: Slot = [0; 4];

/// Bit of the limit id, set if the counter has a history. Ids count from 0 and never reach it.
pub(super) const HISTORY_FLAG: u64 = 1 << 31;

/// Number of the quota of a key whose requests state a limit of their own, in its shard; 0 for the quota of the limit.
pub(super) type QuotaNumber = u16;
/// Bits of the limit id. A configuration with more limits is larger than any that can be read.
const LIMIT_BITS: u32 = 20;
pub(super) const MAX_QUOTA_NUMBER: QuotaNumber = (1 << (31 - LIMIT_BITS)) - 1;
/// Bits of a quota's number.
const NUMBER_MASK: u64 = (MAX_QUOTA_NUMBER as u64) << LIMIT_BITS;

/// A slot that contains the whole counter.
#[derive(Debug)]
pub(crate) struct SlotRef<'a>(pub(super) &'a mut Slot);

impl SlotRef<'_> {
    /// Returns the counter's state.
    #[inline(always)]
    pub(crate) fn state(&self) -> CounterState {
        state_of(self.0)
    }

    /// Stores another state.
    #[inline(always)]
    pub(crate) fn set_state(self, limit: LimitId, state: CounterState) {
        self.0[2] = state.word;
        self.0[3] = tail(limit, state);
    }
}

/// Number of slots in a group that are before an entry with this first word; all of them if it belongs after the group.
#[inline(always)]
pub(super) fn before(group: &SlotGroup, first: u64) -> usize {
    group.iter().map(|slot| usize::from(slot[0] > first)).sum()
}

/// Sort key of entries; zero for a free slot, so that free slots come last.
pub(super) const fn ordinal([first, second]: [u64; 2]) -> u128 {
    (first as u128) << 64 | second as u128
}

pub(super) const fn ordinal_of(slot: &Slot) -> u128 {
    ordinal([slot[0], slot[1]])
}

pub(super) const fn is_free(slot: &Slot) -> bool {
    slot[0] == 0
}

pub(super) fn new_slot(key: Fingerprint, limit: LimitId, state: CounterState) -> Slot {
    let [low, high] = key.words();
    [low, high, state.word, tail(limit, state)]
}

/// Returns the entry with another state.
pub(super) const fn with_state(entry: &Slot, state: CounterState) -> Slot {
    [entry[0], entry[1], state.word, (state.extra as u64) << 32 | owner_of(entry)]
}

/// Limit id and number of the quota, as they are stored.
pub(super) const fn owner_of(entry: &Slot) -> u64 {
    entry[3] & (HISTORY_FLAG - 1)
}

/// Returns the entry with another number of its quota.
pub(super) const fn with_quota_number(entry: &Slot, number: QuotaNumber) -> Slot {
    [entry[0], entry[1], entry[2], entry[3] & !NUMBER_MASK | (number as u64) << LIMIT_BITS]
}

/// Returns the number of its quota.
pub(super) const fn quota_number_of(slot: &Slot) -> QuotaNumber {
    ((slot[3] & NUMBER_MASK) >> LIMIT_BITS) as QuotaNumber
}

/// Whether the slot contains the whole counter, which has the quota of its limit.
#[inline(always)]
pub(super) const fn is_plain(slot: &Slot) -> bool {
    slot[3] & (HISTORY_FLAG | NUMBER_MASK) == 0
}

pub(super) const fn tail(limit: LimitId, state: CounterState) -> u64 {
    (state.extra as u64) << 32 | limit.0 as u64
}

pub(super) const fn state_of(slot: &Slot) -> CounterState {
    CounterState { word: slot[2], extra: (slot[3] >> 32) as u32 }
}

pub(super) const fn limit_of(slot: &Slot) -> LimitId {
    LimitId((slot[3] & ((1 << LIMIT_BITS) - 1)) as u32)
}

pub(super) const fn has_history(slot: &Slot) -> bool {
    slot[3] & HISTORY_FLAG != 0
}

/// Number of its history, if it has one.
pub(super) const fn number_of(slot: &Slot) -> u32 {
    (slot[3] >> 32) as u32
}
