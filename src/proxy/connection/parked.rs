//! HTTP/1.1 connections that wait for a request without buffers.
//!
//! All that only an active connection needs is in one future: buffers, decoder, and the state of the request. A
//! connection that has had no request for a second drops that future and keeps its stream alone. The first bytes of the
//! next request, the end of the connection and its timeouts create the future again, which handles them. A connection
//! that is used more often is never parked, so parking costs its requests nothing.

use std::future::poll_fn;
use std::task::Poll;

use super::DownstreamConnection;
use crate::proxy::stream::DownstreamIo;

/// Waits until the client has sent something or closed the connection, a timeout has expired, or the
/// connection is to move. What is read stays in
/// `stream` and is read again.
// Not an async function: its future has room for the parameters twice.
pub(super) fn wait_for_input(
    stream: &mut DownstreamIo,
    connection: &DownstreamConnection,
) -> impl Future<Output = ()> {
    let timer = connection.timer();
    poll_fn(move |cx| {
        timer.register_waker(cx.waker());
        match timer.expired() {
            Some(_) => Poll::Ready(()),
            None if connection.is_held_back() => Poll::Ready(()),
            None => stream.poll_peek(cx).map(drop),
        }
    })
}
