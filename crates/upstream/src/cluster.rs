//! Part of an upstream that all workers share: settings, hosts and their health, and the circuit breaker.
//!
//! Its background tasks are in `background.rs`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::carry_over;
use super::circuit_breaker::CircuitBreaker;
use super::error::NoAddress;
use super::host::{ConnectTarget, Hosts, UpstreamHost};
use super::outlier_detection::{self, Ejections};
use super::settings::{SlotSettings, UpstreamSettings};
use weir_limiter::adaptive_throttle::AdaptiveThrottle;
use weir_limiter::classes::{ClassIndex, ConcurrencyGate};
use weir_limiter::timestamp::Timestamp;
use weir_net::tls::client::TlsClient;
use weir_telemetry::atomic_counter::AtomicCounter;
use weir_telemetry::metrics::{
    ClusterMetrics, ClusterView, ConcurrencyView, HostView, Metrics, UpstreamOverflow,
};

/// An upstream, as shared by all workers.
#[derive(Debug)]
pub struct Cluster {
    settings: UpstreamSettings,
    resolved: watch::Sender<ResolvedHosts>,
    /// Incremented when hosts or their usability change, so that workers read them again.
    epoch: AtomicU32,
    pub(super) breaker: Arc<CircuitBreaker>,
    /// Slots of requests in flight, if their number is limited.
    gate: Option<Arc<ConcurrencyGate>>,
    /// Calls that are not sent, because they would be rejected anyway.
    throttle: Option<AdaptiveThrottle>,
    ejections: Mutex<Ejections>,
    pub(super) metrics: Arc<ClusterMetrics>,
    /// TLS client, if connections use TLS.
    tls: Option<ArcSwap<TlsClient>>,
    /// Handshakes that failed because of the name that a client had chosen.
    pub(super) wrong_names: AtomicCounter,
}

/// Known hosts of an upstream.
#[derive(Clone, Debug)]
struct ResolvedHosts {
    hosts: Hosts,
    /// Whether resolution of every name has been tried at least once.
    is_resolved: bool,
    /// Why a destination of a forward proxy has no address.
    no_address: Option<NoAddress>,
}

impl Cluster {
    /// Creates an upstream from `settings`, with TLS if `tls` is given. It takes over the state of the endpoints that
    /// it has in common with its predecessor `before`. Names are resolved after
    /// [`Self::start_background_tasks`].
    pub fn new(
        settings: UpstreamSettings,
        tls: Option<Arc<TlsClient>>,
        before: Option<&Self>,
        metrics: &Metrics,
    ) -> Arc<Self> {
        let gate = settings.concurrency.as_ref().map(|concurrency| new_gate(concurrency, before));
        let before = before.filter(|before| {
            before.tls.is_some() == tls.is_some() && before.settings.http2 == settings.http2
        });
        let (hosts, ejections) = inherit(&settings, before);
        let is_settled =
            settings.addresses.iter().all(|address| ConnectTarget::from_address(address).is_some());
        let resolved = ResolvedHosts { hosts, is_resolved: is_settled, no_address: None };
        Self::with_hosts(settings, tls, resolved, ejections, gate, metrics)
    }

    /// Creates an upstream whose only name is resolved elsewhere, with [`Self::set_addresses`].
    pub fn unresolved(
        settings: UpstreamSettings,
        tls: Option<Arc<TlsClient>>,
        metrics: &Metrics,
    ) -> Arc<Self> {
        let resolved = ResolvedHosts { hosts: Arc::default(), is_resolved: false, no_address: None };
        Self::with_hosts(settings, tls, resolved, Ejections::default(), None, metrics)
    }

    fn with_hosts(
        settings: UpstreamSettings,
        tls: Option<Arc<TlsClient>>,
        resolved: ResolvedHosts,
        ejections: Ejections,
        gate: Option<Arc<ConcurrencyGate>>,
        metrics: &Metrics,
    ) -> Arc<Self> {
        Arc::new(Self {
            resolved: watch::Sender::new(resolved),
            epoch: AtomicU32::new(0),
            breaker: CircuitBreaker::new(settings.limits, settings.retries.budget > 0, settings.http2),
            gate,
            throttle: settings.has_adaptive_throttle.then(AdaptiveThrottle::default),
            ejections: Mutex::new(ejections),
            metrics: metrics.cluster(&settings.name),
            tls: tls.map(ArcSwap::new),
            wrong_names: AtomicCounter::new(),
            settings,
        })
    }

    /// Returns the TLS client, if connections use TLS.
    pub fn tls(&self) -> Option<Arc<TlsClient>> {
        self.tls.as_ref().map(ArcSwap::load_full)
    }

    /// Replaces the TLS client. New connections use `client`; existing ones get no more requests. The state of the
    /// endpoints is kept. Has no effect for an upstream without TLS.
    pub fn set_tls(&self, client: Arc<TlsClient>) {
        if let Some(tls) = &self.tls {
            // What the last client has verified says nothing about this one.
            self.hosts().iter().for_each(|host| host.has_tls_worked.store(false, Ordering::Relaxed));
            tls.store(client);
            self.bump_epoch();
        }
    }

    pub fn settings(&self) -> &UpstreamSettings {
        &self.settings
    }

    /// Returns a view for operators at `now`.
    pub fn view(&self, now: Timestamp) -> ClusterView {
        let host = |host: &Arc<UpstreamHost>| HostView {
            address: host.name.clone(),
            hostname: host.hostname.clone(),
            health: host.health(),
        };
        let limits = self.settings.limits;
        ClusterView {
            name: self.settings.name.clone(),
            hosts: self.hosts().iter().map(host).collect(),
            concurrency: self.gate.as_ref().zip(self.settings.concurrency.as_ref()).map(
                |(gate, settings)| {
                    let names = settings.classes.iter().map(|(name, _)| name.clone());
                    ConcurrencyView { gate: gate.view(now), classes: names.collect() }
                },
            ),
            throttle: self.throttle.as_ref().map(|throttle| throttle.probability(now)),
            limits: [limits.connections, limits.pending, limits.requests, limits.retries],
        }
    }

    /// Returns the slots of requests in flight; `None` if their number is not limited.
    pub const fn gate(&self) -> Option<&Arc<ConcurrencyGate>> {
        self.gate.as_ref()
    }

    /// Returns what rejects calls that would be rejected anyway; `None` unless configured.
    pub const fn throttle(&self) -> Option<&AdaptiveThrottle> {
        self.throttle.as_ref()
    }

    /// Records a call that was not sent, because it would probably be rejected.
    pub fn record_throttled(&self) {
        self.metrics.record_overflow(UpstreamOverflow::Throttle);
    }

    /// Returns the current hosts.
    pub(super) fn hosts(&self) -> Hosts {
        Arc::clone(&self.resolved.borrow().hosts)
    }

    /// Returns a number that changes whenever the hosts or their usability change.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Notifies workers that the hosts or their usability changed.
    pub(super) fn bump_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Waits until a host is known, or resolution of every name has been tried.
    pub(super) async fn wait_until_resolved(&self) {
        // The sender lives as long as `self`, so this cannot fail.
        let _ =
            self.resolved.subscribe().wait_for(|known| known.is_resolved || !known.hosts.is_empty()).await;
    }

    /// Returns a future that is ready when the cluster has been dropped.
    pub fn dropped(&self) -> impl Future<Output = ()> + use<> {
        let mut resolved = self.resolved.subscribe();
        async move { while resolved.changed().await.is_ok() {} }
    }

    /// Whether resolution of every name has been tried at least once.
    pub(super) fn is_resolved(&self) -> bool {
        self.resolved.borrow().is_resolved
    }

    /// Sets the hosts to `targets`. Known hosts keep their state; returns the new ones.
    pub(super) fn set_hosts(
        &self,
        targets: Vec<(ConnectTarget, Box<str>)>,
        is_settled: bool,
    ) -> Vec<Arc<UpstreamHost>> {
        let before = self.hosts();
        let mut fresh = Vec::new();
        let mut host = |(target, hostname): (ConnectTarget, Box<str>)| {
            let kept = before.iter().find(|host| host.target == target && host.hostname == hostname);
            kept.cloned().unwrap_or_else(|| {
                let host = Arc::new(UpstreamHost::new(target, hostname));
                fresh.push(Arc::clone(&host));
                host
            })
        };
        let hosts: Hosts = targets.into_iter().map(&mut host).collect();
        let is_same = fresh.is_empty() && hosts.len() == before.len();
        self.resolved.send_if_modified(|known| {
            let is_news = !is_same || known.is_resolved != is_settled;
            *known = ResolvedHosts { hosts, is_resolved: is_settled, no_address: None };
            is_news
        });
        if !is_same {
            self.bump_epoch();
        }
        fresh
    }

    /// Sets the addresses of the upstream's only name, or the reason why there are none. After a failed lookup the last
    /// addresses stay in use.
    pub fn set_addresses(&self, found: Result<Vec<SocketAddr>, NoAddress>) {
        let hostname = self.settings.addresses.first().map(ToString::to_string).unwrap_or_default();
        let targets: Vec<(ConnectTarget, Box<str>)> = match found {
            Ok(found) => found.into_iter().map(|ip| (ConnectTarget::Ip(ip), (*hostname).into())).collect(),
            Err(NoAddress::NotFound | NoAddress::TimedOut) if !self.hosts().is_empty() => return,
            Err(reason) => {
                self.set_hosts(Vec::new(), false);
                self.resolved
                    .send_modify(|known| (known.is_resolved, known.no_address) = (true, Some(reason)));
                return;
            }
        };
        self.set_hosts(targets, true);
    }

    /// Returns why the upstream has no address; `None` if it has one, or is not a destination of a forward proxy.
    pub(super) fn no_address(&self) -> Option<NoAddress> {
        self.resolved.borrow().no_address
    }

    /// Records the result of a request to `host`, for outlier detection.
    pub(super) fn record_outcome(&self, host: &UpstreamHost, is_good: bool) {
        let Some(outliers) = &self.settings.outliers else { return };
        if !outlier_detection::is_outlier(host, is_good, outliers) {
            return;
        }
        // Locked before the hosts are read, so that concurrent ejections cannot exceed the maximum share.
        let mut ejections = self.ejections.lock();
        let ejected = ejections.eject(host, &self.hosts(), outliers);
        drop(ejections);
        let Some(time) = ejected else { return };
        self.bump_epoch();
        self.metrics.record_ejection();
        tracing::warn!(
            upstream = %self.settings.name,
            endpoint = %host.name,
            seconds = time.as_secs_f64(),
            "endpoint ejected by outlier detection"
        );
    }

    /// Advances the time by [`outlier_detection::TICK`].
    pub(super) fn tick_ejections(&self) {
        let Some(outliers) = &self.settings.outliers else { return };
        let mut ejections = self.ejections.lock();
        if ejections.is_empty() {
            return;
        }
        let readmitted = ejections.tick(&self.hosts(), outliers);
        drop(ejections);
        for host in &readmitted {
            tracing::info!(
                upstream = %self.settings.name,
                endpoint = %host.name,
                "endpoint no longer ejected"
            );
        }
        if !readmitted.is_empty() {
            self.bump_epoch();
        }
    }
}

/// Returns the initial hosts and ejections of an upstream with these settings, after `before` if there is one.
fn inherit(settings: &UpstreamSettings, before: Option<&Cluster>) -> (Hosts, Ejections) {
    let Some(before) = before else { return (carry_over::hosts(settings, &[], false), Ejections::default()) };
    // Held while the flags are read, so that flags and ejections are consistent.
    let ejections = before.ejections.lock();
    let were_checked = before.settings.health_check.is_some();
    let hosts = carry_over::hosts(settings, &before.hosts(), were_checked);
    let ejections = ejections.carried_over(&hosts, settings.outliers.as_ref());
    (hosts, ejections)
}

/// Returns the slots of an upstream, which continue with what those before have learned.
fn new_gate(settings: &SlotSettings, before: Option<&Cluster>) -> Arc<ConcurrencyGate> {
    let shares: Vec<_> = settings.classes.iter().map(|(_, share)| *share).collect();
    let gate = ConcurrencyGate::new(settings.range, &shares);
    let known = before.and_then(|before| before.gate.as_ref().zip(before.settings.concurrency.as_ref()));
    if let Some((gate_before, settings_before)) = known {
        let position = |name: &str| settings_before.classes.iter().position(|(known, _)| **known == *name);
        let index = |position| u16::try_from(position).ok().map(ClassIndex);
        gate.inherit(gate_before, settings.classes.iter().map(|(name, _)| position(name).and_then(index)));
    }
    gate
}
