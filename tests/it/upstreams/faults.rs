//! Upstream faults under load: endpoints that are killed, hang, truncate responses or respond too early. Also clients
//! that disconnect.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use socket2::{Domain, Socket, Type};

use super::{addresses, config, hanging_upstream, named_upstream};
use crate::support::wait::until_true;
use crate::support::{AfterResponse, Client, Origin, Request, Weir, get};

/// An upstream in a process of its own, whose address stays reserved while it is not running.
struct RestartableUpstream {
    process: Option<Weir>,
    address: SocketAddr,
    /// Bound, but never listening, so that no other process gets the port.
    _held: Socket,
}

impl RestartableUpstream {
    fn start() -> Self {
        let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        held.set_reuse_address(true).unwrap();
        held.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = held.local_addr().unwrap().as_socket().unwrap();
        let mut mortal = Self { process: None, address, _held: held };
        mortal.restart();
        mortal
    }

    /// Kills the process, without a graceful shutdown.
    fn kill(&mut self) {
        self.process = None;
    }

    fn restart(&mut self) {
        let listener = self.address;
        let text = format!(
            "listeners: '{listener}'\nworkers: 1\nadmin: {{ address: 127.0.0.1:0 }}\nupstream: echo\nrules: []\n"
        );
        self.process = Some(Weir::start(&text));
    }
}

/// Load over several connections, with the number of successful requests.
struct Load<'a> {
    weir: &'a Weir,
    done: AtomicBool,
    served: AtomicUsize,
    /// Whether requests are no longer expected to fail.
    settled: AtomicBool,
    /// Number of requests that failed nevertheless.
    failed_since: AtomicUsize,
}

impl<'a> Load<'a> {
    fn new(weir: &'a Weir) -> Self {
        let (done, settled) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { weir, done, served: AtomicUsize::new(0), settled, failed_since: AtomicUsize::new(0) }
    }

    /// Repeats `request` on `clients` connections until `during` returns. Returns the status codes other than 200; 0
    /// stands for none.
    fn run(&self, clients: usize, request: &Request, during: impl FnOnce(&Self)) -> Vec<u16> {
        thread::scope(|scope| {
            let clients: Vec<_> = (0..clients).map(|_| scope.spawn(|| self.send_requests(request))).collect();
            during(self);
            self.done.store(true, Ordering::SeqCst);
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
        })
    }

    fn send_requests(&self, request: &Request) -> Vec<u16> {
        let mut client = Client::connect(self.weir.address());
        let mut failed = Vec::new();
        while !self.done.load(Ordering::SeqCst) {
            let settled = self.settled.load(Ordering::SeqCst);
            let status = client.try_fetch(request).map(|answer| answer.status);
            if settled && !matches!(status, Ok(200)) {
                self.failed_since.fetch_add(1, Ordering::SeqCst);
            }
            match status {
                Ok(200) => drop(self.served.fetch_add(1, Ordering::SeqCst)),
                Ok(status) => failed.push(status),
                Err(_) => {
                    failed.push(0);
                    client = Client::connect(self.weir.address());
                }
            }
        }
        failed
    }

    /// Waits for `answers` more successful responses.
    fn wait_for_responses(&self, answers: usize) {
        let before = self.served.load(Ordering::SeqCst);
        until_true("answers", || self.served.load(Ordering::SeqCst) >= before + answers);
    }
}

/// Returns the number of requests that `weir` has sent to the endpoint at `address`.
fn requests_sent_to(weir: &Weir, address: SocketAddr) -> u64 {
    let clusters = weir.admin_get("/clusters").body.text();
    let start = format!("upstream::{address}::rq_total::");
    clusters.lines().find_map(|line| line.strip_prefix(&start)).unwrap().parse().unwrap()
}

#[test]
fn restarted_upstream_fails_requests_only_while_it_is_down() {
    let mut upstream = RestartableUpstream::start();
    let weir = Weir::start(&config(&format!("upstream: '{}'", upstream.address)));
    for _ in 0..3 {
        let load = Load::new(&weir);
        let failed = load.run(4, &Request::get("/"), |load| {
            load.wait_for_responses(50);
            upstream.kill();
            until_true("a rejection", || get(weir.address(), "/").status == 503);
            upstream.restart();
            load.wait_for_responses(50);
        });
        assert!(failed.iter().all(|status| *status == 503), "{failed:?}");
        let mut client = Client::connect(weir.address());
        assert!((0..50).all(|_| client.get("/").status == 200), "all workers use the restarted upstream");
    }
}

#[test]
fn killed_endpoint_fails_no_request_that_may_be_retried() {
    let mut upstreams =
        [RestartableUpstream::start(), RestartableUpstream::start(), RestartableUpstream::start()];
    let places = upstreams.each_ref().map(|one| format!("'{}'", one.address)).join(", ");
    let weir = Weir::start(&config(&format!(
        "upstream: {{ address: [{places}], retries: {{}}, limits: {{ retries: 100 }}, outliers: {{ ejection: 300ms }} }}"
    )));
    let load = Load::new(&weir);
    let failed = load.run(4, &Request::get("/"), |load| {
        for upstream in &mut upstreams {
            load.wait_for_responses(50);
            upstream.kill();
            load.wait_for_responses(200);
            upstream.restart();
            let before = requests_sent_to(&weir, upstream.address);
            until_true("new requests to it", || requests_sent_to(&weir, upstream.address) > before + 50);
        }
    });
    assert_eq!(failed, Vec::<u16>::new());
}

#[test]
fn killed_endpoint_fails_no_later_request() {
    let mut upstreams =
        [RestartableUpstream::start(), RestartableUpstream::start(), RestartableUpstream::start()];
    let places = upstreams.each_ref().map(|one| format!("'{}'", one.address)).join(", ");
    let weir = Weir::start(&config(&format!("upstream: {{ address: [{places}] }}")));
    let load = Load::new(&weir);
    let failed = load.run(4, &Request::post("/", "order"), |load| {
        load.wait_for_responses(50);
        upstreams[1].kill();
        load.settled.store(true, Ordering::SeqCst);
        load.wait_for_responses(300);
    });
    assert_eq!(load.failed_since.load(Ordering::SeqCst), 0, "{failed:?}");
    assert!(failed.iter().all(|status| *status == 503), "{failed:?}");
}

#[test]
fn truncated_response_affects_only_its_client() {
    let breaking = Origin::start(|turn| {
        turn.body()?;
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf of it")?;
        turn.wire.stream().set_nodelay(true)?;
        socket2::SockRef::from(turn.wire.stream()).set_linger(Some(std::time::Duration::ZERO))?;
        Ok(AfterResponse::Close)
    });
    let origins = [breaking, named_upstream("good")];
    let weir = Weir::start(&config(&format!(
        "upstream: {{ address: [{}], retries: {{}}, outliers: false }}",
        addresses(&origins)
    )));
    let asked: Vec<_> = (0..20)
        .map(|_| Client::connect(weir.address()).try_fetch(&Request::get("/")))
        .map(|answer| answer.map(|answer| answer.body.text()))
        .collect();
    // If the reset discards the header section, the request may be retried on another endpoint. A response that has
    // begun to reach the client is truncated. One that breaks off before that becomes a 502.
    let is_good = |answer: &Result<String, _>| answer.as_ref().is_ok_and(|body| body == "good");
    let is_broken = |answer: &Result<String, _>| answer.as_ref().map_or(true, |body| body == "bad gateway\n");
    assert!(asked.iter().all(|answer| is_good(answer) || is_broken(answer)), "{asked:?}");
    assert!(asked.iter().any(is_good) && asked.iter().any(is_broken), "{asked:?}");
    until_true("no request in flight", || weir.metric("weir_upstream_requests_in_flight", &[]) == 0.0);
}

#[test]
fn early_response_arrives_despite_a_connection_reset() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 413 Content Too Large\r\ncontent-length: 5\r\nconnection: close\r\n\r\nlarge")?;
        // Closing with unread bytes causes a TCP reset.
        Ok(AfterResponse::Close)
    });
    let weir = Weir::start(&config(&format!("upstream: '{}'", origin.address())));
    for _ in 0..20 {
        let mut client = Client::connect(weir.address());
        client.send("POST / HTTP/1.1\r\nhost: test.local\r\ncontent-length: 10000000\r\n\r\n");
        // The client may get the response before it has sent everything.
        let _ = client.wire.send(vec![b'x'; 300_000]);
        let answer = client.read_response("POST");
        assert_eq!((answer.status, answer.body.text().as_str()), (413, "large"));
    }
}

#[test]
fn upload_continues_after_the_upstream_half_closes() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nearly")?;
        turn.wire.shutdown_write()?;
        turn.body()?;
        Ok(AfterResponse::Close)
    });
    let weir = Weir::start(&config(&format!("upstream: '{}'", origin.address())));
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ncontent-length: 60000\r\n\r\n");
    assert_eq!(client.read_response("POST").body.text(), "early");
    client.send(vec![b'x'; 60_000]);
    origin.until_request("the whole request", |seen| seen.complete && seen.body.length == 60_000);
    // The first connection cannot be used again, so the request uses a new one.
    assert_eq!(Client::connect(weir.address()).fetch(&Request::post("/", "")).status, 200);
    assert_eq!(origin.connections(), 2);
}

#[test]
fn endpoint_that_times_out_is_ejected() {
    let origins = [hanging_upstream(), named_upstream("good")];
    let weir = Weir::start(&config(&format!(
        "upstream: {{ address: [{}], timeout: 100ms, outliers: {{ failures: 2 }} }}",
        addresses(&origins)
    )));
    let mut client = Client::connect(weir.address());
    let statuses: Vec<_> = (0..20).map(|_| client.get("/").status).collect();
    let late = statuses.iter().filter(|status| **status == 504).count();
    assert_eq!((late, statuses[10..].iter().all(|status| *status == 200)), (2, true), "{statuses:?}");
}

#[test]
fn client_disconnect_or_half_close_returns_its_permits() {
    let origin = Origin::start(|turn| match turn.head.word(1) {
        "/download" => {
            turn.send("HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")?;
            while turn.send([b'x'; 4096]).is_ok() {}
            Err(io::ErrorKind::ConnectionReset.into())
        }
        "/wait" => {
            let _ = turn.wire.read_head();
            Ok(AfterResponse::Close)
        }
        _ => {
            turn.body()?;
            turn.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?;
            Ok(AfterResponse::Keep)
        }
    });
    let weir = Weir::start(&config(&format!(
        "upstream: {{ address: '{}', limits: {{ connections: 1, pending: 0, requests: 1 }}, outliers: false }}",
        origin.address()
    )));
    let upload = "PUT /up HTTP/1.1\r\nhost: test.local\r\ncontent-length: 1000\r\n\r\nsome";
    let wait = String::from_utf8(Request::get("/wait").to_bytes()).unwrap();
    let download = String::from_utf8(Request::get("/download").to_bytes()).unwrap();
    for half_closed in [false, true] {
        for bytes in [upload, &wait, &download] {
            let before = origin.requests().len();
            let client = Client::connect(weir.address());
            client.send(bytes);
            until_true("the request", || origin.requests().len() > before);
            assert_eq!(get(weir.address(), "/").status, 503, "the only permit is in use");
            // A half-closed connection cannot be distinguished from a client that has disconnected.
            let _half = half_closed.then(|| client.wire.shutdown_write().unwrap());
            let _kept = half_closed.then_some(client);
            until_true("the permit to be returned", || get(weir.address(), "/").status == 200);
        }
    }
    assert_eq!(weir.metric("weir_upstream_requests_in_flight", &[]), 0.0);
}
