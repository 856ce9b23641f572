//! Listening sockets: one per worker for a TCP port, one shared by all workers for a Unix socket.

use std::cell::Cell;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener, TcpStream as StdTcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, accept_with, acceptfrom_with};
use socket2::{Domain, Protocol, SockAddr, SockFilter, SockRef, Socket as RawSocket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use super::any_address::{is_any, supported};
use super::{AcceptedConnection, ListenAddress};
use crate::transport::{ClientTcp, Transport};

/// Maximum connections in the kernel's accept queue; the system's own maximum applies as well.
const BACKLOG: i32 = 4096;

/// File mode of a Unix socket: its owner and group may connect.
const SOCKET_MODE: u32 = 0o660;

/// Socket filter that discards segments with the SYN flag, which only begin connections: it reads byte 13 of the TCP
/// header (RFC 9293 section 3.1), and returns 0 bytes of the segment if the flag is set, and all of them otherwise.
const DISCARD_SYN: [SockFilter; 4] = [
    SockFilter::new(0x30, 0, 0, 13),       // BPF_LD | BPF_B | BPF_ABS
    SockFilter::new(0x45, 0, 1, 0x02),     // BPF_JMP | BPF_JSET | BPF_K
    SockFilter::new(0x06, 0, 0, 0),        // BPF_RET | BPF_K
    SockFilter::new(0x06, 0, 0, u32::MAX), // BPF_RET | BPF_K
];

/// Peer address of connections through a Unix socket.
const LOCAL_PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A worker's listening socket.
#[derive(Debug)]
pub enum Socket {
    /// A TCP port.
    Tcp(StdTcpListener),
    /// A TCP port that the service manager listens on.
    InheritedTcp(StdTcpListener),
    /// A Unix socket; its file is removed with the last socket that shares it.
    Unix(StdUnixListener, Arc<SocketFile>),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) | Self::InheritedTcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Socket {
    /// Returns the bound address, including a port that the system chose.
    ///
    /// # Errors
    /// The error of the system.
    pub fn address(&self) -> io::Result<ListenAddress> {
        match self {
            Self::Tcp(listener) | Self::InheritedTcp(listener) => {
                listener.local_addr().map(ListenAddress::Tcp)
            }
            Self::Unix(_, file) => Ok(ListenAddress::Unix(file.path.clone())),
        }
    }

    /// Leaves the file of a Unix socket to another process, which accepts on the socket.
    pub fn leave_file(&self) {
        if let Self::Unix(_, file) = self {
            file.is_left.store(true, Ordering::Relaxed);
        }
    }

    /// Takes over the file of a Unix socket that another process has left to this one.
    pub fn claim_file(&self) {
        if let Self::Unix(_, file) = self {
            file.is_left.store(false, Ordering::Relaxed);
        }
    }

    /// Returns another handle of the same socket.
    ///
    /// # Errors
    /// The error of the system.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(listener) => Self::Tcp(listener.try_clone()?),
            Self::InheritedTcp(listener) => Self::InheritedTcp(listener.try_clone()?),
            Self::Unix(listener, file) => Self::Unix(listener.try_clone()?, Arc::clone(file)),
        })
    }
}

/// Binds `address` once for each worker. `own` are addresses on which this process listens.
///
/// # Errors
/// The error of the system, in particular `AddrInUse`: also if another process shares the port by `SO_REUSEPORT`, or
/// listens on that Unix socket.
pub fn bind(address: &ListenAddress, workers: usize, own: &[SocketAddr]) -> io::Result<Vec<Socket>> {
    match address {
        ListenAddress::Tcp(address) => {
            bind_tcp_beside(*address, workers, own).map(|all| all.into_iter().map(Socket::Tcp).collect())
        }
        ListenAddress::Unix(path) => bind_unix(path, workers),
    }
}

/// Maximum unsent bytes that the kernel buffers per connection (`TCP_NOTSENT_LOWAT`). Without it, the kernel would hold
/// megabytes for a client that does not read, and a slow client would appear to take nothing for a long time.
const MAX_UNSENT: u32 = 128 * 1024;

/// Binds a TCP port once for each worker.
///
/// # Errors
/// As [`bind`].
pub fn bind_tcp(address: SocketAddr, workers: usize) -> io::Result<Vec<StdTcpListener>> {
    let address = supported(address);
    let socket = open(address)?;
    socket.bind(&address.into())?;
    // With `SO_REUSEPORT`, a second process could share the port unnoticed. The bind above, without that option, has
    // ruled this out. A single worker has the option too: a reload may add a listener on another address with this port.
    let address = socket.local_addr()?.as_socket().unwrap_or(address);
    drop(socket);
    bind_shared(address, workers)
}

/// Binds a TCP port once for each worker. `own` are addresses on which this process listens.
///
/// # Errors
/// As [`bind`].
pub fn bind_tcp_beside(
    address: SocketAddr,
    workers: usize,
    own: &[SocketAddr],
) -> io::Result<Vec<StdTcpListener>> {
    // A socket of this process on another address with the same port would be taken for that of another process.
    let address = supported(address);
    let is_shared = address.port() != 0 && own.iter().any(|own| own.port() == address.port());
    if is_shared { bind_shared(address, workers) } else { bind_tcp(address, workers) }
}

/// Binds a TCP port once for each worker, which sockets on other addresses may share.
fn bind_shared(address: SocketAddr, workers: usize) -> io::Result<Vec<StdTcpListener>> {
    (0..workers.max(1))
        .map(|_| {
            let socket = open(address)?;
            socket.set_reuse_port(true)?;
            socket.bind(&address.into())?;
            listen(socket).map(Into::into)
        })
        .collect()
}

fn open(address: SocketAddr) -> io::Result<RawSocket> {
    let socket = RawSocket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restart must not fail because of the previous process's connections in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if is_any(address) {
        // Whatever `net.ipv6.bindv6only` says: `[::]` accepts connections over IPv4, too.
        socket.set_only_v6(false)?;
    }
    // Accepted connections inherit this option. If it is not supported, the system's socket buffer limits apply.
    let _ = socket.set_tcp_notsent_lowat(MAX_UNSENT);
    // Inherited too: small responses do not wait for acknowledgements of earlier ones.
    socket.set_tcp_nodelay(true)?;
    Ok(socket)
}

fn listen(socket: RawSocket) -> io::Result<RawSocket> {
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Binds a Unix socket. A path cannot be bound twice as a port can, so all workers accept from one socket.
fn bind_unix(path: &Path, workers: usize) -> io::Result<Vec<Socket>> {
    remove_stale(path)?;
    let socket = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = Arc::new(SocketFile::new(path)?);
    // Before `listen`: until then no client can connect, whatever the mode that the file was created with.
    fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
    let socket: StdUnixListener = listen(socket)?.into();
    (0..workers.max(1)).map(|_| Ok(Socket::Unix(socket.try_clone()?, Arc::clone(&file)))).collect()
}

/// Removes the socket file of a process that no longer runs, and nothing else.
fn remove_stale(path: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path is a file, not a socket"));
    }
    match StdUnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process is listening on the path")),
    }
}

/// Path of a Unix socket; the file is removed on drop.
#[derive(Debug)]
pub struct SocketFile {
    pub(super) path: Box<Path>,
    /// `None` for that of the service manager, which stays.
    identity: Option<(u64, u64)>,
    /// Whether another process has taken it over.
    is_left: AtomicBool,
}

impl SocketFile {
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.into(), identity: Some(identity(path)?), is_left: AtomicBool::new(false) })
    }

    pub(super) const fn is_of_service_manager(&self) -> bool {
        self.identity.is_none()
    }

    /// Creates the path of a socket of another process, which removes the file until this one claims it.
    pub(super) fn of_predecessor(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.into(), identity: Some(identity(path)?), is_left: AtomicBool::new(true) })
    }

    /// Creates the path of a socket that belongs to the service manager.
    pub(super) fn of_service_manager(path: &Path) -> Self {
        Self { path: path.into(), identity: None, is_left: AtomicBool::new(false) }
    }
}

impl SocketFile {
    /// Removes the file, unless it has been removed or replaced.
    fn remove(&self) {
        // A successor may have created its own socket at that path.
        let is_ours = !self.is_left.load(Ordering::Relaxed);
        if is_ours && self.identity.is_some_and(|own| identity(&self.path).is_ok_and(|there| there == own)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Listening socket registered with a worker's runtime.
#[derive(Debug)]
pub(super) struct AsyncListener {
    socket: AsyncFd<Socket>,
    /// Whether the queue has been found with a connection since the runtime has reported the last ones.
    may_be_empty: Cell<bool>,
}

impl AsyncListener {
    #[expect(
        deprecated,
        reason = "the constructor that replaces it is unsafe, because the descriptor must stay open; a `Socket` owns its own"
    )]
    pub(super) fn new(socket: Socket) -> io::Result<Self> {
        let socket = AsyncFd::with_interest(socket, Interest::READABLE)?;
        Ok(Self { socket, may_be_empty: Cell::new(false) })
    }

    pub(super) async fn accept(&self) -> io::Result<AcceptedSocket> {
        self.socket.async_io(Interest::READABLE, |socket| self.accept_queued(socket)).await
    }

    /// Accepts the next connection, or fails with `WouldBlock`.
    ///
    /// The runtime reports connections once, so the queue has to be emptied. An accept that finds it empty costs as much as
    /// one that succeeds, because the kernel creates the socket first. A poll costs a tenth of that.
    fn accept_queued(&self, socket: &Socket) -> io::Result<AcceptedSocket> {
        let is_empty = self.may_be_empty.get() && !has_connections(socket);
        let accepted = if is_empty { Err(io::ErrorKind::WouldBlock.into()) } else { accept_one(socket) };
        let found_none = accepted.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        self.may_be_empty.set(!found_none);
        accepted
    }

    /// Prevents new connections, without closing the socket.
    ///
    /// A client that connects to a TCP port sends its SYN again after a second, to the closed port or to the next
    /// process. Handshakes that have begun are completed.
    ///
    /// # Errors
    /// The error of the system, if it has no socket filters.
    pub(super) fn stop_new_connections(&self) -> io::Result<()> {
        match self.socket.get_ref() {
            Socket::Tcp(listener) => SockRef::from(listener).attach_filter(&DISCARD_SYN),
            // The filter would stay on it for the next process.
            Socket::InheritedTcp(_) => Err(io::ErrorKind::Unsupported.into()),
            Socket::Unix(_, file) => {
                file.remove();
                Ok(())
            }
        }
    }

    /// Returns the connections left in the kernel's queue. Accepts from the socket directly, because the runtime's
    /// would yield when its task budget is used up.
    pub(super) fn into_queue(self) -> impl Iterator<Item = io::Result<AcceptedSocket>> {
        let socket = self.socket.into_inner();
        std::iter::from_fn(move || Some(accept_one(&socket)))
    }
}

/// Whether a connection waits to be accepted. If the system cannot tell, an accept has to.
fn has_connections(socket: &Socket) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::IN)];
    !matches!(poll(&mut polled, Some(&Timespec::default())), Ok(0))
}

/// Accepts a connection. Its socket does not block.
fn accept_one(socket: &Socket) -> io::Result<AcceptedSocket> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    match socket {
        Socket::Tcp(listener) | Socket::InheritedTcp(listener) => {
            let (stream, peer) = acceptfrom_with(listener, flags)?;
            let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
            Ok(AcceptedSocket::Tcp(stream.into(), peer.ok_or(io::ErrorKind::ConnectionAborted)?))
        }
        Socket::Unix(listener, _) => Ok(AcceptedSocket::Unix(accept_with(listener, flags)?.into())),
    }
}

/// The socket of an accepted connection, which any worker may serve.
#[derive(Debug)]
pub enum AcceptedSocket {
    /// TCP, and the peer.
    Tcp(StdTcpStream, SocketAddr),
    Unix(StdUnixStream),
    /// Of the process that this one replaces.
    Moved(Box<MovedSocket>),
}

/// The socket of a connection that another process has accepted.
#[derive(Debug)]
pub struct MovedSocket {
    pub socket: OwnedFd,
    /// What that process has read and not used.
    pub read: Vec<u8>,
    pub peer: SocketAddr,
}

impl MovedSocket {
    fn register(self) -> io::Result<AcceptedConnection> {
        let Self { socket, read, peer } = self;
        let is_unix = SockRef::from(&socket).domain()? == Domain::UNIX;
        SockRef::from(&socket).set_nonblocking(true)?;
        let stream = match is_unix {
            true => Transport::Unix(UnixStream::from_std(socket.into())?),
            false => Transport::Client(ClientTcp::new(socket.into())?),
        };
        Ok(AcceptedConnection { stream: Transport::with_prefix(read, stream), peer })
    }
}

impl AcceptedSocket {
    /// Registers the socket with the runtime of this thread.
    ///
    /// # Errors
    /// The error of the system, for lack of memory or of epoll's watches.
    pub fn register(self) -> io::Result<AcceptedConnection> {
        Ok(match self {
            Self::Tcp(socket, peer) => {
                AcceptedConnection { stream: Transport::Client(ClientTcp::new(socket)?), peer }
            }
            Self::Unix(socket) => AcceptedConnection {
                stream: Transport::Unix(UnixStream::from_std(socket)?),
                peer: LOCAL_PEER,
            },
            Self::Moved(socket) => socket.register()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loopback() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    #[test]
    fn every_worker_gets_a_socket_on_the_same_port() {
        let sockets = bind_tcp(loopback(), 3).unwrap();
        let ports: std::collections::HashSet<_> =
            sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
        assert_eq!((sockets.len(), ports.len()), (3, 1));
    }

    #[test]
    fn accepted_connections_send_without_delay() {
        let listener = bind_tcp(loopback(), 1).unwrap().remove(0);
        let _client = StdTcpStream::connect(listener.local_addr().unwrap()).unwrap();
        listener.set_nonblocking(false).unwrap();
        assert!(listener.accept().unwrap().0.nodelay().unwrap());
    }

    #[tokio::test]
    async fn connections_are_accepted_one_by_one_and_many_at_once() {
        let listener = bind_tcp(loopback(), 1).unwrap().remove(0);
        let address = listener.local_addr().unwrap();
        let listener = AsyncListener::new(Socket::Tcp(listener)).unwrap();
        for number in [1, 1, 30, 1, 2] {
            let clients: Vec<_> = (0..number).map(|_| StdTcpStream::connect(address).unwrap()).collect();
            let mut expected: Vec<_> = clients.iter().map(|client| client.local_addr().unwrap()).collect();
            for _ in 0..number {
                let AcceptedSocket::Tcp(_, peer) = listener.accept().await.unwrap() else { unreachable!() };
                assert_eq!(peer, expected.remove(0));
            }
            // The queue is found to be empty, so the runtime has to report the next connection.
            let more = tokio::time::timeout(std::time::Duration::from_millis(1), listener.accept());
            assert!(more.await.is_err());
        }
    }

    #[test]
    fn a_port_in_use_is_an_error_for_any_number_of_workers() {
        for (first, second) in [(1, 1), (2, 2), (1, 2), (2, 1)] {
            let sockets = bind_tcp(loopback(), first).unwrap();
            let error = bind_tcp(sockets[0].local_addr().unwrap(), second).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{first} {second}");
        }
    }

    #[test]
    fn unix_socket_has_mode_660_and_is_removed_with_its_last_listener() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir.sock");
        let mut sockets = bind(&ListenAddress::Unix(path.as_path().into()), 3, &[]).unwrap();
        assert_eq!(sockets.len(), 3);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        sockets.truncate(1);
        assert!(path.exists() && StdUnixStream::connect(&path).is_ok());
        drop(sockets);
        assert!(!path.exists());
    }

    #[test]
    fn bind_replaces_only_a_stale_unix_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir.sock");
        let address = ListenAddress::Unix(path.as_path().into());
        let alive = bind(&address, 1, &[]).unwrap();
        assert_eq!(bind(&address, 1, &[]).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(alive);
        // Closed without removing the file, as when a process is killed.
        drop(StdUnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let alive = bind(&address, 1, &[]).unwrap();
        assert!(StdUnixStream::connect(&path).is_ok());
        drop(alive);
        fs::write(&path, "precious").unwrap();
        assert_eq!(bind(&address, 1, &[]).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn closing_a_listener_keeps_the_unix_socket_of_its_successor() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir.sock");
        let first = bind(&ListenAddress::Unix(path.as_path().into()), 1, &[]).unwrap();
        fs::remove_file(&path).unwrap();
        let second = bind(&ListenAddress::Unix(path.as_path().into()), 1, &[]).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
    }
}
