use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use http::request;
use proptest::prelude::*;

use super::*;
use crate::http2::pool::SETTINGS;
use weir_http::http2::{ClientConnection, Http2Settings, ServerConnection};

const DEFAULT: &str = "127.0.0.1:80";

fn outgoing(request: request::Builder) -> OutgoingRequest {
    request.body(()).unwrap().into_parts().0.into()
}

/// Sends a request to our own server. Returns how the server reads it; `None` if it rejects the request.
fn received(outgoing: &OutgoingRequest) -> Option<Request<()>> {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let (mut sender, mut client) = ClientConnection::new(ours, SETTINGS);
    let settings = Http2Settings { max_streams: 10, connect_protocol: true, ..SETTINGS };
    let mut server = ServerConnection::new(theirs, settings);
    let request = Http2Request { outgoing, scheme: &Scheme::HTTPS, default_authority: DEFAULT };
    let sent = request.send(&mut sender, true).unwrap();
    let heads = Rc::new(RefCell::new(Vec::new()));
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..3 {
        assert!(Pin::new(&mut client).poll(&mut cx).is_pending());
        if server.poll_handshake(&mut cx).is_ready() {
            let heads = Rc::clone(&heads);
            let polled = server.poll_requests(&mut cx, |request, responder, _| {
                heads.borrow_mut().push((request.map(drop), responder));
            });
            assert_eq!(polled, Poll::Pending);
        }
    }
    drop(sent);
    assert!(server.take_malformed().is_none() || heads.borrow().is_empty());
    heads.take().pop().map(|(request, _)| request)
}

#[test]
fn the_host_becomes_the_authority() {
    let request = Request::get("/a?b").header("host", "a.test:81").header("te", "trailers");
    let received = received(&outgoing(request.header("connection", "te"))).unwrap();
    assert_eq!(received.uri(), "https://a.test:81/a?b");
    assert_eq!(received.headers().len(), 1, "only `te` is forwarded");
}

#[test]
fn a_host_is_never_replaced_by_the_address_of_the_upstream() {
    for (host, authority) in [
        (None, Some(DEFAULT)),
        (Some(""), Some(DEFAULT)),
        (Some("a.test"), Some("a.test")),
        (Some("a-b.test:8080"), Some("a-b.test:8080")),
        (Some("[::1]:80"), Some("[::1]:80")),
        (Some("a_b~c"), Some("a_b~c")),
        (Some("a%2eb:80"), None),
        (Some("[fe80::1%25eth0]"), Some("[fe80::1%25eth0]")),
    ] {
        for upgrade in [false, true] {
            let mut request = Request::get("/p?q=1");
            if let Some(host) = host {
                request = request.header("host", host);
            }
            if upgrade {
                request = request.header("connection", "upgrade").header("upgrade", "websocket");
            }
            let received = received(&outgoing(request)).unwrap();
            assert_eq!(received.uri().authority().map(Authority::as_str), authority, "{host:?}");
            let field = received.headers().get("host").map(|host| host.to_str().unwrap());
            assert_eq!(field, host.filter(|_| authority.is_none()), "{host:?}");
            assert_eq!(received.uri().path_and_query().unwrap(), "/p?q=1");
        }
    }
    assert_eq!(TargetHost::new(None, "/run/a socket"), TargetHost::Authority(UNKNOWN_AUTHORITY));
}

#[test]
fn plain_names_are_valid_authorities() {
    for (text, is_plain) in [
        ("a", true),
        ("127.0.0.1:80", true),
        ("a-1.b", true),
        ("", false),
        ("a:", false),
        ("a:x", false),
        ("a@b", false),
        ("[::1]", false),
    ] {
        assert_eq!(is_name_and_port(text), is_plain, "{text}");
        assert!(!is_plain || Authority::try_from(text).is_ok(), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever the HTTP/1.1 decoder has accepted, our own HTTP/2 decoder accepts what is sent for it.
    #[test]
    fn what_is_sent_is_accepted_by_our_own_decoder(
        method in "GET|POST|PURGE|M-SEARCH|[!#$%&'*+.^_`|~a-z]{1,3}",
        path in "/[!-~\u{80}-\u{ff}]{0,20}",
        host in "[a-z0-9._%~-]{1,10}(:[0-9]{0,5})?|\\[[0-9a-f:%]{1,8}\\]",
        fields in proptest::collection::vec(("[!#$%&'*+.^_`|~a-z0-9-]{1,8}", "[ \t!-~\u{80}-\u{ff}]{0,12}"), 0..8),
    ) {
        let mut request = Request::builder().method(method.as_str()).header("host", &host);
        for (name, value) in &fields {
            request = request.header(format!("x-{name}"), value.as_bytes());
        }
        let Ok(uri) = http::Uri::try_from(path.as_bytes()) else { return Ok(()) };
        let outgoing = outgoing(request.uri(uri.clone()));
        let received = received(&outgoing);
        prop_assert!(received.is_some(), "rejected: {outgoing:?}");
        let received = received.unwrap();
        prop_assert_eq!(received.uri().path_and_query(), uri.path_and_query());
        let has_host = match received.uri().authority() {
            Some(authority) => authority == host.as_str(),
            None => received.headers().get("host").is_some_and(|field| *field == host.as_str()),
        };
        prop_assert!(has_host, "{:?}", received);
        for value in received.headers().values().map(HeaderValue::as_bytes) {
            prop_assert_eq!(value, value.trim_ascii(), "white space around a value");
        }
    }
}
