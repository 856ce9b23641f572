//! The number of instances that limits are divided by, if it is the number of addresses of a DNS name.
//!
//! The names in the active rules are looked up periodically in the background, by the system's resolver like
//! upstreams. A name whose lookup fails keeps its number. Before the first success the number is 1, because a
//! pod may appear in its service only once it is ready, and must not wait for itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::generation::Generations;
use crate::proxy::ProxyState;
use weir_limiter::Limiter;
use weir_net::dns;
use weir_net::jitter::jittered;

/// Ticks between lookups of all names; the DNS of Kubernetes allows caching for five seconds.
const TICKS_PER_REFRESH: u32 = 5;
/// Duration of a tick; a name without an address yet is looked up in each tick.
const TICK: Duration = Duration::from_secs(1);
/// Maximum time that startup waits for the first lookups.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Follows the names of the active rules.
pub(super) struct InstanceResolver<'r> {
    shared: &'r ProxyState,
    generations: &'r Generations,
    names: InstanceNames,
}

/// The names whose lookup has failed, so that each failure is logged once.
#[derive(Default)]
struct InstanceNames {
    failing: BTreeSet<Box<str>>,
}

impl<'r> InstanceResolver<'r> {
    pub(super) fn new(shared: &'r ProxyState, generations: &'r Generations) -> Self {
        Self { shared, generations, names: InstanceNames::default() }
    }

    /// Looks up all names once.
    pub(super) async fn resolve_at_startup(&mut self) {
        if tokio::time::timeout(STARTUP_TIMEOUT, self.refresh()).await.is_err() {
            tracing::warn!(
                "no DNS response for the names of instances yet: limits are not divided until then"
            );
        }
    }

    /// Looks up the names periodically.
    pub(super) async fn run(&mut self) {
        let mut idle = tokio::time::interval(TICK);
        idle.set_missed_tick_behavior(MissedTickBehavior::Skip);
        for tick in (0..TICKS_PER_REFRESH).cycle() {
            // Without names, only a reload is awaited, together with other tasks of the thread.
            match self.active_names().is_empty() {
                true => _ = idle.tick().await,
                false => tokio::time::sleep(jittered(TICK)).await,
            }
            if tick == TICKS_PER_REFRESH - 1 || self.has_unresolved_names() {
                self.refresh().await;
            }
        }
    }

    fn active_names(&self) -> BTreeSet<Box<str>> {
        self.shared.generation.load().policy.rules.names_of_instances()
    }

    /// Whether a name of the active rules has no number yet, for example after a reload.
    fn has_unresolved_names(&self) -> bool {
        let known = self.shared.limiter.instance_counts().instances_by_name;
        self.active_names().iter().any(|name| !known.contains_key(name))
    }

    async fn refresh(&mut self) {
        let names = self.active_names();
        if self.names.resolve_all(&names, &self.shared.limiter, look_up).await {
            self.generations.rebind();
        }
    }
}

impl InstanceNames {
    /// Looks up `names`; returns whether a number has changed.
    async fn resolve_all(
        &mut self,
        names: &BTreeSet<Box<str>>,
        limiter: &Arc<Limiter>,
        look_up: impl AsyncFn(&str) -> io::Result<Vec<IpAddr>>,
    ) -> bool {
        let known = limiter.instance_counts().instances_by_name;
        let mut numbers = BTreeMap::new();
        for name in names {
            let before = known.get(name).copied();
            let found = look_up(name).await;
            let found = found.and_then(|found| count_instances(&found).ok_or_else(dns::no_address));
            self.log_result(name, before, found.as_ref());
            if let Some(number) = found.ok().or(before) {
                numbers.insert(name.clone(), number);
            }
        }
        self.failing.retain(|name| names.contains(name));
        limiter.set_instances_by_name(numbers)
    }

    fn log_result(&mut self, name: &str, before: Option<NonZeroU32>, found: Result<&NonZeroU32, &io::Error>) {
        match found {
            Ok(number) => {
                if self.failing.remove(name) {
                    tracing::info!(name, "the name of the instances resolves again");
                }
                if before != Some(*number) {
                    tracing::info!(
                        name,
                        instances = number.get(),
                        "limits are divided by the number of addresses of a name"
                    );
                }
            }
            Err(error) if self.failing.insert(name.into()) => {
                let divided_by = before.map_or(1, NonZeroU32::get);
                tracing::warn!(name, %error, divided_by, "cannot resolve the name of the instances");
            }
            Err(_) => {}
        }
    }
}

/// Returns the number of instances with these addresses. An instance may have an address of each family, so
/// the family with more addresses counts.
fn count_instances(addresses: &[IpAddr]) -> Option<NonZeroU32> {
    let distinct: BTreeSet<IpAddr> = addresses.iter().map(IpAddr::to_canonical).collect();
    let v4_count = distinct.iter().filter(|address| address.is_ipv4()).count();
    NonZeroU32::new(u32::try_from(v4_count.max(distinct.len() - v4_count)).unwrap_or(u32::MAX))
}

async fn look_up(name: &str) -> io::Result<Vec<IpAddr>> {
    Ok(dns::look_up(name, 0).await?.iter().map(SocketAddr::ip).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limiter::LimiterSettings;

    fn addresses(list: &[&str]) -> Vec<IpAddr> {
        list.iter().map(|address| address.parse().unwrap()).collect()
    }

    #[test]
    fn dual_stack_instance_counts_once() {
        let counted = |list: &[&str]| count_instances(&addresses(list)).map(NonZeroU32::get);
        assert_eq!(counted(&["10.0.0.1", "10.0.0.2", "10.0.0.1"]), Some(2));
        assert_eq!(counted(&["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2", "fd00::3"]), Some(3));
        assert_eq!(counted(&["fd00::1", "::ffff:10.0.0.1"]), Some(1));
        assert_eq!(counted(&[]), None);
    }

    #[tokio::test]
    async fn instance_count_follows_dns_and_survives_failed_lookups() {
        let limiter = Arc::new(Limiter::new(LimiterSettings { max_keys: 100, secret: [0; 2] }));
        let mut names = InstanceNames::default();
        let both: BTreeSet<Box<str>> = ["pods".into(), "others".into()].into();
        // Returns the numbers of `pods` and `others` after a response of the resolver.
        let mut resolve = async |in_force: &BTreeSet<Box<str>>, response: io::Result<Vec<IpAddr>>| {
            let look_up = async |name: &str| match (name, &response) {
                ("pods", Ok(found)) => Ok(found.clone()),
                ("pods", Err(error)) => Err(error.kind().into()),
                _ => Err(io::ErrorKind::TimedOut.into()),
            };
            let is_new = names.resolve_all(in_force, &limiter, look_up).await;
            let known = limiter.instance_counts().instances_by_name;
            (is_new, known.get("pods").map(|number| number.get()), known.contains_key("others"))
        };
        let fails = || Err(io::ErrorKind::NotFound.into());
        assert_eq!(resolve(&both, fails()).await, (false, None, false));
        assert_eq!(resolve(&both, Ok(addresses(&["10.0.0.1", "10.0.0.2"]))).await, (true, Some(2), false));
        assert_eq!(resolve(&both, Ok(addresses(&["10.0.0.2", "10.0.0.1"]))).await, (false, Some(2), false));
        assert_eq!(resolve(&both, fails()).await, (false, Some(2), false), "the last known number is kept");
        assert_eq!(resolve(&both, Ok(Vec::new())).await, (false, Some(2), false));
        assert_eq!(resolve(&both, Ok(addresses(&["10.0.0.9"]))).await, (true, Some(1), false));
        assert_eq!(
            resolve(&BTreeSet::new(), fails()).await,
            (true, None, false),
            "no rule uses the name any more"
        );
    }
}
