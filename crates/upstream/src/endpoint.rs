//! One worker's connections to one endpoint, and requests over them.
//!
//! The choice of connection and protocol is hidden here; callers pass a header section and receive a
//! response. If the upstream has closed an idle connection in the meantime, the request is sent once more on
//! a fresh one, provided that is safe.

mod send;

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use super::circuit_breaker::{LimitReached, Resource};
use super::cluster::Cluster;
use super::connect::{self, HandshakeName};
use super::error::UpstreamError;
use super::host::{ConnectTarget, UpstreamHost};
use super::http1::connection::Http1Connection;
use super::http1_pool::{Checkout, Http1Pool};
use super::http2::{self, pool::Http2Pool};
use super::in_flight::{EndpointRequests, InFlightRequest};
use super::response_body::UpstreamResponseBody;
use weir_limiter::adaptive_throttle::AdaptiveThrottle;
use weir_net::tls::AlpnProtocol;
use weir_net::tls::client::TlsClient;
use weir_net::transport::Transport;
use weir_telemetry::metrics::{EndpointMetrics, UpstreamOverflow};

/// One worker's connections to one endpoint.
#[derive(Debug)]
pub struct Endpoint {
    cluster: Arc<Cluster>,
    host: Arc<UpstreamHost>,
    http1_pool: Rc<Http1Pool>,
    http2_pool: Http2Pool,
    metrics: Rc<EndpointMetrics>,
    /// TLS client of all its connections, if they use TLS.
    tls: Option<Arc<TlsClient>>,
    /// Server name in TLS, in place of the host of the address.
    server_name: Option<Rc<str>>,
    /// Whether a handshake with the server name has succeeded.
    is_name_verified: Cell<bool>,
    requests: Rc<EndpointRequests>,
}

impl Endpoint {
    /// Creates an endpoint without connections; over TLS if `tls` is given.
    pub(super) fn new(
        cluster: &Arc<Cluster>,
        host: &Arc<UpstreamHost>,
        tls: Option<Arc<TlsClient>>,
        server_name: Option<Rc<str>>,
        metrics: EndpointMetrics,
    ) -> Self {
        // The pools count whole seconds, so a fraction is rounded up.
        let idle = cluster.settings().idle_timeout;
        let keep_for = idle.as_secs().saturating_add(u64::from(idle.subsec_nanos() > 0)).max(1);
        let metrics = Rc::new(metrics);
        Self {
            http1_pool: Rc::new(Http1Pool::new(keep_for, &cluster.breaker)),
            http2_pool: Http2Pool::new(keep_for, connect_timeout(cluster), &metrics, host),
            cluster: Arc::clone(cluster),
            host: Arc::clone(host),
            metrics,
            tls,
            server_name,
            is_name_verified: Cell::new(false),
            requests: EndpointRequests::new(cluster, host),
        }
    }

    /// Whether its connections use `client`, or no TLS if that is `None`.
    pub(super) fn is_secured_by(&self, client: Option<&Arc<TlsClient>>) -> bool {
        self.tls.as_ref().map(Arc::as_ptr) == client.map(Arc::as_ptr)
    }

    /// Returns the address for logs.
    pub fn name(&self) -> &str {
        &self.host.name
    }

    /// Returns the state that all workers share.
    pub fn host(&self) -> &Arc<UpstreamHost> {
        &self.host
    }

    /// Records whether a request succeeded, or failed because of this endpoint.
    pub fn record_outcome(&self, is_good: bool) {
        self.cluster.record_outcome(&self.host, is_good);
    }

    /// Returns what rejects calls that would be rejected anyway; `None` unless configured.
    pub fn throttle(&self) -> Option<&AdaptiveThrottle> {
        self.cluster.throttle()
    }

    pub fn metrics(&self) -> &EndpointMetrics {
        &self.metrics
    }

    /// Closes every idle connection.
    pub(super) fn close_unused(&self) {
        self.http1_pool.close_unused();
        self.http2_pool.close_unused();
    }

    /// Returns the number of connections without a request.
    pub(super) fn idle_connections(&self) -> usize {
        self.http1_pool.idle_connections().saturating_add(self.http2_pool.idle_connections())
    }

    /// Whether there is no connection that could be closed.
    pub(super) fn is_unconnected(&self) -> bool {
        self.http1_pool.is_empty() && self.http2_pool.is_empty()
    }

    /// Advances the time by one second.
    pub(super) fn tick_second(&self) {
        self.http1_pool.tick_second();
        self.http2_pool.tick_second();
    }

    /// Returns an idle connection for a request of `client`. `None` if a new connection is needed, or the client has
    /// reached its share of the requests. A gRPC `call` always uses HTTP/2.
    ///
    /// # Errors
    /// [`UpstreamError::Overflow`] if the maximum number of requests is in flight.
    pub fn try_checkout(
        &self,
        client: IpAddr,
        call: bool,
    ) -> Result<Option<PooledConnection>, UpstreamError> {
        if self.host.target == ConnectTarget::Echo {
            return Ok(Some(PooledConnection { in_flight: None, kind: ConnectionKind::Echo }));
        }
        let Some(kind) = self.checkout_idle(call) else { return Ok(None) };
        match self.start_request(client, call) {
            Ok(in_flight) => Ok(Some(PooledConnection { in_flight, kind })),
            Err(full) => {
                self.return_connection(kind);
                if full == LimitReached::ClientShare {
                    Ok(None)
                } else {
                    Err(self.overflow(UpstreamOverflow::Requests))
                }
            }
        }
    }

    /// Returns a new connection for a request of `client`, or the first that becomes idle if the maximum number is
    /// open. If the client has reached its share of the requests, waits until another one of them has ended.
    ///
    /// # Errors
    /// [`UpstreamError`] if no connection can be established, or a circuit breaker is open.
    pub async fn connect(&self, client: IpAddr, call: bool) -> Result<PooledConnection, UpstreamError> {
        let in_flight = match self.start_request(client, call) {
            Ok(in_flight) => in_flight,
            Err(LimitReached::Requests) => return Err(self.overflow(UpstreamOverflow::Requests)),
            Err(LimitReached::ClientShare) => {
                let in_flight = self.wait_for_share(client, call).await?;
                if let Some(kind) = self.checkout_idle(call) {
                    return Ok(PooledConnection { in_flight, kind });
                }
                in_flight
            }
        };
        let kind = if self.uses_http2(call) {
            ConnectionKind::Http2(self.http2_pool.acquire(&async || self.open_http2().await).await?)
        } else {
            let (connection, is_reused) = self.open_http1().await?;
            ConnectionKind::Http1 { connection, is_reused }
        };
        Ok(PooledConnection { in_flight, kind })
    }

    /// Opens a connection that carries the bytes of a tunnel for `client`, as the body of the response to CONNECT.
    ///
    /// # Errors
    /// [`UpstreamError`] if no connection can be established, or a circuit breaker is open.
    pub async fn open_tunnel<B>(&self, client: IpAddr) -> Result<UpstreamResponseBody<B>, UpstreamError> {
        let in_flight = match self.start_request(client, false) {
            Ok(in_flight) => in_flight,
            Err(LimitReached::Requests) => return Err(self.overflow(UpstreamOverflow::Requests)),
            Err(LimitReached::ClientShare) => self.wait_for_share(client, false).await?,
        };
        let permit = self.with_timeout(self.http1_pool.acquire_permit()).await?;
        let transport = self.open_transport(AlpnProtocol::Http1).await?;
        let connection = Http1Connection::new(transport, &self.metrics, permit);
        let mut body = UpstreamResponseBody::upgraded(connection.into());
        body.hold_in_flight(in_flight);
        Ok(body)
    }

    /// Returns a connection with room for a request, if there is one.
    fn checkout_idle(&self, call: bool) -> Option<ConnectionKind> {
        match self.uses_http2(call) {
            true => self.http2_pool.try_acquire().map(ConnectionKind::Http2),
            false => self
                .http1_pool
                .checkout_on_arrival()
                .map(|connection| ConnectionKind::Http1 { connection, is_reused: true }),
        }
    }

    /// Returns an unused connection to the pool.
    fn return_connection(&self, kind: ConnectionKind) {
        if let ConnectionKind::Http1 { connection, .. } = kind {
            self.http1_pool.return_connection(connection);
        }
    }

    /// Waits until the client is below its share, then counts the request.
    async fn wait_for_share(
        &self,
        client: IpAddr,
        call: bool,
    ) -> Result<Option<InFlightRequest>, UpstreamError> {
        let breaker = &self.cluster.breaker;
        let Some(_waiting) = breaker.acquire(Resource::OverShare) else {
            return Err(self.overflow(UpstreamOverflow::Client));
        };
        let beginning = self.requests.wait_for(|| self.start_request(client, call).ok());
        tokio::time::timeout(self.connect_timeout(), beginning)
            .await
            .map_err(|_| self.overflow(UpstreamOverflow::Client))
    }

    /// Counts the start of a request, if requests are counted.
    fn start_request(&self, client: IpAddr, call: bool) -> Result<Option<InFlightRequest>, LimitReached> {
        self.requests.start(client, self.uses_http2(call))
    }

    fn uses_http2(&self, call: bool) -> bool {
        call || self.cluster.settings().http2
    }

    /// Returns a connection for exclusive use, and whether it was used before.
    async fn open_http1(&self) -> Result<(Box<Http1Connection>, bool), UpstreamError> {
        let permit = match self.with_timeout(self.http1_pool.acquire()).await? {
            Checkout::New(permit) => permit,
            Checkout::Reused(kept) => return Ok((kept, true)),
        };
        let transport = self.open_transport(AlpnProtocol::Http1).await?;
        Ok((Http1Connection::new(transport, &self.metrics, permit), false))
    }

    /// Opens a connection for multiplexed requests.
    async fn open_http2(&self) -> Result<(Transport, OwnedSemaphorePermit), UpstreamError> {
        let permit = self.with_timeout(self.http1_pool.acquire_permit()).await?;
        Ok((self.open_transport(AlpnProtocol::Http2).await?, permit))
    }

    /// Waits for a permit or connection of the pool, for a limited time.
    async fn with_timeout<T>(
        &self,
        room: impl Future<Output = Result<T, UpstreamError>>,
    ) -> Result<T, UpstreamError> {
        match tokio::time::timeout(self.connect_timeout(), room).await {
            Ok(Ok(room)) => Ok(room),
            Ok(Err(_)) => Err(self.overflow(UpstreamOverflow::Pending)),
            Err(_) => Err(self.overflow(UpstreamOverflow::Connections)),
        }
    }

    async fn open_transport(&self, protocol: AlpnProtocol) -> Result<Transport, UpstreamError> {
        let settings = self.cluster.settings();
        let name = HandshakeName {
            name: self.server_name.as_deref(),
            is_chosen_by_client: settings.server_name_from_host && settings.rewrite.host.is_none(),
            is_verified: self.is_name_verified.get(),
        };
        let opening = connect::connect(&self.cluster, &self.host, self.tls.as_deref(), name, protocol);
        let error = match tokio::time::timeout(self.connect_timeout(), opening).await {
            Ok(Ok(opened)) => {
                self.is_name_verified.set(true);
                return Ok(opened);
            }
            Ok(Err(error)) if name.is_chosen_by_client && connect::is_for_other_names(&error) => {
                return Err(UpstreamError::ServerName(error));
            }
            Ok(Err(error)) => UpstreamError::Connect(error),
            Err(_) => UpstreamError::ConnectTimeout,
        };
        self.metrics.connection_failed();
        Err(error)
    }

    fn connect_timeout(&self) -> Duration {
        connect_timeout(&self.cluster)
    }

    fn overflow(&self, limit: UpstreamOverflow) -> UpstreamError {
        self.cluster.metrics.record_overflow(limit);
        UpstreamError::Overflow
    }
}

/// Returns the maximum time to wait for a connection. It is within the response timeout, so that an unreachable upstream
/// is distinguished from a slow one.
fn connect_timeout(cluster: &Cluster) -> Duration {
    let settings = cluster.settings();
    settings.connect_timeout.min(settings.timeout)
}

/// A connection for one request to an endpoint.
#[derive(Debug)]
pub struct PooledConnection {
    in_flight: Option<InFlightRequest>,
    kind: ConnectionKind,
}

#[derive(Debug)]
enum ConnectionKind {
    Http1 {
        connection: Box<Http1Connection>,
        /// Whether it was used before, so the upstream may be about to close it.
        is_reused: bool,
    },
    Http2(http2::pool::StreamPermit),
    Echo,
}

impl PooledConnection {
    /// Whether a request may be upgraded. Over HTTP/2 the upstream must have allowed it (RFC 8441 section 3).
    pub async fn allows_upgrade(&self) -> bool {
        match &self.kind {
            ConnectionKind::Http1 { .. } | ConnectionKind::Echo => true,
            ConnectionKind::Http2(permit) => permit.allows_extended_connect().await,
        }
    }
}
