//! Flow control of what is sent.

use super::raw_peer::{GET, OK, POST, RawPeer, TestServer, setting};
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
    let mut granted = i64::from(SETTINGS.shared_window);
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
        assert!(granted > 0 && connection.state().receive.left > 0, "{granted}");
    }
    let connection = server.connection.borrow();
    let state = connection.state();
    let receive = &state.receive;
    assert_eq!(receive.left + i64::from(receive.released), i64::from(SETTINGS.shared_window));
    assert_eq!(receive.budget, SETTINGS.shared_window);
}

/// What our side permits its peer to send: the connection's window and those of streams, as the peer counts them.
#[derive(Default)]
struct Permits {
    connection: i64,
    streams: std::collections::HashMap<u32, i64>,
    first: i64,
}

impl Permits {
    /// Handles what our side has sent, and acknowledges its settings.
    fn update(&mut self, peer: &mut RawPeer) {
        for (header, payload) in peer.frames() {
            match header.kind {
                FrameKind::Settings if !header.has(flags::ACK) => {
                    self.connection += 65_535;
                    for setting in payload.as_chunks::<6>().0 {
                        if setting[..2] == [0, 4] {
                            self.first = u32::from_be_bytes(*setting[2..].first_chunk().unwrap()).into();
                        }
                    }
                    peer.send(FrameKind::Settings, flags::ACK, 0, &[]);
                }
                FrameKind::WindowUpdate => {
                    let increment = i64::from(u32::from_be_bytes(payload.try_into().unwrap()));
                    match header.stream {
                        0 => self.connection += increment,
                        id => *self.streams.entry(id).or_insert(self.first) += increment,
                    }
                }
                _ => {}
            }
        }
    }

    fn open(&mut self, id: u32) {
        self.streams.insert(id, self.first);
    }

    /// Sends as much data on a stream as its windows permit, at most `max` bytes. Returns how much that was.
    fn send(&mut self, peer: &mut RawPeer, id: u32, max: usize) -> usize {
        let window = self.streams.get_mut(&id).unwrap();
        let permitted = usize::try_from((*window).min(self.connection)).unwrap_or(0).min(max).min(16 * 1024);
        let sent = i64::try_from(permitted).unwrap();
        (*window, self.connection) = (*window - sent, self.connection - sent);
        if permitted > 0 {
            peer.send(FrameKind::Data, 0, id, &vec![0; permitted]);
        }
        permitted
    }
}

/// Fills the windows of streams whose data nothing reads. Returns the number of their bytes.
fn stall(peer: &mut RawPeer, permits: &mut Permits, ids: impl Iterator<Item = u32>) -> usize {
    let mut bytes = 0;
    for id in ids {
        loop {
            let sent = permits.send(peer, id, usize::MAX);
            permits.update(peer);
            bytes += sent;
            if sent == 0 {
                break;
            }
        }
    }
    bytes
}

#[test]
fn uploads_that_nothing_reads_hold_no_other_one() {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &[]);
    let mut permits = Permits::default();
    permits.update(&mut peer);
    let unread = 2 * (SETTINGS.max_streams - 1);
    for id in (1..=unread + 1).step_by(2) {
        peer.send_head(id, POST, false);
        permits.open(id);
    }
    let mut requests: Vec<_> = (0..SETTINGS.max_streams).map(|_| server.request()).collect();
    let (request, _responder) = requests.pop().unwrap();
    let held = stall(&mut peer, &mut permits, (1..unread).step_by(2));
    let max = SETTINGS.max_streams * SETTINGS.stream_window + SETTINGS.shared_window;
    assert!(held > 1 << 20 && held <= max as usize, "{held} bytes are held");
    let mut body = request.into_body();
    tasks.spawn(async move { drop(read(&mut body).await) });
    let mut sent = 0;
    for _ in 0..1000 {
        sent += permits.send(&mut peer, unread + 1, 1 << 20);
        permits.update(&mut peer);
    }
    assert!(sent > 4 << 20, "{sent} bytes of the upload that is read");
    peer.assert_alive();
}

#[test]
fn responses_that_nothing_reads_hold_no_other_one() {
    let tasks = Tasks::default();
    let (mut peer, mut client) = RawPeer::accept(&tasks, &[]);
    let mut permits = Permits::default();
    permits.update(&mut peer);
    let mut responses = Vec::new();
    for id in (1..400).step_by(2) {
        let request = Request::get("http://a.test/").body(()).unwrap();
        let (response, _stream) = client.sender.send_request(&request, true).unwrap();
        permits.update(&mut peer);
        peer.send_head(id, OK, false);
        permits.open(id);
        responses.push(tasks.block_on(response).unwrap());
    }
    let mut body = responses.pop().unwrap().into_body();
    let held = stall(&mut peer, &mut permits, (1..399).step_by(2));
    assert!(held > 3 << 20, "{held} bytes are held");
    tasks.spawn(async move { drop(read(&mut body).await) });
    let mut sent = 0;
    for _ in 0..1000 {
        sent += permits.send(&mut peer, 399, 1 << 20);
        permits.update(&mut peer);
    }
    assert!(sent > 4 << 20, "{sent} bytes of the response that is read");
}

#[test]
fn windows_grow_while_they_are_read_within_the_budget_of_all() {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &[]);
    let mut permits = Permits::default();
    permits.update(&mut peer);
    let mut bodies = Vec::new();
    for id in (1..100).step_by(2) {
        peer.send_head(id, POST, false);
        permits.open(id);
        bodies.push(server.request());
    }
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let mut total = 0;
    for (index, (request, _)) in bodies.iter_mut().enumerate() {
        let id = u32::try_from(2 * index + 1).unwrap();
        // Read once, and then not any more.
        total += permits.send(&mut peer, id, 16 * 1024);
        while let std::task::Poll::Ready(Some(Ok(data))) = request.body_mut().poll_data(&mut cx) {
            total -= data.len();
            request.body_mut().release(data.len());
        }
        permits.update(&mut peer);
        let window = permits.streams[&id];
        assert!((i64::from(SETTINGS.stream_window)..=65_535).contains(&window), "{window}");
        assert!(index > 0 || window > i64::from(SETTINGS.stream_window), "the first one has grown: {window}");
        total += stall(&mut peer, &mut permits, [id].into_iter());
    }
    let max = 50 * SETTINGS.stream_window + SETTINGS.shared_window;
    assert!(total <= max as usize, "{total} bytes of at most {max}");
    drop(bodies);
    tasks.run_until_idle();
    let connection = server.connection.borrow();
    assert_eq!(connection.state().receive.budget, SETTINGS.shared_window, "the budget was given back");
}

#[test]
fn client_that_has_not_acknowledged_the_settings_is_limited_by_the_connection() {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &[]);
    peer.frames();
    let mut requests = Vec::new();
    // The default windows of 65 535 bytes are still valid.
    for id in [1, 3, 5, 7] {
        peer.send_head(id, POST, false);
        requests.push(server.request());
        for length in [16_384, 16_384, 16_384, 16_383] {
            peer.send(FrameKind::Data, 0, id, &vec![0; length]);
        }
    }
    let updates = |frames: Vec<(crate::http2::frame::FrameHeader, Vec<u8>)>| {
        frames.iter().filter(|(header, _)| header.kind == FrameKind::WindowUpdate).count()
    };
    assert_eq!(updates(peer.frames()), 0, "nothing was read, and nothing is permitted again");
    peer.assert_alive();
    // The end of a stream is permitted whatever its window; the windows are smaller from now on.
    peer.send(FrameKind::Settings, flags::ACK, 0, &[]);
    assert_eq!(updates(peer.frames()), 1, "the window of the connection is not needed any more");
    peer.send(FrameKind::Data, flags::END_STREAM, 1, &[]);
    peer.assert_alive();
    peer.send(FrameKind::Data, 0, 3, &[0]);
    let frames = peer.frames();
    let (_, payload) = frames.iter().find(|(header, _)| header.kind == FrameKind::ResetStream).unwrap();
    assert_eq!(**payload, [0, 0, 0, 3], "FLOW_CONTROL_ERROR");
    // More than the connection's window, without an acknowledgement.
    let (mut peer, server) = RawPeer::connect(&tasks, &[]);
    for id in (1..20).step_by(2) {
        peer.send_head(id, POST, false);
        requests.extend(server.requests.borrow_mut().drain(..));
        peer.send(FrameKind::Data, 0, id, &[0; 16_384]);
        peer.send(FrameKind::Data, 0, id, &[0; 16_384]);
    }
    let (_, payload) = peer.frames().pop().unwrap();
    assert_eq!(payload.last(), Some(&3), "FLOW_CONTROL_ERROR");
}
