//! Writes to sockets without the C library.
//!
//! Its `send` is a cancellation point (`pthreads(7)`). In a process with several threads, each call pays two locked
//! instructions for that: one percent of the time of a forwarded request, two of a rejection.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};

use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

use weir_http::http1::splice::{SplicePipe, Spliced, is_unsupported};

/// Options of every write: no signal if the peer has closed the connection. Splicing has no such option, but the runtime of
/// Rust ignores that signal.
pub(super) const WRITE_FLAGS: SendFlags = SendFlags::NOSIGNAL;

/// A socket that is registered with the runtime for both directions.
pub(super) trait RegisteredSocket: AsFd {
    /// Ready when there may be something to read.
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Calls `attempt` if there may be something to read. There is nothing any more if that fails with
    /// [`io::ErrorKind::WouldBlock`].
    fn try_read(&self, attempt: impl FnOnce() -> io::Result<usize>) -> io::Result<usize>;

    /// Ready when the socket may take bytes.
    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Calls `attempt` if the socket may take bytes. It does not any more if that fails with
    /// [`io::ErrorKind::WouldBlock`].
    fn try_write(&self, attempt: impl FnOnce() -> io::Result<usize>) -> io::Result<usize>;
}

impl RegisteredSocket for TcpStream {
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_read_ready(self, cx)
    }

    fn try_read(&self, attempt: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        self.try_io(Interest::READABLE, attempt)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_write_ready(self, cx)
    }

    fn try_write(&self, attempt: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        self.try_io(Interest::WRITABLE, attempt)
    }
}

impl RegisteredSocket for UnixStream {
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_read_ready(self, cx)
    }

    fn try_read(&self, attempt: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        self.try_io(Interest::READABLE, attempt)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_write_ready(self, cx)
    }

    fn try_write(&self, attempt: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        self.try_io(Interest::WRITABLE, attempt)
    }
}

/// Writes as much of `bytes` as the socket takes, and returns how many.
///
/// # Errors
/// The error of the system.
pub(super) fn poll_write(
    socket: &impl RegisteredSocket,
    cx: &mut Context<'_>,
    bytes: &[u8],
) -> Poll<io::Result<usize>> {
    let write = || socket.try_write(|| write(socket, bytes, WRITE_FLAGS));
    poll_attempt(cx, |cx| socket.poll_write_ready(cx), write)
}

/// Moves bytes from a pipe, which is not empty, to the socket. Returns how many.
///
/// # Errors
/// The error of the system.
pub(super) fn poll_drain(
    socket: &impl RegisteredSocket,
    pipe: &mut SplicePipe,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    poll_attempt(cx, |cx| socket.poll_write_ready(cx), || socket.try_write(|| pipe.drain(socket)))
}

/// Calls `attempt`, whenever the socket is ready, until it does not fail with [`io::ErrorKind::WouldBlock`]. Only that shows
/// that the socket is not: a pipe may be full before it has all that has arrived.
fn poll_attempt(
    cx: &mut Context<'_>,
    poll_ready: impl Fn(&mut Context<'_>) -> Poll<io::Result<()>>,
    mut attempt: impl FnMut() -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(poll_ready(cx))?;
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            moved => return Poll::Ready(moved),
        }
    }
}

/// Moves at most `max` bytes that have arrived on the socket into a pipe.
pub(super) fn poll_splice(
    socket: &impl RegisteredSocket,
    max: usize,
    cx: &mut Context<'_>,
) -> Spliced<io::Error> {
    let mut pipe = SplicePipe::acquire()?;
    let fill = || socket.try_read(|| pipe.fill(socket, max));
    match poll_attempt(cx, |cx| socket.poll_read_ready(cx), fill) {
        Poll::Ready(Err(error)) if is_unsupported(&error) => None,
        filled => Some(filled.map_ok(|_| pipe)),
    }
}

/// Makes the system call of [`poll_write`].
///
/// # Errors
/// The error of the system, and [`io::ErrorKind::WouldBlock`] if the socket takes nothing.
pub(super) fn write(socket: &impl AsFd, bytes: &[u8], flags: SendFlags) -> io::Result<usize> {
    Ok(send(socket, bytes, flags)?)
}

/// As [`write()`], from several buffers.
///
/// # Errors
/// As [`write()`].
pub(super) fn write_vectored(
    socket: &impl AsFd,
    parts: &[IoSlice<'_>],
    flags: SendFlags,
) -> io::Result<usize> {
    Ok(sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags)?)
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    fn write_now(socket: &impl RegisteredSocket, bytes: &[u8]) -> Poll<io::Result<usize>> {
        poll_write(socket, &mut Context::from_waker(Waker::noop()), bytes)
    }

    /// Writes until the socket takes no more. Returns the number of bytes.
    fn fill(socket: &impl RegisteredSocket) -> usize {
        let (mut written, bytes) = (0, vec![7; 1 << 20]);
        while let Poll::Ready(count) = write_now(socket, &bytes) {
            written += count.unwrap();
        }
        written
    }

    #[tokio::test]
    async fn full_socket_takes_more_once_the_peer_has_read() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        let written = fill(&socket);
        assert!(written > 0);
        let mut received = vec![0; written];
        peer.read_exact(&mut received).await.unwrap();
        assert!(received.iter().all(|octet| *octet == 7));
        let more = std::future::poll_fn(|cx| poll_write(&socket, cx, b"more")).await;
        assert_eq!(more.unwrap(), 4);
        let mut received = [0; 4];
        peer.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"more");
    }

    #[tokio::test]
    async fn closed_socket_is_an_error_and_not_a_signal() {
        let (socket, peer) = UnixStream::pair().unwrap();
        socket.writable().await.unwrap();
        assert!(matches!(write_now(&socket, b"taken"), Poll::Ready(Ok(5))));
        drop(peer);
        let Poll::Ready(failed) = write_now(&socket, b"lost") else {
            panic!("a closed socket does not block")
        };
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
