//! Looks the names of an upstream up, again and again, beside requests.
//!
//! All addresses of all names are endpoints. A name that cannot be looked up keeps the addresses it had, so that a
//! failing resolver takes nothing away that works.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::cluster::Cluster;
use super::host::Target;
use super::settings::Address;

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
    let mut heard = Heard::default();
    loop {
        let pause = {
            let Some(cluster) = cluster.upgrade() else { return };
            heard.ask(&cluster).await;
            cluster.is_at(heard.targets(&cluster), true);
            let is_nowhere = cluster.hosts().is_empty();
            let refresh = cluster.settings().dns_refresh;
            if is_nowhere { refresh.min(IMPATIENCE) } else { refresh }
        };
        tokio::time::sleep(jittered(pause)).await;
    }
}

impl Heard {
    async fn ask(&mut self, cluster: &Arc<Cluster>) {
        let name = &cluster.settings().name;
        let mut failure = None;
        for address in &cluster.settings().addresses {
            let (Address::Tcp { host, port }, None) = (address, Target::of(address)) else { continue };
            match look_up(host, *port).await {
                Ok(found) => drop(self.addresses.insert((host.clone(), *port), found)),
                Err(error) => failure = Some((host, error)),
            }
        }
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

async fn look_up(host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
    let found = tokio::time::timeout(PATIENCE, tokio::net::lookup_host((host, port)))
        .await
        .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    let mut found: Vec<_> = found.take(MOST_ADDRESSES).collect();
    if found.is_empty() {
        return Err(std::io::Error::new(std::io::ErrorKind::NotFound, "no address"));
    }
    // Resolvers turn the order round at each answer; the set is what matters.
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// A tenth more or less, so that many processes do not ask at once.
pub(super) fn jittered(time: Duration) -> Duration {
    time.mul_f64(0.9 + 0.2 * fastrand::f64())
}
