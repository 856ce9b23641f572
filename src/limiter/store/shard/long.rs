//! Slots whose counters have a history: a mark beside the meter id, the moment at which the history says nothing
//! any more in place of the state's word, and its number in place of the rest.

use super::slot::{LONG, Slot, is_long, meter_of, number_of, saying, state_of, tail};
use super::{MeterId, Shard};
use crate::limiter::algorithm::State;
use crate::limiter::algorithm::conversion::Change;
use crate::limiter::timestamp::Timestamp;

impl Shard {
    /// Replaces what the counter in slot `index` says, in its history if it has one or can have one.
    #[cold]
    pub(super) fn keep_long(&mut self, index: usize, meter: MeterId, state: State, now: Timestamp) {
        let Some(quota) = self.quotas.get(meter).copied() else { return };
        let entry = self.slots()[index];
        let number = if is_long(&entry) {
            self.histories.follow(number_of(&entry), state, &quota, now);
            Some(number_of(&entry))
        } else {
            self.histories.begin(state, &quota, now)
        };
        let [first, second, ..] = entry;
        self.slots_mut()[index] = match number {
            Some(number) => {
                let end = self.histories.get(number).end(&quota);
                [first, second, end, u64::from(number) << 32 | LONG | u64::from(meter.0)]
            }
            None => [first, second, state.word, tail(meter, state)],
        };
    }

    /// Takes back units charged at the first of two moments, at the second, from the history in slot `index`.
    pub(super) fn refund_long(
        &mut self,
        index: usize,
        meter: MeterId,
        units: u32,
        times: (Timestamp, Timestamp),
    ) {
        let Some(quota) = self.quotas.get(meter).copied() else { return };
        let number = number_of(&self.slots()[index]);
        self.histories.refund(number, units, &quota, times);
        self.slots_mut()[index][2] = self.histories.get(number).end(&quota);
    }

    /// The entry as it is under another quota; `None` if it says nothing there. Its history goes on with it or
    /// ends here.
    pub(super) fn carried(
        &mut self,
        entry: &Slot,
        change: Option<Change<'_>>,
        now: Timestamp,
    ) -> Option<Slot> {
        if !is_long(entry) {
            let state = change?.convert(state_of(entry), now)?;
            return Some(saying(entry, state));
        }
        let history = self.histories.get_mut(number_of(entry));
        if change.is_some_and(|change| change.carries(history)) {
            return Some(*entry);
        }
        let short = change.and_then(|change| change.convert(history.in_short(change.from, now), now));
        self.release(entry);
        let state = short?;
        Some(saying(entry, state))
    }

    /// What an entry says in twelve bytes, as a slot.
    pub(super) fn shortened(&self, entry: &Slot, now: Timestamp) -> Slot {
        let meter = meter_of(entry);
        let state = self.quotas.get(meter).and_then(|quota| self.counter_of(entry).in_short(quota, now));
        match state {
            Some(state) => saying(entry, state),
            None => *entry,
        }
    }

    /// The one place where histories end: with their entry.
    pub(super) fn release(&mut self, entry: &Slot) {
        if is_long(entry) {
            self.histories.end(number_of(entry));
        }
    }
}
