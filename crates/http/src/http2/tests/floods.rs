//! Frames that cost work without being useful.

use super::raw_peer::{CAPACITY, GET, POST, RawPeer};
use super::tasks::Tasks;
use super::*;
use crate::http2::frame::{FrameKind, put_frame};

/// Replies at which nothing more is read, and what one read causes after that; in bytes.
const MAX_REPLIES: usize = 128 * 1024;
/// Bytes that are read and not yet handled.
const MAX_INPUT: usize = 64 * 1024;

/// Sends many frames without reading a reply, and then reads.
fn assert_that_unread_replies_stop_reading(count: usize, frame: impl Fn(u32, &mut Vec<u8>)) {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &[]);
    let written = peer.send_many(count, frame);
    assert!(written < MAX_REPLIES + MAX_INPUT + CAPACITY, "{written} bytes were read");
    let output = server.connection.borrow().state().output.len();
    assert!(output < MAX_REPLIES, "{output} bytes of output");
    assert!(output > MAX_REPLIES / 4, "{output} bytes of output");
    let replies = peer.frames().len();
    assert!(replies > count, "{replies} replies");
    peer.assert_alive();
}

#[test]
fn reading_stops_while_acknowledgements_of_pings_are_unread() {
    let ping = |_, out: &mut Vec<u8>| put_frame(out, FrameKind::Ping, 0, 0, &[0; 8]);
    assert_that_unread_replies_stop_reading(20_000, ping);
}

#[test]
fn reading_stops_while_acknowledgements_of_settings_are_unread() {
    let settings = |_, out: &mut Vec<u8>| put_frame(out, FrameKind::Settings, 0, 0, &[]);
    assert_that_unread_replies_stop_reading(40_000, settings);
}

#[test]
fn reading_stops_while_window_updates_are_unread() {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &[]);
    peer.send_head(1, POST, false);
    let (request, _responder) = server.request();
    let mut body = request.into_body();
    tasks.spawn(async move { drop(read(&mut body).await) });
    let block = [0; 16 * 1024];
    // The client ignores the windows that it is not told about, but they have been granted.
    let was_stopped = (0..80).any(|_| {
        let written = peer.send_many(400, |_, out| put_frame(out, FrameKind::Data, 0, 1, &block));
        written < 400 * block.len()
    });
    let output = server.connection.borrow().state().output.len();
    assert!(was_stopped && output < MAX_REPLIES, "{output} bytes of output");
}

#[test]
fn reading_stops_while_responses_are_unread() {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &[]);
    let (mut next, mut most) = (1, 0);
    for _ in 0..100 {
        for _ in 0..50 {
            peer.send_head(next, GET, true);
            next += 2;
        }
        while !server.requests.borrow().is_empty() {
            let (_, mut responder) = server.request();
            let value = format!("{next}{}", "v".repeat(500));
            let response = Response::builder().header("x-value", value).body(()).unwrap();
            drop(responder.send_response(&response, true));
        }
        most = most.max(server.connection.borrow().state().output.len());
    }
    assert!((64 * 1024..MAX_REPLIES).contains(&most), "{most} bytes of output");
}

#[test]
fn data_that_the_client_does_not_read_is_bounded_despite_large_windows() {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &[0, 4, 0x7f, 0xff, 0xff, 0xff]);
    peer.send(FrameKind::WindowUpdate, 0, 0, &(1_u32 << 30).to_be_bytes());
    for id in [1, 3, 5, 7] {
        peer.send_head(id, GET, true);
        server.respond(&tasks, body(100_000));
    }
    let output = server.connection.borrow().state().output.len();
    // 32 KiB of data, and the frame headers.
    assert!((30_000..34_000).contains(&output), "{output} bytes of output");
}

#[test]
fn streams_that_are_reset_leave_the_queue_for_capacity() {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &[]);
    let mut id = 1;
    for _ in 0..50 {
        let first = id;
        for _ in 0..20 {
            peer.send_head(id, GET, true);
            server.respond(&tasks, body(100_000));
            id += 2;
        }
        {
            let connection = server.connection.borrow();
            let state = connection.state();
            assert!(state.output.len() < MAX_REPLIES && state.waiting.len() <= 20);
        }
        for id in (first..id).step_by(2) {
            peer.send(FrameKind::ResetStream, 0, id, &[0, 0, 0, 8]);
        }
        let connection = server.connection.borrow();
        let state = connection.state();
        assert_eq!((state.streams.len(), state.waiting.len()), (0, 0));
    }
    assert_eq!(tasks.len(), 1, "tasks of streams have ended");
}
