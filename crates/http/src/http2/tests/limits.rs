//! Limits on header sections, streams and requests that wait.

use std::rc::Rc;
use std::task::{Context, Poll};

use super::raw_peer::{EARLY_HINTS, GET, OK, POST, RawPeer, setting};
use super::tasks::Tasks;
use super::*;
use crate::http2::Reason;
use crate::http2::frame::{FrameKind, flags};

const MAX_CONCURRENT_STREAMS: u16 = 3;

fn request() -> Request<()> {
    Request::get("http://a.test/").body(()).unwrap()
}

#[test]
fn header_section_above_the_maximum_is_rejected_and_the_connection_continues() {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &[]);
    // A field of 4000 bytes enters the table; references to it exceed the maximum.
    let large = [GET, b"\x40\x01z\x7f\xa1\x1e", &[b'z'; 4000][..], b"\xbe\xbe\xbe\xbe"].concat();
    peer.send_head(1, &large, false);
    let frames = peer.frames();
    let of_stream: Vec<_> = frames.iter().filter(|(header, _)| header.stream == 1).collect();
    let (head, block) = of_stream[0];
    assert!(head.kind == FrameKind::Headers && head.has(flags::END_STREAM));
    assert!(block.windows(3).any(|bytes| bytes == b"431"), "{block:?}");
    assert_eq!((of_stream[1].0.kind, &*of_stream[1].1), (FrameKind::ResetStream, &[0, 0, 0, 0][..]));
    // What follows on the stream is ignored, and the table was updated.
    peer.send(FrameKind::Data, flags::END_STREAM, 1, b"late");
    peer.send_head(3, &[GET, b"\xbf"].concat(), true);
    let (request, _responder) = server.request();
    assert_eq!(request.headers()["z"].len(), 4000);
    peer.assert_alive();
}

#[test]
fn header_section_of_too_many_frames_closes_the_connection() {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &[]);
    peer.send(FrameKind::Headers, 0, 1, GET);
    for _ in 0..100 {
        peer.send(FrameKind::Continuation, 0, 1, &[]);
    }
    let calm = Http2Error::Violation(Reason::ENHANCE_YOUR_CALM);
    assert_eq!(
        (peer.frames().last().unwrap().0.kind, server.result.take()),
        (FrameKind::GoAway, Some(Err(calm)))
    );
}

#[test]
fn late_frames_of_streams_that_were_reset_are_ignored() {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &[]);
    for id in (1..101).step_by(2) {
        peer.send_head(id, POST, false);
        drop(server.request());
    }
    for id in (1..101).step_by(2) {
        peer.send(FrameKind::Data, 0, id, b"late");
        peer.send_window_update(id, 100);
        peer.send_head(id, b"\x00\x01a\x01b", true);
    }
    let resets = peer.frames().iter().filter(|(header, _)| header.kind == FrameKind::ResetStream).count();
    assert_eq!(resets, 50);
    peer.assert_alive();
}

#[test]
fn streams_above_the_maximum_are_refused() {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &[]);
    for id in (1..401).step_by(2) {
        peer.send_head(id, GET, true);
    }
    assert_eq!(server.requests.borrow().len(), SETTINGS.max_streams as usize);
    let frames = peer.frames();
    let refused = frames.iter().filter(|(header, payload)| {
        header.kind == FrameKind::ResetStream && header.stream > 200 && *payload == [0, 0, 0, 7]
    });
    assert_eq!(refused.count(), 100);
    server.requests.borrow_mut().clear();
    tasks.run_until_idle();
    peer.send_head(401, GET, true);
    server.respond(&tasks, b"ok".to_vec());
    assert_eq!(peer.data(401), (b"ok".to_vec(), true));
}

#[test]
fn interim_responses_are_limited_until_they_are_taken() {
    let tasks = Tasks::default();
    let (mut peer, mut client) = RawPeer::accept(&tasks, &[]);
    let (mut taken, _stream) = client.sender.send_request(&request(), true).unwrap();
    let (ignored, _stream) = client.sender.send_request(&request(), true).unwrap();
    for _ in 0..100 {
        peer.send_head(1, EARLY_HINTS, false);
        assert_eq!(taken.take_interim().unwrap().status(), 103);
    }
    peer.send_head(1, OK, true);
    assert_eq!(tasks.block_on(taken).unwrap().status(), 200);
    for _ in 0..100 {
        peer.send_head(3, EARLY_HINTS, false);
    }
    let error = tasks.block_on(ignored).unwrap_err();
    assert_eq!(error, Http2Error::Malformed(Reason::PROTOCOL_ERROR));
    peer.assert_alive();
}

#[test]
fn requests_wait_for_streams_and_dropped_ones_are_skipped() {
    let tasks = Tasks::default();
    let (mut peer, mut client) = RawPeer::accept(&tasks, &setting(MAX_CONCURRENT_STREAMS, 1));
    let first = client.sender.send_request(&request(), true).unwrap();
    let mut waiting: Vec<_> = (0..10).map(|_| client.sender.clone()).collect();
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert!(waiting.iter_mut().all(|sender| sender.poll_ready(&mut cx).is_pending()));
    // Only the last one is left.
    let mut last = waiting.pop().unwrap();
    drop(waiting);
    let opened = Rc::new(std::cell::Cell::new(false));
    let is_open = Rc::clone(&opened);
    tasks.spawn(async move {
        poll_fn(|cx| last.poll_ready(cx)).await.unwrap();
        is_open.set(last.send_request(&request(), true).unwrap().0.await.is_ok());
    });
    tasks.run_until_idle();
    assert_eq!(client.connection.borrow().state().queue.len(), 1, "dropped requests are not kept");
    peer.send_head(1, OK, true);
    drop(first);
    peer.send_head(3, OK, true);
    assert!(opened.get());
}

#[test]
fn woken_request_that_is_dropped_leaves_the_stream_to_the_next_one() {
    let tasks = Tasks::default();
    let (mut peer, mut client) = RawPeer::accept(&tasks, &setting(MAX_CONCURRENT_STREAMS, 1));
    let _first = client.sender.send_request(&request(), true).unwrap();
    let mut dropped = client.sender.clone();
    assert!(dropped.poll_ready(&mut Context::from_waker(std::task::Waker::noop())).is_pending());
    let mut next = client.sender.clone();
    let ready = Rc::new(std::cell::Cell::new(false));
    let is_ready = Rc::clone(&ready);
    tasks.spawn(async move { is_ready.set(poll_fn(|cx| next.poll_ready(cx)).await.is_ok()) });
    peer.send_head(1, OK, true);
    assert!(!ready.get(), "the first in the queue was woken");
    drop(dropped);
    tasks.run_until_idle();
    assert!(ready.get());
}

#[test]
fn settings_that_raise_the_maximum_wake_all_requests() {
    let tasks = Tasks::default();
    let (mut peer, client) = RawPeer::accept(&tasks, &setting(MAX_CONCURRENT_STREAMS, 0));
    for _ in 0..5 {
        let mut sender = client.sender.clone();
        tasks.spawn(async move {
            poll_fn(|cx| sender.poll_ready(cx)).await.unwrap();
            let (response, _stream) = sender.send_request(&request(), true).unwrap();
            drop(response.await);
        });
    }
    peer.frames();
    peer.send_settings(MAX_CONCURRENT_STREAMS, 3);
    let opened = |peer: &mut RawPeer| {
        peer.frames().iter().filter(|(header, _)| header.kind == FrameKind::Headers).count()
    };
    assert_eq!(opened(&mut peer), 3);
    peer.send_settings(MAX_CONCURRENT_STREAMS, 0xffff_ffff);
    assert_eq!(opened(&mut peer), 2);
}

#[test]
fn end_of_the_connection_wakes_everything() {
    let tasks = Tasks::default();
    let (mut peer, mut client) = RawPeer::accept(&tasks, &setting(MAX_CONCURRENT_STREAMS, 2));
    let (response, mut upload) = client.sender.send_request(&request(), false).unwrap();
    let (with_body, reset) = client.sender.send_request(&request(), false).unwrap();
    peer.send_head(3, OK, false);
    let mut body = tasks.block_on(with_body).unwrap().into_body();
    let mut waiting = client.sender.clone();
    let before = tasks.len();
    let errors = Rc::new(std::cell::RefCell::new(Vec::new()));
    let record = || {
        let errors = Rc::clone(&errors);
        move |error: Option<Http2Error>| errors.borrow_mut().push(error.unwrap())
    };
    let (upload_done, body_done, reset_done, ready_done, response_done) =
        (record(), record(), record(), record(), record());
    tasks.spawn(async move { upload_done(send(&mut upload, &[0; 200_000], true).await.err()) });
    tasks.spawn(async move { body_done(read(&mut body).await.err()) });
    let mut reset = reset;
    tasks.spawn(async move { reset_done(Some(poll_fn(|cx| reset.poll_reset(cx)).await)) });
    tasks.spawn(async move { ready_done(poll_fn(|cx| waiting.poll_ready(cx)).await.err()) });
    tasks.spawn(async move { response_done(response.await.err()) });
    peer.frames();
    assert_eq!(tasks.len(), before + 5, "all wait");
    peer.close();
    assert_eq!(tasks.len(), 0);
    assert!(
        errors.borrow().len() == 5 && errors.borrow().iter().all(|error| matches!(error, Http2Error::Io(_)))
    );
    assert!(matches!(
        client.sender.poll_ready(&mut Context::from_waker(std::task::Waker::noop())),
        Poll::Ready(Err(_))
    ));
}
