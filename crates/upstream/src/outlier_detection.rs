//! Outlier detection: ejects endpoints that fail requests from load balancing for a while.
//!
//! It counts consecutive failures of regular requests over all workers. An endpoint with too many is ejected for a time
//! that grows with each ejection, and shrinks again while requests succeed. The share of ejected endpoints is bounded,
//! and the last one is never ejected.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::host::{EJECTED, UpstreamHost};
use super::settings::Outliers;

/// Interval at which ejections are updated.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// Endpoints that were ejected recently, by address.
#[derive(Debug, Default)]
pub(super) struct Ejections(HashMap<Box<str>, Ejection>);

#[derive(Clone, Debug)]
struct Ejection {
    /// Number of ejections, less one for each period without failures.
    times: u32,
    /// Ticks until readmission, or after that until `times` is decremented.
    left: u128,
}

impl Ejections {
    /// Returns the ejections of `hosts`. Hosts beyond the maximum of `outliers` are readmitted.
    pub(super) fn carried_over(&self, hosts: &[Arc<UpstreamHost>], outliers: Option<&Outliers>) -> Self {
        let max = outliers.map_or(0, |outliers| max_ejected(outliers, hosts.len()));
        let mut ejected: usize = 0;
        let one = |host: &Arc<UpstreamHost>| {
            let ejection = self.0.get(&host.name).filter(|_| outliers.is_some());
            if host.has_flag(EJECTED) {
                if ejection.is_some() && ejected < max {
                    ejected = ejected.saturating_add(1);
                } else {
                    host.clear_flag(EJECTED);
                }
            }
            Some((host.name.clone(), ejection?.clone()))
        };
        Self(hosts.iter().filter_map(one).collect())
    }

    /// Ejects `host`, one of `hosts`; returns the duration. `None` if the maximum is ejected, or the host is already.
    pub(super) fn eject(
        &mut self,
        host: &UpstreamHost,
        hosts: &[Arc<UpstreamHost>],
        outliers: &Outliers,
    ) -> Option<Duration> {
        let ejected = hosts.iter().filter(|host| host.has_flag(EJECTED)).count();
        if ejected >= max_ejected(outliers, hosts.len()) || !host.set_flag(EJECTED) {
            return None;
        }
        host.failures.record_success();
        let ejection = self.0.entry(host.name.clone()).or_insert(Ejection { times: 0, left: 0 });
        ejection.times = ejection.times.saturating_add(1);
        let time = outliers.ejection.saturating_mul(ejection.times).min(outliers.ejection_max);
        ejection.left = ticks(time);
        Some(time)
    }

    /// Advances the time by one tick; returns those of `hosts` that are readmitted.
    pub(super) fn tick(
        &mut self,
        hosts: &[Arc<UpstreamHost>],
        outliers: &Outliers,
    ) -> Vec<Arc<UpstreamHost>> {
        let mut readmitted = Vec::new();
        self.0.retain(|name, ejection| {
            // Forgets hosts that no longer exist.
            let Some(host) = hosts.iter().find(|host| host.name == *name) else { return false };
            ejection.left = ejection.left.saturating_sub(1);
            if ejection.left > 0 {
                return true;
            }
            if host.clear_flag(EJECTED) {
                host.failures.record_success();
                readmitted.push(Arc::clone(host));
            } else {
                ejection.times = ejection.times.saturating_sub(1);
            }
            ejection.left = ticks(outliers.ejection);
            ejection.times > 0
        });
        readmitted
    }

    /// Whether none has been ejected lately.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Counts the result of a request to `host`; returns whether the host has failed too often.
pub(super) fn is_outlier(host: &UpstreamHost, is_good: bool, outliers: &Outliers) -> bool {
    if is_good {
        host.failures.record_success();
        return false;
    }
    host.failures.record_failure() >= outliers.failures && !host.has_flag(EJECTED)
}

/// Returns the maximum number of ejected hosts.
fn max_ejected(outliers: &Outliers, hosts: usize) -> usize {
    let share = usize::from(outliers.max_ejected).saturating_mul(hosts) / 100;
    share.max(1).min(hosts.saturating_sub(1))
}

fn ticks(time: Duration) -> u128 {
    time.as_nanos().div_ceil(TICK.as_nanos())
}
