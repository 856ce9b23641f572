//! gRPC connections to other servers: a management server, or another rate limit service.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};

pub use weir_net::connect::ServerAddress;
use weir_net::connect::connect;
use weir_net::tls::AlpnProtocol;
use weir_net::tls::client::TlsClient;
use weir_net::transport::Transport;

/// Maximum time to establish a connection, including TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval of keep-alive pings, and the maximum time for a response to one.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns a channel to `address` that connects on first use and reconnects as needed, with TLS if `tls` is
/// set. Must be called within a runtime.
///
/// # Errors
/// If the host name is invalid.
pub fn connect_lazy(
    address: &ServerAddress,
    tls: Option<Arc<TlsClient>>,
) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{}", address.authority()))?
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
        Box::pin(
            async move { connect(&address, tls.as_deref(), AlpnProtocol::Http2).await.map(TokioIo::new) },
        )
    }
}
