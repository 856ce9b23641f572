//! Forwarding of requests and responses, in every form that HTTP/1.1 allows.

mod bodies;
mod client_headers;
mod content_length;
mod faults;
mod header_twins;
mod headers;
mod http1_upstream;
mod interim_responses;
mod intermediary;
mod last_responses;
mod splicing;
mod truncated_responses;

use std::sync::Mutex;

use crate::support::{AfterResponse, Client, Origin, Request, Weir, config, get};

const NO_CONTENT: &str = "HTTP/1.1 204 No Content\r\nx-mark: here\r\n\r\n";

fn start_proxy(origin: &Origin) -> Weir {
    Weir::start(&config(origin.address(), ""))
}

#[test]
fn get_is_forwarded_and_its_response_returned() {
    let origin =
        Origin::responding_with("HTTP/1.1 201 Created\r\ncontent-length: 5\r\nx-mark: here\r\n\r\nhello");
    let weir = start_proxy(&origin);
    let answer = get(weir.address(), "/a?b=c");
    assert_eq!((answer.status, answer.body.text().as_str()), (201, "hello"));
    assert_eq!(answer.header("x-mark"), "here");
    assert_eq!(origin.only_request().head.line, "GET /a?b=c HTTP/1.1");
}

#[test]
fn post_body_is_forwarded() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let answer = Client::connect(weir.address()).fetch(&Request::post("/form", "name=value"));
    assert_eq!(answer.status, 200);
    let seen = origin.only_request();
    assert_eq!((seen.head.line.as_str(), seen.body.text().as_str()), ("POST /form HTTP/1.1", "name=value"));
}

#[test]
fn methods_and_status_codes_are_forwarded_unchanged() {
    let origin = Origin::start(|turn| {
        turn.body()?;
        let status = turn.head.word(1).trim_start_matches('/').to_owned();
        turn.send(format!("HTTP/1.1 {status} Whatever\r\ncontent-length: 0\r\n\r\n"))?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    for (method, status) in
        [("PUT", 202), ("DELETE", 404), ("PATCH", 500), ("OPTIONS", 299), ("PROPFIND", 207), ("GET", 599)]
    {
        let answer = client.fetch(&Request::new(method, &format!("/{status}")));
        assert_eq!(answer.status, status);
        assert_eq!(origin.last_request().head.word(0), method);
    }
}

#[test]
fn head_response_keeps_content_length_without_a_body() {
    let origin = Origin::responding_with("HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n");
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    for _ in 0..2 {
        let answer = client.fetch(&Request::new("HEAD", "/"));
        assert_eq!((answer.status, answer.header("content-length")), (200, "1234"));
        assert_eq!(origin.last_request().head.word(0), "HEAD");
    }
}

#[test]
fn responses_204_and_304_have_no_body() {
    let not_modified = "HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\nx-mark: here\r\n\r\n";
    for (answer, status) in [(NO_CONTENT, 204), (not_modified, 304)] {
        let origin = Origin::responding_with(answer);
        let weir = start_proxy(&origin);
        let mut client = Client::connect(weir.address());
        for _ in 0..2 {
            let answer = client.get("/");
            assert_eq!((answer.status, answer.header("x-mark")), (status, "here"));
            assert_eq!(answer.head.get("transfer-encoding"), None);
            assert_ne!((status, answer.head.get("content-length")), (204, Some("0")));
        }
    }
}

#[test]
fn connection_close_of_the_client_is_obeyed() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    let answer = client.fetch(&Request::get("/").header("connection", "close"));
    assert_eq!(answer.status, 200);
    assert!(answer.head.has_token("connection", "close"));
    assert!(client.is_closed());
    assert!(!origin.only_request().head.has_token("connection", "close"), "`close` was forwarded");
}

#[test]
fn http_1_0_response_is_not_chunked_and_closes_the_connection() {
    let origin = Origin::responding_with(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    );
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send("GET /old HTTP/1.0\r\nhost: test.local\r\n\r\n");
    let answer = client.read_response("GET");
    assert_eq!((answer.status, answer.body.text().as_str()), (200, "hello"));
    assert_eq!(answer.head.get("transfer-encoding"), None, "HTTP/1.0 has no chunked coding");
    assert!(client.is_closed());
    assert_eq!(origin.only_request().head.line, "GET /old HTTP/1.1");
}

#[test]
fn sequential_requests_share_one_upstream_connection() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    for _ in 0..100 {
        assert_eq!(client.get("/").status, 200);
    }
    assert!(origin.connections() <= 2, "{} connections for 100 requests", origin.connections());
}

#[test]
fn sequential_clients_share_upstream_connections() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    for _ in 0..50 {
        assert_eq!(get(weir.address(), "/").status, 200);
    }
    assert!(origin.connections() <= 2, "{} connections for 50 requests", origin.connections());
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let origin = Origin::start(|turn| {
        let target = turn.head.word(1).to_owned();
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{target}", target.len()))?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    let all: Vec<u8> = (0..20).flat_map(|n| Request::get(&format!("/{n}")).to_bytes()).collect();
    client.send(all);
    for n in 0..20 {
        assert_eq!(client.read_response("GET").body.text(), format!("/{n}"));
    }
}

#[test]
fn several_listeners_serve_side_by_side() {
    let origin = Origin::hello();
    let both = "{ name: one, address: 127.0.0.1:0 }, { name: two, address: 127.0.0.1:0 }";
    let upstream = format!("{{ address: \"{}\" }}", origin.address());
    let weir = Weir::start(&crate::support::config_with(both, &upstream, ""));
    assert_ne!(weir.listener("one"), weir.listener("two"));
    for name in ["one", "two"] {
        assert_eq!(get(weir.listener(name), "/").status, 200);
    }
}

#[test]
fn two_workers_serve_from_one_port() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), "workers: 2"));
    let failures = Mutex::new(Vec::new());
    crate::support::run_concurrently(8, |_| {
        let mut client = Client::connect(weir.address());
        for _ in 0..50 {
            match client.try_fetch(&Request::get("/")) {
                Ok(answer) if answer.status == 200 => {}
                other => failures.lock().unwrap().push(format!("{other:?}")),
            }
        }
    });
    assert_eq!(failures.into_inner().unwrap(), Vec::<String>::new());
}

#[test]
fn echo_upstream_returns_the_request() {
    let weir = Weir::start(&config("echo", ""));
    let answer = get(weir.address(), "/try?it=out");
    assert_eq!(answer.status, 200);
    let text = answer.body.text();
    assert!(text.contains("GET /try?it=out"), "{text}");
    assert!(text.to_ascii_lowercase().contains("host: test.local"), "{text}");
    let answer = Client::connect(weir.address()).fetch(&Request::post("/", "a body to be seen again"));
    assert!(answer.body.text().contains("a body to be seen again"), "{}", answer.body.text());
}
