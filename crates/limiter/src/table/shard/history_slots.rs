//! Slots of counters with a history. A bit of the limit id marks them; the state word is the time at which the history
//! becomes unused, and the state extra is the history's number.

use super::Shard;
use super::slot::{HISTORY_FLAG, Slot, has_history, number_of, owner_of, state_of, with_state};
use crate::algorithm::CounterState;
use crate::algorithm::conversion::Change;
use crate::timestamp::Timestamp;

impl Shard {
    /// Stores the state of the counter in slot `index`, in its history if it has one or can get one.
    #[cold]
    pub(super) fn store_history(&mut self, index: usize, state: CounterState, now: Timestamp) {
        let entry = self.slots()[index];
        let Some(quota) = self.quota_of_slot(&entry).copied() else { return };
        let number = if has_history(&entry) {
            self.histories.apply_state(number_of(&entry), state, &quota, now);
            Some(number_of(&entry))
        } else {
            self.histories.insert(state, &quota, now)
        };
        let ([first, second, ..], owner) = (entry, owner_of(&entry));
        self.slots_mut()[index] = match number {
            Some(number) => {
                let end = self.histories.get(number).expires_at(&quota);
                [first, second, end, u64::from(number) << 32 | HISTORY_FLAG | owner]
            }
            None => with_state(&entry, state),
        };
    }

    /// Gives back units charged at `charged`, as of `now`, to the history in slot `index`.
    pub(super) fn refund_history(&mut self, index: usize, units: u32, charged: Timestamp, now: Timestamp) {
        let Some(quota) = self.quota_of_slot(&self.slots()[index]).copied() else { return };
        let number = number_of(&self.slots()[index]);
        self.histories.refund(number, units, &quota, charged, now);
        self.slots_mut()[index][2] = self.histories.get(number).expires_at(&quota);
    }

    /// Converts an entry to another quota; `None` if it is unused there. Its history continues with it or is removed.
    pub(super) fn carried(
        &mut self,
        entry: &Slot,
        change: Option<Change<'_>>,
        now: Timestamp,
    ) -> Option<Slot> {
        if !has_history(entry) {
            let state = change?.convert(state_of(entry), now)?;
            return Some(with_state(entry, state));
        }
        let history = self.histories.get_mut(number_of(entry));
        if change.is_some_and(|change| change.carry_history(history)) {
            return Some(*entry);
        }
        let short = change.and_then(|change| change.convert(history.compact_state(change.from, now), now));
        self.release_history(entry);
        let state = short?;
        Some(with_state(entry, state))
    }

    /// Returns the entry with its state in twelve bytes.
    pub(super) fn shortened(&self, entry: &Slot, now: Timestamp) -> Slot {
        let quota = self.quota_of_slot(entry);
        let state = quota.and_then(|quota| self.counter_of(entry).compact_state(quota, now));
        match state {
            Some(state) => with_state(entry, state),
            None => *entry,
        }
    }

    /// Returns a copy of an entry for `target`, which gets a copy of its history if it has one.
    pub(super) fn copy_history(&self, entry: &Slot, target: &mut Self) -> Slot {
        if !has_history(entry) {
            return *entry;
        }
        let number = target.histories.add_copy(self.histories.get(number_of(entry)));
        let [first, second, end, _] = *entry;
        [first, second, end, u64::from(number) << 32 | HISTORY_FLAG | owner_of(entry)]
    }

    /// Removes the history of an entry, if it has one. The only place where histories are removed.
    pub(super) fn release_history(&mut self, entry: &Slot) {
        if has_history(entry) {
            self.histories.remove(number_of(entry));
        }
    }
}
