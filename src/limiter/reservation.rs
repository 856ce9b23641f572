//! Charges whose amount the answer decides: reserved on arrival, settled once, never forgotten.
//!
//! Three kinds, told apart by [`Charging`]. A charge *on arrival* is a charge like any other that may be raised or
//! given back later. A charge *on the answer* is only held: it takes room from everybody who comes meanwhile,
//! and becomes a charge when the answer says that it counts. So what counts is charged at the moment it is known
//! to count, nothing is ever taken off a counter that others have been judged by, and what does not count
//! leaves no trace, nor does a request that was refused for holds alone. A charge that is *never* made is a hold and
//! nothing else: a permit. Holds are kept beside the counters, under the same lock; there are never more of them
//! than requests being served.

use std::collections::BTreeMap;
use std::time::Duration;

use super::algorithm::{self, Counter, Outcome, State};
use super::decision::Decision;
use super::key::{Fingerprint, KeyHash};
use super::meters::Meter;
use super::quota::Quota;
use super::timestamp::Timestamp;
use super::{Check, Limiter};

/// In the way are only those whose answers have not come; nobody knows how long they take. Where time has to
/// pass it is never none.
const IN_THE_WAY: Outcome = Outcome::Exceed { retry_after: Some(Duration::ZERO) };

/// When a request that passes is charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Charging {
    /// At once.
    #[default]
    OnArrival,
    /// When the answer shows whether it counts; until then its cost is held.
    OnAnswer,
    /// Never: its cost is held for as long as it is served.
    WhileServed,
}

/// Units that one request was admitted with, to be settled when its true cost is known.
#[derive(Clone, Copy, Debug)]
pub struct Reservation {
    meter: Meter,
    key: KeyHash,
    charging: Charging,
    units: u32,
    at: Timestamp,
}

/// What a counter says after a settlement, for whoever tells the client.
#[derive(Clone, Copy, Debug)]
pub struct Settled(pub(super) Quota, pub(super) State);

impl Reservation {
    /// What `check` reserved at `at`, provided that it conformed and the request passed.
    pub fn new(check: &Check, at: Timestamp) -> Self {
        Self { meter: check.meter, key: check.key, charging: check.charging, units: check.cost, at }
    }

    /// Units reserved, or charged by the last settlement.
    pub fn units(&self) -> u32 {
        self.units
    }
}

impl Limiter {
    /// Ends a hold of what is never charged; to be called once. The meter may be gone, the hold is not.
    pub fn release(&self, permit: &Reservation) {
        let key = permit.key.salted(permit.meter.salt);
        self.store.lock(self.store.shard_of(key)).held_mut().release(key, permit.units);
    }

    /// Settles a reservation for `due` units, even past the limit; `None` if the meter is gone.
    ///
    /// A hold ends here. Of a charge on arrival, what `due` falls short of is given back as far as time has not
    /// given it back already. What has been settled is from now on a charge on arrival of `due` units.
    pub fn settle(&self, reservation: &mut Reservation, due: u32, now: Timestamp) -> Option<Settled> {
        let Reservation { meter, key, charging, units, at } = *reservation;
        let charged = match charging {
            Charging::OnAnswer | Charging::WhileServed => now,
            Charging::OnArrival => at,
        };
        *reservation = Reservation { charging: Charging::OnArrival, units: due, at: charged, ..*reservation };
        let key = key.salted(meter.salt);
        let mut shard = self.store.lock(self.store.shard_of(key));
        let charge = match charging {
            Charging::OnAnswer | Charging::WhileServed => {
                shard.held_mut().release(key, units);
                i64::from(due)
            }
            Charging::OnArrival => i64::from(due) - i64::from(units),
        };
        let quota = *shard.quota(meter.id)?;
        let place = shard.find(key);
        let held = shard.held().of(key);
        let next = match charge {
            0 => shard.state(place, meter.id, now),
            // A counter that is forgotten is whole again.
            ..0 => shard.refund(place, key, meter.id, units - due, (at, now)),
            _ => {
                let next = algorithm::charge(shard.state(place, meter.id, now), &quota, charge, now);
                self.note(shard.keep(place, key, meter.id, next, now));
                Some(next)
            }
        };
        Some(Settled(quota, shown(next, &quota, held, now)))
    }
}

impl Decision {
    /// Notes what became of the charge of the check at `position`.
    pub fn note_settled(&mut self, position: usize, Settled(quota, state): Settled) {
        if let Some(verdict) = self.verdicts_mut().get_mut(position) {
            verdict.counter = Some((quota, Some(state)));
        }
    }
}

/// Units held per key, as long as there are any.
#[derive(Debug, Default)]
pub(super) struct Held(BTreeMap<Fingerprint, u64>);

impl Held {
    /// Units held for `key`.
    pub(super) fn of(&self, key: Fingerprint) -> u64 {
        self.0.get(&key).copied().unwrap_or(0)
    }

    pub(super) fn hold(&mut self, key: Fingerprint, units: u32) {
        let held = self.0.entry(key).or_default();
        *held = held.saturating_add(units.into());
    }

    fn release(&mut self, key: Fingerprint, units: u32) {
        if let Some(held) = self.0.get_mut(&key) {
            *held = held.saturating_sub(units.into());
            if *held == 0 {
                self.0.remove(&key);
            }
        }
    }
}

/// Decides a cost that would be held beside what is `held` already: all of it may turn out to count.
pub(super) fn evaluate(
    counter: Counter<'_>,
    quota: &Quota,
    (cost, held): (u32, u64),
    now: Timestamp,
) -> (State, Outcome) {
    let together = u32::try_from(held.saturating_add(cost.into())).unwrap_or(u32::MAX);
    let (next, outcome) = algorithm::evaluate(counter, quota, together, now);
    if outcome == Outcome::Conform {
        return (next, outcome);
    }
    let outcome = match algorithm::evaluate(counter, quota, cost, now).1 {
        Outcome::Conform => IN_THE_WAY,
        exceeds @ Outcome::Exceed { .. } => exceeds,
    };
    (shown(counter.in_short(quota, now), quota, held, now), outcome)
}

/// Whether a refusal tells nothing about whoever was refused: the limit may never have been reached, since what
/// is in the way may yet turn out not to count. Permits are different, they are out for good while they are.
pub(super) fn may_come_to_nothing(charging: Charging, outcome: Outcome) -> bool {
    charging == Charging::OnAnswer && outcome == IN_THE_WAY
}

/// A counter with what is held of it, as clients are told.
pub(super) fn shown(state: Option<State>, quota: &Quota, held: u64, now: Timestamp) -> State {
    algorithm::charge(state, quota, i64::try_from(held).unwrap_or(i64::MAX), now)
}

#[cfg(test)]
mod tests;
