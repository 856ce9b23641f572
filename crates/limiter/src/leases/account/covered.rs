//! Units for reservations that outlast the lease which they are from.
//!
//! A request whose cost is known only with its response reserves units of a lease. If the lease ended before the response, and its
//! units were given back, others would spend them as well. So they are set aside: for the store they are spent. When the
//! request is settled, its cost is taken from them, and the rest is given back.

use smallvec::SmallVec;

use super::{Lease, LeaseAccount};
use crate::algorithm::lease::LeaseState;
use crate::timestamp::Timestamp;

/// Maximum number of grants that are kept apart. Units of the oldest ones count as those of the oldest.
const MAX_GRANTS: usize = 8;

/// Units by the grant that they are from, the oldest first: the store takes units back only in the time for which it has granted them.
#[derive(Clone, Debug, Default)]
pub(super) struct Covered(SmallVec<[Lease; 2]>);

impl LeaseAccount {
    /// Sets expired units aside, except those for `reserved` units; returns the units left in the slot that may be spent. The
    /// slot must be written afterwards.
    pub(in crate::leases) fn expire(&mut self, held: LeaseState, reserved: u64, now: Timestamp) -> u32 {
        let mut left = match held {
            LeaseState::Units(units, _) => units,
            LeaseState::Exhausted { rejected, .. } => {
                self.rejected += u64::from(rejected);
                0
            }
        };
        if now >= self.current.until {
            self.cover(reserved, &mut left);
            let units = std::mem::take(&mut self.current.units).saturating_add(std::mem::take(&mut left));
            self.lapsed.add(Lease { units, ..self.current });
        }
        if now >= self.next.until {
            self.lapsed.add(std::mem::take(&mut self.next));
        }
        left
    }

    /// Sets units aside for `reserved` units in all, from the `left` ones in the slot and from the leases.
    pub(super) fn cover(&mut self, reserved: u64, left: &mut u32) {
        let mut missing = if self.is_permits { 0 } else { self.uncovered(reserved) };
        let granted_at = self.current.granted_at;
        let mut take = |units: &mut u32, granted_at| {
            let taken = missing.min(*units);
            *units -= taken;
            missing -= taken;
            self.covered.add(Lease { units: taken, until: Timestamp::END, granted_at });
        };
        take(left, granted_at);
        take(&mut self.current.units, granted_at);
        take(&mut self.next.units, self.next.granted_at);
    }

    /// Returns the units that are set aside.
    pub(crate) fn covered(&self) -> u32 {
        self.covered.units()
    }

    /// Returns how many of `reserved` units have to be in the lease, because none are set aside for them.
    pub(in crate::leases) fn uncovered(&self, reserved: u64) -> u32 {
        u32::try_from(reserved.saturating_sub(self.covered().into())).unwrap_or(u32::MAX)
    }

    /// Spends `units` of a settled reservation, after which `reserved` units are reserved. Returns how many units are not covered.
    pub(crate) fn spend_covered(&mut self, units: u32, reserved: u64, now: Timestamp) -> u32 {
        let spent = self.covered.spend_oldest(units);
        let reserved = u32::try_from(reserved).unwrap_or(u32::MAX);
        let surplus = self.covered.units().saturating_sub(reserved);
        // They were counted as spent.
        self.accounted = self.accounted.saturating_add(surplus.into());
        let lapsed = &mut self.lapsed;
        self.covered.take_newest(surplus, |lease| lapsed.add(Lease { until: now, ..lease }));
        units - spent
    }
}

impl Covered {
    fn units(&self) -> u32 {
        self.0.iter().fold(0, |sum, lease| sum.saturating_add(lease.units))
    }

    fn add(&mut self, lease: Lease) {
        if lease.units == 0 {
            return;
        }
        if let Some(known) = self.0.iter_mut().find(|known| known.granted_at == lease.granted_at) {
            return known.add(lease);
        }
        if self.0.len() == MAX_GRANTS {
            let second = self.0.remove(1);
            self.0[0].add(second);
        }
        let at = self.0.partition_point(|known| known.granted_at < lease.granted_at);
        self.0.insert(at, lease);
    }

    /// Spends at most `units`; returns how many were spent.
    fn spend_oldest(&mut self, units: u32) -> u32 {
        let mut left = units;
        for lease in &mut self.0 {
            let spent = lease.units.min(left);
            lease.units -= spent;
            left -= spent;
        }
        self.0.retain(|lease| lease.units > 0);
        units - left
    }

    /// Takes `units`, of which there are as many, and calls `give` with those of each grant.
    fn take_newest(&mut self, mut units: u32, mut give: impl FnMut(Lease)) {
        while let Some(newest) = self.0.last_mut().filter(|_| units > 0) {
            let taken = newest.units.min(units);
            newest.units -= taken;
            units -= taken;
            give(Lease { units: taken, ..*newest });
            if newest.units == 0 {
                self.0.pop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use crate::leases::{AfterGrant, LeaseGrant, LeaseOutcome, LeaseRequest, LeaseReview, StoreLatency};
    use crate::reservation::{ChargeTiming, Reservation};
    use crate::testing::{NOW, limiter};
    use crate::timestamp::Timestamp;
    use crate::{Check, Limiter};

    /// Units of a limit that never refills.
    const LIMIT: u32 = 100;

    #[derive(Clone, Debug)]
    enum Event {
        /// A request that reserves this many units arrives at an instance.
        Arrive(usize, u32),
        /// The response to a request has this part of its cost, in percent.
        Respond(usize, u32),
        /// Time passes, and each instance reviews its lease.
        Pass(u64),
    }

    struct Instance {
        limiter: Limiter,
        check: Check,
    }

    /// Instances and a store that counts what it has granted.
    struct Fleet {
        instances: Vec<Instance>,
        now: Timestamp,
        used: u32,
        /// Reservations in flight, each with its instance.
        in_flight: Vec<(usize, Reservation)>,
        settled: u32,
    }

    impl Instance {
        fn new() -> Self {
            let (limiter, check) = limiter();
            Self { limiter, check: Check { charge_timing: ChargeTiming::OnResponse, ..check } }
        }
    }

    impl Fleet {
        fn new(instances: usize) -> Self {
            let instances = (0..instances).map(|_| Instance::new()).collect();
            Self { instances, now: NOW, used: 0, in_flight: Vec::new(), settled: 0 }
        }

        fn query(&mut self, instance: usize) {
            let Instance { limiter, check } = &self.instances[instance];
            let counter = limiter.shared_counter(check);
            for _ in 0..3 {
                let Some(request) = limiter.lease_request(counter, StoreLatency::default(), self.now) else {
                    break;
                };
                let grant = self.used_after(&request);
                self.used = self.used + request.owed - request.returned.units + grant.granted;
                match limiter.apply_grant(&request, grant, self.now, self.now).next {
                    AfterGrant::Query => {}
                    _ => break,
                }
            }
        }

        fn micros(&self) -> u64 {
            u64::try_from(self.now.since(NOW).as_micros()).expect("small") + 1
        }

        fn used_after(&self, request: &LeaseRequest) -> LeaseGrant {
            let left = LIMIT.saturating_sub(self.used + request.owed - request.returned.units);
            let granted = if request.least > left { 0 } else { request.requested.min(left) };
            let wait = if granted == 0 { Duration::from_millis(20) } else { Duration::ZERO };
            let valid = request.valid.max(Duration::from_millis(10));
            LeaseGrant {
                granted,
                valid,
                wait,
                remaining: left - granted,
                granted_at: self.micros(),
                ..LeaseGrant::default()
            }
        }

        fn arrive(&mut self, instance: usize, cost: u32) {
            let check = Check { cost, ..self.instances[instance].check };
            // Each outcome that starts a query needs one, or the account waits for its reply.
            for _ in 0..3 {
                match self.instances[instance].limiter.acquire_units(&check, self.now) {
                    LeaseOutcome::Requested(true) | LeaseOutcome::Ready(true) => self.query(instance),
                    _ => break,
                }
            }
            if !self.instances[instance].limiter.check(&[check], self.now).is_rejected() {
                self.in_flight.push((instance, Reservation::new(&check, self.now)));
            }
        }

        fn respond(&mut self, number: usize, percent: u32) {
            if self.in_flight.is_empty() {
                return;
            }
            let (instance, mut reservation) = self.in_flight.swap_remove(number % self.in_flight.len());
            let due = reservation.units() * percent / 100;
            self.instances[instance].limiter.settle(&mut reservation, due, self.now);
            self.settled += due;
        }

        fn review(&mut self) {
            for instance in 0..self.instances.len() {
                let Instance { limiter, check } = &self.instances[instance];
                let counter = limiter.shared_counter(check);
                if matches!(limiter.review(counter, self.now), LeaseReview::Query | LeaseReview::GiveBack) {
                    self.query(instance);
                }
            }
        }

        fn apply(&mut self, event: &Event) {
            match *event {
                Event::Arrive(instance, cost) => self.arrive(instance, cost),
                Event::Respond(number, percent) => self.respond(number, percent),
                Event::Pass(millis) => {
                    self.now = self.now.saturating_add(Duration::from_millis(millis));
                    self.review();
                }
            }
        }

        /// Units that were charged, and those that requests in flight may still be charged.
        fn promised(&self) -> u32 {
            let reserved = self.in_flight.iter().map(|(_, reservation)| reservation.units());
            self.settled + reserved.sum::<u32>()
        }
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => (0_usize..3, 1_u32..25).prop_map(|(instance, cost)| Event::Arrive(instance, cost)),
            3 => (0_usize..50, 0_u32..=100).prop_map(|(number, percent)| Event::Respond(number, percent)),
            3 => prop_oneof![1_u64..50, 50_u64..3000].prop_map(Event::Pass),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn reservations_of_any_duration_never_exceed_the_limit(events in prop::collection::vec(event(), 1..120)) {
            let mut fleet = Fleet::new(3);
            for event in &events {
                fleet.apply(event);
                prop_assert!(fleet.promised() <= LIMIT, "{} after {event:?}", fleet.promised());
            }
            while !fleet.in_flight.is_empty() {
                fleet.respond(0, 50);
            }
            for _ in 0..40 {
                fleet.apply(&Event::Pass(1000));
            }
            prop_assert!(fleet.settled <= fleet.used, "given back although it was charged");
        }
    }

    #[test]
    fn what_a_reservation_leaves_is_given_back() {
        let mut fleet = Fleet::new(1);
        fleet.apply(&Event::Arrive(0, 24));
        fleet.apply(&Event::Pass(5000));
        assert!(fleet.in_flight.len() == 1 && fleet.used >= 24, "the lease has ended");
        fleet.apply(&Event::Respond(0, 25));
        fleet.apply(&Event::Pass(1000));
        assert!(fleet.settled == 6 && fleet.used < 24, "{} used", fleet.used);
    }
}
