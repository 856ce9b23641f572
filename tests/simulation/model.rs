//! One key under one limit: what must not pass, and what must not be refused.

use weir::limiter::algorithm::Algorithm;
use weir::limiter::algorithm::conversion::OnChange;
use weir::limiter::quota::Quota;
use weir::limiter::reservation::Debt;

use super::used::{Side, Used, capacity};

#[derive(Clone, Debug)]
pub(crate) struct Counter {
    least: Used,
    most: Used,
    /// Units that roundings may have cost the client beyond `most`.
    slack: u64,
    /// Until when it may say what others did, with whom it has shared a counter.
    spoilt_until: u64,
}

impl Counter {
    pub(crate) fn new(quota: &Quota) -> Self {
        let used = Used::new(quota, 0, 0);
        Self {
            least: used.clone(),
            most: used.at_most(quota, 0),
            slack: u64::from(rounds(quota)),
            spoilt_until: 0,
        }
    }

    /// Whether the limit is kept if so many units pass.
    pub(crate) fn has_room(&self, quota: &Quota, units: u64, now: u64) -> bool {
        self.least.fits(quota, units, now)
    }

    /// Whether there is so much room for them that to refuse them is wrong.
    pub(crate) fn must_have_room(&self, quota: &Quota, units: u64, now: u64) -> bool {
        self.spoilt_until <= now && self.most.fits(quota, units + self.slack, now)
    }

    pub(crate) fn charge(&mut self, quota: &Quota, units: u64, now: u64) {
        self.least.charge(quota, units, now, Side::Least);
        self.most.charge(quota, units, now, Side::Most);
    }

    /// What is charged although it is over the limit, as far as it may be owed.
    pub(crate) fn charge_late(&mut self, quota: &Quota, units: u64, now: u64, debt: Debt) {
        let room = |used: u64| match debt {
            Debt::AsTold => u64::MAX,
            Debt::OneBurst => (2 * capacity(quota)).saturating_sub(used),
        };
        let at_least = match self.spoilt_until <= now {
            true => room(self.most.units(quota, now, Side::Most) + self.slack),
            // Others may have used it up.
            false => 0,
        };
        let at_most = room(self.least.units(quota, now, Side::Least));
        self.least.charge(quota, units.min(at_least), now, Side::Least);
        self.most.charge(quota, units.min(at_most), now, Side::Most);
    }

    /// Gives back units as they were counted when they were charged, of which a request had so many.
    pub(crate) fn refund(&mut self, quota: &Quota, (units, shares): (u64, u64), times: (u64, u64)) {
        let now = u64::from(quota.shares().get());
        self.least.refund(quota, (units * now).div_ceil(shares), times, Side::Least);
        self.most.refund(quota, units * now / shares, times, Side::Most);
        self.slack += u64::from(rounds(quota));
    }

    /// Another quota takes over.
    pub(crate) fn convert(&mut self, from: &Quota, to: &Quota, on_change: OnChange, now: u64) {
        if from == to || from.algorithm() == Algorithm::InFlight {
            return;
        }
        if self.spoilt_until > now {
            self.spoil(to, now);
        }
        match on_change {
            OnChange::Reset => *self = Self { spoilt_until: self.spoilt_until, ..Self::new(to) },
            // Windows that have ended paid a count of the old quota each.
            OnChange::Keep if counts_like(from, to) => {
                self.most.pass_to(from, now);
                // A debt, said in short, is paid by the new count.
                if self.most.units(from, now, Side::Most) > capacity(from) {
                    self.most = self.most.clone().at_most(to, now);
                }
            }
            OnChange::Keep => {
                self.carry((from, to), (to.shares().get().into(), from.shares().get().into()), (now, now));
            }
            OnChange::Proportional => {
                let ratio = (capacity(to), capacity(from));
                let mut least = self.least.clone();
                least.scale(ratio, Side::Least);
                let goes_on = counts_like(from, to) && from.looks_back();
                if goes_on && !self.most.is_lump() {
                    self.most.scale(ratio, Side::Most);
                } else {
                    self.carry((from, to), ratio, (now, now));
                }
                // What all leaves together at most may have been a history, whose units leave when they would have.
                if goes_on {
                    self.least = least;
                    self.slack += 1;
                }
            }
        }
    }

    /// Another process takes over.
    pub(crate) fn restore(&mut self, quota: &Quota, (then, now): (u64, u64)) {
        if now < then {
            // Its clock is behind: no time has passed.
            self.carry((quota, quota), (1, 1), (then, now));
        } else {
            self.most.shorten(quota, then);
        }
    }

    /// It has been charged where it may share a counter with others.
    pub(crate) fn spoil(&mut self, quota: &Quota, now: u64) {
        // As long as all the debts of those who share may last together.
        let whole =
            u64::try_from(quota.refill().max(quota.window().duration()).as_nanos()).unwrap_or(u64::MAX);
        self.spoilt_until = now.saturating_add(whole.saturating_mul(400));
    }

    fn carry(&mut self, (from, to): (&Quota, &Quota), ratio: (u64, u64), (then, now): (u64, u64)) {
        let least = self.least.units(from, then, Side::Least) * ratio.0 / ratio.1;
        let most = ((self.most.units(from, then, Side::Most) + self.slack) * ratio.0).div_ceil(ratio.1);
        self.least = Used::new(to, least, now).at_least();
        self.most = Used::new(to, most, now).at_most(to, now);
        self.slack = u64::from(rounds(to));
    }
}

/// Whether units in use go on under the other quota as they are.
pub(crate) fn counts_like(from: &Quota, to: &Quota) -> bool {
    !from.algorithm().has_burst() && from.shares() == to.shares() && is_same_time(from, to)
}

/// Whether what was charged under the one can be given back under the other.
pub(crate) fn gives_back_like(from: &Quota, to: &Quota) -> bool {
    is_same_time(from, to) && (!from.algorithm().has_burst() || from.limit() == to.limit())
}

fn is_same_time(from: &Quota, to: &Quota) -> bool {
    let like = |quota: &Quota| (quota.algorithm(), quota.window(), quota.precision());
    like(from) == like(to)
}

/// Whether units are so many nanoseconds that do not come out even.
fn rounds(quota: &Quota) -> bool {
    quota.algorithm().has_burst()
}
