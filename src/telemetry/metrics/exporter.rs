//! Exporter of all metrics in Prometheus' text format, under Weir's names.
//!
//! It uses two registries of `metrics-exporter-prometheus`. One lives as long as the process and holds metrics counted
//! off the request path. The other is created for each scrape and filled with the sums over all workers, so no series
//! outlives its subject. Neither is installed globally, so no metric can bypass this module.
//!
//! Some metrics are rendered by hand: histograms (the recorder's store every sample until the next scrape), CPU time
//! (the recorder's counters are integers) and the statistics of the rate limit service (up to 110 000 names).

use std::fmt::Write;

use metrics::{Counter, Gauge, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};

use super::super::count::{self, Count};
use super::super::histogram::Histogram;
use super::super::panics;
use super::arrival::{LOAD_SHED, Preamble, handshake_labels};
use super::families::{self, Family};
use super::fetches::FetchMetrics;
use super::process::Process;
use super::remote::{self, Remotes};
use super::store::StoreMetrics;
use super::upstream::{UpstreamCounts, UpstreamOutcome};
use super::worker::{CLASSES, ListenerCounts};
use super::{Elastic, ReloadOutcome, Saves, Scrape, SharedLimit, SpanMetrics, Totals};
use crate::tls::server::ServerHandshakeError;

/// Required by the recorder's interface. The level has no effect here.
static METADATA: Metadata<'static> = Metadata::new("weir", Level::INFO, None);

type Labels<'a> = &'a [(&'static str, &'a str)];

/// Handles of the metrics that are counted off the request path.
#[derive(Debug)]
pub(super) struct Exporter {
    registry: Registry,
    pub(super) reloads: [Counter; ReloadOutcome::ALL.len()],
    pub(super) successful: Gauge,
    pub(super) success_time: Gauge,
    pub(super) generation: Gauge,
    pub(super) restart_pending: Gauge,
    pub(super) spans: SpanMetrics,
}

impl Exporter {
    pub(super) fn new() -> Self {
        let registry = Registry::new();
        registry.gauge(&families::BUILD_INFO, &[("version", super::VERSION)]).set(1.0);
        let outcome = |outcome: ReloadOutcome| {
            registry.counter(&families::CONFIG_RELOADS, &[("outcome", outcome.as_str())])
        };
        Self {
            reloads: ReloadOutcome::ALL.map(outcome),
            successful: registry.gauge(&families::CONFIG_SUCCESSFUL, &[]),
            success_time: registry.gauge(&families::CONFIG_SUCCESS_TIME, &[]),
            generation: registry.gauge(&families::CONFIG_GENERATION, &[]),
            restart_pending: registry.gauge(&families::CONFIG_RESTART_PENDING, &[]),
            spans: SpanMetrics {
                exported: registry.counter(&families::SPANS_EXPORTED, &[]),
                dropped: registry.counter(&families::SPANS_DROPPED, &[]),
            },
            registry,
        }
    }

    /// Returns the metrics of the store, and includes them in the output from now on.
    pub(super) fn store(&self) -> StoreMetrics {
        let gauge = |family: &Family| self.registry.gauge(family, &[]);
        StoreMetrics::new(gauge, |family, labels| self.registry.counter(family, labels))
    }

    /// Returns the metrics of fetching the configuration, and includes them in the output from now on.
    pub(super) fn fetches(&self) -> FetchMetrics {
        let gauge = |family: &Family| self.registry.gauge(family, &[]);
        FetchMetrics::new(gauge, |family, labels| self.registry.counter(family, labels))
    }

    /// Renders all families, sorted by name for a stable output.
    pub(super) fn render(&self, totals: &Totals<'_>, remotes: &Remotes, scrape: &Scrape) -> String {
        let process = Process::read();
        let sums = Registry::new();
        sums.update(totals, scrape, process);
        remote::requests(remotes, &sums);
        let mut families = self.registry.families();
        families.extend(sums.families());
        let durations = totals.listeners().map(|(name, listener)| (name, &listener.duration));
        families.push(histograms(&families::REQUEST_DURATION, "listener", durations));
        let mut delays = header(&families::REQUEST_DELAY);
        histogram_lines(&mut delays, families::REQUEST_DELAY.name, "", &totals.counts.delay, SECONDS);
        families.push(delays);
        let durations = totals.upstreams.iter().map(|(name, upstream)| (&**name, &upstream.duration));
        families.push(histograms(&families::UPSTREAM_DURATION, "upstream", durations));
        families.push(remote::durations(remotes));
        families.push(cpu_seconds(process));
        families.retain(|family| !family.is_empty());
        families.sort_unstable();
        families.concat()
    }
}

/// Counters and gauges with their descriptions.
#[derive(Debug)]
pub(super) struct Registry(PrometheusRecorder);

impl Registry {
    fn new() -> Self {
        Self(PrometheusBuilder::new().build_recorder())
    }

    fn counter(&self, family: &Family, labels: Labels<'_>) -> Counter {
        self.0.describe_counter(family.name.into(), None, family.help.into());
        self.0.register_counter(&key(family, labels), &METADATA)
    }

    fn gauge(&self, family: &Family, labels: Labels<'_>) -> Gauge {
        self.0.describe_gauge(family.name.into(), None, family.help.into());
        self.0.register_gauge(&key(family, labels), &METADATA)
    }

    pub(super) fn count(&self, family: &Family, labels: Labels<'_>, value: u64) {
        self.counter(family, labels).absolute(value);
    }

    pub(super) fn set(&self, family: &Family, labels: Labels<'_>, value: f64) {
        self.gauge(family, labels).set(value);
    }

    /// Renders each family that has a series.
    fn families(&self) -> Vec<String> {
        self.0.handle().render().split("\n\n").map(sorted).collect()
    }

    fn update(&self, totals: &Totals<'_>, scrape: &Scrape, process: Process) {
        for (name, listener) in totals.listeners() {
            self.listener(name, listener);
        }
        for (name, upstream) in &totals.upstreams {
            self.upstream(name, upstream);
        }
        for (name, cluster) in &totals.clusters {
            let name = ("upstream", &**name);
            self.count(&families::UPSTREAM_EJECTIONS, &[name], cluster.ejections.get());
            self.count(&families::UPSTREAM_FAILED_CHECKS, &[name], cluster.failed_checks.get());
            for (limit, count) in cluster.overflows() {
                self.count(&families::UPSTREAM_OVERFLOWS, &[name, ("limit", limit)], count);
            }
            for (outcome, count) in cluster.handshakes() {
                self.count(&families::UPSTREAM_HANDSHAKES, &[name, ("outcome", outcome)], count);
            }
        }
        for view in &scrape.clusters {
            let name = ("upstream", &*view.name);
            let healthy = view.hosts.iter().filter(|host| host.is_healthy()).count();
            self.set(&families::UPSTREAM_ENDPOINTS, &[name], view.hosts.len() as f64);
            self.set(&families::UPSTREAM_ENDPOINTS_HEALTHY, &[name], healthy as f64);
        }
        for (file, expires) in &scrape.certificates {
            let left = *expires as f64 - scrape.now.as_secs() as f64;
            self.set(&families::CERTIFICATE_EXPIRY, &[("certificate", file)], left);
        }
        self.count(&families::REQUESTS_MALFORMED, &[], totals.counts.malformed.get());
        for (limit, count) in LOAD_SHED.iter().zip(&totals.counts.load_shed) {
            self.count(&families::TURNED_AWAY, &[("limit", limit)], count.get());
        }
        self.count(&families::ACCEPT_FAILURES, &[], totals.counts.accept_failures.get());
        self.set(&families::REQUESTS_DELAYED, &[], totals.counts.delayed() as f64);
        for (rule, decisions) in &totals.rules {
            for (outcome, count) in decisions.iter() {
                self.count(&families::DECISIONS, &[("rule", rule), ("outcome", outcome.as_str())], count);
            }
            let keys = scrape.keys.get(rule).copied().unwrap_or(0);
            self.set(&families::LIMITER_KEYS, &[("rule", rule)], keys as f64);
        }
        self.set(&families::LIMITER_ENTRIES, &[], scrape.entries as f64);
        self.set(&families::LIMITER_CAPACITY, &[], scrape.capacity as f64);
        self.count(&families::LIMITER_OVERFLOWS, &[], scrape.overflows);
        self.count(&families::ACCESS_LOG_DROPPED, &[], scrape.access_log_dropped);
        if let Some(saves) = scrape.saves {
            self.saves(saves);
        }
        if let Some(elastic) = &scrape.elastic {
            self.elastic(elastic);
        }
        for SharedLimit { rule, instances, error_bound } in &scrape.shared_limits {
            self.set(&families::SHARED_INSTANCES, &[("rule", rule)], f64::from(*instances));
            self.set(&families::SHARED_ERROR_BOUND, &[("rule", rule)], *error_bound);
        }
        self.count(&families::PANICS, &[], panics::counted());
        self.set(&families::PROCESS_START, &[], scrape.started.as_secs_f64());
        self.process(process);
    }

    fn listener(&self, name: &str, listener: &ListenerCounts) {
        let name = ("listener", name);
        self.labelled(&families::REQUESTS, name, "code_class", CLASSES, &listener.answered);
        self.count(&families::REQUESTS_RESET, &[name], listener.reset.get());
        self.set(&families::REQUESTS_IN_FLIGHT, &[name], listener.in_flight() as f64);
        self.set(&families::CONNECTIONS, &[name], listener.connections() as f64);
        self.count(&families::CONNECTIONS_OPENED, &[name], listener.opened.get());
        // Most listeners have neither TLS nor a PROXY protocol; series of zeros would be noise.
        if count::sum(&listener.handshakes) > 0 {
            let outcomes = handshake_labels(ServerHandshakeError::ALL.map(ServerHandshakeError::as_str));
            self.labelled(&families::HANDSHAKES, name, "outcome", outcomes, &listener.handshakes);
        }
        if listener.handshakes_waiting.has_any() {
            self.set(&families::HANDSHAKES_IN_FLIGHT, &[name], listener.handshaking.open() as f64);
            self.set(&families::HANDSHAKES_WAITING, &[name], listener.handshakes_waiting.open() as f64);
        }
        if count::sum(&listener.preambles) > 0 {
            self.labelled(&families::PREAMBLES, name, "outcome", Preamble::LABELS, &listener.preambles);
        }
    }

    fn upstream(&self, name: &str, upstream: &UpstreamCounts) {
        let name = ("upstream", name);
        let outcomes = UpstreamOutcome::LABELS;
        self.labelled(&families::UPSTREAM_REQUESTS, name, "outcome", outcomes, &upstream.ended);
        self.labelled(&families::UPSTREAM_RESPONSES, name, "code_class", CLASSES, &upstream.answered);
        self.set(&families::UPSTREAM_IN_FLIGHT, &[name], upstream.in_flight() as f64);
        self.count(&families::UPSTREAM_RETRIES, &[name], upstream.retries.get());
        self.set(&families::UPSTREAM_CONNECTIONS, &[name], upstream.connections() as f64);
        self.count(&families::UPSTREAM_CONNECTIONS_OPENED, &[name], upstream.opened.get());
        self.count(&families::UPSTREAM_CONNECTIONS_FAILED, &[name], upstream.failed.get());
    }

    /// Registers a series for each value of `label`, of one listener, upstream or service.
    pub(super) fn labelled(
        &self,
        family: &Family,
        of: (&'static str, &str),
        label: &'static str,
        values: impl IntoIterator<Item = &'static str>,
        counts: &[Count],
    ) {
        for (value, count) in values.into_iter().zip(counts) {
            self.count(family, &[of, (label, value)], count.get());
        }
    }

    fn elastic(&self, Elastic { assessment, factors }: &Elastic) {
        self.set(&families::ELASTIC_HEADROOM, &[], assessment.headroom.fraction());
        for (rule, factor) in factors {
            self.set(&families::ELASTIC_FACTOR, &[("rule", rule)], *factor);
        }
        for level in assessment.levels.iter().flatten() {
            let signal = level.signal.as_str();
            self.set(&families::ELASTIC_SIGNAL, &[("signal", signal)], level.value);
            self.set(&families::ELASTIC_THRESHOLD, &[("signal", signal)], level.threshold);
        }
    }

    fn saves(&self, saves: Saves) {
        self.count(&families::STATE_SAVES, &[("outcome", "saved")], saves.saved);
        self.count(&families::STATE_SAVES, &[("outcome", "failed")], saves.failed);
        if let Some(last) = saves.last {
            self.set(&families::STATE_SUCCESS_TIME, &[], last.as_secs_f64());
        }
        self.set(&families::STATE_COUNTERS, &[], saves.counters as f64);
        self.set(&families::STATE_BYTES, &[], saves.bytes as f64);
    }

    fn process(&self, process: Process) {
        let set = |family, value: Option<u64>| {
            if let Some(value) = value {
                self.set(family, &[], value as f64);
            }
        };
        set(&families::PROCESS_MEMORY, process.resident_bytes);
        set(&families::PROCESS_FDS, process.open_fds);
        set(&families::PROCESS_MAX_FDS, process.max_fds);
    }
}

fn key(family: &Family, labels: Labels<'_>) -> Key {
    // The exporter reads a pair of backslashes as one that is already escaped, which would give two names the same
    // series.
    let label = |(name, value): &(&'static str, &str)| Label::new(*name, value.replace('\\', "\\\\"));
    Key::from_parts(family.name, labels.iter().map(label).collect::<Vec<_>>())
}

/// Sorts the lines of a family. `# HELP` and `# TYPE` sort before any name.
fn sorted(family: &str) -> String {
    let mut lines: Vec<&str> = family.lines().filter(|line| !line.is_empty()).collect();
    lines.sort_unstable();
    lines.iter().flat_map(|line| [*line, "\n"]).collect()
}

fn cpu_seconds(process: Process) -> String {
    let Some(cpu) = process.cpu else { return String::new() };
    let family = &families::PROCESS_CPU;
    format!("{}{} {}\n", header(family), family.name, cpu.as_secs_f64())
}

pub(super) fn header(family: &Family) -> String {
    format!("# HELP {0} {1}\n# TYPE {0} {2}\n", family.name, family.help, family.kind)
}

/// Unit in which durations are rendered.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    /// Length of the unit, in nanoseconds.
    pub(super) nanos: f64,
    /// Bounds to render; all if `None`.
    pub(super) bounds: Option<&'static [f64]>,
}

/// Seconds, with all bounds.
pub(super) const SECONDS: Unit = Unit { nanos: 1e9, bounds: None };

/// Renders a family of histograms, one for each value of `label`.
pub(super) fn histograms<'a>(
    family: &Family,
    label: &str,
    each: impl Iterator<Item = (&'a str, &'a Histogram)>,
) -> String {
    let mut text = header(family);
    for (value, histogram) in each {
        let labels = format!("{label}=\"{}\"", escaped(value));
        histogram_lines(&mut text, family.name, &labels, histogram, SECONDS);
    }
    text
}

/// Renders the series of one histogram; `labels` is without braces.
pub(super) fn histogram_lines(
    text: &mut String,
    name: &str,
    labels: &str,
    histogram: &Histogram,
    Unit { nanos, bounds }: Unit,
) {
    let comma = if labels.is_empty() { "" } else { "," };
    let count = histogram.count();
    // Writing to a string cannot fail.
    for (bound, below) in histogram.cumulative() {
        let bound = bound as f64 / nanos;
        if bounds.is_none_or(|bounds| bounds.contains(&bound)) {
            let _ = writeln!(text, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {below}");
        }
    }
    let _ = writeln!(text, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}");
    let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    let _ = writeln!(text, "{name}_sum{braced} {}", histogram.sum().as_secs_f64() * (1e9 / nanos));
    let _ = writeln!(text, "{name}_count{braced} {count}");
}

/// Escapes a label value for the text format.
pub(super) fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
