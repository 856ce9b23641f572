//! Listen addresses, as configured.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// IP address and TCP port; with port 0 the system chooses one.
    Tcp(SocketAddr),
    /// Path of a Unix socket.
    Unix(Box<Path>),
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
