//! Listening sockets that the service manager has passed to the process (`LISTEN_FDS`, systemd's socket activation).
//!
//! They stay open when the process ends: connections that arrive meanwhile wait for the next one.

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;
use parking_lot::Mutex;
use socket2::SockRef;

use super::ListenAddress;
use super::socket::{Socket, SocketFile};

/// The sockets that were passed. They are kept, because the service manager cannot be asked for one again.
#[derive(Debug, Default)]
pub struct InheritedSockets(Mutex<Vec<InheritedSocket>>);

#[derive(Debug)]
struct InheritedSocket {
    address: ListenAddress,
    socket: Socket,
    /// Whether a listener has used it.
    is_used: bool,
}

impl InheritedSockets {
    /// Takes the sockets of the process's environment. One of another kind is logged and left.
    pub fn from_environment() -> Self {
        let mut passed = ListenFd::from_env();
        let sockets = (0..passed.len()).filter_map(|index| match take(&mut passed, index) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!(%error, index, "cannot use a socket that the service manager has passed");
                None
            }
        });
        Self(Mutex::new(sockets.collect()))
    }

    /// Adds the sockets that the process which this one replaces has inherited.
    pub fn add(&self, sockets: impl IntoIterator<Item = Socket>) {
        let added = sockets.into_iter().filter_map(|socket| {
            let address = socket.address().ok()?;
            Some(InheritedSocket { address, socket, is_used: true })
        });
        self.0.lock().extend(added);
    }

    /// Returns all sockets, each with another handle.
    ///
    /// # Errors
    /// The error of the system.
    pub fn all(&self) -> io::Result<Vec<Socket>> {
        self.0.lock().iter().map(|passed| passed.socket.try_clone()).collect()
    }

    /// Returns the socket of `address`, once for each of `workers`; `None` if there is none.
    ///
    /// # Errors
    /// The error of the system.
    pub fn get(&self, address: &ListenAddress, workers: usize) -> Option<io::Result<Vec<Socket>>> {
        let mut sockets = self.0.lock();
        let exact = sockets.iter().position(|passed| passed.address == *address);
        let position = exact.or_else(|| sockets.iter().position(|passed| passed.accepts(address)))?;
        let passed = &mut sockets[position];
        passed.is_used = true;
        Some((0..workers.max(1)).map(|_| passed.socket.try_clone()).collect())
    }

    /// Logs the sockets that no listener has used: nothing accepts their connections.
    pub fn report_unused(&self) {
        for InheritedSocket { address, .. } in self.0.lock().iter().filter(|passed| !passed.is_used) {
            tracing::warn!(%address, "no listener has the address of a socket that the service manager has passed");
        }
    }
}

/// Takes the TCP or Unix socket at `index`.
fn take(passed: &mut ListenFd, index: usize) -> io::Result<Option<InheritedSocket>> {
    let Ok(tcp) = passed.take_tcp_listener(index) else {
        return passed.take_unix_listener(index)?.map(of_unix).transpose();
    };
    tcp.map(of_tcp).transpose()
}

fn of_tcp(listener: TcpListener) -> io::Result<InheritedSocket> {
    listener.set_nonblocking(true)?;
    let address = ListenAddress::Tcp(listener.local_addr()?);
    Ok(InheritedSocket { address, socket: Socket::InheritedTcp(listener), is_used: false })
}

fn of_unix(listener: UnixListener) -> io::Result<InheritedSocket> {
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let path = address.as_pathname().ok_or_else(|| io::Error::other("a Unix socket without a path"))?;
    let file = SocketFile::of_service_manager(path);
    let address = ListenAddress::Unix(path.into());
    Ok(InheritedSocket { address, socket: Socket::Unix(listener, file.into()), is_used: false })
}

impl InheritedSocket {
    /// Whether a listener on all IPv4 addresses may use it: systemd's `ListenStream=8080` is `[::]:8080`, which accepts IPv4
    /// as well.
    fn accepts(&self, address: &ListenAddress) -> bool {
        let (ListenAddress::Tcp(passed), ListenAddress::Tcp(address)) = (&self.address, address) else {
            return false;
        };
        let are_of_all = passed.is_ipv6() && passed.ip().is_unspecified() && address.ip().is_unspecified();
        are_of_all
            && passed.port() == address.port()
            && SockRef::from(&self.socket).only_v6().is_ok_and(|only| !only)
    }
}
