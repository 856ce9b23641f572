//! One upstream of one configuration, as all workers share it: where it is, how each place does, and how much
//! is under way.
//!
//! What takes time beside requests is in `background.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::carry_over;
use super::circuit_breaker::CircuitBreaker;
use super::host::{Host, Hosts, Target};
use super::outlier_detection::{self, Ejections};
use super::settings::Settings;
use crate::telemetry::metrics::{ClusterMetrics, ClusterView, HostView, Metrics};
use crate::tls::client::Client;

/// An upstream.
#[derive(Debug)]
pub struct Cluster {
    settings: Settings,
    known: watch::Sender<Known>,
    /// Counts what makes workers look at the hosts again.
    epoch: AtomicU32,
    pub(super) breaker: Arc<CircuitBreaker>,
    ejections: Mutex<Ejections>,
    pub(super) metrics: Arc<ClusterMetrics>,
    /// TLS, if that is spoken to it.
    tls: Option<ArcSwap<Client>>,
}

/// What is known of where an upstream is.
#[derive(Clone, Debug)]
struct Known {
    hosts: Hosts,
    /// Every name has been asked for at least once.
    is_settled: bool,
}

impl Cluster {
    /// The upstream that `settings` describe, over `tls` if there is any; of the endpoints that it has from `before`,
    /// whose place it takes, all stays known. Names are to be looked up still: see [`Self::start`].
    pub fn new(
        settings: Settings,
        tls: Option<Arc<Client>>,
        before: Option<&Self>,
        metrics: &Metrics,
    ) -> Arc<Self> {
        let before = before.filter(|before| {
            before.tls.is_some() == tls.is_some() && before.settings.http2 == settings.http2
        });
        let (hosts, ejections) = inherit(&settings, before);
        let is_settled = settings.addresses.iter().all(|address| Target::of(address).is_some());
        Arc::new(Self {
            known: watch::Sender::new(Known { hosts, is_settled }),
            epoch: AtomicU32::new(0),
            breaker: CircuitBreaker::new(settings.limits, settings.retries.budget > 0, settings.http2),
            ejections: Mutex::new(ejections),
            metrics: metrics.cluster(&settings.name),
            tls: tls.map(ArcSwap::new),
            settings,
        })
    }

    /// TLS, if that is spoken to it.
    pub fn tls(&self) -> Option<Arc<Client>> {
        self.tls.as_ref().map(ArcSwap::load_full)
    }

    /// From now on connections are made by `client`, and those that there are get no more requests. All that is known
    /// of the upstream stays known. Nothing changes for one without TLS.
    pub fn secure(&self, client: Arc<Client>) {
        if let Some(tls) = &self.tls {
            tls.store(client);
            self.has_changed();
        }
    }

    /// What it was made from.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What operators are shown.
    pub fn view(&self) -> ClusterView {
        let host = |host: &Arc<Host>| HostView {
            address: host.name.clone(),
            hostname: host.hostname.clone(),
            health: host.health(),
        };
        let limits = self.settings.limits;
        ClusterView {
            name: self.settings.name.clone(),
            hosts: self.hosts().iter().map(host).collect(),
            limits: [limits.connections, limits.pending, limits.requests, limits.retries],
        }
    }

    /// Where it is now.
    pub(super) fn hosts(&self) -> Hosts {
        Arc::clone(&self.known.borrow().hosts)
    }

    /// Changes whenever the hosts do, or which of them are usable.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Which hosts are usable has changed.
    pub(super) fn has_changed(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Answers once it is known where the upstream is, or that nobody knows.
    pub(super) async fn settled(&self) {
        // The sender lives as long as `self`.
        let _ = self.known.subscribe().wait_for(|known| known.is_settled || !known.hosts.is_empty()).await;
    }

    /// Whether every name has been looked up at least once.
    pub(super) fn is_settled(&self) -> bool {
        self.known.borrow().is_settled
    }

    /// The upstream is where `targets` say; hosts that are known already stay what they are. Those that were not are
    /// returned.
    pub(super) fn set_hosts(&self, targets: Vec<(Target, Box<str>)>, is_settled: bool) -> Vec<Arc<Host>> {
        let before = self.hosts();
        let mut fresh = Vec::new();
        let mut host = |(target, hostname): (Target, Box<str>)| {
            let kept = before.iter().find(|host| host.target == target && host.hostname == hostname);
            kept.cloned().unwrap_or_else(|| {
                let host = Arc::new(Host::new(target, hostname));
                fresh.push(Arc::clone(&host));
                host
            })
        };
        let hosts: Hosts = targets.into_iter().map(&mut host).collect();
        let is_same = fresh.is_empty() && hosts.len() == before.len();
        self.known.send_if_modified(|known| {
            let is_news = !is_same || known.is_settled != is_settled;
            *known = Known { hosts, is_settled };
            is_news
        });
        if !is_same {
            self.has_changed();
        }
        fresh
    }

    /// A request to `host` went well or did not.
    pub(super) fn note_outcome(&self, host: &Host, is_good: bool) {
        let Some(outliers) = &self.settings.outliers else { return };
        if !outlier_detection::is_outlier(host, is_good, outliers) {
            return;
        }
        // Locked before the hosts are read: one at a time, so that the share is exact.
        let mut ejections = self.ejections.lock();
        let ejected = ejections.eject(host, &self.hosts(), outliers);
        drop(ejections);
        let Some(time) = ejected else { return };
        self.has_changed();
        self.metrics.ejected();
        tracing::warn!(
            upstream = %self.settings.name,
            endpoint = %host.name,
            seconds = time.as_secs_f64(),
            "endpoint fails requests and is left out"
        );
    }

    /// [`outlier_detection::TICK`] has passed.
    pub(super) fn tick_ejections(&self) {
        let Some(outliers) = &self.settings.outliers else { return };
        let mut ejections = self.ejections.lock();
        if ejections.is_empty() {
            return;
        }
        let readmitted = ejections.tick(&self.hosts(), outliers);
        drop(ejections);
        for host in &readmitted {
            tracing::info!(upstream = %self.settings.name, endpoint = %host.name, "endpoint is let in again");
        }
        if !readmitted.is_empty() {
            self.has_changed();
        }
    }
}

/// The hosts and ejections that an upstream with these settings begins with, after `before` if there is one.
fn inherit(settings: &Settings, before: Option<&Cluster>) -> (Hosts, Ejections) {
    let Some(before) = before else { return (carry_over::hosts(settings, &[], false), Ejections::default()) };
    // Held while flags are read: who is let in now, or left out, is so in both places.
    let ejections = before.ejections.lock();
    let were_checked = before.settings.health_check.is_some();
    let hosts = carry_over::hosts(settings, &before.hosts(), were_checked);
    let ejections = ejections.carried_over(&hosts, settings.outliers.as_ref());
    (hosts, ejections)
}
