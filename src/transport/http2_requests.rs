//! Acceptance of the requests of an HTTP/2 connection.

use std::cell::Cell;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::{Connection, SendResponse};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};

/// Number of requests after which other connections have their turn.
const MAX_REQUESTS_PER_TURN: usize = 256;

/// A request, and what sends its response.
type AcceptedStream = (Request<RecvStream>, SendResponse<Bytes>);

thread_local! {
    /// Memory for the requests of one poll, shared by all connections of the thread. Each of them would otherwise keep
    /// kilobytes for as long as it is open.
    static ACCEPTED: Cell<Vec<AcceptedStream>> = const { Cell::new(Vec::new()) };
}

/// Calls `start` with the requests that have arrived. Those that have arrived together are started together, so that their
/// responses leave in few writes. Ready when the connection has ended.
///
/// # Errors
/// The error that has ended the connection.
pub fn poll_requests<T: AsyncRead + AsyncWrite + Unpin>(
    serving: &mut Connection<T, Bytes>,
    cx: &mut Context<'_>,
    start: impl FnMut(Request<RecvStream>, SendResponse<Bytes>, &mut Context<'_>),
) -> Poll<Result<(), h2::Error>> {
    let mut accepted = ACCEPTED.take();
    let ended = start_accepted(serving, &mut accepted, cx, start);
    accepted.clear();
    ACCEPTED.set(accepted);
    ended
}

fn start_accepted<T: AsyncRead + AsyncWrite + Unpin>(
    serving: &mut Connection<T, Bytes>,
    accepted: &mut Vec<AcceptedStream>,
    cx: &mut Context<'_>,
    mut start: impl FnMut(Request<RecvStream>, SendResponse<Bytes>, &mut Context<'_>),
) -> Poll<Result<(), h2::Error>> {
    let mut started = 0;
    while started < MAX_REQUESTS_PER_TURN {
        // All of them first: accepting the next one also writes what is there to be sent.
        let ended = poll_accept_all(serving, accepted, cx);
        if accepted.is_empty() || ended.is_ready() {
            return ended;
        }
        started += accepted.len();
        for (request, responder) in accepted.drain(..) {
            start(request, responder, cx);
        }
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// Appends all requests that have arrived to `accepted`. Ready when the connection has ended.
fn poll_accept_all<T: AsyncRead + AsyncWrite + Unpin>(
    serving: &mut Connection<T, Bytes>,
    accepted: &mut Vec<AcceptedStream>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), h2::Error>> {
    loop {
        match serving.poll_accept(cx) {
            Poll::Ready(Some(Ok(stream))) => accepted.push(stream),
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
            Poll::Ready(None) => return Poll::Ready(Ok(())),
            Poll::Pending => return Poll::Pending,
        }
    }
}
