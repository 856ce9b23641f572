//! Tracing: trace headers are forwarded, and with a collector every request has a span in its trace.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

use crate::support::h2::H2Client;
use crate::support::h2_origin::H2Origin;
use crate::support::origin::refusing_address;
use crate::support::pki::Authority;
use crate::support::tls_front::TlsFront;
use crate::support::{
    AfterResponse, Client, LISTENER, Origin, Request, Weir, config, config_with, fetch, wait,
};

const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT_SPAN_ID: &str = "00f067aa0ba902b7";
/// Trace headers in all supported formats.
const TRACE_HEADERS: [(&str, &str); 8] = [
    ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("tracestate", "vendor=a:b, other=c"),
    ("b3", "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1-05e3ac9a4f6e3b90"),
    ("x-b3-traceid", "4bf92f3577b34da6a3ce929d0e0e4736"),
    ("x-b3-spanid", "00f067aa0ba902b7"),
    ("x-b3-parentspanid", "05e3ac9a4f6e3b90"),
    ("x-b3-sampled", "1"),
    ("x-b3-flags", "0"),
];

/// A collector that records every span and the name of the service that sent it.
struct Collector {
    origin: Origin,
    spans: Arc<Mutex<Vec<(String, Span)>>>,
}

impl Collector {
    fn start() -> Self {
        Self::responding_with("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    }

    fn responding_with(answer: &'static str) -> Self {
        let spans = Arc::<Mutex<Vec<_>>>::default();
        let taken = Arc::clone(&spans);
        let origin = Origin::start(move |turn| {
            assert_eq!(turn.head.word(1), "/v1/traces");
            assert_eq!(turn.head.get("content-type"), Some("application/x-protobuf"));
            let body = turn.body()?;
            let request = ExportTraceServiceRequest::decode(&*body.bytes).unwrap();
            for resource in request.resource_spans {
                let name =
                    resource.resource.unwrap().attributes.into_iter().find(|own| own.key == "service.name");
                let Some(Value::StringValue(name)) = name.and_then(|name| name.value?.value) else {
                    panic!()
                };
                let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
                taken.lock().unwrap().extend(spans.map(|span| (name.clone(), span)));
            }
            turn.send(answer)?;
            Ok(AfterResponse::Keep)
        });
        Self { origin, spans }
    }

    fn setting(&self, more: &str) -> String {
        format!("tracing: {{ otlp: \"http://{}\"{more} }}\n", self.origin.address())
    }

    /// Waits until there are `count` spans, and returns them.
    fn spans(&self, count: usize) -> Vec<Span> {
        wait::until("the spans", || {
            let spans = self.spans.lock().unwrap();
            (spans.len() >= count).then(|| spans.iter().map(|(_, span)| span.clone()).collect())
        })
    }
}

/// Returns an attribute as text; empty if it is missing.
fn attribute(span: &Span, name: &str) -> String {
    let attribute = span.attributes.iter().find(|attribute| attribute.key == name);
    match attribute.and_then(|attribute| attribute.value.clone()?.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        other => other.map_or_else(String::new, |other| panic!("{other:?}")),
    }
}

fn span_with_path<'a>(spans: &'a [Span], path: &str) -> &'a Span {
    spans
        .iter()
        .find(|span| attribute(span, "url.path") == path)
        .unwrap_or_else(|| panic!("no span for {path}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sends a request with all trace headers over HTTP/1.1 and over HTTP/2, and returns the headers that were forwarded.
fn forward_trace_headers(address: SocketAddr, origin: &Origin) -> [Vec<(&'static str, Option<String>)>; 2] {
    let mut first = Request::get("/");
    for (name, value) in TRACE_HEADERS {
        first = first.header(name, value);
    }
    let seen = || {
        let head = origin.last_request().head;
        TRACE_HEADERS.map(|(name, _)| (name, head.get(name).map(str::to_owned))).to_vec()
    };
    assert_eq!(fetch(address, &first).status, 200);
    let by_1 = seen();
    let mut client = H2Client::connect(address);
    let mut second = client.request("GET", "/");
    for (name, value) in TRACE_HEADERS {
        second = second.header(name, value);
    }
    assert_eq!(client.fetch(second).status, StatusCode::OK);
    [by_1, seen()]
}

#[test]
fn trace_headers_are_forwarded_unchanged_without_tracing() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let untouched = TRACE_HEADERS.map(|(name, value)| (name, Some(value.to_owned()))).to_vec();
    assert_eq!(forward_trace_headers(weir.address(), &origin), [untouched.clone(), untouched]);
}

#[test]
fn trace_headers_are_forwarded_unchanged_to_an_http2_upstream() {
    let origin = H2Origin::start(None, |request, mut respond| async move {
        let mut answer = http::Response::new(());
        for (name, _) in TRACE_HEADERS {
            if let Some(value) = request.headers().get(name) {
                answer.headers_mut().insert(name, value.clone());
            }
        }
        respond.send_response(answer, true).map(drop)
    });
    let upstream = format!("{{ address: \"{}\", http2: true }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let mut client = H2Client::connect(weir.address());
    let request = TRACE_HEADERS
        .into_iter()
        .fold(client.request("GET", "/"), |request, (name, value)| request.header(name, value));
    let answer = client.fetch(request);
    for (name, value) in TRACE_HEADERS {
        assert_eq!(answer.header(name), value, "{name}");
    }
}

#[test]
fn span_continues_the_trace_and_is_propagated_upstream() {
    let (collector, origin) = (Collector::start(), Origin::hello());
    let weir = Weir::start(&config(origin.address(), &collector.setting(", service_name: edge, sample: 0%")));
    let [by_1, by_2] = forward_trace_headers(weir.address(), &origin);
    let spans = collector.spans(2);
    for (fields, span) in [by_1, by_2].iter().zip(&spans) {
        let field = |name: &str| fields.iter().find(|(known, _)| *known == name).unwrap().1.clone().unwrap();
        let own = hex(&span.span_id);
        assert_eq!(
            (hex(&span.trace_id), hex(&span.parent_span_id)),
            (TRACE_ID.to_owned(), PARENT_SPAN_ID.to_owned())
        );
        assert_ne!(own, PARENT_SPAN_ID);
        assert_eq!(span.trace_state, "vendor=a:b,other=c", "members of tracestate without white space");
        assert_eq!(field("traceparent"), format!("00-{TRACE_ID}-{own}-01"));
        assert_eq!(field("tracestate"), "vendor=a:b, other=c");
        assert_eq!(field("b3"), format!("{TRACE_ID}-{own}-1-{PARENT_SPAN_ID}"));
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano && span.kind == 2);
    }
    assert_eq!(attribute(&spans[0], "network.protocol.version"), "1.1");
    assert_eq!(attribute(&spans[1], "network.protocol.version"), "2");
    assert!(collector.spans.lock().unwrap().iter().all(|(service, _)| service == "edge"));
    // No spans for a trace that is not sampled, nor, with a sampling rate of 0, for a new one.
    let unsampled = format!("00-{TRACE_ID}-{PARENT_SPAN_ID}-00");
    fetch(weir.address(), &Request::get("/unsampled").header("traceparent", &unsampled));
    assert_eq!(origin.last_request().head.get("traceparent"), Some(&*unsampled));
    fetch(weir.address(), &Request::get("/new"));
    assert!(origin.last_request().head.get("traceparent").unwrap().ends_with("-00"));
    fetch(weir.address(), &Request::get("/last").header("b3", TRACE_HEADERS[2].1));
    let spans = collector.spans(3);
    assert_eq!(attribute(&spans[2], "url.path"), "/last");
    wait::until_true("the spans to be counted", || weir.metric("weir_spans_exported_total", &[]) == 3.0);
}

#[test]
fn every_request_has_a_span_with_its_outcome() {
    let (collector, origin) = (Collector::start(), Origin::hello());
    let rules = "rules: [
      { name: once, match: { path: \"/users/{id}\" }, key: [], limit: 1/d },
      { name: slow, match: { path: /slow }, key: [], limit: 10/s, burst: 1, throttle: delay 5s },
      { name: no, match: { path: /no }, action: deny }]";
    let weir = Weir::start(&config(origin.address(), &(collector.setting("") + rules)));
    let mut client = Client::connect(weir.address());
    client.fetch(
        &Request::post("/free?a=b", "1234567").host("shop.example:81").header("user-agent", "tester/1.0"),
    );
    for path in ["/users/1", "/users/2", "/slow", "/slow", "/no"] {
        client.get(path);
    }
    fetch(weir.address(), &Request::get("/%00"));
    let spans = collector.spans(7);

    let free = span_with_path(&spans, "/free");
    let is_unset = free.status.as_ref().is_none_or(|status| status.code == 0);
    assert_eq!((&*free.name, free.parent_span_id.len(), is_unset), ("POST", 0, true));
    for (name, value) in [
        ("http.request.method", "POST"),
        ("url.query", "a=b"),
        ("url.scheme", "http"),
        ("server.address", "shop.example"),
        ("server.port", "81"),
        ("client.address", "127.0.0.1"),
        ("network.peer.address", "127.0.0.1"),
        ("user_agent.original", "tester/1.0"),
        ("http.response.status_code", "200"),
        ("http.request.body.size", "7"),
        ("http.response.body.size", "5"),
        ("weir.decision", "allowed"),
        ("weir.upstream", &*origin.address().to_string()),
        ("weir.response_flags", ""),
        ("http.route", ""),
    ] {
        assert_eq!(attribute(free, name), value, "{name}");
    }
    let refused = span_with_path(&spans, "/users/2");
    assert_eq!(refused.name, "GET /users/{id}");
    for (name, value) in [
        ("http.route", "/users/{id}"),
        ("http.response.status_code", "429"),
        ("weir.rule", "once"),
        ("weir.decision", "limited"),
        ("weir.response_flags", "RL"),
        ("weir.upstream", ""),
    ] {
        assert_eq!(attribute(refused, name), value, "{name}");
    }
    assert_eq!(attribute(span_with_path(&spans, "/users/1"), "http.route"), "/users/{id}");
    let held = spans.iter().find(|span| attribute(span, "weir.decision") == "delayed").unwrap();
    assert!(
        attribute(held, "url.path") == "/slow" && attribute(held, "weir.delay").parse::<f64>().unwrap() > 0.0
    );
    let denied = span_with_path(&spans, "/no");
    assert_eq!((&*attribute(denied, "weir.decision"), &*attribute(denied, "weir.rule")), ("denied", "no"));
    let malformed = span_with_path(&spans, "/%00");
    assert_eq!(
        (&*attribute(malformed, "weir.decision"), &*attribute(malformed, "http.response.status_code")),
        ("", "400")
    );
}

#[test]
fn failed_request_sets_span_status_error() {
    let collector = Collector::start();
    let (_held, nobody) = refusing_address();
    let weir = Weir::start(&config(nobody, &collector.setting("")));
    assert_eq!(fetch(weir.address(), &Request::get("/")).status, 503);
    let spans = collector.spans(1);
    assert_eq!(spans[0].status.as_ref().unwrap().code, 2);
    assert_eq!(
        (&*attribute(&spans[0], "weir.response_flags"), &*attribute(&spans[0], "error.type")),
        ("UF", "503")
    );
}

#[test]
fn sampling_rate_and_collector_are_reloaded() {
    let (collector, origin) = (Collector::start(), Origin::hello());
    let yaml = |more: &str| config(origin.address(), &collector.setting(more));
    let weir = Weir::start(&yaml(", sample: 0%"));
    fetch(weir.address(), &Request::get("/before"));
    weir.reload(&yaml(""));
    fetch(weir.address(), &Request::get("/after"));
    assert_eq!(attribute(&collector.spans(1)[0], "url.path"), "/after");
    let other = Collector::start();
    weir.reload(&config(origin.address(), &other.setting(", service_name: other")));
    fetch(weir.address(), &Request::get("/elsewhere"));
    assert_eq!(attribute(&other.spans(1)[0], "url.path"), "/elsewhere");
    weir.reload(&config(origin.address(), ""));
    fetch(weir.address(), &Request::get("/nowhere"));
    weir.reload(&yaml(""));
    fetch(weir.address(), &Request::get("/again"));
    let paths: Vec<_> = collector.spans(2).iter().map(|span| attribute(span, "url.path")).collect();
    assert_eq!(paths, ["/after", "/again"]);
}

#[test]
fn spans_are_flushed_before_exit() {
    let (collector, origin) = (Collector::start(), Origin::hello());
    let mut weir = Weir::start(&config(origin.address(), &collector.setting("")));
    for _ in 0..20 {
        fetch(weir.address(), &Request::get("/"));
    }
    weir.terminate();
    assert!(weir.wait_exit().success());
    assert_eq!(collector.spans.lock().unwrap().len(), 20);
}

#[test]
fn unreachable_collector_drops_spans_and_is_logged_once() {
    let (_held, nobody) = refusing_address();
    let origin = Origin::hello();
    let tracing = format!("tracing: {{ otlp: \"http://{nobody}/otel\" }}\n");
    let weir = Weir::start(&config(origin.address(), &tracing));
    let mut client = Client::connect(weir.address());
    let begun = wait::now();
    // More spans than the queue has room for.
    for _ in 0..3000 {
        assert_eq!(client.get("/").status, 200);
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(30), "{took:?}");
    wait::until_true("lost spans", || weir.metric("weir_spans_dropped_total", &[]) >= 900.0);
    let complaints = || weir.log().iter().filter(|line| line.contains("spans are dropped")).count();
    wait::until_true("the log line about lost spans", || complaints() == 1);
    fetch(weir.address(), &Request::get("/"));
    wait::until_true("another batch", || weir.metric("weir_spans_dropped_total", &[]) >= 3001.0);
    assert_eq!(complaints(), 1);
    assert_eq!(weir.metric("weir_spans_exported_total", &[]), 0.0);
}

#[test]
fn rejected_spans_are_counted_as_dropped() {
    let collector = Collector::responding_with("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), &collector.setting("")));
    fetch(weir.address(), &Request::get("/"));
    wait::until_true("the spans to be counted", || weir.metric("weir_spans_dropped_total", &[]) == 1.0);
    assert_eq!(collector.origin.requests().len(), 1, "spans that were rejected with 400 are not sent again");
}

#[test]
fn collector_connection_uses_tls_and_configured_headers() {
    let directory = tempfile::tempdir().unwrap();
    let (authority, collector) = (Authority::new("authority"), Collector::start());
    let ca = authority.write(&directory.path().join("ca.crt"));
    let front = TlsFront::start(
        authority.server("collector.example", &["http/1.1"], false),
        collector.origin.address(),
    );
    let setting = |name: &str| {
        let tls = format!("{{ ca: '{}', server_name: {name} }}", ca.display());
        let headers = "{ x-tenant: acme, authorization: 'Bearer secret' }";
        format!("tracing: {{ otlp: 'https://127.0.0.1:{}', tls: {tls}, headers: {headers} }}\n", front.port())
    };
    let weir = Weir::start(&config("echo", &setting("collector.example")));
    assert_eq!(fetch(weir.address(), &Request::get("/told")).status, 200);
    assert_eq!(collector.spans(1).len(), 1);
    let seen = collector.origin.last_request();
    assert_eq!(
        (seen.head.get("x-tenant"), seen.head.get("authorization")),
        (Some("acme"), Some("Bearer secret"))
    );
    let shown = weir.admin_get("/config_dump").body.text();
    assert!(shown.contains("x-tenant") && !shown.contains("acme") && !shown.contains("Bearer"), "{shown}");

    let another = Weir::start(&config("echo", &setting("another.example")));
    assert_eq!(fetch(another.address(), &Request::get("/untold")).status, 200);
    wait::until_true("the spans to be lost", || another.metric("weir_spans_dropped_total", &[]) == 1.0);
    assert_eq!(collector.spans(1).len(), 1, "no spans are sent to a server with another name");
}
