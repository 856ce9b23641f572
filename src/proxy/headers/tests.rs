use bytes::BytesMut;
use http::header::COOKIE;
use http::{HeaderMap, Request};
use http_body_util::Empty;
use proptest::prelude::*;

use super::*;
use weir_http::http1::client;
use weir_http::http1::head::ReceivedHead;
use weir_http::http1::server::request_head::{HeadLimits, RequestHeadDecoder};

fn head(uri: &str, headers: &[(&str, &str)]) -> request::Parts {
    let mut request = Request::builder().uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

fn validation_result(head: &request::Parts) -> Result<(), InvalidRequest> {
    validate(head, 100, false).map(drop)
}

fn hop(trusted: bool) -> Hop<'static> {
    static PEER: HeaderValue = HeaderValue::from_static("198.51.100.7");
    let peer: IpAddr = "198.51.100.7".parse().unwrap();
    let client = ClientAddress { ip: peer, peer_is_trusted: trusted, is_internal: trusted };
    Hop { tls: None, peer, peer_text: &PEER, client, random: u128::MAX, via: None, hides_client: false }
}

fn forwarded_headers(headers: &[(&str, &str)], trusted: bool) -> HeaderMap {
    let mut head = head("/", headers);
    head.headers.entry(HOST).or_insert(HeaderValue::from_static("a.test"));
    let given = validate(&head, 100, false).unwrap();
    let (mut again, mut apart) = (head.clone(), FieldLines::default());
    prepare_request(&mut head, given, &hop(trusted), &[], None);
    prepare_request(&mut again, given, &hop(trusted), &[], Some(&mut apart));
    apart.parse_into(&mut again.headers);
    assert_eq!(head.headers, again.headers, "headers in a map and in separate lines are the same");
    head.headers
}

#[test]
fn hop_by_hop_headers_and_those_named_by_connection_are_removed() {
    let headers = forwarded_headers(
        &[
            ("host", "a.test"),
            ("connection", "x-secret, keep-alive, host, content-length, x-forwarded-for"),
            ("connection", "X-Other"),
            ("x-secret", "1"),
            ("x-other", "1"),
            ("x-kept", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "basic"),
            ("upgrade", "h2c"),
            ("http2-settings", "x"),
            ("content-length", "0"),
            ("x-forwarded-for", "1.1.1.1"),
        ],
        false,
    );
    let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    let expected = [
        "content-length",
        "host",
        "x-envoy-external-address",
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-kept",
        "x-request-id",
    ];
    assert_eq!(names, expected);
    assert_eq!(headers["x-forwarded-for"], "1.1.1.1,198.51.100.7");
}

#[test]
fn request_id_and_forwarded_proto_are_kept_from_trusted_peers_only() {
    let given = [("x-request-id", "mine"), ("x-forwarded-proto", "https")];
    let kept = forwarded_headers(&given, true);
    assert_eq!(
        (kept["x-request-id"].as_bytes(), kept["x-forwarded-proto"].as_bytes()),
        (&b"mine"[..], &b"https"[..])
    );
    let replaced = forwarded_headers(&given, false);
    assert_eq!(replaced["x-request-id"], "ffffffff-ffff-4fff-bfff-ffffffffffff");
    assert_eq!(replaced["x-forwarded-proto"], "http");
}

#[test]
fn absolute_form_target_becomes_origin_form_and_sets_host() {
    let mut head = head("http://target.test:81/a?b", &[("host", "other.test")]);
    let given = validate(&head, 100, false).unwrap();
    prepare_request(&mut head, given, &hop(false), &[], None);
    assert_eq!(head.uri, "/a?b");
    assert_eq!(head.headers["host"], "target.test:81");
}

#[test]
fn te_trailers_is_forwarded() {
    assert_eq!(forwarded_headers(&[("te", "gzip, Trailers")], false)["te"], "trailers");
    assert!(!forwarded_headers(&[("te", "gzip")], false).contains_key("te"));
}

#[test]
fn request_needs_exactly_one_valid_host() {
    let ok = [("host", "a.test:80")];
    assert_eq!(validation_result(&head("/", &ok)), Ok(()));
    for bad in
        [&[][..], &[("host", "")], &[("host", "a"), ("host", "a")], &[("host", "u@a")], &[("host", "a/b")]]
    {
        assert_eq!(validation_result(&head("/", bad)), Err(InvalidRequest::Malformed), "{bad:?}");
    }
    let mut old = head("/", &[]);
    old.version = Version::HTTP_10;
    assert_eq!(validation_result(&old), Ok(()));
}

#[test]
fn authority_of_the_target_is_validated_like_host() {
    let hosts = [("host", "a.test")];
    for target in [
        "http://user@a.test/",
        "http://user:pw@a.test/",
        "http://a.test,x/",
        "http://a.test;x/",
        "https://a(b)/",
    ] {
        assert_eq!(validation_result(&head(target, &hosts)), Err(InvalidRequest::Malformed), "{target}");
    }
    for target in ["http://a.test/", "http://a.test:8080/", "https://[::1]:8080/"] {
        assert_eq!(validation_result(&head(target, &hosts)), Ok(()), "{target}");
    }
    let mut by_http2 = head("http://user@a.test/", &[]);
    by_http2.version = Version::HTTP_2;
    assert_eq!(validation_result(&by_http2), Err(InvalidRequest::Malformed));
}

#[test]
fn only_a_single_chunked_transfer_coding_is_accepted() {
    let coded = |codings: &[&str]| {
        let mut headers = vec![("host", "a")];
        headers.extend(codings.iter().map(|coding| ("transfer-encoding", *coding)));
        validation_result(&head("/", &headers))
    };
    assert_eq!(coded(&["chunked"]), Ok(()));
    assert_eq!(coded(&["Chunked"]), Ok(()));
    assert_eq!(coded(&["chunked", "chunked"]), Err(InvalidRequest::Malformed));
    assert_eq!(coded(&["gzip, chunked"]), Err(InvalidRequest::TransferEncoding));
    assert_eq!(coded(&["chunked, chunked"]), Err(InvalidRequest::Malformed));
    assert_eq!(coded(&[", chunked ,", ","]), Ok(()));
}

#[test]
fn targets_without_a_path_are_rejected() {
    for bad in ["ftp://a/p", "a.test:80"] {
        assert_eq!(validation_result(&head(bad, &[("host", "a")])), Err(InvalidRequest::Malformed), "{bad}");
    }
    assert_eq!(validation_result(&head("*", &[("host", "a")])), Err(InvalidRequest::Malformed));
}

#[test]
fn connect_is_accepted_by_a_forward_proxy_only_and_without_content() {
    let connect = |target: &str, headers: &[(&str, &str)]| {
        let mut head = head(target, headers);
        head.method = http::Method::CONNECT;
        head
    };
    let host = ("host", "a.test:443");
    let plain = connect("a.test:443", &[host]);
    assert_eq!(validate(&plain, 100, true).map(drop), Ok(()));
    assert_eq!(validate(&plain, 100, false).map(drop), Err(InvalidRequest::Method));
    for (target, headers) in [
        ("http://a.test:443/", &[host][..]),
        ("/", &[host]),
        ("a.test:443", &[host, ("content-length", "1")]),
        ("a.test:443", &[host, ("transfer-encoding", "chunked")]),
        ("user@a.test:443", &[host]),
        ("a.test:443", &[]),
    ] {
        let refused = validate(&connect(target, headers), 100, true).map(drop);
        assert_eq!(refused, Err(InvalidRequest::Malformed), "{target} {headers:?}");
    }
    let empty = connect("a.test:443", &[host, ("content-length", "0")]);
    assert_eq!(validate(&empty, 100, true).map(drop), Ok(()));
}

#[test]
fn destination_of_a_forward_proxy_learns_nothing_about_the_client() {
    let mut request = head("http://a.test/x", &[("host", "b.test"), ("proxy-authorization", "basic")]);
    let flags = validate(&request, 100, false).unwrap();
    let via = HeaderValue::from_static("1.1 weir-1");
    let hop = Hop { via: Some(&via), hides_client: true, ..hop(false) };
    prepare_request(&mut request, flags, &hop, &[], None);
    assert_eq!(request.uri, "/x");
    let headers = [("host", "a.test"), ("via", "1.1 weir-1")];
    let expected = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    assert_eq!(request.headers, HeaderMap::from_iter(expected));
}

#[test]
fn empty_path_before_a_query_is_a_slash() {
    for (target, expected) in
        [("http://a.test?x=1", "/?x=1"), ("http://a.test", "/"), ("http://a.test/?x", "/?x")]
    {
        let mut head = head(target, &[("host", "a.test")]);
        let flags = validate(&head, 100, false).unwrap();
        prepare_request(&mut head, flags, &hop(false), &[], None);
        assert_eq!(head.uri.path_and_query().map_or("/", |target| target.as_str()), expected, "{target}");
    }
}

/// Joins cookies that were sent in pieces.
fn joined(pieces: &[&str]) -> Vec<String> {
    let pieces: Vec<_> = pieces.iter().map(|piece| ("cookie", *piece)).collect();
    let mut head = head("/", &pieces);
    head.version = Version::HTTP_2;
    join_cookies(&mut head);
    head.headers.get_all(COOKIE).iter().map(|cookie| cookie.to_str().unwrap().to_owned()).collect()
}

#[test]
fn pieces_of_cookies_are_joined_without_empty_ones() {
    for (pieces, expected) in [
        (&["a=1", "b=2"][..], &["a=1; b=2"][..]),
        (&["a=1", ""], &["a=1"]),
        (&["", "a=1"], &["a=1"]),
        (&["a=1", "", "", "b=2", ""], &["a=1; b=2"]),
        (&["", ""], &[""]),
        (&["a=1"], &["a=1"]),
        (&[], &[]),
    ] {
        assert_eq!(joined(pieces), expected, "{pieces:?}");
    }
}

proptest! {
    /// Whatever is accepted over HTTP/2, our own HTTP/1.1 decoder accepts what is sent for it, and reads the same.
    #[test]
    fn what_is_sent_over_http1_is_accepted_by_our_own_decoder(
        method in "GET|POST|PURGE|[!#$%&'*+.^_`|~a-zA-Z-]{1,3}",
        path in "/[!-~\u{80}-\u{ff}]{0,20}",
        cookies in proptest::collection::vec("[!-~]{0,5}|", 0..4),
        fields in proptest::collection::vec(("[!#$%&'*+.^_`|~a-z0-9-]{1,8}", "[!-~\u{80}-\u{ff}]{0,12}"), 0..8),
    ) {
        let Ok(uri) = http::Uri::try_from(format!("http://a.test{path}")) else { return Ok(()) };
        let mut request = Request::builder().method(method.as_str()).uri(uri).version(Version::HTTP_2);
        for (name, value) in &fields {
            request = request.header(format!("x-{name}"), value.as_bytes());
        }
        for cookie in &cookies {
            request = request.header(COOKIE, cookie);
        }
        let mut head = request.body(()).unwrap().into_parts().0;
        let Ok(flags) = validate(&head, 100, false) else { return Ok(()) };
        join_cookies(&mut head);
        prepare_request(&mut head, flags, &hop(false), &[], None);
        let (mut sent, mut read) = (Vec::new(), None);
        client::request_head::write(&head, &ReceivedHead::default(), &FieldLines::default(), &Empty::<bytes::Bytes>::new(), &mut sent);
        let limits = HeadLimits { size: 60 << 10, fields: 100 };
        let decoded = RequestHeadDecoder::new(limits).decode(&mut BytesMut::from(&sent[..]), &mut read);
        prop_assert!(decoded.is_ok() && read.is_some(), "{:?}: {:?}", decoded, String::from_utf8_lossy(&sent));
        let read = read.unwrap().parts;
        prop_assert_eq!((read.uri.path_and_query(), &read.headers), (head.uri.path_and_query(), &head.headers));
    }
}
