//! Periodic resolution of an upstream's names.
//!
//! All addresses of all names are endpoints. A name that cannot be resolved keeps its addresses, so that a failing
//! resolver does not remove working endpoints.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Weak;
use std::time::Duration;

use tokio::runtime::Handle;

use super::cluster::Cluster;
use super::health_check;
use super::host::ConnectTarget;
use super::settings::UpstreamAddress;
use weir_net::dns;
use weir_net::jitter::jittered;
use weir_net::outage::Outage;

/// Maximum number of addresses used per name. More indicate a mistake or an attack.
const MAX_ADDRESSES: usize = 256;
/// Maximum time between look-ups while the upstream has no address at all.
const UNRESOLVED_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Last known addresses of each name.
#[derive(Debug, Default)]
struct ResolvedNames {
    addresses: HashMap<(Box<str>, u16), Vec<SocketAddr>>,
    outage: Outage,
}

/// Keeps the endpoints of an upstream in accordance with its names.
pub(super) async fn run_resolver(cluster: Weak<Cluster>) {
    let mut resolved = match cluster.upgrade() {
        Some(cluster) => ResolvedNames::from_cluster(&cluster),
        None => return,
    };
    loop {
        let pause = {
            let Some(cluster) = cluster.upgrade() else { return };
            resolved.look_up_all(&cluster).await;
            for host in cluster.set_hosts(resolved.targets(&cluster), true) {
                health_check::start(&cluster, &host, &Handle::current());
            }
            let has_no_address = cluster.hosts().is_empty();
            let refresh = cluster.settings().dns_refresh;
            if has_no_address { refresh.min(UNRESOLVED_RETRY_INTERVAL) } else { refresh }
        };
        tokio::time::sleep(jittered(pause)).await;
    }
}

impl ResolvedNames {
    /// Takes over the addresses that an upstream inherited from its predecessor.
    fn from_cluster(cluster: &Cluster) -> Self {
        let mut resolved = Self::default();
        let hosts = cluster.hosts();
        for (host, port) in names(cluster) {
            let hostname = UpstreamAddress::Tcp { host: host.into(), port }.to_string();
            let known = hosts.iter().filter(|known| *known.hostname == *hostname);
            let addresses: Vec<_> = known
                .filter_map(|known| match known.target {
                    ConnectTarget::Ip(address) => Some(address),
                    ConnectTarget::Name(..) | ConnectTarget::Unix(_) | ConnectTarget::Echo => None,
                })
                .collect();
            if !addresses.is_empty() {
                resolved.addresses.insert((host.into(), port), addresses);
            }
        }
        resolved
    }

    async fn look_up_all(&mut self, cluster: &Cluster) {
        let mut failure = None;
        for (host, port) in names(cluster) {
            let found = dns::look_up(host, port).await.and_then(|found| dns::distinct(found, MAX_ADDRESSES));
            if let Err(error) = self.record_lookup(host, port, found) {
                failure = Some((host, error));
            }
        }
        self.log_outcome(&cluster.settings().name, failure);
    }

    /// Records the result of a look-up.
    fn record_lookup(&mut self, host: &str, port: u16, found: io::Result<Vec<SocketAddr>>) -> io::Result<()> {
        self.addresses.insert((host.into(), port), found?);
        Ok(())
    }

    fn log_outcome(&self, name: &str, failure: Option<(&str, io::Error)>) {
        match failure {
            Some((host, error)) if self.outage.record_failure() == 1 => {
                tracing::warn!(
                    upstream = %name,
                    %host,
                    %error,
                    "cannot resolve a name: its last addresses stay in use"
                );
            }
            None if self.outage.record_success() > 0 => {
                tracing::info!(upstream = %name, "names resolve again");
            }
            Some(_) | None => {}
        }
    }

    /// Returns the upstream's targets, in the order of the configuration.
    fn targets(&self, cluster: &Cluster) -> Vec<(ConnectTarget, Box<str>)> {
        let mut targets: Vec<(ConnectTarget, Box<str>)> = Vec::new();
        for address in &cluster.settings().addresses {
            let hostname: Box<str> = address.to_string().into();
            match (address, ConnectTarget::from_address(address)) {
                (_, Some(target)) => targets.push((target, hostname)),
                (UpstreamAddress::Tcp { host, port }, None) => {
                    let resolved = self.addresses.get(&(host.clone(), *port)).into_iter().flatten();
                    targets.extend(resolved.map(|address| (ConnectTarget::Ip(*address), hostname.clone())));
                }
                (UpstreamAddress::Unix(_) | UpstreamAddress::Echo, None) => {}
            }
        }
        targets
    }
}

/// Returns the names that must be resolved.
fn names(cluster: &Cluster) -> impl Iterator<Item = (&str, u16)> {
    cluster.settings().addresses.iter().filter_map(|address| {
        match (address, ConnectTarget::from_address(address)) {
            (UpstreamAddress::Tcp { host, port }, None) => Some((&**host, *port)),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::settings;
    use weir_telemetry::metrics::Metrics;

    fn at(last_octets: &[u8]) -> io::Result<Vec<SocketAddr>> {
        let addresses = last_octets.iter().map(|octet| ([10, 0, 0, *octet], 1).into()).collect();
        dns::distinct(addresses, MAX_ADDRESSES)
    }

    fn host_names(cluster: &Cluster) -> Vec<String> {
        cluster.hosts().iter().map(|host| host.name.to_string()).collect()
    }

    fn cluster_with_names() -> Arc<Cluster> {
        Cluster::new(settings(&[("10.0.0.9", 1), ("app.test", 1)]), None, None, &Metrics::new(&[]))
    }

    #[test]
    fn hosts_follow_the_last_successful_lookup() {
        let (cluster, mut resolved) = (cluster_with_names(), ResolvedNames::default());
        let mut record = |found| {
            let is_ok = resolved.record_lookup("app.test", 1, found).is_ok();
            cluster.set_hosts(resolved.targets(&cluster), true);
            is_ok
        };
        assert!(record(at(&[2, 1])));
        assert_eq!(host_names(&cluster), ["10.0.0.9:1", "10.0.0.1:1", "10.0.0.2:1"]);
        let kept = Arc::clone(&cluster.hosts()[2]);
        let epoch = cluster.epoch();
        assert!(record(at(&[1, 2])) && cluster.epoch() == epoch, "the order does not matter");
        assert!(record(at(&[2, 3])));
        assert_eq!(host_names(&cluster), ["10.0.0.9:1", "10.0.0.2:1", "10.0.0.3:1"]);
        assert!(Arc::ptr_eq(&kept, &cluster.hosts()[1]));
        assert!(!record(Err(io::ErrorKind::TimedOut.into())) && !record(at(&[])));
        assert_eq!(host_names(&cluster).len(), 3, "known addresses stay in use");
    }

    #[test]
    fn failed_lookup_after_a_reload_keeps_addresses() {
        let before = cluster_with_names();
        let mut resolved = ResolvedNames::default();
        resolved.record_lookup("app.test", 1, at(&[1])).unwrap();
        before.set_hosts(resolved.targets(&before), true);
        let after = Cluster::new(before.settings().clone(), None, Some(&before), &Metrics::new(&[]));
        let mut resolved = ResolvedNames::from_cluster(&after);
        assert!(resolved.record_lookup("app.test", 1, Err(io::ErrorKind::TimedOut.into())).is_err());
        after.set_hosts(resolved.targets(&after), true);
        assert_eq!(host_names(&after), ["10.0.0.9:1", "10.0.0.1:1"]);
    }
}
