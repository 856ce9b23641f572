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
use std::num::NonZeroU16;
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

/// How far a charge that is known too late to refuse may put a counter in debt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Debt {
    /// By as much again as it has: whatever somebody else says a request has cost, one refill is the price.
    #[default]
    OneBurst,
    /// As far as it goes: the rule says itself how much one request may cost.
    AsTold,
}

/// Units that one request was admitted with, to be settled when its true cost is known.
#[derive(Clone, Copy, Debug)]
pub struct Reservation {
    meter: Meter,
    key: KeyHash,
    charging: Charging,
    /// Units due.
    units: u32,
    /// Units of them that are on the counter, held or charged.
    charged: u32,
    /// Units in a request when it was admitted: a reload may cut requests into other shares.
    shares: NonZeroU16,
    debt: Debt,
    at: Timestamp,
}

/// What a counter says after a settlement, for whoever tells the client.
#[derive(Clone, Copy, Debug)]
pub struct Settled(pub(super) Quota, pub(super) State);

impl Reservation {
    /// What `check` reserved at `at`, provided that it conformed and the request passed.
    pub fn new(check: &Check, at: Timestamp) -> Self {
        Self {
            meter: check.meter,
            key: check.key,
            charging: check.charging,
            units: check.cost,
            charged: check.cost,
            shares: NonZeroU16::MIN,
            debt: Debt::default(),
            at,
        }
    }

    /// The same, in units of the quota that decided; else a unit is a request.
    pub fn under(self, quota: &Quota) -> Self {
        Self { shares: quota.shares(), ..self }
    }

    /// The same with another bound on what it may owe in the end.
    pub fn owing(self, debt: Debt) -> Self {
        Self { debt, ..self }
    }

    /// Units reserved, or due by the last settlement.
    pub fn units(&self) -> u32 {
        self.units
    }

    /// Ends the hold, if it is one, and answers how many units are to be charged now for `due` to be.
    fn begin_settling(&mut self, due: u32, held: &mut Held, key: Fingerprint, now: Timestamp) -> u32 {
        if self.charging == Charging::OnArrival {
            let more = due.saturating_sub(self.units);
            self.units = due;
            return more;
        }
        held.release(key, self.shares, self.units);
        *self = Self { charging: Charging::OnArrival, units: due, charged: 0, at: now, ..*self };
        due
    }

    /// How much of `more` units is charged to a counter that says `state`, in units of its quota.
    fn charge(&mut self, more: u32, state: Option<State>, quota: &Quota, now: Timestamp) -> u32 {
        let wanted = in_shares(more, (self.shares, quota.shares()), u64::div_ceil);
        let charge = match self.debt {
            Debt::AsTold => wanted,
            Debt::OneBurst => wanted.min(room_for_debt(state, quota, now)),
        };
        let charged = in_shares(charge, (quota.shares(), self.shares), |units, of| units / of);
        self.charged = self.charged.saturating_add(charged.min(more));
        charge
    }
}

impl Limiter {
    /// Ends a hold of what is never charged; to be called once. The meter may be gone, the hold is not.
    pub fn release(&self, permit: &Reservation) {
        let key = permit.key.salted(permit.meter.salt);
        let mut shard = self.store.lock(self.store.shard_of(key));
        shard.held_mut().release(key, permit.shares, permit.units);
    }

    /// Settles a reservation for `due` units, even past the limit; `None` if the meter is gone.
    ///
    /// Units are those that it was reserved in, whatever the limit counts in now. A hold ends here. Of a charge on
    /// arrival, what `due` falls short of is given back as far as time has not given it back already. What has
    /// been settled is from now on a charge on arrival of `due` units.
    pub fn settle(&self, reservation: &mut Reservation, due: u32, now: Timestamp) -> Option<Settled> {
        let (meter, key) = (reservation.meter, reservation.key.salted(reservation.meter.salt));
        let mut shard = self.store.lock(self.store.shard_of(key));
        let more = reservation.begin_settling(due, shard.held_mut(), key, now);
        let quota = *shard.quota(meter.id)?;
        let place = shard.find(key);
        let held = shard.held_of(key, meter.id);
        let state = shard.state(place, meter.id, now);
        let (back, at) = (reservation.charged.saturating_sub(due), reservation.at);
        reservation.charged -= back;
        let next = if more > 0 {
            let charge = reservation.charge(more, state, &quota, now);
            let next = algorithm::charge(state, &quota, charge.into(), now);
            self.note(shard.keep(place, key, meter.id, next, now));
            Some(next)
        } else if back > 0 && at > shard.quotas().kept_since(meter.id) {
            let back = in_shares(back, (reservation.shares, quota.shares()), |units, of| units / of);
            // A counter that is forgotten is whole again.
            shard.refund(place, key, meter.id, back, (at, now))
        } else {
            state
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

/// Units held per key, apart by the shares of a request that they are counted in; as long as there are any.
#[derive(Debug, Default)]
pub(super) struct Held(BTreeMap<(Fingerprint, NonZeroU16), u64>);

impl Held {
    /// Units held for `key`, of which a request has so many now.
    pub(super) fn of(&self, key: Fingerprint, shares: NonZeroU16) -> u64 {
        let held = self.0.range((key, NonZeroU16::MIN)..=(key, NonZeroU16::MAX));
        let now = u128::from(shares.get());
        held.fold(0, |sum, ((_, then), units)| {
            let units = (u128::from(*units) * now).div_ceil(then.get().into());
            u64::try_from(units).map_or(u64::MAX, |units| sum.saturating_add(units))
        })
    }

    pub(super) fn hold(&mut self, key: Fingerprint, shares: NonZeroU16, units: u32) {
        let held = self.0.entry((key, shares)).or_default();
        *held = held.saturating_add(units.into());
    }

    fn release(&mut self, key: Fingerprint, shares: NonZeroU16, units: u32) {
        if let Some(held) = self.0.get_mut(&(key, shares)) {
            *held = held.saturating_sub(units.into());
            if *held == 0 {
                self.0.remove(&(key, shares));
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
    charging != Charging::WhileServed && outcome == IN_THE_WAY
}

/// What a counter can be charged beyond what it has, until it owes as much again.
pub(super) fn room_for_debt(state: Option<State>, quota: &Quota, now: Timestamp) -> u32 {
    let used = u64::from(algorithm::usage(state, quota, now).used);
    u32::try_from((2 * u64::from(quota.capacity())).saturating_sub(used)).unwrap_or(u32::MAX)
}

/// Units of which a request has so many, in units of which it has as many as the other; almost always the same.
fn in_shares(units: u32, (from, to): (NonZeroU16, NonZeroU16), divide: impl Fn(u64, u64) -> u64) -> u32 {
    if from == to {
        return units;
    }
    let (from, to) = (u64::from(from.get()), u64::from(to.get()));
    u32::try_from(divide(u64::from(units) * to, from)).unwrap_or(u32::MAX)
}

/// A counter with what is held of it, as clients are told.
pub(super) fn shown(state: Option<State>, quota: &Quota, held: u64, now: Timestamp) -> State {
    algorithm::charge(state, quota, i64::try_from(held).unwrap_or(i64::MAX), now)
}

#[cfg(test)]
mod tests;
