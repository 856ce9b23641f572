//! One client connection, over HTTP/1.1 or HTTP/2, until it is closed.

pub(super) mod http1;
pub(super) mod http2;
mod malformed;
mod parked;
mod protocol_detect;
pub(super) mod replacement;
mod transport_setup;

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Version};

use self::protocol_detect::DetectedProtocol;
use self::replacement::IdleProtocol;
use super::Worker;
use super::headers::{self, Hop, HopName, PeerTls};
use super::request_context::UpgradedRequest;
use super::stored_request::StoredRequest;
use super::stream::DownstreamIo;
use super::timeouts::{ConnectionTimer, RequestTimer};
use weir_http::http1::interim::InterimResponses;
use weir_net::in_place;
use weir_net::listener::{AcceptedConnection, ListenerLimits, ProxyProtocol};
use weir_net::overload::{ConnectionPermit, LoadShed};
use weir_net::tls::server::TlsServer;
use weir_net::transport::Transport;
use weir_policy::identify;
use weir_policy::identify::certificate::ClientCertificate;
use weir_policy::identify::client_ip::{self, ClientAddress};

/// Settings of the listener that accepted the connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionSettings {
    /// Index of the listener.
    pub(super) listener: usize,
    /// Whether a proxy in front sends the PROXY protocol.
    pub(super) proxy_protocol: ProxyProtocol,
    /// Maximum sizes of requests, and maximum streams per connection.
    pub(super) limits: ListenerLimits,
}

/// State that all requests of a connection share. The connection counts as open until the last of them has dropped it.
#[derive(Debug)]
pub(super) struct DownstreamConnection {
    pub(super) worker: Rc<Worker>,
    pub(super) listener: usize,
    pub(super) peer: IpAddr,
    pub(super) peer_text: HeaderValue,
    /// Maximum sizes of requests, and maximum streams per connection.
    pub(super) limits: ListenerLimits,
    /// What TLS states about the peer; `None` without TLS.
    pub(super) tls: Option<Box<PeerTls>>,
    timer: Rc<ConnectionTimer>,
    /// The connection's permit.
    permit: ConnectionPermit,
    /// HTTP/2: timer of the stream opened last, until the stream takes it.
    newest_stream: RefCell<Option<Rc<RequestTimer>>>,
    /// The stored call that this internal connection sends; `None` for the connection of a client.
    pub(super) stored: Option<Box<StoredRequest>>,
    /// Interim responses to the current request; over HTTP/2, to the request whose future is being polled.
    pub(super) interims: InterimResponses,
    /// HTTP/2: whether no further stream is to be served, because a request got no response.
    close_after_streams: Cell<bool>,
    /// Upgrade that takes effect after the head of the current response; over HTTP/2, until its stream takes it.
    upgraded: RefCell<Option<Box<UpgradedRequest>>>,
    /// Whether it cannot move to the process that replaces this one.
    must_stay: Cell<bool>,
}

impl DownstreamConnection {
    fn new(
        worker: Rc<Worker>,
        ConnectionSettings { listener, limits, .. }: ConnectionSettings,
        timer: Rc<ConnectionTimer>,
        peer: IpAddr,
        permit: ConnectionPermit,
    ) -> Self {
        let peer_text = headers::address_value(peer);
        Self {
            worker,
            listener,
            peer,
            peer_text,
            limits,
            tls: None,
            timer,
            permit,
            newest_stream: RefCell::default(),
            stored: None,
            interims: InterimResponses::default(),
            close_after_streams: Cell::new(false),
            upgraded: RefCell::default(),
            must_stay: Cell::new(false),
        }
    }

    /// Creates the internal connection of a stored call, on behalf of the peer that sent it.
    pub(super) fn internal(
        worker: Rc<Worker>,
        settings: ConnectionSettings,
        timer: Rc<ConnectionTimer>,
        permit: ConnectionPermit,
        peer: IpAddr,
        stored: StoredRequest,
    ) -> Self {
        let mut connection = Self::new(worker, settings, timer, peer, permit);
        connection.stored = Some(Box::new(stored));
        connection
    }

    /// Counts this connection for its client and returns whether the client may open it. Connections through a Unix
    /// socket are not counted, because their clients cannot be distinguished.
    fn count_client(&mut self, peer: SocketAddr) -> bool {
        if peer.port() == 0 && peer.ip().is_loopback() {
            return true;
        }
        let is_admitted = self.permit.count_client(self.client_network());
        if !is_admitted {
            self.worker.metrics.record_load_shed(LoadShed::Client);
        }
        is_admitted
    }

    /// Returns the connection with its stream, once HTTP can begin.
    fn established(self, transport: Transport) -> (Option<DownstreamIo>, Rc<Self>) {
        let stream = DownstreamIo::new(transport, Rc::clone(&self.timer), self.client_network());
        (Some(stream), Rc::new(self))
    }

    /// Returns the address or network that counts as one client for connection limits; IPv6 clients have a whole
    /// network of addresses.
    fn client_network(&self) -> IpAddr {
        client_ip::network(self.peer, 32, self.worker.view().policy.identify.ipv6_prefix)
    }

    /// Whether it cannot move to the process that replaces this one.
    pub(super) fn must_stay(&self) -> bool {
        self.must_stay.get()
    }

    pub(super) fn set_must_stay(&self) {
        self.must_stay.set(true);
    }

    /// Whether to handle no further request here for now: none may be decided, or another process serves.
    #[inline]
    pub(super) fn is_held_back(&self) -> bool {
        self.worker.shared.replacement.is_frozen() && !self.must_stay.get()
    }

    /// Returns the timer of the connection.
    pub(super) fn timer(&self) -> &ConnectionTimer {
        &self.timer
    }

    /// Returns the client's verified certificate, if it has presented one.
    pub(super) fn certificate(&self) -> Option<&ClientCertificate> {
        self.tls.as_ref()?.certificate.as_ref()
    }

    /// Whether the peer's header about its own client's certificate is used. The peer must be configured for that, and
    /// must not have presented a certificate itself, which would then stand for the client (Envoy: `SANITIZE_SET`).
    pub(super) fn may_forward_certificates(&self, settings: &identify::IdentifySettings) -> bool {
        self.certificate().is_none() && settings.client_certificate_proxies.contains(self.peer)
    }

    /// Whether the listener is a forward proxy.
    pub(super) fn is_forward_proxy(&self) -> bool {
        self.worker.view().forward_proxy(self.listener).is_some()
    }

    /// Returns the properties of this connection from which headers of its requests are set, on behalf of `client`.
    /// `via` names this hop; a `proxy` that clients choose hides them.
    pub(super) fn hop<'a>(
        &'a self,
        client: ClientAddress,
        random: u128,
        HopName { via, is_proxy }: HopName<'a>,
    ) -> Hop<'a> {
        let (tls, hides_client) = (self.tls.as_deref(), is_proxy);
        Hop { tls, peer: self.peer, peer_text: &self.peer_text, client, random, via, hides_client }
    }

    /// Starts a request whose head is complete, and returns its timer. Over HTTP/1.1, a connection has one timer for
    /// all requests.
    pub(super) fn start_request(&self, version: Version, stream_idle_timeout: Duration) -> Rc<RequestTimer> {
        if version != Version::HTTP_2 {
            return self.timer.start_request(stream_idle_timeout);
        }
        let stream = self.worker.coarse_clock.add_stream(&self.timer, stream_idle_timeout);
        self.newest_stream.replace(Some(Rc::clone(&stream)));
        stream
    }
}

impl DownstreamConnection {
    /// Marks the response being sent as the last of HTTP on this connection, or on its stream.
    pub(super) fn set_upgraded(&self, upgraded: UpgradedRequest) {
        self.upgraded.replace(Some(Box::new(upgraded)));
    }

    /// Drops an upgrade whose client has left. It refers to this connection, and the next stream would take it.
    pub(super) fn discard_upgraded(&self) {
        drop(self.upgraded.take());
    }

    /// Whether the connection leaves HTTP after the current response.
    fn is_upgraded(&self) -> bool {
        self.upgraded.borrow().is_some()
    }
}

impl Drop for DownstreamConnection {
    fn drop(&mut self) {
        if self.stored.is_none() {
            self.worker.metrics.downstream_connection_closed(self.listener);
        }
    }
}

/// A connection on its way to HTTP.
enum Setup<F> {
    /// It is being prepared.
    Pending(Pin<Box<F>>),
    /// It is prepared, and has a stream unless a protocol uses it. `None` if it is to be closed. The stream is dropped
    /// first, so that no open socket is not counted.
    Done(Option<(Option<DownstreamIo>, Rc<DownstreamConnection>)>),
}

/// Security of a connection.
#[derive(Debug)]
pub(super) enum ConnectionSecurity {
    /// None.
    Plain,
    /// TLS, beginning with a handshake.
    Handshake(Arc<TlsServer>),
    /// TLS in another process, which passes on the bytes.
    Elsewhere(Box<PeerTls>),
}

/// Sets up the transport of a connection, at once if that takes no time.
fn start_setup(
    mut connection: DownstreamConnection,
    settings: ConnectionSettings,
    security: ConnectionSecurity,
    accepted: AcceptedConnection,
) -> Setup<impl Future<Output = Option<(Option<DownstreamIo>, Rc<DownstreamConnection>)>>> {
    let tls = match security {
        ConnectionSecurity::Plain => None,
        ConnectionSecurity::Handshake(server) => Some(server),
        ConnectionSecurity::Elsewhere(peer) => {
            connection.tls = Some(peer);
            None
        }
    };
    if tls.is_some() || settings.proxy_protocol != ProxyProtocol::Disabled {
        let setting_up = async move {
            let transport = transport_setup::set_up(&mut connection, settings, tls, accepted).await?;
            Some(connection.established(transport))
        };
        Setup::Pending(Box::pin(setting_up))
    } else {
        let is_admitted = connection.count_client(accepted.peer);
        Setup::Done(is_admitted.then(|| connection.established(accepted.stream)))
    }
}

/// Returns a future that serves a connection to its end, with the listener's `security`, and drops `place` with it.
///
/// Each protocol, and a setup that takes time, has a future of its own on the heap. The task, which exists as long as the
/// connection, is then as small as an idle connection.
pub(super) fn serve<P>(
    worker: Rc<Worker>,
    settings: ConnectionSettings,
    security: ConnectionSecurity,
    timer: Rc<ConnectionTimer>,
    accepted: AcceptedConnection,
    permit: ConnectionPermit,
    place: P,
) -> impl Future<Output = ()> {
    let peer = accepted.peer.ip().to_canonical();
    worker.metrics.downstream_connection_opened(settings.listener);
    let connection = DownstreamConnection::new(worker, settings, timer, peer, permit);
    // Both belong to the task for as long as it exists: local variables would take their own room.
    let mut held = (start_setup(connection, settings, security, accepted), place);
    async move {
        let (setup, _) = &mut held;
        if let Setup::Pending(setting_up) = setup {
            *setup = Setup::Done(setting_up.await);
        }
        let Setup::Done(Some((stream, connection))) = setup else { return };
        let negotiated = connection.tls.as_ref().and_then(|tls| tls.protocol);
        let detected = loop {
            let Some(detecting) = stream.as_mut() else { return };
            let detected = protocol_detect::detect(detecting, negotiated, connection).await;
            // Without a byte, the protocol is only known where the connection goes on.
            if !connection.is_held_back() || detected == DetectedProtocol::Http2 {
                break detected;
            }
            // Boxed because it is rare, and larger than what an idle connection needs.
            if !Box::pin(replacement::stays(connection, stream, IdleProtocol::Http1)).await {
                return;
            }
        };
        match detected {
            DetectedProtocol::Http1 => {
                let serve = |active| Box::into_pin(in_place::boxed!(http1::serve(connection, active)));
                loop {
                    if connection.is_held_back()
                        && !Box::pin(replacement::stays(connection, stream, IdleProtocol::Http1)).await
                    {
                        return;
                    }
                    let Some(serving) = stream.take().map(serve) else { return };
                    *stream = serving.await;
                    let Some(parked) = stream else { return };
                    parked::wait_for_input(parked, connection).await;
                }
            }
            DetectedProtocol::Http2 => {
                if connection.worker.shared.replacement.has_begun()
                    && !Box::pin(replacement::stays(connection, stream, IdleProtocol::Http2)).await
                {
                    return;
                }
                let serve = |active| Box::pin(http2::serve(Rc::clone(connection), active));
                let Some(serving) = stream.take().map(serve) else { return };
                serving.await;
            }
            DetectedProtocol::TimedOut => {
                if let Some(stream) = stream {
                    http1::send_request_timeout(connection, stream, &[]);
                }
            }
            DetectedProtocol::NoData => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size of the future that a function returns.
    fn future_size<A, B, T, C, D, E, P, F>(_: impl FnOnce(A, B, T, C, D, E, P) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn task_of_a_connection_is_small() {
        let size = future_size(serve::<Rc<()>>);
        assert!(size <= 224, "{size} bytes");
    }
}
