//! What RFC 9110 and RFC 9112 require of an intermediary; `docs/design/046-http-requirements.md` lists all requirements.

use super::start_proxy;
use crate::support::h2::H2Client;
use crate::support::h2_origin::H2Origin;
use crate::support::{Client, LISTENER, Origin, Request, Weir, config, config_with, fetch, get};

const CHUNKS: &str = "2\r\nok\r\n0\r\n\r\n";

/// Sends raw bytes on a new connection, and returns the response to `method`.
fn send(weir: &Weir, method: &str, bytes: &str) -> crate::support::Response {
    let mut client = Client::connect(weir.address());
    client.send(bytes);
    client.read_response(method)
}

/// Returns the bytes of the response to a GET as they arrive.
fn read_raw(weir: &Weir, request: &str) -> String {
    use std::io::Read as _;
    let mut stream = std::net::TcpStream::connect(weir.address()).unwrap();
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn empty_elements_of_transfer_encoding_are_ignored() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    for coding in [",chunked", "chunked,", " , chunked , ,", "\t,Chunked"] {
        let head = format!("POST / HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: {coding}\r\n\r\n{CHUNKS}");
        assert_eq!(send(&weir, "POST", &head).status, 200, "{coding}");
        let seen = origin.last_request();
        assert_eq!(seen.body.text(), "ok", "{coding}");
        assert_eq!(seen.head.get_all("transfer-encoding"), ["chunked"]);
    }
    let lines = "transfer-encoding: ,\r\ntransfer-encoding: chunked\r\n";
    let head = format!("POST / HTTP/1.1\r\nhost: a.test\r\n{lines}\r\n{CHUNKS}");
    assert_eq!(send(&weir, "POST", &head).status, 200);
    for coding in [",", "chunked,,chunked", "gzip,,chunked"] {
        let head = format!("POST / HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: {coding}\r\n\r\n{CHUNKS}");
        assert!([400, 501].contains(&send(&weir, "POST", &head).status), "{coding}");
    }
    assert_eq!(origin.requests().len(), 5);
}

#[test]
fn empty_elements_in_lists_of_a_response_are_ignored() {
    for fields in [
        "transfer-encoding: chunked,\r\n",
        "transfer-encoding:\r\ntransfer-encoding: , chunked\r\n",
        "connection: , close,\r\ntransfer-encoding: chunked\r\n",
    ] {
        let origin = Origin::responding_with(format!("HTTP/1.1 200 OK\r\n{fields}\r\n{CHUNKS}"));
        let weir = start_proxy(&origin);
        assert_eq!(get(weir.address(), "/").body.text(), "ok", "{fields:?}");
    }
    let origin = Origin::responding_with("HTTP/1.1 200 OK\r\ncontent-length: 2, 2\r\n\r\nok");
    let weir = start_proxy(&origin);
    let response = get(weir.address(), "/");
    assert_eq!((response.header("content-length"), response.body.text().as_str()), ("2", "ok"));
}

#[test]
fn empty_elements_of_te_connection_and_x_forwarded_for_are_ignored() {
    let origin = Origin::hello();
    let rules = "client_ip: { trusted_proxies: [127.0.0.1, 192.0.2.2] }";
    let weir = Weir::start(&config(origin.address(), rules));
    let request = Request::get("/")
        .header("connection", ",x-named,, te")
        .header("te", "gzip")
        .header("te", ", trailers ,")
        .header("x-named", "1")
        .header("x-forwarded-for", "198.51.100.7,, 192.0.2.2, ,");
    assert_eq!(fetch(weir.address(), &request).status, 200);
    let seen = origin.only_request().head;
    assert_eq!((seen.get("x-named"), seen.get("te")), (None, Some("trailers")));
    assert_eq!(seen.get("x-envoy-external-address"), Some("198.51.100.7"));
    assert_eq!(fetch(weir.address(), &Request::get("/").header("x-forwarded-for", "")).status, 200);
    assert_eq!(
        origin.last_request().head.get("x-forwarded-for"),
        Some("127.0.0.1"),
        "no empty element is sent"
    );
}

#[test]
fn expectation_among_empty_elements_is_met() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 2\r\nexpect: , 100-Continue ,\r\n\r\n");
    assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), "100");
    client.send("ok");
    assert_eq!(client.read_response("POST").status, 200);
}

#[test]
fn requests_carry_via_with_the_version_in_which_they_arrived() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    get(weir.address(), "/");
    assert_eq!(origin.last_request().head.get_all("via"), ["1.1 weir"]);
    fetch(weir.address(), &Request::get("/").header("via", "1.0 a, 1.1 b"));
    assert_eq!(origin.last_request().head.get_all("via"), ["1.0 a, 1.1 b", "1.1 weir"]);
    send(&weir, "GET", "GET / HTTP/1.0\r\n\r\n");
    assert_eq!(origin.last_request().head.get_all("via"), ["1.0 weir"]);
    let mut client = H2Client::connect(weir.address());
    client.fetch(client.request("GET", "/"));
    assert_eq!(origin.last_request().head.get_all("via"), ["2 weir"]);
}

#[test]
fn via_has_a_configured_name_or_is_left_out() {
    let origin = Origin::hello();
    for (setting, expected) in [("via: edge-1", &["1.1 edge-1"][..]), ("via: disabled", &[])] {
        let weir = Weir::start(&config(origin.address(), setting));
        get(weir.address(), "/");
        assert_eq!(origin.last_request().head.get_all("via"), expected);
    }
}

#[test]
fn max_forwards_of_options_is_decremented_and_0_is_not_forwarded() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let options = |value: &str| Request::new("OPTIONS", "/a").header("max-forwards", value);
    for (value, forwarded) in
        [("1", "0"), ("70", "69"), ("99999999999999999999999", "18446744073709551614"), ("x", "x")]
    {
        assert_eq!(fetch(weir.address(), &options(value)).status, 200);
        assert_eq!(origin.last_request().head.get_all("max-forwards"), [forwarded]);
    }
    let response = fetch(weir.address(), &options("0"));
    assert_eq!((response.status, response.header("content-length")), (200, "0"));
    assert!(response.header("allow").contains("OPTIONS"));
    assert_eq!(origin.requests().len(), 4, "0 was not forwarded");
    fetch(weir.address(), &Request::get("/").header("max-forwards", "0"));
    assert_eq!(
        origin.last_request().head.get("max-forwards"),
        Some("0"),
        "it means nothing for other methods"
    );
}

#[test]
fn options_for_the_last_hop_is_subject_to_the_rules() {
    let origin = Origin::hello();
    let rules = "rules: [{ name: all, key: [], limit: 3/year, algorithm: fixed_window }]";
    let weir = Weir::start(&config(origin.address(), rules));
    let options = Request::new("OPTIONS", "/a").header("max-forwards", "0");
    for remaining in (0..3).rev() {
        let response = fetch(weir.address(), &options);
        assert_eq!((response.status, response.numeric_header("x-ratelimit-remaining")), (200, remaining));
    }
    assert_eq!(fetch(weir.address(), &options).status, 429);
    let requests = |outcome| weir.metric("weir_request_outcomes_total", &[("outcome", outcome)]);
    assert_eq!((requests("allowed"), requests("limited"), requests("denied")), (3.0, 1.0, 0.0));
}

#[test]
fn rejected_methods_are_405_with_allow_and_unknown_ones_501() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let response = fetch(weir.address(), &Request::new("TRACE", "/"));
    assert_eq!((response.status, response.header("allow").contains("GET")), (405, true));
    let response = fetch(weir.address(), &Request::new(&"A".repeat(65), "/"));
    assert_eq!(response.status, 501);
    assert_eq!(origin.requests().len(), 0);
}

#[test]
fn http_1_0_client_gets_the_version_of_the_sender() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let text = read_raw(&weir, "GET / HTTP/1.0\r\nhost: a.test\r\n\r\n");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("\r\nconnection: close\r\n"), "{text}");
    let mut client = Client::connect(weir.address());
    for _ in 0..2 {
        client.send("GET / HTTP/1.0\r\nhost: a.test\r\nconnection: keep-alive\r\n\r\n");
        let response = client.read_response("GET");
        assert_eq!((response.header("connection"), response.body.text().as_str()), ("keep-alive", "hello"));
    }
}

#[test]
fn options_of_an_absolute_target_without_a_path_is_sent_with_an_asterisk() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    for (target, forwarded) in [
        ("http://b.test", "OPTIONS * HTTP/1.1"),
        ("http://b.test/", "OPTIONS / HTTP/1.1"),
        ("http://b.test?x", "OPTIONS /?x HTTP/1.1"),
        ("*", "OPTIONS * HTTP/1.1"),
    ] {
        assert_eq!(fetch(weir.address(), &Request::new("OPTIONS", target)).status, 200, "{target}");
        assert_eq!(origin.last_request().head.line, forwarded);
    }
    assert_eq!(fetch(weir.address(), &Request::get("http://b.test")).status, 200);
    assert_eq!(origin.last_request().head.line, "GET / HTTP/1.1");
}

#[test]
fn white_space_before_the_colon_of_a_response_is_removed() {
    let origin = Origin::responding_with(
        "HTTP/1.1 200 OK\r\nX-Spaced \t: a\r\nContent-Length : 5\r\nConnection : X-Hop\r\nX-Hop : 1\r\n\r\nhello",
    );
    let weir = start_proxy(&origin);
    let text = read_raw(&weir, "GET / HTTP/1.1\r\nhost: a.test\r\nconnection: close\r\n\r\n");
    assert!(text.contains("\r\nX-Spaced: a\r\n") && text.ends_with("\r\n\r\nhello"), "{text}");
    assert!(!text.to_ascii_lowercase().contains("x-hop"), "{text}");
}

#[test]
fn trailers_that_connection_names_are_removed() {
    let origin = Origin::responding_with(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-hop, x-sum\r\nconnection: x-hop\r\n\r\n\
         2\r\nok\r\n0\r\nx-hop: 1\r\nx-sum: 2\r\n\r\n",
    );
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send(
        "POST / HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\ntrailer: x-hop, x-sum\r\n\
         te: trailers\r\nconnection: te, x-hop\r\n\r\n2\r\nok\r\n0\r\nx-hop: 1\r\nx-sum: 2\r\n\r\n",
    );
    let response = client.read_response("POST");
    let expected = [("x-sum".to_owned(), "2".to_owned())];
    assert_eq!(response.body.trailers.fields, expected);
    assert_eq!(origin.only_request().body.trailers.fields, expected);
}

#[test]
fn trailers_for_a_connection_do_not_reach_http2_clients() {
    let origin = Origin::responding_with(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: connection, x-sum\r\n\r\n\
         2\r\nok\r\n0\r\nconnection: close\r\nkeep-alive: 1\r\ntransfer-encoding: gzip\r\nx-sum: 2\r\n\r\n",
    );
    let weir = start_proxy(&origin);
    let mut client = H2Client::connect(weir.address());
    let response = client.fetch(client.request("GET", "/"));
    let trailers = response.trailers.unwrap();
    assert_eq!((trailers.len(), trailers["x-sum"].as_bytes()), (1, &b"2"[..]));
}

#[test]
fn first_supported_protocol_of_a_list_is_requested() {
    let origin = Origin::responding_with(
        "HTTP/1.1 426 Upgrade Required\r\nupgrade: websocket\r\nconnection: upgrade\r\ncontent-length: 0\r\n\r\n",
    );
    let weir = start_proxy(&origin);
    for offered in ["websocket", "h2c, websocket", ", WebSocket ,"] {
        let request = Request::get("/").header("connection", ",upgrade").header("upgrade", offered);
        let response = fetch(weir.address(), &request);
        assert_eq!(response.status, 426, "the required protocol reaches the client");
        assert_eq!((response.header("upgrade"), response.header("connection")), ("websocket", "upgrade"));
        let seen = origin.last_request().head;
        assert!(seen.get("upgrade").is_some_and(|got| got.eq_ignore_ascii_case("websocket")), "{offered}");
        assert!(seen.has_token("connection", "upgrade"));
    }
    let mut client = H2Client::connect(weir.address());
    let response = client.fetch(client.request("GET", "/"));
    assert_eq!((response.status.as_u16(), response.header("upgrade")), (426, ""));
}

/// Returns the header section of a request as it reaches an upstream.
fn forwarded_bytes(request: &str) -> String {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let weir = Weir::start(&config(listener.local_addr().unwrap(), ""));
    let mut client = std::net::TcpStream::connect(weir.address()).unwrap();
    client.write_all(request.as_bytes()).unwrap();
    let (mut upstream, _) = listener.accept().unwrap();
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|window| window == b"\r\n\r\n") {
        let mut piece = [0; 4096];
        let length = upstream.read(&mut piece).unwrap();
        assert!(length > 0, "the connection ended");
        bytes.extend_from_slice(&piece[..length]);
    }
    String::from_utf8(bytes).unwrap()
}

#[test]
fn names_of_request_headers_keep_the_spelling_of_the_client() {
    let text = forwarded_bytes(
        "POST / HTTP/1.1\r\nHost: a.test\r\nX-API-Key: k\r\nsoapACTION:x\r\nX-Empty: \r\nAccept:   */*\r\n\
         X-Bare: lf\nUser-Agent: t\r\nContent-Length: 2\r\n\r\nok",
    );
    for line in [
        "Host: a.test",
        "X-API-Key: k",
        "soapACTION: x",
        "X-Empty: ",
        "Accept: */*",
        "X-Bare: lf",
        "User-Agent: t",
        "Content-Length: 2",
    ] {
        assert!(text.contains(&format!("\r\n{line}\r\n")), "{line}: {text}");
    }
}

#[test]
fn names_of_response_headers_keep_the_spelling_of_the_upstream() {
    let origin = Origin::responding_with(
        "HTTP/1.1 200 OK\r\nX-Custom: a\r\nConnection: X-Hop\r\nX-Hop: 1\r\nTrailer: X-Sum\r\n\
         X-RateLimit-Limit: 5\r\nETag: \"x\"\r\nContent-Length: 5\r\n\r\nhello",
    );
    let weir = Weir::start(&config(origin.address(), "rules: [{ name: all, key: [], limit: 9/h }]"));
    let text = read_raw(&weir, "GET / HTTP/1.1\r\nhost: a.test\r\nconnection: close\r\n\r\n");
    assert!(text.contains("\r\nX-Custom: a\r\n") && text.contains("\r\nETag: \"x\"\r\n"), "{text}");
    assert!(!text.contains("X-Hop") && !text.contains("Trailer") && !text.contains("Limit: 5"), "{text}");
}

#[test]
fn missing_date_is_added_to_responses_of_either_protocol() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    assert!(get(weir.address(), "/").header("date").ends_with("GMT"));
    let mut client = H2Client::connect(weir.address());
    assert!(client.fetch(client.request("GET", "/")).header("date").ends_with("GMT"));
}

#[test]
fn timed_out_header_section_gets_408_with_a_date() {
    let origin = Origin::hello();
    let upstream = format!("{{ address: \"{}\" }}", origin.address());
    let listener = LISTENER.replace(" }", ", header_timeout: 200ms }");
    let weir = Weir::start(&config_with(&listener, &upstream, ""));
    let response = send(&weir, "GET", "GET / HTTP/1.1\r\n");
    assert_eq!((response.status, response.header("connection")), (408, "close"));
    assert!(response.header("date").ends_with("GMT"));
}

#[test]
fn authorization_and_validators_are_forwarded_unchanged() {
    let origin = Origin::responding_with(
        "HTTP/1.1 206 Partial Content\r\nwww-authenticate: Basic realm=\"a, b\", Digest\r\netag: W/\"x\"\r\n\
         content-range: bytes 0-4/9\r\nvary: a,, b\r\nlast-modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
         cache-control: no-transform\r\ncontent-length: 5\r\n\r\nhello",
    );
    let weir = start_proxy(&origin);
    let given = [
        ("authorization", "Bearer  a b"),
        ("range", "bytes=0-4"),
        ("if-range", "\"x\""),
        ("if-none-match", "W/\"a\",, \"b\""),
        ("x-unknown", "a,,b"),
    ];
    let request = given.iter().fold(Request::get("/"), |request, (name, value)| request.header(name, value));
    let response = fetch(weir.address(), &request);
    let seen = origin.only_request().head;
    for (name, value) in given {
        assert_eq!(seen.get(name), Some(value), "{name}");
    }
    for (name, value) in [
        ("www-authenticate", "Basic realm=\"a, b\", Digest"),
        ("etag", "W/\"x\""),
        ("content-range", "bytes 0-4/9"),
        ("vary", "a,, b"),
        ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
    ] {
        assert_eq!(response.header(name), value);
    }
}

#[test]
fn interim_and_bodiless_responses_have_no_framing() {
    let origin = Origin::responding_with(
        "HTTP/1.1 103 Early Hints\r\ncontent-length: 3\r\nlink: </a>\r\n\r\n\
         HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n",
    );
    let weir = start_proxy(&origin);
    let response = get(weir.address(), "/");
    assert_eq!(response.interim[0].get("content-length"), None);
    assert_eq!((response.status, response.head.get("content-length")), (204, None));
    assert_eq!(response.head.get("transfer-encoding"), None);
}

#[test]
fn folded_response_header_is_502() {
    let origin = Origin::responding_with("HTTP/1.1 200 OK\r\nx-a: 1\r\n 2\r\ncontent-length: 0\r\n\r\n");
    let weir = start_proxy(&origin);
    assert_eq!(get(weir.address(), "/").status, 502);
}

#[test]
fn upstream_that_is_a_listener_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weir.yaml");
    let listener = "{ address: 127.0.0.1:18080, name: inbound }";
    std::fs::write(&file, config_with(listener, "{ address: 127.0.0.1:18080 }", "")).unwrap();
    let output = crate::support::weir::run(["check", file.to_str().unwrap()]);
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("forwarding loop"), "{text}");
}

#[test]
fn http_1_0_client_of_a_forward_proxy_gets_no_persistent_connection() {
    let origin = Origin::hello();
    let listener = "{ name: egress, address: 127.0.0.1:0, forward_proxy: true }";
    let weir = Weir::start(&format!(
        "listeners: [{listener}]\nadmin: {{ address: 127.0.0.1:0 }}\nworkers: 1\nrules: []\n"
    ));
    let target = format!("http://{}/", origin.address());
    let head = format!("GET {target} HTTP/1.0\r\nconnection: keep-alive\r\n\r\n");
    let mut client = Client::connect(weir.address());
    client.send(head);
    assert_eq!(client.read_response("GET").header("connection"), "close");
    assert!(client.is_closed());
}

#[test]
fn responses_of_a_forward_proxy_carry_via() {
    let origin = Origin::responding_with("HTTP/1.1 200 OK\r\nvia: 1.0 inner\r\ncontent-length: 0\r\n\r\n");
    let listener = "{ name: egress, address: 127.0.0.1:0, forward_proxy: true }";
    let weir = Weir::start(&format!(
        "listeners: [{listener}]\nadmin: {{ address: 127.0.0.1:0 }}\nworkers: 1\nrules: []\n"
    ));
    let response = fetch(weir.address(), &Request::get(&format!("http://{}/", origin.address())));
    let via = response.head.get_all("via");
    assert!(matches!(via[..], ["1.0 inner", own] if own.starts_with("1.1 weir-")), "{via:?}");
    let weir = start_proxy(&origin);
    assert_eq!(get(weir.address(), "/").head.get_all("via"), ["1.0 inner"], "a gateway may leave it out");
}

#[test]
fn http2_client_that_expects_100_gets_it_before_it_sends_the_body() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let mut client = H2Client::connect(weir.address());
    let request = client.request("POST", "/").header("expect", "100-continue");
    let (mut response, mut body) = client.send_request(request, false);
    let interim = client.block_on(std::future::poll_fn(|cx| response.poll_informational(cx)));
    assert_eq!(interim.unwrap().unwrap().status().as_u16(), 100);
    body.send_data(bytes::Bytes::from_static(b"ok"), true).unwrap();
    assert_eq!(client.read_response(response).unwrap().body, b"hello");
    assert_eq!(origin.only_request().body.text(), "ok");
}

#[test]
fn http2_upstream_gets_via_and_no_connection_headers() {
    let origin = H2Origin::start(None, |request, mut respond| async move {
        let via = request.headers().get("via").cloned();
        let has_host = request.headers().contains_key("host");
        let mut response = http::Response::builder().header("x-host", has_host.to_string());
        if let Some(via) = via {
            response = response.header("x-via", via);
        }
        respond.send_response(response.body(()).unwrap(), true).map(drop)
    });
    let upstream = format!("{{ address: \"{}\", http2: true }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let request = Request::get("/").header("connection", "keep-alive, x-a").header("x-a", "1");
    let response = fetch(weir.address(), &request);
    assert_eq!((response.header("x-via"), response.header("x-host")), ("1.1 weir", "false"));
}
