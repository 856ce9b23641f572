//! One client's connection, whatever it speaks: HTTP/1.1 or HTTP/2, until either side has had enough.

pub(super) mod http1;
mod http2;
mod malformed;
mod protocol_detect;
mod transport_setup;

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use http::{HeaderValue, Version};
use hyper_util::rt::TokioIo;
use tokio::task::JoinHandle;

use self::protocol_detect::Protocol;
use super::Worker;
use super::headers::{self, Hop, PeerTls};
use super::request_context::UpgradedRequest;
use super::stream::Downstream;
use super::timeouts::{ConnectionTimer, RequestTimer};
use crate::http1::interim::Interims;
use crate::identify;
use crate::identify::certificate::Certificate;
use crate::identify::client_ip::{self, ClientAddress};
use crate::listener::{Accepted, Limits, ProxyProtocol};
use crate::overload::{ConnectionPermit, LoadShed};

/// The settings of the listener by which a connection comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListenerSettings {
    /// The listener's index.
    pub(super) listener: usize,
    /// Whether a proxy in front says who connected.
    pub(super) proxy_protocol: ProxyProtocol,
    /// What a connection and a request may take.
    pub(super) limits: Limits,
}

/// Where the task is found that sends a stream's bytes to the client, once it runs.
pub(super) type Sending = Rc<RefCell<Option<JoinHandle<()>>>>;

/// What all requests of a connection share. It counts as open as long as one of them needs it.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) worker: Rc<Worker>,
    pub(super) listener: usize,
    pub(super) peer: IpAddr,
    pub(super) peer_text: HeaderValue,
    /// What it and its requests may take.
    pub(super) limits: Limits,
    /// What is known by TLS; `None` without it.
    pub(super) tls: Option<Box<PeerTls>>,
    timer: Rc<ConnectionTimer>,
    /// Its permit among all connections.
    permit: ConnectionPermit,
    /// The timer of the stream opened last, until its task has it.
    newest_stream: RefCell<Option<Rc<RequestTimer>>>,
    /// Interim responses to the request under way, where the connection has one at a time.
    pub(super) interims: Interims,
    /// What the connection is to become when its last answer is out.
    upgraded: RefCell<Option<UpgradedRequest>>,
    /// The stream that left HTTP last, until its task for what goes to the client is known.
    leaving: RefCell<Option<Sending>>,
}

impl Connection {
    fn new(
        worker: Rc<Worker>,
        ListenerSettings { listener, limits, .. }: ListenerSettings,
        timer: Rc<ConnectionTimer>,
        peer: IpAddr,
        permit: ConnectionPermit,
    ) -> Self {
        worker.metrics.downstream_connection_opened(listener);
        let peer_text = headers::address(peer);
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
            interims: Interims::default(),
            upgraded: RefCell::default(),
            leaving: RefCell::default(),
        }
    }

    /// Whether the client may have one more connection: this one. Processes of this machine that come by a socket in
    /// the file system cannot be told apart.
    fn claim(&mut self, peer: SocketAddr) -> bool {
        if peer.port() == 0 && peer.ip().is_loopback() {
            return true;
        }
        let is_admitted = self.permit.count_client(self.network());
        if !is_admitted {
            self.worker.metrics.load_shed(LoadShed::Client);
        }
        is_admitted
    }

    /// Its peer where connections are bounded: an IPv6 client has a whole network of addresses.
    fn network(&self) -> IpAddr {
        client_ip::network(self.peer, 32, self.worker.view().policy.identify.ipv6_prefix)
    }

    /// What the client's certificate says, if it has shown one that holds.
    pub(super) fn certificate(&self) -> Option<&Certificate> {
        self.tls.as_ref()?.certificate.as_ref()
    }

    /// Whether the peer may say which certificate its own client has shown: one that is named for it, and has not shown a
    /// certificate itself, which then stands for the client (Envoy: `SANITIZE_SET`).
    pub(super) fn is_believed_on_certificates(&self, settings: &identify::Settings) -> bool {
        self.certificate().is_none() && settings.client_certificate_proxies.contains(self.peer)
    }

    /// What its requests' fields are made of, on behalf of `client`.
    pub(super) fn hop(&self, client: ClientAddress, random: u128) -> Hop<'_> {
        let tls = self.tls.as_deref();
        Hop { tls, peer: self.peer, peer_text: &self.peer_text, client, random }
    }

    /// A request's head is complete. Its timer: over HTTP/1.1 the connection has one for all its requests.
    pub(super) fn start_request(&self, version: Version, stream_idle_timeout: Duration) -> Rc<RequestTimer> {
        if version != Version::HTTP_2 {
            return self.timer.start_request(stream_idle_timeout);
        }
        let stream = self.worker.slow_clock.add_stream(&self.timer, stream_idle_timeout);
        self.newest_stream.replace(Some(Rc::clone(&stream)));
        stream
    }
}

impl Connection {
    /// The response being sent is the last of HTTP.
    pub(super) fn upgrade(&self, upgraded: UpgradedRequest) {
        self.upgraded.replace(Some(upgraded));
    }

    /// Whether it was.
    fn is_upgraded(&self) -> bool {
        self.upgraded.borrow().is_some()
    }

    /// A stream leaves HTTP with the answer under way; answers where the task that it gets will be found.
    pub(super) fn leave_http(&self) -> Sending {
        let sending = Sending::default();
        self.leaving.replace(Some(Rc::clone(&sending)));
        sending
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.worker.metrics.downstream_connection_closed(self.listener);
    }
}

/// Serves a connection to its end.
pub(super) async fn serve(
    worker: Rc<Worker>,
    settings: ListenerSettings,
    timer: Rc<ConnectionTimer>,
    accepted: Accepted,
    permit: ConnectionPermit,
) {
    accepted.stream.set_nodelay();
    let peer = accepted.peer.ip().to_canonical();
    let mut connection = Connection::new(worker, settings, Rc::clone(&timer), peer, permit);
    let Some(transport) = transport_setup::set_up(&mut connection, settings, accepted).await else { return };
    let connection = Rc::new(connection);
    let mut stream = Downstream::new(transport, Rc::clone(&timer), connection.network());
    match protocol_detect::detect(&mut stream, &timer).await {
        Protocol::Http1 => http1::serve(connection, stream).await,
        Protocol::Http2 => http2::serve(connection, TokioIo::new(stream)).await,
        Protocol::TimedOut => http1::time_out(&connection, &mut stream, &[]),
        Protocol::Unused => {}
    }
}
