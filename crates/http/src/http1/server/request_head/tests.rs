use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

use hyper::body::Body as _;
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use tokio::io::AsyncWriteExt as _;

use super::*;

const LIMITS: HeadLimits = HeadLimits { size: 60 * 1024, fields: 10000 };

/// Result of decoding: the head, if it is complete, and the bytes after it.
type Outcome = Result<Option<(RequestHead, Vec<u8>)>, MalformedMessage>;

fn decode_in_pieces(bytes: &[u8], limits: HeadLimits, cuts: &[usize]) -> Outcome {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    let (mut reader, mut read) = (RequestHeadDecoder::new(limits), BytesMut::new());
    for pair in cuts.windows(2).filter(|pair| pair[0] < pair[1]) {
        read.extend_from_slice(&bytes[pair[0]..pair[1]]);
        let mut head = None;
        reader.decode(&mut read, &mut head)?;
        if let Some(head) = head {
            return Ok(Some((head, [&read[..], &bytes[pair[1]..]].concat())));
        }
    }
    Ok(None)
}

fn decode(text: &str) -> Outcome {
    decode_in_pieces(text.as_bytes(), LIMITS, &[])
}

fn decode_complete(text: &str) -> RequestHead {
    let (head, rest) = decode(text).expect("a well-formed head").expect("a complete head");
    assert_eq!(rest, b"", "{text:?}");
    head
}

fn decode_error(text: &str) -> MalformedMessage {
    decode(text).expect_err(text)
}

/// Returns a request with these headers.
fn post_with_headers(fields: &str) -> String {
    format!("POST /p HTTP/1.1\r\nhost: a\r\n{fields}\r\n")
}

#[test]
fn request_head_is_decoded() {
    let head =
        decode_complete("\r\nPUT /a/b?c=%20 HTTP/1.1\r\nHost: a.test\r\nX-One:  1 \r\nx-one: 2\r\n\r\n");
    assert_eq!(head.parts.method, Method::PUT);
    assert_eq!(head.parts.uri, "/a/b?c=%20");
    assert_eq!(head.parts.version, Version::HTTP_11);
    let fields = head.parts.headers.iter();
    let fields: Vec<_> = fields.map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    assert_eq!(fields, [("host", "a.test"), ("x-one", "1"), ("x-one", "2")]);
    assert_eq!(head.decoder, BodyDecoder::Length(0));
    assert!(!head.expects_continue);
    assert_eq!(
        head.info,
        RequestInfo {
            is_head: false,
            is_http11: true,
            keep_alive: true,
            accepts_trailers: false,
            is_connect: false
        }
    );
    let old = decode_complete("HEAD http://b.test/ HTTP/1.0\r\n\r\n");
    assert_eq!((old.parts.version, old.info.is_head), (Version::HTTP_10, true));
    assert_eq!(old.parts.uri, "http://b.test/");
}

#[test]
fn bytes_after_a_request_head_are_left_unread() {
    let (_, rest) = decode("GET / HTTP/1.1\r\n\r\nGET /next").unwrap().unwrap();
    assert_eq!(rest, b"GET /next");
    assert!(decode("GET / HTTP/1.1\r\nhost: a\r\n").unwrap().is_none());
}

#[test]
fn request_body_is_framed_by_content_length_or_chunked() {
    let length = |fields: &str| decode_complete(&post_with_headers(fields)).decoder;
    assert_eq!(length("content-length: 5\r\n"), BodyDecoder::Length(5));
    assert_eq!(length("content-length: 0010\r\n"), BodyDecoder::Length(10));
    assert_eq!(length("content-length: 5\r\nContent-Length: 5\r\n"), BodyDecoder::Length(5));
    for coding in ["chunked", "Chunked", "gzip, chunked", "gzip\r\ntransfer-encoding: chunked"] {
        let length = length(&format!("transfer-encoding: {coding}\r\n"));
        assert_eq!(length, BodyDecoder::Chunked(ChunkedDecoder::default()), "{coding}");
    }
}

#[test]
fn ambiguous_request_framing_is_rejected() {
    for length in
        ["", "+5", "-5", "5 5", "5, 5", "0x5", "five", "9223372036854775808", "18446744073709551616"]
    {
        assert_eq!(
            decode_error(&post_with_headers(&format!("content-length: {length}\r\n"))),
            MalformedMessage::ContentLength,
            "{length}"
        );
    }
    assert_eq!(
        decode_error(&post_with_headers("content-length: 5\r\ncontent-length: 6\r\n")),
        MalformedMessage::ContentLength
    );
    for coding in ["", "gzip", "chunked, gzip", "chunked\r\ntransfer-encoding: gzip", "xchunked"] {
        let fields = format!("transfer-encoding: {coding}\r\n");
        assert_eq!(decode_error(&post_with_headers(&fields)), MalformedMessage::TransferEncoding, "{coding}");
    }
    assert_eq!(
        decode_error("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n"),
        MalformedMessage::TransferEncoding
    );
}

#[test]
fn transfer_encoding_overrides_content_length_and_closes_the_connection() {
    for fields in [
        "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: five\r\n",
    ] {
        let head = decode_complete(&post_with_headers(fields));
        assert_eq!(head.decoder, BodyDecoder::Chunked(ChunkedDecoder::default()), "{fields}");
        assert!(!head.parts.headers.contains_key(CONTENT_LENGTH), "{fields}");
        assert!(!head.info.keep_alive, "{fields}");
    }
}

#[test]
fn keep_alive_follows_version_and_connection_header() {
    let keeps = |version: &str, fields: &str| {
        decode_complete(&format!("GET / {version}\r\n{fields}\r\n")).info.keep_alive
    };
    for (fields, old, new) in [
        ("", false, true),
        ("connection: close\r\n", false, false),
        ("connection: Keep-Alive\r\n", true, true),
        ("connection: te, close\r\n", false, false),
        ("connection: close\r\nconnection: keep-alive\r\n", false, false),
        ("connection: keep-alive\r\nconnection: close\r\n", false, false),
        ("connection: closed\r\n", false, true),
    ] {
        assert_eq!(keeps("HTTP/1.0", fields), old, "HTTP/1.0 {fields}");
        assert_eq!(keeps("HTTP/1.1", fields), new, "HTTP/1.1 {fields}");
    }
}

#[test]
fn expect_continue_applies_to_requests_with_a_body_only() {
    let expects = |text: &str| decode_complete(text).expects_continue;
    assert!(expects(&post_with_headers("content-length: 5\r\nexpect: 100-Continue\r\n")));
    assert!(!expects(&post_with_headers("content-length: 0\r\nexpect: 100-continue\r\n")));
    assert!(!expects(&post_with_headers("content-length: 5\r\nexpect: something\r\n")));
    assert!(!expects("POST / HTTP/1.0\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n"));
}

#[test]
fn trailers_are_accepted_with_te_trailers_only() {
    assert!(decode_complete(&post_with_headers("te: gzip, Trailers\r\n")).info.accepts_trailers);
    assert!(!decode_complete(&post_with_headers("te: gzip\r\n")).info.accepts_trailers);
}

#[test]
fn request_head_limits_apply_to_size_fields_and_target() {
    let limits = HeadLimits { size: 200, fields: 3 };
    let outcome = |text: &str| decode_in_pieces(text.as_bytes(), limits, &[]);
    let long = |bytes: usize| format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(bytes - 23));
    assert_eq!(long(200).len(), 200);
    assert!(outcome(&long(200)).unwrap().is_some());
    assert_eq!(outcome(&long(201)).unwrap_err(), MalformedMessage::FieldsTooLarge, "complete");
    assert_eq!(outcome(&long(300)[..201]).unwrap_err(), MalformedMessage::FieldsTooLarge, "incomplete");
    assert!(outcome("GET / HTTP/1.1\r\na: 1\r\nb: 2\r\nc: 3\r\n\r\n").unwrap().is_some());
    let many = outcome("GET / HTTP/1.1\r\na: 1\r\nb: 2\r\nc: 3\r\nd: 4\r\n\r\n");
    assert_eq!(many.unwrap_err(), MalformedMessage::FieldsTooLarge);
    let wide = HeadLimits { size: 1 << 20, fields: 1000 };
    let target = |bytes: usize| format!("GET /{} HTTP/1.1\r\n\r\n", "t".repeat(bytes - 1));
    assert!(decode_in_pieces(target(MAX_TARGET_LENGTH).as_bytes(), wide, &[]).unwrap().is_some());
    let over = decode_in_pieces(target(MAX_TARGET_LENGTH + 1).as_bytes(), wide, &[]);
    assert_eq!(over.unwrap_err(), MalformedMessage::TargetTooLong);
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "f: 1\r\n".repeat(1000));
    assert_eq!(decode_in_pieces(many.as_bytes(), wide, &[]).unwrap().unwrap().0.parts.headers.len(), 1000);
}

/// A request as another server reads it: method, target, version, headers, and the length of the body if it has one.
#[derive(Debug, PartialEq)]
struct ParsedRequest {
    line: (Method, Uri, Version),
    headers: HeaderMap,
    /// `None` for a chunked body.
    content_length: Option<u64>,
}

fn read_by_hyper(bytes: &[u8]) -> Option<ParsedRequest> {
    let seen = Rc::new(RefCell::new(None));
    let noted = Rc::clone(&seen);
    let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let (head, body) = request.into_parts();
        let bytes = if body.is_end_stream() { Some(0) } else { body.size_hint().exact() };
        let line = (head.method, head.uri, head.version);
        let mut headers = head.headers;
        // Normalised, because Weir changes how a length is written.
        content_length::normalise(&mut headers).unwrap();
        noted.borrow_mut().get_or_insert(ParsedRequest { line, headers, content_length: bytes });
        async { Ok::<_, Infallible>(http::Response::new(http_body_util::Empty::<Bytes>::new())) }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (mut client, server) = tokio::io::duplex(64 * 1024);
        client.write_all(bytes).await.unwrap();
        client.shutdown().await.unwrap();
        let _ =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(server), service).await;
    });
    seen.take()
}

fn read_by_weir(bytes: &[u8], cuts: &[usize]) -> Option<ParsedRequest> {
    let (head, _) = decode_in_pieces(bytes, LIMITS, cuts).ok()??;
    let bytes = head.decoder.left();
    let line = (head.parts.method, head.parts.uri, head.parts.version);
    Some(ParsedRequest { line, headers: head.parts.headers, content_length: bytes })
}

fn random_heads() -> impl Strategy<Value = Vec<u8>> {
    let line = prop::sample::select(vec![
        "GET / HTTP/1.1",
        "POST /a?b=c HTTP/1.1",
        "PUT http://a.test:80/x HTTP/1.0",
        "OPTIONS * HTTP/1.1",
        "CONNECT a.test:443 HTTP/1.1",
        "BREW /%zz HTTP/1.1",
        "GET a HTTP/1.1",
        "GET  / HTTP/1.1",
        "GET / HTTP/2.0",
        "\nGET / HTTP/1.1",
    ]);
    let field = prop::sample::select(vec![
        "Host: a.test",
        "content-length: 5",
        "Content-Length: 05",
        "content-length: 6",
        "content-length: 5, 5",
        "transfer-encoding: chunked",
        "Transfer-Encoding: gzip, Chunked",
        "transfer-encoding: gzip",
        "transfer-encoding: chunked ;x",
        "connection: close, x",
        "expect: 100-continue",
        "x-empty:",
        "x-space : 1",
        " folded: 1",
        "x-high: \u{e9}",
        "cookie: a=b; c=d",
    ]);
    let end = prop::sample::select(vec!["\r\n", "\r\n", "\r\n", "\n", "\r"]);
    let fields = prop::collection::vec((field, end), 0..6);
    let spoilt = prop::option::weighted(0.3, (any::<prop::sample::Index>(), any::<u8>()));
    (line, fields, spoilt).prop_map(|(line, fields, spoilt)| {
        let mut text = format!("{line}\r\n");
        fields.into_iter().for_each(|(field, end)| text.extend([field, end]));
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        if let Some((place, byte)) = spoilt {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Request smuggling: if two servers read a request differently, it can hide another one from one of them.
    #[test]
    fn request_head_is_decoded_as_by_hyper(bytes in random_heads(), cuts in prop::collection::vec(any::<usize>(), 0..4)) {
        let (ours, theirs) = (read_by_weir(&bytes, &cuts), read_by_hyper(&bytes));
        prop_assert_eq!(ours, theirs, "{}", bytes.escape_ascii());
    }

    #[test]
    fn request_head_is_decoded_the_same_in_pieces(
        bytes in prop_oneof![random_heads(), prop::collection::vec(any::<u8>(), 0..80)],
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        prop_assert_eq!(read_by_weir(&bytes, &cuts), read_by_weir(&bytes, &[]));
    }
}
