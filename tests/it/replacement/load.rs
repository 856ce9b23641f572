//! Many replacements in a row, with clients that must not notice.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::StatusCode;

use crate::support::h2::H2Client;
use crate::support::{Client, Weir, run_concurrently, wait};
use crate::upgrades::{assert_echoed, echo_server};

/// Replacements of the test.
const REPLACEMENTS: usize = 20;
/// Units of the limit, fewer than the clients ask for.
const LIMIT: u64 = 1000;

/// What the clients have counted.
#[derive(Default)]
struct Counts {
    admitted: AtomicU64,
    rejected: AtomicU64,
    is_over: AtomicBool,
}

impl Counts {
    fn record(&self, status: u16) {
        match status {
            200 => self.admitted.fetch_add(1, Ordering::SeqCst),
            429 => self.rejected.fetch_add(1, Ordering::SeqCst),
            other => panic!("{other}"),
        };
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }
}

/// Sets the flag when dropped, also by a panic, so that the clients end.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Sends one request after the other, on one connection for as long as the server keeps it.
fn use_http1(address: SocketAddr, counts: &Counts) {
    while !counts.is_over() {
        let mut client = Client::connect(address);
        loop {
            let response = client.get("/limited");
            counts.record(response.status);
            if response.head.get("connection") == Some("close") || counts.is_over() {
                break;
            }
        }
    }
}

/// As [`use_http1`], over HTTP/2: requests that were not processed are sent again, as RFC 9113 section 8.7 allows.
fn use_http2(address: SocketAddr, counts: &Counts) {
    while !counts.is_over() {
        let mut client = H2Client::connect(address);
        while !counts.is_over() {
            match client.try_fetch(client.request("GET", "/limited")) {
                Ok(response) => counts.record(response.status.as_u16()),
                Err(error) if is_unprocessed(&error) => break,
                Err(error) => panic!("{error:?}"),
            }
        }
    }
}

fn is_unprocessed(error: &h2::Error) -> bool {
    let reason = error.reason();
    (error.is_go_away() && reason == Some(h2::Reason::NO_ERROR))
        || reason == Some(h2::Reason::REFUSED_STREAM)
        || error.to_string().contains("going away")
}

/// Exchanges messages over connections that each last for a while.
fn use_websockets(address: SocketAddr, counts: &Counts) {
    while !counts.is_over() {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(wait::DEADLINE)).unwrap();
        let (mut socket, response) = tungstenite::client(format!("ws://{address}/chat"), stream).unwrap();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        for number in 0..50 {
            assert_echoed(&mut socket, &format!("message {number}"));
        }
        socket.close(None).unwrap();
        while socket.read().is_ok() {}
    }
}

/// Sends the parts of a call one by one.
fn use_streams(address: SocketAddr, counts: &Counts) {
    while !counts.is_over() {
        let client = H2Client::connect(address);
        let request = client.request("POST", "/stream");
        let Ok((response, mut upload)) = client.try_send_request(request, false) else { continue };
        let sent = (0..20).all(|_| {
            wait::pause(std::time::Duration::from_millis(5));
            upload.send_data("part".into(), false).is_ok()
        });
        let ended = upload.send_data("end".into(), true).is_ok();
        match client.read_response(response) {
            Ok(response) => {
                assert!(sent && ended && response.status == 200);
                assert!(response.body.ends_with(&("part".repeat(20) + "end").into_bytes()[..]));
            }
            Err(error) => assert!(is_unprocessed(&error), "{error:?}"),
        }
    }
}

#[test]
fn clients_do_not_notice_replacements_and_no_unit_is_given_twice() {
    let websockets = echo_server();
    let weir = Weir::start(&format!(
        "listeners: [{{ address: 127.0.0.1:0, name: main }}]\nadmin: {{ address: 127.0.0.1:0 }}\nworkers: 2\n\
         upstreams:\n  - {{ name: chat, address: \"{websockets}\", match: {{ path: /chat }} }}\n  \
         - {{ name: main, address: echo }}\n\
         rules: [{{ name: all, match: {{ path: /limited }}, limit: {LIMIT}/h, algorithm: fixed_window }}]\n"
    ));
    let (address, counts) = (weir.address(), Counts::default());
    let replace = || {
        let _end = SetOnDrop(&counts.is_over);
        for _ in 0..REPLACEMENTS {
            weir.replace();
        }
        wait::until_true("the end of the limit", || counts.rejected.load(Ordering::SeqCst) > 0);
    };
    run_concurrently(6, |index| match index {
        0 => replace(),
        1 | 2 => use_http1(address, &counts),
        3 => use_http2(address, &counts),
        4 => use_websockets(address, &counts),
        _ => use_streams(address, &counts),
    });
    let (admitted, rejected) =
        (counts.admitted.load(Ordering::SeqCst), counts.rejected.load(Ordering::SeqCst));
    assert_eq!(admitted, LIMIT, "rejected {rejected}");
}
