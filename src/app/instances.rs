//! The number of instances that limits are divided by, if it is the number of addresses of a DNS name.
//!
//! The names in the active rules are looked up periodically in the background, by the system's resolver like
//! upstreams. A name whose lookup fails keeps its number. Before the first success the number is 1, because a
//! pod may appear in its service only once it is ready, and must not wait for itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::generation::Generations;
use crate::jitter::jittered;
use crate::limiter::Limiter;
use crate::proxy::ProxyState;

/// Turns between lookups of all names; the DNS of Kubernetes allows caching for five seconds.
const REFRESH: u32 = 5;
/// Duration of a turn; a name without an address yet is looked up in each turn.
const TURN: Duration = Duration::from_secs(1);
/// Timeout of a lookup.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum time that startup waits for the first lookups.
const BEGIN: Duration = Duration::from_secs(1);

/// Follows the names of the active rules.
pub(super) struct Instances<'r> {
    shared: &'r ProxyState,
    generations: &'r Generations,
    names: Names,
}

/// The names whose lookup has failed, so that each failure is logged once.
#[derive(Default)]
struct Names {
    failing: BTreeSet<Box<str>>,
}

impl<'r> Instances<'r> {
    pub(super) fn new(shared: &'r ProxyState, generations: &'r Generations) -> Self {
        Self { shared, generations, names: Names::default() }
    }

    /// Looks up all names once.
    pub(super) async fn begin(&mut self) {
        if tokio::time::timeout(BEGIN, self.refresh()).await.is_err() {
            tracing::warn!(
                "no DNS response for the names of instances yet: limits are not divided until then"
            );
        }
    }

    /// Looks up the names periodically.
    pub(super) async fn follow(&mut self) {
        for turn in (0..REFRESH).cycle() {
            tokio::time::sleep(jittered(TURN)).await;
            if turn == REFRESH - 1 || self.is_unknown() {
                self.refresh().await;
            }
        }
    }

    fn in_force(&self) -> BTreeSet<Box<str>> {
        self.shared.generation.load().policy.rules.names_of_instances()
    }

    /// Whether a name of the active rules has no number yet, for example after a reload.
    fn is_unknown(&self) -> bool {
        let known = self.shared.limiter.instance_counts().instances_by_name;
        self.in_force().iter().any(|name| !known.contains_key(name))
    }

    async fn refresh(&mut self) {
        let names = self.in_force();
        if self.names.refresh(&names, &self.shared.limiter, look_up).await {
            self.generations.rebind();
        }
    }
}

impl Names {
    /// Looks up `names`; returns whether a number has changed.
    async fn refresh(
        &mut self,
        names: &BTreeSet<Box<str>>,
        limiter: &Arc<Limiter>,
        look_up: impl AsyncFn(&str) -> io::Result<Vec<IpAddr>>,
    ) -> bool {
        let known = limiter.instance_counts().instances_by_name;
        let mut numbers = BTreeMap::new();
        for name in names {
            let before = known.get(name).copied();
            let found = look_up(name).await.and_then(|found| {
                count(&found).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no address"))
            });
            self.say(name, before, found.as_ref());
            if let Some(number) = found.ok().or(before) {
                numbers.insert(name.clone(), number);
            }
        }
        self.failing.retain(|name| names.contains(name));
        limiter.set_instances_by_name(numbers)
    }

    fn say(&mut self, name: &str, before: Option<NonZeroU32>, found: Result<&NonZeroU32, &io::Error>) {
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
fn count(addresses: &[IpAddr]) -> Option<NonZeroU32> {
    let distinct: BTreeSet<IpAddr> = addresses.iter().map(IpAddr::to_canonical).collect();
    let of_v4 = distinct.iter().filter(|address| address.is_ipv4()).count();
    NonZeroU32::new(u32::try_from(of_v4.max(distinct.len() - of_v4)).unwrap_or(u32::MAX))
}

async fn look_up(name: &str) -> io::Result<Vec<IpAddr>> {
    let found = tokio::time::timeout(PATIENCE, tokio::net::lookup_host((name, 0))).await;
    Ok(found.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??.map(|address| address.ip()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::LimiterSettings;

    fn addresses(list: &[&str]) -> Vec<IpAddr> {
        list.iter().map(|address| address.parse().unwrap()).collect()
    }

    #[test]
    fn an_instance_with_addresses_of_both_families_counts_once() {
        let counted = |list: &[&str]| count(&addresses(list)).map(NonZeroU32::get);
        assert_eq!(counted(&["10.0.0.1", "10.0.0.2", "10.0.0.1"]), Some(2));
        assert_eq!(counted(&["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2", "fd00::3"]), Some(3));
        assert_eq!(counted(&["fd00::1", "::ffff:10.0.0.1"]), Some(1));
        assert_eq!(counted(&[]), None);
    }

    #[tokio::test]
    async fn the_number_follows_the_name_and_stays_when_that_cannot_be_looked_up() {
        let limiter = Arc::new(Limiter::new(LimiterSettings { max_keys: 100, secret: [0; 2] }));
        let mut names = Names::default();
        let both: BTreeSet<Box<str>> = ["pods".into(), "others".into()].into();
        // Returns the numbers of `pods` and `others` after a response of the resolver.
        let mut learn = async |in_force: &BTreeSet<Box<str>>, response: io::Result<Vec<IpAddr>>| {
            let look_up = async |name: &str| match (name, &response) {
                ("pods", Ok(found)) => Ok(found.clone()),
                ("pods", Err(error)) => Err(error.kind().into()),
                _ => Err(io::ErrorKind::TimedOut.into()),
            };
            let is_new = names.refresh(in_force, &limiter, look_up).await;
            let known = limiter.instance_counts().instances_by_name;
            (is_new, known.get("pods").map(|number| number.get()), known.contains_key("others"))
        };
        let fails = || Err(io::ErrorKind::NotFound.into());
        assert_eq!(learn(&both, fails()).await, (false, None, false));
        assert_eq!(learn(&both, Ok(addresses(&["10.0.0.1", "10.0.0.2"]))).await, (true, Some(2), false));
        assert_eq!(learn(&both, Ok(addresses(&["10.0.0.2", "10.0.0.1"]))).await, (false, Some(2), false));
        assert_eq!(learn(&both, fails()).await, (false, Some(2), false), "the last known number is kept");
        assert_eq!(learn(&both, Ok(Vec::new())).await, (false, Some(2), false));
        assert_eq!(learn(&both, Ok(addresses(&["10.0.0.9"]))).await, (true, Some(1), false));
        assert_eq!(
            learn(&BTreeSet::new(), fails()).await,
            (true, None, false),
            "no rule uses the name any more"
        );
    }
}
