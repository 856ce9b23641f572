//! Listening sockets of the process that this one replaces.

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use socket2::SockRef;

use super::ListenAddress;
use super::socket::{Socket, SocketFile};

/// What a listening socket is, for the process that takes it over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketDescription {
    /// What it is bound for: the place in the configuration, and the address as it is written there.
    pub purpose: Box<str>,
    pub kind: SocketKind,
}

/// Kind of a listening socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SocketKind {
    Tcp,
    /// TCP, of the service manager.
    InheritedTcp,
    /// A Unix socket with this path, whose file the process removes.
    Unix(Box<std::path::Path>),
    /// A Unix socket with this path, of the service manager.
    InheritedUnix(Box<std::path::Path>),
}

/// The sockets that were taken over and have not found their use yet.
#[derive(Debug, Default)]
pub struct TakenSockets(Mutex<Vec<(Box<str>, Socket)>>);

impl SocketDescription {
    /// Describes a socket.
    pub fn new(purpose: &str, socket: &Socket) -> Self {
        let kind = match socket {
            Socket::Tcp(_) => SocketKind::Tcp,
            Socket::InheritedTcp(_) => SocketKind::InheritedTcp,
            Socket::Unix(_, file) if file.is_of_service_manager() => {
                SocketKind::InheritedUnix(file.path.clone())
            }
            Socket::Unix(_, file) => SocketKind::Unix(file.path.clone()),
        };
        Self { purpose: purpose.into(), kind }
    }

    /// Returns the socket that this describes.
    ///
    /// # Errors
    /// If the file of a Unix socket is gone.
    fn open(&self, fd: OwnedFd) -> io::Result<Socket> {
        Ok(match &self.kind {
            SocketKind::Tcp => {
                // That of a process that has drained. Fails if there is none.
                let _ = SockRef::from(&fd).detach_filter();
                Socket::Tcp(TcpListener::from(fd))
            }
            SocketKind::InheritedTcp => Socket::InheritedTcp(TcpListener::from(fd)),
            SocketKind::Unix(path) => {
                Socket::Unix(UnixListener::from(fd), SocketFile::of_predecessor(path)?.into())
            }
            SocketKind::InheritedUnix(path) => {
                Socket::Unix(UnixListener::from(fd), SocketFile::of_service_manager(path).into())
            }
        })
    }
}

impl TakenSockets {
    /// Takes over these sockets. One that cannot be used is logged and bound again.
    pub fn new(sockets: impl IntoIterator<Item = (SocketDescription, OwnedFd)>) -> Self {
        let opened = sockets.into_iter().filter_map(|(description, fd)| match description.open(fd) {
            Ok(socket) => Some((description.purpose, socket)),
            Err(error) => {
                let purpose = &description.purpose;
                tracing::warn!(%error, %purpose, "cannot take over a listening socket");
                None
            }
        });
        Self(Mutex::new(opened.collect()))
    }

    /// Returns the sockets that are bound for `purpose`, at least one for each of `workers`; none if none was taken over.
    /// Workers share one if there are fewer.
    ///
    /// # Errors
    /// The error of the system.
    pub fn take(&self, purpose: &str, workers: usize) -> io::Result<Vec<Socket>> {
        let mut taken = Vec::new();
        let mut sockets = self.0.lock();
        for (known, socket) in std::mem::take(&mut *sockets) {
            match &*known == purpose {
                true => taken.push(socket),
                false => sockets.push((known, socket)),
            }
        }
        for index in taken.len()..workers {
            let Some(shared) = taken.get(index % taken.len().max(1)) else { break };
            taken.push(shared.try_clone()?);
        }
        Ok(taken)
    }

    /// Returns the TCP address of one of the sockets with this purpose.
    pub fn address(&self, purpose: &str) -> Option<ListenAddress> {
        let sockets = self.0.lock();
        sockets.iter().find(|(known, _)| &**known == purpose).and_then(|(_, socket)| socket.address().ok())
    }

    /// Closes the sockets that the configuration does not use.
    pub fn close_rest(&self) {
        for (purpose, socket) in std::mem::take(&mut *self.0.lock()) {
            if let Ok(address) = socket.address() {
                tracing::info!(%address, %purpose, "closing a socket that the configuration no longer has");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::socket::bind;
    use super::*;

    fn taken(purpose: &str, sockets: Vec<Socket>) -> Vec<(SocketDescription, OwnedFd)> {
        let take = |socket: Socket| {
            let description = SocketDescription::new(purpose, &socket);
            socket.leave_file();
            (description, std::os::fd::AsFd::as_fd(&socket).try_clone_to_owned().unwrap())
        };
        sockets.into_iter().map(take).collect()
    }

    #[test]
    fn sockets_go_to_their_purpose_once_and_are_shared_by_more_workers() {
        let address = ListenAddress::Tcp("127.0.0.1:0".parse().unwrap());
        let sockets = bind(&address, 2, &[]).unwrap();
        let bound = sockets[0].address().unwrap();
        let sockets = TakenSockets::new(taken("one", sockets));
        assert_eq!(sockets.address("one"), Some(bound.clone()));
        assert!(sockets.take("another", 1).unwrap().is_empty());
        let found = sockets.take("one", 5).unwrap();
        assert_eq!(found.len(), 5);
        assert!(found.iter().all(|socket| socket.address().unwrap() == bound));
        assert!(sockets.take("one", 1).unwrap().is_empty());
    }

    #[test]
    fn file_of_a_unix_socket_belongs_to_the_process_that_takes_it_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir.sock");
        let address = ListenAddress::Unix(path.as_path().into());
        let sockets = TakenSockets::new(taken("unix", bind(&address, 2, &[]).unwrap()));
        assert!(path.exists(), "the process that leaves it does not remove it");
        let found = sockets.take("unix", 2).unwrap();
        assert_eq!(found.len(), 2);
        drop(found);
        assert!(path.exists(), "a process that fails does not remove it either");
        let listening = taken("unix", bind(&address, 2, &[]).unwrap());
        let found = TakenSockets::new(listening).take("unix", 2).unwrap();
        found.iter().for_each(Socket::claim_file);
        drop(found);
        assert!(!path.exists());
    }
}
