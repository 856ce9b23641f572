use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::Duration;

use http::header::HOST;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use weir_config::reload::ReloadAttempt;
use weir_limiter::algorithm::Algorithm;
use weir_limiter::decision::Enforcement;
use weir_limiter::leases::PartsByGroup;
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};
use weir_limiter::reservation::ChargeTiming;
use weir_limiter::{Check, LimitId, LimiterSettings};
use weir_net::drain::DrainPhase;
use weir_net::overload::{AvailableMemory, MemoryLimit, OverloadSettings};
use weir_policy::engine::PolicySpec;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::key::KeyTemplate;
use weir_policy::rules::rule::{Action, LimitAction, OnMissing, Rule};
use weir_telemetry::logging::{self, LogMessageFormat};
use weir_telemetry::metrics::{DecisionOutcome, HostView, ReloadOutcome};

const NOW: Timestamp = Timestamp::from_secs(1_795_239_071);

fn rule(name: &str, action: Action) -> Rule {
    Rule { name: name.into(), action, ..Rule::default() }
}

fn per_ip() -> Rule {
    let limit = Limit::new(NonZeroU32::new(100).unwrap(), Period::one(TimeUnit::Second));
    let quota = Quota::new(Algorithm::Gcra, limit, NonZeroU32::new(200)).unwrap();
    let limiting = LimitAction {
        key: KeyTemplate([Attribute::ClientIp].into()),
        on_missing: OnMissing::Skip,
        limits: [quota.into()].into(),
        ..LimitAction::default()
    };
    rule("per-ip", Action::Limit(limiting))
}

fn policy(limiter: &Limiter) -> Arc<Policy> {
    let rules = [rule("health", Action::Allow), per_ip()].into();
    let spec = PolicySpec { rules, ..PolicySpec::default() };
    spec.install(1, limiter, NOW)
}

fn levels() -> LevelHandle {
    let (subscriber, levels) = logging::subscriber("info", LogMessageFormat::Text, std::io::sink).unwrap();
    // The handle works only while its subscriber exists, so the subscriber is leaked.
    std::mem::forget(subscriber);
    levels
}

/// A process whose state does not change.
struct FakeProcess {
    now: Arc<Mutex<Timestamp>>,
    policy: Arc<Policy>,
    /// If set, reading the configuration's status panics.
    is_broken: bool,
}

impl Inspect for FakeProcess {
    fn now(&self) -> Timestamp {
        *self.now.lock().unwrap()
    }

    fn wall_clock(&self) -> Timestamp {
        NOW
    }

    fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy)
    }

    fn log_keys(&self) -> Option<LogKeys> {
        None
    }

    fn upstreams(&self) -> Vec<ClusterView> {
        let host = HostView {
            address: "127.0.0.1:3000".into(),
            hostname: "localhost:3000".into(),
            health: "healthy",
        };
        let limits = [1024, 1024, 1024, 3];
        vec![ClusterView { name: "upstream".into(), hosts: vec![host], limits, ..ClusterView::default() }]
    }

    fn server_tls(&self) -> Vec<Arc<TlsServer>> {
        Vec::new()
    }

    fn client_tls(&self) -> Vec<Arc<TlsClient>> {
        Vec::new()
    }

    fn configuration(&self) -> ReloadStatus {
        assert!(!self.is_broken, "simulated bug");
        let problems = vec!["weir.yaml:3:1: rules[0].limit: missing".to_owned()];
        let outcome = ReloadOutcome::Rejected;
        ReloadStatus {
            generation: 1,
            file: "weir.yaml".into(),
            text: "rules: []\nadmin: {password: s3cr3t}\n".into(),
            text_hash: 0,
            document: None,
            last_attempt: Some(ReloadAttempt { time: NOW, outcome, problems, warnings: Vec::new() }),
        }
    }

    fn state_file(&self) -> Option<state_file::StateFileStatus> {
        Some(state_file::StateFileStatus { saved: 3, ..state_file::StateFileStatus::default() })
    }

    fn store_parts(&self) -> PartsByGroup {
        PartsByGroup::default()
    }

    fn is_store_unreachable(&self) -> Option<bool> {
        Some(false)
    }

    fn region(&self) -> Option<RegionStatus> {
        None
    }

    fn store_wait(&self) -> Duration {
        Duration::ZERO
    }

    fn last_unanswered_wait(&self, _: &[LimitId]) -> Option<Timestamp> {
        None
    }

    fn deferred(&self) -> Option<DeferredHandle> {
        None
    }

    fn preview_documents(&self, _: &str, _: &[(String, String)]) -> Option<DocumentReport> {
        None
    }

    fn rate_limit_service(&self) -> Option<&RlsHandler> {
        None
    }

    fn elastic_assessment(&self) -> Option<Assessment> {
        None
    }
}

/// Access through loopback, under one more name.
fn access(token: Option<AdminToken>) -> Arc<AdminAccess> {
    let access = AdminAccess::default();
    access.apply(&AdminSettings {
        address: ([127, 0, 0, 1], 9901).into(),
        probe_address: None,
        is_explicit: true,
        allowed_hosts: Box::new(["weir.internal".into()]),
        token,
    });
    access.into()
}

/// Returns a state with one listener and two rules, one of which has counted a request.
fn state() -> AdminState {
    state_with(Arc::new(Mutex::new(NOW)), false)
}

fn state_with(now: Arc<Mutex<Timestamp>>, is_broken: bool) -> AdminState {
    let limiter = Arc::new(Limiter::new(LimiterSettings { max_keys: 100, secret: [1, 2] }));
    let policy = policy(&limiter);
    let limit_handle = policy.rules.limit_handles(RuleIndex(1)).next().unwrap();
    let check = Check {
        handle: limit_handle,
        key: limiter.hasher().hash(b"a"),
        cost: 1,
        enforcement: Enforcement::Enforced,
        charge_timing: ChargeTiming::OnArrival,
        options: None,
    };
    limiter.check(&[check], NOW);
    let metrics = Metrics::new(&["inbound"]);
    metrics.rule("health");
    metrics.rule("per-ip").record(DecisionOutcome::Allowed);
    AdminState {
        process: Box::new(FakeProcess { now, policy, is_broken }),
        metrics,
        limiter,
        drain: Arc::default(),
        replacement: Arc::default(),
        overload: Arc::new(OverloadManager::new(
            &OverloadSettings { memory: MemoryLimit::Bytes(1000), ..OverloadSettings::default() },
            100,
            AvailableMemory { bytes: 2000, is_limit: false },
        )),
        log_levels: levels(),
        access_logs: Arc::default(),
        top_keys: Arc::default(),
        demand: Arc::default(),
        events: EventHub::default(),
        recent: RecentSamples::default(),
        start_time: Timestamp::from_secs(NOW.as_secs() - 71),
        workers: 2,
        access: access(None),
        rejections: RejectionAudit::default(),
        overrides: Arc::default(),
        listeners: Arc::new(ArcSwap::from_pointee(vec![ListenerInfo {
            name: "inbound".into(),
            address: ListenAddress::Tcp(([127, 0, 0, 1], 8080).into()),
        }])),
        key_counts: KeyCounts::default(),
    }
}

async fn send(state: &AdminState, surface: Surface, request: Request<()>) -> (StatusCode, String) {
    let (parts, body) = handle(&request, state, surface).into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts.status, String::from_utf8(body.into()).unwrap())
}

async fn call(state: &AdminState, method: Method, uri: &str) -> (StatusCode, String) {
    send(state, Surface::Full, Request::builder().method(method).uri(uri).body(()).unwrap()).await
}

async fn get(state: &AdminState, uri: &str) -> String {
    let (status, body) = call(state, Method::GET, uri).await;
    assert_eq!(status, StatusCode::OK, "{uri}: {body}");
    body
}

async fn get_json(state: &AdminState, uri: &str) -> Value {
    serde_json::from_str(&get(state, uri).await).unwrap()
}

async fn post(state: &AdminState, uri: &str) -> String {
    let (status, body) = call(state, Method::POST, uri).await;
    assert_eq!(status, StatusCode::OK, "{uri}: {body}");
    body
}

#[tokio::test]
async fn readiness_reflects_health_check_commands_and_drain() {
    let state = state();
    assert_eq!(get(&state, "/ready").await, "LIVE\n");
    state.overload.record_memory(1000);
    assert_eq!(
        call(&state, Method::GET, "/ready").await,
        (StatusCode::SERVICE_UNAVAILABLE, "OVERLOADED\n".to_owned())
    );
    state.overload.record_memory(0);
    assert_eq!(post(&state, "/healthcheck/fail").await, "OK\n");
    assert_eq!(
        call(&state, Method::GET, "/ready").await,
        (StatusCode::SERVICE_UNAVAILABLE, "DRAINING\n".to_owned())
    );
    post(&state, "/healthcheck/ok").await;
    assert_eq!(get(&state, "/ready").await, "LIVE\n");
    post(&state, "/drain_listeners?graceful").await;
    assert_eq!(state.drain.phase(), DrainPhase::NotReady);
    post(&state, "/drain_listeners").await;
    assert_eq!(state.drain.phase(), DrainPhase::Draining);
    assert_eq!(get_json(&state, "/server_info").await["state"], "DRAINING");
}

#[tokio::test]
async fn admin_commands_require_post_and_reject_browsers() {
    let state = state();
    let (status, body) = call(&state, Method::GET, "/quitquitquit").await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(body, "Method GET not allowed, POST required.");
    let request =
        Request::post("/healthcheck/fail").header("origin", "http://evil.example").body(()).unwrap();
    assert_eq!(send(&state, Surface::Full, request).await.0, StatusCode::FORBIDDEN);
    for site in ["cross-site", "same-site", "", "none, cross-site"] {
        let request = Request::post("/healthcheck/fail").header("sec-fetch-site", site).body(()).unwrap();
        assert_eq!(send(&state, Surface::Full, request).await.0, StatusCode::FORBIDDEN, "{site}");
    }
    assert!(state.drain.is_ready());
    let response = handle(&Request::get("/logging").body(()).unwrap(), &state, Surface::Full);
    assert_eq!(response.headers()["allow"], "POST");
    assert_eq!(call(&state, Method::POST, "/ready").await.0, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn quitquitquit_requests_exit() {
    let state = state();
    post(&state, "/quitquitquit").await;
    state.drain.wait_for_exit_request().await;
}

#[tokio::test]
async fn admin_responses_forbid_caching_and_sniffing() {
    let state = state();
    for path in router::ENDPOINTS.iter().map(|endpoint| endpoint.path).chain(["/nowhere"]) {
        let response = handle(&Request::get(path).body(()).unwrap(), &state, Surface::Full);
        assert_eq!(response.headers()["cache-control"], "no-cache, max-age=0", "{path}");
        assert_eq!(response.headers()["x-content-type-options"], "nosniff", "{path}");
        let head = handle(&Request::head(path).body(()).unwrap(), &state, Surface::Full);
        assert_eq!(head.status(), response.status(), "{path}");
    }
}

#[tokio::test]
async fn unknown_admin_path_lists_endpoints() {
    let (status, body) = call(&state(), Method::GET, "/stats/").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    for endpoint in &router::ENDPOINTS {
        assert!(body.contains(&format!("  {}", endpoint.path)), "{body}");
    }
}

#[tokio::test]
async fn probes_surface_serves_only_readiness_and_metrics() {
    let state = state();
    for endpoint in &router::ENDPOINTS {
        for method in [Method::GET, Method::POST] {
            let request = Request::builder().method(&method).uri(endpoint.path).body(()).unwrap();
            let (status, body) = send(&state, Surface::Probes, request).await;
            let is_offered = method == Method::GET && ["/ready", "/metrics"].contains(&endpoint.path);
            assert_eq!(status == StatusCode::OK, is_offered, "{method} {}: {body}", endpoint.path);
            assert!(is_offered || body == "not found\n", "{body}");
        }
    }
}

#[tokio::test]
async fn limits_show_rules_counters_and_decisions() {
    let limits = get_json(&state(), "/limits").await;
    let rule = &limits["rules"][1];
    assert_eq!((&rule["name"], &rule["key"]), (&"per-ip".into(), &"[client_ip]".into()));
    assert_eq!(rule["limits"][0]["limit"], "100/s");
    assert_eq!(rule["limits"][0]["burst"], 200);
    assert_eq!((&rule["counters"], &rule["decisions"]["allowed"]), (&1.into(), &1.into()));
    assert_eq!(limits["rules"][0]["action"], "allow");
    let table =
        serde_json::json!({"live": 1, "capacity": 100, "overflows": 0, "shards": 1, "crowded_shards": 0});
    assert_eq!(limits["table"], table);
    assert_eq!(limits["config"]["last_reload"]["outcome"], "rejected");
}

#[tokio::test]
async fn server_info_shows_errors_of_a_rejected_reload() {
    let info = get_json(&state(), "/server_info").await;
    let reload = &info["config"]["last_reload"];
    assert_eq!(reload["problems"][0], "weir.yaml:3:1: rules[0].limit: missing");
    assert_eq!(reload["at"], "2026-11-21T05:31:11.000Z");
    assert_eq!(info["uptime_current_epoch"], "71s");
}

#[tokio::test]
async fn config_dump_has_rules_and_no_secrets() {
    let dump = get(&state(), "/config_dump").await;
    assert!(dump.contains("per-ip") && dump.contains("[redacted]") && !dump.contains("s3cr3t"), "{dump}");
}

#[tokio::test]
async fn listeners_and_clusters_are_listed_in_envoys_format() {
    let state = state();
    assert_eq!(get(&state, "/listeners").await, "inbound::127.0.0.1:8080\n");
    let listeners = get_json(&state, "/listeners?format=json").await;
    let socket = &listeners["listener_statuses"][0]["local_address"]["socket_address"];
    assert_eq!(socket["port_value"], 8080);
    let clusters = get(&state, "/clusters").await;
    assert!(clusters.contains("upstream::127.0.0.1:3000::rq_total::0\n"), "{clusters}");
    let clusters = get_json(&state, "/clusters?format=json").await;
    assert_eq!(clusters["cluster_statuses"][0]["host_statuses"][0]["hostname"], "localhost:3000");
    assert_eq!(get_json(&state, "/certs").await["certificates"], serde_json::json!([]));
}

#[tokio::test]
async fn stats_have_envoys_names() {
    let state = state();
    let text = get(&state, "/stats?filter=local_rate_limit%5C.ok&usedonly").await;
    assert_eq!(text, "per-ip.http_local_rate_limit.ok: 1\n");
    assert!(get_json(&state, "/stats?format=json").await["stats"].is_array());
    assert_eq!(get(&state, "/stats?format=prometheus").await, get(&state, "/stats/prometheus").await);
    assert!(get(&state, "/metrics").await.contains("weir_limiter_keys{rule=\"per-ip\"} 1\n"));
    assert_eq!(call(&state, Method::GET, "/stats?filter=(").await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn log_levels_can_be_set_and_shown() {
    let state = state();
    assert_eq!(post(&state, "/logging?level=debug").await, "active loggers:\n  default: debug\n");
    let shown = post(&state, "/logging?paths=weir::proxy:trace,weir::upstream:off").await;
    assert_eq!(shown, "active loggers:\n  default: debug\n  weir::proxy: trace\n  weir_upstream: off\n");
    for wrong in [
        "/logging?level=loud",
        "/logging?paths=weir",
        "/logging?a%0Ab=info",
        "/logging?paths=weir::stor:debug",
    ] {
        assert_eq!(call(&state, Method::POST, wrong).await.0, StatusCode::BAD_REQUEST, "{wrong}");
    }
    assert_eq!(post(&state, "/logging").await, shown);
}

#[tokio::test]
async fn key_counts_are_cached_for_a_second() {
    let now = Arc::new(Mutex::new(NOW));
    let state = state_with(Arc::clone(&now), false);
    let policy = state.process.policy();
    assert_eq!(scrape::keys_per_rule(&state, &policy), [0, 1]);
    let limit_handle = policy.rules.limit_handles(RuleIndex(1)).next().unwrap();
    let key = state.limiter.hasher().hash(b"b");
    state.limiter.charge(limit_handle, key, 200, NOW);
    assert_eq!(scrape::keys_per_rule(&state, &policy), [0, 1]);
    *now.lock().unwrap() = NOW.saturating_add(Duration::from_secs(1));
    assert_eq!(scrape::keys_per_rule(&state, &policy), [0, 1], "the first has expired, the second has not");
}

async fn send_raw(stream: &mut TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    let _ = stream.read_to_string(&mut response).await;
    response
}

#[tokio::test]
async fn admin_server_responds_until_the_last_drain_phase() {
    let state = Arc::new(state_with(Arc::new(Mutex::new(NOW)), true));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(serve(listener, Arc::clone(&state), Surface::Full));

    let mut broken = TcpStream::connect(address).await.unwrap();
    let response =
        send_raw(&mut broken, "GET /server_info HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await;
    assert!(response.starts_with("HTTP/1.1 500 "), "{response}");

    let mut head = TcpStream::connect(address).await.unwrap();
    let response =
        send_raw(&mut head, "HEAD /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
    assert!(response.starts_with("HTTP/1.1 200 ") && response.ends_with("\r\n\r\n"), "{response}");

    let mut idle = TcpStream::connect(address).await.unwrap();
    state.drain.advance(DrainPhase::Draining);
    let mut last = TcpStream::connect(address).await.unwrap();
    let response =
        send_raw(&mut last, "GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
    assert!(response.starts_with("HTTP/1.1 503 "), "{response}");

    state.drain.advance(DrainPhase::Terminated);
    server.await.unwrap();
    assert_eq!(idle.read(&mut [0; 1]).await.unwrap(), 0);
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn metrics_response_can_be_large() {
    let state = Arc::new(state());
    for rule in 0..2000 {
        state.metrics.rule(&format!("rule-{rule}"));
    }
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let server = tokio::spawn(serve(listener, state, Surface::Probes));
    let response =
        send_raw(&mut stream, "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
    assert!(response.matches("weir_decisions_total{").count() > 16_000);
    server.abort();
}

#[tokio::test]
async fn with_a_token_only_the_page_without_data_is_served_to_others() {
    let state = state();
    let open = get(&state, "/").await;
    let state = AdminState { access: access(AdminToken::new("0123456789abcdef").ok()), ..state };
    for endpoint in &router::ENDPOINTS {
        let method =
            if endpoint.effect == router::EndpointEffect::Command { Method::POST } else { Method::GET };
        let (status, body) = call(&state, method, endpoint.path).await;
        let expected =
            if ["/", "/help"].contains(&endpoint.path) { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
        assert_eq!(status, expected, "{}: {body}", endpoint.path);
        assert!(!body.contains("per-ip") && !body.contains("inbound"), "{}: {body}", endpoint.path);
    }
    assert_eq!(get(&state, "/").await, open);
    let rebound = Request::builder().uri("/").header(HOST, "evil.example").body(()).unwrap();
    assert_eq!(send(&state, Surface::Full, rebound).await.0, StatusCode::FORBIDDEN);
    assert_eq!(call(&state, Method::POST, "/").await.0, StatusCode::METHOD_NOT_ALLOWED);
}

#[test]
fn recent_history_has_what_was_counted_before_its_first_sample() {
    let state = state();
    state.recent.add(recent::Sample::at_start(&state));
    state.recent.add(recent::Sample::now(&state));
    assert_eq!(state.recent.history()["points"][0]["rules"], serde_json::json!({ "per-ip": [1, 0, 0, 0] }));
}
