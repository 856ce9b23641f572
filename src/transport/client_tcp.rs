//! TCP socket of a client, which need not be writable to be served.

use std::cell::RefCell;
use std::io::{self, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpStream as StdTcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use rustix::net::{RecvFlags, recv};
use socket2::SockRef;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::TcpStream;

use super::socket_io;

/// Maximum bytes of a small read.
const SMALL_READ: usize = 4 * 1024;

thread_local! {
    /// Small reads go through this memory. A read into the caller's would have to initialise it first, which takes longer.
    static SMALL: RefCell<[u8; SMALL_READ]> = const { RefCell::new([0; SMALL_READ]) };
}

/// TCP socket of a client.
///
/// The runtime reports a [`TcpStream`] as writable once, immediately after its registration. That is an event, and often
/// a turn of the event loop, without effect. This socket is registered for reading only, until a write would block or a
/// read takes many bytes. From then on it is a [`TcpStream`].
#[derive(Debug)]
pub struct ClientTcp(Registration);

#[derive(Debug)]
enum Registration {
    Reading(ReadingSocket),
    Both(TcpStream),
    /// The system was unable to register the socket for both.
    Closed,
}

/// A socket that is registered for reading.
#[derive(Debug)]
struct ReadingSocket {
    socket: AsyncFd<StdTcpStream>,
    /// To be woken when the registration ends: it reports nothing from then on.
    reader: Option<Waker>,
}

impl ClientTcp {
    /// Registers a socket that does not block with the runtime of this thread.
    ///
    /// # Errors
    /// The error of the system, for lack of memory.
    pub fn new(socket: StdTcpStream) -> io::Result<Self> {
        ReadingSocket::new(socket).map(|socket| Self(Registration::Reading(socket)))
    }

    /// Ready when a byte or the end of the stream has arrived. Consumes nothing.
    pub(super) fn poll_first_byte(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Registration::Reading(socket) => socket.poll_first_byte(cx),
            Registration::Both(stream) => stream.poll_peek(cx, &mut ReadBuf::new(&mut [0])).map(drop),
            Registration::Closed => Poll::Ready(()),
        }
    }

    /// Ready when there may be something to read, as far as the runtime knows.
    pub(super) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Registration::Reading(socket) => socket.poll_readable(cx).map(drop),
            Registration::Both(stream) => stream.poll_read_ready(cx).map(drop),
            Registration::Closed => Poll::Ready(()),
        }
    }

    /// Reads into `byte` if the runtime knows of something to read.
    ///
    /// # Errors
    /// The error of the system, and [`io::ErrorKind::WouldBlock`] if there is nothing.
    pub(super) fn try_read(&self, byte: &mut [u8]) -> io::Result<usize> {
        match &self.0 {
            Registration::Reading(socket) => socket.try_read(byte),
            Registration::Both(stream) => stream.try_read(byte),
            Registration::Closed => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Copies the next byte to be read, without consuming it. Does not wait.
    ///
    /// # Errors
    /// The error of the system, and [`io::ErrorKind::WouldBlock`] if there is nothing.
    pub(super) fn peek(&self, byte: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        SockRef::from(&self.as_fd()?).peek(byte)
    }

    /// Returns the socket, to set its options.
    pub(super) fn as_fd(&self) -> io::Result<BorrowedFd<'_>> {
        match &self.0 {
            Registration::Reading(socket) => Ok(socket.socket.get_ref().as_fd()),
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
        attempt: impl FnOnce(&StdTcpStream) -> io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        let Registration::Reading(socket) = &self.0 else { return None };
        match attempt(socket.socket.get_ref()) {
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
        AsyncFd::with_interest(socket, Interest::READABLE).map(|socket| Self { socket, reader: None })
    }

    fn into_std(self) -> StdTcpStream {
        let socket = self.socket.into_inner();
        self.reader.into_iter().for_each(Waker::wake);
        socket
    }

    fn poll_readable(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<AsyncFdReadyGuard<'_, StdTcpStream>>> {
        let polled = self.socket.poll_read_ready(cx);
        if polled.is_pending() {
            self.reader.get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        }
        polled
    }

    fn poll_first_byte(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Ok(mut readable) = ready!(self.poll_readable(cx)) else { return Poll::Ready(()) };
            if readable.try_io(|socket| socket.get_ref().peek(&mut [0])).is_ok() {
                return Poll::Ready(());
            }
        }
    }

    fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        self.socket.try_io(Interest::READABLE, |socket| receive(socket, bytes))
    }

    /// Reads at most [`SMALL_READ`] bytes, and returns how many.
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
        SMALL.with_borrow_mut(|small| {
            let room = buffer.remaining().min(small.len());
            loop {
                let mut readable = ready!(self.poll_readable(cx))?;
                let Ok(read) = readable.try_io(|socket| receive(socket.get_ref(), &mut small[..room])) else {
                    continue;
                };
                let read = read?;
                // Nothing more is available: a read to find that out is unnecessary.
                if (1..room).contains(&read) {
                    readable.clear_ready_matching(Ready::READABLE);
                }
                buffer.put_slice(&small[..read]);
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
        let read = match &mut self.0 {
            Registration::Reading(socket) => ready!(socket.poll_read(cx, buffer))?,
            Registration::Both(stream) => return Pin::new(stream).poll_read(cx, buffer),
            Registration::Closed => return Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        };
        if read == SMALL_READ {
            self.register_both()?;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientTcp {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.try_write(|socket| socket_io::write(socket, bytes)) {
            Some(written) => Poll::Ready(written),
            None => socket_io::poll_write(self.register_both()?, cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.try_write(|mut socket| socket.write_vectored(parts)) {
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
        let shut = SockRef::from(&self.as_fd()?).shutdown(Shutdown::Write);
        // The peer has reset the connection, so there is nothing left to close.
        Poll::Ready(shut.or_else(|error| match error.kind() {
            io::ErrorKind::NotConnected => Ok(()),
            _ => Err(error),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
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
        for message in [&b"a"[..], b"another", &[7; SMALL_READ - 1]] {
            peer.write_all(message).unwrap();
            let mut received = vec![0; message.len()];
            client.read_exact(&mut received).await.unwrap();
            assert_eq!(received, message);
            client.write_all(message).await.unwrap();
            peer.read_exact(&mut received).unwrap();
            assert_eq!(received, message);
        }
        assert!(!is_registered_for_both(&client));
        drop(peer);
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn large_messages_arrive_complete_in_both_directions() {
        let (mut client, mut peer) = connection();
        let message: Vec<u8> = (0..8 << 20_u32).map(|octet| (octet % 251) as u8).collect();
        let sent = message.clone();
        let echo = std::thread::spawn(move || {
            peer.write_all(&sent).unwrap();
            let mut received = vec![0; sent.len()];
            peer.read_exact(&mut received).unwrap();
            received
        });
        let mut received = vec![0; message.len()];
        client.read_exact(&mut received).await.unwrap();
        assert!(received == message && is_registered_for_both(&client));
        client.write_all(&message).await.unwrap();
        assert!(echo.join().unwrap() == message);
    }

    #[tokio::test]
    async fn reader_is_woken_when_a_write_blocks() {
        let (mut client, mut peer) = connection();
        let reader = Arc::new(WakeCounter::default());
        let waker = Waker::from(Arc::clone(&reader));
        assert!(client.poll_readable(&mut Context::from_waker(&waker)).is_pending());
        let mut writer = Context::from_waker(Waker::noop());
        let bytes = vec![7; 1 << 20];
        while Pin::new(&mut client).poll_write(&mut writer, &bytes).is_ready() {}
        assert!(is_registered_for_both(&client));
        // It has to register with the new registration.
        assert_eq!(reader.0.load(Ordering::Relaxed), 1);
        peer.write_all(b"more").unwrap();
        std::future::poll_fn(|cx| client.poll_readable(cx)).await;
        assert_eq!(client.try_read(&mut [0; 8]).unwrap(), 4);
    }

    #[tokio::test]
    async fn first_byte_is_reported_and_kept() {
        let (mut client, mut peer) = connection();
        assert!(client.poll_first_byte(&mut Context::from_waker(Waker::noop())).is_pending());
        let nothing = client.peek(&mut [MaybeUninit::uninit()]).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(client.try_read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        peer.write_all(b"first").unwrap();
        std::future::poll_fn(|cx| client.poll_first_byte(cx)).await;
        assert_eq!(client.peek(&mut [MaybeUninit::uninit()]).unwrap(), 1);
        let mut received = [0; 5];
        client.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"first");
    }

    #[tokio::test]
    async fn shutdown_is_the_end_of_the_stream_and_not_an_error_after_a_reset() {
        let (mut client, mut peer) = connection();
        client.shutdown().await.unwrap();
        assert_eq!(peer.read(&mut [0; 8]).unwrap(), 0);
        // Closed with a byte unread: a reset.
        let (mut client, peer) = connection();
        client.write_all(b"unread").await.unwrap();
        peer.peek(&mut [0]).unwrap();
        drop(peer);
        assert_eq!(client.read(&mut [0; 8]).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        client.shutdown().await.unwrap();
    }
}
