use super::*;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
    let field =
        |(name, value): &(&'static str, &str)| (HeaderName::from_static(name), value.parse().unwrap());
    fields.iter().map(field).collect()
}

/// Returns the context and the forwarded headers of a request with these headers, for this sampling share.
fn propagate(fields: &[(&'static str, &str)], share: Percent) -> Option<(TraceContext, HeaderMap)> {
    let mut headers = headers(fields);
    let (incoming, tracestate) = IncomingTrace::from_headers(&headers);
    let context = TraceContext::new(incoming, tracestate, share, 7, 0xabc)?;
    context.write_headers(&mut headers);
    Some((context, headers))
}

fn field<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.to_str().unwrap())
}

#[test]
fn traceparent_decides_sampling_and_is_replaced_by_our_span() {
    let traceparent = format!("00-{TRACE}-{PARENT}-01");
    let (context, on) =
        propagate(&[("traceparent", &traceparent), ("tracestate", "a=b,c=d")], Percent::from_hundredths(0))
            .unwrap();
    assert!(context.is_sampled);
    assert_eq!(
        (context.parent_span_id(), context.tracestate.as_deref()),
        (Some(0x00f0_67aa_0ba9_02b7), Some("a=b,c=d"))
    );
    assert_eq!(field(&on, "traceparent"), format!("00-{TRACE}-0000000000000abc-01"));
    assert_eq!(field(&on, "tracestate"), "a=b,c=d");
    assert!(!on.contains_key("b3"));
    let unsampled = format!("00-{TRACE}-{PARENT}-00");
    assert_eq!(propagate(&[("traceparent", &unsampled)], Percent::ONE_HUNDRED), None, "forwarded unchanged");
}

#[test]
fn request_without_trace_context_starts_a_trace() {
    let (context, on) = propagate(&[("tracestate", "left=over")], Percent::ONE_HUNDRED).unwrap();
    assert!(context.is_sampled && context.parent_span_id().is_none());
    assert_eq!(field(&on, "traceparent"), "00-00000000000000000000000000000007-0000000000000abc-01");
    assert_eq!(field(&on, "tracestate"), "");
    let (context, on) = propagate(&[], Percent::from_hundredths(0)).unwrap();
    assert!(!context.is_sampled);
    assert!(field(&on, "traceparent").ends_with("-00"), "the sampling decision is forwarded");
}

#[test]
fn b3_is_forwarded_in_its_format_beside_w3c() {
    let single = format!("{TRACE}-{PARENT}-1-05e3ac9a4f6e3b90");
    let (context, on) = propagate(&[("b3", &single)], Percent::from_hundredths(0)).unwrap();
    assert!(context.is_sampled);
    assert_eq!(field(&on, "b3"), format!("{TRACE}-0000000000000abc-1-{PARENT}"));
    assert_eq!(field(&on, "traceparent"), format!("00-{TRACE}-0000000000000abc-01"));

    let multi = [("x-b3-traceid", "a3ce929d0e0e4736"), ("x-b3-spanid", PARENT), ("x-b3-sampled", "true")];
    let (_, on) = propagate(&multi, Percent::from_hundredths(0)).unwrap();
    let forwarded =
        ["x-b3-traceid", "x-b3-spanid", "x-b3-parentspanid", "x-b3-sampled"].map(|name| field(&on, name));
    assert_eq!(forwarded, ["0000000000000000a3ce929d0e0e4736", "0000000000000abc", PARENT, "1"]);
    for denied in [&[("b3", "0")][..], &[("x-b3-sampled", "0")]] {
        assert_eq!(propagate(denied, Percent::ONE_HUNDRED), None);
    }
    // Without a decision by an earlier hop, this hop decides and sends its decision on.
    let undecided = format!("{TRACE}-{PARENT}");
    let (_, on) = propagate(&[("b3", &undecided)], Percent::ONE_HUNDRED).unwrap();
    assert_eq!(field(&on, "b3"), format!("{TRACE}-0000000000000abc-1-{PARENT}"));
}

#[test]
fn malformed_trace_context_is_ignored() {
    let wrong = [
        format!("00-{TRACE}-{PARENT}"),
        format!("00-{TRACE}-{PARENT}-01-more"),
        format!("ff-{TRACE}-{PARENT}-01"),
        format!("00-{}-{PARENT}-01", TRACE.to_uppercase()),
        format!("00-{}-{PARENT}-01", "0".repeat(32)),
        format!("00-{TRACE}-{}-01", "0".repeat(16)),
        format!("00_{TRACE}-{PARENT}-01"),
        format!("+0-{TRACE}-{PARENT}-01"),
        String::new(),
    ];
    for wrong in &wrong {
        let (context, _) = propagate(&[("traceparent", wrong)], Percent::ONE_HUNDRED).unwrap();
        assert_eq!(context.parent_span_id(), None, "{wrong}");
    }
    let later = format!("01-{TRACE}-{PARENT}-01-more");
    assert!(
        propagate(&[("traceparent", &later)], Percent::ONE_HUNDRED).unwrap().0.parent_span_id().is_some()
    );
    let twice = format!("00-{TRACE}-{PARENT}-01");
    let (context, _) =
        propagate(&[("traceparent", &twice), ("traceparent", &twice)], Percent::ONE_HUNDRED).unwrap();
    assert_eq!(context.parent_span_id(), None);
    for wrong in ["1-2", "x", &format!("{TRACE}-{PARENT}-2"), &format!("{TRACE}-{PARENT}-1-{PARENT}-1")] {
        let (context, _) = propagate(&[("b3", wrong)], Percent::ONE_HUNDRED).unwrap();
        assert_eq!(context.parent_span_id(), None, "{wrong}");
    }
}

#[test]
fn sampling_ratio_applies_to_new_traces() {
    let ratio = Percent::from_hundredths(2500);
    let sampled =
        |trace| TraceContext::new(IncomingTrace::default(), None, ratio, trace, 1).unwrap().is_sampled;
    let sampled_count = (1..=10_000).filter(|trace| sampled(*trace)).count();
    assert!((2300..2700).contains(&sampled_count), "{sampled_count}");
}

#[test]
fn started_trace_is_written_as_hexadecimal_digits() {
    for number in [0, 1, 0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210, u64::MAX, 0x0a9f_9a0f_a99a_f00f] {
        assert_eq!(hex_digits(number), *format!("{number:016x}").as_bytes());
    }
    let context = TraceContext::start(Percent::ONE_HUNDRED, 0xabc, 0xdef);
    let text = b"00-00000000000000000000000000000abc-0000000000000def-01";
    assert!(context.starts_trace() && context.traceparent() == *text);
    assert!(!has_trace_headers(&headers(&[("x-b", "1"), ("host", "a")])));
    for name in ["traceparent", "tracestate", "b3", "x-b3-traceid"] {
        assert!(has_trace_headers(&headers(&[("host", "a"), (name, "bad")])), "{name}");
    }
}
