//! Debts: units that requests cost beyond the lease of their counter.
//!
//! The cost of a request may be known only from its response. What it adds is spent from the lease. The store
//! counts the remainder with the next query about the counter, so that it reduces the grants of all
//! instances.

use std::collections::BTreeSet;

use super::SharedCounter;
use crate::Limiter;
use crate::algorithm::CounterState;
use crate::algorithm::lease::LeaseState;
use crate::table::Shard;
use crate::timestamp::Timestamp;

/// Maximum number of counters to review for a debt. Debts of other counters are in the query for the next request that
/// needs units.
const MAX_UNREPORTED_DEBTS: usize = 65_536;

impl Limiter {
    /// Takes the counters that have run into debt since the last call. The caller has to review each.
    pub fn take_unreported_debts(&self) -> BTreeSet<SharedCounter> {
        std::mem::take(&mut self.debts.lock())
    }

    /// Charges the part of `units` that the lease in `state` does not cover to the lease account of `counter`.
    pub(crate) fn record_debt(
        &self,
        shard: &mut Shard,
        counter: SharedCounter,
        units: u32,
        state: Option<CounterState>,
        now: Timestamp,
    ) {
        let uncovered = units.saturating_sub(LeaseState::from_counter(state).units(now));
        if uncovered == 0 {
            return;
        }
        // Without room for an account, the counter is an overflow counter, which is not shared.
        let Some(account) = shard.lease_account(counter.key, counter.limit, now) else { return };
        let owed = account.spend_held_back(uncovered, now);
        let mut debts = self.debts.lock();
        if account.add_debt(owed) && debts.len() < MAX_UNREPORTED_DEBTS {
            debts.insert(counter);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Check;
    use crate::leases::{LeaseGrant, LeaseReview, StoreLatency};
    use crate::reservation::Reservation;
    use crate::testing::{NOW, limiter};

    const PAUSE: Duration = Duration::from_secs(5);

    /// Leases `units`, and none for a while if there are none, to the counter of `check`.
    fn lease(limiter: &Limiter, check: &Check, units: u32) {
        limiter.acquire_units(check, NOW);
        let request =
            limiter.lease_request(limiter.shared_counter(check), StoreLatency::default(), NOW).unwrap();
        let zero = Duration::ZERO;
        let grant = LeaseGrant {
            granted: units,
            valid: Duration::from_secs(1),
            wait: if units == 0 { PAUSE } else { zero },
            spread: zero,
            pause: zero,
            remaining: 50,
            granted_at: 1,
        };
        limiter.apply_grant(&request, grant, NOW, NOW);
    }

    #[test]
    fn units_beyond_the_lease_are_reported_to_the_store() {
        let (limiter, check) = limiter();
        lease(&limiter, &check, 5);
        assert!(!limiter.check(&[check], NOW).is_rejected());
        let mut reservation = Reservation::new(&check, NOW);
        limiter.settle(&mut reservation, 20, NOW);
        let counter = limiter.shared_counter(&check);
        assert_eq!(limiter.take_unreported_debts(), BTreeSet::from([counter]));
        assert_eq!(limiter.review(counter, NOW), LeaseReview::Query);
        assert_eq!(limiter.lease_request(counter, StoreLatency::default(), NOW).unwrap().owed, 15);
        assert!(limiter.take_unreported_debts().is_empty());
    }

    #[test]
    fn a_cost_within_the_lease_is_no_debt() {
        let (limiter, check) = limiter();
        lease(&limiter, &check, 50);
        assert!(!limiter.check(&[check], NOW).is_rejected());
        limiter.settle(&mut Reservation::new(&check, NOW), 20, NOW);
        assert!(limiter.take_unreported_debts().is_empty());
        assert_eq!(
            limiter.lease_request(limiter.shared_counter(&check), StoreLatency::default(), NOW).unwrap().owed,
            0
        );
    }

    #[test]
    fn a_debt_is_reported_once_the_store_may_have_units_again() {
        let (limiter, check) = limiter();
        lease(&limiter, &check, 0);
        limiter.settle(&mut Reservation::new(&check, NOW), 4, NOW);
        let counter = limiter.shared_counter(&check);
        assert_eq!(limiter.take_unreported_debts(), BTreeSet::from([counter]));
        let LeaseReview::Later(at) = limiter.review(counter, NOW) else {
            panic!("reviewed during the pause")
        };
        assert!(at >= NOW.saturating_add(PAUSE));
        assert_eq!(limiter.review(counter, at), LeaseReview::Query);
    }

    #[test]
    fn a_debt_is_in_the_query_that_is_pending_already() {
        let (limiter, check) = limiter();
        lease(&limiter, &check, 1);
        assert!(!limiter.check(&[check], NOW).is_rejected());
        assert!(limiter.check(&[check], NOW).is_rejected());
        limiter.acquire_units(&check, NOW);
        limiter.settle(&mut Reservation::new(&check, NOW), 4, NOW);
        assert!(limiter.take_unreported_debts().is_empty());
        assert_eq!(
            limiter.lease_request(limiter.shared_counter(&check), StoreLatency::default(), NOW).unwrap().owed,
            3
        );
    }
}
