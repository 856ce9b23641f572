//! Transfers the counters of a running limiter to the process that replaces this one.
//!
//! The old process stops deciding, and passes its counters and the reservations of requests in flight by
//! [`Limiter::transfer`]. The new one takes them over by [`Limiter::absorb`], into the limits of its own configuration.
//! What settles in the old process afterwards is a [`LateCharge`], which the new one applies: a permit is released, a
//! cost becomes known. So each unit is counted once, whichever process ends the request.

mod wire;

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU16;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

use super::algorithm::conversion::Change;
use super::decision::{Decision, Verdict};
use super::key::{Fingerprint, KeyHash};
use super::registry::LimitHandle;
use super::reservation::{ChargeTiming, Reservation};
use super::saved::{SaveError, SavedPart};
use super::table::{Copied, LimitId};
use super::timestamp::Timestamp;
use super::{Check, Limiter};

/// Where late charges go, and the numbers of the transferred limits.
#[derive(Debug)]
pub(super) struct Transfer {
    numbers: HashMap<LimitId, u32>,
    late: Sender<LateChargeMessage>,
}

/// What happens to a counter after it was transferred.
#[derive(Clone, Copy, Debug)]
pub(super) enum LateCharge {
    /// A request that was decided late has reserved units.
    Hold(Reservation),
    Release(Reservation),
    Settle(Reservation, u32),
    Charge(LimitHandle, i64),
}

/// A late charge, in the terms of the transfer.
#[derive(Clone, Copy, Debug)]
pub struct LateChargeMessage {
    key: Fingerprint,
    /// Number of the limit; `None` if its counters were not transferred.
    limit: Option<u32>,
    charge: LateCharge,
}

/// Units that requests of the old process have reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferredHold {
    key: Fingerprint,
    units_per_request: NonZeroU16,
    units: u64,
}

/// What the new process has to know of the old one until that has ended.
#[derive(Debug)]
pub struct AbsorbedCounters {
    /// Ids of the transferred limits, by their number; `None` for those that this configuration does not have.
    limits: Vec<Option<LimitId>>,
    holds: BTreeMap<(Fingerprint, NonZeroU16), u64>,
    /// Number of counters in use.
    pub counters: u64,
}

impl Limiter {
    /// Passes every counter in use to `write`, as [`Self::save`] does, and returns the reservations. From now on, what
    /// settles here is sent to `late` as well. No request may be decided here after this.
    ///
    /// # Errors
    /// As [`Self::save`]. [`Self::end_transfer`] must follow, unless the transfer is tried again.
    pub fn transfer<E>(
        &self,
        now: Timestamp,
        late: Sender<LateChargeMessage>,
        write: impl FnMut(SavedPart, &[u8]) -> Result<(), E>,
    ) -> Result<Vec<TransferredHold>, SaveError<E>> {
        let limits = self.number_limits();
        *self.transfer.lock() = Some(Transfer { numbers: limits.numbers.clone(), late });
        // A decision that is both copied and reported is counted twice, which is the safe side.
        self.is_transferred.store(true, Ordering::Relaxed);
        let mut holds = Vec::new();
        let copy = |shard, copied: &mut Copied| {
            self.table.transfer(shard, now, copied);
            holds.extend(copied.holds.all().map(|(key, units_per_request, units)| TransferredHold {
                key,
                units_per_request,
                units,
            }));
        };
        self.write_parts(&limits, now, copy, write)?;
        Ok(holds)
    }

    /// Ends a transfer that has failed: the counters are those of this process again.
    pub fn end_transfer(&self) {
        self.is_transferred.store(false, Ordering::Relaxed);
        self.table.end_transfer();
        *self.transfer.lock() = None;
    }

    /// Reports what a decision has charged to counters that were transferred.
    #[inline]
    pub(super) fn note(&self, checks: &[&Check], decision: &Decision, now: Timestamp) {
        if self.is_transferred.load(Ordering::Relaxed) {
            self.report_decision(checks, decision, now);
        }
    }

    #[cold]
    fn report_decision(&self, checks: &[&Check], decision: &Decision, now: Timestamp) {
        let verdicts = decision.verdicts();
        if verdicts.iter().any(Verdict::rejects) {
            return;
        }
        for (check, _) in checks.iter().zip(verdicts).filter(|(_, verdict)| verdict.is_charged()) {
            let reserved = Reservation::new(check, now);
            let charge = match check.charge_timing {
                ChargeTiming::OnArrival => LateCharge::Charge(check.handle, check.cost.into()),
                ChargeTiming::OnResponse | ChargeTiming::WhileInFlight => LateCharge::Hold(reserved),
            };
            self.report_late(charge, check.key.salted(check.handle.salt));
        }
    }

    /// Reports what happens to a transferred counter. The lock of its shard is held.
    #[cold]
    pub(super) fn report_late(&self, charge: LateCharge, key: Fingerprint) {
        if let Some(Transfer { numbers, late }) = &*self.transfer.lock() {
            let limit = numbers.get(&charge.limit()).copied();
            // Fails only if the new process has ended, and with it what it knew of the counter.
            let _ = late.send(LateChargeMessage { key, limit, charge });
        }
    }

    /// Takes over the counters of the process that this one replaces, which it has `restored` as the state of a limiter,
    /// and the reservations `holds`. Counters of limits that are not installed here are dropped.
    pub fn absorb(&self, restored: &Self, holds: &[TransferredHold], now: Timestamp) -> AbsorbedCounters {
        let mut absorbed = AbsorbedCounters { limits: Vec::new(), holds: BTreeMap::new(), counters: 0 };
        let mut ids = HashMap::new();
        {
            let (theirs, ours) = (restored.registry.lock(), self.registry.lock());
            for limit in theirs.all() {
                ids.insert(limit.id, ours.id_of(limit.rule, limit.key, limit.serial));
            }
        }
        // A restored limiter has its limits in the order of their numbers.
        absorbed.limits = (0..ids.len()).map(|id| *ids.get(&LimitId(id as u32))?).collect();
        let mut copied = Copied::default();
        for shard in 0..restored.table.shards() {
            restored.table.copy(shard, now, &mut copied);
            for (key, limit, state) in copied.counters() {
                let Some(key) = Fingerprint::from_words(key) else { continue };
                let Some(id) = ids.get(&limit).copied().flatten() else { continue };
                let mut shard = self.table.lock(self.table.shard_of(key));
                let (Some(from), Some(to)) = (copied.quotas.get(limit), shard.quota(id).copied()) else {
                    continue;
                };
                let on_change = shard.quotas().on_change(id);
                let change = Change { from, to: &to, on_change };
                let Some(state) = change.convert(state, now) else { continue };
                let slot = shard.find(key);
                let placement = shard.store_state(slot, key, id, state, now);
                drop(shard);
                self.record_placement(placement);
                absorbed.counters += 1;
            }
            // The overflow counters were merged into those of this table when the state was first restored here.
        }
        for hold in holds {
            self.table.lock(self.table.shard_of(hold.key)).holds_mut().add(
                hold.key,
                hold.units_per_request,
                hold.units,
            );
            let held = absorbed.holds.entry((hold.key, hold.units_per_request)).or_default();
            *held = held.saturating_add(hold.units);
        }
        absorbed
    }
}

impl LateCharge {
    fn limit(&self) -> LimitId {
        match self {
            Self::Hold(reservation) | Self::Release(reservation) | Self::Settle(reservation, _) => {
                reservation.limit()
            }
            Self::Charge(handle, _) => handle.id,
        }
    }
}

impl AbsorbedCounters {
    /// Applies what has happened to a counter in the old process.
    pub fn apply(&mut self, limiter: &Limiter, late: &LateChargeMessage, now: Timestamp) {
        let LateChargeMessage { key, limit, charge } = *late;
        let limit = limit.and_then(|number| self.limits.get(number as usize).copied().flatten());
        // Without the limit, only the reservation ends: no limit has this id.
        let handle = LimitHandle::of_fingerprints(limit.unwrap_or(LimitId(u32::MAX)));
        let hash = KeyHash::from_words(key.words());
        match charge {
            LateCharge::Hold(reservation) => self.hold(limiter, key, &reservation),
            LateCharge::Release(permit) => {
                self.forget(key, &permit);
                limiter.release_permit(&permit.moved_to(handle, hash));
            }
            LateCharge::Settle(reservation, due) => {
                self.forget(key, &reservation);
                let _ = limiter.settle(&mut reservation.moved_to(handle, hash), due, now);
            }
            LateCharge::Charge(_, amount) => limiter.charge(handle, hash, amount, now),
        }
    }

    fn hold(&mut self, limiter: &Limiter, key: Fingerprint, reservation: &Reservation) {
        if let Some((units_per_request, units)) = reservation.held_units() {
            self.add(limiter, TransferredHold { key, units_per_request, units: units.into() });
        }
    }

    fn add(&mut self, limiter: &Limiter, hold: TransferredHold) {
        let TransferredHold { key, units_per_request, units } = hold;
        limiter.table.lock(limiter.table.shard_of(key)).holds_mut().add(key, units_per_request, units);
        let held = self.holds.entry((key, units_per_request)).or_default();
        *held = held.saturating_add(units);
    }

    fn forget(&mut self, key: Fingerprint, reservation: &Reservation) {
        if let Some((units_per_request, units)) = reservation.held_units() {
            let entry = (key, units_per_request);
            if let Some(held) = self.holds.get_mut(&entry) {
                *held = held.saturating_sub(units.into());
            }
        }
    }

    /// Releases what the old process had reserved and has not settled, because it has ended.
    pub fn release_all(self, limiter: &Limiter) {
        for ((key, units_per_request), units) in self.holds.into_iter().filter(|(_, units)| *units > 0) {
            let mut shard = limiter.table.lock(limiter.table.shard_of(key));
            shard.holds_mut().release(key, units_per_request, units);
            drop(shard);
            limiter.notify_waiting(key);
        }
    }
}

#[cfg(test)]
mod tests;
