//! How many of an upstream's requests each client has in flight, and how many it may have.
//!
//! The automatic share is the dynamic threshold of shared-memory switches (Choudhury and Hahne, "Dynamic Queue Length
//! Thresholds for Shared-Memory Packet Switches", 1998): a client may have fewer than a multiple of what is free. One
//! client gets most of the capacity, several get less each, and something is always left for the next.

use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::upstream::settings::ClientShare;

/// A client may have fewer requests than this many times what is free: one gets four fifths, two get four ninths each.
const MULTIPLE: u64 = 4;

/// Counters. Two clients share one with a probability of one to this number, and then have one share together. Nobody
/// can choose with whom: the hash is keyed.
const SLOTS: usize = 1 << 14;

/// The counters of all clients of an upstream.
#[derive(Debug)]
pub(super) struct Shares {
    most: Most,
    hasher: RandomState,
    slots: Box<[AtomicU32]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Most {
    /// By what is left of so many.
    Threshold { capacity: u32 },
    /// So many.
    Fixed(u32),
}

impl Shares {
    /// Shares of `capacity`; `None` where a client may have all of it, or there is too little to leave anything.
    pub(super) fn new(share: ClientShare, capacity: u32) -> Option<Self> {
        let most = match share {
            ClientShare::Auto if u64::from(capacity) <= MULTIPLE => return None,
            ClientShare::Auto => Most::Threshold { capacity },
            ClientShare::Fixed(most) => Most::Fixed(most.get()),
            ClientShare::All => return None,
        };
        let slots = (0..SLOTS).map(|_| AtomicU32::new(0)).collect();
        Some(Self { most, hasher: RandomState::new(), slots })
    }

    /// Counts one more request of `client`; where it is counted, and how many the client had before.
    pub(super) fn add(&self, client: IpAddr) -> (usize, u32) {
        let slot = usize::try_from(self.hasher.hash_one(client) % SLOTS as u64).unwrap_or(0);
        (slot, self.slots[slot].fetch_add(1, Ordering::Relaxed))
    }

    /// One request of those counted there has ended, or was not to begin.
    pub(super) fn remove(&self, slot: usize) {
        self.slots[slot].fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a client with `own` requests may have another one while `used` are in flight in all.
    pub(super) fn allows(&self, own: u32, used: u32) -> bool {
        match self.most {
            Most::Fixed(most) => own < most,
            // As long as half is free there is enough for everybody. A client without any may always try.
            Most::Threshold { capacity } => {
                let free = u64::from(capacity.saturating_sub(used));
                own == 0 || used < capacity / 2 || u64::from(own) < MULTIPLE * free
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many requests each of `clients` gets that take whatever they can get by turns, and all together.
    fn greedy(clients: u32, capacity: u32) -> (Vec<u32>, u32) {
        let shares = Shares::new(ClientShare::Auto, capacity).expect("shares");
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
            assert!(used < 1024, "{clients} clients leave nothing");
        }
    }

    #[test]
    fn a_capacity_smaller_than_the_multiple_is_not_divided() {
        assert!(Shares::new(ClientShare::Auto, 4).is_none());
        assert_eq!(greedy(1, 5).0, [4]);
    }

    #[test]
    fn a_fixed_share_holds_however_much_is_free() {
        let shares = Shares::new(ClientShare::Fixed(3.try_into().unwrap()), 1024).expect("shares");
        assert!(shares.allows(2, 1000) && !shares.allows(3, 0));
    }
}
