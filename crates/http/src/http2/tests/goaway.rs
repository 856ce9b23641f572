//! GOAWAY of a server (RFC 9113 section 6.8).

use std::task::{Context, Poll, Waker};

use super::raw_peer::{OK, RawPeer, setting};
use super::tasks::Tasks;
use super::*;
use crate::http2::frame::{FrameKind, flags};

fn request() -> Request<()> {
    Request::get("http://a.test/").body(()).unwrap()
}

#[test]
fn unprocessed_streams_can_be_sent_again_and_others_finish() {
    let tasks = Tasks::default();
    let (mut peer, mut client) = RawPeer::accept(&tasks, &[]);
    let [first, second, third] = [(); 3].map(|()| client.sender.send_request(&request(), true).unwrap());
    peer.send_head(1, OK, false);
    peer.send(FrameKind::GoAway, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0]);
    assert!(tasks.block_on(third.0).unwrap_err().is_unprocessed());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(matches!(client.sender.poll_ready(&mut cx), Poll::Ready(Err(error)) if error.is_unprocessed()));
    assert!(client.sender.send_request(&request(), true).is_err());
    peer.send_head(3, OK, true);
    assert_eq!(tasks.block_on(second.0).unwrap().status(), 200);
    assert_eq!(client.result.take(), None, "a stream is open");
    peer.send(FrameKind::Data, flags::END_STREAM, 1, b"all");
    let body = async move { read(&mut first.0.await.unwrap().into_body()).await.unwrap().0 };
    assert_eq!(tasks.block_on(body), b"all");
    assert_eq!(client.result.take(), Some(Ok(())));
}

#[test]
fn later_goaway_can_leave_more_streams_unprocessed() {
    let tasks = Tasks::default();
    let (mut peer, mut client) = RawPeer::accept(&tasks, &[]);
    let [first, second] = [(); 2].map(|()| client.sender.send_request(&request(), true).unwrap());
    peer.send(FrameKind::GoAway, 0, 0, &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    peer.send(FrameKind::GoAway, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 11]);
    let error = tasks.block_on(second.0).unwrap_err();
    assert!(error.is_unprocessed());
    peer.send_head(1, OK, true);
    assert_eq!(tasks.block_on(first.0).unwrap().status(), 200);
    assert_eq!(client.result.take(), Some(Ok(())));
}

#[test]
fn requests_that_wait_for_a_stream_fail_as_unprocessed() {
    let tasks = Tasks::default();
    let (mut peer, mut client) = RawPeer::accept(&tasks, &setting(3, 1));
    let _first = client.sender.send_request(&request(), true).unwrap();
    let mut sender = client.sender.clone();
    let (result, waited) = std::sync::mpsc::channel();
    tasks.spawn(async move { result.send(poll_fn(|cx| sender.poll_ready(cx)).await).unwrap() });
    peer.send(FrameKind::GoAway, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
    assert!(waited.try_recv().unwrap().unwrap_err().is_unprocessed());
}
