//! Upstreams that are unreachable, slow or broken.

use std::collections::HashMap;
use std::time::Duration;

use super::start_proxy;
use crate::support::origin::refusing_address;
use crate::support::{
    AfterResponse, Client, LISTENER, Origin, Request, Weir, config, config_with, fetch, get, wait,
};

const HELLO: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

/// Returns an upstream that responds to the first request of a connection and closes it on the second, without a
/// response.
fn closes_on_reuse() -> Origin {
    Origin::start(|turn| {
        turn.body()?;
        if turn.nth > 0 {
            return Ok(AfterResponse::Close);
        }
        turn.send(HELLO)?;
        Ok(AfterResponse::Keep)
    })
}

/// Returns an upstream that announces keep-alive and then closes the connection.
fn closes_after_each_response() -> Origin {
    Origin::start(|turn| {
        turn.body()?;
        turn.send(HELLO)?;
        Ok(AfterResponse::Close)
    })
}

#[test]
fn get_on_a_closing_connection_is_retried_on_a_new_one() {
    let origin = closes_on_reuse();
    let weir = start_proxy(&origin);
    for n in 0..20 {
        assert_eq!(get(weir.address(), &format!("/{n}")).status, 200, "request {n}");
    }
}

#[test]
fn upstream_closing_idle_connections_causes_no_errors() {
    let origin = closes_after_each_response();
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    for n in 0..1000 {
        assert_eq!(client.get("/").status, 200, "request {n}");
    }
}

#[test]
fn a_post_is_never_sent_twice() {
    let origin = closes_on_reuse();
    let weir = start_proxy(&origin);
    let mut failed = 0;
    for n in 0..20 {
        let answer = fetch(weir.address(), &Request::post(&format!("/{n}"), "charge my card"));
        match answer.status {
            200 => {}
            502 | 503 => failed += 1,
            other => panic!("{other}"),
        }
    }
    let mut times = HashMap::new();
    for seen in origin.requests() {
        *times.entry(seen.head.line).or_insert(0) += 1;
    }
    assert!(times.values().all(|times| *times == 1), "{times:?}");
    assert!(failed > 0, "no POST was sent on a closing connection, so the test proves nothing");
}

#[test]
fn request_failing_on_new_connections_is_retried_at_most_once() {
    let origin = Origin::start(|_| Ok(AfterResponse::Close));
    let weir = start_proxy(&origin);
    let status = get(weir.address(), "/").status;
    assert!([502, 503].contains(&status), "{status}");
    assert!(origin.connections() <= 2, "{} attempts", origin.connections());
}

#[test]
fn unreachable_upstream_is_503() {
    let (_socket, address) = refusing_address();
    let weir = Weir::start(&config(address, ""));
    let mut client = Client::connect(weir.address());
    for _ in 0..2 {
        let answer = client.get("/");
        assert_eq!(answer.status, 503);
        assert_no_internal_details(&answer.body.text(), &address.to_string());
    }
    let answer = client.fetch(&Request::post("/", "body"));
    assert_eq!(answer.status, 503);
}

#[test]
fn recovered_upstream_is_used_at_once() {
    let (socket, address) = refusing_address();
    let weir = Weir::start(&config(address, ""));
    assert_eq!(get(weir.address(), "/").status, 503);
    socket.listen(8).unwrap();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = socket.accept() {
            let mut wire = crate::support::wire::Wire::new(stream.into());
            while let Ok(Some(_)) = wire.read_head() {
                wire.send(HELLO).unwrap();
            }
        }
    });
    assert_eq!(get(weir.address(), "/").status, 200);
}

#[test]
fn malformed_response_is_502() {
    let broken: [&[u8]; 13] = [
        b"hello, I am not a web server\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 1000 OK\r\n\r\n",
        b"HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nx a: b\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx-a: b\0c\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx-a: b\rc\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx-a: b\r\n folded\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nhalf a he",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nabc",
    ];
    let origin = Origin::start(move |turn| {
        let which: usize = turn.head.word(1).trim_start_matches('/').parse().unwrap();
        turn.send(broken[which])?;
        Ok(AfterResponse::Close)
    });
    let weir = start_proxy(&origin);
    let mut wrong = Vec::new();
    for (which, bytes) in broken.iter().enumerate() {
        let mut client = Client::connect(weir.address());
        match client.try_fetch(&Request::get(&format!("/{which}"))) {
            Ok(answer) if answer.status == 502 => assert_no_internal_details(&answer.body.text(), "hyper"),
            other => {
                let got = other.map(|answer| answer.status);
                wrong.push(format!("{:?}: {got:?}", String::from_utf8_lossy(bytes)));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn upstream_timeout_is_504() {
    let origin = Origin::start(|turn| {
        turn.wire.drain();
        Ok(AfterResponse::Close)
    });
    let upstream = format!("{{ address: \"{}\", timeout: 300ms }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let answer = get(weir.address(), "/");
    assert_eq!(answer.status, 504);
    assert_no_internal_details(&answer.body.text(), &origin.address().to_string());
    assert_eq!(fetch(weir.address(), &Request::post("/", "body")).status, 504);
}

#[test]
fn late_response_is_not_delivered_to_another_request() {
    let origin = Origin::start(|turn| {
        if turn.head.word(1) == "/late" {
            wait::pause(Duration::from_millis(900));
            turn.send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlate")?;
        } else {
            turn.send(HELLO)?;
        }
        Ok(AfterResponse::Keep)
    });
    let upstream = format!("{{ address: \"{}\", timeout: 300ms }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/late").status, 504);
    wait::throughout(Duration::from_millis(1000), || {
        assert_eq!(get(weir.address(), "/").body.text(), "hello")
    });
}

#[test]
fn truncated_body_is_never_delivered_as_complete() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nonly this",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nonly this\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nonly this\r\nzz\r\nbad size\r\n0\r\n\r\n",
    ] {
        let origin = Origin::start(move |turn| {
            turn.send(answer)?;
            Ok(AfterResponse::Close)
        });
        let weir = start_proxy(&origin);
        let mut client = Client::connect(weir.address());
        match client.try_fetch(&Request::get("/")) {
            // The proxy noticed the error before it had sent anything.
            Ok(response) => assert_eq!(response.status, 502, "a truncated response was ended normally"),
            Err(_) => assert!(is_closed_after_drain(&mut client), "the connection stayed open"),
        }
    }
}

#[test]
fn close_delimited_response_is_reframed() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\n\r\nuntil I close")?;
        Ok(AfterResponse::Close)
    });
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    for _ in 0..2 {
        let answer = client.get("/");
        assert_eq!(answer.body.text(), "until I close");
    }
}

#[test]
fn bytes_after_a_response_are_not_delivered_to_another_request() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_proxy(&origin);
    for n in 0..20 {
        let mut client = Client::connect(weir.address());
        let answer = client.get("/");
        assert_ne!(answer.body.text(), "evil", "request {n}");
        assert!([200, 502].contains(&answer.status));
    }
}

#[test]
fn final_response_is_found_after_interim_responses() {
    for interim in ["HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n"] {
        let origin = Origin::responding_with(format!("{interim}{interim}{HELLO}"));
        let weir = start_proxy(&origin);
        let mut client = Client::connect(weir.address());
        for _ in 0..3 {
            let answer = client.get("/");
            assert_eq!((answer.status, answer.body.text().as_str()), (200, "hello"));
        }
    }
}

#[test]
fn http_1_0_response_is_forwarded_as_http_1_1() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.0 200 OK\r\n\r\nold")?;
        Ok(AfterResponse::Close)
    });
    let weir = start_proxy(&origin);
    let answer = get(weir.address(), "/");
    assert_eq!((answer.head.word(0), answer.body.text().as_str()), ("HTTP/1.1", "old"));
}

#[test]
fn response_with_length_and_chunked_is_read_as_chunked_or_rejected() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")?;
        Ok(AfterResponse::Close)
    });
    let weir = start_proxy(&origin);
    let answer = get(weir.address(), "/");
    match answer.status {
        200 => assert_eq!(answer.body.text(), "hello"),
        status => assert_eq!(status, 502),
    }
}

fn is_closed_after_drain(client: &mut Client) -> bool {
    client.wire.drain();
    client.is_closed()
}

/// Checks that an error response reveals nothing about the implementation.
fn assert_no_internal_details(body: &str, secret: &str) {
    for word in [secret, "hyper", "tokio", "rust", "os error", "src/"] {
        assert!(!body.to_ascii_lowercase().contains(word), "{body}");
    }
}
