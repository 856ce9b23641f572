//! One upstream of one configuration, as all workers share it: where it is, how each place does, and how much
//! is under way.
//!
//! What takes time beside requests (looking names up, asking endpoints how they are, letting them back in) is done
//! by tasks that end when the upstream is gone.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::circuit_breaker::Breaker;
use super::health;
use super::host::{Host, Target};
use super::outlier_detection::Ejections;
use super::resolve;
use super::settings::Settings;
use super::carry_over::{self, Heritage};
use crate::telemetry::metrics::{ClusterMetrics, ClusterView, HostView, Metrics};
use crate::tls::client::Client;

/// How often ejected endpoints are looked at.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// All places of an upstream at one moment.
pub(super) type Hosts = Arc<[Arc<Host>]>;

/// An upstream.
#[derive(Debug)]
pub struct Cluster {
    settings: Settings,
    known: watch::Sender<Known>,
    /// Counts what makes workers look at the hosts again.
    epoch: AtomicU32,
    pub(super) breaker: Arc<Breaker>,
    pub(super) ejections: Mutex<Ejections>,
    pub(super) metrics: Arc<ClusterMetrics>,
    /// TLS, if that is spoken to it.
    tls: Option<ArcSwap<Client>>,
}

/// What is known of where an upstream is.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) hosts: Hosts,
    /// Every name has been asked for at least once.
    pub(super) is_settled: bool,
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
        let Heritage { hosts, ejections } = carry_over::of(&settings, before);
        let is_settled = settings.addresses.iter().all(|address| Target::of(address).is_some());
        Arc::new(Self {
            known: watch::Sender::new(Known { hosts, is_settled }),
            epoch: AtomicU32::new(0),
            breaker: Breaker::new(settings.limits, settings.retries.budget > 0, settings.http2),
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

    /// Does what is to be done beside requests, for as long as the upstream is there.
    pub fn start(self: &Arc<Self>, runtime: &Handle) {
        if !self.known.borrow().is_settled {
            runtime.spawn(resolve::keep_resolved(Arc::downgrade(self)));
        }
        for host in &*self.hosts() {
            self.watch_over(host, runtime);
        }
        if self.settings.outliers.is_some() && (self.hosts().len() > 1 || !self.known.borrow().is_settled) {
            runtime.spawn(keep_ejections(Arc::downgrade(self)));
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

    /// The upstream is where `targets` say; hosts that are known already stay what they are.
    pub(super) fn is_at(self: &Arc<Self>, targets: Vec<(Target, Box<str>)>, is_settled: bool) {
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
        if let Ok(runtime) = Handle::try_current() {
            fresh.iter().for_each(|host| self.watch_over(host, &runtime));
        }
    }

    fn watch_over(self: &Arc<Self>, host: &Arc<Host>, runtime: &Handle) {
        if self.settings.health_check.is_some() && host.target != Target::Echo {
            runtime.spawn(health::keep_checked(Arc::downgrade(self), Arc::downgrade(host)));
        }
    }
}

async fn keep_ejections(cluster: Weak<Cluster>) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let Some(cluster) = cluster.upgrade() else { return };
        cluster.tick_ejections();
    }
}
