//! Sockets that listen: one per worker on a port, one for all in the file system.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::Path;
use std::sync::Arc;

use socket2::{Domain, Protocol, SockAddr, Socket as RawSocket, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::{Accepted, Address};
use crate::transport::Transport;

/// Connections that may wait for us in the kernel; the system's own cap applies on top.
const BACKLOG: i32 = 4096;

/// Who may connect to a socket in the file system: the owner and the group.
const SOCKET_MODE: u32 = 0o660;

/// Who is at the other end of a socket in the file system: a process of this machine.
const LOCAL_PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A worker's socket.
#[derive(Debug)]
pub enum Socket {
    /// A port.
    Tcp(StdTcpListener),
    /// In the file system; the file goes with the last of its sockets.
    Unix(StdUnixListener, Arc<SocketFile>),
}

impl Socket {
    /// Where it is bound: the port, too, where the system chose it.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Self::Unix(_, file) => Ok(Address::Unix(file.path.clone())),
        }
    }
}

/// Binds `address` for each worker.
///
/// # Errors
/// What the system says, in particular `AddrInUse`: also where another process shares ports with itself, or
/// listens at that file.
pub fn bind(address: &Address, workers: usize) -> io::Result<Vec<Socket>> {
    match address {
        Address::Tcp(address) => {
            bind_tcp(*address, workers).map(|all| all.into_iter().map(Socket::Tcp).collect())
        }
        Address::Unix(path) => bind_unix(path, workers),
    }
}

/// So many bytes that the network cannot take yet are kept by the system for a connection: a client that does not read
/// would have it keep megabytes, and a slow one would look as if it took nothing for long.
const MAX_UNSENT: u32 = 128 * 1024;

/// Binds a port once per worker.
///
/// # Errors
/// As [`bind`].
pub fn bind_tcp(address: SocketAddr, workers: usize) -> io::Result<Vec<StdTcpListener>> {
    let socket = open(address)?;
    socket.bind(&address.into())?;
    if workers <= 1 {
        return Ok(vec![listen(socket)?.into()]);
    }
    // With SO_REUSEPORT a second Weir would join in unnoticed; the plain bind above has ruled that out.
    let address = socket.local_addr()?.as_socket().unwrap_or(address);
    drop(socket);
    (0..workers)
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
    // A restart must not wait for the connections of its predecessor to be forgotten.
    socket.set_reuse_address(true)?;
    // Inherited by each connection. Where it is not to be had, the system's memory bounds what it keeps.
    let _ = socket.set_tcp_notsent_lowat(MAX_UNSENT);
    Ok(socket)
}

fn listen(socket: RawSocket) -> io::Result<RawSocket> {
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Binds a file. There is no sharing of its name as there is of ports: all workers accept from one socket.
fn bind_unix(path: &Path, workers: usize) -> io::Result<Vec<Socket>> {
    remove_stale(path)?;
    let socket = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = Arc::new(SocketFile::new(path)?);
    // Before it listens: until then nobody gets in, whatever the mode that the file was made with.
    fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
    let socket: StdUnixListener = listen(socket)?.into();
    (0..workers.max(1)).map(|_| Ok(Socket::Unix(socket.try_clone()?, Arc::clone(&file)))).collect()
}

/// Takes away what a process that is dead has left behind, and nothing else.
fn remove_stale(path: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is no socket"));
    }
    match StdUnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")),
    }
}

/// A socket's name in the file system, taken away with it.
#[derive(Debug)]
pub struct SocketFile {
    path: Box<Path>,
    identity: (u64, u64),
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.into(), identity: identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A successor may have put its own there already.
        if identity(&self.path).is_ok_and(|there| there == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// A socket watched by a worker's runtime.
#[derive(Debug)]
pub(super) enum Accepting {
    Tcp(TcpListener),
    Unix(UnixListener, Arc<SocketFile>),
}

impl Accepting {
    pub(super) fn new(socket: Socket) -> io::Result<Self> {
        match socket {
            Socket::Tcp(listener) => TcpListener::from_std(listener).map(Self::Tcp),
            Socket::Unix(listener, file) => {
                UnixListener::from_std(listener).map(|listener| Self::Unix(listener, file))
            }
        }
    }

    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok(Accepted { stream: Transport::Tcp(stream), peer })
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok(Accepted { stream: Transport::Unix(stream), peer: LOCAL_PEER })
            }
        }
    }

    /// Takes one that the kernel has queued, asking the socket itself: the runtime would stop at its budget.
    pub(super) fn into_queue(self) -> io::Result<impl Iterator<Item = io::Result<Accepted>>> {
        let socket = match self {
            Self::Tcp(listener) => Socket::Tcp(listener.into_std()?),
            Self::Unix(listener, file) => Socket::Unix(listener.into_std()?, file),
        };
        Ok(std::iter::from_fn(move || Some(queued(&socket))))
    }
}

fn queued(socket: &Socket) -> io::Result<Accepted> {
    match socket {
        Socket::Tcp(listener) => {
            let (stream, peer) = listener.accept()?;
            stream.set_nonblocking(true)?;
            Ok(Accepted { stream: Transport::Tcp(TcpStream::from_std(stream)?), peer })
        }
        Socket::Unix(listener, _) => {
            let (stream, _) = listener.accept()?;
            stream.set_nonblocking(true)?;
            Ok(Accepted { stream: Transport::Unix(UnixStream::from_std(stream)?), peer: LOCAL_PEER })
        }
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
    fn a_port_in_use_is_an_error_for_any_number_of_workers() {
        for (first, second) in [(1, 1), (2, 2), (1, 2), (2, 1)] {
            let sockets = bind_tcp(loopback(), first).unwrap();
            let error = bind_tcp(sockets[0].local_addr().unwrap(), second).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{first} {second}");
        }
    }

    #[test]
    fn a_socket_file_is_for_owner_and_group_and_goes_with_its_last_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir.sock");
        let mut sockets = bind(&Address::Unix(path.as_path().into()), 3).unwrap();
        assert_eq!(sockets.len(), 3);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        sockets.truncate(1);
        assert!(path.exists() && StdUnixStream::connect(&path).is_ok());
        drop(sockets);
        assert!(!path.exists());
    }

    #[test]
    fn only_what_a_dead_process_has_left_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir.sock");
        let address = Address::Unix(path.as_path().into());
        let alive = bind(&address, 1).unwrap();
        assert_eq!(bind(&address, 1).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(alive);
        // Closed without taking the name away, as by a kill.
        drop(StdUnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let alive = bind(&address, 1).unwrap();
        assert!(StdUnixStream::connect(&path).is_ok());
        drop(alive);
        fs::write(&path, "precious").unwrap();
        assert_eq!(bind(&address, 1).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn the_file_of_a_successor_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir.sock");
        let first = bind(&Address::Unix(path.as_path().into()), 1).unwrap();
        fs::remove_file(&path).unwrap();
        let second = bind(&Address::Unix(path.as_path().into()), 1).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
    }
}
