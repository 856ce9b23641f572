//! What is counted of upstreams: by each worker for each endpoint, in memory that no other worker writes.
//!
//! An upstream's numbers are the sums over its endpoints, so that counting for both costs a request no more than
//! counting for one. What was counted of an endpoint that is gone stays with its upstream.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;

use super::super::histogram::Histogram;
use super::arrival::UpstreamHandshake;
use super::totals::UpstreamTotals;
use super::worker::{CLASSES, bump, class_of};

/// How an attempt to have a request answered upstream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamOutcome {
    /// With an answer, whatever it says.
    Answered(StatusCode),
    /// No connection could be had.
    ConnectFailed,
    /// No answer in time.
    TimedOut,
    /// The connection broke first.
    Reset,
    /// The answer was not valid HTTP.
    Malformed,
    /// The client went away first.
    Abandoned,
    /// As much was under way as may be: it was not sent.
    Overflowed,
}

impl UpstreamOutcome {
    /// The label values, in the order of [`Self::index`].
    pub(super) const LABELS: [&'static str; 7] =
        ["answered", "connect_failed", "timed_out", "reset", "malformed", "abandoned", "overflowed"];

    const fn index(self) -> usize {
        match self {
            Self::Answered(_) => 0,
            Self::ConnectFailed => 1,
            Self::TimedOut => 2,
            Self::Reset => 3,
            Self::Malformed => 4,
            Self::Abandoned => 5,
            Self::Overflowed => 6,
        }
    }
}

/// One endpoint's numbers. Alignment keeps workers off each other's cache lines, which come in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct UpstreamCells {
    pub(super) started: AtomicU64,
    pub(super) ended: [AtomicU64; UpstreamOutcome::LABELS.len()],
    pub(super) answered: [AtomicU64; CLASSES.len()],
    pub(super) retries: AtomicU64,
    pub(super) opened: AtomicU64,
    pub(super) closed: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) duration: Histogram,
}

/// What is known of an upstream beside what is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// Its name.
    pub name: Box<str>,
    /// Where it is.
    pub hosts: Vec<HostView>,
    /// The most connections, waiting requests, requests and retries at once.
    pub limits: [u32; 4],
}

/// What is known of an endpoint beside what is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostView {
    /// Its address, under which it is counted.
    pub address: Box<str>,
    /// As what it was configured.
    pub hostname: Box<str>,
    /// `healthy`, or why it is not, in Envoy's words.
    pub health: &'static str,
}

impl HostView {
    /// Whether it may get requests.
    pub fn is_healthy(&self) -> bool {
        self.health == "healthy"
    }
}

/// A limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// No connection became free in time.
    Connections,
    /// As many requests wait for a connection as may.
    Pending,
    /// As many requests are under way as may be.
    Requests,
    /// As many are being tried again as may be.
    Retries,
    /// A client has its share of the requests, and did not get below it in time.
    Client,
    /// A client has sent or taken too little while requests were scarce.
    ClientRate,
}

impl Overflow {
    /// The label values, in the order of their declaration.
    pub(super) const LABELS: [&'static str; 6] =
        ["connections", "pending", "requests", "retries", "requests_per_client", "min_client_rate"];
}

/// What all workers count of one upstream together: what is rare.
#[derive(Debug, Default)]
pub struct ClusterMetrics {
    ejections: AtomicU64,
    failed_checks: AtomicU64,
    overflows: [AtomicU64; Overflow::LABELS.len()],
    handshakes: [AtomicU64; UpstreamHandshake::COUNT],
}

impl ClusterMetrics {
    /// An endpoint is left out for a while.
    pub fn ejected(&self) {
        bump(&self.ejections);
    }

    /// A health check went wrong.
    pub fn check_failed(&self) {
        bump(&self.failed_checks);
    }

    /// A limit was reached.
    pub fn overflowed(&self, limit: Overflow) {
        bump(&self.overflows[limit as usize]);
    }

    /// A TLS handshake with an endpoint ended.
    pub fn handshake(&self, outcome: UpstreamHandshake) {
        bump(&self.handshakes[outcome.index()]);
    }

    /// TLS handshakes so far, by how they ended; nothing where there were none.
    pub(super) fn handshakes(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = || self.handshakes.iter().map(|count| count.load(Ordering::Relaxed));
        let any = counts().any(|count| count > 0);
        UpstreamHandshake::labels().zip(counts()).filter(move |_| any)
    }

    /// How often each limit was reached so far.
    pub(super) fn overflows(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Overflow::LABELS.into_iter().zip(self.overflows.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Endpoints left out so far.
    pub(super) fn ejections(&self) -> u64 {
        self.ejections.load(Ordering::Relaxed)
    }

    /// Health checks that went wrong so far.
    pub(super) fn failed_checks(&self) -> u64 {
        self.failed_checks.load(Ordering::Relaxed)
    }
}

/// The numbers of all upstreams.
#[derive(Debug, Default)]
pub(super) struct Upstreams(BTreeMap<Box<str>, Upstream>);

#[derive(Debug, Default)]
struct Upstream {
    together: Arc<ClusterMetrics>,
    /// What was counted of endpoints into which nobody counts any more.
    gone: UpstreamTotals,
    endpoints: Vec<(Box<str>, Arc<UpstreamCells>)>,
}

impl Upstreams {
    /// A handle with memory of its own for the endpoint at `address`.
    pub(super) fn endpoint(&mut self, upstream: &str, address: &str) -> EndpointMetrics {
        let of = self.0.entry(upstream.into()).or_default();
        of.settle();
        let cells = Arc::default();
        of.endpoints.push((address.into(), Arc::clone(&cells)));
        EndpointMetrics { cells }
    }

    /// What is counted of the upstream of this name by all workers together.
    pub(super) fn cluster(&mut self, upstream: &str) -> Arc<ClusterMetrics> {
        Arc::clone(&self.0.entry(upstream.into()).or_default().together)
    }

    /// The same of all upstreams.
    pub(super) fn clusters(&self) -> Vec<(Box<str>, Arc<ClusterMetrics>)> {
        self.0.iter().map(|(name, of)| (name.clone(), Arc::clone(&of.together))).collect()
    }

    /// All that was counted, by upstream.
    pub(super) fn totals(&mut self) -> Vec<(Box<str>, UpstreamTotals)> {
        let mut all = Vec::with_capacity(self.0.len());
        for (name, of) in &mut self.0 {
            of.settle();
            let mut totals = of.gone.clone();
            of.endpoints.iter().for_each(|(_, cells)| totals.add(cells));
            all.push((name.clone(), totals));
        }
        all
    }

    /// What was counted of the endpoints of one upstream, by address.
    pub(super) fn endpoints(&self, upstream: &str) -> BTreeMap<Box<str>, UpstreamTotals> {
        let mut totals: BTreeMap<Box<str>, UpstreamTotals> = BTreeMap::new();
        for (address, cells) in self.0.get(upstream).into_iter().flat_map(|of| &of.endpoints) {
            totals.entry(address.clone()).or_default().add(cells);
        }
        totals
    }
}

impl Upstream {
    /// Adds up what is not counted into any more: whoever has no handle cannot get one.
    fn settle(&mut self) {
        let Self { gone, endpoints, .. } = self;
        endpoints.retain_mut(|(_, cells)| {
            let is_used = Arc::get_mut(cells).is_none();
            if !is_used {
                gone.add(cells);
            }
            is_used
        });
    }
}

/// A worker's handle for one endpoint.
#[derive(Clone, Debug)]
pub struct EndpointMetrics {
    cells: Arc<UpstreamCells>,
}

impl EndpointMetrics {
    /// A connection stands.
    pub fn connection_opened(&self) {
        bump(&self.cells.opened);
    }

    /// A connection that stood ended.
    pub fn connection_closed(&self) {
        bump(&self.cells.closed);
    }

    /// A connection could not be established.
    pub fn connection_failed(&self) {
        bump(&self.cells.failed);
    }

    /// An attempt begins. Exactly one [`Self::request_ended`] must follow.
    pub fn request_started(&self) {
        bump(&self.cells.started);
    }

    /// An attempt ended.
    pub fn request_ended(&self, outcome: UpstreamOutcome) {
        let cells = &self.cells;
        bump(&cells.ended[outcome.index()]);
        if let UpstreamOutcome::Answered(status) = outcome {
            bump(&cells.answered[class_of(status)]);
        }
    }

    /// An attempt is not the request's first.
    pub fn retried(&self) {
        bump(&self.cells.retries);
    }

    /// An attempt was answered: the time from its start to the answer's head.
    pub fn answered_after(&self, duration: Duration) {
        self.cells.duration.record(duration);
    }
}
