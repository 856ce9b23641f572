//! Resolution of a destination's name, from its first request for as long as some worker keeps it.
//!
//! The system's resolver occupies a thread for each lookup, for as long as the name's servers do not respond. A client
//! that uses many such names delays the lookups of others only up to its share of these threads.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::ForwardProxy;
use super::destination::Destination;
use crate::cluster::Cluster;
use crate::error::NoAddress;
use weir_net::dns;
use weir_net::jitter::{backoff, jittered};

/// Maximum number of lookups in progress, of all clients and of one. Each occupies a thread.
const MAX_LOOKUPS: usize = 32;
const MAX_LOOKUPS_PER_CLIENT: usize = 8;
/// Time for which a failure is kept: of a name that does not exist, of one whose servers did not respond, and the maximum
/// after more failures.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const RETRY_INTERVAL_AFTER_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of addresses used per name.
const MAX_ADDRESSES: usize = 64;
/// Number of clients from which on those without lookups are removed.
const CLEANUP_SIZE: usize = 1024;

/// Permits for lookups.
#[derive(Debug)]
pub(super) struct LookupPermits {
    all: Arc<Semaphore>,
    /// The share of each client that has caused a name to be resolved.
    clients: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
}

impl Default for LookupPermits {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(MAX_LOOKUPS)), clients: Mutex::default() }
    }
}

impl LookupPermits {
    /// Returns the permits of a client.
    fn share_of(&self, client: IpAddr) -> Arc<Semaphore> {
        let mut clients = self.clients.lock();
        if let Some(share) = clients.get(&client).and_then(Weak::upgrade) {
            return share;
        }
        if clients.len() >= CLEANUP_SIZE {
            clients.retain(|_, share| share.strong_count() > 0);
        }
        let share = Arc::new(Semaphore::new(MAX_LOOKUPS_PER_CLIENT));
        clients.insert(client, Arc::downgrade(&share));
        share
    }
}

/// A name to be resolved.
#[derive(Debug)]
pub(super) struct ResolvedName {
    pub(super) proxy: Arc<ForwardProxy>,
    pub(super) destination: Destination,
    pub(super) name: Box<str>,
    /// The client that was the first to use it.
    pub(super) client: IpAddr,
}

/// Starts to keep the addresses of `cluster` in accordance with its name, until the cluster is dropped. There are thus
/// as many tasks as destinations in use.
pub(super) fn start(name: ResolvedName, cluster: &Arc<Cluster>) {
    let (dropped, cluster) = (cluster.dropped(), Arc::downgrade(cluster));
    drop(tokio::task::spawn_local(async move {
        tokio::select! {
            () = keep_resolved(&name, &cluster) => {}
            () = dropped => {}
        }
    }));
}

async fn keep_resolved(name: &ResolvedName, cluster: &Weak<Cluster>) {
    let ResolvedName { proxy, client, .. } = name;
    let share = proxy.lookups.share_of(*client);
    let mut failures = 0_u32;
    loop {
        let found = look_up(name, &share).await;
        let Some(cluster) = cluster.upgrade() else { return };
        let pause = match &found {
            Ok(_) => proxy.settings.dns_refresh,
            Err(NoAddress::TimedOut) => {
                backoff(RETRY_INTERVAL_AFTER_TIMEOUT, MAX_RETRY_INTERVAL, failures.saturating_add(1))
            }
            Err(NoAddress::NotFound | NoAddress::Prohibited | NoAddress::Loop) => {
                backoff(RETRY_INTERVAL, MAX_RETRY_INTERVAL, failures.saturating_add(1))
            }
        };
        failures = if found.is_ok() { 0 } else { failures.saturating_add(1) };
        cluster.set_addresses(found);
        drop(cluster);
        tokio::time::sleep(jittered(pause)).await;
    }
}

/// Returns the addresses of a name that the proxy may connect to.
async fn look_up(name: &ResolvedName, share: &Arc<Semaphore>) -> Result<Vec<SocketAddr>, NoAddress> {
    let ResolvedName { proxy, destination, .. } = name;
    let looking = resolve(name, share);
    let found = tokio::time::timeout(dns::REQUEST_TIMEOUT, looking).await.map_err(|_| NoAddress::TimedOut)?;
    let found = found.and_then(|found| dns::distinct(found, MAX_ADDRESSES));
    let mut found = found.map_err(|_| NoAddress::NotFound)?;
    let leads_inside = proxy.leads_inside(destination, &found);
    found.retain(|address| proxy.permits_address(destination, address.ip()));
    if leads_inside || found.is_empty() {
        return Err(NoAddress::Prohibited);
    }
    found.retain(|address| !proxy.is_own(address.ip(), address.port()));
    if found.is_empty() { Err(NoAddress::Loop) } else { Ok(found) }
}

/// Queries the resolver of the system. The permits are held until the query has ended, even if that takes longer than the
/// timeout, because it occupies a thread.
async fn resolve(
    ResolvedName { proxy, destination, name, .. }: &ResolvedName,
    share: &Arc<Semaphore>,
) -> io::Result<Vec<SocketAddr>> {
    let of_client = Arc::clone(share).acquire_owned().await.map_err(io::Error::other)?;
    let of_all = Arc::clone(&proxy.lookups.all).acquire_owned().await.map_err(io::Error::other)?;
    dns::query(name, destination.port, [of_client, of_all]).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_has_a_share_of_the_lookups_while_it_uses_names() {
        let permits = LookupPermits::default();
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap());
        let share = permits.share_of(one);
        let held = Arc::clone(&share).try_acquire_many_owned(8).unwrap();
        assert!(permits.share_of(one).try_acquire().is_err());
        assert!(permits.share_of(other).try_acquire().is_ok());
        drop((held, share));
        for number in 0..=CLEANUP_SIZE as u32 {
            drop(permits.share_of(IpAddr::V4(number.into())));
        }
        assert!(permits.clients.lock().len() <= CLEANUP_SIZE);
    }
}
