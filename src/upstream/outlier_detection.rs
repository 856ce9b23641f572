//! Endpoints that fail requests are left out for a while.
//!
//! Counted is what is seen of requests anyway: failures in a row, over all workers. Who has failed too often is
//! ejected for a time that grows with each repetition, and shrinks again while all goes well. A bounded share is
//! ejected at once, and never the last one that is there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::host::{EJECTED, Host};
use super::settings::Outliers;

/// How often ejected endpoints are looked at.
pub(super) const TICK: Duration = Duration::from_millis(100);

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
    pub(super) fn carried_over(&self, hosts: &[Arc<Host>], outliers: Option<&Outliers>) -> Self {
        let max = outliers.map_or(0, |outliers| max_ejected(outliers, hosts.len()));
        let mut ejected: usize = 0;
        let one = |host: &Arc<Host>| {
            let ejection = self.0.get(&host.name).filter(|_| outliers.is_some());
            if host.is(EJECTED) {
                if ejection.is_some() && ejected < max {
                    ejected = ejected.saturating_add(1);
                } else {
                    host.lower(EJECTED);
                }
            }
            Some((host.name.clone(), ejection?.clone()))
        };
        Self(hosts.iter().filter_map(one).collect())
    }

    /// Leaves `host` out, one of `hosts`, and says for how long; `None` where as many are left out as may be, or it is
    /// already.
    pub(super) fn eject(
        &mut self,
        host: &Host,
        hosts: &[Arc<Host>],
        outliers: &Outliers,
    ) -> Option<Duration> {
        let ejected = hosts.iter().filter(|host| host.is(EJECTED)).count();
        if ejected >= max_ejected(outliers, hosts.len()) || !host.raise(EJECTED) {
            return None;
        }
        host.failures.store(0, Ordering::Relaxed);
        let ejection = self.0.entry(host.name.clone()).or_insert(Ejection { times: 0, left: 0 });
        ejection.times = ejection.times.saturating_add(1);
        let time = outliers.ejection.saturating_mul(ejection.times).min(outliers.ejection_max);
        ejection.left = ticks(time);
        Some(time)
    }

    /// A tick has passed: those of `hosts` that are let in again.
    pub(super) fn tick(&mut self, hosts: &[Arc<Host>], outliers: &Outliers) -> Vec<Arc<Host>> {
        let mut readmitted = Vec::new();
        self.0.retain(|name, ejection| {
            // A host that is gone is forgotten.
            let Some(host) = hosts.iter().find(|host| host.name == *name) else { return false };
            ejection.left = ejection.left.saturating_sub(1);
            if ejection.left > 0 {
                return true;
            }
            if host.lower(EJECTED) {
                host.failures.store(0, Ordering::Relaxed);
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

/// Counts a request to `host` that went well or failed; whether it has failed too often.
pub(super) fn is_outlier(host: &Host, is_good: bool, outliers: &Outliers) -> bool {
    if is_good {
        // Read first: hosts that do well share nothing that is written.
        if host.failures.load(Ordering::Relaxed) != 0 {
            host.failures.store(0, Ordering::Relaxed);
        }
        return false;
    }
    let failures = host.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
    failures >= outliers.failures && !host.is(EJECTED)
}

/// How many of so many hosts may be left out.
fn max_ejected(outliers: &Outliers, hosts: usize) -> usize {
    let share = usize::from(outliers.max_ejected).saturating_mul(hosts) / 100;
    share.max(1).min(hosts.saturating_sub(1))
}

fn ticks(time: Duration) -> u128 {
    time.as_nanos().div_ceil(TICK.as_nanos())
}
