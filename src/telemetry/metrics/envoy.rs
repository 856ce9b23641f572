//! The same metrics under Envoy's names, for dashboards and scripts made for Envoy.
//!
//! Envoy gives a statistic a dotted name (`http.ingress.downstream_rq_total`); for Prometheus the variable parts become
//! labels. Both forms are defined here together. Only exact values are exported: of Envoy's histogram buckets, those
//! that exist here too.

use std::collections::BTreeMap;
use std::fmt::Write;

use regex::Regex;
use serde_json::json;

use super::super::count::Count;
use super::super::histogram::Histogram;
use super::exporter::{Unit, escaped, histogram_lines};
use super::rule::{DecisionOutcome, Decisions};
use super::worker::ListenerCounts;
use super::{ClusterView, Scrape, Totals, UpstreamCounts};

/// Milliseconds, with those of Envoy's default bounds that exist here too.
const MILLISECONDS: Unit = Unit {
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
    fn admits(&self, stat: &Stat) -> bool {
        let is_used = || match &stat.value {
            Value::Counter(value) | Value::Gauge(value) => *value > 0,
            Value::Histogram(histogram) => histogram.count() > 0,
        };
        (!self.used_only || is_used()) && self.name.as_ref().is_none_or(|name| name.is_match(&stat.name))
    }
}

/// Statistics under Envoy's names, sorted.
#[derive(Clone, Debug)]
pub struct Stats(Vec<Stat>);

/// One statistic.
#[derive(Clone, Debug)]
struct Stat {
    name: String,
    family: String,
    labels: String,
    value: Value,
}

#[derive(Clone, Debug)]
enum Value {
    Counter(u64),
    Gauge(u64),
    Histogram(Box<Histogram>),
}

impl Stats {
    /// Renders one `name: value` per line, as Envoy's `GET /stats`. Histograms are left out: Envoy shows their
    /// quantiles, which cannot be computed from buckets.
    pub fn text(&self) -> String {
        self.scalars().fold(String::new(), |mut text, (name, value)| {
            let _ = writeln!(text, "{name}: {value}");
            text
        })
    }

    /// Returns the same values as JSON.
    pub fn json(&self) -> serde_json::Value {
        let stats: Vec<_> =
            self.scalars().map(|(name, value)| json!({"name": name, "value": value})).collect();
        json!({ "stats": stats })
    }

    /// Renders all statistics in Prometheus' text format, with types but without help, as Envoy does.
    pub fn prometheus(&self) -> String {
        let mut families: BTreeMap<&str, Vec<&Stat>> = BTreeMap::new();
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
            Value::Counter(value) | Value::Gauge(value) => Some((stat.name.as_str(), *value)),
            Value::Histogram(_) => None,
        })
    }
}

impl Value {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Counter(_) => "counter",
            Self::Gauge(_) => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

impl Stat {
    fn write(&self, text: &mut String) {
        let Self { family, labels, .. } = self;
        match &self.value {
            Value::Counter(value) | Value::Gauge(value) => {
                let _ = writeln!(text, "{family}{{{labels}}} {value}");
            }
            Value::Histogram(histogram) => histogram_lines(text, family, labels, histogram, MILLISECONDS),
        }
    }
}

/// Returns all metrics for which Envoy has a name.
pub(super) fn stats(totals: &Totals<'_>, scrape: &Scrape, filter: &StatsFilter) -> Stats {
    let mut stats = server(totals, scrape);
    stats.extend(totals.listeners().flat_map(|(name, listener)| http(name, listener)));
    stats.extend(totals.upstreams.iter().flat_map(|(name, upstream)| cluster(name, upstream)));
    stats.extend(scrape.clusters.iter().flat_map(membership));
    stats.extend(totals.rules.iter().flat_map(|(rule, decisions)| local_rate_limit(rule, decisions)));
    stats.retain(|stat| filter.admits(stat));
    stats.sort_by(|one, other| one.name.cmp(&other.name));
    Stats(stats)
}

fn server(totals: &Totals<'_>, scrape: &Scrape) -> Vec<Stat> {
    let connections = totals.counts.listeners.iter().map(ListenerCounts::connections).sum();
    let gauge = |name: &str, value| Stat {
        name: format!("server.{name}"),
        family: format!("envoy_server_{name}"),
        labels: String::new(),
        value: Value::Gauge(value),
    };
    vec![
        gauge("live", u64::from(scrape.is_live)),
        gauge("state", u64::from(!scrape.is_live)),
        gauge("uptime", scrape.now.since(scrape.started).as_secs()),
        gauge("concurrency", totals.workers as u64),
        gauge("total_connections", connections),
    ]
}

/// A group of statistics with a common prefix and label.
struct Scope {
    prefix: String,
    family: &'static str,
    label: String,
}

impl Scope {
    fn cluster(name: &str) -> Self {
        let name = dotted(name);
        Self {
            prefix: format!("cluster.{name}"),
            family: "envoy_cluster",
            label: format!("envoy_cluster_name=\"{}\"", escaped(&name)),
        }
    }

    fn stat(&self, name: &str, value: Value) -> Stat {
        Stat {
            name: format!("{}.{name}", self.prefix),
            family: format!("{}_{name}", self.family),
            labels: self.label.clone(),
            value,
        }
    }

    fn counter(&self, name: &str, value: u64) -> Stat {
        self.stat(name, Value::Counter(value))
    }

    fn gauge(&self, name: &str, value: u64) -> Stat {
        self.stat(name, Value::Gauge(value))
    }

    /// Returns `NAME_2xx` and so on. For Prometheus the class is the first label, as in Envoy.
    fn classes<'a>(&'a self, name: &'a str, counts: &'a [Count]) -> impl Iterator<Item = Stat> + 'a {
        counts.iter().zip(1..).map(move |(count, class)| Stat {
            name: format!("{}.{name}_{class}xx", self.prefix),
            family: format!("{}_{name}_xx", self.family),
            labels: format!("envoy_response_code_class=\"{class}\",{}", self.label),
            value: Value::Counter(count.get()),
        })
    }
}

fn http(name: &str, listener: &ListenerCounts) -> Vec<Stat> {
    let name = dotted(name);
    let scope = Scope {
        prefix: format!("http.{name}"),
        family: "envoy_http",
        label: format!("envoy_http_conn_manager_prefix=\"{}\"", escaped(&name)),
    };
    let mut stats = vec![
        scope.counter("downstream_rq_total", listener.started.get()),
        scope.counter("downstream_rq_completed", listener.finished()),
        scope.counter("downstream_rq_rx_reset", listener.reset.get()),
        scope.gauge("downstream_rq_active", listener.in_flight()),
        scope.counter("downstream_cx_total", listener.opened.get()),
        scope.gauge("downstream_cx_active", listener.connections()),
        scope.stat("downstream_rq_time", Value::Histogram(Box::new(listener.duration.clone()))),
    ];
    stats.extend(scope.classes("downstream_rq", &listener.answered));
    stats
}

/// Returns the number of endpoints of an upstream, and how many of them are healthy.
fn membership(view: &ClusterView) -> Vec<Stat> {
    let scope = Scope::cluster(&view.name);
    let healthy = view.hosts.iter().filter(|host| host.is_healthy()).count();
    vec![
        scope.gauge("membership_total", view.hosts.len() as u64),
        scope.gauge("membership_healthy", healthy as u64),
    ]
}

fn cluster(name: &str, upstream: &UpstreamCounts) -> Vec<Stat> {
    let scope = Scope::cluster(name);
    let mut stats = vec![
        scope.counter("upstream_rq_total", upstream.started.get()),
        scope.counter("upstream_rq_completed", upstream.ended_as("answered")),
        scope.counter("upstream_rq_timeout", upstream.ended_as("timed_out")),
        scope.counter("upstream_rq_rx_reset", upstream.ended_as("reset")),
        scope.counter("upstream_rq_retry", upstream.retries.get()),
        scope.gauge("upstream_rq_active", upstream.in_flight()),
        scope.counter("upstream_cx_total", upstream.opened.get().saturating_add(upstream.failed.get())),
        scope.gauge("upstream_cx_active", upstream.connections()),
        scope.counter("upstream_cx_connect_fail", upstream.failed.get()),
        scope.stat("upstream_rq_time", Value::Histogram(Box::new(upstream.duration.clone()))),
    ];
    stats.extend(scope.classes("upstream_rq", &upstream.answered));
    stats
}

/// Returns a rule's counts as Envoy's local rate limit filter defines them: `rate_limited` is over the limit,
/// `enforced` those of them that were rejected.
fn local_rate_limit(rule: &str, decisions: &Decisions) -> Vec<Stat> {
    use DecisionOutcome::{Allowed, Banned, Delayed, Limited, Shadow, Soft};
    let scope = Scope {
        prefix: format!("{}.http_local_rate_limit", dotted(rule)),
        family: "envoy_http_local_rate_limit",
        label: format!("envoy_local_http_ratelimit_prefix=\"{}\"", escaped(rule)),
    };
    let ok = decisions.of_any(&[Allowed, Soft, Delayed]);
    let over = decisions.of_any(&[Limited, Banned, Shadow]);
    vec![
        scope.counter("enabled", ok.saturating_add(over)),
        scope.counter("ok", ok),
        scope.counter("rate_limited", over),
        scope.counter("enforced", decisions.of_any(&[Limited, Banned])),
        scope.counter("shadow_mode", decisions.of(Shadow)),
    ]
}

/// Makes a name part of a dotted name: colons become underscores, as in Envoy's addresses, and so do control
/// characters, which could end the line.
fn dotted(name: &str) -> String {
    name.replace(|char: char| char == ':' || char.is_control(), "_")
}
