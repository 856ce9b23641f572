//! Establishes connections to endpoints, with or without TLS.

use std::io;
use std::sync::atomic::Ordering;

use super::cluster::Cluster;
use super::host::{ConnectTarget, UpstreamHost};
use crate::telemetry::metrics::ClusterMetrics;
use crate::tls::client::{ClientHandshakeError, ClientHandshakeErrorKind, TlsClient};
use crate::tls::{AlpnProtocol, SessionStart};
use crate::transport::Transport;

/// Connects to `host` of `cluster` for `protocol`; over TLS if `client` is given, with the server name `name` in place of
/// the host of the address.
///
/// # Errors
/// Any error of the system, or a [`ClientHandshakeError`] inside it.
pub(super) async fn connect(
    cluster: &Cluster,
    host: &UpstreamHost,
    client: Option<&TlsClient>,
    name: Option<&str>,
    protocol: AlpnProtocol,
) -> io::Result<Transport> {
    let stream = open(&host.target).await?;
    match client {
        None => Ok(stream),
        // Boxed, because its future is large and connections without TLS do not need it.
        Some(client) => Box::pin(handshake(cluster, host, client, name, stream, protocol)).await,
    }
}

async fn open(target: &ConnectTarget) -> io::Result<Transport> {
    match target {
        ConnectTarget::Ip(address) => Transport::connect_tcp(address).await,
        ConnectTarget::Name(host, port) => Transport::connect_tcp((&**host, *port)).await,
        ConnectTarget::Unix(path) => Transport::connect_unix(path).await,
        ConnectTarget::Echo => Err(io::ErrorKind::Unsupported.into()),
    }
}

async fn handshake(
    cluster: &Cluster,
    host: &UpstreamHost,
    client: &TlsClient,
    name: Option<&str>,
    stream: Transport,
    protocol: AlpnProtocol,
) -> io::Result<Transport> {
    let mut counted =
        HandshakeRecorder { metrics: &cluster.metrics, outcome: Err(ClientHandshakeErrorKind::Unfinished) };
    let upstream = &cluster.settings().name;
    match client.connect(stream, name.unwrap_or_else(|| host.authority_host()), protocol).await {
        Ok((stream, start)) => {
            counted.outcome = Ok(start);
            if host.has_tls_failed.swap(false, Ordering::Relaxed) {
                tracing::info!(%upstream, endpoint = %host.name, "TLS with the endpoint works again");
            }
            Ok(stream.into())
        }
        Err(failure) => {
            counted.outcome = Err(failure.kind);
            // Logged once per outage, not for each request.
            if !host.has_tls_failed.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    %upstream,
                    endpoint = %host.name,
                    error = %failure,
                    "cannot establish TLS with the endpoint"
                );
            }
            Err(into_io(failure))
        }
    }
}

fn into_io(failure: ClientHandshakeError) -> io::Error {
    let kind = match failure.kind {
        ClientHandshakeErrorKind::Closed => io::ErrorKind::ConnectionReset,
        ClientHandshakeErrorKind::Untrusted | ClientHandshakeErrorKind::AlertReceived => {
            io::ErrorKind::PermissionDenied
        }
        ClientHandshakeErrorKind::NotTls | ClientHandshakeErrorKind::Incompatible => {
            io::ErrorKind::InvalidData
        }
        ClientHandshakeErrorKind::Unfinished | ClientHandshakeErrorKind::Other => io::ErrorKind::Other,
    };
    io::Error::new(kind, failure)
}

/// Counts the result of a handshake when dropped, including one that was cancelled.
struct HandshakeRecorder<'a> {
    metrics: &'a ClusterMetrics,
    outcome: Result<SessionStart, ClientHandshakeErrorKind>,
}

impl Drop for HandshakeRecorder<'_> {
    fn drop(&mut self) {
        self.metrics.record_handshake(self.outcome);
    }
}
