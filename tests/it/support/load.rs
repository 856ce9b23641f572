//! Clients over several protocols, for tests of what they must not notice.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::StatusCode;

use super::h2::H2Client;
use super::{Client, wait};
use crate::upgrades::assert_echoed;

/// Returns the address of the proxy at the moment.
pub(crate) type Address<'a> = dyn Fn() -> SocketAddr + Sync + 'a;

/// Number of kinds of clients.
pub(crate) const KINDS: usize = 5;

/// What the clients have counted.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) admitted: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) is_over: AtomicBool,
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
pub(crate) struct SetOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Sends one request after the other, on one connection for as long as the server keeps it.
fn use_http1(address: &Address<'_>, counts: &Counts) {
    while !counts.is_over() {
        let served_by = address();
        let mut client = Client::connect(served_by);
        loop {
            let response = client.get("/limited");
            counts.record(response.status);
            if response.head.get("connection") == Some("close") || counts.is_over() || address() != served_by
            {
                break;
            }
        }
    }
}

/// As [`use_http1`], over HTTP/2: requests that were not processed are sent again, as RFC 9113 section 8.7 allows.
fn use_http2(address: &Address<'_>, counts: &Counts) {
    while !counts.is_over() {
        let mut client = H2Client::connect(address());
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
fn use_websockets(address: &Address<'_>, counts: &Counts) {
    while !counts.is_over() {
        let address = address();
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
fn use_streams(address: &Address<'_>, counts: &Counts) {
    while !counts.is_over() {
        let client = H2Client::connect(address());
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

/// Uses one kind of client, by its number.
pub(crate) fn use_kind(kind: usize, address: &Address<'_>, counts: &Counts) {
    match kind {
        0 | 1 => use_http1(address, counts),
        2 => use_http2(address, counts),
        3 => use_websockets(address, counts),
        _ => use_streams(address, counts),
    }
}
