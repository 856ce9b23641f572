//! The service beside us.

use std::time::Duration;

/// Where requests go and how long that may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where.
    pub address: Address,
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
    /// HTTP/1.1 over TCP.
    Tcp {
        /// A name or an address, IPv6 without brackets.
        host: Box<str>,
        /// The port.
        port: u16,
    },
    /// A built-in answerer for trying things out.
    Echo,
}
