use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use weir_policy::rules::stream_limit::StreamMeasure;

use http::StatusCode;
use regex::Regex;

use super::*;
use weir_limiter::adaptive::controller::ControllerState;
use weir_limiter::classes::{ClassCounts, ClassView, GateView};
use weir_limiter::elastic::Headroom;
use weir_limiter::elastic::controller::Assessment;
use weir_limiter::elastic::signal::{Signal, SignalLevel};
use weir_limiter::feedback::LimitShare;
use weir_net::listener::preamble::ProxyProtocolOutcome;
use weir_net::tls::SessionStart;
use weir_net::tls::key_pair::CertificateValidity;

fn concurrency() -> ConcurrencyView {
    let counts = ClassCounts { admitted: 40, waited: 3, shed: 2, left: 1 };
    let class = ClassView { in_flight: 6, waiting: 4, counts, shed_for: Some(Duration::from_millis(2500)) };
    let limit = ControllerState { limit: 12, baseline: Some(0.02), latency: Some(0.03) };
    let gate = GateView { limit, in_flight: 6, classes: vec![class] };
    ConcurrencyView { classes: vec!["crawlers".into()], gate }
}

fn scrape() -> Scrape {
    Scrape {
        limit_overrides: [(OverrideKind::Boost, 2), (OverrideKind::Ban, 1)],
        certificates: BTreeMap::from([(
            "app.crt".into(),
            CertificateValidity { not_before: 900_000, expires: 1_000_171 },
        )]),
        now: Timestamp::from_secs(1_000_071),
        start_time: Timestamp::from_secs(1_000_000),
        is_live: true,
        keys_per_rule: BTreeMap::from([("per-ip".into(), 12)]),
        table_entries: 15,
        table_capacity: 1000,
        table_overflows: 3,
        dropped_limits: 2,
        access_log_dropped: 2,
        state_file: Some(StateFileSample {
            saves: 5,
            failed_saves: 1,
            last_saved: Some(Timestamp::from_secs(1_000_060)),
            counters: 12,
            bytes: 600,
        }),
        clusters: vec![ClusterView {
            name: "upstream".into(),
            hosts: Vec::new(),
            limits: [0; 4],
            throttle: Some(0.25),
            concurrency: Some(concurrency()),
        }],
        adaptive_limits: vec![AdaptiveLimitSample {
            rule: "per-ip".into(),
            state: AdaptiveState {
                keys: 2,
                lowest: ControllerState { limit: 12, baseline: Some(0.02), latency: Some(0.03) },
            },
        }],
        elastic: Some(elastic()),
        feedback: vec![(
            "provider".into(),
            FeedbackStatus {
                share: LimitShare::from_millionths(250_000),
                paused_for: Duration::from_millis(1500),
                keys: 2,
                rejections: 9,
                decreases: 3,
                delayed_retries: 1,
            },
        )],
        shared_limits: vec![SharedLimitSample {
            rule: "per-ip".into(),
            instances: 7,
            error_bound: f64::INFINITY,
        }],
    }
}

/// Two signals, one of which reports half of the maximum headroom.
fn elastic() -> ElasticSample {
    let mut assessment = Assessment { headroom: Headroom::from_fraction(0.5), ..Assessment::default() };
    let mut level = |signal, value, threshold| {
        assessment.levels[signal as usize] = Some(SignalLevel { signal, value, threshold });
    };
    level(Signal::Latency, 0.02, 0.05);
    level(Signal::Utilization, 0.7, 0.9);
    ElasticSample { assessment, factors: vec![("per-ip".into(), 2.0)] }
}

/// Metrics after a rejected request, a successful one on another worker, and one still in flight.
fn metrics_with_traffic() -> Arc<Metrics> {
    let metrics = Metrics::new(&["inbound", "0.0.0.0:8081"]);
    let (one, other) = (metrics.worker(), metrics.worker());
    for worker in [&one, &other] {
        worker.downstream_connection_opened(0);
        worker.request_started(0);
    }
    one.record_handshake(0, Ok(SessionStart::Resumed));
    drop(one.start_handshake_wait(0));
    std::mem::forget(one.start_handshake(0));
    one.record_proxy_protocol(1, ProxyProtocolOutcome::V2);
    let limited = FinalOutcome::Decided(DecisionOutcome::Limited);
    one.request_finished(0, StatusCode::TOO_MANY_REQUESTS, Duration::from_micros(40), limited);
    one.downstream_connection_closed(0);
    let endpoint = metrics.endpoint("upstream", "127.0.0.1:3000");
    endpoint.connection_opened();
    endpoint.request_started();
    endpoint.request_ended(UpstreamOutcome::Responded(StatusCode::OK));
    endpoint.record_response_time(Duration::from_millis(3));
    metrics.cluster("upstream").record_handshake(Ok(SessionStart::Full));
    // Counts of an endpoint remain after its handle is dropped.
    drop(endpoint);
    let shadow = FinalOutcome::Decided(DecisionOutcome::Shadow);
    other.request_finished(0, StatusCode::OK, Duration::from_millis(4), shadow);
    other.request_started(0);
    other.record_malformed_request();
    metrics.rule("per-ip").record(DecisionOutcome::Allowed);
    metrics.rule("per-ip").record(DecisionOutcome::Limited);
    metrics.rule("per-ip").record(DecisionOutcome::Shadow);
    metrics.store().record_lease_request(3, 1);
    metrics.remote("limits:8081").record_call(RemoteOutcome::OverLimit, Some(Duration::from_millis(2)));
    metrics.remote("limits:8081").record_call(RemoteOutcome::Skipped, None);
    let brazil = "BR".parse().ok();
    one.record_country(brazil, true);
    other.record_country(brazil, true);
    other.record_country(None, false);
    let alerts = metrics.alerts(["WeirStoreLost"]);
    alerts.set_firing("WeirStoreLost", 1);
    alerts.record_failed();
    metrics.spans().exported.increment(5);
    metrics.spans().dropped.increment(3);
    metrics
}

/// Parses series and values, checking the syntax of every line.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let series =
        Regex::new(r#"^([a-z_:][a-z0-9_:]*)(\{(?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*\})? (\S+)$"#).unwrap();
    let mut values = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let found = series.captures(line).unwrap_or_else(|| panic!("invalid series: {line}"));
        let known = values.insert(line.rsplit_once(' ').unwrap().0.to_owned(), found[3].parse().unwrap());
        assert!(known.is_none(), "duplicate series: {line}");
    }
    values
}

#[test]
fn rendered_metrics_sum_all_workers() {
    let text = metrics_with_traffic().render(&scrape());
    let values = parse(&text);
    let expected = [
        (r#"weir_requests_total{listener="inbound",code_class="2xx"}"#, 1.0),
        (r#"weir_requests_total{listener="inbound",code_class="4xx"}"#, 1.0),
        (r#"weir_requests_total{listener="0.0.0.0:8081",code_class="5xx"}"#, 0.0),
        (r#"weir_requests_in_flight{listener="inbound"}"#, 1.0),
        (r#"weir_downstream_connections{listener="inbound"}"#, 1.0),
        (r#"weir_downstream_connections_total{listener="inbound"}"#, 2.0),
        (r#"weir_request_duration_seconds_bucket{listener="inbound",le="0.00005"}"#, 1.0),
        (r#"weir_request_duration_seconds_bucket{listener="inbound",le="0.005"}"#, 2.0),
        (r#"weir_request_duration_seconds_count{listener="inbound"}"#, 2.0),
        (r#"weir_request_duration_seconds_sum{listener="inbound"}"#, 0.00404),
        (r#"weir_upstream_requests_total{upstream="upstream",outcome="answered"}"#, 1.0),
        (r#"weir_upstream_responses_total{upstream="upstream",code_class="2xx"}"#, 1.0),
        (r#"weir_upstream_request_duration_seconds_bucket{upstream="upstream",le="+Inf"}"#, 1.0),
        (r#"weir_upstream_connections{upstream="upstream"}"#, 1.0),
        (r#"weir_remote_requests_total{service="limits:8081",outcome="over_limit"}"#, 1.0),
        (r#"weir_remote_requests_total{service="limits:8081",outcome="skipped"}"#, 1.0),
        (r#"weir_remote_requests_total{service="limits:8081",outcome="ok"}"#, 0.0),
        (r#"weir_remote_request_duration_seconds_count{service="limits:8081"}"#, 1.0),
        (r#"weir_tls_handshakes_total{listener="inbound",outcome="resumed"}"#, 1.0),
        (r#"weir_tls_handshakes_in_flight{listener="inbound"}"#, 1.0),
        (r#"weir_tls_handshakes_waiting{listener="inbound"}"#, 0.0),
        (r#"weir_upstream_tls_handshakes_total{upstream="upstream",outcome="full"}"#, 1.0),
        (r#"weir_proxy_protocol_connections_total{listener="0.0.0.0:8081",outcome="v2"}"#, 1.0),
        (r#"weir_tls_certificate_expiry_seconds{certificate="app.crt"}"#, 100.0),
        (r#"weir_tls_certificate_expiry_timestamp_seconds{certificate="app.crt"}"#, 1_000_171.0),
        (r#"weir_tls_certificate_not_before_timestamp_seconds{certificate="app.crt"}"#, 900_000.0),
        (r#"weir_geo_decisions_total{country="BR",outcome="rejected"}"#, 2.0),
        (r#"weir_geo_decisions_total{country="unknown",outcome="admitted"}"#, 1.0),
        (r#"weir_alerts_firing{alertname="WeirStoreLost"}"#, 1.0),
        (r#"weir_alerts_notifications_total{outcome="failed"}"#, 1.0),
        ("weir_workers", 2.0),
        ("weir_requests_malformed_total", 1.0),
        (r#"weir_decisions_total{rule="per-ip",outcome="limited"}"#, 1.0),
        (r#"weir_decisions_total{rule="per-ip",outcome="banned"}"#, 0.0),
        (r#"weir_request_outcomes_total{listener="inbound",outcome="limited"}"#, 1.0),
        (r#"weir_request_outcomes_total{listener="inbound",outcome="shadow"}"#, 1.0),
        (r#"weir_request_outcomes_total{listener="inbound",outcome="allowed"}"#, 0.0),
        (r#"weir_limiter_keys{rule="per-ip"}"#, 12.0),
        ("weir_limiter_overflow_total", 3.0),
        ("weir_access_log_dropped_total", 2.0),
        ("weir_spans_exported_total", 5.0),
        ("weir_spans_dropped_total", 3.0),
        (r#"weir_elastic_factor{rule="per-ip"}"#, 2.0),
        (r#"weir_concurrency_limit{rule="per-ip"}"#, 12.0),
        (r#"weir_concurrency_keys{rule="per-ip"}"#, 2.0),
        (r#"weir_concurrency_min_latency_seconds{rule="per-ip"}"#, 0.02),
        (r#"weir_feedback_share{rule="provider"}"#, 0.25),
        (r#"weir_feedback_paused_seconds{rule="provider"}"#, 1.5),
        (r#"weir_feedback_rejections_total{rule="provider"}"#, 9.0),
        (r#"weir_shared_error_bound{rule="per-ip"}"#, f64::INFINITY),
        (r#"weir_shared_instances{rule="per-ip"}"#, 7.0),
        (r#"weir_elastic_signal{signal="latency"}"#, 0.02),
        (r#"weir_elastic_signal_threshold{signal="utilization"}"#, 0.9),
        ("process_start_time_seconds", 1_000_000.0),
    ];
    for (series, value) in expected {
        assert_eq!(values.get(series), Some(&value), "{series} in\n{text}");
    }
}

#[test]
fn every_metric_has_help_a_type_and_a_conventional_name() {
    let metrics = metrics_with_traffic();
    metrics.record_initial_config(1, Timestamp::from_secs(1_000_000));
    metrics.rls_stats();
    metrics.fetches();
    drop(metrics.wait("per-ip").start_wait());
    drop(metrics.deferred("per-ip"));
    metrics.rule("per-ip").show_unreadable_limits();
    metrics.streams("per-ip").record(
        StreamMeasure::ALL[0],
        StreamOutcome::Delayed,
        1,
        Duration::from_secs(1),
    );
    metrics.stated_cost("per-ip").record(StatedCostOutcome::Stated, 1);
    let text = metrics.render(&scrape());
    let names_after = |prefix| -> BTreeSet<&str> {
        text.lines().filter_map(|line| line.strip_prefix(prefix)?.split(' ').next()).collect()
    };
    let names = Regex::new(r#""((?:weir|process|ratelimit)_[a-z_]+)""#).unwrap();
    let declared = names.captures_iter(include_str!("families.rs"));
    let all: BTreeSet<&str> = declared.map(|found| found.extract::<1>().1[0]).collect();
    assert_eq!(names_after("# HELP "), all);
    assert_eq!(names_after("# TYPE "), all);
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        // The names of envoyproxy/ratelimit follow other conventions.
        let is_conventional = (kind == "counter") == name.ends_with("_total");
        assert!(is_conventional || name.starts_with("ratelimit_"), "{line}");
    }
    for line in text.lines().filter(|line| line.starts_with("# HELP ")) {
        assert!(line.ends_with('.'), "{line}");
    }
    for series in parse(&text).keys() {
        let name = series.split('{').next().unwrap();
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| {
            let family = name.strip_suffix(suffix)?;
            all.contains(family).then_some(family)
        });
        assert!(all.contains(family.unwrap_or(name)), "{name}");
    }
}

#[test]
fn counters_continue_across_reloads() {
    let metrics = metrics_with_traffic();
    let before = parse(&metrics.render(&scrape()));
    metrics.rule("per-ip").record(DecisionOutcome::Allowed);
    metrics.worker().request_started(0);
    metrics.record_config_reload(ReloadOutcome::Applied, 2, Timestamp::from_secs(1_000_060));
    let text = metrics.render(&scrape());
    let after = parse(&text);
    for (series, value) in before.iter().filter(|(series, _)| series.contains("_total")) {
        assert!(after[series] >= *value, "{series}");
    }
    assert_eq!(after[r#"weir_decisions_total{rule="per-ip",outcome="allowed"}"#], 2.0);
}

#[test]
fn rejected_reload_is_reported_until_one_succeeds() {
    let metrics = Metrics::new(&["inbound"]);
    let value = |series: &str| parse(&metrics.render(&scrape()))[series];
    metrics.record_initial_config(1, Timestamp::from_secs(10));
    metrics.record_config_reload(ReloadOutcome::Rejected, 1, Timestamp::from_secs(20));
    assert_eq!(value("weir_config_last_reload_successful"), 0.0);
    assert_eq!(value("weir_config_last_reload_success_timestamp_seconds"), 10.0);
    metrics.record_config_reload(ReloadOutcome::Applied, 2, Timestamp::from_secs(30));
    assert_eq!(value("weir_config_last_reload_successful"), 1.0);
    assert_eq!(value("weir_config_last_reload_success_timestamp_seconds"), 30.0);
    assert_eq!(value("weir_config_generation"), 2.0);
    assert_eq!(value(r#"weir_config_reloads_total{outcome="rejected"}"#), 1.0);
    assert_eq!(value(r#"weir_config_reloads_total{outcome="unchanged"}"#), 0.0);
}

#[test]
fn removed_rule_has_no_keys() {
    let metrics = metrics_with_traffic();
    metrics.render(&scrape());
    let scrape = Scrape { keys_per_rule: BTreeMap::new(), ..scrape() };
    assert_eq!(parse(&metrics.render(&scrape))[r#"weir_limiter_keys{rule="per-ip"}"#], 0.0);
}

#[test]
fn special_characters_in_names_keep_the_metrics_format_valid() {
    let metrics = Metrics::new(&["quote\"back\\slash"]);
    for name in ["a\"b", "a\\", "a\\\\", "a\\\"", "new\nline", "ключ"] {
        metrics.rule(name).record(DecisionOutcome::Allowed);
    }
    parse(&metrics.render(&scrape()));
    parse(&metrics.envoy_stats(&scrape(), &StatsFilter::default()).to_prometheus());
}

#[test]
fn request_reset_by_its_client_is_not_in_flight() {
    let metrics = Metrics::new(&["inbound"]);
    let worker = metrics.worker();
    worker.request_started(0);
    let endpoint = metrics.endpoint("api", "127.0.0.1:3000");
    endpoint.request_started();
    endpoint.request_ended(UpstreamOutcome::Abandoned);
    worker.request_reset(0, FinalOutcome::Abandoned);
    let values = parse(&metrics.render(&scrape()));
    assert_eq!(values[r#"weir_request_outcomes_total{listener="inbound",outcome="abandoned"}"#], 1.0);
    assert_eq!(values[r#"weir_requests_in_flight{listener="inbound"}"#], 0.0);
    assert_eq!(values[r#"weir_upstream_requests_in_flight{upstream="api"}"#], 0.0);
    assert_eq!(metrics.upstream_totals().failures(), 0);
}

#[test]
fn upstream_counts_are_kept_per_endpoint_and_summed() {
    let metrics = Metrics::new(&[]);
    let endpoints = ["a:1", "b:1", "a:1"].map(|address| metrics.endpoint("api", address));
    endpoints.iter().for_each(EndpointMetrics::request_started);
    let started = |address: &str| {
        metrics.endpoint_counts("api").get(address).map(|counts| counts.requests_started.get())
    };
    assert_eq!((started("a:1"), started("b:1")), (Some(2), Some(1)));
    assert_eq!(metrics.upstream_totals().requests_started.get(), 3);
    drop(endpoints);
    assert_eq!(metrics.upstream_totals().requests_started.get(), 3);
    assert_eq!(started("a:1"), None);
}

#[test]
fn requests_of_an_unknown_listener_are_not_counted() {
    let metrics = Metrics::new(&[]);
    metrics.worker().request_started(7);
    metrics.worker().request_finished(7, StatusCode::OK, Duration::ZERO, FinalOutcome::Shed);
}

#[test]
fn envoy_stats_have_the_same_values() {
    let text = metrics_with_traffic().envoy_stats(&scrape(), &StatsFilter::default()).to_prometheus();
    let values = parse(&text);
    let expected = [
        ("envoy_server_live{}", 1.0),
        ("envoy_server_uptime{}", 71.0),
        ("envoy_server_concurrency{}", 2.0),
        (r#"envoy_http_downstream_rq_total{envoy_http_conn_manager_prefix="inbound"}"#, 3.0),
        (r#"envoy_http_downstream_rq_active{envoy_http_conn_manager_prefix="inbound"}"#, 1.0),
        (
            r#"envoy_http_downstream_rq_xx{envoy_response_code_class="4",envoy_http_conn_manager_prefix="inbound"}"#,
            1.0,
        ),
        (r#"envoy_http_downstream_rq_time_bucket{envoy_http_conn_manager_prefix="inbound",le="0.5"}"#, 1.0),
        (r#"envoy_http_downstream_rq_time_bucket{envoy_http_conn_manager_prefix="inbound",le="5"}"#, 2.0),
        (r#"envoy_http_downstream_cx_total{envoy_http_conn_manager_prefix="0.0.0.0_8081"}"#, 0.0),
        (r#"envoy_cluster_upstream_rq_total{envoy_cluster_name="upstream"}"#, 1.0),
        (r#"envoy_cluster_upstream_cx_active{envoy_cluster_name="upstream"}"#, 1.0),
        (r#"envoy_http_local_rate_limit_enabled{envoy_local_http_ratelimit_prefix="per-ip"}"#, 3.0),
        (r#"envoy_http_local_rate_limit_rate_limited{envoy_local_http_ratelimit_prefix="per-ip"}"#, 2.0),
        (r#"envoy_http_local_rate_limit_enforced{envoy_local_http_ratelimit_prefix="per-ip"}"#, 1.0),
    ];
    for (series, value) in expected {
        assert_eq!(values.get(series), Some(&value), "{series} in\n{text}");
    }
    assert!(!text.contains("# HELP"), "{text}");
    let types: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
    assert_eq!(types.iter().collect::<BTreeSet<_>>().len(), types.len(), "each family occurs once");
}

#[test]
fn envoy_stats_are_sorted_and_filtered() {
    let metrics = metrics_with_traffic();
    let all = metrics.envoy_stats(&scrape(), &StatsFilter::default()).to_text();
    let names: Vec<_> = all.lines().map(|line| line.split_once(": ").unwrap().0).collect();
    assert!(names.is_sorted(), "{all}");
    assert!(all.contains("http.inbound.downstream_rq_4xx: 1\n"), "{all}");
    let filter = StatsFilter { name: Some(Regex::new("rate_limit").unwrap()), used_only: true };
    let some = metrics.envoy_stats(&scrape(), &filter);
    assert_eq!(
        some.to_text(),
        "per-ip.http_local_rate_limit.enabled: 3\nper-ip.http_local_rate_limit.enforced: 1\n\
         per-ip.http_local_rate_limit.ok: 1\nper-ip.http_local_rate_limit.rate_limited: 2\n\
         per-ip.http_local_rate_limit.shadow_mode: 1\n"
    );
    assert_eq!(some.to_json()["stats"][1]["name"], "per-ip.http_local_rate_limit.enforced");
    assert_eq!(some.to_json()["stats"][1]["value"], 1);
}

#[test]
fn contained_panics_are_counted() {
    use crate::panics;
    let panics_metric = || {
        let text = metrics_with_traffic().render(&scrape());
        let line = text.lines().find_map(|line| line.strip_prefix("weir_panics_total ")).unwrap();
        line.parse::<u64>().unwrap()
    };
    // The second call has no effect.
    panics::install_hook();
    panics::install_hook();
    let before = panics_metric();
    assert!(std::thread::spawn(|| panic!("panic of a test")).join().is_err());
    assert!(panics_metric() > before);
    assert!(panics::count() > before);
}
