//! Metrics of this process, and the handles that count them.
//!
//! Each worker counts in memory of its own (rules in one of several stripes), through handles created in advance. The
//! request path performs no look-up, lock or allocation. A scrape sums all counters and renders them under Weir's or
//! Envoy's names. No other module defines metric names.

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

/// Version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Result of reloading the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadOutcome {
    /// It changed and is in effect.
    Applied,
    /// It is valid and unchanged.
    Unchanged,
    /// It is invalid; the last good configuration stays in effect.
    Rejected,
}

impl ReloadOutcome {
    /// All outcomes, in order of declaration.
    pub const ALL: [Self; 3] = [Self::Applied, Self::Unchanged, Self::Rejected];

    /// Returns the label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Unchanged => "unchanged",
            Self::Rejected => "rejected",
        }
    }
}

/// Values of other components at the moment of a scrape.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// Current time.
    pub now: Timestamp,
    /// Start time of the process.
    pub started: Timestamp,
    /// Whether the process is live, as in Envoy's `server.live`; false if it was declared unhealthy or is draining.
    pub is_live: bool,
    /// Number of counters per rule.
    pub keys: BTreeMap<Box<str>, u64>,
    /// Number of counters in the table.
    pub entries: usize,
    /// Capacity of the table.
    pub capacity: usize,
    /// Number of charges to overflow counters.
    pub overflows: u64,
    /// Number of lost access log lines.
    pub access_log_dropped: u64,
    /// Statistics of the state file, if there is one.
    pub saves: Option<Saves>,
    /// State of elastic limits; `None` if there are none.
    pub elastic: Option<Elastic>,
    /// Limits shared with other instances.
    pub shared_limits: Vec<SharedLimit>,
    /// Certificates of the listeners, by file, with their expiry in seconds since 1970.
    pub certificates: BTreeMap<Box<str>, u64>,
    /// Upstreams and their endpoints.
    pub clusters: Vec<ClusterView>,
}

/// A rule's limit that is shared with other instances.
#[derive(Clone, Debug)]
pub struct SharedLimit {
    /// Name of the rule.
    pub rule: Box<str>,
    /// Number of instances, as far as is known.
    pub instances: u32,
    /// Error bound: units that all instances together may admit beyond the limit.
    pub error_bound: f64,
}

/// State of elastic limits.
#[derive(Clone, Debug, Default)]
pub struct Elastic {
    /// Assessment by the controller.
    pub assessment: Assessment,
    /// Name of each elastic rule, with the current multiple of its configured limit.
    pub factors: Vec<(Box<str>, f64)>,
}

/// Counters of spans.
#[derive(Clone, Debug)]
pub struct SpanMetrics {
    /// Spans that the collector accepted.
    pub exported: Counter,
    /// Spans lost because the queue was full or the collector did not accept them.
    pub dropped: Counter,
}

/// Statistics of the state file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saves {
    /// Number of successful writes.
    pub saved: u64,
    /// Number of failed writes.
    pub failed: u64,
    /// Time of the last successful write.
    pub last: Option<Timestamp>,
    /// Number of counters in the file.
    pub counters: u64,
    /// Size of the file, in bytes.
    pub bytes: u64,
}

/// Sums over all workers at one moment, from which every output is rendered.
struct Totals<'a> {
    workers: usize,
    /// Names of the listeners.
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

/// All metrics of the process.
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
    /// Creates the metrics of a process with these listeners. Values of all other labels are registered when they
    /// become known.
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

    /// Returns a handle with its own memory, for one worker thread. Its counts remain after the worker has ended.
    pub fn worker(&self) -> WorkerMetrics {
        let counts = Arc::new(WorkerCounts::new(self.listeners.len()));
        self.workers.lock().push(Arc::clone(&counts));
        WorkerMetrics { counts }
    }

    /// Returns the counters of a rule; they continue across reloads. Takes a lock, so call it at configuration time.
    pub fn rule(&self, name: &str) -> RuleMetrics {
        self.rules.lock().get_or_add(name)
    }

    /// Returns the counts of a rule so far; zeros if it was never registered.
    pub fn decisions(&self, rule: &str) -> Decisions {
        self.rules.lock().get(rule).map(RuleMetrics::decisions).unwrap_or_default()
    }

    /// Returns a handle with its own memory, for one worker and one endpoint of an upstream. Takes a lock, so call it
    /// when an endpoint becomes known.
    pub fn endpoint(&self, upstream: &str, address: &str) -> EndpointMetrics {
        self.upstreams.lock().endpoint(upstream, address)
    }

    /// Returns the counters of an upstream that all workers share; they continue across reloads.
    pub fn cluster(&self, upstream: &str) -> Arc<ClusterMetrics> {
        self.upstreams.lock().cluster(upstream)
    }

    /// Returns the sum of the counts of all upstreams.
    pub fn upstreams(&self) -> UpstreamCounts {
        let mut all = UpstreamCounts::default();
        self.upstreams.lock().totals().iter().for_each(|(_, counts)| all.absorb(counts));
        all
    }

    /// Returns the counts of the endpoints of one upstream, by address.
    pub fn endpoints(&self, upstream: &str) -> BTreeMap<Box<str>, UpstreamCounts> {
        self.upstreams.lock().endpoints(upstream)
    }

    /// Records that the first configuration is in effect.
    pub fn config_started(&self, generation: u64, now: Timestamp) {
        self.exporter.successful.set(1.0);
        self.exporter.success_time.set(now.as_secs_f64());
        self.exporter.generation.set(generation as f64);
    }

    /// Records a reload; `generation` is the one in effect afterwards.
    pub fn config_reload(&self, outcome: ReloadOutcome, generation: u64, now: Timestamp) {
        self.exporter.reloads[outcome as usize].increment(1);
        match outcome {
            ReloadOutcome::Applied | ReloadOutcome::Unchanged => self.config_started(generation, now),
            ReloadOutcome::Rejected => self.exporter.successful.set(0.0),
        }
    }

    /// Sets whether the configuration in effect has changes that require a restart.
    pub fn config_restart_pending(&self, is_pending: bool) {
        self.exporter.restart_pending.set(f64::from(u8::from(is_pending)));
    }

    /// Returns the counters of spans.
    pub fn spans(&self) -> SpanMetrics {
        self.exporter.spans.clone()
    }

    /// Returns the metrics of the store of shared limits, and includes them in the output from now on.
    pub fn store(&self) -> StoreMetrics {
        self.exporter.store()
    }

    /// Returns the metrics of fetching the configuration, and includes them in the output from now on.
    pub fn fetches(&self) -> FetchMetrics {
        self.exporter.fetches()
    }

    /// Returns the statistics of Envoy's rate limit service, and includes them in the output from now on.
    pub fn rate_limits(&self) -> Arc<RateLimits> {
        Arc::clone(self.rate_limits.get_or_init(Arc::default))
    }

    /// Returns the metrics of the rate limit service at `place`, which all workers share; they continue across reloads.
    pub fn remote(&self, place: &str) -> Arc<RemoteMetrics> {
        Arc::clone(self.remotes.lock().entry(place.into()).or_default())
    }

    /// Renders all metrics in Prometheus' text format under Weir's names. Statistics of the rate limit service have the
    /// names of envoyproxy/ratelimit.
    pub fn render(&self, scrape: &Scrape) -> String {
        let mut text = self.exporter.render(&self.totals(), &self.remotes.lock(), scrape);
        if let Some(rate_limits) = self.rate_limits.get() {
            text.push_str(&rate_limits.render());
        }
        text
    }

    /// Returns the metrics under Envoy's names, as far as Envoy has them.
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
