//! Graceful shutdown, observed by clients and by readiness probes.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::support::{AfterResponse, Client, Origin, Request, Weir, config, get, run_concurrently, wait};

const HELLO: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

/// Returns an upstream that holds `/slow` until a message is sent, and the channel for it.
fn slow_origin() -> (Origin, mpsc::Sender<()>) {
    let (release, released) = mpsc::channel();
    let released = Mutex::new(released);
    let origin = Origin::start(move |turn| {
        if turn.head.word(1) == "/slow" {
            released.lock().unwrap().recv().map_err(io::Error::other)?;
        }
        turn.send(HELLO)?;
        Ok(AfterResponse::Keep)
    });
    (origin, release)
}

fn until_connections_refused(address: SocketAddr) {
    wait::until_true("new connections to be refused", || TcpStream::connect(address).is_err());
}

fn assert_success(status: ExitStatus) {
    assert_eq!(status.code(), Some(0), "{status}");
}

/// Sends requests until a response announces the end of the connection. Returns an error if one fails.
fn request_until_close(address: SocketAddr, served: &AtomicUsize) -> Result<(), String> {
    let mut client = Client::connect(address);
    for n in 0.. {
        match client.try_fetch(&Request::get("/")) {
            Ok(answer) if answer.status != 200 => return Err(format!("request {n}: {}", answer.status)),
            Ok(answer) if answer.head.has_token("connection", "close") => return Ok(()),
            Ok(_) => served.fetch_add(1, Ordering::SeqCst),
            Err(error) => return Err(format!("request {n}: {error}")),
        };
    }
    Ok(())
}

/// Checks that SIGTERM loses no request while eight connections are busy.
fn assert_no_request_is_lost(settings: &str) {
    let origin = Origin::hello();
    let mut weir = Weir::start(&config(origin.address(), settings));
    let (address, served) = (weir.address(), AtomicUsize::new(0));
    let terminated = AtomicBool::new(false);
    let outcomes = thread::scope(|scope| {
        let load = scope.spawn(|| run_concurrently(8, |_| request_until_close(address, &served)));
        wait::until_true("load", || served.load(Ordering::SeqCst) > 200);
        weir.terminate();
        terminated.store(true, Ordering::SeqCst);
        load.join().unwrap()
    });
    assert!(terminated.load(Ordering::SeqCst));
    assert_eq!(outcomes, vec![Ok(()); 8]);
    assert_success(weir.wait_exit());
}

#[test]
fn sigterm_under_load_loses_no_request() {
    assert_no_request_is_lost("drain: { delay: 0s, timeout: 10s }");
}

#[test]
fn sigterm_under_load_loses_no_request_with_two_workers() {
    assert_no_request_is_lost("workers: 2\ndrain: { delay: 0s, timeout: 10s }");
}

#[test]
fn sigterm_under_load_loses_no_request_after_a_delay() {
    assert_no_request_is_lost("workers: 2\ndrain: { delay: 300ms, timeout: 10s }");
}

#[test]
fn readiness_fails_at_once_and_requests_are_served_during_the_delay() {
    let origin = Origin::hello();
    let mut weir = Weir::start(&config(origin.address(), "drain: { delay: 1s, timeout: 5s }"));
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/").status, 200);
    weir.terminate();
    wait::until_true("readiness to fail", || weir.admin_get("/ready").status == 503);
    assert_eq!(get(weir.address(), "/").status, 200, "new connections are served during the delay");
    assert_eq!(client.get("/").status, 200, "open connections are served during the delay");
    until_connections_refused(weir.address());
    assert_success(weir.wait_exit());
}

#[test]
fn sigint_exits_like_sigterm() {
    let mut weir = Weir::start(&config("echo", ""));
    weir.signal("INT");
    assert_success(weir.wait_exit());
}

#[test]
fn a_request_in_flight_is_finished() {
    for workers in 1..=2 {
        let (origin, release) = slow_origin();
        let mut weir =
            Weir::start(&config(origin.address(), &format!("workers: {workers}\ndrain: {{ timeout: 10s }}")));
        let mut clients: Vec<_> = (0..4).map(|_| Client::connect(weir.address())).collect();
        for client in &clients {
            client.send(Request::get("/slow").to_bytes());
        }
        wait::until_true("the requests", || origin.requests().len() == 4);
        weir.terminate();
        until_connections_refused(weir.address());
        assert!(weir.is_running());
        for _ in &clients {
            release.send(()).unwrap();
        }
        for client in &mut clients {
            let answer = client.read_response("GET");
            assert_eq!((answer.status, answer.body.text().as_str()), (200, "hello"));
            assert!(answer.head.has_token("connection", "close"), "{:#?}", answer.head);
            assert!(client.is_closed());
        }
        assert_success(weir.wait_exit());
    }
}

#[test]
fn an_upload_in_flight_is_finished() {
    let origin = Origin::hello();
    let mut weir = Weir::start(&config(origin.address(), "drain: { timeout: 10s }"));
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ncontent-length: 10\r\n\r\nfirst");
    origin.until_request("the first half", |seen| seen.body.length == 5);
    weir.terminate();
    until_connections_refused(weir.address());
    client.send("later");
    assert_eq!(client.read_response("POST").status, 200);
    assert_eq!(origin.only_request().body.text(), "firstlater");
    assert_success(weir.wait_exit());
}

#[test]
fn unfinished_requests_are_aborted_at_the_timeout() {
    let (origin, _release) = slow_origin();
    let mut weir = Weir::start(&config(origin.address(), "drain: { delay: 0s, timeout: 500ms }"));
    let mut client = Client::connect(weir.address());
    client.send(Request::get("/slow").to_bytes());
    origin.until_request("the request", |seen| seen.head.word(1) == "/slow");
    weir.terminate();
    assert_success(weir.wait_exit());
    assert!(client.try_read_response("GET").map_or(true, |answer| answer.status >= 500));
}

#[test]
fn second_signal_exits_at_once() {
    let (origin, _release) = slow_origin();
    let mut weir = Weir::start(&config(origin.address(), "drain: { delay: 60s, timeout: 60s }"));
    let client = Client::connect(weir.address());
    client.send(Request::get("/slow").to_bytes());
    origin.until_request("the request", |seen| seen.head.word(1) == "/slow");
    weir.terminate();
    wait::until_true("readiness to fail", || weir.admin_get("/ready").status == 503);
    weir.terminate();
    weir.wait_exit();
}

#[test]
fn idle_connections_are_closed_and_do_not_delay_the_exit() {
    let mut weir = Weir::start(&config("echo", "drain: { delay: 0s, timeout: 60s }"));
    let mut clients: Vec<_> = (0..10).map(|_| Client::connect(weir.address())).collect();
    // Half of the connections have never sent anything.
    for client in &mut clients[..5] {
        assert_eq!(client.get("/").status, 200);
    }
    weir.terminate();
    for client in &mut clients {
        assert!(client.is_closed());
    }
    assert_success(weir.wait_exit());
}

#[test]
fn idle_process_exits_before_the_timeout() {
    let mut weir = Weir::start(&config("echo", "workers: 2\ndrain: { delay: 0s, timeout: 60s }"));
    weir.terminate();
    assert_success(weir.wait_exit());
}

#[test]
fn quitquitquit_drains_like_sigterm() {
    let (origin, release) = slow_origin();
    let mut weir = Weir::start(&config(origin.address(), "drain: { timeout: 10s }"));
    let mut client = Client::connect(weir.address());
    client.send(Request::get("/slow").to_bytes());
    origin.until_request("the request", |seen| seen.head.word(1) == "/slow");
    assert_eq!(weir.admin_post("/quitquitquit").status, 200);
    until_connections_refused(weir.address());
    release.send(()).unwrap();
    assert_eq!(client.read_response("GET").status, 200);
    assert_success(weir.wait_exit());
}

#[test]
fn healthcheck_fail_affects_readiness_but_not_traffic() {
    let weir = Weir::start(&config("echo", ""));
    for _ in 0..2 {
        assert_eq!(weir.admin_post("/healthcheck/fail").status, 200);
        assert_eq!(weir.admin_get("/ready").status, 503);
        assert_eq!(get(weir.address(), "/").status, 200);
        assert_eq!(weir.admin_post("/healthcheck/ok").status, 200);
        assert_eq!(weir.admin_get("/ready").status, 200);
    }
}

#[test]
fn drain_listeners_closes_listeners_but_not_the_process() {
    let mut weir = Weir::start(&config("echo", ""));
    assert_eq!(get(weir.address(), "/").status, 200);
    assert_eq!(weir.admin_post("/drain_listeners").status, 200);
    until_connections_refused(weir.address());
    wait::throughout(Duration::from_millis(300), || {
        assert_eq!(weir.admin_get("/server_info").status, 200);
        assert!(weir.is_running());
    });
    weir.terminate();
    assert_success(weir.wait_exit());
}

/// Sends SIGTERM while work is queued: the process is stopped, so that the kernel queues what clients send, and
/// continued.
fn terminate_with_queued_work(weir: &Weir, work: impl FnOnce()) {
    weir.signal("STOP");
    work();
    weir.terminate();
    weir.signal("CONT");
}

#[test]
fn connections_in_the_accept_queue_are_served() {
    for workers in 1..=2 {
        let mut weir =
            Weir::start(&config("echo", &format!("workers: {workers}\ndrain: {{ timeout: 10s }}")));
        let (address, mut clients) = (weir.address(), Vec::new());
        terminate_with_queued_work(&weir, || {
            for _ in 0..400 {
                let client = Client::connect(address);
                client.send(Request::get("/").header("connection", "close").to_bytes());
                clients.push(client);
            }
        });
        let answers =
            clients.iter_mut().map(|client| client.try_read_response("GET").map(|answer| answer.status));
        let lost: Vec<_> = answers.enumerate().filter(|(_, answer)| !matches!(answer, Ok(200))).collect();
        assert!(lost.is_empty(), "{} of 400 without a response, the first: {:?}", lost.len(), lost[0]);
        assert_success(weir.wait_exit());
    }
}

#[test]
fn request_received_before_sigterm_is_served() {
    let mut weir = Weir::start(&config("echo", "drain: { timeout: 10s }"));
    let mut clients: Vec<_> = (0..50).map(|_| Client::connect(weir.address())).collect();
    assert!(clients.iter_mut().all(|client| client.get("/").status == 200));
    terminate_with_queued_work(&weir, || {
        for client in &clients {
            client.send(Request::get("/").to_bytes());
        }
    });
    let answers =
        clients.iter_mut().map(|client| client.try_read_response("GET").map(|answer| answer.status));
    let lost: Vec<_> = answers.enumerate().filter(|(_, answer)| !matches!(answer, Ok(200))).collect();
    assert!(lost.is_empty(), "{} of 50 without a response, the first: {:?}", lost.len(), lost[0]);
    assert_success(weir.wait_exit());
}

#[test]
fn partial_header_section_may_be_completed() {
    let mut weir = Weir::start(&config("echo", "drain: { timeout: 10s }"));
    let (mut fresh, mut used) = (Client::connect(weir.address()), Client::connect(weir.address()));
    assert_eq!(used.get("/").status, 200);
    for client in [&fresh, &used] {
        client.send("GET / HTTP/1.1\r\nhost: te");
    }
    // The partial requests have been read once a later request has a response.
    assert_eq!(get(weir.address(), "/").status, 200);
    weir.terminate();
    until_connections_refused(weir.address());
    for client in [&mut fresh, &mut used] {
        client.send("st.local\r\n\r\n");
        let answer = client.read_response("GET");
        assert_eq!(answer.status, 200);
        assert!(answer.head.has_token("connection", "close"));
    }
    assert_success(weir.wait_exit());
}
