//! Resolution of a destination's name, from its first request for as long as some worker keeps it.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::ForwardProxy;
use super::destination::Destination;
use crate::jitter::jittered;
use crate::upstream::cluster::Cluster;
use crate::upstream::error::NoAddress;

/// Timeout of a lookup, including the time for which it waits for its turn.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which a failure is kept.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of addresses used per name.
const MAX_ADDRESSES: usize = 64;

/// Starts to keep the addresses of `cluster` in accordance with `name`, until the cluster is dropped.
pub(super) fn start(
    proxy: Arc<ForwardProxy>,
    destination: Destination,
    name: Box<str>,
    cluster: Weak<Cluster>,
) {
    let resolving = async move {
        loop {
            let found = look_up(&proxy, &destination, &name).await;
            let Some(cluster) = cluster.upgrade() else { return };
            let pause = if found.is_ok() { proxy.settings.dns_refresh } else { RETRY_INTERVAL };
            cluster.set_addresses(found);
            drop(cluster);
            tokio::time::sleep(jittered(pause)).await;
        }
    };
    drop(tokio::task::spawn_local(resolving));
}

/// Returns the addresses of a name that the proxy may connect to.
async fn look_up(
    proxy: &ForwardProxy,
    destination: &Destination,
    name: &str,
) -> Result<Vec<SocketAddr>, NoAddress> {
    let looking = resolve(proxy, name, destination.port);
    let found = tokio::time::timeout(LOOKUP_TIMEOUT, looking).await.map_err(|_| NoAddress::TimedOut)?;
    let mut found = found.map_err(|_| NoAddress::NotFound)?;
    found.truncate(MAX_ADDRESSES);
    found.sort_unstable();
    found.dedup();
    if found.is_empty() {
        return Err(NoAddress::NotFound);
    }
    found.retain(|address| proxy.permits_address(destination, address.ip()));
    if found.is_empty() {
        return Err(NoAddress::Prohibited);
    }
    found.retain(|address| !proxy.identity.is_own(address.ip(), address.port()));
    if found.is_empty() { Err(NoAddress::Loop) } else { Ok(found) }
}

/// Queries the resolver of the system. The permit is held until the query has ended, even if that takes longer than the
/// timeout, because it occupies a thread.
async fn resolve(proxy: &ForwardProxy, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let permit = Arc::clone(&proxy.lookups).acquire_owned().await.map_err(io::Error::other)?;
    let name = name.to_owned();
    let query = move || {
        let _permit = permit;
        (name.as_str(), port).to_socket_addrs().map(Iterator::collect)
    };
    tokio::task::spawn_blocking(query).await.map_err(io::Error::other)?
}
