//! Connections to endpoints: to the socket, and TLS over it.

use std::io;
use std::sync::atomic::Ordering;

use super::cluster::Cluster;
use super::host::{Host, Target};
use crate::telemetry::metrics::ClusterMetrics;
use crate::tls::client::{Client, Failure, Reason};
use crate::tls::{Protocol, SessionStart};
use crate::transport::Transport;

/// A stream to `host`, one of `cluster`, to speak `protocol`; over TLS where there is a `client` of that.
///
/// # Errors
/// Whatever the system says about it, or a [`Failure`] within.
pub(super) async fn connect(
    cluster: &Cluster,
    host: &Host,
    client: Option<&Client>,
    protocol: Protocol,
) -> io::Result<Transport> {
    let stream = open(&host.target).await?;
    match client {
        None => Ok(stream),
        // Its future is large: it does not burden connections without TLS.
        Some(client) => Box::pin(handshake(cluster, host, client, stream, protocol)).await,
    }
}

async fn open(target: &Target) -> io::Result<Transport> {
    match target {
        Target::Ip(address) => Transport::connect_tcp(address).await,
        Target::Name(host, port) => Transport::connect_tcp((&**host, *port)).await,
        Target::Unix(path) => Transport::connect_unix(path).await,
        Target::Echo => Err(io::ErrorKind::Unsupported.into()),
    }
}

async fn handshake(
    cluster: &Cluster,
    host: &Host,
    client: &Client,
    stream: Transport,
    protocol: Protocol,
) -> io::Result<Transport> {
    let mut counted = Counted { metrics: &cluster.metrics, outcome: Err(Reason::Unfinished) };
    let upstream = &cluster.settings().name;
    match client.connect(stream, host.authority_host(), protocol).await {
        Ok((stream, start)) => {
            counted.outcome = Ok(start);
            if host.is_distrusted.swap(false, Ordering::Relaxed) {
                tracing::info!(%upstream, endpoint = %host.name, "there is TLS with the endpoint again");
            }
            Ok(stream.into())
        }
        Err(failure) => {
            counted.outcome = Err(failure.reason);
            // Once, and not for each request that asks in vain.
            if !host.is_distrusted.swap(true, Ordering::Relaxed) {
                tracing::warn!(%upstream, endpoint = %host.name, error = %failure, "no TLS with an endpoint");
            }
            Err(into_io(failure))
        }
    }
}

fn into_io(failure: Failure) -> io::Error {
    let kind = match failure.reason {
        Reason::Closed => io::ErrorKind::ConnectionReset,
        Reason::Untrusted | Reason::Refused => io::ErrorKind::PermissionDenied,
        Reason::NotTls | Reason::Incompatible => io::ErrorKind::InvalidData,
        Reason::Unfinished | Reason::Other => io::ErrorKind::Other,
    };
    io::Error::new(kind, failure)
}

/// Counts a handshake, also one that nobody waits for any more.
struct Counted<'a> {
    metrics: &'a ClusterMetrics,
    outcome: Result<SessionStart, Reason>,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.metrics.handshake(self.outcome);
    }
}
