//! Reviews of a lease account: units that would expire unspent go back to the store.

use super::{
    Lease, LeaseAccount, MAX_DEBT_DELAY, MAX_LEAD, MEMORY, SCARCE_PART, WORTH_A_CALL, WORTH_REMEMBERING,
};
use crate::algorithm::lease::LeaseState;
use crate::leases::LeaseReview;
use crate::timestamp::Timestamp;

impl LeaseAccount {
    /// Time of the next review.
    pub(in crate::leases) fn review_at(&self, now: Timestamp) -> Option<Timestamp> {
        if self.is_permits {
            return Some(self.permits_due(now));
        }
        if self.owed > 0 {
            return Some(now.saturating_add(self.look.min(MAX_DEBT_DELAY)).max(self.pauses_until));
        }
        let (last, next_look) = (self.next.until.max(self.current.until), now.saturating_add(self.look));
        if last > now {
            return Some(last.saturating_sub(self.lead).min(next_look).max(now));
        }
        // Units that came too late go back, and what settled reservations leave.
        (self.lapsed.units > 0 || self.covered() > 0).then_some(next_look)
    }

    /// Reviews the units held: whether they are about to expire, or are more than will be spent. Returns also what the
    /// slot is to contain.
    pub(in crate::leases) fn review(
        &mut self,
        held: LeaseState,
        in_use: u64,
        now: Timestamp,
    ) -> (LeaseReview, LeaseState) {
        let left = self.expire(held, in_use, now);
        let slot = self.slot(held, left, now);
        if self.is_permits {
            return (self.review_permits(left, in_use, now), slot);
        }
        let there = left.saturating_add(self.current.units).saturating_sub(self.uncovered(in_use));
        if self.is_requesting {
            return (LeaseReview::Later(now.saturating_add(MAX_LEAD)), slot);
        }
        if self.owed > 0 {
            self.is_requesting = now >= self.pauses_until;
            let review =
                if self.is_requesting { LeaseReview::Query } else { LeaseReview::Later(self.pauses_until) };
            return (review, slot);
        }
        let holds = there > 0 || self.next.units > 0;
        if !holds && self.lapsed.units == 0 {
            let review = if self.is_idle(now) {
                LeaseReview::Done
            } else {
                let pause = if self.covered() > 0 { self.look } else { MEMORY };
                LeaseReview::Later(now.saturating_add(pause))
            };
            return (review, slot);
        }
        let is_look = now.since(self.looked.1) >= self.look;
        let spent = self.spent_since_look(there);
        self.is_quiet = spent == 0;
        let all = there.saturating_add(self.next.units);
        let unspent = all.saturating_add(self.lapsed.units);
        // The last units of a limit are worth a call, however few they are.
        let is_little = f64::from(unspent) <= self.demand_rate * WORTH_A_CALL
            && u64::from(unspent) * SCARCE_PART <= self.remaining.unwrap_or(u32::MAX).into();
        // A single look may have been at the end of a burst.
        let seems_too_much = !is_little && f64::from(there) > 2.0 * self.spendable(there, now);
        self.has_too_much = seems_too_much && (self.is_quiet || self.seemed_too_much);
        if is_look {
            self.seemed_too_much = seems_too_much;
        }
        if self.is_quiet && is_little {
            let at = self.next.until.max(self.current.until);
            return (LeaseReview::Later(if at > now { at } else { now.saturating_add(MEMORY) }), slot);
        }
        let at = self.review_at(now).filter(|at| holds && *at > now && !self.has_too_much);
        self.is_requesting = at.is_none();
        if self.has_too_much && spent > 0 {
            self.demand_rate =
                self.demand_rate.min(1.25 * spent as f64 / now.since(self.looked.1).as_secs_f64());
        }
        if is_look && !self.is_requesting {
            self.looked = (all.into(), now);
        }
        (at.map_or(LeaseReview::GiveBack, LeaseReview::Later), slot)
    }

    /// Gives up what is not spent. Returns whether a query has to be sent, which returns it.
    pub(in crate::leases) fn give_up(&mut self, held: LeaseState, in_use: u64, now: Timestamp) -> bool {
        self.is_given_up = true;
        let left = self.expire(held, in_use, now);
        let unspent = self.with_leases(left).saturating_add(self.lapsed.units);
        (unspent > 0 || self.owed > 0) && self.start_request(now)
    }

    /// Whether the account can be removed.
    pub(in crate::leases) fn is_idle(&self, now: Timestamp) -> bool {
        let remembers = self.demand_rate > WORTH_REMEMBERING && now.since(self.requested_at) < MEMORY;
        let holds = self.next.units > 0
            || self.lapsed.units > 0
            || self.covered() > 0
            || !self.part.is_empty(now)
            || now < self.current.until
            || self.owed > 0;
        !holds && !remembers && !self.is_requesting && self.needed == 0 && now >= self.pauses_until
    }

    /// Takes the units to give back: those that have expired, and those that would expire unspent. Returns also the
    /// units left in the slot.
    pub(super) fn units_to_return(&mut self, left: u32, now: Timestamp) -> (Lease, u32) {
        let mut returned = Lease::default();
        let mut retained = left;
        let there = left.saturating_add(self.current.units);
        let ends = self.current.until.since(now);
        let spendable = if self.is_given_up {
            0.0
        } else if ends <= self.lead {
            self.demand_rate * self.lead.as_secs_f64()
        } else {
            self.spendable(there, now)
        };
        if f64::from(there) > spendable && there > 0 {
            retained = (spendable as u32).min(left);
            self.current.units = 0;
            returned.add(Lease { units: there - retained, ..self.current });
            returned.add(std::mem::take(&mut self.next));
        } else if self.next.until.since(now) <= self.lead || there == 0 && self.is_quiet {
            returned.add(std::mem::take(&mut self.next));
        }
        let mut lapsed = std::mem::take(&mut self.lapsed);
        self.accounted = self.accounted.saturating_sub(u64::from(returned.units) + u64::from(lapsed.units));
        if now < self.forfeits_until {
            (returned.units, lapsed.units) = (0, 0);
        }
        // Merged units count as granted when the older ones were. So the smaller part is dropped if it is below an
        // eighth.
        let (few, many) = if lapsed.units < returned.units { (lapsed, returned) } else { (returned, lapsed) };
        returned = many;
        if few.units >= many.units / 8 {
            returned.add(few);
        }
        (returned, retained)
    }
}
