//! Copies a shard's counters for saving, and restores them.

use super::slot::{Slot, has_history, is_free, limit_of, new_slot, quota_number_of, state_of};
use super::{LimitId, Shard, SlotLookup};
use crate::algorithm::{self, CounterKind, CounterState};
use crate::key::Fingerprint;
use crate::reservation::Holds;
use crate::table::QuotaTable;
use crate::timestamp::Timestamp;

/// The counters of one shard at one moment, and the quotas under which they were written.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) quotas: QuotaTable,
    slots: Vec<Slot>,
    overflow: Vec<(LimitId, CounterState)>,
    /// Reservations, if they were copied too.
    pub(crate) holds: Holds,
}

impl Default for Copied {
    fn default() -> Self {
        Self {
            quotas: QuotaTable::new(&[]),
            slots: Vec::new(),
            overflow: Vec::new(),
            holds: Holds::default(),
        }
    }
}

impl Copied {
    /// Allocates memory for this number of counters, so that none is allocated while a shard is locked.
    pub(crate) fn reserve(&mut self, counters: usize) {
        self.slots.clear();
        self.slots.reserve(counters);
    }

    /// Counters of their own.
    pub(crate) fn counters(&self) -> impl Iterator<Item = ([u64; 2], LimitId, CounterState)> {
        self.slots.iter().map(|slot| ([slot[0], slot[1]], limit_of(slot), state_of(slot)))
    }

    /// The overflow counters.
    pub(crate) fn overflow(&self) -> impl Iterator<Item = (LimitId, CounterState)> {
        self.overflow.iter().copied()
    }
}

impl Shard {
    /// Whether another process has the counters of this shard.
    pub(crate) const fn is_transferred(&self) -> bool {
        self.is_transferred
    }

    /// Marks the counters as transferred, or as those of this process again.
    pub(crate) const fn set_transferred(&mut self, is_transferred: bool) {
        self.is_transferred = is_transferred;
    }

    /// Copies the reservations as well as the counters, both of which another process is to have from now on.
    pub(crate) fn transfer_to(&mut self, now: Timestamp, copied: &mut Copied) {
        self.copy_to(now, copied);
        copied.holds.clone_from(&self.holds);
        self.is_transferred = true;
    }

    /// Copies the shard into `copied`, whose memory is reused, so that requests wait only for the copying.
    pub(crate) fn copy_to(&self, now: Timestamp, copied: &mut Copied) {
        copied.quotas = self.quotas.clone();
        copied.slots.clear();
        let shortened = |slot: &Slot| {
            if !self.overrides.is_empty() || quota_number_of(slot) != 0 {
                // Overrides end with the process, and the next request states its limit again.
                return self.without_boost(slot, now);
            }
            Some(if has_history(slot) { self.shortened(slot, now) } else { *slot })
        };
        copied.slots.extend(self.slots().iter().filter(|slot| !is_free(slot)).filter_map(shortened));
        copied.overflow.clear();
        copied.overflow.extend(self.overflow.iter().map(|(limit, state)| (*limit, *state)));
    }

    /// Restores a counter that another process saved; returns whether there was room. If not, it is merged into the
    /// overflow counter so that its usage is not lost, except for a ban, which would reject every key that shares it.
    pub(crate) fn put_back(
        &mut self,
        key: Fingerprint,
        limit: LimitId,
        state: CounterState,
        now: Timestamp,
    ) -> bool {
        if matches!(self.find(key), SlotLookup::Found(_)) {
            return true;
        }
        let entry = new_slot(key, limit, state);
        while !self.place_new(entry) {
            if self.home_groups() < self.full_groups {
                self.grow();
                continue;
            }
            self.put_back_shared(limit, state, now);
            return false;
        }
        true
    }

    /// Restores an overflow counter: merged with the present one, its usage is never below either.
    pub(crate) fn put_back_shared(&mut self, limit: LimitId, state: CounterState, now: Timestamp) {
        let Some(quota) =
            self.quotas.get(limit).filter(|quota| quota.algorithm().counter_kind() != CounterKind::Bans)
        else {
            return;
        };
        let next = match self.overflow.get(&limit) {
            Some(there) => algorithm::saved::merge_fuller(*there, state, quota, now),
            None => state,
        };
        self.overflow.insert(limit, next);
    }
}
