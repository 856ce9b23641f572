//! Requests that are awaited without their clients.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::num::NonZeroU32;

/// Maximum number of such requests of a worker.
const MAX_AWAITED: u32 = 1024;

/// A client's network, as a hash that is small enough for each request's timer. Clients cannot choose theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct AwaitedClient(NonZeroU32);

/// Such requests of a worker, by client. There are no more entries than requests.
#[derive(Debug, Default)]
pub(super) struct AwaitedRequests {
    total: Cell<u32>,
    by_client: RefCell<HashMap<AwaitedClient, u32>>,
    hasher: RandomState,
}

impl AwaitedRequests {
    /// Returns the key of the client with this address or network.
    pub(super) fn client(&self, network: IpAddr) -> AwaitedClient {
        let hash = self.hasher.hash_one(network) >> u32::BITS;
        AwaitedClient(u32::try_from(hash).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN))
    }

    /// Counts a request of `client` that is awaited from now on. Returns `false` and counts nothing if there are too many of
    /// the worker, or `max` of this client.
    pub(super) fn add(&self, client: AwaitedClient, max: u32) -> bool {
        let mut clients = self.by_client.borrow_mut();
        let of_client = clients.get(&client).copied().unwrap_or(0);
        if self.total.get() >= MAX_AWAITED || of_client >= max {
            return false;
        }
        clients.insert(client, of_client.saturating_add(1));
        self.total.set(self.total.get().saturating_add(1));
        true
    }

    /// Counts a request of `client` that is no longer awaited.
    pub(super) fn remove(&self, client: AwaitedClient) {
        self.total.set(self.total.get().saturating_sub(1));
        if let Entry::Occupied(mut count) = self.by_client.borrow_mut().entry(client) {
            *count.get_mut() = count.get().saturating_sub(1);
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn clients_are_bounded_apart_and_together_and_leave_no_entries() {
        let awaited = AwaitedRequests::default();
        let clients = (1..=u32::MAX).map(|number| IpAddr::from(Ipv4Addr::from_bits(number)));
        let mut admitted = Vec::new();
        for client in clients.take(200).map(|network| awaited.client(network)) {
            admitted.extend((0..12).filter(|_| awaited.add(client, 10)).map(|_| client));
        }
        assert_eq!(admitted.len(), 1024);
        assert_eq!(awaited.by_client.borrow().len(), 103);
        admitted.iter().for_each(|client| awaited.remove(*client));
        assert!(awaited.by_client.borrow().is_empty());
        assert_eq!(awaited.total.get(), 0);
    }
}
