//! Listening sockets that the service manager has passed to the process (`LISTEN_FDS`, systemd's socket activation).
//!
//! They stay open when the process ends: connections that arrive meanwhile wait for the next one.

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;
use parking_lot::Mutex;

use super::ListenAddress;
use super::socket::{Socket, SocketFile};

/// The sockets that no listener has taken yet.
#[derive(Debug, Default)]
pub struct InheritedSockets(Mutex<Vec<(ListenAddress, Socket)>>);

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

    /// Takes the socket of `address`, once for each of `workers`; `None` if there is none.
    ///
    /// # Errors
    /// The error of the system.
    pub fn take(&self, address: &ListenAddress, workers: usize) -> Option<io::Result<Vec<Socket>>> {
        let mut sockets = self.0.lock();
        let position = sockets.iter().position(|(passed, _)| is_same(passed, address))?;
        let (_, socket) = sockets.swap_remove(position);
        Some((0..workers.max(1)).map(|_| socket.try_clone()).collect())
    }

    /// Logs the sockets that no listener has taken: nothing would ever accept their connections.
    pub fn report_unused(&self) {
        for (address, _) in &*self.0.lock() {
            tracing::warn!(%address, "no listener has the address of a socket that the service manager has passed");
        }
    }
}

/// Takes the TCP or Unix socket at `index`.
fn take(passed: &mut ListenFd, index: usize) -> io::Result<Option<(ListenAddress, Socket)>> {
    let Ok(tcp) = passed.take_tcp_listener(index) else {
        return passed.take_unix_listener(index)?.map(of_unix).transpose();
    };
    tcp.map(of_tcp).transpose()
}

fn of_tcp(listener: TcpListener) -> io::Result<(ListenAddress, Socket)> {
    listener.set_nonblocking(true)?;
    Ok((ListenAddress::Tcp(listener.local_addr()?), Socket::InheritedTcp(listener)))
}

fn of_unix(listener: UnixListener) -> io::Result<(ListenAddress, Socket)> {
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let path = address.as_pathname().ok_or_else(|| io::Error::other("a Unix socket without a path"))?;
    let file = SocketFile::of_service_manager(path);
    Ok((ListenAddress::Unix(path.into()), Socket::Unix(listener, file.into())))
}

/// Whether a listener with `address` may use a socket that is bound to `passed`. systemd's `ListenStream=8080` is `[::]:8080`,
/// which accepts IPv4 as well.
fn is_same(passed: &ListenAddress, address: &ListenAddress) -> bool {
    match (passed, address) {
        (ListenAddress::Tcp(passed), ListenAddress::Tcp(address)) => {
            let are_unspecified = passed.ip().is_unspecified() && address.ip().is_unspecified();
            passed == address || (are_unspecified && passed.port() == address.port())
        }
        (passed, address) => passed == address,
    }
}
