//! Looks the names of an upstream up, again and again, beside requests.
//!
//! All addresses of all names are endpoints. A name that cannot be looked up keeps the addresses it had, so that a
//! failing resolver takes nothing away that works.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Weak;
use std::time::Duration;

use tokio::runtime::Handle;

use super::cluster::Cluster;
use super::health;
use super::host::Target;
use super::settings::Address;
use crate::jitter::jittered;

/// Addresses of one name that are used; more is a mistake, or somebody's attack.
const MOST_ADDRESSES: usize = 256;
/// A resolver that does not answer for so long will not.
const PATIENCE: Duration = Duration::from_secs(10);
/// While a name has no address at all, it is asked for this often.
const IMPATIENCE: Duration = Duration::from_secs(1);

/// The addresses of each name, as last heard.
#[derive(Debug, Default)]
struct Heard {
    addresses: HashMap<(Box<str>, u16), Vec<SocketAddr>>,
    /// Whether asking has failed since it last worked: said once.
    fails: bool,
}

/// Keeps the endpoints of an upstream what its names say.
pub(super) async fn keep_resolved(cluster: Weak<Cluster>) {
    let mut heard = match cluster.upgrade() {
        Some(cluster) => Heard::of(&cluster),
        None => return,
    };
    loop {
        let pause = {
            let Some(cluster) = cluster.upgrade() else { return };
            heard.ask(&cluster).await;
            for host in cluster.set_hosts(heard.targets(&cluster), true) {
                health::start(&cluster, &host, &Handle::current());
            }
            let is_nowhere = cluster.hosts().is_empty();
            let refresh = cluster.settings().dns_refresh;
            if is_nowhere { refresh.min(IMPATIENCE) } else { refresh }
        };
        tokio::time::sleep(jittered(pause)).await;
    }
}

impl Heard {
    /// What is known from an upstream in whose place this one is.
    fn of(cluster: &Cluster) -> Self {
        let mut heard = Self::default();
        let hosts = cluster.hosts();
        for (host, port) in names(cluster) {
            let hostname = Address::Tcp { host: host.into(), port }.to_string();
            let known = hosts.iter().filter(|known| *known.hostname == *hostname);
            let addresses: Vec<_> = known
                .filter_map(|known| match known.target {
                    Target::Ip(address) => Some(address),
                    Target::Name(..) | Target::Unix(_) | Target::Echo => None,
                })
                .collect();
            if !addresses.is_empty() {
                heard.addresses.insert((host.into(), port), addresses);
            }
        }
        heard
    }

    async fn ask(&mut self, cluster: &Cluster) {
        let mut failure = None;
        for (host, port) in names(cluster) {
            if let Err(error) = self.note(host, port, look_up(host, port).await) {
                failure = Some((host, error));
            }
        }
        self.say(&cluster.settings().name, failure);
    }

    /// What the answer was to the question where `host` is.
    fn note(&mut self, host: &str, port: u16, found: io::Result<Vec<SocketAddr>>) -> io::Result<()> {
        let mut found = found?;
        if found.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no address"));
        }
        // Resolvers turn the order round at each answer; the set is what matters.
        found.sort_unstable();
        found.dedup();
        self.addresses.insert((host.into(), port), found);
        Ok(())
    }

    fn say(&mut self, name: &str, failure: Option<(&str, io::Error)>) {
        match failure {
            Some((host, error)) if !self.fails => {
                tracing::warn!(upstream = %name, %host, %error, "cannot look up a name; its last addresses stay in use");
                self.fails = true;
            }
            None if self.fails => {
                tracing::info!(upstream = %name, "names can be looked up again");
                self.fails = false;
            }
            Some(_) | None => {}
        }
    }

    /// Where the upstream is, in the order of the configuration.
    fn targets(&self, cluster: &Cluster) -> Vec<(Target, Box<str>)> {
        let mut targets: Vec<(Target, Box<str>)> = Vec::new();
        for address in &cluster.settings().addresses {
            let hostname: Box<str> = address.to_string().into();
            match (address, Target::of(address)) {
                (_, Some(target)) => targets.push((target, hostname)),
                (Address::Tcp { host, port }, None) => {
                    let heard = self.addresses.get(&(host.clone(), *port)).into_iter().flatten();
                    targets.extend(heard.map(|address| (Target::Ip(*address), hostname.clone())));
                }
                (Address::Unix(_) | Address::Echo, None) => {}
            }
        }
        targets
    }
}

/// The names that have to be looked up.
fn names(cluster: &Cluster) -> impl Iterator<Item = (&str, u16)> {
    cluster.settings().addresses.iter().filter_map(|address| match (address, Target::of(address)) {
        (Address::Tcp { host, port }, None) => Some((&**host, *port)),
        _ => None,
    })
}

async fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found = tokio::time::timeout(PATIENCE, tokio::net::lookup_host((host, port)))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    Ok(found.take(MOST_ADDRESSES).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::telemetry::metrics::Metrics;
    use crate::upstream::tests::settings;

    fn at(octets: &[u8]) -> io::Result<Vec<SocketAddr>> {
        Ok(octets.iter().map(|octet| ([10, 0, 0, *octet], 1).into()).collect())
    }

    fn places(cluster: &Cluster) -> Vec<String> {
        cluster.hosts().iter().map(|host| host.name.to_string()).collect()
    }

    fn named() -> Arc<Cluster> {
        Cluster::new(settings(&[("10.0.0.9", 1), ("app.test", 1)]), None, None, &Metrics::new(&[]))
    }

    #[test]
    fn an_upstream_is_where_its_names_were_last_heard_to_be() {
        let (cluster, mut heard) = (named(), Heard::default());
        let mut hear = |found| {
            let heard_of = heard.note("app.test", 1, found).is_ok();
            cluster.set_hosts(heard.targets(&cluster), true);
            heard_of
        };
        assert!(hear(at(&[2, 1])));
        assert_eq!(places(&cluster), ["10.0.0.9:1", "10.0.0.1:1", "10.0.0.2:1"]);
        let kept = Arc::clone(&cluster.hosts()[2]);
        let epoch = cluster.epoch();
        assert!(hear(at(&[1, 2])) && cluster.epoch() == epoch, "another order is no news");
        assert!(hear(at(&[2, 3])));
        assert_eq!(places(&cluster), ["10.0.0.9:1", "10.0.0.2:1", "10.0.0.3:1"]);
        assert!(Arc::ptr_eq(&kept, &cluster.hosts()[1]));
        assert!(!hear(Err(io::ErrorKind::TimedOut.into())) && !hear(at(&[])));
        assert_eq!(places(&cluster).len(), 3, "what was known stays in use");
    }

    #[test]
    fn a_resolver_that_fails_after_a_reload_takes_nothing_away() {
        let before = named();
        let mut heard = Heard::default();
        heard.note("app.test", 1, at(&[1])).unwrap();
        before.set_hosts(heard.targets(&before), true);
        let after = Cluster::new(before.settings().clone(), None, Some(&before), &Metrics::new(&[]));
        let mut heard = Heard::of(&after);
        assert!(heard.note("app.test", 1, Err(io::ErrorKind::TimedOut.into())).is_err());
        after.set_hosts(heard.targets(&after), true);
        assert_eq!(places(&after), ["10.0.0.9:1", "10.0.0.1:1"]);
    }
}
