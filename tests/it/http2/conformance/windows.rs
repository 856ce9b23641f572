//! Flow control of requests: every byte that a client sends returns to the window of the connection, also if the server
//! does not forward it (RFC 9113 sections 5.1, 6.1 and 6.9).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::support::frames::{
    CANCEL, DATA, END_HEADERS, END_STREAM, Frame, FrameConnection, GOAWAY, HEADERS, INITIAL_WINDOW_SIZE,
    PADDED, WINDOW_UPDATE, frame, post_frame, request_block, reset, response_status,
};
use crate::support::{Origin, Weir, config};

/// Length of a body that fits the window of a stream.
const BODY: usize = 16_000;
/// Number of such bodies, which exceed the window of a connection whose client has not acknowledged the settings.
const BODIES: u32 = 120;

/// A client that never exceeds the server's windows.
struct Uploader {
    client: FrameConnection,
    connection: usize,
    streams: BTreeMap<u32, usize>,
    frames: Vec<Frame>,
}

impl Uploader {
    fn connect(address: SocketAddr) -> Self {
        let client = FrameConnection::connect(address);
        Self { client, connection: 65_535, streams: BTreeMap::new(), frames: Vec::new() }
    }

    fn note(&mut self, frame: Frame) {
        assert_ne!(frame.kind, GOAWAY, "{frame:?}");
        if frame.kind == WINDOW_UPDATE {
            let increment = frame.word(0) as usize;
            match frame.stream {
                0 => self.connection += increment,
                stream => *self.window(stream) += increment,
            }
        }
        self.frames.push(frame);
    }

    fn window(&mut self, stream: u32) -> &mut usize {
        let initial = self.client.peer_settings.get(&INITIAL_WINDOW_SIZE).copied().unwrap_or(65_535);
        self.streams.entry(stream).or_insert(initial as usize)
    }

    /// Sends a DATA frame as soon as the windows allow it.
    fn send_data(&mut self, stream: u32, flags: u8, payload: &[u8]) {
        while self.connection < payload.len() || *self.window(stream) < payload.len() {
            let frame = self.client.next_frame().expect("a WINDOW_UPDATE before the deadline");
            self.note(frame);
        }
        self.connection -= payload.len();
        *self.window(stream) -= payload.len();
        self.client.send(frame(DATA, flags, stream, payload));
    }

    /// Sends `length` bytes of a body.
    fn send_body(&mut self, stream: u32, length: usize, is_whole: bool) {
        let body = vec![b'b'; length];
        let pieces = body.chunks(16_384);
        let last = pieces.len() - 1;
        for (index, piece) in pieces.enumerate() {
            let flags = if is_whole && index == last { END_STREAM } else { 0 };
            self.send_data(stream, flags, piece);
        }
    }

    /// Waits for the end of the response, or for a reset. Returns the status code.
    fn response(&mut self, stream: u32) -> Option<String> {
        while !self.frames.iter().any(|frame| frame.ends(stream)) {
            let frame = self.client.next_frame().expect("a response before the deadline");
            self.note(frame);
        }
        response_status(&self.frames, stream)
    }

    /// Waits until the server has processed everything.
    fn until_processed(&mut self) {
        for frame in self.client.until_processed() {
            self.note(frame);
        }
    }

    /// Asserts that a request with a body as large as the window of a stream is served.
    fn assert_served(&mut self, stream: u32) {
        self.client.send(post_frame(stream, "/"));
        self.send_body(stream, BODY, true);
        assert_eq!(self.response(stream).as_deref(), Some("200"));
    }
}

#[test]
fn body_larger_than_the_windows_is_received_whole() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut uploader = Uploader::connect(weir.address());
    uploader.client.send(post_frame(1, "/"));
    uploader.send_body(1, 3_000_000, true);
    assert_eq!(uploader.response(1).as_deref(), Some("200"));
    assert_eq!(origin.only_request().body.length, 3_000_000);
}

#[test]
fn padding_returns_to_the_windows() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut uploader = Uploader::connect(weir.address());
    uploader.client.send(post_frame(1, "/"));
    let payload = [&[255][..], &[b'b'; 64], &[0; 255]].concat();
    for _ in 0..5000 {
        uploader.send_data(1, PADDED, &payload);
    }
    uploader.send_data(1, END_STREAM, &[]);
    assert_eq!(uploader.response(1).as_deref(), Some("200"));
    assert_eq!(origin.only_request().body.length, 5000 * 64);
}

#[test]
fn bodies_of_rejected_requests_return_to_the_window_of_the_connection() {
    let origin = Origin::hello();
    let rules = "rules: [{ name: no, match: { path: /denied }, action: deny }]";
    let weir = Weir::start(&config(origin.address(), rules));
    let mut uploader = Uploader::connect(weir.address());
    for stream in (0..BODIES).map(|number| 2 * number + 1) {
        uploader.client.send(post_frame(stream, "/denied"));
        uploader.send_body(stream, BODY, true);
        uploader.response(stream);
    }
    assert_eq!(origin.requests().len(), 0);
    uploader.assert_served(2 * BODIES + 1);
}

#[test]
fn data_of_malformed_requests_returns_to_the_window_of_the_connection() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut uploader = Uploader::connect(weir.address());
    let malformed = request_block("POST", "/bad", &[("connection", "close")]);
    for stream in (0..BODIES).map(|number| 2 * number + 1) {
        uploader.client.send(frame(HEADERS, END_HEADERS, stream, &malformed));
        uploader.send_body(stream, BODY, false);
        uploader.response(stream);
    }
    uploader.until_processed();
    uploader.assert_served(2 * BODIES + 1);
}

#[test]
fn data_of_requests_that_the_client_resets_returns_to_the_window_of_the_connection() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut uploader = Uploader::connect(weir.address());
    for stream in (0..BODIES).map(|number| 2 * number + 1) {
        uploader.client.send(post_frame(stream, "/reset"));
        uploader.send_body(stream, BODY, false);
        uploader.client.send(reset(stream, CANCEL));
        uploader.until_processed();
    }
    uploader.assert_served(2 * BODIES + 1);
}

#[test]
fn increments_are_valid_and_never_exceed_the_largest_window() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut uploader = Uploader::connect(weir.address());
    for stream in [1, 3, 5] {
        uploader.assert_served(stream);
    }
    uploader.until_processed();
    let updates = uploader.frames.iter().filter(|frame| frame.kind == WINDOW_UPDATE);
    assert!(updates.clone().all(|frame| frame.word(0) > 0), "an increment of 0");
    assert!(uploader.connection <= 0x7fff_ffff);
    assert!(uploader.streams.values().all(|window| *window <= 0x7fff_ffff));
}
