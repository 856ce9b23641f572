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

use super::super::atomic_counter::{self, AtomicCounter};
use super::super::histogram::Histogram;
use super::super::{malformed_streams, panics};
use super::alerts::AlertMetrics;
use super::connection_setup::{LOAD_SHED_LABELS, handshake_labels};
use super::deferred::DeferredMetrics;
use super::families::{self, Family};
use super::fetches::FetchMetrics;
use super::final_outcome::FinalOutcome;
use super::process::ProcessStats;
use super::remote::{self, RemoteRegistry};
use super::store::StoreMetrics;
use super::upstream::{UpstreamCounts, UpstreamOutcome};
use super::worker::{ListenerCounts, STATUS_CLASSES};
use super::{
    AdaptiveLimitSample, ElasticSample, MetricTotals, ReloadOutcome, Scrape, SharedLimitSample, SpanMetrics,
    StateFileSample,
};
use weir_bodies::Unreadable;
use weir_bodies::usage_option::Unchanged;
use weir_limiter::feedback::states::FeedbackStatus;
use weir_net::listener::preamble::ProxyProtocolOutcome;
use weir_net::tls::key_pair::CertificateValidity;
use weir_net::tls::server::ServerHandshakeError;

/// Required by the recorder's interface. The level has no effect here.
static METADATA: Metadata<'static> = Metadata::new("weir", Level::INFO, None);

type Labels<'a> = &'a [(&'static str, &'a str)];

/// Handles of the metrics that are counted off the request path.
#[derive(Debug)]
pub(super) struct PrometheusExporter {
    registry: MetricRegistry,
    pub(super) reloads: [Counter; ReloadOutcome::ALL.len()],
    pub(super) reload_successful: Gauge,
    pub(super) reload_success_time: Gauge,
    pub(super) generation: Gauge,
    pub(super) spans: SpanMetrics,
}

impl PrometheusExporter {
    pub(super) fn new() -> Self {
        let registry = MetricRegistry::new();
        registry.gauge(&families::BUILD_INFO, &[("version", super::VERSION)]).set(1.0);
        let outcome = |outcome: ReloadOutcome| {
            registry.counter(&families::CONFIG_RELOADS, &[("outcome", outcome.as_str())])
        };
        Self {
            reloads: ReloadOutcome::ALL.map(outcome),
            reload_successful: registry.gauge(&families::CONFIG_SUCCESSFUL, &[]),
            reload_success_time: registry.gauge(&families::CONFIG_SUCCESS_TIME, &[]),
            generation: registry.gauge(&families::CONFIG_GENERATION, &[]),
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

    /// Returns the metrics of the deferred calls of a rule, and includes them in the output from now on.
    pub(super) fn deferred(&self, rule: &str) -> DeferredMetrics {
        DeferredMetrics::new(
            rule,
            |family, labels| self.registry.gauge(family, labels),
            |family, labels| self.registry.counter(family, labels),
        )
    }

    /// Returns the metrics of fetching the configuration, and includes them in the output from now on.
    pub(super) fn fetches(&self) -> FetchMetrics {
        let gauge = |family: &Family| self.registry.gauge(family, &[]);
        FetchMetrics::new(gauge, |family, labels| self.registry.counter(family, labels))
    }

    /// Returns the metrics of the alerts with these names, and includes them in the output from now on.
    pub(super) fn alerts(&self, names: impl IntoIterator<Item = &'static str>) -> AlertMetrics {
        AlertMetrics::new(
            names,
            |family, labels| self.registry.gauge(family, labels),
            |family, labels| self.registry.counter(family, labels),
        )
    }

    /// Renders all families, sorted by name for a stable output.
    pub(super) fn render(
        &self,
        totals: &MetricTotals<'_>,
        remote_services: &RemoteRegistry,
        scrape: &Scrape,
    ) -> String {
        let process = ProcessStats::read();
        let sums = MetricRegistry::new();
        sums.fill(totals, scrape, process);
        remote::register_requests(remote_services, &sums);
        let mut families = self.registry.render_families();
        families.extend(sums.render_families());
        let durations = totals.listeners().map(|(name, listener)| (name, &listener.request_duration));
        families.push(render_histograms(&families::REQUEST_DURATION, "listener", durations));
        let mut delays = render_header(&families::REQUEST_DELAY);
        let durations = &totals.counts.delay_duration;
        write_histogram(&mut delays, families::REQUEST_DELAY.name, "", durations, SECONDS);
        families.push(delays);
        let durations = totals.upstreams.iter().map(|(name, upstream)| (&**name, &upstream.response_time));
        families.push(render_histograms(&families::UPSTREAM_DURATION, "upstream", durations));
        families.extend([totals.waits.render_waits(), totals.streams.render_delays()]);
        families.extend([remote::render_durations(remote_services), render_cpu_seconds(process)]);
        families.retain(|family| !family.is_empty());
        families.sort_unstable();
        families.concat()
    }
}

/// Counters and gauges with their descriptions.
#[derive(Debug)]
pub(super) struct MetricRegistry(PrometheusRecorder);

impl MetricRegistry {
    fn new() -> Self {
        Self(PrometheusBuilder::new().build_recorder())
    }

    fn counter(&self, family: &Family, labels: Labels<'_>) -> Counter {
        self.0.describe_counter(family.name.into(), None, family.help.into());
        self.0.register_counter(&series_key(family, labels), &METADATA)
    }

    fn gauge(&self, family: &Family, labels: Labels<'_>) -> Gauge {
        self.0.describe_gauge(family.name.into(), None, family.help.into());
        self.0.register_gauge(&series_key(family, labels), &METADATA)
    }

    pub(super) fn set_counter(&self, family: &Family, labels: Labels<'_>, value: u64) {
        self.counter(family, labels).absolute(value);
    }

    pub(super) fn set_gauge(&self, family: &Family, labels: Labels<'_>, value: f64) {
        self.gauge(family, labels).set(value);
    }

    /// Renders each family that has a series.
    fn render_families(&self) -> Vec<String> {
        self.0.handle().render().split("\n\n").map(sort_lines).collect()
    }

    fn fill(&self, totals: &MetricTotals<'_>, scrape: &Scrape, process: ProcessStats) {
        for (name, listener) in totals.listeners() {
            self.set_listener(name, listener);
        }
        for (name, upstream) in &totals.upstreams {
            self.set_upstream(name, upstream);
        }
        for (name, cluster) in &totals.clusters {
            let name = ("upstream", &**name);
            self.set_counter(&families::UPSTREAM_EJECTIONS, &[name], cluster.ejections.get());
            self.set_counter(
                &families::UPSTREAM_HEALTH_CHECK_FAILURES,
                &[name],
                cluster.failed_health_checks.get(),
            );
            for (limit, count) in cluster.overflows() {
                self.set_counter(&families::UPSTREAM_OVERFLOWS, &[name, ("limit", limit)], count);
            }
            for (outcome, count) in cluster.handshakes() {
                self.set_counter(&families::UPSTREAM_HANDSHAKES, &[name, ("outcome", outcome)], count);
            }
        }
        for view in &scrape.clusters {
            let name = ("upstream", &*view.name);
            let healthy = view.hosts.iter().filter(|host| host.is_healthy()).count();
            self.set_gauge(&families::UPSTREAM_ENDPOINTS, &[name], view.hosts.len() as f64);
            self.set_gauge(&families::UPSTREAM_ENDPOINTS_HEALTHY, &[name], healthy as f64);
        }
        self.set_certificates(scrape);
        self.set_unserved(totals);
        self.set_gauge(&families::REQUESTS_DELAYED, &[], totals.counts.delayed() as f64);
        totals.rules.fill(self);
        for rule in totals.rules.names() {
            let keys = scrape.keys_per_rule.get(rule).copied().unwrap_or(0);
            self.set_gauge(&families::LIMITER_KEYS, &[("rule", rule)], keys as f64);
        }
        totals.waits.fill(self);
        totals.stated_costs.fill(self);
        totals.streams.fill(self);
        for (country, decisions) in totals.counts.countries.iter() {
            for (outcome, count) in decisions.by_outcome() {
                let labels = [("country", country.as_str()), ("outcome", outcome)];
                self.set_counter(&families::GEO_DECISIONS, &labels, count);
            }
        }
        self.set_gauge(&families::LIMITER_ENTRIES, &[], scrape.table_entries as f64);
        self.set_gauge(&families::LIMITER_CAPACITY, &[], scrape.table_capacity as f64);
        self.set_counter(&families::LIMITER_OVERFLOWS, &[], scrape.table_overflows);
        self.set_counter(&families::DROPPED_LIMITS, &[], scrape.dropped_limits);
        self.set_counter(&families::ACCESS_LOG_DROPPED, &[], scrape.access_log_dropped);
        if let Some(saves) = scrape.state_file {
            self.set_state_file(saves);
        }
        if let Some(elastic) = &scrape.elastic {
            self.set_elastic(elastic);
        }
        scrape.clusters.iter().for_each(|cluster| cluster.fill_concurrency(self));
        self.set_counter(&families::UNKNOWN_CLASSES, &[], totals.counts.unknown_classes.get());
        scrape.adaptive_limits.iter().for_each(|limit| self.set_adaptive_limit(limit));
        for (kind, count) in scrape.limit_overrides {
            self.set_gauge(&families::LIMIT_OVERRIDES, &[("action", kind.as_str())], count as f64);
        }
        for SharedLimitSample { rule, instances, error_bound } in &scrape.shared_limits {
            self.set_gauge(&families::SHARED_INSTANCES, &[("rule", rule)], f64::from(*instances));
            self.set_gauge(&families::SHARED_ERROR_BOUND, &[("rule", rule)], *error_bound);
        }
        self.set_feedback(&scrape.feedback);
        self.set_gauge(&families::WORKERS, &[], totals.workers as f64);
        self.set_counter(&families::PANICS, &[], panics::count());
        self.set_gauge(&families::PROCESS_START, &[], scrape.start_time.as_secs_f64());
        self.set_process(process);
    }

    /// Sets what was not served, or not forwarded, before any rule.
    fn set_unserved(&self, totals: &MetricTotals<'_>) {
        self.set_counter(&families::REQUESTS_MALFORMED, &[], totals.counts.malformed_requests.get());
        for (peer, reason, count) in malformed_streams::counts() {
            let labels = [("peer", peer), ("reason", reason)];
            self.set_counter(&families::HTTP2_MALFORMED_STREAMS, &labels, count);
        }
        self.set_counter(&families::REQUEST_HEADERS_REMOVED, &[], totals.counts.removed_headers.get());
        let of_clients = totals.counts.removed_client_headers.get();
        self.set_counter(&families::UNTRUSTED_HEADERS_REMOVED, &[], of_clients);
        for (reason, count) in Unreadable::ALL.iter().zip(&totals.counts.unreadable_bodies) {
            self.set_counter(&families::UNREADABLE_BODIES, &[("reason", reason.as_str())], count.get());
        }
        for (reason, count) in Unchanged::ALL.iter().zip(&totals.counts.unchanged_streams) {
            self.set_counter(&families::UNCHANGED_STREAMS, &[("reason", reason.as_str())], count.get());
        }
        for (limit, count) in LOAD_SHED_LABELS.iter().zip(&totals.counts.load_shed) {
            self.set_counter(&families::OVERLOAD_REJECTED, &[("limit", limit)], count.get());
        }
        self.set_counter(&families::ACCEPT_FAILURES, &[], totals.counts.accept_failures.get());
    }

    fn set_certificates(&self, scrape: &Scrape) {
        for (file, CertificateValidity { not_before, expires }) in &scrape.certificates {
            let remaining = *expires as f64 - scrape.now.as_secs() as f64;
            self.set_gauge(&families::CERTIFICATE_EXPIRY, &[("certificate", file)], remaining);
            self.set_gauge(&families::CERTIFICATE_EXPIRY_TIME, &[("certificate", file)], *expires as f64);
            self.set_gauge(&families::CERTIFICATE_NOT_BEFORE, &[("certificate", file)], *not_before as f64);
        }
    }

    fn set_listener(&self, name: &str, listener: &ListenerCounts) {
        let name = ("listener", name);
        self.set_labelled_counters(
            &families::REQUESTS,
            name,
            "code_class",
            STATUS_CLASSES,
            &listener.responses,
        );
        self.set_counter(&families::REQUESTS_RESET, &[name], listener.requests_reset.get());
        let outcomes = FinalOutcome::all().map(FinalOutcome::as_str);
        self.set_labelled_counters(
            &families::REQUEST_OUTCOMES,
            name,
            "outcome",
            outcomes,
            &listener.outcomes,
        );
        self.set_gauge(&families::REQUESTS_IN_FLIGHT, &[name], listener.in_flight() as f64);
        self.set_gauge(&families::CONNECTIONS, &[name], listener.open_connections() as f64);
        self.set_counter(&families::CONNECTIONS_OPENED, &[name], listener.connections_opened.get());
        // Most listeners have neither TLS nor a PROXY protocol; series of zeros would be noise.
        if atomic_counter::sum(&listener.handshakes) > 0 {
            let outcomes = handshake_labels(ServerHandshakeError::ALL.map(ServerHandshakeError::as_str));
            self.set_labelled_counters(
                &families::HANDSHAKES,
                name,
                "outcome",
                outcomes,
                &listener.handshakes,
            );
        }
        if listener.handshakes_waiting.has_any() {
            self.set_gauge(
                &families::HANDSHAKES_IN_FLIGHT,
                &[name],
                listener.handshakes_in_flight.in_progress() as f64,
            );
            self.set_gauge(
                &families::HANDSHAKES_WAITING,
                &[name],
                listener.handshakes_waiting.in_progress() as f64,
            );
        }
        if atomic_counter::sum(&listener.proxy_protocol) > 0 {
            self.set_labelled_counters(
                &families::PROXY_PROTOCOL_CONNECTIONS,
                name,
                "outcome",
                ProxyProtocolOutcome::LABELS,
                &listener.proxy_protocol,
            );
        }
    }

    fn set_upstream(&self, name: &str, upstream: &UpstreamCounts) {
        let name = ("upstream", name);
        let outcomes = UpstreamOutcome::LABELS;
        self.set_labelled_counters(
            &families::UPSTREAM_REQUESTS,
            name,
            "outcome",
            outcomes,
            &upstream.requests_ended,
        );
        self.set_labelled_counters(
            &families::UPSTREAM_RESPONSES,
            name,
            "code_class",
            STATUS_CLASSES,
            &upstream.responses,
        );
        self.set_gauge(&families::UPSTREAM_IN_FLIGHT, &[name], upstream.in_flight() as f64);
        self.set_counter(&families::UPSTREAM_RETRIES, &[name], upstream.retries.get());
        self.set_gauge(&families::UPSTREAM_CONNECTIONS, &[name], upstream.open_connections() as f64);
        self.set_counter(&families::UPSTREAM_CONNECTIONS_OPENED, &[name], upstream.connections_opened.get());
        self.set_counter(&families::UPSTREAM_CONNECTIONS_FAILED, &[name], upstream.connections_failed.get());
    }

    /// Registers a series for each value of `label`, of one listener, upstream or service.
    pub(super) fn set_labelled_counters(
        &self,
        family: &Family,
        subject: (&'static str, &str),
        label: &'static str,
        values: impl IntoIterator<Item = &'static str>,
        counts: &[AtomicCounter],
    ) {
        for (value, count) in values.into_iter().zip(counts) {
            self.set_counter(family, &[subject, (label, value)], count.get());
        }
    }

    fn set_elastic(&self, ElasticSample { assessment, factors }: &ElasticSample) {
        self.set_gauge(&families::ELASTIC_HEADROOM, &[], assessment.headroom.fraction());
        for (rule, factor) in factors {
            self.set_gauge(&families::ELASTIC_FACTOR, &[("rule", rule)], *factor);
        }
        for level in assessment.levels.iter().flatten() {
            let signal = level.signal.as_str();
            self.set_gauge(&families::ELASTIC_SIGNAL, &[("signal", signal)], level.value);
            self.set_gauge(&families::ELASTIC_THRESHOLD, &[("signal", signal)], level.threshold);
        }
    }

    fn set_adaptive_limit(&self, AdaptiveLimitSample { rule, state }: &AdaptiveLimitSample) {
        let labels = [("rule", &**rule)];
        self.set_gauge(&families::CONCURRENCY_LIMIT, &labels, f64::from(state.lowest.limit));
        self.set_gauge(&families::CONCURRENCY_KEYS, &labels, state.keys as f64);
        for (family, seconds) in [
            (&families::CONCURRENCY_LATENCY, state.lowest.latency),
            (&families::CONCURRENCY_MIN_LATENCY, state.lowest.baseline),
        ] {
            if let Some(seconds) = seconds {
                self.set_gauge(family, &labels, seconds);
            }
        }
    }

    fn set_feedback(&self, rules: &[(Box<str>, FeedbackStatus)]) {
        for (rule, status) in rules {
            let rule = [("rule", &**rule)];
            self.set_gauge(&families::FEEDBACK_SHARE, &rule, status.share.fraction());
            self.set_gauge(&families::FEEDBACK_PAUSED, &rule, status.paused_for.as_secs_f64());
            self.set_gauge(&families::FEEDBACK_KEYS, &rule, status.keys as f64);
            self.set_counter(&families::FEEDBACK_REJECTIONS, &rule, status.rejections);
            self.set_counter(&families::FEEDBACK_DECREASES, &rule, status.decreases);
            self.set_counter(&families::FEEDBACK_DELAYED_RETRIES, &rule, status.delayed_retries);
        }
    }

    fn set_state_file(&self, saves: StateFileSample) {
        self.set_counter(&families::STATE_SAVES, &[("outcome", "saved")], saves.saves);
        self.set_counter(&families::STATE_SAVES, &[("outcome", "failed")], saves.failed_saves);
        if let Some(last) = saves.last_saved {
            self.set_gauge(&families::STATE_SUCCESS_TIME, &[], last.as_secs_f64());
        }
        self.set_gauge(&families::STATE_COUNTERS, &[], saves.counters as f64);
        self.set_gauge(&families::STATE_BYTES, &[], saves.bytes as f64);
    }

    fn set_process(&self, process: ProcessStats) {
        let set = |family, value: Option<u64>| {
            if let Some(value) = value {
                self.set_gauge(family, &[], value as f64);
            }
        };
        set(&families::PROCESS_MEMORY, process.resident_bytes);
        set(&families::PROCESS_FDS, process.open_fds);
        set(&families::PROCESS_MAX_FDS, process.max_fds);
    }
}

fn series_key(family: &Family, labels: Labels<'_>) -> Key {
    // The exporter reads a pair of backslashes as one that is already escaped, which would give two names the same
    // series.
    let label = |(name, value): &(&'static str, &str)| Label::new(*name, value.replace('\\', "\\\\"));
    Key::from_parts(family.name, labels.iter().map(label).collect::<Vec<_>>())
}

/// Sorts the lines of a family. `# HELP` and `# TYPE` sort before any name.
fn sort_lines(family: &str) -> String {
    let mut lines: Vec<&str> = family.lines().filter(|line| !line.is_empty()).collect();
    lines.sort_unstable();
    lines.iter().flat_map(|line| [*line, "\n"]).collect()
}

fn render_cpu_seconds(process: ProcessStats) -> String {
    let Some(cpu) = process.cpu_time else { return String::new() };
    let family = &families::PROCESS_CPU;
    format!("{}{} {}\n", render_header(family), family.name, cpu.as_secs_f64())
}

pub(super) fn render_header(family: &Family) -> String {
    format!("# HELP {0} {1}\n# TYPE {0} {2}\n", family.name, family.help, family.kind)
}

/// Unit in which durations are rendered.
#[derive(Clone, Copy)]
pub(super) struct DurationUnit {
    /// Length of the unit, in nanoseconds.
    pub(super) nanos: f64,
    /// Bounds to render; all if `None`.
    pub(super) bounds: Option<&'static [f64]>,
}

/// Seconds, with all bounds.
pub(super) const SECONDS: DurationUnit = DurationUnit { nanos: 1e9, bounds: None };

/// Renders a family of histograms, one for each value of `label`.
pub(super) fn render_histograms<'a>(
    family: &Family,
    label: &str,
    series: impl Iterator<Item = (&'a str, &'a Histogram)>,
) -> String {
    let mut text = render_header(family);
    for (value, histogram) in series {
        let labels = format!("{label}=\"{}\"", escape_label_value(value));
        write_histogram(&mut text, family.name, &labels, histogram, SECONDS);
    }
    text
}

/// Renders the series of one histogram; `labels` is without braces.
pub(super) fn write_histogram(
    text: &mut String,
    name: &str,
    labels: &str,
    histogram: &Histogram,
    DurationUnit { nanos, bounds }: DurationUnit,
) {
    let comma = if labels.is_empty() { "" } else { "," };
    let count = histogram.count();
    // Writing to a string cannot fail.
    for (bound, below) in histogram.cumulative_buckets() {
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
pub(super) fn escape_label_value(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
