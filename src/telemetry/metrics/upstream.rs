//! What is counted of upstreams: by each worker for each endpoint, in memory that no other worker writes.
//!
//! An upstream's numbers are the sums over its endpoints, so that counting for both costs a request no more than
//! counting for one. What was counted of an endpoint that is gone stays with its upstream.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::super::count::{self, Count, absorb_all};
use super::super::histogram::Histogram;
use super::arrival::{handshake_index, handshake_labels};
use super::worker::{CLASSES, class_of};
use crate::tls::SessionStart;
use crate::tls::client::Reason;

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

/// The counts of an endpoint by one worker, or of an upstream by all. Alignment keeps workers off each other's cache
/// lines, which come in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct UpstreamCounts {
    /// Attempts begun.
    pub started: Count,
    pub(super) ended: [Count; UpstreamOutcome::LABELS.len()],
    pub(super) answered: [Count; CLASSES.len()],
    pub(super) retries: Count,
    /// Connections established.
    pub opened: Count,
    pub(super) closed: Count,
    /// Connections that could not be.
    pub failed: Count,
    pub(super) duration: Histogram,
}

impl UpstreamCounts {
    /// Attempts waiting for an answer.
    pub fn in_flight(&self) -> u64 {
        self.started.get().saturating_sub(count::sum(&self.ended))
    }

    /// Connections open.
    pub fn connections(&self) -> u64 {
        self.opened.get().saturating_sub(self.closed.get())
    }

    /// Attempts answered with anything but a 5xx.
    pub fn successes(&self) -> u64 {
        count::sum(&self.answered[..CLASSES.len() - 1])
    }

    /// Attempts that failed: a 5xx or no answer, the client's own leaving apart.
    pub fn failures(&self) -> u64 {
        let ours = self.ended_as("abandoned").saturating_add(self.ended_as("overflowed"));
        count::sum(&self.ended).saturating_sub(self.successes().saturating_add(ours))
    }

    /// Attempts that ended so, by the label value of the outcome.
    pub fn ended_as(&self, label: &str) -> u64 {
        let position = UpstreamOutcome::LABELS.iter().position(|known| *known == label);
        position.map_or(0, |position| self.ended[position].get())
    }

    /// Adds other counts, the ends before the beginnings.
    pub(super) fn absorb(&mut self, other: &Self) {
        self.duration.absorb(&other.duration);
        absorb_all(&mut self.ended, &other.ended);
        absorb_all(&mut self.answered, &other.answered);
        self.retries.absorb(&other.retries);
        self.closed.absorb(&other.closed);
        self.failed.absorb(&other.failed);
        self.started.absorb(&other.started);
        self.opened.absorb(&other.opened);
    }
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
    pub(super) ejections: Count,
    pub(super) failed_checks: Count,
    overflows: [Count; Overflow::LABELS.len()],
    handshakes: [Count; 2 + Reason::ALL.len()],
}

impl ClusterMetrics {
    /// An endpoint is left out for a while.
    pub fn ejected(&self) {
        self.ejections.increment();
    }

    /// A health check went wrong.
    pub fn check_failed(&self) {
        self.failed_checks.increment();
    }

    /// A limit was reached.
    pub fn overflowed(&self, limit: Overflow) {
        self.overflows[limit as usize].increment();
    }

    /// A TLS handshake with an endpoint ended.
    pub fn handshake(&self, outcome: Result<SessionStart, Reason>) {
        self.handshakes[handshake_index(outcome.map_err(|reason| reason as usize))].increment();
    }

    /// TLS handshakes so far, by how they ended; nothing where there were none.
    pub(super) fn handshakes(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let any = count::sum(&self.handshakes) > 0;
        handshake_labels(Reason::ALL.map(Reason::as_str))
            .zip(self.handshakes.iter().map(Count::get))
            .filter(move |_| any)
    }

    /// How often each limit was reached so far.
    pub(super) fn overflows(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Overflow::LABELS.into_iter().zip(self.overflows.iter().map(Count::get))
    }
}

/// The numbers of all upstreams.
#[derive(Debug, Default)]
pub(super) struct Upstreams(BTreeMap<Box<str>, Upstream>);

#[derive(Debug, Default)]
struct Upstream {
    together: Arc<ClusterMetrics>,
    /// What was counted of endpoints into which nobody counts any more.
    gone: UpstreamCounts,
    endpoints: Vec<(Box<str>, Arc<UpstreamCounts>)>,
}

impl Upstreams {
    /// A handle with memory of its own for the endpoint at `address`.
    pub(super) fn endpoint(&mut self, upstream: &str, address: &str) -> EndpointMetrics {
        let of = self.0.entry(upstream.into()).or_default();
        of.settle();
        let counts = Arc::default();
        of.endpoints.push((address.into(), Arc::clone(&counts)));
        EndpointMetrics { counts }
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
    pub(super) fn totals(&mut self) -> Vec<(Box<str>, UpstreamCounts)> {
        let mut all = Vec::with_capacity(self.0.len());
        for (name, of) in &mut self.0 {
            of.settle();
            let mut totals = UpstreamCounts::default();
            let endpoints = of.endpoints.iter().map(|(_, counts)| &**counts);
            endpoints.chain([&of.gone]).for_each(|counts| totals.absorb(counts));
            all.push((name.clone(), totals));
        }
        all
    }

    /// What was counted of the endpoints of one upstream, by address.
    pub(super) fn endpoints(&self, upstream: &str) -> BTreeMap<Box<str>, UpstreamCounts> {
        let mut totals: BTreeMap<Box<str>, UpstreamCounts> = BTreeMap::new();
        for (address, counts) in self.0.get(upstream).into_iter().flat_map(|of| &of.endpoints) {
            totals.entry(address.clone()).or_default().absorb(counts);
        }
        totals
    }
}

impl Upstream {
    /// Adds up what is not counted into any more: whoever has no handle cannot get one.
    fn settle(&mut self) {
        let Self { gone, endpoints, .. } = self;
        endpoints.retain_mut(|(_, counts)| {
            let is_used = Arc::get_mut(counts).is_none();
            if !is_used {
                gone.absorb(counts);
            }
            is_used
        });
    }
}

/// A worker's handle for one endpoint.
#[derive(Clone, Debug)]
pub struct EndpointMetrics {
    counts: Arc<UpstreamCounts>,
}

impl EndpointMetrics {
    /// A connection stands.
    pub fn connection_opened(&self) {
        self.counts.opened.increment();
    }

    /// A connection that stood ended.
    pub fn connection_closed(&self) {
        self.counts.closed.increment();
    }

    /// A connection could not be established.
    pub fn connection_failed(&self) {
        self.counts.failed.increment();
    }

    /// An attempt begins. Exactly one [`Self::request_ended`] must follow.
    pub fn request_started(&self) {
        self.counts.started.increment();
    }

    /// An attempt ended.
    pub fn request_ended(&self, outcome: UpstreamOutcome) {
        let counts = &self.counts;
        counts.ended[outcome.index()].increment();
        if let UpstreamOutcome::Answered(status) = outcome {
            counts.answered[class_of(status)].increment();
        }
    }

    /// An attempt is not the request's first.
    pub fn retried(&self) {
        self.counts.retries.increment();
    }

    /// An attempt was answered: the time from its start to the answer's head.
    pub fn answered_after(&self, duration: Duration) {
        self.counts.duration.record(duration);
    }
}
