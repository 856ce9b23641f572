//! Tests of a connection whose request is held.

use std::cell::RefCell;
use std::rc::Rc;

use http_body_util::BodyExt as _;
use tokio::io::{AsyncWriteExt as _, DuplexStream};

use super::*;

impl ReadSource for DuplexStream {
    fn poll_readable(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

impl hyper::body::Body for IncomingBody<DuplexStream> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.get_mut().poll_frame(cx)
    }
}

#[tokio::test]
async fn held_request_keeps_little_of_its_body_and_is_read_completely_afterwards() {
    const LENGTH: usize = 60 * 1024;
    let (mut client, server) = tokio::io::duplex(64 * 1024);
    client.write_all(&[b'x'; LENGTH]).await.unwrap();
    let conn = Rc::new(RefCell::new(ServerConn::new(server, BytesMut::new())));
    conn.borrow_mut().start_body(BodyDecoder::Length(LENGTH as u64), false);
    let mut cx = Context::from_waker(Waker::noop());
    let others: Vec<_> = std::iter::from_fn(ReadAheadPermit::acquire).collect();
    for _ in 0..3 {
        assert!(conn.borrow_mut().poll_closed_while_held(&mut cx).is_pending());
    }
    assert_eq!(conn.borrow().read_buf.bytes.len(), MAX_READ_AHEAD);
    assert_eq!(conn.borrow().read_buf.bytes.capacity(), MAX_READ_AHEAD);
    drop(others);
    assert!(conn.borrow_mut().poll_closed_while_held(&mut cx).is_pending());
    assert_eq!(conn.borrow().read_buf.bytes.len(), MAX_PERMITTED_READ_AHEAD);
    assert!(conn.borrow().read_ahead.is_some());
    let content = IncomingBody::new(&conn).collect().await.unwrap().to_bytes();
    assert_eq!(content.len(), LENGTH);
    assert!(conn.borrow().read_ahead.is_none());
}

#[tokio::test]
async fn client_that_leaves_a_held_request_with_a_small_body_is_noticed() {
    let (mut client, server) = tokio::io::duplex(64 * 1024);
    client.write_all(b"xxx").await.unwrap();
    let mut conn = ServerConn::new(server, BytesMut::new());
    conn.start_body(BodyDecoder::Length(100), false);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(conn.poll_closed_while_held(&mut cx).is_pending());
    drop(client);
    assert!(conn.poll_closed_while_held(&mut cx).is_ready());
}
