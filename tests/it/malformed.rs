//! Malformed requests get a 400 (or a more specific 4xx), lose their connection and never reach the upstream.
//!
//! The cases are those that enabled request smuggling between other proxies and their upstreams.

use crate::support::wire::Head;
use crate::support::{Client, Origin, Weir, config, get};

/// Name of a case for the report, and its bytes.
type Case = (&'static str, Vec<u8>);

fn case(name: &'static str, bytes: impl AsRef<[u8]>) -> Case {
    (name, bytes.as_ref().to_vec())
}

/// Returns a POST with these headers in addition to Host.
fn post(name: &'static str, lines: &str, body: &str) -> Case {
    case(name, format!("POST /p HTTP/1.1\r\nhost: a.test\r\n{lines}\r\n\r\n{body}"))
}

/// Returns a GET with this target.
fn target(name: &'static str, target: &str) -> Case {
    case(name, format!("GET {target} HTTP/1.1\r\nhost: a.test\r\n\r\n"))
}

/// Sends each case on its own connection, and checks that all are rejected.
fn assert_all_refused(cases: &[Case]) {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let whole = || origin.seen().iter().filter(|seen| seen.complete).count();
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
            wrong.push(format!("{name}: the upstream saw {:?}", origin.last().head));
        }
    }
    assert_eq!(get(weir.address(), "/fine").status, 200, "the proxy no longer serves requests");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(whole(), 1, "the upstream saw {:#?}", origin.seen());
}

#[test]
fn a_request_line_that_is_none_is_refused() {
    assert_all_refused(&[
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
fn a_target_that_is_none_is_refused() {
    assert_all_refused(&[
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
fn a_host_that_is_none_is_refused() {
    let host = |name, lines: &str| case(name, format!("GET / HTTP/1.1\r\n{lines}\r\n"));
    assert_all_refused(&[
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
fn unlikely_hosts() -> Vec<String> {
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
fn an_absolute_target_passes_the_same_check_as_host() {
    let origin = Origin::hello();
    let rules = "rules: [{ name: no, match: { host: api.test }, action: deny }]";
    let weir = Weir::start(&config(origin.address(), rules));
    let status = |request: String| {
        let mut client = Client::connect(weir.address());
        client.send(request);
        client.answer("GET").status
    };
    let (mut rejected, mut wrong) = (0, Vec::new());
    for host in unlikely_hosts() {
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
fn a_length_that_is_none_is_refused() {
    let length = |name, value: &str| post(name, &format!("content-length: {value}"), "hello");
    assert_all_refused(&[
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
fn a_transfer_coding_that_could_be_misread_is_refused() {
    let coded = |name, lines: &str| post(name, lines, "5\r\nhello\r\n0\r\n\r\n");
    assert_all_refused(&[
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
fn a_header_line_that_is_none_is_refused() {
    let line = |name, line: &str| case(name, format!("GET / HTTP/1.1\r\nhost: a.test\r\n{line}\r\n\r\n"));
    assert_all_refused(&[
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
fn a_head_beyond_all_measure_is_refused() {
    let lines = |count: usize| (0..count).map(|n| format!("x-{n}: b\r\n")).collect::<String>();
    let head = |name, lines: &str| case(name, format!("GET / HTTP/1.1\r\nhost: a.test\r\n{lines}\r\n"));
    assert_all_refused(&[
        head("a value of 100 KB", &format!("x-a: {}\r\n", "b".repeat(100_000))),
        head("a name of 66 KB", &format!("x-{}: b\r\n", "a".repeat(66_000))),
        head("70 KB in lines", &format!("x-a: {}\r\n", "b".repeat(980)).repeat(70)),
        head("10000 lines", &lines(10_000)),
    ]);
}

#[test]
fn chunks_that_are_none_are_refused_and_never_complete_a_request() {
    let chunks = |name, body: &str| post(name, "transfer-encoding: chunked", body);
    assert_all_refused(&[
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
fn garbage_after_a_good_request_leaves_its_answer_alone() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = Client::connect(weir.address());
    client.send("GET /one HTTP/1.1\r\nhost: a.test\r\n\r\nnot a request\r\n\r\n");
    assert_eq!(client.answer("GET").status, 200);
    assert_eq!(client.answer("GET").status, 400);
    assert!(client.is_closed());
    assert_eq!(origin.only().head.word(1), "/one");
}

#[test]
fn what_only_looks_like_http_2_is_turned_away() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    for rest in ["SM\r\n\r\nGET / HTTP/1.1\r\nhost: a.test\r\n\r\n", "XX\r\n\r\n", "\r\n"] {
        let mut client = Client::connect(weir.address());
        client.send(format!("PRI * HTTP/2.0\r\n\r\n{rest}"));
        client.wire.drain();
        assert!(client.is_closed(), "{rest:?}");
    }
    assert_eq!(origin.seen().len(), 0);
}

#[test]
fn length_and_chunks_together_are_read_as_chunks_or_refused_and_end_the_connection() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    for lines in
        ["content-length: 5\r\ntransfer-encoding: chunked", "transfer-encoding: chunked\r\ncontent-length: 5"]
    {
        let mut client = Client::connect(weir.address());
        client.send(format!("POST /p HTTP/1.1\r\nhost: a.test\r\n{lines}\r\n\r\n5\r\nhello\r\n0\r\n\r\n"));
        let answer = client.answer("POST");
        assert!([200, 400].contains(&answer.status));
        assert!(client.is_closed(), "RFC 9112 section 6.1: the connection MUST be closed");
    }
    for seen in origin.seen() {
        assert_eq!((seen.head.get("content-length"), seen.body.text().as_str()), (None, "hello"));
    }
}

#[test]
fn a_fragment_is_refused_or_left_behind() {
    let origin = Origin::hello();
    let rules = "rules: [{ name: no, match: { path: /p }, action: deny }]";
    let weir = Weir::start(&config(origin.address(), rules));
    let status = get(weir.address(), "/p#f").status;
    assert!([400, 403].contains(&status), "{status}: a fragment circumvents a rule");
    let status = get(weir.address(), "/q#f").status;
    assert!([200, 400].contains(&status), "{status}");
    assert!(origin.seen().iter().all(|seen| seen.head.word(1) == "/q"));
}

#[test]
fn a_hidden_request_behind_a_body_is_never_run() {
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
    assert!(origin.seen().iter().all(|seen| seen.head.word(1) != "/hidden"));
}

#[test]
fn nothing_behind_a_broken_body_is_a_request() {
    let origin = Origin::hello();
    let weir =
        Weir::start(&config(origin.address(), "rules: [{ name: no, match: { path: /deny }, action: deny }]"));
    // The bytes after the response complete a malformed chunk or a malformed trailer.
    for (begun, rest) in [("5\r\nhello\r", "\n5\rXab\r\n0\r\n\r\n"), ("0\r\nabcdefgh", "ijk\r\n\r\n")] {
        let mut client = Client::connect(weir.address());
        client.send(format!(
            "POST /deny HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\n\r\n{begun}"
        ));
        assert_eq!(client.answer("POST").status, 403);
        // The connection may be closed already.
        let _ = client.wire.send(format!("{rest}GET /hidden HTTP/1.1\r\nhost: a.test\r\n\r\n"));
        assert!(!matches!(client.wire.read_head(), Ok(Some(_))), "a response to bytes after {begun:?}");
        assert!(client.is_closed());
    }
    assert_eq!(origin.seen().len(), 0);
    assert_eq!(weir.metric("weir_panics_total", &[]), 0.0);
}

#[test]
fn the_answer_to_a_broken_body_says_that_the_connection_ends() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nx\r\n");
    let answer = client.answer("POST");
    assert_eq!((answer.status, answer.header("connection")), (400, "close"));
    assert!(client.is_closed());
}

#[test]
fn an_error_says_nothing_about_our_insides() {
    let weir = Weir::start(&config("echo", ""));
    let mut client = Client::connect(weir.address());
    client.send("GET /%00 HTTP/1.1\r\nhost: a.test\r\n\r\n");
    let answer = client.answer("GET");
    assert_eq!(answer.status, 400);
    let text = format!("{:?} {}", answer.head, answer.body.text()).to_ascii_lowercase();
    for word in ["hyper", "rust", "malformed {", "src/"] {
        assert!(!text.contains(word), "{text}");
    }
}

#[test]
fn empty_lines_before_a_request_are_overlooked() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = Client::connect(weir.address());
    client.send("\r\nGET /one HTTP/1.1\r\nhost: a.test\r\n\r\n");
    assert_eq!(client.answer("GET").status, 200);
}
