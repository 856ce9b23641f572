use proptest::prelude::*;

use super::*;
use crate::http2::hpack::HpackDecoder;

/// Returns what is decoded of fields, each with its name and value.
fn built(fields: &[(&str, &str)], max_size: u32) -> HeadBuilder {
    let mut block = Vec::new();
    for (name, value) in fields {
        // A literal that is not indexed, with a new name (RFC 7541 section 6.2.2).
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    let mut head = HeadBuilder::new(max_size);
    HpackDecoder::new().decode(&block, &mut head).unwrap();
    head
}

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "https"), (":authority", "a.test"), (":path", "/p?q")];
const CONNECT: [(&str, &str); 2] = [(":method", "CONNECT"), (":authority", "a.test:443")];

fn request(fields: &[(&str, &str)]) -> Result<Request<()>, HeadError> {
    built(fields, 1000).into_request(AcceptedOrigins::Uri)
}

#[test]
fn request_has_its_uri_and_fields() {
    let request = request(&[&GET[..], &[("te", "trailers"), ("x-a", "1"), ("x-a", "2")]].concat()).unwrap();
    assert_eq!((request.method(), request.version()), (&Method::GET, Version::HTTP_2));
    assert_eq!(request.uri(), "https://a.test/p?q");
    assert_eq!(request.headers().get_all("x-a").iter().collect::<Vec<_>>(), ["1", "2"]);
    let without_authority = [GET[0], GET[1], GET[3]];
    assert_eq!(built(&without_authority, 1000).into_request(AcceptedOrigins::Uri).unwrap().uri(), "/p?q");
}

#[test]
fn request_without_what_its_method_needs_is_malformed() {
    for without in [0, 1, 3] {
        let mut fields = GET.to_vec();
        fields.remove(without);
        assert_eq!(request(&fields).err(), Some(PSEUDO_HEADERS), "{without}");
    }
    assert_eq!(request(&CONNECT).unwrap().uri(), "a.test:443");
    assert!(request(&CONNECT[..1]).is_err());
    assert!(request(&[&CONNECT[..], &GET[3..]].concat()).is_err(), "a path");
    let extended = [&CONNECT[..1], &GET[1..], &[(":protocol", "websocket")]].concat();
    assert_eq!(request(&extended).unwrap().extensions().get::<Protocol>().unwrap().as_str(), "websocket");
    assert!(request(&[&GET[..], &[(":protocol", "websocket")]].concat()).is_err(), "not CONNECT");
}

/// Values of `:authority` that gRPC clients send: Envoy the name of a cluster, other clients a path of a socket.
const OTHER_AUTHORITIES: [&str; 8] = [
    "outbound|8081||ratelimit.default.svc.cluster.local",
    "",
    "unix:/run/rls.sock",
    "/run/rls.sock",
    "%2Frun%2Frls.sock",
    "::1",
    "a b",
    "a.test/path",
];

#[test]
fn any_authority_or_scheme_is_accepted_only_where_it_is_not_used() {
    let with = |authority: &'static str, scheme: &'static str| {
        [GET[0], (":scheme", scheme), (":authority", authority), GET[3], ("x-a", "1")]
    };
    let any = |fields: &[(&str, &str)]| built(fields, 1000).into_request(AcceptedOrigins::Any);
    for other in OTHER_AUTHORITIES
        .map(|authority| with(authority, "http"))
        .into_iter()
        .chain([with("a", ""), with("a", "1/")])
    {
        assert!(matches!(request(&other).err(), Some(HeadError::Malformed(_))), "{other:?}");
        let accepted = any(&other).unwrap();
        assert_eq!(
            (accepted.uri().to_string().as_str(), &accepted.headers()["x-a"]),
            ("/p?q", &HeaderValue::from_static("1"))
        );
        assert!(any(&[&other[..2], &other[2..3], &other[2..]].concat()).is_err(), "twice");
        assert!(any(&[&other[..2], &other[1..]].concat()).is_err(), "twice");
        assert!(any(&[&GET[2..3], &other[..]].concat()).is_err(), "two authorities");
        assert!(built(&other[2..3], 1000).into_trailers().is_err());
    }
    assert_eq!(any(&GET).unwrap().uri(), "https://a.test/p?q");
    assert_eq!(any(&[GET[0], GET[2], GET[3]]).unwrap().uri(), "/p?q", "no scheme");
    assert_eq!(any(&[GET[0], GET[3], ("host", "a|b")]).unwrap().uri(), "/p?q", "neither");
    assert!(any(&with("a\u{1}b", "http")).is_err(), "a control character");
}

#[test]
fn pseudo_headers_occur_once_and_first() {
    for field in GET {
        assert!(request(&[&GET[..], &[field]].concat()).is_err(), "{field:?} twice");
    }
    let [method, rest @ ..] = GET;
    assert!(request(&[&rest[..], &[("x-a", "1"), method]].concat()).is_err(), "after a header");
    assert!(request(&[&GET[..], &[(":status", "200")]].concat()).is_err());
    assert!(built(&[(":status", "200"), (":path", "/")], 1000).into_response().is_err());
    assert!(built(&[(":status", "200")], 1000).into_trailers().is_err());
    assert_eq!(built(&[(":status", "200"), ("x-a", "1")], 1000).into_response().unwrap().status(), 200);
    assert_eq!(built(&[("x-a", "1")], 1000).into_trailers().unwrap().len(), 1);
}

#[test]
fn fields_of_a_connection_are_malformed() {
    for field in ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "te"] {
        assert!(request(&[&GET[..], &[(field, "x")]].concat()).is_err(), "{field}");
    }
}

#[test]
fn size_is_limited_and_malformed_counts_first() {
    let size = |fields: &[(&str, &str)]| {
        fields.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>()
    };
    let exact = u32::try_from(size(&GET)).unwrap();
    assert!(built(&GET, exact).into_request(AcceptedOrigins::Uri).is_ok());
    assert_eq!(built(&GET, exact - 1).into_request(AcceptedOrigins::Uri).err(), Some(HeadError::TooLarge));
    let malformed = [&GET[..], &[GET[0], ("x-a", "1")]].concat();
    assert_eq!(built(&malformed, exact + 50).into_request(AcceptedOrigins::Uri).err(), Some(PSEUDO_HEADERS));
}

proptest! {
    #[test]
    fn encoded_request_is_decoded_again(path in "/[a-z0-9/?=&-]{0,40}", values in prop::collection::vec("|[!-~]|[!-~][ -~]{0,38}[!-~]", 0..20)) {
        let mut head = Request::post(format!("http://a.test{path}")).version(Version::HTTP_2);
        for (index, value) in values.iter().enumerate() {
            head = head.header(format!("x-{}", index % 7), value);
        }
        let head = head.body(()).unwrap();
        let (mut encoder, mut block, mut decoded) = (HpackEncoder::new(), Vec::new(), HeadBuilder::new(100_000));
        encoder.begin(&mut block);
        encode_request(&head, &mut encoder, &mut block);
        HpackDecoder::new().decode(&block, &mut decoded).unwrap();
        let decoded = decoded.into_request(AcceptedOrigins::Uri).unwrap();
        prop_assert_eq!((decoded.method(), decoded.uri()), (head.method(), head.uri()));
        prop_assert_eq!(decoded.headers(), head.headers());
    }

    /// Whatever a head or trailers contain, our own decoder accepts what is written.
    #[test]
    fn what_is_written_is_accepted(
        fields in prop::collection::vec(("[!#$%&'*+.^_`|~a-z0-9-]{1,8}|te|connection|upgrade|keep-alive", "[ \t!-~\u{80}-\u{ff}]{0,10}"), 0..10),
    ) {
        let mut headers = HeaderMap::new();
        for (name, value) in &fields {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let (mut encoder, mut decoder) = (HpackEncoder::new(), HpackDecoder::new());
        for _ in 0..3 {
            let (mut block, mut decoded) = (Vec::new(), HeadBuilder::new(100_000));
            encoder.begin(&mut block);
            encode_trailers(&headers, &mut encoder, &mut block);
            decoder.decode(&block, &mut decoded).unwrap();
            let decoded = decoded.into_trailers();
            prop_assert!(decoded.is_ok(), "{:?}", decoded);
            for value in decoded.unwrap().values().map(HeaderValue::as_bytes) {
                prop_assert_eq!(value, value.trim_ascii());
            }
        }
    }

    #[test]
    fn length_is_read_or_an_error(value in "[ -~]{0,25}") {
        let headers = HeaderMap::from_iter([(CONTENT_LENGTH, HeaderValue::from_str(&value).unwrap())]);
        let expected = match value.is_empty() {
            true => Ok(Some(0)),
            false => value.bytes().all(|byte| byte.is_ascii_digit()).then(|| value.parse().ok()).flatten().map(Some).ok_or(CONTENT_LENGTH_ERROR),
        };
        prop_assert_eq!(content_length(&headers), expected);
    }
}
