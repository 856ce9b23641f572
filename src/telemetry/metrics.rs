//! Numbers: every metric this process has, and the handles that count them.
//!
//! Counting is done in memory that belongs to one worker (or, for rules, to one of several stripes), through
//! handles that were made beforehand: on the request path nothing is looked up, locked or allocated. A scrape
//! adds everything up and renders it under Weir's names or Envoy's. No other module names a metric.

mod arrival;
mod envoy;
mod exporter;
mod families;
mod fetches;
mod process;
mod rate_limits;
mod remote;
mod rule;
mod store;
mod upstream;
mod worker;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use metrics::Counter;
use parking_lot::Mutex;

pub use self::arrival::Preamble;
pub use self::envoy::{Stats, StatsFilter};
use self::exporter::Exporter;
pub use self::fetches::{FetchMetrics, FetchOutcome};
pub use self::process::resident_memory;
pub use self::rate_limits::{Hits, Origin, RateLimits, sanitized};
use self::remote::Remotes;
pub use self::remote::{RemoteMetrics, RemoteOutcome};
use self::rule::Rules;
pub use self::rule::{DecisionOutcome, Decisions, RuleMetrics};
pub use self::store::{StoreMetrics, StoreOutcome};
use self::upstream::Upstreams;
pub use self::upstream::{
    ClusterMetrics, ClusterView, EndpointMetrics, HostView, Overflow, UpstreamCounts, UpstreamOutcome,
};
use self::worker::{ListenerCounts, WorkerCounts};
pub use self::worker::{Span, WorkerMetrics};
use crate::limiter::elastic::controller::Assessment;
use crate::limiter::timestamp::Timestamp;

/// This build's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How reading the configuration again ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadOutcome {
    /// It changed and is in effect.
    Applied,
    /// It is valid and says what it said before.
    Unchanged,
    /// It is not valid; the running one stays.
    Rejected,
}

impl ReloadOutcome {
    /// Every outcome, in the order of their declaration.
    pub const ALL: [Self; 3] = [Self::Applied, Self::Unchanged, Self::Rejected];

    /// The label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Unchanged => "unchanged",
            Self::Rejected => "rejected",
        }
    }
}

/// What only others know, at the moment of a scrape.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// Now.
    pub now: Timestamp,
    /// When the process started.
    pub started: Timestamp,
    /// Whether it is ready, as Envoy's `server.live` has it; else readiness fails: declared unhealthy, or on the way out.
    pub is_live: bool,
    /// Counters in use, by rule.
    pub keys: BTreeMap<Box<str>, u64>,
    /// Places of the counter table that are taken.
    pub entries: usize,
    /// Places it has.
    pub capacity: usize,
    /// Charges that went to an overflow counter.
    pub overflows: u64,
    /// Access log lines lost.
    pub access_log_dropped: u64,
    /// What was written to the state file, if there is one.
    pub saves: Option<Saves>,
    /// How far limits stretch; `None` while none is elastic.
    pub elastic: Option<Elastic>,
    /// Limits that instances share.
    pub shared_limits: Vec<SharedLimit>,
    /// Certificates that listeners show, each by its file, and its last second since 1970.
    pub certificates: BTreeMap<Box<str>, u64>,
    /// Where upstreams are.
    pub clusters: Vec<ClusterView>,
}

/// The limit of a rule that instances share.
#[derive(Clone, Debug)]
pub struct SharedLimit {
    /// The rule.
    pub rule: Box<str>,
    /// How many instances there are, as far as is known.
    pub instances: u32,
    /// Units that they may admit beyond the limit.
    pub error_bound: f64,
}

/// Elastic limits at one moment.
#[derive(Clone, Debug, Default)]
pub struct Elastic {
    /// What the controller thinks.
    pub assessment: Assessment,
    /// How many times the written limit each elastic rule allows, by name.
    pub factors: Vec<(Box<str>, f64)>,
}

/// What became of spans.
#[derive(Clone, Debug)]
pub struct SpanMetrics {
    /// Accepted by the collector.
    pub exported: Counter,
    /// Lost: the queue was full, or the collector did not accept them.
    pub dropped: Counter,
}

/// What was written to the state file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saves {
    /// Times it was.
    pub saved: u64,
    /// Times it could not be.
    pub failed: u64,
    /// When it was last.
    pub last: Option<Timestamp>,
    /// Counters in it.
    pub counters: u64,
    /// Its size.
    pub bytes: u64,
}

/// The sums over all workers at one moment, from which every output is made.
struct Totals<'a> {
    workers: usize,
    /// The names of the listeners.
    names: &'a [Box<str>],
    counts: WorkerCounts,
    upstreams: Vec<(Box<str>, UpstreamCounts)>,
    clusters: Vec<(Box<str>, Arc<ClusterMetrics>)>,
    rules: Vec<(Box<str>, Decisions)>,
}

impl Totals<'_> {
    fn listeners(&self) -> impl Iterator<Item = (&str, &ListenerCounts)> {
        self.names.iter().map(|name| &**name).zip(&self.counts.listeners)
    }
}

/// All numbers of the process.
#[derive(Debug)]
pub struct Metrics {
    listeners: Box<[Box<str>]>,
    workers: Mutex<Vec<Arc<WorkerCounts>>>,
    rules: Mutex<Rules>,
    upstreams: Mutex<Upstreams>,
    rate_limits: OnceLock<Arc<RateLimits>>,
    remotes: Mutex<Remotes>,
    exporter: Exporter,
}

impl Metrics {
    /// Metrics of a process with these listeners, by name. Everything else that is a label is registered
    /// when it is known.
    pub fn new(listeners: &[&str]) -> Arc<Self> {
        Arc::new(Self {
            listeners: listeners.iter().map(|name| Box::from(*name)).collect(),
            workers: Mutex::default(),
            rules: Mutex::default(),
            upstreams: Mutex::default(),
            rate_limits: OnceLock::new(),
            remotes: Mutex::default(),
            exporter: Exporter::new(),
        })
    }

    /// A handle with memory of its own, for one worker thread and everything on it. What it counted stays
    /// counted when the worker is gone.
    pub fn worker(&self) -> WorkerMetrics {
        let counts = Arc::new(WorkerCounts::new(self.listeners.len()));
        self.workers.lock().push(Arc::clone(&counts));
        WorkerMetrics { counts }
    }

    /// The counters of the rule of this name, which go on where an earlier configuration's left off. Takes a
    /// lock: for when a configuration is compiled.
    pub fn rule(&self, name: &str) -> RuleMetrics {
        self.rules.lock().get_or_add(name)
    }

    /// What the rule of this name did so far; zeros if it was never registered.
    pub fn decisions(&self, rule: &str) -> Decisions {
        self.rules.lock().get(rule).map(RuleMetrics::decisions).unwrap_or_default()
    }

    /// A handle with memory of its own, for one worker and the endpoint at `address` of the upstream of this name.
    /// Takes a lock: for when an endpoint becomes known.
    pub fn endpoint(&self, upstream: &str, address: &str) -> EndpointMetrics {
        self.upstreams.lock().endpoint(upstream, address)
    }

    /// What is counted of the upstream of this name by all workers together; goes on where an earlier configuration's
    /// left off.
    pub fn cluster(&self, upstream: &str) -> Arc<ClusterMetrics> {
        self.upstreams.lock().cluster(upstream)
    }

    /// What all upstreams together did so far.
    pub fn upstreams(&self) -> UpstreamCounts {
        let mut all = UpstreamCounts::default();
        self.upstreams.lock().totals().iter().for_each(|(_, counts)| all.absorb(counts));
        all
    }

    /// What the endpoints of one upstream did so far, by address.
    pub fn endpoints(&self, upstream: &str) -> BTreeMap<Box<str>, UpstreamCounts> {
        self.upstreams.lock().endpoints(upstream)
    }

    /// The first configuration is in effect.
    pub fn config_started(&self, generation: u64, now: Timestamp) {
        self.exporter.successful.set(1.0);
        self.exporter.success_time.set(now.as_secs_f64());
        self.exporter.generation.set(generation as f64);
    }

    /// The configuration was read again; `generation` is the one in effect afterwards.
    pub fn config_reload(&self, outcome: ReloadOutcome, generation: u64, now: Timestamp) {
        self.exporter.reloads[outcome as usize].increment(1);
        match outcome {
            ReloadOutcome::Applied | ReloadOutcome::Unchanged => self.config_started(generation, now),
            ReloadOutcome::Rejected => self.exporter.successful.set(0.0),
        }
    }

    /// Whether the configuration in force has changes that wait for a restart.
    pub fn config_restart_pending(&self, is_pending: bool) {
        self.exporter.restart_pending.set(f64::from(u8::from(is_pending)));
    }

    /// The counters of spans.
    pub fn spans(&self) -> SpanMetrics {
        self.exporter.spans.clone()
    }

    /// The numbers of the store of shared limits, which are shown from now on.
    pub fn store(&self) -> StoreMetrics {
        self.exporter.store()
    }

    /// The numbers of a configuration over HTTP, which are shown from now on.
    pub fn fetches(&self) -> FetchMetrics {
        self.exporter.fetches()
    }

    /// The statistics of Envoy's rate limit service, which are shown from now on.
    pub fn rate_limits(&self) -> Arc<RateLimits> {
        Arc::clone(self.rate_limits.get_or_init(Arc::default))
    }

    /// What is counted of the rate limit service at `place` by all workers together; goes on where an earlier
    /// configuration's left off.
    pub fn remote(&self, place: &str) -> Arc<RemoteMetrics> {
        Arc::clone(self.remotes.lock().entry(place.into()).or_default())
    }

    /// Everything in Prometheus' text format, under Weir's names; what the rate limit service counts under those of
    /// envoyproxy/ratelimit.
    pub fn render(&self, scrape: &Scrape) -> String {
        let mut text = self.exporter.render(&self.totals(), &self.remotes.lock(), scrape);
        if let Some(rate_limits) = self.rate_limits.get() {
            text.push_str(&rate_limits.render());
        }
        text
    }

    /// The same numbers under Envoy's names, as far as Envoy has one.
    pub fn stats(&self, scrape: &Scrape, filter: &StatsFilter) -> Stats {
        envoy::stats(&self.totals(), scrape, filter)
    }

    fn totals(&self) -> Totals<'_> {
        let rules = self.rules.lock().decisions();
        let workers = self.workers.lock();
        let mut counts = WorkerCounts::new(self.listeners.len());
        workers.iter().for_each(|worker| counts.absorb(worker));
        let mut upstreams = self.upstreams.lock();
        let (of_upstreams, clusters) = (upstreams.totals(), upstreams.clusters());
        let names = &self.listeners;
        Totals { workers: workers.len(), names, counts, upstreams: of_upstreams, clusters, rules }
    }
}

#[cfg(test)]
mod tests;
