//! TCP socket of a client.
//!
//! It is registered with the event loop for reading only, until a write blocks or a read is large. Sockets to upstreams are
//! plain `TcpStream`s, because connecting needs to know when they become writable.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::net::{Shutdown, TcpStream as StdTcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use rustix::net::{RecvFlags, SendFlags, recv};
use socket2::SockRef;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::TcpStream;

use super::socket_io;
use weir_http::http1::splice::{SplicePipe, Spliced};

/// Maximum bytes of a read. The buffers of HTTP/1.1 and HTTP/2 have no more room for one.
const MAX_READ: usize = 32 * 1024;
/// Bytes from which a read is large. Copying fewer costs less than a registration for both directions.
const LARGE_READ: usize = 8 * 1024;

thread_local! {
    /// What is read is copied from here. To read into the caller's buffer, it would have to be initialised first, which takes
    /// longer.
    static SCRATCH: RefCell<[u8; MAX_READ]> = const { RefCell::new([0; MAX_READ]) };
}

/// TCP socket of a client.
///
/// The runtime reports a [`TcpStream`] as writable once, immediately after its registration. That is an event, and often
/// a turn of the event loop, without effect. This socket is registered for reading only, until a write blocks or a read is
/// large. From then on it is a [`TcpStream`].
#[derive(Debug)]
pub struct ClientTcp(Registration);

#[derive(Debug)]
enum Registration {
    Reading(ReadingSocket),
    Both(TcpStream),
    /// Registration for both directions failed, and the socket is closed.
    Closed,
}

/// A socket that is registered for reading.
#[derive(Debug)]
struct ReadingSocket {
    socket: AsyncFd<ClientSocket>,
    /// Woken when the registration ends, because it reports no events from then on.
    reader: Option<Waker>,
}

/// A socket, and the options of its writes.
#[derive(Debug)]
struct ClientSocket {
    socket: StdTcpStream,
    flags: SendFlags,
}

impl AsRawFd for ClientSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl ClientTcp {
    /// Registers a non-blocking socket with the runtime of this thread.
    ///
    /// # Errors
    /// The error of the system, for lack of memory or of epoll's watches.
    pub fn new(socket: StdTcpStream) -> io::Result<Self> {
        ReadingSocket::new(socket).map(|socket| Self(Registration::Reading(socket)))
    }

    /// Ready when there may be something to read, as far as the runtime knows.
    pub(super) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Registration::Reading(socket) => socket.poll_readable(cx).map(drop),
            Registration::Both(stream) => stream.poll_read_ready(cx).map(drop),
            Registration::Closed => Poll::Ready(()),
        }
    }

    /// As [`super::Transport::hold_writes`].
    pub(super) fn hold_writes(&mut self) -> bool {
        match &mut self.0 {
            Registration::Reading(socket) => {
                socket.socket.get_mut().flags |= SendFlags::MORE;
                true
            }
            Registration::Both(_) | Registration::Closed => false,
        }
    }

    /// As [`poll_splice`](weir_http::http1::read_buf::ReadSource::poll_splice) of a transport.
    pub(super) fn poll_splice(&mut self, max: usize, cx: &mut Context<'_>) -> Spliced<io::Error> {
        match self.register_both() {
            Ok(stream) => socket_io::poll_splice(stream, max, cx),
            Err(error) => Some(Poll::Ready(Err(error))),
        }
    }

    /// As [`poll_drain`](weir_http::http1::splice::SpliceTarget::poll_drain) of a transport.
    pub(super) fn poll_drain(
        &mut self,
        pipe: &mut SplicePipe,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match self.try_write(|socket, _| pipe.drain(socket)) {
            Some(drained) => Poll::Ready(drained),
            None => socket_io::poll_drain(self.register_both()?, pipe, cx),
        }
    }

    /// Returns the socket, which is no longer registered with the runtime.
    ///
    /// # Errors
    /// If the socket is closed, or the error of the system.
    pub(super) fn into_std(self) -> io::Result<StdTcpStream> {
        match self.0 {
            Registration::Reading(socket) => Ok(socket.into_std()),
            Registration::Both(stream) => stream.into_std(),
            Registration::Closed => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Returns the socket, to set its options.
    pub(super) fn as_fd(&self) -> io::Result<BorrowedFd<'_>> {
        match &self.0 {
            Registration::Reading(socket) => Ok(socket.socket.get_ref().socket.as_fd()),
            Registration::Both(stream) => Ok(stream.as_fd()),
            Registration::Closed => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Registers the socket for both directions and returns it.
    fn register_both(&mut self) -> io::Result<&mut TcpStream> {
        self.0 = match std::mem::replace(&mut self.0, Registration::Closed) {
            Registration::Reading(socket) => Registration::Both(TcpStream::from_std(socket.into_std())?),
            registered => registered,
        };
        match &mut self.0 {
            Registration::Both(stream) => Ok(stream),
            Registration::Reading(_) | Registration::Closed => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Writes with `attempt`, unless the socket is registered for both directions. Then, and if that would block,
    /// returns `None`.
    fn try_write(
        &self,
        attempt: impl FnOnce(&StdTcpStream, SendFlags) -> io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        let Registration::Reading(reading) = &self.0 else { return None };
        let ClientSocket { socket, flags } = reading.socket.get_ref();
        match attempt(socket, *flags) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            written => Some(written),
        }
    }
}

impl ReadingSocket {
    #[expect(
        deprecated,
        reason = "the constructor that replaces it is unsafe, because the descriptor must stay open; a `TcpStream` owns its own"
    )]
    fn new(socket: StdTcpStream) -> io::Result<Self> {
        let socket = ClientSocket { socket, flags: socket_io::WRITE_FLAGS };
        AsyncFd::with_interest(socket, Interest::READABLE).map(|socket| Self { socket, reader: None })
    }

    fn into_std(self) -> StdTcpStream {
        let ClientSocket { socket, .. } = self.socket.into_inner();
        self.reader.into_iter().for_each(Waker::wake);
        socket
    }

    fn poll_readable(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<AsyncFdReadyGuard<'_, ClientSocket>>> {
        let polled = self.socket.poll_read_ready(cx);
        if polled.is_pending() {
            self.reader.get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        }
        polled
    }

    /// Reads at most [`MAX_READ`] bytes, and returns how many.
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let room = buffer.remaining().min(scratch.len());
            loop {
                let mut readable = ready!(self.poll_readable(cx))?;
                let Ok(read) =
                    readable.try_io(|socket| receive(&socket.get_ref().socket, &mut scratch[..room]))
                else {
                    continue;
                };
                let read = read?;
                // Nothing more is available: a read to find that out is unnecessary.
                if (1..room).contains(&read) {
                    readable.clear_ready_matching(Ready::READABLE);
                }
                buffer.put_slice(&scratch[..read]);
                return Poll::Ready(Ok(read));
            }
        })
    }
}

/// Reads without the C library, for the same reason as [`socket_io`] writes without it.
fn receive(socket: &StdTcpStream, bytes: &mut [u8]) -> io::Result<usize> {
    let (read, _) = recv(socket, bytes, RecvFlags::empty())?;
    Ok(read)
}

impl AsyncRead for ClientTcp {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buffer.remaining();
        let read = match &mut self.0 {
            Registration::Reading(socket) => ready!(socket.poll_read(cx, buffer))?,
            Registration::Both(stream) => return Pin::new(stream).poll_read(cx, buffer),
            Registration::Closed => return Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        };
        // If bytes are left, the next read can follow at once. A new registration reports them in the next turn.
        let is_drained = read < room;
        if read >= LARGE_READ && (is_drained || read == MAX_READ) {
            self.register_both()?;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientTcp {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.try_write(|socket, flags| socket_io::write(socket, bytes, flags)) {
            Some(written) => Poll::Ready(written),
            None => socket_io::poll_write(self.register_both()?, cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.try_write(|socket, flags| socket_io::write_vectored(socket, parts, flags)) {
            Some(written) => Poll::Ready(written),
            None => Pin::new(self.register_both()?).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = self.as_fd().and_then(|socket| SockRef::from(&socket).shutdown(Shutdown::Write));
        // The connection has failed, so there is nothing left to close.
        Poll::Ready(shut.or_else(|error| match error.kind() {
            io::ErrorKind::NotConnected => Ok(()),
            _ => Err(error),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Returns an accepted connection, and its peer.
    fn connection() -> (ClientTcp, StdTcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = StdTcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        (ClientTcp::new(socket).unwrap(), peer)
    }

    fn is_registered_for_both(client: &ClientTcp) -> bool {
        matches!(client.0, Registration::Both(_))
    }

    /// Counts its wake-ups.
    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn small_messages_need_no_registration_for_writing() {
        let (mut client, mut peer) = connection();
        for message in [&b"a"[..], b"another", &[7; LARGE_READ - 1]] {
            peer.write_all(message).unwrap();
            let mut received = vec![0; message.len()];
            client.read_exact(&mut received).await.unwrap();
            assert_eq!(received, message);
            client.write_all(message).await.unwrap();
            peer.read_exact(&mut received).unwrap();
            assert_eq!(received, message);
        }
        assert!(!is_registered_for_both(&client));
    }

    #[tokio::test]
    async fn one_read_takes_all_that_has_arrived() {
        for length in [1, LARGE_READ, MAX_READ] {
            let (mut client, mut peer) = connection();
            peer.write_all(&vec![7; length]).unwrap();
            // The last bytes and the end of the stream arrive together.
            drop(peer);
            std::future::poll_fn(|cx| client.poll_readable(cx)).await;
            let mut received = vec![0; MAX_READ];
            assert_eq!(client.read(&mut received).await.unwrap(), length);
            assert_eq!(client.read(&mut received).await.unwrap(), 0);
        }
    }

    #[tokio::test]
    async fn what_a_full_read_leaves_can_be_read_at_once() {
        let (mut client, mut peer) = connection();
        peer.write_all(&[7; 3 * LARGE_READ]).unwrap();
        std::future::poll_fn(|cx| client.poll_readable(cx)).await;
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..3 {
            let mut received = [0; LARGE_READ];
            let mut received = ReadBuf::new(&mut received);
            assert!(Pin::new(&mut client).poll_read(&mut cx, &mut received).is_ready());
            assert_eq!(received.filled().len(), LARGE_READ);
        }
        assert!(!is_registered_for_both(&client));
    }

    /// Returns more than the buffers of a connection take.
    fn large_message() -> Vec<u8> {
        (0..16 << 20_u32).map(|octet| (octet % 251) as u8).collect()
    }

    #[tokio::test]
    async fn large_message_is_received_completely() {
        let (mut client, mut peer) = connection();
        let message = large_message();
        let sent = message.clone();
        let sending = std::thread::spawn(move || peer.write_all(&sent).map(|()| peer));
        let mut received = vec![0; message.len()];
        client.read_exact(&mut received).await.unwrap();
        assert!(received == message && is_registered_for_both(&client));
        drop(sending.join().unwrap().unwrap());
    }

    #[tokio::test]
    async fn message_is_complete_although_a_write_has_blocked() {
        let (mut client, mut peer) = connection();
        let message = large_message();
        let (mut cx, mut written) = (Context::from_waker(Waker::noop()), 0);
        loop {
            let (some, more) = message[written..].split_at(100);
            let parts = [IoSlice::new(some), IoSlice::new(more)];
            let Poll::Ready(count) = Pin::new(&mut client).poll_write_vectored(&mut cx, &parts) else {
                break;
            };
            written += count.unwrap();
        }
        assert!(is_registered_for_both(&client));
        let length = message.len();
        let receiving = std::thread::spawn(move || {
            let mut received = vec![0; length];
            peer.read_exact(&mut received).map(|()| received)
        });
        client.write_all(&message[written..]).await.unwrap();
        assert!(receiving.join().unwrap().unwrap() == message);
    }

    /// Writes until the socket takes no more.
    fn fill(client: &mut ClientTcp) {
        let bytes = vec![7; 1 << 20];
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(written) = Pin::new(&mut *client).poll_write(&mut cx, &bytes) {
            assert!(written.unwrap() > 0);
        }
    }

    #[tokio::test]
    async fn reader_is_woken_when_a_write_blocks() {
        let (mut client, mut peer) = connection();
        let reader = Arc::new(WakeCounter::default());
        let waker = Waker::from(Arc::clone(&reader));
        assert!(client.poll_readable(&mut Context::from_waker(&waker)).is_pending());
        fill(&mut client);
        assert!(is_registered_for_both(&client));
        // It has to poll again, with the new registration.
        assert_eq!(reader.0.load(Ordering::Relaxed), 1);
        peer.write_all(b"more").unwrap();
        std::future::poll_fn(|cx| client.poll_readable(cx)).await;
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 4);
    }

    #[tokio::test]
    async fn blocked_write_fails_when_the_peer_resets() {
        let (mut client, peer) = connection();
        fill(&mut client);
        // Closed with bytes unread.
        drop(peer);
        assert_eq!(client.write_all(b"lost").await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }

    /// Whether the peer has received nothing, not even the end of the stream.
    fn has_received_nothing(peer: &StdTcpStream) -> bool {
        peer.set_nonblocking(true).unwrap();
        let peeked = peer.peek(&mut [0]);
        peer.set_nonblocking(false).unwrap();
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    #[tokio::test]
    async fn held_bytes_leave_with_the_end_of_the_stream() {
        let (mut client, mut peer) = connection();
        // The kernel holds bytes for 200 ms at most, and this thread may sleep for longer.
        let was_held = (0..20).any(|_| {
            (client, peer) = connection();
            assert!(client.hold_writes());
            let parts = [&b"sec"[..], b"ond"].map(IoSlice::new);
            let mut cx = Context::from_waker(Waker::noop());
            assert!(Pin::new(&mut client).poll_write(&mut cx, b"the ").is_ready());
            assert!(Pin::new(&mut client).poll_write_vectored(&mut cx, &parts).is_ready());
            has_received_nothing(&peer)
        });
        assert!(was_held);
        client.shutdown().await.unwrap();
        let mut received = String::new();
        peer.read_to_string(&mut received).unwrap();
        assert_eq!(received, "the second");
    }

    #[tokio::test]
    async fn shutdown_is_the_end_of_the_stream_and_not_an_error_after_a_reset() {
        let (mut client, mut peer) = connection();
        client.shutdown().await.unwrap();
        assert_eq!(peer.read(&mut [0; 8]).unwrap(), 0);
        let (mut client, peer) = connection();
        client.write_all(b"unread").await.unwrap();
        peer.peek(&mut [0]).unwrap();
        drop(peer);
        assert_eq!(client.read(&mut [0; 8]).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        client.shutdown().await.unwrap();
    }
}
