//! The same metrics under Envoy's names, for dashboards and scripts made for Envoy.
//!
//! Envoy gives a statistic a dotted name (`http.ingress.downstream_rq_total`); for Prometheus the variable parts become
//! labels. Both forms are defined here together. Only exact values are exported: of Envoy's histogram buckets, those
//! that exist here too.

use std::collections::BTreeMap;
use std::fmt::Write;

use regex::Regex;
use serde_json::json;

use super::super::atomic_counter::AtomicCounter;
use super::super::histogram::Histogram;
use super::exporter::{DurationUnit, escape_label_value, write_histogram};
use super::rule::{DecisionCounts, DecisionOutcome};
use super::worker::ListenerCounts;
use super::{ClusterView, MetricTotals, Scrape, UpstreamCounts};

/// Milliseconds, with those of Envoy's default bounds that exist here too.
const MILLISECONDS: DurationUnit = DurationUnit {
    nanos: 1e6,
    bounds: Some(&[
        0.5, 1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10_000.0, 30_000.0,
        60_000.0,
    ]),
};

/// Selection of statistics.
#[derive(Clone, Debug, Default)]
pub struct StatsFilter {
    /// Only statistics whose dotted name matches.
    pub name: Option<Regex>,
    /// Only statistics that are not zero: Envoy's `usedonly`.
    pub used_only: bool,
}

impl StatsFilter {
    fn matches(&self, stat: &EnvoyStat) -> bool {
        let is_used = || match &stat.value {
            StatValue::Counter(value) | StatValue::Gauge(value) => *value > 0,
            StatValue::Histogram(histogram) => histogram.count() > 0,
        };
        (!self.used_only || is_used()) && self.name.as_ref().is_none_or(|name| name.is_match(&stat.name))
    }
}

/// Statistics under Envoy's names, sorted.
#[derive(Clone, Debug)]
pub struct EnvoyStats(Vec<EnvoyStat>);

/// One statistic.
#[derive(Clone, Debug)]
struct EnvoyStat {
    name: String,
    family: String,
    labels: String,
    value: StatValue,
}

#[derive(Clone, Debug)]
enum StatValue {
    Counter(u64),
    Gauge(u64),
    Histogram(Box<Histogram>),
}

impl EnvoyStats {
    /// Renders one `name: value` per line, as Envoy's `GET /stats`. Histograms are left out: Envoy shows their
    /// quantiles, which cannot be computed from buckets.
    pub fn to_text(&self) -> String {
        self.scalars().fold(String::new(), |mut text, (name, value)| {
            let _ = writeln!(text, "{name}: {value}");
            text
        })
    }

    /// Returns the same values as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        let stats: Vec<_> =
            self.scalars().map(|(name, value)| json!({"name": name, "value": value})).collect();
        json!({ "stats": stats })
    }

    /// Renders all statistics in Prometheus' text format, with types but without help, as Envoy does.
    pub fn to_prometheus(&self) -> String {
        let mut families: BTreeMap<&str, Vec<&EnvoyStat>> = BTreeMap::new();
        for stat in &self.0 {
            families.entry(&stat.family).or_default().push(stat);
        }
        let mut text = String::new();
        for (family, stats) in families {
            let _ = writeln!(text, "# TYPE {family} {}", stats[0].value.kind());
            for stat in stats {
                stat.write(&mut text);
            }
        }
        text
    }

    fn scalars(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().filter_map(|stat| match &stat.value {
            StatValue::Counter(value) | StatValue::Gauge(value) => Some((stat.name.as_str(), *value)),
            StatValue::Histogram(_) => None,
        })
    }
}

impl StatValue {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Counter(_) => "counter",
            Self::Gauge(_) => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

impl EnvoyStat {
    fn write(&self, text: &mut String) {
        let Self { family, labels, .. } = self;
        match &self.value {
            StatValue::Counter(value) | StatValue::Gauge(value) => {
                let _ = writeln!(text, "{family}{{{labels}}} {value}");
            }
            StatValue::Histogram(histogram) => write_histogram(text, family, labels, histogram, MILLISECONDS),
        }
    }
}

/// Returns all metrics for which Envoy has a name.
pub(super) fn all_stats(totals: &MetricTotals<'_>, scrape: &Scrape, filter: &StatsFilter) -> EnvoyStats {
    let mut stats = server_stats(totals, scrape);
    stats.extend(totals.listeners().flat_map(|(name, listener)| listener_stats(name, listener)));
    stats.extend(totals.upstreams.iter().flat_map(|(name, upstream)| cluster_stats(name, upstream)));
    stats.extend(scrape.clusters.iter().flat_map(membership_stats));
    stats.extend(totals.rules.decisions().iter().flat_map(|(rule, decisions)| rule_stats(rule, decisions)));
    stats.retain(|stat| filter.matches(stat));
    stats.sort_by(|one, other| one.name.cmp(&other.name));
    EnvoyStats(stats)
}

fn server_stats(totals: &MetricTotals<'_>, scrape: &Scrape) -> Vec<EnvoyStat> {
    let connections = totals.counts.listeners.iter().map(ListenerCounts::open_connections).sum();
    let gauge = |name: &str, value| EnvoyStat {
        name: format!("server.{name}"),
        family: format!("envoy_server_{name}"),
        labels: String::new(),
        value: StatValue::Gauge(value),
    };
    vec![
        gauge("live", u64::from(scrape.is_live)),
        gauge("state", u64::from(!scrape.is_live)),
        gauge("uptime", scrape.now.since(scrape.start_time).as_secs()),
        gauge("concurrency", totals.workers as u64),
        gauge("total_connections", connections),
    ]
}

/// A group of statistics with a common prefix and label.
struct StatScope {
    prefix: String,
    family: &'static str,
    label: String,
}

impl StatScope {
    fn cluster(name: &str) -> Self {
        let name = stat_name_part(name);
        Self {
            prefix: format!("cluster.{name}"),
            family: "envoy_cluster",
            label: format!("envoy_cluster_name=\"{}\"", escape_label_value(&name)),
        }
    }

    fn stat(&self, name: &str, value: StatValue) -> EnvoyStat {
        EnvoyStat {
            name: format!("{}.{name}", self.prefix),
            family: format!("{}_{name}", self.family),
            labels: self.label.clone(),
            value,
        }
    }

    fn counter(&self, name: &str, value: u64) -> EnvoyStat {
        self.stat(name, StatValue::Counter(value))
    }

    fn gauge(&self, name: &str, value: u64) -> EnvoyStat {
        self.stat(name, StatValue::Gauge(value))
    }

    /// Returns `NAME_2xx` and so on. For Prometheus the class is the first label, as in Envoy.
    fn class_counters<'a>(
        &'a self,
        name: &'a str,
        counts: &'a [AtomicCounter],
    ) -> impl Iterator<Item = EnvoyStat> + 'a {
        counts.iter().zip(1..).map(move |(count, class)| EnvoyStat {
            name: format!("{}.{name}_{class}xx", self.prefix),
            family: format!("{}_{name}_xx", self.family),
            labels: format!("envoy_response_code_class=\"{class}\",{}", self.label),
            value: StatValue::Counter(count.get()),
        })
    }
}

fn listener_stats(name: &str, listener: &ListenerCounts) -> Vec<EnvoyStat> {
    let name = stat_name_part(name);
    let scope = StatScope {
        prefix: format!("http.{name}"),
        family: "envoy_http",
        label: format!("envoy_http_conn_manager_prefix=\"{}\"", escape_label_value(&name)),
    };
    let mut stats = vec![
        scope.counter("downstream_rq_total", listener.requests_started.get()),
        scope.counter("downstream_rq_completed", listener.completed()),
        scope.counter("downstream_rq_rx_reset", listener.requests_reset.get()),
        scope.gauge("downstream_rq_active", listener.in_flight()),
        scope.counter("downstream_cx_total", listener.connections_opened.get()),
        scope.gauge("downstream_cx_active", listener.open_connections()),
        scope.stat("downstream_rq_time", StatValue::Histogram(Box::new(listener.request_duration.clone()))),
    ];
    stats.extend(scope.class_counters("downstream_rq", &listener.responses));
    stats
}

/// Returns the number of endpoints of an upstream, and how many of them are healthy.
fn membership_stats(view: &ClusterView) -> Vec<EnvoyStat> {
    let scope = StatScope::cluster(&view.name);
    let healthy = view.hosts.iter().filter(|host| host.is_healthy()).count();
    vec![
        scope.gauge("membership_total", view.hosts.len() as u64),
        scope.gauge("membership_healthy", healthy as u64),
    ]
}

fn cluster_stats(name: &str, upstream: &UpstreamCounts) -> Vec<EnvoyStat> {
    let scope = StatScope::cluster(name);
    let mut stats = vec![
        scope.counter("upstream_rq_total", upstream.requests_started.get()),
        scope.counter("upstream_rq_completed", upstream.outcome_count("answered")),
        scope.counter("upstream_rq_timeout", upstream.outcome_count("timed_out")),
        scope.counter("upstream_rq_rx_reset", upstream.outcome_count("reset")),
        scope.counter("upstream_rq_retry", upstream.retries.get()),
        scope.gauge("upstream_rq_active", upstream.in_flight()),
        scope.counter(
            "upstream_cx_total",
            upstream.connections_opened.get().saturating_add(upstream.connections_failed.get()),
        ),
        scope.gauge("upstream_cx_active", upstream.open_connections()),
        scope.counter("upstream_cx_connect_fail", upstream.connections_failed.get()),
        scope.stat("upstream_rq_time", StatValue::Histogram(Box::new(upstream.response_time.clone()))),
    ];
    stats.extend(scope.class_counters("upstream_rq", &upstream.responses));
    stats
}

/// Returns a rule's counts as Envoy's local rate limit filter defines them: `rate_limited` is over the limit,
/// `enforced` those of them that were rejected or sent to another upstream.
fn rule_stats(rule: &str, decisions: &DecisionCounts) -> Vec<EnvoyStat> {
    use DecisionOutcome::{Allowed, Banned, Delayed, Diverted, Limited, Shadow, Soft};
    let scope = StatScope {
        prefix: format!("{}.http_local_rate_limit", stat_name_part(rule)),
        family: "envoy_http_local_rate_limit",
        label: format!("envoy_local_http_ratelimit_prefix=\"{}\"", escape_label_value(rule)),
    };
    let ok = decisions.sum_of(&[Allowed, Soft, Delayed]);
    let limited = decisions.sum_of(&[Limited, Banned, Shadow, Diverted]);
    vec![
        scope.counter("enabled", ok.saturating_add(limited)),
        scope.counter("ok", ok),
        scope.counter("rate_limited", limited),
        scope.counter("enforced", decisions.sum_of(&[Limited, Banned, Diverted])),
        scope.counter("shadow_mode", decisions.get(Shadow)),
    ]
}

/// Makes a name part of a dotted name: colons become underscores, as in Envoy's addresses, and so do control
/// characters, which could end the line.
fn stat_name_part(name: &str) -> String {
    name.replace(|char: char| char == ':' || char.is_control(), "_")
}
