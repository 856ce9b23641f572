use http::header::{AGE, CACHE_CONTROL, DATE, SET_COOKIE, TE, TRAILER, UPGRADE, WARNING};
use proptest::prelude::*;

use super::*;

fn raw_headers(fields: &[(String, String)]) -> Headers {
    let mut raw = RawHeaders::default();
    for (name, value) in fields {
        raw.push(name.as_bytes(), value.as_bytes());
    }
    raw.into()
}

fn mapped_headers(fields: &[(String, String)]) -> Headers {
    let field = |(name, value): &(String, String)| (name.parse().unwrap(), value.parse().unwrap());
    fields.iter().map(field).collect::<HeaderMap>().into()
}

fn written(headers: &mut Headers) -> String {
    let mut out = Vec::new();
    match headers.writable() {
        WritableHeaders::Raw(raw) => raw.write(&mut out),
        WritableHeaders::Lines(lines) => {
            lines.iter().for_each(|(name, value)| write_field(name, value, &mut out))
        }
        WritableHeaders::Map(map) => {
            map.iter()
                .for_each(|(name, value)| write_field(name.as_str().as_bytes(), value.as_bytes(), &mut out));
        }
    }
    String::from_utf8(out).unwrap()
}

/// Names that share letters and lengths, some of them hop-by-hop, in any case.
fn name() -> impl Strategy<Value = String> {
    const NAMES: [&str; 18] = [
        "a",
        "te",
        "age",
        "date",
        "etag",
        "x-age",
        "trailer",
        "upgrade",
        "warning",
        "connection",
        "keep-alive",
        "set-cookie",
        "Set-Cookie",
        "cache-control",
        "x-ratelimit-limit",
        "x-ratelimit-reset",
        "transfer-encoding",
        "proxy-authenticate",
    ];
    let known = (proptest::sample::select(&NAMES[..]), any::<bool>())
        .prop_map(|(name, upper)| if upper { name.to_ascii_uppercase() } else { name.to_owned() });
    prop_oneof![4 => known, 1 => "[a-zA-Z][a-zA-Z0-9_-]{0,20}"]
}

fn fields() -> impl Strategy<Value = Vec<(String, String)>> {
    let value =
        prop_oneof!["", "[!-~]", "[!-~][ -~]{0,30}[!-~]", "close", "keep-alive", "close, x-age, host"];
    proptest::collection::vec((name(), value), 0..12)
}

/// A change that both forms support.
#[derive(Clone, Debug)]
enum Change {
    Set(String, String),
    Number(String, u64),
    Text(String, String),
    Append(String, String),
    RemoveHopByHop,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (name(), "[!-~]{0,9}").prop_map(|(name, value)| Change::Set(name, value)),
        (name(), any::<u64>()).prop_map(|(name, number)| Change::Number(name, number)),
        (name(), "[!-~]{0,9}").prop_map(|(name, value)| Change::Text(name, value)),
        (name(), "[!-~]{0,9}").prop_map(|(name, value)| Change::Append(name, value)),
        Just(Change::RemoveHopByHop),
    ]
}

impl Change {
    fn apply(&self, headers: &mut Headers) {
        match self {
            Self::Set(name, value) => headers.set(&name.parse().unwrap(), &value.parse().unwrap()),
            Self::Number(name, number) => headers.set_number(&name.parse().unwrap(), *number),
            Self::Text(name, text) => headers.set_text(&name.parse().unwrap(), text.clone().into_bytes()),
            Self::Append(name, value) => headers.append(name.parse().unwrap(), &value.parse().unwrap()),
            Self::RemoveHopByHop => headers.remove_hop_by_hop(|name| name == "x-age"),
        }
    }
}

fn check_equal(raw: &Headers, mapped: &Headers) -> Result<(), TestCaseError> {
    let map = mapped.clone().into_map();
    let others = [DATE, SET_COOKIE, TE, TRAILER, UPGRADE, CACHE_CONTROL, AGE];
    for name in map.keys().chain(&others) {
        let values: Vec<_> = map.get_all(name).iter().map(HeaderValue::as_bytes).collect();
        for headers in [raw, mapped] {
            prop_assert_eq!(headers.get_all(name).collect::<Vec<_>>(), &values[..], "{}", name);
            prop_assert_eq!(headers.get(name), values.first().copied(), "{}", name);
            prop_assert_eq!(headers.contains(name), !values.is_empty(), "{}", name);
        }
    }
    prop_assert_eq!(raw.has_date(), map.contains_key(DATE));
    prop_assert_eq!(mapped.has_date(), map.contains_key(DATE));
    prop_assert_eq!(raw.clone().into_map(), map);
    Ok(())
}

proptest! {
    #[test]
    fn raw_and_mapped_headers_agree_after_changes(
        fields in fields(),
        changes in proptest::collection::vec(change(), 0..6),
    ) {
        let (mut raw, mut mapped) = (raw_headers(&fields), mapped_headers(&fields));
        check_equal(&raw, &mapped)?;
        for change in changes {
            change.apply(&mut raw);
            change.apply(&mut mapped);
            check_equal(&raw, &mapped)?;
        }
    }

    /// The encoder copies raw headers unread, so they must hold none that it has to handle.
    #[test]
    fn headers_written_raw_include_no_hop_by_hop_or_trailer_header(fields in fields()) {
        let mut raw = raw_headers(&fields);
        let is_plain = matches!(raw.writable(), WritableHeaders::Raw(_));
        let is_special = |name: &HeaderName| is_hop_by_hop(name.as_str().as_bytes()) || *name == TRAILER;
        prop_assert_eq!(is_plain, !raw.clone().into_map().keys().any(is_special));
    }
}

#[test]
fn raw_headers_are_visited_with_names_in_lower_case() {
    let long = "X-".repeat(60);
    let mut raw = RawHeaders::default();
    raw.push(b"X-One", b"A: b");
    raw.push_content_length(|raw| raw.push(b"Content-Length", b"12"));
    raw.push(long.as_bytes(), b"");
    let mut visited = Vec::new();
    raw.lines().for_each_in_lower_case(|name, value| visited.push((name.to_vec(), value.to_vec())));
    let expected = [("x-one", "A: b"), ("content-length", "12"), (&long.to_lowercase(), "")];
    assert_eq!(visited, expected.map(|(name, value)| (name.into(), value.into())));
}

#[test]
fn raw_headers_are_written_unchanged_before_added_ones() {
    let mut headers =
        raw_headers(&[("X-One".into(), "1".into()), ("Warning".into(), "199 - \"a: b\"".into())]);
    headers.set_number(&AGE, 12);
    assert_eq!(written(&mut headers), "X-One: 1\r\nWarning: 199 - \"a: b\"\r\nage: 12\r\n");
    assert_eq!(headers.get(&WARNING), Some(&b"199 - \"a: b\""[..]));
}

#[test]
fn raw_content_length_is_readable_but_not_written() {
    let mut raw = RawHeaders::default();
    raw.push(b"a", b"1");
    raw.push_content_length(|raw| raw.push(b"Content-Length", b"12"));
    raw.push(b"b", b"2");
    let mut without = raw.clone();
    let mut headers = Headers::from(raw);
    assert_eq!(headers.get(&CONTENT_LENGTH), Some(&b"12"[..]));
    assert_eq!(written(&mut headers), "a: 1\r\nb: 2\r\n");
    assert_eq!(headers.into_map()[CONTENT_LENGTH], "12");
    without.remove_content_length();
    assert_eq!(Headers::from(without).into_map().len(), 2);
}

#[test]
fn setting_a_header_replaces_all_of_its_name() {
    let mut headers =
        raw_headers(&[("X-A".into(), "1".into()), ("b".into(), "2".into()), ("x-a".into(), "3".into())]);
    headers.set(&"x-a".parse().unwrap(), &HeaderValue::from_static("4"));
    assert_eq!(written(&mut headers), "b: 2\r\nx-a: 4\r\n");
}

#[test]
fn hop_by_hop_headers_are_recognised_in_any_case() {
    for name in ["Connection", "Keep-Alive", "TE", "Transfer-Encoding", "Upgrade", "Proxy-Authenticate"] {
        assert!(is_hop_by_hop(name.as_bytes()), "{name}");
    }
    for name in ["proxy-connection", "HTTP2-Settings", "proxy-authorization"] {
        assert!(is_hop_by_hop(name.as_bytes()), "{name}");
    }
    for name in ["", "t", "trailer", "date", "te\u{e9}", "content-length", "connectio", "Retry-After"] {
        assert!(!is_hop_by_hop(name.as_bytes()), "{name}");
    }
}

#[test]
fn headers_with_a_meaning_in_a_head_are_not_trailers() {
    for name in ["host", "cookie", "set-cookie", "content-length", "te", "connection", "authorization"] {
        assert!(!may_be_trailer(&HeaderName::from_static(name)), "{name}");
    }
    for name in ["grpc-status", "x-checksum", "server-timing", "etag"] {
        assert!(may_be_trailer(&HeaderName::from_static(name)), "{name}");
    }
}

#[test]
fn added_line_is_found_by_its_whole_name() {
    let (request_id, missing) =
        (HeaderName::from_static("x-request-id"), HeaderName::from_static("x-request"));
    let mut lines = FieldLines::default();
    assert_eq!(lines.get(&request_id), None);
    lines.push(b"x-request-identity", b"1");
    lines.push(b"x-request-id", b"a: b");
    lines.push(b"x-empty", b"");
    assert_eq!(lines.get(&request_id), Some(&b"a: b"[..]));
    assert_eq!(lines.get(&HeaderName::from_static("x-empty")), Some(&b""[..]));
    assert_eq!(lines.get(&missing), None);
}
