//! Connections on their way from this process to the one that replaces it.
//!
//! Between two requests, a connection over HTTP/1.1 has no state but its socket and the bytes that were read and not
//! decoded. Both go to the new process. TLS cannot move: its connections stay open here, and their bytes are passed on.
//! HTTP/2 connections have ended by then, except for their streams in flight.

mod message;

use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::task::Poll;

use tokio::io::copy_bidirectional;
use tokio::net::UnixStream;

pub use self::message::ArrivedConnection;
use self::message::MovingConnection;
use super::DownstreamConnection;
use crate::proxy::stream::DownstreamIo;
use weir_net::fd_channel::MAX_CONNECTION_MESSAGE;
use weir_net::replacement::{ReplacementPhase, Successor};

/// Maximum bytes of a client that move with its connection. With more, the connection stays.
const MAX_MOVED_BYTES: usize = MAX_CONNECTION_MESSAGE - 16 * 1024;

/// Protocol of a connection between two requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdleProtocol {
    Http1,
    /// Before its first byte was handled.
    Http2,
}

/// Waits while no request may be decided, then moves the connection if another process serves. Returns whether it stays
/// here, and `stream` with it.
pub(super) async fn stays(
    connection: &Rc<DownstreamConnection>,
    stream: &mut Option<DownstreamIo>,
    protocol: IdleProtocol,
) -> bool {
    let replacement = &connection.worker.shared.replacement;
    poll_fn(|cx| {
        connection.timer().register_waker(cx.waker());
        match (replacement.phase(), protocol) {
            (ReplacementPhase::Frozen, _) | (ReplacementPhase::Ending, IdleProtocol::Http2) => Poll::Pending,
            (ReplacementPhase::Ending | ReplacementPhase::Serving | ReplacementPhase::Replaced, _) => {
                Poll::Ready(())
            }
        }
    })
    .await;
    if replacement.phase() != ReplacementPhase::Replaced || connection.must_stay() {
        return true;
    }
    let Some(successor) = replacement.successor() else { return true };
    let view = connection.view();
    let Some(name) = view.listener_name(connection.listener).filter(|name| successor.has_listener(name))
    else {
        connection.set_must_stay();
        return true;
    };
    let Some(moved) = stream.take() else { return false };
    let message = MovingConnection::new(connection, name);
    if let Err(error) = move_stream(&successor, message, moved).await {
        tracing::warn!(%error, "a connection was closed, because the new process did not take it");
    }
    false
}

/// Sends the socket, or passes bytes on until the connection ends.
async fn move_stream(
    successor: &Successor,
    mut message: MovingConnection<'_>,
    stream: DownstreamIo,
) -> io::Result<()> {
    if !stream.is_plain() || stream.peeked().len() > MAX_MOVED_BYTES {
        let (mut here, there) = UnixStream::pair()?;
        message.stays_behind();
        let socket = there.into_std()?;
        successor.sender.send(&message.encode(&[])?, socket.as_fd())?;
        drop(socket);
        let mut stream = stream;
        // Ends with the connection; how is of no interest here.
        let _ = copy_bidirectional(&mut stream, &mut here).await;
        return Ok(());
    }
    let (socket, read) = stream.into_socket()?;
    successor.sender.send(&message.encode(&read)?, socket.as_fd())
}
