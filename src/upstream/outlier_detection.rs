//! Endpoints that fail requests are left out for a while.
//!
//! Counted is what is seen of requests anyway: failures in a row, over all workers. Who has failed too often is
//! ejected for a time that grows with each repetition, and shrinks again while all goes well. A bounded share is
//! ejected at once, and never the last one that is there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::cluster::{Cluster, TICK};
use super::host::{EJECTED, Host};
use super::settings::Outliers;

/// The endpoints that have been ejected lately, by address.
#[derive(Debug, Default)]
pub(super) struct Ejections(HashMap<Box<str>, Ejection>);

#[derive(Clone, Debug)]
struct Ejection {
    /// How often it happened, less one for each such time of good behaviour.
    times: u32,
    /// Ticks until it is let in again, or, after that, until `times` is lowered.
    left: u128,
}

impl Ejections {
    /// Those of `hosts`, as far as `outliers` leaves so many out at once; the others are let in.
    pub(super) fn of_those(&self, hosts: &[Arc<Host>], outliers: Option<&Outliers>) -> Self {
        let most = outliers.map_or(0, |outliers| most(outliers, hosts.len()));
        let mut ejected: usize = 0;
        let one = |host: &Arc<Host>| {
            let ejection = self.0.get(&host.name).filter(|_| outliers.is_some());
            if host.is(EJECTED) {
                if ejection.is_some() && ejected < most {
                    ejected = ejected.saturating_add(1);
                } else {
                    host.lower(EJECTED);
                }
            }
            Some((host.name.clone(), ejection?.clone()))
        };
        Self(hosts.iter().filter_map(one).collect())
    }
}

impl Cluster {
    /// A request to `host` went well or did not.
    pub(super) fn note_outcome(&self, host: &Arc<Host>, is_good: bool) {
        let Some(outliers) = &self.settings().outliers else { return };
        if is_good {
            // Read first: hosts that do well share nothing that is written.
            if host.failures.load(Ordering::Relaxed) != 0 {
                host.failures.store(0, Ordering::Relaxed);
            }
            return;
        }
        let failures = host.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures >= outliers.failures && !host.is(EJECTED) {
            self.eject(host);
        }
    }

    fn eject(&self, host: &Arc<Host>) {
        let Some(outliers) = &self.settings().outliers else { return };
        // One at a time: the share is exact.
        let mut ejections = self.ejections.lock();
        let hosts = self.hosts();
        let ejected = hosts.iter().filter(|host| host.is(EJECTED)).count();
        if ejected >= most(outliers, hosts.len()) || !host.raise(EJECTED) {
            return;
        }
        host.failures.store(0, Ordering::Relaxed);
        let ejection = ejections.0.entry(host.name.clone()).or_insert(Ejection { times: 0, left: 0 });
        ejection.times = ejection.times.saturating_add(1);
        let time = outliers.ejection.saturating_mul(ejection.times).min(outliers.ejection_max);
        ejection.left = ticks(time);
        drop(ejections);
        self.has_changed();
        self.metrics.ejected();
        tracing::warn!(
            upstream = %self.settings().name,
            endpoint = %host.name,
            seconds = time.as_secs_f64(),
            "endpoint fails requests and is left out"
        );
    }

    /// A tick has passed.
    pub(super) fn tick_ejections(&self) {
        let Some(outliers) = &self.settings().outliers else { return };
        let mut ejections = self.ejections.lock();
        if ejections.0.is_empty() {
            return;
        }
        let hosts = self.hosts();
        let mut has_changed = false;
        ejections.0.retain(|name, ejection| {
            // A host that is gone is forgotten.
            let Some(host) = hosts.iter().find(|host| host.name == *name) else { return false };
            ejection.left = ejection.left.saturating_sub(1);
            if ejection.left > 0 {
                return true;
            }
            if host.lower(EJECTED) {
                host.failures.store(0, Ordering::Relaxed);
                has_changed = true;
                tracing::info!(upstream = %self.settings().name, endpoint = %host.name, "endpoint is let in again");
            } else {
                ejection.times = ejection.times.saturating_sub(1);
            }
            ejection.left = ticks(outliers.ejection);
            ejection.times > 0
        });
        drop(ejections);
        if has_changed {
            self.has_changed();
        }
    }
}

/// How many of so many hosts may be left out.
fn most(outliers: &Outliers, hosts: usize) -> usize {
    let share = usize::from(outliers.max_ejected).saturating_mul(hosts) / 100;
    share.max(1).min(hosts.saturating_sub(1))
}

fn ticks(time: Duration) -> u128 {
    time.as_nanos().div_ceil(TICK.as_nanos())
}
