//! Where a listener listens, as configured.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

/// Where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A port; 0 lets the system choose.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(Box<Path>),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
