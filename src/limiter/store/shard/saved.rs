//! A shard's counters on their way out of the process, and back.

use super::slot::{Slot, is_free, is_long, meter_of, slot, state_of};
use super::{MeterId, Place, Shard};
use crate::limiter::algorithm::{self, Counts, State};
use crate::limiter::key::Fingerprint;
use crate::limiter::store::Quotas;
use crate::limiter::timestamp::Timestamp;

/// One shard's counters at one moment, and the quotas they were written under.
#[derive(Debug)]
pub(in crate::limiter) struct Copied {
    pub(in crate::limiter) quotas: Quotas,
    slots: Vec<Slot>,
    overflow: Vec<(MeterId, State)>,
}

impl Default for Copied {
    fn default() -> Self {
        Self { quotas: Quotas::new(&[]), slots: Vec::new(), overflow: Vec::new() }
    }
}

impl Copied {
    /// Makes room for so many counters, so that no memory is asked for while a shard is locked.
    pub(in crate::limiter) fn reserve(&mut self, counters: usize) {
        self.slots.clear();
        self.slots.reserve(counters);
    }

    /// Every counter that has one of its own.
    pub(in crate::limiter) fn counters(&self) -> impl Iterator<Item = ([u64; 2], MeterId, State)> {
        self.slots.iter().map(|slot| ([slot[0], slot[1]], meter_of(slot), state_of(slot)))
    }

    /// The overflow counters.
    pub(in crate::limiter) fn overflow(&self) -> impl Iterator<Item = (MeterId, State)> {
        self.overflow.iter().copied()
    }
}

impl Shard {
    /// Copies everything into `copied`, whose memory is used again: requests wait for no more than the copying.
    pub(in crate::limiter) fn copy_to(&self, now: Timestamp, copied: &mut Copied) {
        copied.quotas = self.quotas.clone();
        copied.slots.clear();
        let shortened = |slot: &Slot| if is_long(slot) { self.shortened(slot, now) } else { *slot };
        copied.slots.extend(self.slots().iter().filter(|slot| !is_free(slot)).map(shortened));
        copied.overflow.clear();
        copied.overflow.extend(self.overflow.iter().map(|(meter, state)| (*meter, *state)));
    }

    /// Puts back a counter that another process has saved; whether there was room. Where there is none, the
    /// overflow counter takes it, so that nobody's quota is new. Bans apart: shared, one would keep out everybody.
    pub(in crate::limiter) fn put_back(
        &mut self,
        key: Fingerprint,
        meter: MeterId,
        state: State,
        now: Timestamp,
    ) -> bool {
        if matches!(self.find(key), Place::At(_)) {
            return true;
        }
        let entry = slot(key, meter, state);
        while !self.place(entry) {
            if self.home_groups() < self.full_groups {
                self.grow();
                continue;
            }
            self.put_back_shared(meter, state, now);
            return false;
        }
        true
    }

    /// Puts back an overflow counter: as full as what is there and as `state`, for as long as either.
    pub(in crate::limiter) fn put_back_shared(&mut self, meter: MeterId, state: State, now: Timestamp) {
        let Some(quota) = self.quotas.get(meter).filter(|quota| quota.algorithm().counts() != Counts::Bans)
        else {
            return;
        };
        let next = match self.overflow.get(&meter) {
            Some(there) => algorithm::saved::fuller(*there, state, quota, now),
            None => state,
        };
        self.overflow.insert(meter, next);
    }
}
