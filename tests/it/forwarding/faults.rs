//! Upstreams that are unreachable, slow or broken.

use std::collections::HashMap;
use std::time::Duration;

use super::through;
use crate::support::origin::refusing;
use crate::support::{Client, LISTENER, Origin, Request, Then, Weir, ask, config, config_with, get, wait};

const HELLO: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

/// Returns an upstream that responds to the first request of a connection and closes it on the second, without a
/// response.
fn hangs_up_on_reuse() -> Origin {
    Origin::start(|turn| {
        turn.body()?;
        if turn.nth > 0 {
            return Ok(Then::Close);
        }
        turn.send(HELLO)?;
        Ok(Then::Keep)
    })
}

/// Returns an upstream that announces keep-alive and then closes the connection.
fn closes_after_each_answer() -> Origin {
    Origin::start(|turn| {
        turn.body()?;
        turn.send(HELLO)?;
        Ok(Then::Close)
    })
}

#[test]
fn a_get_that_met_a_dying_connection_is_sent_again_on_a_fresh_one() {
    let origin = hangs_up_on_reuse();
    let weir = through(&origin);
    for n in 0..20 {
        assert_eq!(get(weir.address(), &format!("/{n}")).status, 200, "request {n}");
    }
}

#[test]
fn an_upstream_that_closes_idle_connections_goes_unnoticed() {
    let origin = closes_after_each_answer();
    let weir = through(&origin);
    let mut client = Client::connect(weir.address());
    for n in 0..1000 {
        assert_eq!(client.get("/").status, 200, "request {n}");
    }
}

#[test]
fn a_post_is_never_sent_twice() {
    let origin = hangs_up_on_reuse();
    let weir = through(&origin);
    let mut failed = 0;
    for n in 0..20 {
        let answer = ask(weir.address(), &Request::post(&format!("/{n}"), "charge my card"));
        match answer.status {
            200 => {}
            502 | 503 => failed += 1,
            other => panic!("{other}"),
        }
    }
    let mut times = HashMap::new();
    for seen in origin.seen() {
        *times.entry(seen.head.line).or_insert(0) += 1;
    }
    assert!(times.values().all(|times| *times == 1), "{times:?}");
    assert!(failed > 0, "no POST was sent on a closing connection, so the test proves nothing");
}

#[test]
fn a_request_that_a_fresh_connection_swallowed_is_not_repeated_for_ever() {
    let origin = Origin::start(|_| Ok(Then::Close));
    let weir = through(&origin);
    let status = get(weir.address(), "/").status;
    assert!([502, 503].contains(&status), "{status}");
    assert!(origin.connections() <= 2, "{} attempts", origin.connections());
}

#[test]
fn no_upstream_is_a_503() {
    let (_socket, address) = refusing();
    let weir = Weir::start(&config(address, ""));
    let mut client = Client::connect(weir.address());
    for _ in 0..2 {
        let answer = client.get("/");
        assert_eq!(answer.status, 503);
        assert_tells_nothing(&answer.body.text(), &address.to_string());
    }
    let answer = client.ask(&Request::post("/", "body"));
    assert_eq!(answer.status, 503);
}

#[test]
fn an_upstream_that_comes_back_is_used_at_once() {
    let (socket, address) = refusing();
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
fn an_answer_that_is_not_http_is_a_502() {
    let broken: [&[u8]; 14] = [
        b"hello, I am not a web server\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 1000 OK\r\n\r\n",
        b"HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nx a: b\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx-a : b\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx-a: b\0c\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx-a: b\rc\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx-a: b\r\n folded\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nhalf a he",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nabc",
    ];
    let origin = Origin::start(move |turn| {
        let which: usize = turn.head.word(1).trim_start_matches('/').parse().unwrap();
        turn.send(broken[which])?;
        Ok(Then::Close)
    });
    let weir = through(&origin);
    let mut wrong = Vec::new();
    for (which, bytes) in broken.iter().enumerate() {
        let mut client = Client::connect(weir.address());
        match client.try_ask(&Request::get(&format!("/{which}"))) {
            Ok(answer) if answer.status == 502 => assert_tells_nothing(&answer.body.text(), "hyper"),
            other => {
                let got = other.map(|answer| answer.status);
                wrong.push(format!("{:?}: {got:?}", String::from_utf8_lossy(bytes)));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn an_upstream_that_is_too_slow_is_a_504() {
    let origin = Origin::start(|turn| {
        turn.wire.drain();
        Ok(Then::Close)
    });
    let upstream = format!("{{ address: \"{}\", timeout: 300ms }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let answer = get(weir.address(), "/");
    assert_eq!(answer.status, 504);
    assert_tells_nothing(&answer.body.text(), &origin.address().to_string());
    assert_eq!(ask(weir.address(), &Request::post("/", "body")).status, 504);
}

#[test]
fn a_timed_out_request_is_not_answered_to_the_next_one() {
    let origin = Origin::start(|turn| {
        if turn.head.word(1) == "/late" {
            wait::pause(Duration::from_millis(900));
            turn.send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlate")?;
        } else {
            turn.send(HELLO)?;
        }
        Ok(Then::Keep)
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
fn a_truncated_body_never_looks_whole() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nonly this",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nonly this\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nonly this\r\nzz\r\nbad size\r\n0\r\n\r\n",
    ] {
        let origin = Origin::start(move |turn| {
            turn.send(answer)?;
            Ok(Then::Close)
        });
        let weir = through(&origin);
        let mut client = Client::connect(weir.address());
        match client.try_ask(&Request::get("/")) {
            // The proxy noticed the error before it had sent anything.
            Ok(response) => assert_eq!(response.status, 502, "a truncated response was ended normally"),
            Err(_) => assert!(get_closes(&mut client), "the connection stayed open"),
        }
    }
}

#[test]
fn an_answer_that_ends_with_its_connection_gets_a_frame() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\n\r\nuntil I close")?;
        Ok(Then::Close)
    });
    let weir = through(&origin);
    let mut client = Client::connect(weir.address());
    for _ in 0..2 {
        let answer = client.get("/");
        assert_eq!(answer.body.text(), "until I close");
    }
}

#[test]
fn bytes_after_an_answer_are_never_anothers_answer() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")?;
        Ok(Then::Keep)
    });
    let weir = through(&origin);
    for n in 0..20 {
        let mut client = Client::connect(weir.address());
        let answer = client.get("/");
        assert_ne!(answer.body.text(), "evil", "request {n}");
        assert!([200, 502].contains(&answer.status));
    }
}

#[test]
fn interim_answers_do_not_confuse() {
    for interim in ["HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n"] {
        let origin = Origin::answering(format!("{interim}{interim}{HELLO}"));
        let weir = through(&origin);
        let mut client = Client::connect(weir.address());
        for _ in 0..3 {
            let answer = client.get("/");
            assert_eq!((answer.status, answer.body.text().as_str()), (200, "hello"));
        }
    }
}

#[test]
fn an_http_1_0_answer_goes_out_as_http_1_1() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.0 200 OK\r\n\r\nold")?;
        Ok(Then::Close)
    });
    let weir = through(&origin);
    let answer = get(weir.address(), "/");
    assert_eq!((answer.head.word(0), answer.body.text().as_str()), ("HTTP/1.1", "old"));
}

#[test]
fn length_and_chunks_together_are_read_as_chunks_or_not_at_all() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")?;
        Ok(Then::Close)
    });
    let weir = through(&origin);
    let answer = get(weir.address(), "/");
    match answer.status {
        200 => assert_eq!(answer.body.text(), "hello"),
        status => assert_eq!(status, 502),
    }
}

fn get_closes(client: &mut Client) -> bool {
    client.wire.drain();
    client.is_closed()
}

/// Checks that an error response reveals nothing about the implementation.
fn assert_tells_nothing(body: &str, secret: &str) {
    for word in [secret, "hyper", "tokio", "rust", "os error", "src/"] {
        assert!(!body.to_ascii_lowercase().contains(word), "{body}");
    }
}
