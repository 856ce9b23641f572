//! Charges that the response decides: reserved on arrival and settled exactly once.
//!
//! [`ChargeTiming`] has three modes. `OnArrival` charges at admission; the charge may be raised or partly
//! given back later. `OnResponse` reserves units at admission, so that concurrent requests see them, and
//! charges them when the response shows that the request counts. `WhileInFlight` only reserves units: a
//! permit of a concurrency limit.
//!
//! A reservation is not a charge, so releasing one never lowers a counter by which other requests were decided. A
//! request that does not count leaves no trace, nor does one that was rejected only because of reservations.
//! Reservations are stored with the counters under the same lock; there are never more of them than requests in flight.

mod transfer;

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::time::Duration;

use super::algorithm::{self, Counter, CounterState, Outcome};
use super::decision::{Decision, Enforcement};
use super::key::{Fingerprint, KeyHash};
use super::leases::SharedCounter;
use super::quota::Quota;
use super::registry::LimitHandle;
use super::request_limit::RequestLimit;
use super::timestamp::Timestamp;
use super::transfer::LateCharge;
use super::{Check, Limiter};

/// The outcome if only reservations of other requests are in the way: it is not known when they end. Where time has to
/// pass, the wait is never zero.
const BLOCKED_BY_HOLDS: Outcome = Outcome::Exceed { retry_after: Some(Duration::ZERO) };

/// When a request that passes is charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChargeTiming {
    /// At admission.
    #[default]
    OnArrival,
    /// When the response shows whether it counts; until then its cost is reserved.
    OnResponse,
    /// Never: its cost is reserved while the request is in flight.
    WhileInFlight,
}

/// How far a charge that is known too late to reject may put a counter in debt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DebtLimit {
    /// By at most one burst, which takes one refill to pay. For costs that another party reports without a configured
    /// maximum.
    #[default]
    OneBurst,
    /// Without a bound: the rule itself bounds the cost of one request.
    Unlimited,
}

/// When a counter has room for more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomForecast {
    /// Time until then; zero if it has.
    pub wait: Duration,
    /// Bound of the wait for a debt of [`DebtLimit::OneBurst`]; zero if units do not return one by one, as with windows.
    pub max_debt_wait: Duration,
}

/// Units that a request was admitted with, to be settled when its true cost is known.
#[derive(Clone, Copy, Debug)]
pub struct Reservation {
    handle: LimitHandle,
    key: KeyHash,
    charge_timing: ChargeTiming,
    /// Units due.
    units: u32,
    /// Units of them that are on the counter, reserved or charged.
    charged: u32,
    /// Units per request at admission; a reload may change the size of shares.
    units_per_request: NonZeroU16,
    debt_limit: DebtLimit,
    reserved_at: Timestamp,
    /// Limit that the request has stated.
    request_limit: Option<RequestLimit>,
}

/// A counter after a settlement, for response headers.
#[derive(Clone, Copy, Debug)]
pub struct SettledCounter(pub(super) Quota, pub(super) CounterState);

impl Reservation {
    /// Creates the reservation that `check` made at `at`, if it conformed and the request passed.
    pub fn new(check: &Check, at: Timestamp) -> Self {
        Self {
            handle: check.handle,
            key: check.key,
            charge_timing: check.charge_timing,
            units: check.cost,
            charged: check.cost,
            units_per_request: NonZeroU16::MIN,
            debt_limit: DebtLimit::default(),
            reserved_at: at,
            request_limit: check.request_limit(),
        }
    }

    /// Creates the reservation of a check whose cost has been charged, or will be on its own.
    pub fn charged(check: &Check, at: Timestamp) -> Self {
        Self { charge_timing: ChargeTiming::OnArrival, ..Self::new(check, at) }
    }

    /// Sets the units per request to those of the quota that decided; by default a unit is a request.
    pub fn in_units_of(self, quota: &Quota) -> Self {
        Self { units_per_request: quota.units_per_request(), ..self }
    }

    /// Sets the bound of the debt.
    pub fn with_debt_limit(self, debt: DebtLimit) -> Self {
        Self { debt_limit: debt, ..self }
    }

    /// Units reserved, or due according to the last settlement.
    pub fn units(&self) -> u32 {
        self.units
    }

    /// Whether its units return as those of `quota` do, which the key has by what its requests state. Units of a quota that
    /// refills continuously return at its rate, and so at another one since it has changed.
    fn has_units_of(&self, quota: &Quota, stated: Option<RequestLimit>) -> bool {
        !quota.algorithm().has_burst() || stated == self.request_limit
    }

    /// Ends the reservation, if there is one; returns how many units have to be charged so that `due` are.
    fn start_settlement(&mut self, due: u32, held: &mut Holds, key: Fingerprint, now: Timestamp) -> u32 {
        if self.charge_timing == ChargeTiming::OnArrival {
            let more = due.saturating_sub(self.units);
            self.units = due;
            return more;
        }
        held.release(key, self.units_per_request, self.units.into());
        *self = Self {
            charge_timing: ChargeTiming::OnArrival,
            units: due,
            charged: 0,
            reserved_at: now,
            ..*self
        };
        due
    }

    /// Returns how much of `more` units is charged to a counter with this state, in units of its quota.
    fn charge(&mut self, more: u32, state: Option<CounterState>, quota: &Quota, now: Timestamp) -> u32 {
        let wanted = convert_units(more, self.units_per_request, quota.units_per_request(), u64::div_ceil);
        let charge = match self.debt_limit {
            DebtLimit::Unlimited => wanted,
            DebtLimit::OneBurst => wanted.min(room_for_debt(state, quota, now)),
        };
        let charged =
            convert_units(charge, quota.units_per_request(), self.units_per_request, |units, of| units / of);
        self.charged = self.charged.saturating_add(charged.min(more));
        charge
    }
}

impl Limiter {
    /// Releases a permit; must be called exactly once. Works even if the limit has been removed.
    pub fn release_permit(&self, permit: &Reservation) {
        let key = permit.key.salted(permit.handle.salt);
        let mut shard = self.table.lock(self.table.shard_of(key));
        shard.holds_mut().release(key, permit.units_per_request, permit.units.into());
        if shard.is_transferred() {
            self.report_late(LateCharge::Release(*permit), key);
        }
        drop(shard);
        self.notify_waiting(key);
    }

    /// Returns when the counter of a reservation has room for more. A limit that was removed, or that the store counts,
    /// always has.
    pub fn room_forecast(&self, reservation: &Reservation, now: Timestamp) -> RoomForecast {
        let cost = u32::from(reservation.units_per_request.get());
        let Reservation { handle, key, .. } = *reservation;
        let (enforcement, charge_timing) = (Enforcement::Enforced, ChargeTiming::OnArrival);
        let decision =
            self.peek([Check { handle, key, cost, enforcement, charge_timing, options: None }], now);
        let counted =
            decision.verdicts().iter().filter(|verdict| !verdict.quota().is_some_and(Quota::is_leased));
        let Some(last) = counted.max_by_key(|verdict| verdict.retry_after()) else {
            return RoomForecast::default();
        };
        // One refill pays the debt, and during another one there is room for a unit.
        let steady = last.quota().filter(|quota| quota.algorithm().can_delay());
        let max_debt_wait = steady.map_or(Duration::ZERO, |quota| quota.refill().saturating_mul(2));
        RoomForecast { wait: last.retry_after(), max_debt_wait }
    }

    /// Settles a reservation at `due` units, even beyond the limit; `None` if the limit has been removed.
    ///
    /// Units are those that it was reserved in, whatever the limit counts in now. A reservation that was not charged
    /// yet ends here. For a charge on arrival, units beyond `due` are given back, as far as time has not given them
    /// back already. Afterwards it is a charge on arrival of `due` units.
    pub fn settle(&self, reservation: &mut Reservation, due: u32, now: Timestamp) -> Option<SettledCounter> {
        let (handle, key) = (reservation.handle, reservation.key.salted(reservation.handle.salt));
        let mut shard = self.table.lock(self.table.shard_of(key));
        shard.end_overrides(now);
        if shard.is_transferred() {
            self.report_late(LateCharge::Settle(*reservation, due), key);
        }
        let is_reserved = reservation.charge_timing != ChargeTiming::OnArrival;
        let more = reservation.start_settlement(due, shard.holds_mut(), key, now);
        let quota = *shard.quota_of(key, handle.id)?;
        let slot = shard.find(key);
        let state = shard.state(slot, handle.id, now);
        let (back, at) = (reservation.charged.saturating_sub(due), reservation.reserved_at);
        reservation.charged -= back;
        let charge = if more > 0 { reservation.charge(more, state, &quota, now) } else { 0 };
        let charge = if is_reserved { shard.spend_covered(key, handle.id, charge, now) } else { charge };
        let next = if more > 0 {
            let next = algorithm::charge(state, &quota, charge.into(), now);
            if quota.is_leased() {
                self.record_debt(&mut shard, SharedCounter { limit: handle.id, key }, charge, state, now);
            }
            self.record_placement(shard.store_state(slot, key, handle.id, next, now));
            Some(next)
        } else if back > 0
            && is_refundable(at, shard.quotas().refundable_since(handle.id))
            && reservation.has_units_of(&quota, shard.request_limit_of(key))
        {
            let back =
                convert_units(back, reservation.units_per_request, quota.units_per_request(), |units, of| {
                    units / of
                });
            // A counter that was removed is whole again.
            shard.refund(slot, key, handle.id, back, at, now)
        } else {
            state
        };
        let held = shard.held_of(key, handle.id);
        drop(shard);
        if back > 0 || is_reserved {
            self.notify_waiting(key);
        }
        Some(SettledCounter(quota, state_with_holds(next, &quota, held, now)))
    }
}

impl Decision {
    /// Updates the verdict of the check at `position` after a settlement.
    pub fn record_settlement(&mut self, position: usize, SettledCounter(quota, state): SettledCounter) {
        if let Some(verdict) = self.verdicts_mut().get_mut(position) {
            verdict.counter = Some((quota, Some(state)));
        }
    }
}

/// Reserved units per key and units per request, which differ after a reload.
#[derive(Clone, Debug, Default)]
pub(super) struct Holds(BTreeMap<(Fingerprint, NonZeroU16), u64>);

impl Holds {
    /// Units reserved for `key`, converted to `shares` units per request.
    pub(super) fn units_held(&self, key: Fingerprint, shares: NonZeroU16) -> u64 {
        let held = self.0.range((key, NonZeroU16::MIN)..=(key, NonZeroU16::MAX));
        let now = u128::from(shares.get());
        held.fold(0, |sum, ((_, then), units)| {
            let units = (u128::from(*units) * now).div_ceil(then.get().into());
            u64::try_from(units).map_or(u64::MAX, |units| sum.saturating_add(units))
        })
    }

    pub(super) fn contains(&self, key: Fingerprint) -> bool {
        self.0.range((key, NonZeroU16::MIN)..=(key, NonZeroU16::MAX)).next().is_some()
    }

    pub(super) fn hold(&mut self, key: Fingerprint, shares: NonZeroU16, units: u32) {
        let held = self.0.entry((key, shares)).or_default();
        *held = held.saturating_add(units.into());
    }

    /// Copies the reservations of `key` into `target`.
    pub(super) fn copy_key(&self, key: Fingerprint, target: &mut Self) {
        let held = self.0.range((key, NonZeroU16::MIN)..=(key, NonZeroU16::MAX));
        target.0.extend(held.map(|(counter, units)| (*counter, *units)));
    }

    /// Iterates over the reserved units of each key, with the units per request that they are in.
    pub(super) fn all(&self) -> impl Iterator<Item = (Fingerprint, NonZeroU16, u64)> {
        self.0.iter().map(|((key, shares), units)| (*key, *shares, *units))
    }

    /// Adds what another process has reserved.
    pub(super) fn add(&mut self, key: Fingerprint, shares: NonZeroU16, units: u64) {
        let held = self.0.entry((key, shares)).or_default();
        *held = held.saturating_add(units);
    }

    pub(super) fn release(&mut self, key: Fingerprint, shares: NonZeroU16, units: u64) {
        if let Some(held) = self.0.get_mut(&(key, shares)) {
            *held = held.saturating_sub(units);
            if *held == 0 {
                self.0.remove(&(key, shares));
            }
        }
    }
}

/// Decides a request whose cost would be reserved in addition to `held` units, all of which may turn out to count.
pub(super) fn evaluate(
    counter: Counter<'_>,
    quota: &Quota,
    cost: u32,
    held: u64,
    now: Timestamp,
) -> (CounterState, Outcome) {
    let together = u32::try_from(held.saturating_add(cost.into())).unwrap_or(u32::MAX);
    let (next, outcome) = algorithm::evaluate(counter, quota, together, now);
    if outcome == Outcome::Conform {
        return (next, outcome);
    }
    let outcome = match algorithm::evaluate(counter, quota, cost, now).1 {
        Outcome::Conform => BLOCKED_BY_HOLDS,
        exceeds @ Outcome::Exceed { .. } => exceeds,
    };
    (state_with_holds(counter.compact_state(quota, now), quota, held, now), outcome)
}

/// Whether units charged `at` a moment are comparable with those since a change of the quota. No quota is older than the
/// epoch, so there was none that they could have been charged under.
fn is_refundable(at: Timestamp, since: Timestamp) -> bool {
    at > since || since == Timestamp::EPOCH
}

/// Whether a rejection says nothing about the client: reservations in the way may turn out not to count, so the limit
/// may never have been reached. Permits differ: they are in use for certain.
pub(super) fn is_blocked_by_pending_charges(charging: ChargeTiming, outcome: Outcome) -> bool {
    charging != ChargeTiming::WhileInFlight && outcome == BLOCKED_BY_HOLDS
}

/// Units that can be charged to a counter until it owes one whole burst.
pub(super) fn room_for_debt(state: Option<CounterState>, quota: &Quota, now: Timestamp) -> u32 {
    let used = u64::from(algorithm::usage(state, quota, now).used);
    u32::try_from((2 * u64::from(quota.capacity())).saturating_sub(used)).unwrap_or(u32::MAX)
}

/// Converts units between two numbers of units per request, which are nearly always equal.
fn convert_units(units: u32, from: NonZeroU16, to: NonZeroU16, divide: impl Fn(u64, u64) -> u64) -> u32 {
    if from == to {
        return units;
    }
    let (from, to) = (u64::from(from.get()), u64::from(to.get()));
    u32::try_from(divide(u64::from(units) * to, from)).unwrap_or(u32::MAX)
}

/// Adds reserved units to a counter, as clients see it.
pub(super) fn state_with_holds(
    state: Option<CounterState>,
    quota: &Quota,
    held: u64,
    now: Timestamp,
) -> CounterState {
    algorithm::charge(state, quota, i64::try_from(held).unwrap_or(i64::MAX), now)
}

#[cfg(test)]
mod tests;
