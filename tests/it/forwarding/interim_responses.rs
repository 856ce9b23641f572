//! Interim responses (RFC 9110 section 15.2): those of the upstream reach the client, over either protocol.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use crate::support::h2::H2Client;
use crate::support::h2_origin::H2Origin;
use crate::support::{AfterResponse, Client, LISTENER, Origin, Request, Weir, config, config_with, wait};

const HINTS: &str =
    "HTTP/1.1 103 Early Hints\r\nlink: </a.css>; rel=preload\r\nconnection: x-hop\r\nx-hop: 1\r\n\r\n";
const HELLO: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

fn start_proxy(origin: &Origin) -> Weir {
    Weir::start(&config(origin.address(), ""))
}

#[test]
fn early_hints_are_forwarded_before_the_final_response() {
    let go = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&go);
    let origin = Origin::start(move |turn| {
        turn.body()?;
        turn.send(HINTS)?;
        wait::until_true("the test's signal", || gate.load(Ordering::SeqCst));
        turn.send(HELLO)?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send(Request::get("/").to_bytes());
    let hints = client.wire.read_head().unwrap().unwrap();
    assert_eq!(hints.line, "HTTP/1.1 103 Early Hints");
    assert_eq!(
        hints.fields,
        [("link".to_owned(), "</a.css>; rel=preload".to_owned())],
        "no hop-by-hop headers"
    );
    go.store(true, Ordering::SeqCst);
    let response = client.read_response("GET");
    assert_eq!((response.status, response.body.text().as_str()), (200, "hello"));
}

#[test]
fn interim_responses_in_one_segment_keep_their_order() {
    let origin = Origin::responding_with(format!("HTTP/1.1 102 Processing\r\n\r\n{HINTS}{HELLO}"));
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    for _ in 0..3 {
        let response = client.get("/");
        let interim: Vec<_> = response.interim.iter().map(|head| head.word(1)).collect();
        assert_eq!((interim, response.body.text().as_str()), (vec!["102", "103"], "hello"));
    }
}

#[test]
fn http_1_0_client_gets_no_interim_response() {
    let origin = Origin::responding_with(format!("{HINTS}{HELLO}"));
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send("GET / HTTP/1.0\r\nhost: a.test\r\n\r\n");
    let response = client.read_response("GET");
    assert_eq!((response.status, response.interim.len()), (200, 0));
}

#[test]
fn upstream_100_continue_is_not_forwarded() {
    let origin = Origin::responding_with(format!("HTTP/1.1 100 Continue\r\n\r\n{HELLO}"));
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/").interim.len(), 0);
    client.send("POST / HTTP/1.1\r\nhost: a.test\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n");
    assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), "100", "the 100 that Weir sends");
    client.send("ok");
    assert_eq!(client.read_response("POST").interim.len(), 0);
}

#[test]
fn number_of_forwarded_interim_responses_is_bounded() {
    let origin = Origin::start(|turn| {
        turn.body()?;
        (0..500).try_for_each(|_| turn.send(HINTS))?;
        turn.send(HELLO)?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    for _ in 0..2 {
        let response = client.get("/");
        assert_eq!((response.interim.len(), response.status), (8, 200));
    }
}

#[test]
fn early_hints_of_an_http2_upstream_reach_http1_clients() {
    let origin = H2Origin::start(None, |_, mut respond| async move {
        let hints = http::Response::builder().status(103).header("link", "</a.css>");
        respond.send_informational(hints.body(()).unwrap())?;
        let response = http::Response::builder().body(()).unwrap();
        respond.send_response(response, false)?.send_data(Bytes::from_static(b"hello"), true)
    });
    let upstream = format!("{{ address: \"{}\", http2: true }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let response = Client::connect(weir.address()).get("/");
    let links: Vec<_> = response.interim.iter().map(|head| head.get("link").unwrap()).collect();
    assert_eq!((links, response.body.text().as_str()), (vec!["</a.css>"], "hello"));
}

/// Returns the interim responses to a GET of `path`, and the body of the final response.
fn fetch_with_interims(client: &mut H2Client, path: &str) -> (Vec<http::Response<()>>, Vec<u8>) {
    let (mut response, _) = client.send_request(client.request("GET", path), true);
    let mut interims = Vec::new();
    while let Some(interim) = client.block_on(poll_fn(|cx| response.poll_informational(cx))) {
        interims.push(interim.unwrap());
    }
    (interims, client.read_response(response).unwrap().body)
}

#[test]
fn early_hints_reach_http2_clients_before_the_final_response() {
    let go = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&go);
    let origin = Origin::start(move |turn| {
        turn.body()?;
        turn.send(HINTS)?;
        wait::until_true("the test's signal", || gate.load(Ordering::SeqCst));
        turn.send(HELLO)?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_proxy(&origin);
    let mut client = H2Client::connect(weir.address());
    let (mut response, _) = client.send_request(client.request("GET", "/"), true);
    let hints = client.block_on(poll_fn(|cx| response.poll_informational(cx))).unwrap().unwrap();
    assert_eq!((hints.status().as_u16(), hints.headers().len()), (103, 1), "no hop-by-hop headers");
    assert_eq!(hints.headers()["link"], "</a.css>; rel=preload");
    go.store(true, Ordering::SeqCst);
    assert_eq!(client.read_response(response).unwrap().body, b"hello");
}

#[test]
fn interim_responses_reach_only_their_own_stream() {
    let origin = Origin::start(|turn| {
        turn.body()?;
        let path = turn.head.word(1).to_owned();
        for _ in 0..3 {
            turn.send(format!("HTTP/1.1 103 Early Hints\r\nlink: <{path}>\r\n\r\n"))?;
        }
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{path}", path.len()))?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_proxy(&origin);
    let mut client = H2Client::connect(weir.address());
    let sent: Vec<_> = (0..20)
        .map(|index| client.send_request(client.request("GET", &format!("/{index}")), true).0)
        .collect();
    for (index, mut response) in sent.into_iter().enumerate() {
        let mut links = Vec::new();
        while let Some(interim) = client.block_on(poll_fn(|cx| response.poll_informational(cx))) {
            links.push(interim.unwrap().headers()["link"].clone());
        }
        assert_eq!(links, vec![format!("</{index}>"); 3]);
        assert_eq!(client.read_response(response).unwrap().body, format!("/{index}").as_bytes());
    }
}

#[test]
fn interim_responses_to_http2_clients_are_bounded() {
    let origin = Origin::start(|turn| {
        turn.body()?;
        (0..500).try_for_each(|_| turn.send(HINTS))?;
        turn.send(HELLO)?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_proxy(&origin);
    let mut client = H2Client::connect(weir.address());
    for _ in 0..2 {
        let (interims, body) = fetch_with_interims(&mut client, "/");
        assert_eq!((interims.len(), body), (8, b"hello".to_vec()));
    }
}
