//! gRPC connections to other servers: a management server, or another rate limit service.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};

use weir_net::tls::AlpnProtocol;
use weir_net::tls::client::TlsClient;
use weir_net::transport::Transport;

/// Maximum time to establish a connection, including TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval of keep-alive pings, and the maximum time for a response to one.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerAddress {
    /// Port of a host, which is a name or an IP address.
    Tcp(Box<str>, u16),
    /// Path of a Unix socket.
    Unix(Box<std::path::Path>),
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

/// Returns a channel to `address` that connects on first use and reconnects as needed, with TLS if `tls` is
/// set. Must be called within a runtime.
///
/// # Errors
/// If the host name is invalid.
pub fn connect_lazy(
    address: &ServerAddress,
    tls: Option<Arc<TlsClient>>,
) -> Result<Channel, tonic::transport::Error> {
    let authority = match address {
        ServerAddress::Tcp(..) => address.to_string(),
        ServerAddress::Unix(_) => "localhost".to_owned(),
    };
    let endpoint = Endpoint::from_shared(format!("http://{authority}"))?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    let connector = ChannelConnector { address: address.clone(), tls };
    Ok(endpoint.connect_with_connector_lazy(connector))
}

#[derive(Clone, Debug)]
struct ChannelConnector {
    address: ServerAddress,
    tls: Option<Arc<TlsClient>>,
}

impl Service<Uri> for ChannelConnector {
    type Response = TokioIo<Transport>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { address, tls } = self.clone();
        Box::pin(async move { connect(&address, tls.as_deref()).await.map(TokioIo::new) })
    }
}

async fn connect(address: &ServerAddress, tls: Option<&TlsClient>) -> io::Result<Transport> {
    let (host, stream): (&str, Transport) = match address {
        ServerAddress::Tcp(host, port) => (host, Transport::connect_tcp((&**host, *port)).await?),
        ServerAddress::Unix(path) => ("localhost", Transport::connect_unix(path).await?),
    };
    match tls {
        None => Ok(stream),
        Some(client) => match client.connect(stream, host, AlpnProtocol::Http2).await {
            Ok((stream, _)) => Ok(stream.into()),
            Err(failure) => Err(io::Error::other(failure)),
        },
    }
}
