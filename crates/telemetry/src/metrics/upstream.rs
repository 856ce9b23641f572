//! Metrics of upstreams, counted by each worker for each endpoint in memory that no other worker writes.
//!
//! An upstream's counts are the sums over its endpoints, so a request is counted only once. Counts of a removed
//! endpoint stay with its upstream.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::super::atomic_counter::{self, AtomicCounter, merge_all};
use super::super::histogram::Histogram;
use super::connection_setup::{handshake_index, handshake_labels};
use super::worker::{STATUS_CLASSES, status_class_index};
use weir_limiter::classes::GateView;
use weir_net::tls::SessionStart;
use weir_net::tls::client::ClientHandshakeErrorKind;

/// Result of an attempt to send a request upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamOutcome {
    /// A response arrived, with any status code.
    Responded(StatusCode),
    /// No connection could be established.
    ConnectFailed,
    /// The upstream did not respond in time.
    TimedOut,
    /// The connection broke before the response.
    Reset,
    /// The response was not valid HTTP.
    Malformed,
    /// The client left before the response.
    Abandoned,
    /// The request was not sent, because a circuit breaker was open.
    Overflowed,
    /// The request was not sent, because the endpoint has no certificate for its host.
    WrongName,
}

impl UpstreamOutcome {
    /// Label values, in the order of [`Self::index`].
    pub(super) const LABELS: [&'static str; 8] = [
        "answered",
        "connect_failed",
        "timed_out",
        "reset",
        "malformed",
        "abandoned",
        "overflowed",
        "wrong_name",
    ];

    const fn index(self) -> usize {
        match self {
            Self::Responded(_) => 0,
            Self::ConnectFailed => 1,
            Self::TimedOut => 2,
            Self::Reset => 3,
            Self::Malformed => 4,
            Self::Abandoned => 5,
            Self::Overflowed => 6,
            Self::WrongName => 7,
        }
    }
}

/// Counters of an endpoint on one worker, or of an upstream on all. The alignment prevents false sharing between
/// workers; processors fetch cache lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct UpstreamCounts {
    /// Attempts that began.
    pub requests_started: AtomicCounter,
    pub(super) requests_ended: [AtomicCounter; UpstreamOutcome::LABELS.len()],
    pub(super) responses: [AtomicCounter; STATUS_CLASSES.len()],
    pub(super) retries: AtomicCounter,
    /// Connections that were established.
    pub connections_opened: AtomicCounter,
    pub(super) connections_closed: AtomicCounter,
    /// Connections that could not be established.
    pub connections_failed: AtomicCounter,
    pub(super) response_time: Histogram,
}

impl UpstreamCounts {
    /// Returns the number of attempts that wait for a response.
    pub fn in_flight(&self) -> u64 {
        self.requests_started.get().saturating_sub(atomic_counter::sum(&self.requests_ended))
    }

    pub fn open_connections(&self) -> u64 {
        self.connections_opened.get().saturating_sub(self.connections_closed.get())
    }

    /// Returns the number of attempts with a response other than 5xx.
    pub fn successes(&self) -> u64 {
        atomic_counter::sum(&self.responses[..STATUS_CLASSES.len() - 1])
    }

    /// Returns the number of failed attempts: a 5xx, or no response unless the client left, a circuit breaker was open,
    /// or the endpoint has no certificate for the host.
    pub fn failures(&self) -> u64 {
        let excluded = ["abandoned", "overflowed", "wrong_name"].map(|label| self.outcome_count(label));
        let excluded = excluded.into_iter().fold(0, u64::saturating_add);
        atomic_counter::sum(&self.requests_ended).saturating_sub(self.successes().saturating_add(excluded))
    }

    /// Returns the number of attempts with an outcome, given by its label value.
    pub fn outcome_count(&self, label: &str) -> u64 {
        let position = UpstreamOutcome::LABELS.iter().position(|known| *known == label);
        position.map_or(0, |position| self.requests_ended[position].get())
    }

    /// Yields the number of attempts that ended, by outcome.
    pub(super) fn ended_by_outcome(&self) -> impl Iterator<Item = (&'static str, u64)> {
        UpstreamOutcome::LABELS.into_iter().zip(self.requests_ended.iter().map(AtomicCounter::get))
    }

    /// Adds the counts of `other`, ends before beginnings.
    pub(super) fn merge(&mut self, other: &Self) {
        self.response_time.merge(&other.response_time);
        merge_all(&mut self.requests_ended, &other.requests_ended);
        merge_all(&mut self.responses, &other.responses);
        self.retries.merge(&other.retries);
        self.connections_closed.merge(&other.connections_closed);
        self.connections_failed.merge(&other.connections_failed);
        self.requests_started.merge(&other.requests_started);
        self.connections_opened.merge(&other.connections_opened);
    }
}

/// Properties of an upstream other than its counters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterView {
    pub name: Box<str>,
    /// Endpoints.
    pub hosts: Vec<HostView>,
    /// Maximum number of connections, pending requests, requests and retries.
    pub limits: [u32; 4],
    /// Requests in flight by class, if their number is limited.
    pub concurrency: Option<ConcurrencyView>,
    /// Probability with which a call is not sent, if calls are throttled.
    pub throttle: Option<f64>,
}

/// The classes that share the concurrency of an upstream.
#[derive(Clone, Debug, PartialEq)]
pub struct ConcurrencyView {
    /// Names of the classes.
    pub classes: Vec<Box<str>>,
    /// Limit and classes, in the same order.
    pub gate: GateView,
}

/// Properties of an endpoint other than its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostView {
    /// Address, under which it is counted.
    pub address: Box<str>,
    /// Configured name or address.
    pub hostname: Box<str>,
    /// `healthy`, or the reason why it is not, in Envoy's terms.
    pub health: &'static str,
}

impl HostView {
    /// Whether it may receive requests.
    pub fn is_healthy(&self) -> bool {
        self.health == "healthy"
    }
}

/// A limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamOverflow {
    /// No connection became available in time.
    Connections,
    /// Maximum number of requests waiting for a connection.
    Pending,
    /// Maximum number of requests in flight.
    Requests,
    /// Maximum number of concurrent retries.
    Retries,
    /// A client's share of the requests, which the client did not get below in time.
    Client,
    /// Minimum transfer rate of a client, enforced while requests are scarce.
    ClientRate,
    /// Calls that are not sent, because the upstream would probably reject them.
    Throttle,
}

impl UpstreamOverflow {
    /// Label values, in order of declaration.
    pub(super) const LABELS: [&'static str; 7] = [
        "connections",
        "pending",
        "requests",
        "retries",
        "requests_per_client",
        "min_client_rate",
        "adaptive_throttle",
    ];
}

/// Counters of rare events of one upstream, shared by all workers.
#[derive(Debug, Default)]
pub struct ClusterMetrics {
    pub(super) ejections: AtomicCounter,
    pub(super) failed_health_checks: AtomicCounter,
    overflows: [AtomicCounter; UpstreamOverflow::LABELS.len()],
    handshakes: [AtomicCounter; 2 + ClientHandshakeErrorKind::ALL.len()],
}

impl ClusterMetrics {
    /// Records that an endpoint was ejected.
    pub fn record_ejection(&self) {
        self.ejections.increment();
    }

    pub fn record_failed_health_check(&self) {
        self.failed_health_checks.increment();
    }

    /// Records that a limit was reached.
    pub fn record_overflow(&self, limit: UpstreamOverflow) {
        self.overflows[limit as usize].increment();
    }

    /// Records the result of a TLS handshake with an endpoint.
    pub fn record_handshake(&self, outcome: Result<SessionStart, ClientHandshakeErrorKind>) {
        self.handshakes[handshake_index(outcome.map_err(|reason| reason as usize))].increment();
    }

    /// Returns the number of TLS handshakes by outcome; empty if there were none.
    pub(super) fn handshakes(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let has_any = atomic_counter::sum(&self.handshakes) > 0;
        handshake_labels(ClientHandshakeErrorKind::ALL.map(ClientHandshakeErrorKind::as_str))
            .zip(self.handshakes.iter().map(AtomicCounter::get))
            .filter(move |_| has_any)
    }

    /// Returns how often each limit was reached.
    pub(super) fn overflows(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        UpstreamOverflow::LABELS.into_iter().zip(self.overflows.iter().map(AtomicCounter::get))
    }
}

/// Metrics of all upstreams.
#[derive(Debug, Default)]
pub(super) struct UpstreamRegistry(BTreeMap<Box<str>, UpstreamEntry>);

#[derive(Debug, Default)]
struct UpstreamEntry {
    cluster: Arc<ClusterMetrics>,
    /// Counts of removed endpoints.
    removed: UpstreamCounts,
    endpoints: Vec<(Box<str>, Arc<UpstreamCounts>)>,
}

impl UpstreamRegistry {
    /// Returns a handle with its own memory for the endpoint at `address`.
    pub(super) fn endpoint(&mut self, upstream: &str, address: &str) -> EndpointMetrics {
        let entry = self.0.entry(upstream.into()).or_default();
        entry.merge_removed_endpoints();
        let counts = Arc::default();
        entry.endpoints.push((address.into(), Arc::clone(&counts)));
        EndpointMetrics { counts, thread: PhantomData }
    }

    /// Returns the counters of an upstream that all workers share.
    pub(super) fn cluster(&mut self, upstream: &str) -> Arc<ClusterMetrics> {
        Arc::clone(&self.0.entry(upstream.into()).or_default().cluster)
    }

    /// Returns the shared counters of all upstreams.
    pub(super) fn clusters(&self) -> Vec<(Box<str>, Arc<ClusterMetrics>)> {
        self.0.iter().map(|(name, entry)| (name.clone(), Arc::clone(&entry.cluster))).collect()
    }

    /// Returns the sums over all endpoints, by upstream.
    pub(super) fn totals(&mut self) -> Vec<(Box<str>, UpstreamCounts)> {
        let mut all = Vec::with_capacity(self.0.len());
        for (name, entry) in &mut self.0 {
            entry.merge_removed_endpoints();
            let mut totals = UpstreamCounts::default();
            let endpoints = entry.endpoints.iter().map(|(_, counts)| &**counts);
            endpoints.chain([&entry.removed]).for_each(|counts| totals.merge(counts));
            all.push((name.clone(), totals));
        }
        all
    }

    /// Returns the counts of the endpoints of one upstream, by address.
    pub(super) fn endpoints(&self, upstream: &str) -> BTreeMap<Box<str>, UpstreamCounts> {
        let mut totals: BTreeMap<Box<str>, UpstreamCounts> = BTreeMap::new();
        for (address, counts) in self.0.get(upstream).into_iter().flat_map(|entry| &entry.endpoints) {
            totals.entry(address.clone()).or_default().merge(counts);
        }
        totals
    }
}

impl UpstreamEntry {
    /// Moves the counts of endpoints without handles to `gone`. A handle that has been dropped cannot be obtained
    /// again.
    fn merge_removed_endpoints(&mut self) {
        let Self { removed: gone, endpoints, .. } = self;
        endpoints.retain_mut(|(_, counts)| {
            let is_used = Arc::get_mut(counts).is_none();
            if !is_used {
                gone.merge(counts);
            }
            is_used
        });
    }
}

/// Handle of one worker for one endpoint. No other thread writes its counters.
#[derive(Debug)]
pub struct EndpointMetrics {
    counts: Arc<UpstreamCounts>,
    /// Keeps the handle on its thread.
    thread: PhantomData<Rc<()>>,
}

impl EndpointMetrics {
    /// Records that a connection was established.
    pub fn connection_opened(&self) {
        self.counts.connections_opened.increment_exclusive();
    }

    /// Records that an established connection ended.
    pub fn connection_closed(&self) {
        self.counts.connections_closed.increment_exclusive();
    }

    /// Records that a connection could not be established.
    pub fn connection_failed(&self) {
        self.counts.connections_failed.increment_exclusive();
    }

    /// Records that an attempt begins. Exactly one [`Self::request_ended`] must follow.
    pub fn request_started(&self) {
        self.counts.requests_started.increment_exclusive();
    }

    /// Records the result of an attempt.
    pub fn request_ended(&self, outcome: UpstreamOutcome) {
        let counts = &self.counts;
        counts.requests_ended[outcome.index()].increment_exclusive();
        if let UpstreamOutcome::Responded(status) = outcome {
            counts.responses[status_class_index(status)].increment_exclusive();
        }
    }

    /// Records that an attempt is a retry.
    pub fn request_retried(&self) {
        self.counts.retries.increment_exclusive();
    }

    /// Records the time from the request, or the end of its delay, to the response's header section.
    pub fn record_response_time(&self, duration: Duration) {
        self.counts.response_time.record_exclusive(duration);
    }
}
