//! Shares of clients in an upstream's requests in flight.
//!
//! The automatic share is the dynamic threshold of shared-memory switches (Choudhury and Hahne, "Dynamic Queue Length
//! Thresholds for Shared-Memory Packet Switches", 1998): a client may use less than a multiple of the free capacity. A
//! single client gets most of the capacity, several get less each, and some is always left for the next client.

use std::hash::BuildHasher as _;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use foldhash::quality::RandomState;

use crate::settings::ClientShare;

/// Multiple of the free capacity that a client may use. One client gets four fifths, two get four ninths each.
const MULTIPLE: u64 = 4;

/// Number of counters. The probability that two clients share a counter, and therefore a share, is 1 in this number.
/// The hash is keyed, so clients cannot provoke collisions.
const SLOTS: usize = 1 << 14;

/// Counters of all clients of an upstream.
#[derive(Debug)]
pub(super) struct ClientShares {
    limit: ShareLimit,
    hasher: RandomState,
    slots: Box<[AtomicU32]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShareLimit {
    /// Less than a multiple of the free part of this capacity.
    Threshold {
        capacity: u32,
    },
    Fixed(u32),
}

impl ClientShares {
    /// Creates shares of `capacity`; `None` if a client may use all of it, or if it is too small to divide.
    pub(super) fn new(share: ClientShare, capacity: u32) -> Option<Self> {
        let max = match share {
            ClientShare::Auto if u64::from(capacity) <= MULTIPLE => return None,
            ClientShare::Auto => ShareLimit::Threshold { capacity },
            ClientShare::Fixed(most) => ShareLimit::Fixed(most.get()),
            ClientShare::All => return None,
        };
        let slots = (0..SLOTS).map(|_| AtomicU32::new(0)).collect();
        Some(Self { limit: max, hasher: RandomState::default(), slots })
    }

    /// Counts one more request of `client`; returns its counter, and the client's number of requests before.
    pub(super) fn add(&self, client: IpAddr) -> (usize, u32) {
        let slot = usize::try_from(self.hasher.hash_one(client) % SLOTS as u64).unwrap_or(0);
        (slot, self.slots[slot].fetch_add(1, Ordering::Relaxed))
    }

    /// Counts one request less, after its end or rejection.
    pub(super) fn remove(&self, slot: usize) {
        self.slots[slot].fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a client with `own` requests may have another one while `used` are in flight in total.
    pub(super) fn allows(&self, own: u32, used: u32) -> bool {
        match self.limit {
            ShareLimit::Fixed(most) => own < most,
            // No limit while half of the capacity is free. A client without requests may always have one.
            ShareLimit::Threshold { capacity } => {
                let free = u64::from(capacity.saturating_sub(used));
                own == 0 || used < capacity / 2 || u64::from(own) < MULTIPLE * free
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates `clients` that take turns and use all they can; returns the requests of each, and their sum.
    fn greedy(clients: u32, capacity: u32) -> (Vec<u32>, u32) {
        let shares = ClientShares::new(ClientShare::Auto, capacity).expect("shares");
        let mut own = vec![0; clients as usize];
        let mut used = 0;
        loop {
            let before = used;
            for own in &mut own {
                if used < capacity && shares.allows(*own, used) {
                    *own += 1;
                    used += 1;
                }
            }
            if used == before {
                return (own, used);
            }
        }
    }

    #[test]
    fn one_client_gets_most_of_the_capacity_and_never_all() {
        let (own, _) = greedy(1, 1024);
        assert!((800..=1024 - 200).contains(&own[0]), "{own:?}");
    }

    #[test]
    fn greedy_clients_get_equal_shares_and_leave_some_for_the_next() {
        for clients in [2, 5, 20, 60] {
            let (own, used) = greedy(clients, 1024);
            let (least, most) = (own.iter().min().unwrap(), own.iter().max().unwrap());
            assert!(most - least <= 1, "{own:?}");
            assert!(used < 1024, "{clients} clients leave no capacity");
        }
    }

    #[test]
    fn small_capacity_is_not_divided_into_client_shares() {
        assert!(ClientShares::new(ClientShare::Auto, 4).is_none());
        assert_eq!(greedy(1, 5).0, [4]);
    }

    #[test]
    fn fixed_client_share_holds_regardless_of_free_capacity() {
        let shares = ClientShares::new(ClientShare::Fixed(3.try_into().unwrap()), 1024).expect("shares");
        assert!(shares.allows(2, 1000) && !shares.allows(3, 0));
    }
}
