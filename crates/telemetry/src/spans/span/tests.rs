use http::{HeaderMap, Method, StatusCode};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode as SpanStatus;
use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::access_log::LoggedRule;
use crate::spans::context::IncomingTrace;
use crate::spans::otlp::{BatchHead, push_span};
use weir_limiter::percent::Percent;
use weir_limiter::timestamp::Timestamp;
use weir_policy::rules::outcome::DecisionOutcome;

const START: u64 = 1_795_239_153_704_900_000;

fn entry<'a>() -> AccessLogEntry<'a> {
    AccessLogEntry {
        start: Timestamp::from_nanos(START),
        method: &Method::GET,
        path: "/one?a=b",
        protocol: Version::HTTP_11,
        status: Some(StatusCode::OK),
        response_flags: "-",
        bytes_received: 0,
        bytes_sent: 300,
        duration: Duration::from_millis(2),
        class: None,
        upstream_time: None,
        x_forwarded_for: None,
        user_agent: Some(b"curl/7.88.1"),
        request_id: Some(b"5b7a"),
        authority: Some(b"shop.example:28100"),
        upstream_host: Some("10.0.0.1:80"),
        attempts: 3,
        client_ip: [192, 0, 2, 2].into(),
        other_headers: &[],
        decision: None,
    }
}

fn details<'a>() -> SpanDetails<'a> {
    SpanDetails {
        is_secure: true,
        route: Some("/{id}"),
        decision: Some(SpanDecision::Delayed(Duration::from_millis(1500))),
        peer: "2001:db8::1".parse().unwrap(),
    }
}

fn context(headers: &[(&'static str, &str)]) -> TraceContext {
    let headers: HeaderMap =
        headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
    let (incoming, state) = IncomingTrace::from_headers(&headers);
    TraceContext::new(incoming, state, Percent::ONE_HUNDRED, 7, 0xabc).unwrap()
}

/// Returns what the collector decodes from a batch with this span twice.
fn received(context: &TraceContext, entry: &AccessLogEntry<'_>, details: &SpanDetails<'_>) -> Span {
    let (mut span, mut batch) = (Vec::new(), Vec::new());
    write_span(context, entry, details, &mut span);
    push_span(&mut batch, &span);
    push_span(&mut batch, &span);
    let bytes = BatchHead::new("edge", "1.2.3").request(&batch);
    let request = ExportTraceServiceRequest::decode(&*bytes).unwrap();
    assert_eq!(request.encode_to_vec(), bytes, "another encoder writes the same");
    let [resource] = &*request.resource_spans else { panic!("{request:?}") };
    let [scope] = &*resource.scope_spans else { panic!("{request:?}") };
    let named = scope.scope.as_ref().unwrap();
    assert_eq!((&*named.name, &*named.version), ("weir", "1.2.3"));
    let service = &resource.resource.as_ref().unwrap().attributes[0];
    let name = Some(Value::StringValue("edge".to_owned()));
    assert_eq!((&*service.key, &service.value.as_ref().unwrap().value), ("service.name", &name));
    assert_eq!(scope.spans.len(), 2);
    assert_eq!(scope.spans[0], scope.spans[1]);
    scope.spans[0].clone()
}

fn attribute(span: &Span, name: &str) -> Option<Value> {
    span.attributes.iter().find(|attribute| attribute.key == name)?.value.clone()?.value
}

#[test]
fn span_is_decoded_as_it_was_meant() {
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let context = context(&[("traceparent", parent), ("tracestate", "a=b, c=d")]);
    let span = received(&context, &entry(), &details());
    assert_eq!(span.trace_id, 0x4bf92f3577b34da6a3ce929d0e0e4736_u128.to_be_bytes());
    assert_eq!(span.span_id, 0xabc_u64.to_be_bytes());
    assert_eq!(span.parent_span_id, 0x00f067aa0ba902b7_u64.to_be_bytes());
    assert_eq!((&*span.trace_state, &*span.name, span.kind, span.flags), ("a=b,c=d", "GET /{id}", 2, 0x301));
    assert_eq!((span.start_time_unix_nano, span.end_time_unix_nano), (START, START + 2_000_000));
    assert_eq!(span.status.as_ref().unwrap().code(), SpanStatus::Unset);
    let text = |text: &str| Some(Value::StringValue(text.to_owned()));
    for (name, value) in [
        ("http.request.method", text("GET")),
        ("url.path", text("/one")),
        ("url.query", text("a=b")),
        ("url.scheme", text("https")),
        ("network.peer.address", text("2001:db8::1")),
        ("client.address", text("192.0.2.2")),
        ("server.address", text("shop.example")),
        ("server.port", Some(Value::IntValue(28100))),
        ("http.response.status_code", Some(Value::IntValue(200))),
        ("http.response.body.size", Some(Value::IntValue(300))),
        ("http.request.body.size", None),
        ("weir.retries", Some(Value::IntValue(2))),
        ("weir.delay", Some(Value::DoubleValue(1.5))),
        ("weir.decision", text("delayed")),
        ("weir.response_flags", None),
        ("error.type", None),
    ] {
        assert_eq!(attribute(&span, name), value, "{name}");
    }
}

#[test]
fn new_trace_without_a_response_is_an_error_without_a_parent() {
    let method = Method::from_bytes(b"PURGE").unwrap();
    let aborted = AccessLogEntry { status: None, method: &method, ..entry() };
    let span = received(&context(&[]), &aborted, &SpanDetails { route: None, ..details() });
    assert_eq!(
        (span.parent_span_id.len(), &*span.trace_state, &*span.name, span.flags),
        (0, "", "_OTHER", 0x101)
    );
    assert_eq!(span.status.as_ref().unwrap().code(), SpanStatus::Error);
    assert_eq!(attribute(&span, "error.type"), Some(Value::StringValue("aborted".to_owned())));
}

#[test]
fn invalid_tracestate_is_not_part_of_the_span() {
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let span =
        received(&context(&[("traceparent", parent), ("tracestate", "no member")]), &entry(), &details());
    assert_eq!(span.trace_state, "");
}

proptest! {
    /// Texts of any length and content arrive whole, up to their maximum length.
    #[test]
    fn any_text_and_number_is_decoded(
        path in "/[a-zä€]{0,600}",
        agent in proptest::collection::vec(any::<u8>(), 0..300),
        rule in "[ -~]{0,200}",
        bytes in any::<u64>(),
    ) {
        let decision = LoggedRule {
            rule: &rule,
            outcome: DecisionOutcome::Limited,
            key: None,
            limit: None,
            remaining: None,
            delay: Duration::ZERO,
            cost: None,
            shadow_rules: &[],
        };
        let entry = AccessLogEntry {
            path: &path,
            user_agent: Some(&agent),
            bytes_sent: bytes,
            decision: Some(decision),
            ..entry()
        };
        let span = received(&context(&[]), &entry, &details());
        let Some(Value::StringValue(kept)) = attribute(&span, "url.path") else { panic!() };
        prop_assert!(path.starts_with(&kept) && (kept == path || kept.len() > MAX_TEXT_LENGTH - 4));
        let agent = String::from_utf8_lossy(&agent).into_owned();
        prop_assert_eq!(attribute(&span, "user_agent.original"), Some(Value::StringValue(agent)));
        prop_assert_eq!(attribute(&span, "weir.rule"), Some(Value::StringValue(rule.clone())));
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        prop_assert_eq!(attribute(&span, "http.response.body.size"), Some(Value::IntValue(bytes)));
    }
}
