//! Rules with limits of a remote rate limit service: Weir's own, and one whose responses a test defines.

mod oracle;
mod secured;

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use oracle::{Oracle, answer, header};
use tonic::Status;

use crate::rls::Service;
use crate::support::h2::H2;
use crate::support::origin::refusing;
use crate::support::{Client, Origin, Request, Weir, ask, config, get, wait};

const RULES: &str = "domain: edge
descriptors:
  - key: remote_address
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: x-tenant
    rate_limit: { unit: year, requests_per_unit: 1 }
";

/// Starts a proxy with these rules, in which `{service}` is replaced by the settings of the service.
fn proxy(service: impl Display, rules: &str) -> Weir {
    // A timeout long enough for a busy machine.
    let rules = rules.replace("{service}", &format!("rls: '{service}', timeout: 20s"));
    Weir::start(&config("echo", &format!("rules:\n{rules}")))
}

fn tenant(weir: &Weir, name: &str) -> u16 {
    ask(weir.address(), &Request::get("/").header("x-tenant", name)).status
}

fn decisions(weir: &Weir, rule: &str, outcome: &str) -> u64 {
    weir.metric("weir_decisions_total", &[("rule", rule), ("outcome", outcome)]) as u64
}

fn asked(weir: &Weir, service: SocketAddr, outcome: &str) -> u64 {
    let service = service.to_string();
    weir.metric("weir_remote_requests_total", &[("service", &service), ("outcome", outcome)]) as u64
}

/// Returns the keys and values of each descriptor.
fn entries(request: &RateLimitRequest) -> Vec<Vec<(String, String)>> {
    let pairs = request.descriptors.iter().map(|one| one.entries.iter());
    pairs.map(|all| all.map(|entry| (entry.key.clone(), entry.value.clone())).collect()).collect()
}

fn pairs<const N: usize>(pairs: [(&str, &str); N]) -> Vec<(String, String)> {
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

#[test]
fn the_other_service_keeps_the_limit_for_all_who_ask_it() {
    let service = Service::start(&[("edge.yaml", RULES)]);
    let rule = "  - { name: per-ip, key: client_ip, scope: { {service}, domain: edge } }\n";
    let weirs = [(); 2].map(|()| proxy(service.weir.door("grpc"), rule));
    let first = get(weirs[0].address(), "/");
    assert_eq!(first.status, 200);
    assert_eq!(first.header("x-ratelimit-limit"), "2, 2;w=31536000;name=\"per-ip\"");
    assert_eq!(first.header("x-ratelimit-remaining"), "1");
    assert_eq!(get(weirs[1].address(), "/").status, 200);
    let refused = get(weirs[0].address(), "/");
    assert_eq!((refused.status, refused.header("x-envoy-ratelimited")), (429, "true"));
    assert_eq!(refused.header("x-ratelimit-remaining"), "0");
    assert!(refused.number("retry-after") > 1, "the rest of the year");
    assert_eq!(get(weirs[1].address(), "/").status, 429);
    assert_eq!(
        (decisions(&weirs[0], "per-ip", "allowed"), decisions(&weirs[0], "per-ip", "limited")),
        (1, 1)
    );
    let address = service.weir.door("grpc");
    assert_eq!((asked(&weirs[0], address, "ok"), asked(&weirs[0], address, "over_limit")), (1, 1));
}

#[test]
fn a_request_that_the_other_service_refuses_is_charged_nothing_here() {
    let service = Service::start(&[("edge.yaml", RULES)]);
    let weir = proxy(
        service.weir.door("grpc"),
        "  - { name: all, limit: 2/d, algorithm: fixed_window }
  - { name: tenant, key: { header: x-tenant }, scope: { {service}, domain: edge } }\n",
    );
    assert_eq!((tenant(&weir, "a"), tenant(&weir, "a")), (200, 429));
    assert_eq!(decisions(&weir, "all", "allowed"), 1, "requests that `tenant` rejects do not count");
    assert_eq!(tenant(&weir, "b"), 200, "the rejected request was not charged");
    assert_eq!(decisions(&weir, "all", "allowed"), 2);
    let refused = ask(weir.address(), &Request::get("/").header("x-tenant", "c"));
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("x-ratelimit-limit"), "2, 2;w=86400;name=\"all\"");
    let hits = service.stat("ratelimit.service.rate_limit.edge.x-tenant.total_hits");
    assert_eq!(hits, 3, "no query for requests that a local rule rejects");
}

/// Checks that every kind of charge is refunded when the remote service rejects the request.
#[test]
fn whatever_a_rule_charges_or_holds_is_given_back() {
    let oracle = Oracle::start(|request| {
        let is_refused = request.descriptors[0].entries[0].value == "refused";
        Some(Ok(answer(request, if is_refused { Code::OverLimit } else { Code::Ok })))
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
        let weir = proxy(
            oracle.address,
            &format!(
                "  - {{ name: own, {rule} }}\n  - {{ name: other, key: {{ header: x-tenant }}, scope: {{ {{service}}, domain: d }} }}\n"
            ),
        );
        for _ in 0..12 {
            assert_eq!(tenant(&weir, "refused"), 429, "{rule}");
        }
        let passed = (0..passing).filter(|_| tenant(&weir, "passes") == 200).count();
        assert_eq!(passed, passing, "{rule}");
        let next = tenant(&weir, "passes");
        assert_eq!(next, if rule.contains("in_flight") { 200 } else { 429 }, "{rule}");
    }
}

#[test]
fn a_late_refusal_answers_requests_of_every_kind() {
    let oracle = Oracle::start(|request| Some(Ok(answer(request, Code::OverLimit))));
    let origin = Origin::hello();
    let rule =
        format!("rules: [{{ name: r, scope: {{ rls: '{}', domain: d, timeout: 20s }} }}]\n", oracle.address);
    let weir = Weir::start(&config(origin.address(), &rule));
    let mut client = Client::connect(weir.address());
    assert_eq!(client.ask(&Request::post("/", vec![b'x'; 10_000])).status, 429);
    assert_eq!(
        client.ask(&Request::new("HEAD", "/")).status,
        429,
        "the connection stays open after the body was read"
    );
    let waiting = Request::post("/", "body").header("expect", "100-continue");
    let head = waiting.bytes();
    client.send(&head[..head.len() - "body".len()]);
    assert_eq!(client.answer("POST").status, 429, "no 100 (Continue) before the rejection");
    let mut h2 = H2::connect(weir.address());
    let call = h2.call();
    let refused = h2.ask(call);
    assert_eq!((refused.status.as_u16(), refused.header("grpc-status")), (200, "8"));
    assert_eq!(origin.connections(), 0);
}

#[test]
fn who_leaves_while_others_are_asked_is_counted_and_holds_nothing() {
    let oracle = Oracle::start(|request| {
        let is_silent = request.descriptors[0].entries[0].value == "waits";
        (!is_silent).then(|| Ok(answer(request, Code::Ok)))
    });
    let weir = proxy(
        oracle.address,
        "  - { name: one, in_flight: 1 }
  - { name: other, key: { header: x-tenant }, scope: { {service}, domain: d } }\n",
    );
    let client = Client::connect(weir.address());
    client.send(Request::get("/").header("x-tenant", "waits").bytes());
    wait::until_true("the query", || oracle.asked().len() == 1);
    assert_eq!(tenant(&weir, "next"), 429, "one request is in flight");
    drop(client);
    wait::until_true("the end of the request", || tenant(&weir, "next") == 200);
    assert_eq!(asked(&weir, oracle.address, "abandoned"), 1);
    assert!(decisions(&weir, "one", "allowed") >= 2, "the aborted request was decided");
}

#[test]
fn a_rule_says_what_becomes_of_requests_without_an_answer() {
    let (_socket, nobody) = refusing();
    let rules = |on_error: &str| {
        format!(
            "  - {{ name: r, key: client_ip, scope: {{ {{service}}, domain: edge, on_error: {on_error} }} }}\n"
        )
    };
    let allowing = proxy(nobody, &rules("allow"));
    assert_eq!(get(allowing.address(), "/").status, 200);
    assert_eq!(decisions(&allowing, "r", "allowed"), 1);
    let denying = proxy(nobody, &rules("deny"));
    assert_eq!(get(denying.address(), "/").status, 503);
    assert_eq!(decisions(&denying, "r", "denied"), 1);
    let local = proxy(
        nobody,
        &rules("local").replace("client_ip,", "client_ip, limit: 1/d, algorithm: fixed_window,"),
    );
    let answers = [(); 2].map(|()| get(local.address(), "/"));
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 429]);
    assert_eq!(answers[1].header("x-ratelimit-limit"), "1, 1;w=86400;name=\"r\"");
    assert_eq!((decisions(&local, "r", "allowed"), decisions(&local, "r", "limited")), (1, 1));
    assert!(asked(&local, nobody, "failed") > 0);
}

#[test]
fn a_service_that_says_nothing_costs_few_requests_their_time() {
    let oracle = Oracle::start(|_| None);
    let rule = "  - { name: r, scope: { rls: '{place}', domain: d, timeout: 50ms, on_error: deny } }\n";
    let rule = rule.replace("{place}", &oracle.address.to_string());
    let weir = Weir::start(&config("echo", &format!("rules:\n{rule}")));
    let mut client = Client::connect(weir.address());
    assert!((0..40).all(|_| client.get("/").status == 503));
    let late = asked(&weir, oracle.address, "timed_out");
    assert!((5..20).contains(&late), "{late} requests were late");
    assert_eq!(asked(&weir, oracle.address, "skipped"), 40 - late);
    assert_eq!(oracle.asked().len() as u64, late);
}

#[test]
fn a_service_is_asked_again_once_it_has_come_back() {
    let speaks = Arc::new(AtomicBool::new(false));
    let says = Arc::clone(&speaks);
    let oracle =
        Oracle::start(move |request| says.load(Ordering::SeqCst).then(|| Ok(answer(request, Code::Ok))));
    let rule = format!("{{ rls: '{}', domain: d, timeout: 100ms, on_error: deny }}", oracle.address);
    let weir = Weir::start(&config("echo", &format!("rules: [{{ name: r, scope: {rule} }}]\n")));
    assert!((0..6).all(|_| get(weir.address(), "/").status == 503));
    assert_eq!(oracle.asked().len(), 5, "no query for the sixth request");
    speaks.store(true, Ordering::SeqCst);
    wait::until_true("a response", || get(weir.address(), "/").status == 200);
    assert!((0..10).all(|_| get(weir.address(), "/").status == 200));
}

#[test]
fn what_holds_without_an_answer_is_told_as_it_is_then() {
    let oracle = Oracle::start(|_| None);
    let rule = format!("{{ rls: '{}', domain: d, timeout: 1s, on_error: local }}", oracle.address);
    let rules = format!("rules: [{{ name: r, limit: 10/s, scope: {rule} }}]\n");
    let weir = Weir::start(&config("echo", &rules));
    let passed = get(weir.address(), "/");
    assert_eq!((passed.status, passed.header("x-ratelimit-remaining")), (200, "9"), "as of the response");
}

#[test]
fn what_is_asked_is_what_the_rule_says() {
    let oracle = Oracle::start(|request| Some(Ok(answer(request, Code::Ok))));
    let weir = proxy(
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
    assert_eq!(ask(weir.address(), &request).status, 200);
    assert_eq!(get(weir.address(), "/own").status, 200);
    assert_eq!(get(weir.address(), "/none").status, 200);
    let [usual, own, none] = oracle.asked().try_into().unwrap();
    let named = pairs([
        ("remote_address", "127.0.0.1"),
        ("method", "GET"),
        ("path", "/usual"),
        ("x-tenant", "acme"),
        ("q", "a b"),
    ]);
    assert_eq!((&*usual.domain, usual.hits_addend, entries(&usual)), ("edge", 3, vec![named]));
    let named = pairs([("tier", "gold"), ("who", "127.0.0.1"), ("session", "")]);
    assert_eq!((&*own.domain, own.hits_addend, entries(&own)), ("other", 1, vec![named]));
    assert_eq!(entries(&none), [pairs([("generic_key", "none")])]);
}

#[test]
fn rules_of_one_domain_are_asked_about_at_once() {
    let oracle = Oracle::start(|request| Some(Ok(answer(request, Code::Ok))));
    let weir = proxy(
        oracle.address,
        "  - { name: a, cost: 2, scope: { {service}, domain: edge } }
  - { name: b, scope: { {service}, domain: other } }
  - { name: c, key: method, scope: { {service}, domain: edge } }\n",
    );
    assert_eq!(get(weir.address(), "/").status, 200);
    let mut asked = oracle.asked();
    asked.sort_by(|one, other| one.domain.cmp(&other.domain));
    let domains: Vec<_> = asked.iter().map(|request| (&*request.domain, request.descriptors.len())).collect();
    assert_eq!(domains, [("edge", 2), ("other", 1)]);
    let hits = asked[0].descriptors.iter().map(|one| one.hits_addend.unwrap().value);
    assert_eq!((hits.collect::<Vec<_>>(), asked[0].hits_addend), (vec![2, 1], 2));
}

#[test]
fn what_the_service_wants_said_is_said() {
    let oracle = Oracle::start(|request| {
        let code = if request.descriptors[0].entries[0].value == "POST" { Code::OverLimit } else { Code::Ok };
        let mut answer = answer(request, code);
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
    let passed = ask(weir.address(), &Request::get("/").host("here"));
    assert_eq!((passed.status, passed.header("x-left")), (200, "7"));
    let seen = origin.only();
    assert_eq!((seen.head.all("x-tier"), seen.head.all("host")), (vec!["gold"], vec!["here"]));
    let refused = ask(weir.address(), &Request::post("/", "body"));
    assert_eq!((refused.status, &*refused.body.text(), refused.header("x-left")), (429, "later\n", "7"));
    assert_eq!(refused.head.all("retry-after"), ["1"], "headers that Weir sets occur once");
    assert_eq!(refused.head.all("content-type"), ["application/json"], "of the body");
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_rule_that_looks_on_asks_and_refuses_nobody() {
    let oracle = Oracle::start(|request| Some(Ok(answer(request, Code::OverLimit))));
    let weir = proxy(oracle.address, "  - { name: r, throttle: shadow, scope: { {service}, domain: d } }\n");
    assert_eq!(get(weir.address(), "/").status, 200);
    wait::until_true("a decision", || decisions(&weir, "r", "shadow") == 1);
    assert_eq!(asked(&weir, oracle.address, "over_limit"), 1);
    let silent = Oracle::start(|_| None);
    let weir = proxy(silent.address, "  - { name: r, throttle: shadow, scope: { {service}, domain: d } }\n");
    assert_eq!(get(weir.address(), "/").status, 200, "the response does not wait for the timeout of 20 s");
    wait::until_true("the query", || silent.asked().len() == 1);
}

#[test]
fn an_answer_that_fits_no_question_is_none_and_ends_no_others() {
    let oracle = Oracle::start(|request| {
        let kind = &*request.descriptors[0].entries[0].value;
        let code = if kind == "unknown" { Code::Unknown } else { Code::Ok };
        let mut answer = answer(request, code);
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
    let weir = proxy(
        oracle.address,
        "  - { name: r, key: { header: x-tenant }, scope: { {service}, domain: d, on_error: deny } }\n",
    );
    for kind in ["unknown", "more", "fewer", "crowded", "refuses to say"] {
        for _ in 0..2 {
            assert_eq!(tenant(&weir, kind), 503, "{kind}");
        }
    }
    assert_eq!(asked(&weir, oracle.address, "failed"), 10);
    assert_eq!(tenant(&weir, "fine"), 200, "invalid responses do not open the circuit breaker");
}

#[test]
fn a_reload_asks_whom_it_names() {
    let [first, second] = [(); 2].map(|()| Oracle::start(|request| Some(Ok(answer(request, Code::Ok)))));
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
    assert_eq!((first.asked().len(), second.asked().len()), (2, 1));
}
