//! Timeouts: idle or stalled peers are disconnected, slow but active ones are not.

use std::io::Write;
use std::time::Duration;

use crate::support::wait::{now, pause, until_true, within};
use crate::support::{Client, LISTENER, Origin, Request, Then, Weir, ask, config_with, get};

const STEP: Duration = Duration::from_millis(100);

fn impatient(origin: &Origin, settings: &str) -> Weir {
    let listener = format!("{{ address: 127.0.0.1:0, {settings} }}");
    Weir::start(&config_with(&listener, &format!("{{ address: \"{}\" }}", origin.address()), ""))
}

/// Checks that the connection ends, with a 408 or without a response.
fn assert_let_go(client: &mut Client) {
    if let Ok(Some(head)) = client.wire.read_head() {
        assert_eq!(head.word(1), "408");
        client.wire.drain();
    }
    assert!(client.is_closed(), "the connection is still open");
}

#[test]
fn half_a_head_is_not_waited_for() {
    let origin = Origin::hello();
    let weir = impatient(&origin, "header_timeout: 300ms");
    for half in ["G", "GET / HTTP/1.1\r\nhost: a.te", "GET / HTTP/1.1\r\nhost: a.test\r\n", "PRI * HT"] {
        let mut client = Client::connect(weir.address());
        client.send(half);
        assert_let_go(&mut client);
    }
    assert_eq!(origin.seen().len(), 0);
}

#[test]
fn a_head_that_trickles_is_not_waited_for_either() {
    let origin = Origin::hello();
    let weir = impatient(&origin, "header_timeout: 300ms");
    let mut client = Client::connect(weir.address());
    client.send("GET / HTTP/1.1\r\nhost: a.test\r\nx-slow: ");
    let cut = within(Duration::from_secs(8), || {
        pause(Duration::from_millis(45));
        client.wire.send("a").is_err().then_some(())
    });
    assert!(cut.is_some(), "a slow header section was not timed out");
    assert_eq!(origin.seen().len(), 0);
    client.wire.drain();
}

#[test]
fn half_a_head_on_a_used_connection_is_not_waited_for() {
    let origin = Origin::hello();
    let weir = impatient(&origin, "header_timeout: 300ms");
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/").status, 200);
    client.send("GET / HTTP/1.1\r\nho");
    assert_let_go(&mut client);
}

#[test]
fn a_connection_without_a_request_is_closed() {
    let origin = Origin::hello();
    let weir = impatient(&origin, "idle_timeout: 300ms");
    assert_let_go(&mut Client::connect(weir.address()));
}

#[test]
fn a_connection_between_requests_is_closed_without_a_word() {
    let origin = Origin::hello();
    let weir = impatient(&origin, "idle_timeout: 300ms");
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/").status, 200);
    assert!(client.is_closed());
}

#[test]
fn silent_connections_keep_nobody_else_waiting() {
    let origin = Origin::hello();
    let weir = impatient(&origin, "header_timeout: 5s");
    let silent: Vec<_> = (0..100).map(|_| Client::connect(weir.address())).collect();
    for client in &silent[..50] {
        client.send("GET / HTTP/1.1\r\nhost:");
    }
    assert_eq!(get(weir.address(), "/").status, 200);
}

/// The timeout is exact to a few milliseconds. The machine may be busy, so the best of several attempts counts.
#[test]
fn a_short_timeout_of_an_upstream_is_kept_exactly() {
    let origin = Origin::start(|turn| {
        turn.wire.drain();
        Ok(Then::Close)
    });
    let upstream = format!("{{ address: \"{}\", timeout: 250ms }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    for request in [Request::get("/"), Request::post("/", "body")] {
        let taken = (0..8).map(|_| {
            let begun = now();
            assert_eq!(ask(weir.address(), &request).status, 504);
            begun.elapsed()
        });
        let taken: Vec<_> = taken.collect();
        assert!(taken.iter().all(|taken| *taken >= Duration::from_millis(249)), "early: {taken:?}");
        assert!(taken.iter().any(|taken| *taken < Duration::from_millis(290)), "late: {taken:?}");
    }
}

#[test]
fn a_slow_upload_is_left_alone_while_it_moves() {
    let origin = Origin::hello();
    let listener = "{ address: 127.0.0.1:0, header_timeout: 1s, idle_timeout: 1s }";
    let upstream = format!("{{ address: \"{}\", timeout: 1s, idle_timeout: 1s }}", origin.address());
    let weir = Weir::start(&config_with(listener, &upstream, ""));
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 20\r\n\r\n");
    for _ in 0..20 {
        pause(STEP);
        client.send("b");
    }
    assert_eq!(client.answer("POST").status, 200);
    assert_eq!(origin.only().body.length, 20);
}

#[test]
fn a_slow_download_is_left_alone_while_it_moves() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n")?;
        for _ in 0..20 {
            pause(STEP);
            turn.send("b")?;
        }
        Ok(Then::Keep)
    });
    let listener = "{ address: 127.0.0.1:0, header_timeout: 1s, idle_timeout: 1s }";
    let upstream = format!("{{ address: \"{}\", timeout: 1s, idle_timeout: 1s }}", origin.address());
    let weir = Weir::start(&config_with(listener, &upstream, ""));
    assert_eq!(get(weir.address(), "/").body.length, 20);
}

#[test]
fn an_upload_that_stands_still_is_given_up() {
    let origin = Origin::hello();
    let upstream = format!("{{ address: \"{}\", idle_timeout: 300ms, timeout: 300ms }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 10\r\n\r\nhalf ");
    if let Ok(Some(head)) = client.wire.read_head() {
        assert!(["408", "504"].contains(&head.word(1)), "{}", head.line);
        client.wire.drain();
    }
    assert!(client.is_closed(), "an incomplete request body is not timed out");
    assert!(!origin.only().complete, "an incomplete request body was ended as if it were complete");
}

/// The response is complete before the request has ended. The rest of the upload continues, but not without a timeout.
#[test]
fn an_upload_that_stands_still_beside_an_early_answer_is_given_up() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?;
        // Reads until the connection is closed.
        turn.body().map(|_| Then::Keep)
    });
    let upstream = format!("{{ address: \"{}\", idle_timeout: 300ms }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 100000\r\n\r\nabc");
    assert_eq!(client.answer("POST").status, 200);
    assert!(client.is_closed(), "the connection has no timeout");
    let upstreams = || weir.metric("weir_upstream_connections", &[]);
    until_true("the upstream's connection to be closed", || upstreams() == 0.0);
}

/// The upstream has sent its response but neither reads nor closes. Its connection must not be held forever.
#[test]
fn an_upload_that_nobody_takes_beside_an_early_answer_is_given_up() {
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let is_over = std::sync::Mutex::new(is_over);
    let origin = Origin::start(move |turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?;
        let _ = is_over.lock().unwrap().recv();
        Ok(Then::Close)
    });
    let upstream = format!("{{ address: \"{}\", idle_timeout: 300ms }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 1000000000\r\n\r\n");
    let mut stream = client.wire.stream().try_clone().unwrap();
    let uploading = std::thread::spawn(move || while stream.write_all(&[b'x'; 64 << 10]).is_ok() {});
    assert_eq!(client.answer("POST").status, 200);
    uploading.join().unwrap();
    let upstreams = || weir.metric("weir_upstream_connections", &[]);
    until_true("the upstream's connection to be closed", || upstreams() == 0.0);
    drop(over);
}

#[test]
fn an_empty_line_behind_a_body_is_no_request_to_wait_for() {
    let origin = Origin::hello();
    let weir = impatient(&origin, "header_timeout: 300ms, idle_timeout: 5s");
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 3\r\n\r\nabc\r\n");
    assert_eq!(client.answer("POST").status, 200);
    pause(Duration::from_millis(700));
    assert_eq!(client.get("/").status, 200, "the empty line was read as an incomplete header section");
    assert_eq!(weir.metric("weir_requests_malformed_total", &[]), 0.0);
}

#[test]
fn a_download_that_stands_still_is_cut() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf ")?;
        turn.wire.drain();
        Ok(Then::Close)
    });
    let upstream = format!("{{ address: \"{}\", idle_timeout: 300ms }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let mut client = Client::connect(weir.address());
    assert!(client.try_ask(&Request::get("/")).is_err());
    assert!(client.is_closed(), "an incomplete response is not timed out");
}

#[test]
fn a_client_that_stops_reading_is_let_go() {
    let (cut, is_cut) = std::sync::mpsc::channel();
    let cut = std::sync::Mutex::new(cut);
    let origin = Origin::start(move |turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")?;
        let piece = [b'x'; 64 << 10];
        while turn.send(piece).is_ok() {}
        cut.lock().unwrap().send(()).unwrap();
        Ok(Then::Close)
    });
    let upstream = format!("{{ address: \"{}\", idle_timeout: 300ms }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let client = Client::connect(weir.address());
    client.send(Request::get("/").bytes());
    until_true("the upstream request to end", || is_cut.try_recv().is_ok());
}

#[test]
fn unused_upstream_connections_are_closed() {
    let (closed, is_closed) = std::sync::mpsc::channel();
    let closed = std::sync::Mutex::new(closed);
    let origin = Origin::start(move |turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        if turn.wire.ends() {
            closed.lock().unwrap().send(()).unwrap();
        }
        Ok(Then::Keep)
    });
    let upstream = format!("{{ address: \"{}\", idle_timeout: 300ms }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    assert_eq!(get(weir.address(), "/").status, 200);
    until_true("the upstream connection to be closed", || is_closed.try_recv().is_ok());
}
