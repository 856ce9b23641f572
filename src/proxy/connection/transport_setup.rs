//! Transport setup before HTTP: the PROXY protocol, and TLS inside of that.
//!
//! All of it must end within the timeout of a request's head. A plain connection passes through.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use http::HeaderValue;
use tokio_rustls::server::TlsStream;

use super::{Connection, ListenerSettings};
use crate::identify::certificate::Certificate;
use crate::listener::preamble;
use crate::listener::{Accepted, ProxyProtocol};
use crate::proxy::headers::{self, PeerTls};
use crate::telemetry::metrics::Preamble;
use crate::tls::handshake_limiter::Aborted;
use crate::tls::identity::Identity;
use crate::tls::server::{Failure, Server, Session};
use crate::transport::Transport;

/// Reads the PROXY protocol's header and does the TLS handshake, where the listener has these. Sets what they say of the
/// client in `connection`. `None` if the connection is to be closed.
pub(super) async fn set_up(
    connection: &mut Connection,
    settings: ListenerSettings,
    accepted: Accepted,
) -> Option<Transport> {
    let tls = connection.worker.view().tls.get(settings.listener).cloned().flatten();
    if tls.is_none() && settings.proxy_protocol == ProxyProtocol::Disabled {
        return connection.claim(accepted.peer).then_some(accepted.stream);
    }
    connection.timer.handshake_started();
    let accepted = proxy_protocol(connection, settings, accepted).await?;
    if !connection.claim(accepted.peer) {
        return None;
    }
    let transport = match tls {
        Some(server) => Box::pin(secure(connection, settings, server, accepted.stream)).await?,
        None => accepted.stream,
    };
    connection.timer.handshake_done();
    Some(transport)
}

/// Reads the PROXY protocol's header, which may replace the peer.
async fn proxy_protocol(
    connection: &mut Connection,
    settings: ListenerSettings,
    accepted: Accepted,
) -> Option<Accepted> {
    if settings.proxy_protocol == ProxyProtocol::Disabled {
        return Some(accepted);
    }
    let is_trusted = connection.worker.view().policy.identify.trusted_proxies.contains(connection.peer);
    let reading = Box::pin(preamble::read(accepted, settings.proxy_protocol, is_trusted));
    let read = in_time(connection, reading).await;
    let (outcome, accepted) = read.unwrap_or((Preamble::Unfinished, None));
    connection.worker.metrics.preamble(settings.listener, outcome);
    let accepted = accepted?;
    connection.peer = accepted.peer.ip().to_canonical();
    connection.peer_text = headers::address(connection.peer);
    Some(accepted)
}

/// Does the TLS handshake and counts its outcome.
async fn secure(
    connection: &mut Connection,
    settings: ListenerSettings,
    server: Arc<Server>,
    stream: Transport,
) -> Option<Transport> {
    let result = handshake(connection, settings, &server, stream).await;
    let outcome = result.as_ref().map(|(_, session)| session.start).map_err(|failure| *failure);
    connection.worker.metrics.handshake(settings.listener, outcome);
    let (stream, session) = result.ok()?;
    connection.tls = Some(Box::new(session.identity.map_or_else(PeerTls::default, of_client)));
    Some(stream.into())
}

/// A handshake, once the client has begun it and there is a permit for it.
async fn handshake(
    connection: &Connection,
    settings: ListenerSettings,
    server: &Server,
    stream: Transport,
) -> Result<(TlsStream<Transport>, Session), Failure> {
    let worker = &connection.worker;
    let limiter = worker.handshakes.get(settings.listener).ok_or(Failure::Other)?;
    in_time(connection, poll_fn(|cx| stream.poll_begun(cx))).await.ok_or(Failure::TimedOut)?;
    let permit = {
        let _waiting = worker.metrics.handshake_waits(settings.listener);
        let acquiring = Box::pin(limiter.acquire(server.settings().handshakes));
        in_time(connection, acquiring).await.ok_or(Failure::Crowded)?
    };
    let _in_flight = worker.metrics.handshake_begins(settings.listener);
    let handshake = Box::pin(permit.run(Box::pin(server.accept(stream))));
    match in_time(connection, handshake).await {
        Some(Ok(result)) => result,
        Some(Err(Aborted)) => Err(Failure::Crowded),
        None => Err(Failure::TimedOut),
    }
}

fn of_client(identity: Identity) -> PeerTls {
    // A name that cannot stand in a field at all leaves the hash, which always can.
    let hash_alone = || HeaderValue::from_str(&format!("Hash={}", identity.hash)).ok();
    let forwarded = HeaderValue::from_bytes(identity.forwarded().as_bytes()).ok().or_else(hash_alone);
    let spiffe = identity.spiffe().map(Box::from);
    let certificate = Certificate { spiffe, subject: identity.subject, dns: identity.hosts };
    PeerTls { certificate: Some(certificate), forwarded }
}

/// What `work` comes to, if it does before a timeout of the connection expires.
async fn in_time<W: Future + Unpin>(connection: &Connection, mut work: W) -> Option<W::Output> {
    let timer = &connection.timer;
    poll_fn(|cx| {
        timer.wake_by(cx.waker());
        match timer.expired() {
            Some(_) => Poll::Ready(None),
            None => Pin::new(&mut work).poll(cx).map(Some),
        }
    })
    .await
}
