//! Connection setup before HTTP: the PROXY protocol, then TLS.
//!
//! All of it must complete within the timeout of a request head. A plain connection skips it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use http::HeaderValue;
use tokio_rustls::server::TlsStream;

use super::{ConnectionSettings, DownstreamConnection};
use crate::proxy::headers::{self, PeerTls};
use weir_net::listener::preamble;
use weir_net::listener::preamble::ProxyProtocolOutcome;
use weir_net::listener::{AcceptedConnection, ProxyProtocol};
use weir_net::tls::handshake_limiter::Aborted;
use weir_net::tls::identity::Identity;
use weir_net::tls::server::{ServerHandshakeError, TlsServer, TlsSession};
use weir_net::transport::Transport;
use weir_policy::identify::certificate::ClientCertificate;

/// Reads the PROXY protocol header and performs the TLS handshake, if the listener has these: with `tls`. Stores what they tell
/// about the client in `connection`. Returns `None` if the connection is to be closed.
pub(super) async fn set_up(
    connection: &mut DownstreamConnection,
    settings: ConnectionSettings,
    tls: Option<Arc<TlsServer>>,
    accepted: AcceptedConnection,
) -> Option<Transport> {
    connection.timer.handshake_started();
    let accepted = read_proxy_protocol(connection, settings, accepted).await?;
    if !connection.count_client(accepted.peer) {
        return None;
    }
    let transport = match tls {
        Some(server) => Box::pin(accept_tls(connection, settings, server, accepted.stream)).await?,
        None => accepted.stream,
    };
    connection.timer.handshake_done();
    Some(transport)
}

/// Reads the PROXY protocol header, which may replace the peer's address.
async fn read_proxy_protocol(
    connection: &mut DownstreamConnection,
    settings: ConnectionSettings,
    accepted: AcceptedConnection,
) -> Option<AcceptedConnection> {
    if settings.proxy_protocol == ProxyProtocol::Disabled {
        return Some(accepted);
    }
    let is_trusted = connection.worker.view().policy.identify.trusted_proxies.contains(connection.peer);
    let reading = Box::pin(preamble::read(accepted, settings.proxy_protocol, is_trusted));
    let read = with_timeout(connection, reading).await;
    let (outcome, accepted) = read.unwrap_or((ProxyProtocolOutcome::Incomplete, None));
    connection.worker.metrics.record_proxy_protocol(settings.listener, outcome);
    let accepted = accepted?;
    connection.peer = accepted.peer.ip().to_canonical();
    connection.peer_text = headers::address_value(connection.peer);
    Some(accepted)
}

/// Performs the TLS handshake and counts its outcome.
async fn accept_tls(
    connection: &mut DownstreamConnection,
    settings: ConnectionSettings,
    server: Arc<TlsServer>,
    stream: Transport,
) -> Option<Transport> {
    let result = handshake(connection, settings, &server, stream).await;
    let outcome = result.as_ref().map(|(_, session)| session.start).map_err(|failure| *failure);
    connection.worker.metrics.record_handshake(settings.listener, outcome);
    let (stream, session) = result.ok()?;
    let peer = session.identity.map_or_else(PeerTls::default, peer_tls);
    connection.tls = Some(Box::new(PeerTls { protocol: session.protocol, ..peer }));
    Some(stream.into())
}

/// Performs a handshake, once the client has started it and a permit is available.
async fn handshake(
    connection: &DownstreamConnection,
    settings: ConnectionSettings,
    server: &TlsServer,
    mut stream: Transport,
) -> Result<(TlsStream<Transport>, TlsSession), ServerHandshakeError> {
    let worker = &connection.worker;
    let limiter = worker.handshakes(settings.listener);
    with_timeout(connection, poll_fn(|cx| stream.poll_readable(cx)))
        .await
        .ok_or(ServerHandshakeError::TimedOut)?;
    let permit = {
        let _waiting = worker.metrics.start_handshake_wait(settings.listener);
        let acquiring = Box::pin(limiter.acquire(server.settings().max_handshakes));
        with_timeout(connection, acquiring).await.ok_or(ServerHandshakeError::Crowded)?
    };
    let _in_flight = worker.metrics.start_handshake(settings.listener);
    let handshake = Box::pin(permit.run(Box::pin(server.accept(stream))));
    match with_timeout(connection, handshake).await {
        Some(Ok(result)) => result,
        Some(Err(Aborted)) => Err(ServerHandshakeError::Crowded),
        None => Err(ServerHandshakeError::TimedOut),
    }
}

fn peer_tls(identity: Identity) -> PeerTls {
    // If a name is not valid in a header, only the hash of the certificate is forwarded.
    let hash_alone = || HeaderValue::from_str(&format!("Hash={}", identity.hash)).ok();
    let forwarded =
        HeaderValue::from_bytes(identity.to_forwarded_client_cert().as_bytes()).ok().or_else(hash_alone);
    let spiffe = identity.spiffe().map(Box::from);
    let certificate = ClientCertificate { spiffe, subject: identity.subject, dns: identity.hosts };
    PeerTls { certificate: Some(certificate), forwarded, protocol: None }
}

/// Awaits `work`; `None` if a timeout of the connection expires before.
async fn with_timeout<W: Future + Unpin>(
    connection: &DownstreamConnection,
    mut work: W,
) -> Option<W::Output> {
    let timer = &connection.timer;
    poll_fn(|cx| {
        timer.register_waker(cx.waker());
        match timer.expired() {
            Some(_) => Poll::Ready(None),
            None => Pin::new(&mut work).poll(cx).map(Some),
        }
    })
    .await
}
