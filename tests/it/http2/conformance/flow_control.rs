//! Flow control of responses: the server sends no more than the client's windows allow, and all that they allow (RFC
//! 9113 sections 5.2 and 6.9).

use std::net::SocketAddr;

use crate::support::frames::{
    CANCEL, DATA, Frame, FrameConnection, HEADERS, INITIAL_WINDOW_SIZE, RST_STREAM, body_length, frame,
    get_frame, request_block, reset, response_status, settings, window_update,
};
use crate::support::{Origin, Weir, config};

/// Window of a stream and of a connection at the start.
const DEFAULT_WINDOW: usize = 65_535;
/// Length of the body of each response.
const BODY: usize = 200_000;

fn large_origin() -> Origin {
    Origin::responding_with(format!("HTTP/1.1 200 OK\r\ncontent-length: {BODY}\r\n\r\n{}", "b".repeat(BODY)))
}

/// A client that counts the bytes of one response.
struct Reader {
    client: FrameConnection,
    received: usize,
}

impl Reader {
    /// Connects with this initial window and requests a response on stream 1.
    fn start(address: SocketAddr, window: u32) -> Self {
        let mut client = FrameConnection::connect_with(address, &[(INITIAL_WINDOW_SIZE, window)]);
        client.until_processed();
        client.send(get_frame(1, "/"));
        let head = client.read_until(|frame| frame.is(HEADERS, 1));
        assert_eq!(response_status(&head, 1).as_deref(), Some("200"));
        Self { client, received: 0 }
    }

    /// Sends frames.
    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.client.send(bytes);
    }

    /// Reads until `total` bytes have arrived. Asserts that there are not more of them.
    fn assert_received(&mut self, total: usize) {
        while self.received < total {
            let frame = self.client.next_frame().unwrap_or_else(|| panic!("only {} bytes", self.received));
            self.received += body_length(&[frame], 1);
        }
        let more = self.client.until_processed();
        self.received += body_length(&more, 1);
        assert_eq!(self.received, total, "bytes, and those that the windows allow");
    }
}

#[test]
fn stream_window_of_zero_holds_data_back_but_not_the_header_section() {
    let origin = large_origin();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut reader = Reader::start(weir.address(), 0);
    reader.assert_received(0);
    let mut total = 0;
    for increment in [1, 2, 1000, 20_000] {
        reader.send(window_update(1, increment));
        total += increment as usize;
        reader.assert_received(total);
    }
}

#[test]
fn data_stays_within_the_window_of_the_stream() {
    let origin = large_origin();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut reader = Reader::start(weir.address(), 10_000);
    reader.send(window_update(0, 1 << 20));
    reader.assert_received(10_000);
    reader.send([window_update(1, 1), window_update(1, 1)].concat());
    reader.assert_received(10_002);
    reader.send(window_update(1, 1 << 20));
    reader.assert_received(BODY);
}

#[test]
fn data_stays_within_the_window_of_the_connection() {
    let origin = large_origin();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut reader = Reader::start(weir.address(), 1 << 20);
    reader.assert_received(DEFAULT_WINDOW);
    reader.send(window_update(0, 10));
    reader.assert_received(DEFAULT_WINDOW + 10);
    reader.send(window_update(0, 1 << 20));
    reader.assert_received(BODY);
}

#[test]
fn larger_initial_window_applies_to_open_streams() {
    let origin = large_origin();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut reader = Reader::start(weir.address(), 0);
    reader.send(settings(&[(INITIAL_WINDOW_SIZE, 3)]));
    reader.assert_received(3);
    reader.send(settings(&[(INITIAL_WINDOW_SIZE, 5)]));
    reader.assert_received(5);
}

#[test]
fn smaller_initial_window_makes_the_window_of_a_stream_negative() {
    let origin = large_origin();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut reader = Reader::start(weir.address(), 1000);
    reader.assert_received(1000);
    // The window is -900, then 0, then 1.
    reader.send([settings(&[(INITIAL_WINDOW_SIZE, 100)]), window_update(1, 900)].concat());
    reader.assert_received(1000);
    reader.send(window_update(1, 1));
    reader.assert_received(1001);
    // -100 + 1100 = 1000.
    reader.send([settings(&[(INITIAL_WINDOW_SIZE, 0)]), settings(&[(INITIAL_WINDOW_SIZE, 1100)])].concat());
    reader.assert_received(2001);
}

#[test]
fn changes_of_the_initial_window_do_not_change_the_window_of_the_connection() {
    let origin = large_origin();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut reader = Reader::start(weir.address(), 0);
    reader.send(settings(&[(INITIAL_WINDOW_SIZE, 0x7fff_ffff)]));
    reader.assert_received(DEFAULT_WINDOW);
}

#[test]
fn response_without_a_body_needs_no_window() {
    for (method, response) in [
        ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\n\r\n"),
        ("GET", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    ] {
        let origin = Origin::responding_with(response);
        let weir = Weir::start(&config(origin.address(), ""));
        let mut client = FrameConnection::connect_with(weir.address(), &[(INITIAL_WINDOW_SIZE, 0)]);
        client.until_processed();
        client.send(frame(HEADERS, 5, 1, &request_block(method, "/", &[])));
        let frames = client.until_stream_ends(1);
        assert_eq!(body_length(&frames, 1), 0, "{method} {response}");
        assert!(frames.iter().all(|frame| frame.kind != RST_STREAM), "{method} {response}");
    }
}

#[test]
fn streams_without_a_window_do_not_block_others() {
    let origin = large_origin();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = FrameConnection::connect_with(weir.address(), &[(INITIAL_WINDOW_SIZE, 0)]);
    client.until_processed();
    for stream in (1..20).step_by(2) {
        client.send(get_frame(stream, "/"));
        client.read_until(|frame| frame.is(HEADERS, stream));
    }
    client.send([window_update(0, 1 << 20), get_frame(21, "/"), window_update(21, 1 << 20)].concat());
    let frames = client.until_stream_ends(21);
    assert_eq!(body_length(&frames, 21), BODY);
    assert!(frames.iter().filter(|frame| frame.kind == DATA).all(|frame| frame.stream == 21));
}

#[test]
fn reset_of_a_blocked_stream_leaves_the_window_of_the_connection_to_others() {
    let origin = large_origin();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = FrameConnection::connect_with(weir.address(), &[(INITIAL_WINDOW_SIZE, 10_000)]);
    client.until_processed();
    let mut received = 0;
    let mut count = |frames: &[Frame]| {
        let data = frames.iter().filter(|frame| frame.kind == DATA);
        received += data.map(|frame| frame.payload.len()).sum::<usize>();
        received
    };
    for stream in (1..11).step_by(2) {
        client.send(get_frame(stream, "/"));
        let mut of_stream = 0;
        let frames = client.read_until(|frame| {
            of_stream += body_length(std::slice::from_ref(frame), stream);
            of_stream == 10_000
        });
        count(&frames);
        client.send(reset(stream, CANCEL));
    }
    // What the five streams have left of the window of the connection.
    let rest = DEFAULT_WINDOW - 50_000;
    client.send([get_frame(11, "/"), window_update(11, 1 << 20)].concat());
    let mut of_stream = 0;
    client.read_until(|frame| {
        of_stream += body_length(std::slice::from_ref(frame), 11);
        of_stream >= rest
    });
    let more = client.until_processed();
    assert_eq!(of_stream + body_length(&more, 11), rest);
}
