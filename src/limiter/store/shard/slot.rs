//! What a slot holds, word by word, and how slots stand in a group.

use crate::limiter::algorithm::State;
use crate::limiter::key::Fingerprint;
use crate::limiter::store::MeterId;

/// Fingerprint (two words, the first zero when free), state word, and state extra beside the meter id; counters
/// with a history are in `long`.
pub(super) type Slot = [u64; 4];
/// Slots that are searched at once: entries belong to a group, not to a slot.
pub(super) type Group = [Slot; GROUP];
pub(super) const GROUP: usize = 4;
pub(super) const FREE: Slot = [0; 4];

/// Beside the meter id where a counter has a history. Meters are counted from 0, and there are never as many.
pub(super) const LONG: u64 = 1 << 31;

/// A slot that holds all of a counter.
#[derive(Debug)]
pub(in crate::limiter) struct Own<'a>(pub(super) &'a mut Slot);

impl Own<'_> {
    /// What the counter says.
    #[inline(always)]
    pub(in crate::limiter) fn state(&self) -> State {
        state_of(self.0)
    }

    /// Has it say this.
    #[inline(always)]
    pub(in crate::limiter) fn keep(self, meter: MeterId, state: State) {
        self.0[2] = state.word;
        self.0[3] = tail(meter, state);
    }
}

/// How many slots of a group stand before where an entry with this first word would; all of them where it would stand
/// behind the group.
#[inline(always)]
pub(super) fn before(group: &Group, first: u64) -> usize {
    group.iter().map(|slot| usize::from(slot[0] > first)).sum()
}

/// What entries are ordered by; zero for a free slot, so that free ones come after all others.
pub(super) const fn ordinal([first, second]: [u64; 2]) -> u128 {
    (first as u128) << 64 | second as u128
}

pub(super) const fn ordinal_of(slot: &Slot) -> u128 {
    ordinal([slot[0], slot[1]])
}

pub(super) const fn is_free(slot: &Slot) -> bool {
    slot[0] == 0
}

pub(super) fn slot(key: Fingerprint, meter: MeterId, state: State) -> Slot {
    let [low, high] = key.words();
    [low, high, state.word, tail(meter, state)]
}

/// The entry with another state.
pub(super) const fn saying(entry: &Slot, state: State) -> Slot {
    [entry[0], entry[1], state.word, tail(meter_of(entry), state)]
}

pub(super) const fn tail(meter: MeterId, state: State) -> u64 {
    (state.extra as u64) << 32 | meter.0 as u64
}

pub(super) const fn state_of(slot: &Slot) -> State {
    State { word: slot[2], extra: (slot[3] >> 32) as u32 }
}

pub(super) const fn meter_of(slot: &Slot) -> MeterId {
    MeterId((slot[3] & !LONG) as u32)
}

pub(super) const fn is_long(slot: &Slot) -> bool {
    slot[3] & LONG != 0
}

/// The number of its history, if it has one.
pub(super) const fn number_of(slot: &Slot) -> u32 {
    (slot[3] >> 32) as u32
}
