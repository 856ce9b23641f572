//! Rules with limits of a remote rate limit service: Weir's own, and one whose responses a test defines.

mod fake_service;
mod tls;

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use fake_service::{FakeRateLimitService, header, response_with_code};
use tonic::Status;

use crate::rls::RlsService;
use crate::support::h2::H2Client;
use crate::support::origin::refusing_address;
use crate::support::{AfterResponse, Client, Origin, Request, Weir, config, fetch, get, wait};

const RULES: &str = "domain: edge
descriptors:
  - key: remote_address
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: x-tenant
    rate_limit: { unit: year, requests_per_unit: 1 }
";

/// Starts a proxy with these rules, in which `{service}` is replaced by the settings of the service.
fn start_proxy(service: impl Display, rules: &str) -> Weir {
    // A timeout long enough for a busy machine.
    let rules = rules.replace("{service}", &format!("rls: '{service}', timeout: 20s"));
    Weir::start(&config("echo", &format!("rules:\n{rules}")))
}

fn status_for_tenant(weir: &Weir, name: &str) -> u16 {
    fetch(weir.address(), &Request::get("/").header("x-tenant", name)).status
}

fn decisions(weir: &Weir, rule: &str, outcome: &str) -> u64 {
    weir.metric("weir_decisions_total", &[("rule", rule), ("outcome", outcome)]) as u64
}

fn remote_requests(weir: &Weir, service: SocketAddr, outcome: &str) -> u64 {
    let service = service.to_string();
    weir.metric("weir_remote_requests_total", &[("service", &service), ("outcome", outcome)]) as u64
}

/// Returns the keys and values of each descriptor.
fn entries(request: &RateLimitRequest) -> Vec<Vec<(String, String)>> {
    let pairs = request.descriptors.iter().map(|one| one.entries.iter());
    pairs.map(|all| all.map(|entry| (entry.key.clone(), entry.value.clone())).collect()).collect()
}

fn entry_pairs<const N: usize>(pairs: [(&str, &str); N]) -> Vec<(String, String)> {
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

#[test]
fn remote_service_enforces_one_limit_for_several_proxies() {
    let service = RlsService::start(&[("edge.yaml", RULES)]);
    let rule = "  - { name: per-ip, key: client_ip, scope: { {service}, domain: edge } }\n";
    let weirs = [(); 2].map(|()| start_proxy(service.weir.rls_address("grpc"), rule));
    let first = get(weirs[0].address(), "/");
    assert_eq!(first.status, 200);
    assert_eq!(first.header("x-ratelimit-limit"), "2, 2;w=31536000;name=\"per-ip\"");
    assert_eq!(first.header("x-ratelimit-remaining"), "1");
    assert_eq!(get(weirs[1].address(), "/").status, 200);
    let refused = get(weirs[0].address(), "/");
    assert_eq!((refused.status, refused.header("x-envoy-ratelimited")), (429, "true"));
    assert_eq!(refused.header("x-ratelimit-remaining"), "0");
    assert!(refused.numeric_header("retry-after") > 1, "the rest of the year");
    assert_eq!(get(weirs[1].address(), "/").status, 429);
    assert_eq!(
        (decisions(&weirs[0], "per-ip", "allowed"), decisions(&weirs[0], "per-ip", "limited")),
        (1, 1)
    );
    let address = service.weir.rls_address("grpc");
    assert_eq!(
        (remote_requests(&weirs[0], address, "ok"), remote_requests(&weirs[0], address, "over_limit")),
        (1, 1)
    );
}

#[test]
fn request_rejected_remotely_is_not_charged_locally() {
    let service = RlsService::start(&[("edge.yaml", RULES)]);
    let weir = start_proxy(
        service.weir.rls_address("grpc"),
        "  - { name: all, limit: 2/d, algorithm: fixed_window }
  - { name: tenant, key: { header: x-tenant }, scope: { {service}, domain: edge } }\n",
    );
    assert_eq!((status_for_tenant(&weir, "a"), status_for_tenant(&weir, "a")), (200, 429));
    assert_eq!(decisions(&weir, "all", "allowed"), 1, "requests that `tenant` rejects do not count");
    assert_eq!(status_for_tenant(&weir, "b"), 200, "the rejected request was not charged");
    assert_eq!(decisions(&weir, "all", "allowed"), 2);
    let refused = fetch(weir.address(), &Request::get("/").header("x-tenant", "c"));
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("x-ratelimit-limit"), "2, 2;w=86400;name=\"all\"");
    let hits = service.stat("ratelimit.service.rate_limit.edge.x-tenant.total_hits");
    assert_eq!(hits, 3, "no query for requests that a local rule rejects");
}

/// Checks that every kind of charge is refunded when the remote service rejects the request.
#[test]
fn local_charges_are_refunded_on_remote_rejection() {
    let oracle = FakeRateLimitService::start(|request| {
        let is_refused = request.descriptors[0].entries[0].value == "refused";
        Some(Ok(response_with_code(request, if is_refused { Code::OverLimit } else { Code::Ok })))
    });
    for (rule, passing) in [
        ("limit: 2/h", 2),
        ("limit: 2/h, algorithm: token_bucket", 2),
        ("limit: 2/h, algorithm: sliding_log", 2),
        ("limit: 2/h, algorithm: sliding_window", 2),
        ("limit: 10/h, throttle: soft 20%, algorithm: fixed_window", 12),
        ("limit: 2/h, on_denied: charge, algorithm: fixed_window", 2),
        ("limit: 2/h, count: { response_status: 200 }, algorithm: fixed_window", 2),
        ("limit: 4/h, cost: { header: x-cost, default: 2 }, algorithm: fixed_window", 2),
        ("in_flight: 1", 9),
    ] {
        let weir = start_proxy(
            oracle.address,
            &format!(
                "  - {{ name: own, {rule} }}\n  - {{ name: other, key: {{ header: x-tenant }}, scope: {{ {{service}}, domain: d }} }}\n"
            ),
        );
        for _ in 0..12 {
            assert_eq!(status_for_tenant(&weir, "refused"), 429, "{rule}");
        }
        let passed = (0..passing).filter(|_| status_for_tenant(&weir, "passes") == 200).count();
        assert_eq!(passed, passing, "{rule}");
        let next = status_for_tenant(&weir, "passes");
        assert_eq!(next, if rule.contains("in_flight") { 200 } else { 429 }, "{rule}");
    }
}

#[test]
fn remote_rejection_works_with_bodies_head_expect_and_grpc() {
    let oracle =
        FakeRateLimitService::start(|request| Some(Ok(response_with_code(request, Code::OverLimit))));
    let origin = Origin::hello();
    let rule =
        format!("rules: [{{ name: r, scope: {{ rls: '{}', domain: d, timeout: 20s }} }}]\n", oracle.address);
    let weir = Weir::start(&config(origin.address(), &rule));
    let mut client = Client::connect(weir.address());
    assert_eq!(client.fetch(&Request::post("/", vec![b'x'; 10_000])).status, 429);
    assert_eq!(
        client.fetch(&Request::new("HEAD", "/")).status,
        429,
        "the connection stays open after the body was read"
    );
    let waiting = Request::post("/", "body").header("expect", "100-continue");
    let head = waiting.to_bytes();
    client.send(&head[..head.len() - "body".len()]);
    assert_eq!(client.read_response("POST").status, 429, "no 100 (Continue) before the rejection");
    let mut h2 = H2Client::connect(weir.address());
    let call = h2.call();
    let refused = h2.fetch(call);
    assert_eq!((refused.status.as_u16(), refused.header("grpc-status")), (200, "8"));
    assert_eq!(origin.connections(), 0);
}

#[test]
fn client_disconnect_during_a_remote_request_returns_its_permit() {
    let oracle = FakeRateLimitService::start(|request| {
        let is_silent = request.descriptors[0].entries[0].value == "waits";
        (!is_silent).then(|| Ok(response_with_code(request, Code::Ok)))
    });
    let weir = start_proxy(
        oracle.address,
        "  - { name: one, in_flight: 1 }
  - { name: other, key: { header: x-tenant }, scope: { {service}, domain: d } }\n",
    );
    let client = Client::connect(weir.address());
    client.send(Request::get("/").header("x-tenant", "waits").to_bytes());
    wait::until_true("the query", || oracle.requests().len() == 1);
    assert_eq!(status_for_tenant(&weir, "next"), 429, "one request is in flight");
    drop(client);
    wait::until_true("the end of the request", || status_for_tenant(&weir, "next") == 200);
    assert_eq!(remote_requests(&weir, oracle.address, "abandoned"), 1);
    assert!(decisions(&weir, "one", "allowed") >= 2, "the aborted request was decided");
}

#[test]
fn on_error_decides_if_the_service_is_unreachable() {
    let (_socket, nobody) = refusing_address();
    let rules = |on_error: &str| {
        format!(
            "  - {{ name: r, key: client_ip, scope: {{ {{service}}, domain: edge, on_error: {on_error} }} }}\n"
        )
    };
    let allowing = start_proxy(nobody, &rules("allow"));
    assert_eq!(get(allowing.address(), "/").status, 200);
    assert_eq!(decisions(&allowing, "r", "allowed"), 1);
    let denying = start_proxy(nobody, &rules("deny"));
    assert_eq!(get(denying.address(), "/").status, 503);
    assert_eq!(decisions(&denying, "r", "denied"), 1);
    let local = start_proxy(
        nobody,
        &rules("local").replace("client_ip,", "client_ip, limit: 1/d, algorithm: fixed_window,"),
    );
    let answers = [(); 2].map(|()| get(local.address(), "/"));
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 429]);
    assert_eq!(answers[1].header("x-ratelimit-limit"), "1, 1;w=86400;name=\"r\"");
    assert_eq!((decisions(&local, "r", "allowed"), decisions(&local, "r", "limited")), (1, 1));
    assert!(remote_requests(&local, nobody, "failed") > 0);
}

#[test]
fn unresponsive_service_is_skipped_after_a_few_timeouts() {
    let oracle = FakeRateLimitService::start(|_| None);
    let rule = "  - { name: r, scope: { rls: '{place}', domain: d, timeout: 50ms, on_error: deny } }\n";
    let rule = rule.replace("{place}", &oracle.address.to_string());
    let weir = Weir::start(&config("echo", &format!("rules:\n{rule}")));
    let mut client = Client::connect(weir.address());
    assert!((0..40).all(|_| client.get("/").status == 503));
    let late = remote_requests(&weir, oracle.address, "timed_out");
    assert!((5..20).contains(&late), "{late} requests were late");
    assert_eq!(remote_requests(&weir, oracle.address, "skipped"), 40 - late);
    assert_eq!(oracle.requests().len() as u64, late);
}

#[test]
fn recovered_service_is_queried_again() {
    let speaks = Arc::new(AtomicBool::new(false));
    let says = Arc::clone(&speaks);
    let oracle = FakeRateLimitService::start(move |request| {
        says.load(Ordering::SeqCst).then(|| Ok(response_with_code(request, Code::Ok)))
    });
    let rule = format!("{{ rls: '{}', domain: d, timeout: 500ms, on_error: deny }}", oracle.address);
    let weir = Weir::start(&config("echo", &format!("rules: [{{ name: r, scope: {rule} }}]\n")));
    assert!((0..6).all(|_| get(weir.address(), "/").status == 503));
    assert_eq!(oracle.requests().len(), 5, "no query for the sixth request");
    speaks.store(true, Ordering::SeqCst);
    wait::until_true("a response", || get(weir.address(), "/").status == 200);
    assert!((0..10).all(|_| get(weir.address(), "/").status == 200));
}

#[test]
fn local_fallback_reports_remaining_as_of_its_decision() {
    let oracle = FakeRateLimitService::start(|_| None);
    let rule = format!("{{ rls: '{}', domain: d, timeout: 1s, on_error: local }}", oracle.address);
    let rules = format!("rules: [{{ name: r, limit: 10/s, scope: {rule} }}]\n");
    let weir = Weir::start(&config("echo", &rules));
    let passed = get(weir.address(), "/");
    assert_eq!((passed.status, passed.header("x-ratelimit-remaining")), (200, "9"), "as of the response");
}

#[test]
fn remote_request_has_domain_descriptor_and_cost_of_the_rule() {
    let oracle = FakeRateLimitService::start(|request| Some(Ok(response_with_code(request, Code::Ok))));
    let weir = start_proxy(
        oracle.address,
        "  - name: usual
    match: { path: /usual }
    key: [client_ip, method, path, { header: x-tenant }, { query: q }]
    cost: 3
    scope: { {service}, domain: edge }
  - name: own
    match: { path: /own }
    key: [client_ip, { cookie: session }]
    on_missing: shared
    scope: { {service}, domain: other, descriptor: [{ tier: gold }, who, session] }
  - { name: none, match: { path: /none }, scope: { {service}, domain: edge } }\n",
    );
    let request = Request::get("/usual?q=a%20b").header("x-tenant", "acme");
    assert_eq!(fetch(weir.address(), &request).status, 200);
    assert_eq!(get(weir.address(), "/own").status, 200);
    assert_eq!(get(weir.address(), "/none").status, 200);
    let [usual, own, none] = oracle.requests().try_into().unwrap();
    let named = entry_pairs([
        ("remote_address", "127.0.0.1"),
        ("method", "GET"),
        ("path", "/usual"),
        ("x-tenant", "acme"),
        ("q", "a b"),
    ]);
    assert_eq!((&*usual.domain, usual.hits_addend, entries(&usual)), ("edge", 3, vec![named]));
    let named = entry_pairs([("tier", "gold"), ("who", "127.0.0.1"), ("session", "")]);
    assert_eq!((&*own.domain, own.hits_addend, entries(&own)), ("other", 1, vec![named]));
    assert_eq!(entries(&none), [entry_pairs([("generic_key", "none")])]);
}

#[test]
fn rules_of_one_domain_share_a_remote_request() {
    let oracle = FakeRateLimitService::start(|request| Some(Ok(response_with_code(request, Code::Ok))));
    let weir = start_proxy(
        oracle.address,
        "  - { name: a, cost: 2, scope: { {service}, domain: edge } }
  - { name: b, scope: { {service}, domain: other } }
  - { name: c, key: method, scope: { {service}, domain: edge } }\n",
    );
    assert_eq!(get(weir.address(), "/").status, 200);
    let mut asked = oracle.requests();
    asked.sort_by(|one, other| one.domain.cmp(&other.domain));
    let domains: Vec<_> = asked.iter().map(|request| (&*request.domain, request.descriptors.len())).collect();
    assert_eq!(domains, [("edge", 2), ("other", 1)]);
    let hits = asked[0].descriptors.iter().map(|one| one.hits_addend.unwrap().value);
    assert_eq!((hits.collect::<Vec<_>>(), asked[0].hits_addend), (vec![2, 1], 2));
}

#[test]
fn headers_and_body_from_the_service_are_applied() {
    let oracle = FakeRateLimitService::start(|request| {
        let code = if request.descriptors[0].entries[0].value == "POST" { Code::OverLimit } else { Code::Ok };
        let mut answer = response_with_code(request, code);
        answer.response_headers_to_add = vec![
            header("x-left", "7"),
            header("content-length", "1"),
            header("content-type", "application/json"),
            header("retry-after", "99"),
        ];
        answer.request_headers_to_add = vec![header("x-tier", "gold"), header("host", "elsewhere")];
        answer.raw_body = if code == Code::OverLimit { b"later\n".to_vec() } else { Vec::new() };
        Some(Ok(answer))
    });
    let origin = Origin::hello();
    let rule = format!(
        "rules: [{{ name: r, key: method, scope: {{ rls: '{}', domain: d, timeout: 20s }} }}]\n",
        oracle.address
    );
    let weir = Weir::start(&config(origin.address(), &rule));
    let passed = fetch(weir.address(), &Request::get("/").host("here"));
    assert_eq!((passed.status, passed.header("x-left")), (200, "7"));
    let seen = origin.only_request();
    assert_eq!((seen.head.get_all("x-tier"), seen.head.get_all("host")), (vec!["gold"], vec!["here"]));
    let refused = fetch(weir.address(), &Request::post("/", "body"));
    assert_eq!((refused.status, &*refused.body.text(), refused.header("x-left")), (429, "later\n", "7"));
    assert_eq!(refused.head.get_all("retry-after"), ["1"], "headers that Weir sets occur once");
    assert_eq!(refused.head.get_all("content-type"), ["application/json"], "of the body");
    assert_eq!(origin.connections(), 1);
}

#[test]
fn shadow_rule_queries_without_rejecting_or_waiting() {
    let oracle =
        FakeRateLimitService::start(|request| Some(Ok(response_with_code(request, Code::OverLimit))));
    let weir =
        start_proxy(oracle.address, "  - { name: r, throttle: shadow, scope: { {service}, domain: d } }\n");
    assert_eq!(get(weir.address(), "/").status, 200);
    wait::until_true("a decision", || decisions(&weir, "r", "shadow") == 1);
    assert_eq!(remote_requests(&weir, oracle.address, "over_limit"), 1);
    let silent = FakeRateLimitService::start(|_| None);
    let weir =
        start_proxy(silent.address, "  - { name: r, throttle: shadow, scope: { {service}, domain: d } }\n");
    assert_eq!(get(weir.address(), "/").status, 200, "the response does not wait for the timeout of 20 s");
    wait::until_true("the query", || silent.requests().len() == 1);
}

#[test]
fn invalid_responses_are_errors_and_do_not_disable_the_service() {
    let oracle = FakeRateLimitService::start(|request| {
        let kind = &*request.descriptors[0].entries[0].value;
        let code = if kind == "unknown" { Code::Unknown } else { Code::Ok };
        let mut answer = response_with_code(request, code);
        match kind {
            "more" => answer.statuses.push(answer.statuses[0].clone()),
            "fewer" => answer.statuses.clear(),
            "crowded" => {
                answer.request_headers_to_add = (0..30_000).map(|n| header(&format!("x-{n}"), "")).collect();
            }
            "refuses to say" => return Some(Err(Status::unknown("no rules"))),
            _ => {}
        }
        Some(Ok(answer))
    });
    let weir = start_proxy(
        oracle.address,
        "  - { name: r, key: { header: x-tenant }, scope: { {service}, domain: d, on_error: deny } }\n",
    );
    for kind in ["unknown", "more", "fewer", "crowded", "refuses to say"] {
        for _ in 0..2 {
            assert_eq!(status_for_tenant(&weir, kind), 503, "{kind}");
        }
    }
    assert_eq!(remote_requests(&weir, oracle.address, "failed"), 10);
    assert_eq!(status_for_tenant(&weir, "fine"), 200, "invalid responses do not open the circuit breaker");
}

#[test]
fn reload_changes_the_service_and_keeps_unchanged_connections() {
    let [first, second] = [(); 2]
        .map(|()| FakeRateLimitService::start(|request| Some(Ok(response_with_code(request, Code::Ok)))));
    let yaml = |place: SocketAddr| {
        let rule = format!("{{ name: r, scope: {{ rls: '{place}', domain: d, timeout: 20s }} }}");
        config("echo", &format!("rules: [{rule}]\n"))
    };
    let weir = Weir::start(&yaml(first.address));
    assert_eq!(get(weir.address(), "/").status, 200);
    weir.reload(&format!("{}ietf_headers: true\n", yaml(first.address)));
    assert_eq!(get(weir.address(), "/").status, 200);
    assert_eq!(first.connections(), 1, "the connection is kept, since the service is unchanged");
    weir.reload(&yaml(second.address));
    assert_eq!(get(weir.address(), "/").status, 200);
    assert_eq!((first.requests().len(), second.requests().len()), (2, 1));
}

#[test]
fn remote_decisions_are_logged_and_counted_by_key() {
    let service = RlsService::start(&[("edge.yaml", RULES)]);
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let address = service.weir.rls_address("grpc");
    let rule = format!(
        "access_log: {{ path: {}, format: json }}\nlog_keys: value\nrules:\n- {{ name: tenants, key: {{ header: x-tenant }}, scope: {{ rls: '{address}', timeout: 20s, domain: edge }} }}\n",
        log.display()
    );
    let weir = Weir::start(&config("echo", &rule));
    assert_eq!([status_for_tenant(&weir, "acme"), status_for_tenant(&weir, "acme")], [200, 429]);
    let lines: Vec<serde_json::Value> = wait::until("two lines", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<_> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (lines.len() == 2).then_some(lines)
    });
    for (line, outcome) in lines.iter().zip(["allowed", "limited"]) {
        assert_eq!((&line["rule"], &line["outcome"]), (&"tenants".into(), &outcome.into()), "{line}");
        assert_eq!((&line["key"], &line["limit"]), (&"header.x-tenant=acme".into(), &1.into()), "{line}");
    }
    let key = &weir.admin_json("/limits/top")["rules"][0]["keys"][0];
    assert_eq!(
        (&key["key"], &key["admitted"], &key["rejected"]),
        (&"header.x-tenant=acme".into(), &1.into(), &1.into())
    );
}

#[test]
fn request_that_the_service_rejects_owes_a_limit_with_feedback_nothing() {
    let queries = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&queries);
    let oracle = FakeRateLimitService::start(move |request| {
        let is_refused = count.fetch_add(1, Ordering::SeqCst) == 1;
        Some(Ok(response_with_code(request, if is_refused { Code::OverLimit } else { Code::Ok })))
    });
    let rejected = AtomicBool::new(false);
    let origin = Origin::start(move |turn| {
        turn.body()?;
        let status = if rejected.swap(true, Ordering::SeqCst) { "200 OK" } else { "429 Too Many Requests" };
        turn.send(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n"))?;
        Ok(AfterResponse::Keep)
    });
    let rules = "rules:
  - { name: provider, limit: 1/s, burst: 1, feedback: { decrease: 90% } }
  - { name: edge, scope: { rls: '{service}', domain: d, timeout: 20s } }\n";
    let rules = rules.replace("{service}", &oracle.address.to_string());
    let weir = Weir::start(&config(origin.address(), &rules));
    assert_eq!(get(weir.address(), "/").status, 429, "the provider rejects it");
    // A tenth of the limit is in force: a request costs ten bursts, nine of which it owes.
    wait::until_true("the rejection by the service", || {
        assert_eq!(get(weir.address(), "/").status, 429);
        queries.load(Ordering::SeqCst) == 2
    });
    assert_eq!(get(weir.address(), "/").status, 200, "nothing is owed");
    assert_eq!(get(weir.address(), "/").status, 429);
    let rejected = get(weir.address(), "/");
    assert!(rejected.numeric_header("retry-after") >= 5, "an admitted request owes: {rejected:?}");
    assert_eq!(queries.load(Ordering::SeqCst), 3);
}
