//! TLS over a connection to an endpoint: how it begins, how it rests and how it ends.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;

use super::cluster::Cluster;
use super::host::Host;
use super::transport::{self, Transport};
use crate::telemetry::metrics::{ClusterMetrics, UpstreamHandshake};
use crate::tls::Protocol;
use crate::tls::client::{Client, Failure, Reason, Shaken};

/// A connection under TLS. Dropped, it tells the endpoint that it ends, as far as the socket takes that at once
/// (RFC 8446 section 6.1).
#[derive(Debug)]
pub(super) struct Secured(TlsStream<Transport>);

/// A stream to `host`, one of `cluster`, to speak `protocol`; over TLS where there is a `client` of that.
///
/// # Errors
/// Whatever the system says about it, or a [`Failure`] within.
pub(super) async fn open(
    cluster: &Cluster,
    host: &Host,
    client: Option<&Client>,
    protocol: Protocol,
) -> io::Result<Transport> {
    let stream = transport::open(&host.target).await?;
    match client {
        None => Ok(stream),
        // Its future is large: it does not burden connections without TLS.
        Some(client) => Box::pin(shake(cluster, host, client, stream, protocol)).await,
    }
}

async fn shake(
    cluster: &Cluster,
    host: &Host,
    client: &Client,
    stream: Transport,
    protocol: Protocol,
) -> io::Result<Transport> {
    let mut counted = Counted { metrics: &cluster.metrics, outcome: Reason::Unfinished.into() };
    let upstream = &cluster.settings().name;
    match client.connect(stream, host.authority_host(), protocol).await {
        Ok((stream, shaken)) => {
            counted.outcome = match shaken {
                Shaken::Full => UpstreamHandshake::Full,
                Shaken::Resumed => UpstreamHandshake::Resumed,
            };
            if host.is_distrusted.swap(false, Ordering::Relaxed) {
                tracing::info!(%upstream, endpoint = %host.name, "there is TLS with the endpoint again");
            }
            Ok(Transport::Tls(Box::new(Secured(stream))))
        }
        Err(failure) => {
            counted.outcome = failure.reason.into();
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
    outcome: UpstreamHandshake,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.metrics.handshake(self.outcome);
    }
}

impl Secured {
    /// Whether nothing has come for us, not even the end. What comes for TLS alone is dealt with here: tickets for
    /// the next session, and new keys.
    pub(super) fn is_quiet(&mut self) -> bool {
        let mut byte = [0];
        // Nobody waits for it: whoever does so later says so anew.
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(&mut self.0).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
    }

    /// What it runs over.
    pub(super) fn inner(&self) -> &Transport {
        self.0.get_ref().0
    }
}

impl Drop for Secured {
    fn drop(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        let _ = Pin::new(&mut self.0).poll_shutdown(&mut cx);
    }
}

impl AsyncRead for Secured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, parts)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
