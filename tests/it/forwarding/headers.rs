//! Headers that are added and removed on the way, and headers that must stay unchanged.

use std::collections::HashSet;

use super::start_proxy;
use crate::support::{Client, Origin, Request, Weir, config, fetch, get};

fn start_trusting(origin: &Origin, networks: &str) -> Weir {
    Weir::start(&config(origin.address(), &format!("client_ip: {{ trusted_proxies: [{networks}] }}")))
}

fn is_uuid(text: &str) -> bool {
    let lengths: Vec<_> = text.split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12] && text.chars().all(|c| c == '-' || c.is_ascii_hexdigit())
}

#[test]
fn hop_by_hop_request_headers_are_not_forwarded() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let request = Request::post("/", "body")
        .header("connection", "keep-alive, X-Named")
        .header("x-named", "between us")
        .header("keep-alive", "timeout=5")
        .header("proxy-connection", "keep-alive")
        .header("proxy-authorization", "Basic c2VjcmV0")
        .header("te", "gzip")
        .header("upgrade", "websocket")
        .header("x-end-to-end", "stays");
    assert_eq!(fetch(weir.address(), &request).status, 200);
    let seen = origin.only_request();
    for gone in ["x-named", "keep-alive", "proxy-connection", "proxy-authorization", "te", "upgrade"] {
        assert_eq!(seen.head.get(gone), None, "{gone} was forwarded");
    }
    assert!(!seen.head.has_token("connection", "x-named"));
    assert_eq!(seen.head.get("x-end-to-end"), Some("stays"));
}

#[test]
fn hop_by_hop_response_headers_are_not_forwarded() {
    let origin = Origin::responding_with(
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: X-Named\r\nx-named: between us\r\n\
         keep-alive: timeout=5\r\nproxy-connection: keep-alive\r\nupgrade: h2c\r\n\
         x-end-to-end: stays\r\n\r\nhello",
    );
    let weir = start_proxy(&origin);
    let answer = get(weir.address(), "/");
    for gone in ["x-named", "keep-alive", "proxy-connection", "upgrade"] {
        assert_eq!(answer.head.get(gone), None, "{gone} was forwarded");
    }
    assert!(!answer.head.has_token("connection", "x-named"));
    assert_eq!((answer.header("x-end-to-end"), answer.body.text().as_str()), ("stays", "hello"));
}

#[test]
fn connection_header_cannot_remove_required_headers() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let request = Request::post("/", "body")
        .header("connection", "host, content-length, x-forwarded-for, x-request-id");
    assert_eq!(fetch(weir.address(), &request).status, 200);
    let seen = origin.only_request();
    assert_eq!((seen.head.get("host"), seen.body.text().as_str()), (Some("test.local"), "body"));
    assert_eq!(seen.head.get_all("x-forwarded-for"), ["127.0.0.1"]);
    assert!(seen.head.get("x-request-id").is_some());
}

#[test]
fn repeated_headers_are_forwarded_unchanged() {
    let origin = Origin::responding_with(
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\r\n",
    );
    let weir = start_proxy(&origin);
    let request = Request::get("/").header("cookie", "a=1").header("x-a", "one").header("x-a", "two, three");
    let answer = fetch(weir.address(), &request);
    assert_eq!(answer.head.get_all("set-cookie"), ["a=1", "b=2"]);
    let seen = origin.only_request();
    assert_eq!(seen.head.get_all("x-a"), ["one", "two, three"]);
    assert_eq!(seen.head.get("cookie"), Some("a=1"));
    assert_eq!(seen.head.get_all("host"), ["test.local"]);
}

#[test]
fn non_ascii_header_values_are_forwarded() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send(b"GET / HTTP/1.1\r\nhost: test.local\r\nx-text: gr\xc3\xbc\xc3\x9fe\r\n\r\n");
    assert_eq!(client.read_response("GET").status, 200);
    assert_eq!(origin.only_request().head.get("x-text"), Some("grüße"));
}

#[test]
fn forwarding_headers_name_the_peer() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let mut client = Client::connect_from("127.0.0.7", weir.address());
    assert_eq!(client.get("/").status, 200);
    let head = origin.only_request().head;
    assert_eq!(head.get_all("x-forwarded-for"), ["127.0.0.7"]);
    assert_eq!(head.get_all("x-forwarded-proto"), ["http"]);
    assert_eq!(head.get_all("x-envoy-external-address"), ["127.0.0.7"]);
}

#[test]
fn peer_is_appended_to_x_forwarded_for() {
    let origin = Origin::hello();
    let weir = start_trusting(&origin, "127.0.0.1");
    let request = Request::get("/").forwarded_for("192.0.2.9").forwarded_for("198.51.100.4");
    assert_eq!(fetch(weir.address(), &request).status, 200);
    let head = origin.only_request().head;
    let hops: Vec<_> =
        head.get_all("x-forwarded-for").join(",").split(',').map(|hop| hop.trim().to_owned()).collect();
    assert_eq!(hops, ["192.0.2.9", "198.51.100.4", "127.0.0.1"]);
    assert_eq!(head.get_all("x-envoy-external-address"), ["198.51.100.4"]);
}

#[test]
fn every_request_gets_an_id_of_its_own() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    for _ in 0..50 {
        assert_eq!(client.get("/").status, 200);
    }
    let ids: Vec<_> =
        origin.requests().iter().map(|seen| seen.head.get_all("x-request-id").join("|")).collect();
    assert!(ids.iter().all(|id| is_uuid(id)), "{ids:?}");
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 50);
}

#[test]
fn an_untrusted_peer_cannot_choose_id_proto_or_address() {
    let origin = Origin::hello();
    let weir = start_trusting(&origin, "127.0.0.1");
    let request = Request::get("/")
        .header("x-request-id", "chosen")
        .header("x-forwarded-proto", "https")
        .header("x-envoy-external-address", "192.0.2.1")
        .forwarded_for("192.0.2.1");
    assert_eq!(Client::connect_from("127.0.0.2", weir.address()).fetch(&request).status, 200);
    let head = origin.only_request().head;
    assert!(is_uuid(&head.get_all("x-request-id").join("|")), "{head:#?}");
    assert_eq!(head.get_all("x-forwarded-proto"), ["http"]);
    assert_eq!(head.get_all("x-envoy-external-address"), ["127.0.0.2"]);
}

#[test]
fn a_trusted_peer_chooses_id_and_proto() {
    let origin = Origin::hello();
    let weir = start_trusting(&origin, "127.0.0.1");
    let request = Request::get("/")
        .header("x-request-id", "chosen")
        .header("x-forwarded-proto", "https")
        .forwarded_for("192.0.2.1");
    assert_eq!(fetch(weir.address(), &request).status, 200);
    let head = origin.only_request().head;
    assert_eq!(head.get_all("x-request-id"), ["chosen"]);
    assert_eq!(head.get_all("x-forwarded-proto"), ["https"]);
    assert_eq!(head.get_all("x-envoy-external-address"), ["192.0.2.1"]);
}

#[test]
fn the_target_is_forwarded_as_received() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    for target in
        ["/a/%2e%2e/b?x=%2F", "//x", "/./a//b/../c", "/%61?%61=%0d%0aX:1", "/?", "/a;b=c/d?e=f?g", "/%c0%ae"]
    {
        assert_eq!(client.get(target).status, 200, "{target}");
        assert_eq!(origin.last_request().head.line, format!("GET {target} HTTP/1.1"));
    }
}

#[test]
fn absolute_target_becomes_a_path_and_overrides_host() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    for (target, path, host) in [
        ("http://target.test/p?q=1", "/p?q=1", "target.test"),
        ("http://target.test:81/p", "/p", "target.test:81"),
        ("http://target.test", "/", "target.test"),
    ] {
        assert_eq!(client.get(target).status, 200, "{target}");
        let head = origin.last_request().head;
        assert_eq!(head.line, format!("GET {path} HTTP/1.1"));
        assert_eq!(head.get_all("host"), [host]);
    }
}

#[test]
fn credentials_in_an_absolute_target_are_rejected() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    // RFC 9110 section 4.2.4: user information from an untrusted source is an error, since it may obscure the host.
    assert_eq!(get(weir.address(), "http://user:secret@target.test/p").status, 400);
    assert_eq!(origin.requests().len(), 0);
}

#[test]
fn http_1_0_request_without_host_is_forwarded_with_one() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send("GET /old HTTP/1.0\r\n\r\n");
    assert_eq!(client.read_response("GET").status, 200);
    // RFC 9112 section 3.2: every HTTP/1.1 request has a Host header, possibly empty; upstreams reject requests without
    // one.
    let head = origin.only_request().head;
    assert_eq!((head.word(2), head.get_all("host").len()), ("HTTP/1.1", 1), "{head:#?}");
}

#[test]
fn long_target_is_forwarded() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let target = format!("/{}", "a".repeat(7900));
    assert_eq!(get(weir.address(), &target).status, 200);
    assert_eq!(origin.only_request().head.word(1), target);
}
