//! What the configuration says of an upstream.

use std::path::Path;
use std::time::Duration;

/// Where requests go and how long that may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its name in metrics and logs.
    pub name: Box<str>,
    /// Where; at least one.
    pub addresses: Box<[Address]>,
    /// Until a connection stands.
    pub connect_timeout: Duration,
    /// From the request's last byte to the answer's headers.
    pub timeout: Duration,
    /// How long a body may stand still, and how long an unused connection is kept.
    pub idle_timeout: Duration,
}

/// An upstream's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Over TCP.
    Tcp {
        /// A name or an address, IPv6 without brackets.
        host: Box<str>,
        /// The port.
        port: u16,
    },
    /// Over a Unix socket.
    Unix(Box<Path>),
    /// A built-in answerer for trying things out.
    Echo,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Echo => f.write_str("echo"),
        }
    }
}
