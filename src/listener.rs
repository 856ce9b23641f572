//! Sockets.

use std::net::SocketAddr;
use std::time::Duration;

/// One place where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Name in metrics and logs; its address unless configured.
    pub name: Box<str>,
    /// Where to listen; port 0 lets the system choose.
    pub address: SocketAddr,
    /// From a request's first byte to the end of its head.
    pub header_timeout: Duration,
    /// How long a connection may stay without a request.
    pub idle_timeout: Duration,
}
