use super::*;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
    let field =
        |(name, value): &(&'static str, &str)| (HeaderName::from_static(name), value.parse().unwrap());
    fields.iter().map(field).collect()
}

/// Returns the context and the forwarded headers of a request with these headers, for this sampling share.
fn after(fields: &[(&'static str, &str)], share: Percent) -> Option<(Context, HeaderMap)> {
    let mut headers = headers(fields);
    let context = Context::new(Incoming::of(&headers), share, (7, 0xabc))?;
    context.write(&mut headers);
    Some((context, headers))
}

fn field<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.to_str().unwrap())
}

#[test]
fn the_parent_decides_and_our_span_stands_in_its_place() {
    let given = format!("00-{TRACE}-{PARENT}-01");
    let (context, on) =
        after(&[("traceparent", &given), ("tracestate", "a=b,c=d")], Percent::from_hundredths(0)).unwrap();
    assert!(context.sampled);
    assert_eq!(
        (context.parent(), context.tracestate.as_deref()),
        (Some(0x00f0_67aa_0ba9_02b7), Some("a=b,c=d"))
    );
    assert_eq!(field(&on, "traceparent"), format!("00-{TRACE}-0000000000000abc-01"));
    assert_eq!(field(&on, "tracestate"), "a=b,c=d");
    assert!(!on.contains_key("b3"));
    let unsampled = format!("00-{TRACE}-{PARENT}-00");
    assert_eq!(after(&[("traceparent", &unsampled)], Percent::WHOLE), None, "forwarded unchanged");
}

#[test]
fn a_request_without_a_trace_begins_one() {
    let (context, on) = after(&[("tracestate", "left=over")], Percent::WHOLE).unwrap();
    assert!(context.sampled && context.parent().is_none());
    assert_eq!(field(&on, "traceparent"), "00-00000000000000000000000000000007-0000000000000abc-01");
    assert_eq!(field(&on, "tracestate"), "");
    let (context, on) = after(&[], Percent::from_hundredths(0)).unwrap();
    assert!(!context.sampled);
    assert!(field(&on, "traceparent").ends_with("-00"), "the sampling decision is forwarded");
}

#[test]
fn b3_goes_on_as_it_came_beside_w3c() {
    let single = format!("{TRACE}-{PARENT}-1-05e3ac9a4f6e3b90");
    let (context, on) = after(&[("b3", &single)], Percent::from_hundredths(0)).unwrap();
    assert!(context.sampled);
    assert_eq!(field(&on, "b3"), format!("{TRACE}-0000000000000abc-1-{PARENT}"));
    assert_eq!(field(&on, "traceparent"), format!("00-{TRACE}-0000000000000abc-01"));

    let several = [("x-b3-traceid", "a3ce929d0e0e4736"), ("x-b3-spanid", PARENT), ("x-b3-sampled", "true")];
    let (_, on) = after(&several, Percent::from_hundredths(0)).unwrap();
    let said =
        ["x-b3-traceid", "x-b3-spanid", "x-b3-parentspanid", "x-b3-sampled"].map(|name| field(&on, name));
    assert_eq!(said, ["0000000000000000a3ce929d0e0e4736", "0000000000000abc", PARENT, "1"]);
    for denied in [&[("b3", "0")][..], &[("x-b3-sampled", "0")]] {
        assert_eq!(after(denied, Percent::WHOLE), None);
    }
    // Without a decision by an earlier hop, this hop decides and sends its decision on.
    let undecided = format!("{TRACE}-{PARENT}");
    let (_, on) = after(&[("b3", &undecided)], Percent::WHOLE).unwrap();
    assert_eq!(field(&on, "b3"), format!("{TRACE}-0000000000000abc-1-{PARENT}"));
}

#[test]
fn what_breaks_the_grammar_is_no_context() {
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
        let (context, _) = after(&[("traceparent", wrong)], Percent::WHOLE).unwrap();
        assert_eq!(context.parent(), None, "{wrong}");
    }
    let later = format!("01-{TRACE}-{PARENT}-01-more");
    assert!(after(&[("traceparent", &later)], Percent::WHOLE).unwrap().0.parent().is_some());
    let twice = format!("00-{TRACE}-{PARENT}-01");
    let (context, _) = after(&[("traceparent", &twice), ("traceparent", &twice)], Percent::WHOLE).unwrap();
    assert_eq!(context.parent(), None);
    for wrong in ["1-2", "x", &format!("{TRACE}-{PARENT}-2"), &format!("{TRACE}-{PARENT}-1-{PARENT}-1")] {
        let (context, _) = after(&[("b3", wrong)], Percent::WHOLE).unwrap();
        assert_eq!(context.parent(), None, "{wrong}");
    }
}

#[test]
fn a_share_of_new_traces_is_kept() {
    let share = Percent::from_hundredths(2500);
    let sampled = |trace| Context::new((Incoming::default(), None), share, (trace, 1)).unwrap().sampled;
    let kept = (1..=10_000).filter(|trace| sampled(*trace)).count();
    assert!((2300..2700).contains(&kept), "{kept}");
}
