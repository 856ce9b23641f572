//! Model of one key under one limit: requests that must be rejected, and requests that must be admitted.

use weir_limiter::algorithm::Algorithm;
use weir_limiter::algorithm::conversion::OnChange;
use weir_limiter::quota::Quota;
use weir_limiter::reservation::DebtLimit;

use super::usage::{BoundKind, ModelUsage, capacity};

#[derive(Clone, Debug)]
pub(crate) struct CounterModel {
    lower: ModelUsage,
    upper: ModelUsage,
    /// Units that rounding may have charged the client in addition to `most`.
    rounding: u64,
    /// Until this time the counter may contain charges of others that shared it.
    shared_until: u64,
}

impl CounterModel {
    pub(crate) fn new(quota: &Quota) -> Self {
        let used = ModelUsage::new(quota, 0, 0);
        Self {
            lower: used.clone(),
            upper: used.into_upper_bound(quota, 0),
            rounding: u64::from(has_rounding(quota)),
            shared_until: 0,
        }
    }

    /// Whether the limit permits `units` more.
    pub(crate) fn has_room(&self, quota: &Quota, units: u64, now: u64) -> bool {
        self.lower.fits(quota, units, now)
    }

    /// Whether there is certainly room for `units` more, so that a rejection would be wrong.
    pub(crate) fn must_have_room(&self, quota: &Quota, units: u64, now: u64) -> bool {
        self.shared_until <= now && self.upper.fits(quota, units + self.rounding, now)
    }

    pub(crate) fn charge(&mut self, quota: &Quota, units: u64, now: u64) {
        self.lower.charge(quota, units, now, BoundKind::Lower);
        self.upper.charge(quota, units, now, BoundKind::Upper);
    }

    /// Charges units even if they exceed the limit, as far as `debt` permits.
    pub(crate) fn charge_late(&mut self, quota: &Quota, units: u64, now: u64, debt: DebtLimit) {
        let room = |used: u64| match debt {
            DebtLimit::Unlimited => u64::MAX,
            DebtLimit::OneBurst => (2 * capacity(quota)).saturating_sub(used),
        };
        let at_least = match self.shared_until <= now {
            true => room(self.upper.units(quota, now, BoundKind::Upper) + self.rounding),
            // Other clients may have used up the room.
            false => 0,
        };
        let at_most = room(self.lower.units(quota, now, BoundKind::Lower));
        self.lower.charge(quota, units.min(at_least), now, BoundKind::Lower);
        self.upper.charge(quota, units.min(at_most), now, BoundKind::Upper);
    }

    /// Refunds units of a request. `shares` is the number of units per request at the time of the charge.
    pub(crate) fn refund(&mut self, quota: &Quota, (units, shares): (u64, u64), times: (u64, u64)) {
        let now = u64::from(quota.units_per_request().get());
        self.lower.refund(quota, (units * now).div_ceil(shares), times, BoundKind::Lower);
        self.upper.refund(quota, units * now / shares, times, BoundKind::Upper);
        self.rounding += u64::from(has_rounding(quota));
    }

    /// Applies a change of the quota.
    pub(crate) fn convert(&mut self, from: &Quota, to: &Quota, on_change: OnChange, now: u64) {
        if from == to || from.algorithm() == Algorithm::InFlight {
            return;
        }
        if self.shared_until > now {
            self.mark_shared(to, now);
        }
        match on_change {
            OnChange::Reset => *self = Self { shared_until: self.shared_until, ..Self::new(to) },
            // Each window that has ended paid for one count of the old quota.
            OnChange::Keep if has_compatible_counters(from, to) => {
                self.upper.advance_to(from, now);
                // A debt in the compact form is paid by the new count.
                if self.upper.units(from, now, BoundKind::Upper) > capacity(from) {
                    self.upper = self.upper.clone().into_upper_bound(to, now);
                }
            }
            OnChange::Keep => {
                self.carry_over(
                    (from, to),
                    (to.units_per_request().get().into(), from.units_per_request().get().into()),
                    (now, now),
                );
            }
            OnChange::Proportional => {
                let ratio = (capacity(to), capacity(from));
                let mut least = self.lower.clone();
                least.scale(ratio, BoundKind::Lower);
                let goes_on = has_compatible_counters(from, to) && from.needs_history();
                if goes_on && !self.upper.is_aggregate() {
                    self.upper.scale(ratio, BoundKind::Upper);
                } else {
                    self.carry_over((from, to), ratio, (now, now));
                }
                // The units that expire together in `most` may be a history in the limiter, whose units expire one by
                // one.
                if goes_on {
                    self.lower = least;
                    self.rounding += 1;
                }
            }
        }
    }

    /// Adapts to a new process that has restored the state.
    pub(crate) fn restore(&mut self, quota: &Quota, (then, now): (u64, u64)) {
        if now < then {
            // Its clock is behind, so no time has passed.
            self.carry_over((quota, quota), (1, 1), (then, now));
        } else {
            self.upper.aggregate(quota, then);
        }
    }

    /// Notes a charge that may have gone to a counter shared with others.
    pub(crate) fn mark_shared(&mut self, quota: &Quota, now: u64) {
        // The maximum time for which the combined debts of those sharing the counter may last.
        let whole =
            u64::try_from(quota.refill().max(quota.window().duration()).as_nanos()).unwrap_or(u64::MAX);
        self.shared_until = now.saturating_add(whole.saturating_mul(400));
    }

    fn carry_over(&mut self, (from, to): (&Quota, &Quota), ratio: (u64, u64), (then, now): (u64, u64)) {
        let least = self.lower.units(from, then, BoundKind::Lower) * ratio.0 / ratio.1;
        let most =
            ((self.upper.units(from, then, BoundKind::Upper) + self.rounding) * ratio.0).div_ceil(ratio.1);
        self.lower = ModelUsage::new(to, least, now).into_lower_bound();
        self.upper = ModelUsage::new(to, most, now).into_upper_bound(to, now);
        self.rounding = u64::from(has_rounding(to));
    }
}

/// Whether the units in use stay as they are under the other quota.
pub(crate) fn has_compatible_counters(from: &Quota, to: &Quota) -> bool {
    !from.algorithm().has_burst()
        && from.units_per_request() == to.units_per_request()
        && has_same_windows(from, to)
}

/// Whether a charge under one quota can be refunded under the other.
pub(crate) fn has_compatible_refunds(from: &Quota, to: &Quota) -> bool {
    has_same_windows(from, to) && (!from.algorithm().has_burst() || from.limit() == to.limit())
}

fn has_same_windows(from: &Quota, to: &Quota) -> bool {
    let like = |quota: &Quota| (quota.algorithm(), quota.window(), quota.precision());
    like(from) == like(to)
}

/// Whether a unit is a number of nanoseconds that may not be whole.
fn has_rounding(quota: &Quota) -> bool {
    quota.algorithm().has_burst()
}
