//! Establishes connections to endpoints, with or without TLS.

use std::io;
use std::sync::atomic::Ordering;

use super::cluster::Cluster;
use super::host::{ConnectTarget, UpstreamHost};
use weir_net::tls::client::{ClientHandshakeError, ClientHandshakeErrorKind, TlsClient};
use weir_net::tls::{AlpnProtocol, SessionStart};
use weir_net::transport::Transport;
use weir_telemetry::log_interval::reaches_power_of_ten;
use weir_telemetry::metrics::ClusterMetrics;

/// Server name of a handshake.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HandshakeName<'a> {
    /// In place of the host of the address.
    pub(super) name: Option<&'a str>,
    pub(super) is_chosen_by_client: bool,
    /// Whether a handshake with it has succeeded.
    pub(super) is_verified: bool,
}

impl HandshakeName<'_> {
    /// Whether the name may cause this failure, and not the endpoint. The endpoint works with other names then, or has said
    /// so. Servers differ: they send a default certificate or some alert, or close the connection. A name with which the
    /// endpoint has worked does not cause it.
    fn causes(self, failure: &ClientHandshakeError, host: &UpstreamHost) -> bool {
        use ClientHandshakeErrorKind::{
            AlertReceived, Closed, Incompatible, NotTls, Other, Unfinished, Untrusted, WrongName,
        };
        if !self.is_chosen_by_client || self.is_verified || failure.is_about_validity {
            return false;
        }
        match failure.kind {
            Closed | Incompatible | Untrusted | WrongName | AlertReceived => {
                failure.is_about_name || host.has_tls_worked.load(Ordering::Relaxed)
            }
            NotTls | Unfinished | Other => false,
        }
    }
}

/// Connects to `host` of `cluster` for `protocol`; over TLS if `client` is given, with the server name `name`.
///
/// # Errors
/// Any error of the system, or a [`ClientHandshakeError`] inside it.
pub(super) async fn connect(
    cluster: &Cluster,
    host: &UpstreamHost,
    client: Option<&TlsClient>,
    name: HandshakeName<'_>,
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
    name: HandshakeName<'_>,
    stream: Transport,
    protocol: AlpnProtocol,
) -> io::Result<Transport> {
    let mut counted =
        HandshakeRecorder { metrics: &cluster.metrics, outcome: Err(ClientHandshakeErrorKind::Unfinished) };
    let upstream = &cluster.settings().name;
    let server_name = name.name.unwrap_or_else(|| host.authority_host());
    match client.connect(stream, server_name, protocol).await {
        Ok((stream, start)) => {
            counted.outcome = Ok(start);
            host.has_tls_worked.store(true, Ordering::Relaxed);
            if host.tls_failures.record_success() > 0 {
                tracing::info!(%upstream, endpoint = %host.name, "TLS with the endpoint works again");
            }
            Ok(stream.into())
        }
        Err(mut failure) if name.causes(&failure, host) => {
            failure.kind = ClientHandshakeErrorKind::WrongName;
            counted.outcome = Err(failure.kind);
            let total = cluster.wrong_names.add_and_get(1);
            if reaches_power_of_ten(total, 1) {
                tracing::warn!(
                    %upstream,
                    endpoint = %host.name,
                    server_name,
                    total,
                    error = %failure,
                    "the endpoint has no certificate for the host of a request; the next line follows at ten times the \
                     total"
                );
            }
            Err(into_io(failure))
        }
        Err(failure) => {
            counted.outcome = Err(failure.kind);
            if host.tls_failures.record_failure() == 1 {
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
        ClientHandshakeErrorKind::Untrusted
        | ClientHandshakeErrorKind::WrongName
        | ClientHandshakeErrorKind::AlertReceived => io::ErrorKind::PermissionDenied,
        ClientHandshakeErrorKind::NotTls | ClientHandshakeErrorKind::Incompatible => {
            io::ErrorKind::InvalidData
        }
        ClientHandshakeErrorKind::Unfinished | ClientHandshakeErrorKind::Other => io::ErrorKind::Other,
    };
    io::Error::new(kind, failure)
}

/// Whether the handshake failed because the endpoint has no certificate for the name.
pub(super) fn is_for_other_names(error: &io::Error) -> bool {
    let handshake = error.get_ref().and_then(|inner| inner.downcast_ref::<ClientHandshakeError>());
    handshake.is_some_and(|error| error.kind == ClientHandshakeErrorKind::WrongName)
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
