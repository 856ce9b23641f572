//! Timeouts: idle or stalled peers are disconnected, slow but active ones are not.

use std::io::Write;
use std::time::Duration;

use crate::support::wait::{now, pause, until_true, within};
use crate::support::{AfterResponse, Client, LISTENER, Origin, Request, Weir, config_with, fetch, get};

const STEP: Duration = Duration::from_millis(100);

fn start_with_listener_settings(origin: &Origin, settings: &str) -> Weir {
    let listener = format!("{{ address: 127.0.0.1:0, {settings} }}");
    Weir::start(&config_with(&listener, &format!("{{ address: \"{}\" }}", origin.address()), ""))
}

/// Checks that the connection ends, with a 408 or without a response.
fn assert_closed_or_408(client: &mut Client) {
    if let Ok(Some(head)) = client.wire.read_head() {
        assert_eq!(head.word(1), "408");
        client.wire.drain();
    }
    assert!(client.is_closed(), "the connection is still open");
}

#[test]
fn incomplete_header_section_times_out() {
    let origin = Origin::hello();
    let weir = start_with_listener_settings(&origin, "header_timeout: 300ms");
    for half in ["G", "GET / HTTP/1.1\r\nhost: a.te", "GET / HTTP/1.1\r\nhost: a.test\r\n", "PRI * HT"] {
        let mut client = Client::connect(weir.address());
        client.send(half);
        assert_closed_or_408(&mut client);
    }
    assert_eq!(origin.requests().len(), 0);
}

#[test]
fn slow_header_section_times_out() {
    let origin = Origin::hello();
    let weir = start_with_listener_settings(&origin, "header_timeout: 300ms");
    let mut client = Client::connect(weir.address());
    client.send("GET / HTTP/1.1\r\nhost: a.test\r\nx-slow: ");
    let cut = within(Duration::from_secs(8), || {
        pause(Duration::from_millis(45));
        client.wire.send("a").is_err().then_some(())
    });
    assert!(cut.is_some(), "a slow header section was not timed out");
    assert_eq!(origin.requests().len(), 0);
    client.wire.drain();
}

#[test]
fn incomplete_header_section_on_a_persistent_connection_times_out() {
    let origin = Origin::hello();
    let weir = start_with_listener_settings(&origin, "header_timeout: 300ms");
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/").status, 200);
    client.send("GET / HTTP/1.1\r\nho");
    assert_closed_or_408(&mut client);
}

#[test]
fn idle_connection_without_a_request_is_closed() {
    let origin = Origin::hello();
    let weir = start_with_listener_settings(&origin, "idle_timeout: 300ms");
    assert_closed_or_408(&mut Client::connect(weir.address()));
}

#[test]
fn idle_persistent_connection_is_closed_without_a_response() {
    let origin = Origin::hello();
    let weir = start_with_listener_settings(&origin, "idle_timeout: 300ms");
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/").status, 200);
    assert!(client.is_closed());
}

#[test]
fn silent_connections_do_not_block_others() {
    let origin = Origin::hello();
    let weir = start_with_listener_settings(&origin, "header_timeout: 5s");
    let silent: Vec<_> = (0..100).map(|_| Client::connect(weir.address())).collect();
    for client in &silent[..50] {
        client.send("GET / HTTP/1.1\r\nhost:");
    }
    assert_eq!(get(weir.address(), "/").status, 200);
}

/// The timeout is exact to a few milliseconds. The machine may be busy, so the best of several attempts counts.
#[test]
fn upstream_timeout_is_precise() {
    let origin = Origin::start(|turn| {
        turn.wire.drain();
        Ok(AfterResponse::Close)
    });
    let upstream = format!("{{ address: \"{}\", timeout: 250ms }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    for request in [Request::get("/"), Request::post("/", "body")] {
        let taken = (0..8).map(|_| {
            let begun = now();
            assert_eq!(fetch(weir.address(), &request).status, 504);
            begun.elapsed()
        });
        let taken: Vec<_> = taken.collect();
        assert!(taken.iter().all(|taken| *taken >= Duration::from_millis(249)), "early: {taken:?}");
        assert!(taken.iter().any(|taken| *taken < Duration::from_millis(290)), "late: {taken:?}");
    }
}

#[test]
fn slow_upload_does_not_time_out_while_it_progresses() {
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
    assert_eq!(client.read_response("POST").status, 200);
    assert_eq!(origin.only_request().body.length, 20);
}

#[test]
fn slow_download_does_not_time_out_while_it_progresses() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n")?;
        for _ in 0..20 {
            pause(STEP);
            turn.send("b")?;
        }
        Ok(AfterResponse::Keep)
    });
    let listener = "{ address: 127.0.0.1:0, header_timeout: 1s, idle_timeout: 1s }";
    let upstream = format!("{{ address: \"{}\", timeout: 1s, idle_timeout: 1s }}", origin.address());
    let weir = Weir::start(&config_with(listener, &upstream, ""));
    assert_eq!(get(weir.address(), "/").body.length, 20);
}

#[test]
fn stalled_upload_times_out() {
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
    assert!(!origin.only_request().complete, "an incomplete request body was ended as if it were complete");
}

/// The response is complete before the request has ended. The rest of the upload continues, but not without a timeout.
#[test]
fn stalled_upload_after_an_early_response_times_out() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?;
        // Reads until the connection is closed.
        turn.body().map(|_| AfterResponse::Keep)
    });
    let upstream = format!("{{ address: \"{}\", idle_timeout: 300ms }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 100000\r\n\r\nabc");
    assert_eq!(client.read_response("POST").status, 200);
    assert!(client.is_closed(), "the connection has no timeout");
    let upstreams = || weir.metric("weir_upstream_connections", &[]);
    until_true("the upstream's connection to be closed", || upstreams() == 0.0);
}

/// The upstream has sent its response but neither reads nor closes. Its connection must not be held forever.
#[test]
fn unread_upload_after_an_early_response_times_out() {
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let is_over = std::sync::Mutex::new(is_over);
    let origin = Origin::start(move |turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?;
        let _ = is_over.lock().unwrap().recv();
        Ok(AfterResponse::Close)
    });
    let upstream = format!("{{ address: \"{}\", idle_timeout: 300ms }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 1000000000\r\n\r\n");
    let mut stream = client.wire.stream().try_clone().unwrap();
    let uploading = std::thread::spawn(move || while stream.write_all(&[b'x'; 64 << 10]).is_ok() {});
    assert_eq!(client.read_response("POST").status, 200);
    uploading.join().unwrap();
    let upstreams = || weir.metric("weir_upstream_connections", &[]);
    until_true("the upstream's connection to be closed", || upstreams() == 0.0);
    drop(over);
}

#[test]
fn empty_line_after_a_body_does_not_start_the_header_timeout() {
    let origin = Origin::hello();
    let weir = start_with_listener_settings(&origin, "header_timeout: 300ms, idle_timeout: 5s");
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 3\r\n\r\nabc\r\n");
    assert_eq!(client.read_response("POST").status, 200);
    pause(Duration::from_millis(700));
    assert_eq!(client.get("/").status, 200, "the empty line was read as an incomplete header section");
    assert_eq!(weir.metric("weir_requests_malformed_total", &[]), 0.0);
}

#[test]
fn stalled_download_is_aborted() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf ")?;
        turn.wire.drain();
        Ok(AfterResponse::Close)
    });
    let upstream = format!("{{ address: \"{}\", idle_timeout: 300ms }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let mut client = Client::connect(weir.address());
    assert!(client.try_fetch(&Request::get("/")).is_err());
    assert!(client.is_closed(), "an incomplete response is not timed out");
}

#[test]
fn client_that_stops_reading_is_disconnected() {
    let (cut, is_cut) = std::sync::mpsc::channel();
    let cut = std::sync::Mutex::new(cut);
    let origin = Origin::start(move |turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")?;
        let piece = [b'x'; 64 << 10];
        while turn.send(piece).is_ok() {}
        cut.lock().unwrap().send(()).unwrap();
        Ok(AfterResponse::Close)
    });
    let upstream = format!("{{ address: \"{}\", idle_timeout: 300ms }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let client = Client::connect(weir.address());
    client.send(Request::get("/").to_bytes());
    until_true("the upstream request to end", || is_cut.try_recv().is_ok());
}

#[test]
fn idle_upstream_connections_are_closed() {
    let (closed, is_closed) = std::sync::mpsc::channel();
    let closed = std::sync::Mutex::new(closed);
    let origin = Origin::start(move |turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        if turn.wire.is_closed() {
            closed.lock().unwrap().send(()).unwrap();
        }
        Ok(AfterResponse::Keep)
    });
    let upstream = format!("{{ address: \"{}\", idle_timeout: 300ms }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    assert_eq!(get(weir.address(), "/").status, 200);
    until_true("the upstream connection to be closed", || is_closed.try_recv().is_ok());
}
