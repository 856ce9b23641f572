//! Connections to other servers than upstreams.

use std::fmt;
use std::io;
use std::path::Path;

use crate::tls::AlpnProtocol;
use crate::tls::client::TlsClient;
use crate::transport::Transport;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerAddress {
    /// Port of a host, which is a name or an IP address without brackets.
    Tcp(Box<str>, u16),
    /// Path of a Unix socket.
    Unix(Box<Path>),
}

impl ServerAddress {
    /// Returns host and port as in a URL; `localhost` for a Unix socket.
    pub fn authority(&self) -> String {
        match self {
            Self::Tcp(..) => self.to_string(),
            Self::Unix(_) => "localhost".to_owned(),
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Opens a connection for `protocol`, with TLS if `tls` is given.
///
/// # Errors
/// The error of the system, or that of the handshake inside one.
pub async fn connect(
    address: &ServerAddress,
    tls: Option<&TlsClient>,
    protocol: AlpnProtocol,
) -> io::Result<Transport> {
    let (host, stream): (&str, Transport) = match address {
        ServerAddress::Tcp(host, port) => (host, Transport::connect_tcp((&**host, *port)).await?),
        ServerAddress::Unix(path) => ("localhost", Transport::connect_unix(path).await?),
    };
    let Some(tls) = tls else { return Ok(stream) };
    let secured = tls.connect(stream, host, protocol).await;
    secured.map(|(stream, _)| stream.into()).map_err(io::Error::other)
}
