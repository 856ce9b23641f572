//! Flow control of what is sent.

use super::raw_peer::{GET, POST, RawPeer, TestServer, setting};
use super::tasks::Tasks;
use super::*;
use crate::http2::frame::{FrameKind, flags};

const INITIAL_WINDOW_SIZE: u16 = 4;

#[test]
fn body_is_correct_if_the_window_grows_by_one_byte_at_a_time() {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &setting(INITIAL_WINDOW_SIZE, 0));
    peer.send_head(1, GET, true);
    server.respond(&tasks, body(200));
    assert_eq!(peer.data(1), (Vec::new(), false));
    let mut all = Vec::new();
    for sent in 1..=200 {
        peer.send_window_update(1, 1);
        let (data, has_ended) = peer.data(1);
        assert_eq!((data.len(), has_ended), (1, sent == 200));
        all.extend(data);
    }
    assert!(all == body(200));
    peer.assert_alive();
}

#[test]
fn window_that_settings_make_negative_must_grow_above_zero() {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &setting(INITIAL_WINDOW_SIZE, 100));
    peer.send_head(1, GET, true);
    server.respond(&tasks, body(300));
    let mut all = peer.data(1).0;
    assert_eq!(all.len(), 100);
    peer.send_settings(INITIAL_WINDOW_SIZE, 10);
    peer.send_window_update(1, 89);
    assert_eq!(peer.data(1).0.len(), 0, "the window is -1");
    peer.send_window_update(1, 1);
    assert_eq!(peer.data(1).0.len(), 0, "the window is 0");
    peer.send_window_update(1, 5);
    all.extend(peer.data(1).0);
    assert_eq!(all.len(), 105);
    peer.send_settings(INITIAL_WINDOW_SIZE, 1000);
    let (rest, has_ended) = peer.data(1);
    all.extend(rest);
    assert!(has_ended && all == body(300));
}

#[test]
fn window_that_settings_or_updates_make_too_large_is_an_error() {
    for stream in [0, 1] {
        let tasks = Tasks::default();
        let (mut peer, server) = RawPeer::connect(&tasks, &[]);
        peer.send_head(1, GET, true);
        let _request = server.request();
        peer.send_window_update(stream, 0x7fff_ffff);
        let frames = peer.frames();
        let expected = if stream == 0 { FrameKind::GoAway } else { FrameKind::ResetStream };
        let (_, payload) = frames.iter().find(|(header, _)| header.kind == expected).unwrap();
        assert_eq!(payload.last(), Some(&3));
    }
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &[]);
    peer.send_head(1, GET, true);
    let _request = server.request();
    peer.send_window_update(1, 1000);
    peer.send_settings(INITIAL_WINDOW_SIZE, 0x7fff_ffff);
    assert_eq!(peer.frames().last().unwrap().0.kind, FrameKind::GoAway);
}

#[test]
fn streams_share_the_window_of_the_connection() {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &setting(INITIAL_WINDOW_SIZE, 1 << 20));
    for id in [1, 3, 5, 7, 9] {
        peer.send_head(id, GET, true);
        server.respond(&tasks, body(100_000));
    }
    let mut sent = [0_usize; 5];
    let count = |peer: &mut RawPeer, sent: &mut [usize; 5]| {
        for (header, payload) in peer.frames() {
            if header.kind == FrameKind::Data {
                sent[header.stream as usize / 2] += payload.len();
            }
        }
    };
    count(&mut peer, &mut sent);
    assert_eq!(sent.iter().sum::<usize>(), 65_535);
    let before = sent;
    // Each grant is used by the stream whose turn it is.
    for _ in 0..20 {
        peer.send_window_update(0, 100);
        count(&mut peer, &mut sent);
    }
    let progress: Vec<_> = sent.iter().zip(before).map(|(sent, before)| sent - before).collect();
    assert_eq!(progress.iter().sum::<usize>(), 2000);
    assert!(progress.iter().all(|progress| *progress >= 300), "{progress:?}");
    peer.send_window_update(0, 1 << 20);
    count(&mut peer, &mut sent);
    assert_eq!(sent, [100_000; 5]);
}

#[test]
fn stream_without_a_window_leaves_capacity_to_the_next_one() {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &setting(INITIAL_WINDOW_SIZE, 1 << 20));
    for id in [1, 3, 5] {
        peer.send_head(id, GET, true);
        server.respond(&tasks, body(100_000));
    }
    peer.frames();
    // All wait for the connection. The first two lose their own windows, the last one has its window back.
    peer.send_settings(INITIAL_WINDOW_SIZE, 0);
    assert!([1, 3, 5].iter().all(|id| send_window(&server, *id) <= 0));
    peer.send_window_update(5, 1 << 20);
    peer.frames();
    peer.send_window_update(0, 1000);
    let data: usize = peer.frames().iter().map(|(_, payload)| payload.len()).sum();
    assert_eq!(data, 1000);
}

/// Returns the send window of a stream.
fn send_window(server: &TestServer, id: u32) -> i64 {
    let connection = server.connection.borrow();
    let state = connection.state();
    let stream = state.streams[&id].state.borrow();
    stream.send_window
}

#[test]
fn padding_and_unread_bodies_are_given_back() {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &[]);
    let block = [0; 16 * 1024];
    let mut granted = i64::from(SETTINGS.connection_window);
    for id in (1..100).step_by(2) {
        peer.send_head(id, POST, false);
        let (request, responder) = server.request();
        match id % 3 {
            0 => drop((request, responder)),
            1 => drop(request),
            _ => {
                let mut body = request.into_body();
                tasks.spawn(async move { drop(read(&mut body).await) });
            }
        }
        let is_padded = id % 2 == 1;
        let padded = [&[200], &block[1..]].concat();
        for _ in 0..3 {
            let (flags, block) = if is_padded { (flags::PADDED, &*padded) } else { (0, &block[..]) };
            peer.send(FrameKind::Data, flags, id, block);
            granted -= 16 * 1024;
        }
        peer.send(FrameKind::Data, flags::END_STREAM, id, &[]);
        for (header, payload) in peer.frames() {
            if header.kind == FrameKind::WindowUpdate && header.stream == 0 {
                granted += i64::from(u32::from_be_bytes(payload.try_into().unwrap()));
            }
        }
        // The first grant is part of the preface.
        let connection = server.connection.borrow();
        assert!(granted > 0 && connection.state().receive_window > 0, "{granted}");
    }
    let connection = server.connection.borrow();
    let state = connection.state();
    assert_eq!(state.receive_window + i64::from(state.released), i64::from(SETTINGS.connection_window));
}
