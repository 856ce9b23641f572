//! Counters whose whole state is in their slot, and stays there. Almost all are, so their checks have paths of their own.

use super::slot::{SLOTS_PER_GROUP, SlotRef, is_plain, state_of};
use super::{Shard, SlotLookup};
use crate::algorithm::{Algorithm, CounterState};
use crate::key::Fingerprint;
use crate::quota::Quota;
use crate::table::LimitId;

impl Shard {
    /// Returns the slot of `key`'s own counter and its quota, if the whole state is in the slot and stays there. This
    /// is the common case; all others use [`Self::find`]. A shard with overrides has no such counters, and a key whose
    /// requests state a limit has none.
    // Inline: passing it through memory costs as much as finding it.
    #[inline(always)]
    pub(crate) fn own_slot(&mut self, key: Fingerprint, limit: LimitId) -> Option<(SlotRef<'_>, &Quota)> {
        if !self.overrides.is_empty() {
            return None;
        }
        let [first, second] = key.words();
        let (group, offset) = self.search(first)?;
        let quota = self.quotas.get(limit).filter(|quota| !quota.needs_history())?;
        let slot = &mut self.groups[group][offset];
        // Compared last: the second word may still be hashed while the first waits for memory.
        let is_match = slot[0] == first && slot[1] == second && is_plain(slot);
        is_match.then_some((SlotRef(slot), quota))
    }

    /// As [`Self::own_slot`], but returns the index of the slot and its state. Not for leased units, whose verdicts need
    /// more.
    #[inline]
    pub(crate) fn own_state(
        &self,
        key: Fingerprint,
        limit: LimitId,
    ) -> Option<(usize, CounterState, &Quota)> {
        if !self.overrides.is_empty() {
            return None;
        }
        let [first, second] = key.words();
        let (group, offset) = self.search(first)?;
        let quota = self.quotas.get(limit).filter(|quota| needs_only_slot(quota))?;
        let slot = &self.groups[group][offset];
        let is_match = slot[0] == first && slot[1] == second && is_plain(slot);
        is_match.then(|| (group * SLOTS_PER_GROUP + offset, state_of(slot), quota))
    }

    /// Stores another state in the slot that [`Self::own_state`] has returned.
    #[inline]
    pub(crate) fn set_own_state(&mut self, index: usize, limit: LimitId, state: CounterState) {
        SlotRef(&mut self.slots_mut()[index]).set_state(limit, state);
    }

    /// Returns the quota of `key`, which has no counter yet, if its whole state will be in a slot of its own. A shard with
    /// overrides or overflow counters has no such keys.
    #[inline]
    pub(crate) fn quota_of_unused(&self, key: Fingerprint, limit: LimitId) -> Option<&Quota> {
        let has_own_slots = self.overrides.is_empty() && self.overflow.is_empty();
        let quota = self.quotas.get(limit).filter(|quota| needs_only_slot(quota))?;
        (has_own_slots && matches!(self.find(key), SlotLookup::Absent)).then_some(quota)
    }
}

/// Whether the whole state of a counter with this quota is in its slot, and its verdict needs nothing else.
#[inline]
fn needs_only_slot(quota: &Quota) -> bool {
    quota.algorithm() == Algorithm::Gcra || !(quota.needs_history() || quota.is_leased())
}
