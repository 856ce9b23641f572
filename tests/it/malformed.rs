//! Malformed requests get a 400 (or a more specific 4xx), lose their connection and never reach the upstream.
//!
//! The cases are those that enabled request smuggling between other proxies and their upstreams.

use crate::support::wire::Head;
use crate::support::{Client, Origin, Weir, config, get};

/// Name of a case for the report, and its bytes.
type MalformedCase = (&'static str, Vec<u8>);

fn case(name: &'static str, bytes: impl AsRef<[u8]>) -> MalformedCase {
    (name, bytes.as_ref().to_vec())
}

/// Returns a POST with these headers in addition to Host.
fn post(name: &'static str, lines: &str, body: &str) -> MalformedCase {
    case(name, format!("POST /p HTTP/1.1\r\nhost: a.test\r\n{lines}\r\n\r\n{body}"))
}

/// Returns a GET with this target.
fn target(name: &'static str, target: &str) -> MalformedCase {
    case(name, format!("GET {target} HTTP/1.1\r\nhost: a.test\r\n\r\n"))
}

/// Sends each case on its own connection, and checks that all are rejected.
fn assert_all_rejected(cases: &[MalformedCase]) {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let whole = || origin.requests().iter().filter(|seen| seen.complete).count();
    let mut wrong = Vec::new();
    for (name, bytes) in cases {
        let before = whole();
        let mut client = Client::connect(weir.address());
        // The response may arrive, and the connection be closed, before all bytes are sent.
        let _ = client.wire.send(bytes);
        let head = client.wire.read_head();
        let status = head.as_ref().ok().and_then(Option::as_ref).map_or("none", |head: &Head| head.word(1));
        if !status.starts_with('4') && status != "501" && status != "505" {
            wrong.push(format!("{name}: answered {status}"));
        }
        client.wire.drain();
        if !client.is_closed() {
            wrong.push(format!("{name}: the connection stayed open"));
        }
        if whole() > before {
            wrong.push(format!("{name}: the upstream saw {:?}", origin.last_request().head));
        }
    }
    assert_eq!(get(weir.address(), "/fine").status, 200, "the proxy no longer serves requests");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(whole(), 1, "the upstream saw {:#?}", origin.requests());
}

#[test]
fn invalid_request_lines_are_rejected() {
    assert_all_rejected(&[
        case("garbage", b"\x80\x81\xff\xfe\r\n\r\n"),
        case("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03abcdefgh\r\n\r\n"),
        case("a PROXY line", "PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\nGET / HTTP/1.1\r\nhost: a.test\r\n\r\n"),
        case("HTTP/0.9", "GET /p\r\n\r\n"),
        case("a space in the target", "GET /a b HTTP/1.1\r\nhost: a.test\r\n\r\n"),
        case("HTTP/2.0 in words", "GET / HTTP/2.0\r\nhost: a.test\r\n\r\n"),
        case("a version with more to it", "GET / HTTP/1.1junk\r\nhost: a.test\r\n\r\n"),
        case("a version in lower case", "GET / http/1.1\r\nhost: a.test\r\n\r\n"),
        case("a method that is no token", "G(ET / HTTP/1.1\r\nhost: a.test\r\n\r\n"),
        case("line ends of CR alone", "GET / HTTP/1.1\rhost: a.test\r\r"),
    ]);
}

#[test]
fn invalid_targets_are_rejected() {
    assert_all_rejected(&[
        target("no slash", "p"),
        target("an authority", "a.test:80"),
        target("an asterisk", "*"),
        target("a NUL in the path", "/a%00b"),
        target("a broken percent-encoding", "/a%zzb"),
        target("half a percent-encoding", "/a%4"),
        target("another scheme", "ftp://a.test/p"),
        target("70 KB", &format!("/{}", "a".repeat(70_000))),
        case("CONNECT", "CONNECT b.test:443 HTTP/1.1\r\nhost: b.test:443\r\n\r\n"),
    ]);
}

#[test]
fn invalid_hosts_are_rejected() {
    let host = |name, lines: &str| case(name, format!("GET / HTTP/1.1\r\n{lines}\r\n"));
    assert_all_rejected(&[
        host("no host", ""),
        host("two hosts", "host: a.test\r\nhost: b.test\r\n"),
        host("the same host twice", "host: a.test\r\nhost: a.test\r\n"),
        host("an empty host", "host:\r\n"),
        host("userinfo", "host: user@a.test\r\n"),
        host("a path", "host: a.test/p\r\n"),
        host("a space", "host: a test\r\n"),
        host("a list", "host: a.test, b.test\r\n"),
        host("a port that is none", "host: a.test:http\r\n"),
    ]);
}

/// Returns spellings of a host with a character that is not allowed there, and others that do not contain a host.
fn invalid_hosts() -> Vec<String> {
    let bytes = (0x21..0x7f_u8).map(char::from).filter(|byte| !byte.is_ascii_alphanumeric());
    // These characters end the authority of an absolute target, so they cannot occur inside it.
    let inside = bytes.filter(|byte| !['/', '?', '#'].contains(byte)).map(|byte| format!("api.test{byte}x"));
    let whole = [
        "",
        ":80",
        "api.test,",
        "user@",
        "user:pw@api.test",
        "[::1",
        "[::1]x",
        "[]",
        "[api.test]",
        "::1",
        "api.test:http",
    ];
    let more = ["api.test:123456", "api.test:80:80", "api.test:-1", "\u{e4}.test"];
    inside.chain(whole.iter().chain(&more).map(ToString::to_string)).collect()
}

#[test]
fn authority_of_an_absolute_target_is_validated_like_host() {
    let origin = Origin::hello();
    let rules = "rules: [{ name: no, match: { host: api.test }, action: deny }]";
    let weir = Weir::start(&config(origin.address(), rules));
    let status = |request: String| {
        let mut client = Client::connect(weir.address());
        client.send(request);
        client.read_response("GET").status
    };
    let (mut rejected, mut wrong) = (0, Vec::new());
    for host in invalid_hosts() {
        if status(format!("GET /p HTTP/1.1\r\nhost: {host}\r\n\r\n")) != 400 {
            continue;
        }
        rejected += 1;
        let absolute = status(format!("GET http://{host}/p HTTP/1.1\r\nhost: a.test\r\n\r\n"));
        if absolute != 400 {
            wrong.push((host, absolute));
        }
    }
    assert!(rejected >= 20, "only {rejected} spellings were rejected in Host");
    assert!(wrong.is_empty(), "{wrong:?}");
    let denied = "GET http://api.test/p HTTP/1.1\r\nhost: a.test\r\n\r\n";
    assert_eq!(status(denied.to_owned()), 403);
}

#[test]
fn invalid_content_length_is_rejected() {
    let length = |name, value: &str| post(name, &format!("content-length: {value}"), "hello");
    assert_all_rejected(&[
        length("a word", "five"),
        length("a plus", "+5"),
        length("a minus", "-5"),
        length("hexadecimal", "0x5"),
        length("more after it", "5abc"),
        length("two numbers", "1 5"),
        length("empty", ""),
        length("a list of two", "5, 6"),
        length("over 64 bits", "18446744073709551621"),
        post("two lengths", "content-length: 5\r\ncontent-length: 6", "hello"),
    ]);
}

#[test]
fn ambiguous_transfer_encoding_is_rejected() {
    let coded = |name, lines: &str| post(name, lines, "5\r\nhello\r\n0\r\n\r\n");
    assert_all_rejected(&[
        coded("chunked twice", "transfer-encoding: chunked\r\ntransfer-encoding: chunked"),
        coded("chunked twice in one line", "transfer-encoding: chunked, chunked"),
        coded("gzip too", "transfer-encoding: gzip, chunked"),
        coded("chunked, then gzip", "transfer-encoding: chunked, gzip"),
        coded("identity", "transfer-encoding: identity"),
        coded("another word", "transfer-encoding: xchunked"),
        coded("a parameter", "transfer-encoding: chunked;a=b"),
        coded("quotes", "transfer-encoding: \"chunked\""),
        coded("a space before the colon", "transfer-encoding : chunked"),
        coded("a vertical tab", "transfer-encoding: \x0bchunked"),
        coded("a folded line", "content-length: 5\r\ntransfer-encoding:\r\n chunked"),
        case(
            "in HTTP/1.0",
            "POST /p HTTP/1.0\r\nhost: a.test\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ),
    ]);
}

#[test]
fn invalid_header_lines_are_rejected() {
    let line = |name, line: &str| case(name, format!("GET / HTTP/1.1\r\nhost: a.test\r\n{line}\r\n\r\n"));
    assert_all_rejected(&[
        line("a folded line", "x-a: b\r\n folded"),
        line("no colon", "x-a"),
        line("no name", ": b"),
        line("a space in the name", "x a: b"),
        line("a space before the colon", "x-a : b"),
        line("a name beyond ASCII", "x-\u{e4}: b"),
        line("a NUL", "x-a: b\0c"),
        line("a control character", "x-a: b\x01c"),
        line("a bare CR", "x-a: b\rc"),
        case("a space before the first", "GET / HTTP/1.1\r\n host: a.test\r\nhost: a.test\r\n\r\n"),
    ]);
}

#[test]
fn oversized_header_sections_are_rejected() {
    let lines = |count: usize| (0..count).map(|n| format!("x-{n}: b\r\n")).collect::<String>();
    let head = |name, lines: &str| case(name, format!("GET / HTTP/1.1\r\nhost: a.test\r\n{lines}\r\n"));
    assert_all_rejected(&[
        head("a value of 100 KB", &format!("x-a: {}\r\n", "b".repeat(100_000))),
        head("a name of 66 KB", &format!("x-{}: b\r\n", "a".repeat(66_000))),
        head("70 KB in lines", &format!("x-a: {}\r\n", "b".repeat(980)).repeat(70)),
        head("10000 lines", &lines(10_000)),
    ]);
}

#[test]
fn invalid_chunks_are_rejected_without_completing_a_request() {
    let chunks = |name, body: &str| post(name, "transfer-encoding: chunked", body);
    assert_all_rejected(&[
        chunks("a bare LF after an extension", "5;\nhello\r\n0\r\n\r\n"),
        chunks("a bare LF after the size", "5\nhello\r\n0\r\n\r\n"),
        chunks("a bare LF after the data", "5\r\nhello\n0\r\n\r\n"),
        chunks("more data than the size", "5\r\nhello world\r\n0\r\n\r\n"),
        chunks("0x", "0x5\r\nhello\r\n0\r\n\r\n"),
        chunks("a plus", "+5\r\nhello\r\n0\r\n\r\n"),
        chunks("a minus", "-5\r\nhello\r\n0\r\n\r\n"),
        chunks("an underscore", "0_5\r\nhello\r\n0\r\n\r\n"),
        chunks("no size", "\r\nhello\r\n0\r\n\r\n"),
        chunks("17 digits", "10000000000000005\r\nhello\r\n0\r\n\r\n"),
        chunks("an endless extension", &format!("5;{}\r\nhello\r\n0\r\n\r\n", "a".repeat(70_000))),
    ]);
}

#[test]
fn garbage_after_a_valid_request_gets_400_after_its_response() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = Client::connect(weir.address());
    client.send("GET /one HTTP/1.1\r\nhost: a.test\r\n\r\nnot a request\r\n\r\n");
    assert_eq!(client.read_response("GET").status, 200);
    assert_eq!(client.read_response("GET").status, 400);
    assert!(client.is_closed());
    assert_eq!(origin.only_request().head.word(1), "/one");
}

#[test]
fn invalid_http2_preface_closes_the_connection() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    for rest in ["SM\r\n\r\nGET / HTTP/1.1\r\nhost: a.test\r\n\r\n", "XX\r\n\r\n", "\r\n"] {
        let mut client = Client::connect(weir.address());
        client.send(format!("PRI * HTTP/2.0\r\n\r\n{rest}"));
        client.wire.drain();
        assert!(client.is_closed(), "{rest:?}");
    }
    assert_eq!(origin.requests().len(), 0);
}

#[test]
fn request_with_length_and_chunked_closes_the_connection() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    for lines in
        ["content-length: 5\r\ntransfer-encoding: chunked", "transfer-encoding: chunked\r\ncontent-length: 5"]
    {
        let mut client = Client::connect(weir.address());
        client.send(format!("POST /p HTTP/1.1\r\nhost: a.test\r\n{lines}\r\n\r\n5\r\nhello\r\n0\r\n\r\n"));
        let answer = client.read_response("POST");
        assert!([200, 400].contains(&answer.status));
        assert!(client.is_closed(), "RFC 9112 section 6.1: the connection MUST be closed");
    }
    for seen in origin.requests() {
        assert_eq!((seen.head.get("content-length"), seen.body.text().as_str()), (None, "hello"));
    }
}

#[test]
fn fragment_in_the_target_cannot_bypass_a_rule() {
    let origin = Origin::hello();
    let rules = "rules: [{ name: no, match: { path: /p }, action: deny }]";
    let weir = Weir::start(&config(origin.address(), rules));
    let status = get(weir.address(), "/p#f").status;
    assert!([400, 403].contains(&status), "{status}: a fragment circumvents a rule");
    let status = get(weir.address(), "/q#f").status;
    assert!([200, 400].contains(&status), "{status}");
    assert!(origin.requests().iter().all(|seen| seen.head.word(1) == "/q"));
}

#[test]
fn request_smuggled_behind_a_body_is_not_executed() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let hidden = "GET /hidden HTTP/1.1\r\nhost: a.test\r\n\r\n";
    let body = format!("0\r\n\r\n{hidden}");
    let mut client = Client::connect(weir.address());
    client.send(format!(
        "POST /p HTTP/1.1\r\nhost: a.test\r\ncontent-length: {}\r\ntransfer-encoding: chunked\r\n\r\n{body}",
        body.len()
    ));
    client.wire.drain();
    assert!(origin.requests().iter().all(|seen| seen.head.word(1) != "/hidden"));
}

#[test]
fn bytes_after_a_malformed_body_are_not_parsed_as_a_request() {
    let origin = Origin::hello();
    let weir =
        Weir::start(&config(origin.address(), "rules: [{ name: no, match: { path: /deny }, action: deny }]"));
    // The bytes after the response complete a malformed chunk or a malformed trailer.
    for (begun, rest) in [("5\r\nhello\r", "\n5\rXab\r\n0\r\n\r\n"), ("0\r\nabcdefgh", "ijk\r\n\r\n")] {
        let mut client = Client::connect(weir.address());
        client.send(format!(
            "POST /deny HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\n\r\n{begun}"
        ));
        assert_eq!(client.read_response("POST").status, 403);
        // The connection may be closed already.
        let _ = client.wire.send(format!("{rest}GET /hidden HTTP/1.1\r\nhost: a.test\r\n\r\n"));
        assert!(!matches!(client.wire.read_head(), Ok(Some(_))), "a response to bytes after {begun:?}");
        assert!(client.is_closed());
    }
    assert_eq!(origin.requests().len(), 0);
    assert_eq!(weir.metric("weir_panics_total", &[]), 0.0);
}

#[test]
fn malformed_body_gets_400_with_connection_close() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nx\r\n");
    let answer = client.read_response("POST");
    assert_eq!((answer.status, answer.header("connection")), (400, "close"));
    assert!(client.is_closed());
}

#[test]
fn error_response_reveals_no_implementation_details() {
    let weir = Weir::start(&config("echo", ""));
    let mut client = Client::connect(weir.address());
    client.send("GET /%00 HTTP/1.1\r\nhost: a.test\r\n\r\n");
    let answer = client.read_response("GET");
    assert_eq!(answer.status, 400);
    let text = format!("{:?} {}", answer.head, answer.body.text()).to_ascii_lowercase();
    for word in ["hyper", "rust", "malformed {", "src/"] {
        assert!(!text.contains(word), "{text}");
    }
}

#[test]
fn empty_lines_before_a_request_are_ignored() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = Client::connect(weir.address());
    client.send("\r\nGET /one HTTP/1.1\r\nhost: a.test\r\n\r\n");
    assert_eq!(client.read_response("GET").status, 200);
}
