//! Metrics of this process, and the handles that count them.
//!
//! Each worker counts in memory of its own (rules in one of several stripes), through handles created in advance. The
//! request path performs no look-up, lock or allocation. A scrape sums all counters and renders them under Weir's or
//! Envoy's names. No other module defines metric names.

mod alerts;
mod by_rule;
mod concurrency;
mod connection_setup;
mod countries;
mod deferred;
mod envoy;
mod exporter;
mod families;
mod fetches;
mod final_outcome;
mod process;
mod remote;
mod rls;
mod rule;
mod stated_costs;
mod store;
mod streams;
mod summary;
mod upstream;
mod waits;
mod worker;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use metrics::Counter;
use parking_lot::{Mutex, MutexGuard};

pub use self::alerts::AlertMetrics;
use self::countries::CountryCounts;
pub use self::countries::{CountryDecisions, CountryLabel};
pub use self::deferred::{AcceptOutcome, DeadReason, DeferredMetrics};
pub use self::envoy::{EnvoyStats, StatsFilter};
use self::exporter::PrometheusExporter;
pub use self::fetches::{FetchMetrics, FetchOutcome};
pub use self::final_outcome::FinalOutcome;
pub use self::process::resident_memory;
use self::remote::RemoteRegistry;
pub use self::remote::{RemoteMetrics, RemoteOutcome};
pub use self::rls::{DescriptorHits, NameOrigin, RlsStats, UnservedReason, sanitized};
use self::rule::RuleRegistry;
pub use self::rule::{DecisionCounts, DecisionOutcome, RuleMetrics};
use self::stated_costs::StatedCostRegistry;
pub use self::stated_costs::{StatedCostMetrics, StatedCostOutcome};
pub use self::store::{StoreMetrics, StoreOutcome, Unanswered};
use self::streams::StreamRegistry;
pub use self::streams::{StreamCounts, StreamMetrics, StreamOutcome};
pub use self::summary::{TrafficTotals, UpstreamTotals};
use self::upstream::UpstreamRegistry;
pub use self::upstream::{
    ClusterMetrics, ClusterView, ConcurrencyView, EndpointMetrics, HostView, UpstreamCounts, UpstreamOutcome,
    UpstreamOverflow,
};
use self::waits::WaitRegistry;
pub use self::waits::{WaitMetrics, WaitRejection, WaitingGuard};
pub use self::worker::{InProgressGuard, MAX_LISTENERS, WorkerMetrics};
use self::worker::{ListenerCounts, WorkerCounts};
use weir_limiter::adaptive::limits::AdaptiveState;
use weir_limiter::elastic::controller::Assessment;
use weir_limiter::feedback::states::FeedbackStatus;
use weir_limiter::timestamp::Timestamp;
use weir_net::tls::key_pair::CertificateValidity;
use weir_policy::engine::overrides::OverrideKind;

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
    pub start_time: Timestamp,
    /// Whether the process is live, as in Envoy's `server.live`; false if it was declared unhealthy or is draining.
    pub is_live: bool,
    /// Number of counters per rule.
    pub keys_per_rule: BTreeMap<Box<str>, u64>,
    /// Number of counters in the table.
    pub table_entries: usize,
    pub table_capacity: usize,
    /// Number of charges to overflow counters.
    pub table_overflows: u64,
    /// Requests whose stated limit did not apply for lack of room.
    pub dropped_limits: u64,
    /// Number of lost access log lines.
    pub access_log_dropped: u64,
    /// Statistics of the state file, if there is one.
    pub state_file: Option<StateFileSample>,
    /// State of elastic limits; `None` if there are none.
    pub elastic: Option<ElasticSample>,
    /// Adaptive concurrency limits.
    pub adaptive_limits: Vec<AdaptiveLimitSample>,
    /// Number of overrides of single keys in force, by kind.
    pub limit_overrides: [(OverrideKind, usize); OverrideKind::ALL.len()],
    /// What the provider has signalled for each rule that follows it.
    pub feedback: Vec<(Box<str>, FeedbackStatus)>,
    /// Limits shared with other instances.
    pub shared_limits: Vec<SharedLimitSample>,
    /// Certificates that are presented to clients or upstreams, by file.
    pub certificates: BTreeMap<Box<str>, CertificateValidity>,
    /// Upstreams and their endpoints.
    pub clusters: Vec<ClusterView>,
}

/// A rule's limit that is shared with other instances.
#[derive(Clone, Debug)]
pub struct SharedLimitSample {
    pub rule: Box<str>,
    /// Number of instances, as far as is known.
    pub instances: u32,
    /// Error bound: units that all instances together may admit beyond the limit.
    pub error_bound: f64,
}

/// The adaptive concurrency limit of a rule.
#[derive(Clone, Debug)]
pub struct AdaptiveLimitSample {
    pub rule: Box<str>,
    pub state: AdaptiveState,
}

/// State of elastic limits.
#[derive(Clone, Debug, Default)]
pub struct ElasticSample {
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
pub struct StateFileSample {
    /// Number of successful writes.
    pub saves: u64,
    /// Number of failed writes.
    pub failed_saves: u64,
    /// Time of the last successful write.
    pub last_saved: Option<Timestamp>,
    pub counters: u64,
    /// Size of the file, in bytes.
    pub bytes: u64,
}

/// Sums over all workers at one moment, from which every output is rendered.
struct MetricTotals<'a> {
    workers: usize,
    listener_names: Vec<Box<str>>,
    counts: WorkerCounts,
    upstreams: Vec<(Box<str>, UpstreamCounts)>,
    clusters: Vec<(Box<str>, Arc<ClusterMetrics>)>,
    rules: MutexGuard<'a, RuleRegistry>,
    waits: MutexGuard<'a, WaitRegistry>,
    stated_costs: MutexGuard<'a, StatedCostRegistry>,
    streams: MutexGuard<'a, StreamRegistry>,
}

impl MetricTotals<'_> {
    fn listeners(&self) -> impl Iterator<Item = (&str, &ListenerCounts)> {
        let named = self.listener_names.iter().enumerate();
        named.filter_map(|(position, name)| Some((&**name, self.counts.listeners.at(position)?)))
    }
}

/// All metrics of the process.
#[derive(Debug)]
pub struct Metrics {
    listeners: Mutex<Vec<Box<str>>>,
    workers: Mutex<Vec<Arc<WorkerCounts>>>,
    rules: Mutex<RuleRegistry>,
    waits: Mutex<WaitRegistry>,
    stated_costs: Mutex<StatedCostRegistry>,
    streams: Mutex<StreamRegistry>,
    upstreams: Mutex<UpstreamRegistry>,
    rls: OnceLock<Arc<RlsStats>>,
    remotes: Mutex<RemoteRegistry>,
    exporter: PrometheusExporter,
}

impl Metrics {
    /// Creates the metrics of a process with these listeners. Values of all other labels are registered when they
    /// become known.
    pub fn new(listeners: &[&str]) -> Arc<Self> {
        Arc::new(Self {
            listeners: Mutex::new(listeners.iter().map(|name| Box::from(*name)).collect()),
            workers: Mutex::default(),
            rules: Mutex::default(),
            waits: Mutex::default(),
            stated_costs: Mutex::default(),
            streams: Mutex::default(),
            upstreams: Mutex::default(),
            rls: OnceLock::new(),
            remotes: Mutex::default(),
            exporter: PrometheusExporter::new(),
        })
    }

    /// Returns the position of the listener with this name, which stays the same; `None` if there have been
    /// [`MAX_LISTENERS`] others.
    pub fn listener(&self, name: &str) -> Option<usize> {
        let mut names = self.listeners.lock();
        let known = names.iter().position(|known| **known == *name);
        known.or_else(|| {
            let position = names.len();
            (position < MAX_LISTENERS).then(|| names.push(name.into()))?;
            Some(position)
        })
    }

    /// Returns the names of all listeners so far, by position.
    pub fn listener_names(&self) -> Box<[Box<str>]> {
        self.listeners.lock().clone().into()
    }

    /// Returns a handle with its own memory, for one worker thread. Its counts remain after the worker has ended.
    pub fn worker(&self) -> WorkerMetrics {
        let counts = Arc::new(WorkerCounts::default());
        self.workers.lock().push(Arc::clone(&counts));
        WorkerMetrics::new(counts)
    }

    /// Returns the counters of a rule; they continue across reloads. Takes a lock, so call it at configuration time.
    pub fn rule(&self, name: &str) -> RuleMetrics {
        self.rules.lock().get_or_insert(name)
    }

    /// Returns the metrics of a rule's queues, which all workers share; they continue across reloads.
    pub fn wait(&self, rule: &str) -> Arc<WaitMetrics> {
        self.waits.lock().get_or_insert(rule)
    }

    /// Returns the metrics of the costs that responses state under a rule, which all workers share; they continue across reloads.
    pub fn stated_cost(&self, rule: &str) -> Arc<StatedCostMetrics> {
        self.stated_costs.lock().get_or_insert(rule)
    }

    /// Returns the units that responses were charged under a rule so far; `None` if they do not state its cost.
    pub fn stated_cost_units(&self, rule: &str) -> Option<u64> {
        self.stated_costs.lock().get(rule).map(|metrics| metrics.units())
    }

    /// Returns the metrics of a rule's limits inside streams, which all workers share; they continue across reloads.
    pub fn streams(&self, rule: &str) -> Arc<StreamMetrics> {
        self.streams.lock().get_or_insert(rule)
    }

    /// Returns what the limits inside streams of a rule have done so far.
    pub fn stream_counts(&self, rule: &str) -> Vec<StreamCounts> {
        self.streams.lock().get(rule).map_or_else(Vec::new, |metrics| metrics.counts())
    }

    /// Returns the counts of a rule so far; zeros if it was never registered.
    pub fn decisions(&self, rule: &str) -> DecisionCounts {
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
    pub fn upstream_totals(&self) -> UpstreamCounts {
        let mut all = UpstreamCounts::default();
        self.upstreams.lock().totals().iter().for_each(|(_, counts)| all.merge(counts));
        all
    }

    /// Returns the counts of the endpoints of one upstream, by address.
    pub fn endpoint_counts(&self, upstream: &str) -> BTreeMap<Box<str>, UpstreamCounts> {
        self.upstreams.lock().endpoints(upstream)
    }

    /// Records that the first configuration is in effect.
    pub fn record_initial_config(&self, generation: u64, now: Timestamp) {
        self.exporter.reload_successful.set(1.0);
        self.exporter.reload_success_time.set(now.as_secs_f64());
        self.exporter.generation.set(generation as f64);
    }

    /// Records a reload; `generation` is the one in effect afterwards.
    pub fn record_config_reload(&self, outcome: ReloadOutcome, generation: u64, now: Timestamp) {
        self.exporter.reloads[outcome as usize].increment(1);
        match outcome {
            ReloadOutcome::Applied | ReloadOutcome::Unchanged => self.record_initial_config(generation, now),
            ReloadOutcome::Rejected => self.exporter.reload_successful.set(0.0),
        }
    }

    /// Returns the counts of every rule so far, by name.
    pub fn all_decisions(&self) -> Vec<(Box<str>, DecisionCounts)> {
        self.rules.lock().decisions()
    }

    /// Returns the decided requests of each country so far; only countries with requests.
    pub fn country_decisions(&self) -> Vec<(CountryLabel, CountryDecisions)> {
        let mut countries = CountryCounts::default();
        self.workers.lock().iter().for_each(|worker| countries.merge(&worker.countries));
        countries.iter().collect()
    }

    /// Returns the metrics of the alerts with these names, and includes them in the output from now on.
    pub fn alerts(&self, names: impl IntoIterator<Item = &'static str>) -> AlertMetrics {
        self.exporter.alerts(names)
    }

    /// Returns the counters of spans.
    pub fn spans(&self) -> SpanMetrics {
        self.exporter.spans.clone()
    }

    /// Returns the metrics of the store of shared limits, and includes them in the output from now on.
    pub fn store(&self) -> StoreMetrics {
        self.exporter.store()
    }

    /// Returns the metrics of the deferred calls of a rule, and includes them in the output from now on. They continue
    /// across reloads.
    pub fn deferred(&self, rule: &str) -> DeferredMetrics {
        self.exporter.deferred(rule)
    }

    /// Returns the metrics of fetching the configuration, and includes them in the output from now on.
    pub fn fetches(&self) -> FetchMetrics {
        self.exporter.fetches()
    }

    /// Returns the statistics of Envoy's rate limit service, and includes them in the output from now on.
    pub fn rls_stats(&self) -> Arc<RlsStats> {
        Arc::clone(self.rls.get_or_init(Arc::default))
    }

    /// Returns the metrics of the rate limit service at `address`, which all workers share; they continue
    /// across reloads.
    pub fn remote(&self, address: &str) -> Arc<RemoteMetrics> {
        Arc::clone(self.remotes.lock().entry(address.into()).or_default())
    }

    /// Renders all metrics in Prometheus' text format under Weir's names. Statistics of the rate limit service have the
    /// names of envoyproxy/ratelimit.
    pub fn render(&self, scrape: &Scrape) -> String {
        let mut text = self.exporter.render(&self.totals(), &self.remotes.lock(), scrape);
        if let Some(rls) = self.rls.get() {
            text.push_str(&rls.render());
        }
        text
    }

    /// Returns the metrics under Envoy's names, as far as Envoy has them.
    pub fn envoy_stats(&self, scrape: &Scrape, filter: &StatsFilter) -> EnvoyStats {
        envoy::all_stats(&self.totals(), scrape, filter)
    }

    fn totals(&self) -> MetricTotals<'_> {
        let workers = self.workers.lock();
        let mut counts = WorkerCounts::default();
        workers.iter().for_each(|worker| counts.merge(worker));
        let mut upstreams = self.upstreams.lock();
        let (upstream_totals, clusters) = (upstreams.totals(), upstreams.clusters());
        MetricTotals {
            workers: workers.len(),
            listener_names: self.listeners.lock().clone(),
            counts,
            upstreams: upstream_totals,
            clusters,
            rules: self.rules.lock(),
            waits: self.waits.lock(),
            stated_costs: self.stated_costs.lock(),
            streams: self.streams.lock(),
        }
    }
}

#[cfg(test)]
mod tests;
