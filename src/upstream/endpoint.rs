//! One worker's way to one endpoint: its connections, and one request and answer over one of them.
//!
//! How a connection is had and what is spoken over it is decided here; whoever sends a request sees only a head
//! and an [`Answer`]. A request that meets a connection which the upstream has closed meanwhile is sent once more
//! on a fresh one, if that is safe.

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::Scheme;
use http::{Method, StatusCode};
use hyper::body::Body;
use tokio::sync::OwnedSemaphorePermit;

use super::answer::Answer;
use super::circuit_breaker::{Full, Resource};
use super::cluster::Cluster;
use super::connect;
use super::echo;
use super::error::{Error, Unanswered};
use super::host::{Host, Target};
use super::http1::connection::Connection;
use super::http1::streaming::Streaming;
use super::http2::{self, pool::Pool as Http2Pool};
use super::in_flight::{InFlight, ShareWaiters};
use super::outgoing::Outgoing;
use super::pool::{Pool, Room};
use super::settings::{Balance, Settings};
use crate::headers::Response;
use crate::http1::client::conn::{NoResponse, ResponseHeadReader};
use crate::http1::client::response_head::Head;
use crate::http1::client::upload::Upload;
use crate::http1::decoder::Decoder;
use crate::http1::interim::Interims;
use crate::telemetry::metrics::{EndpointMetrics, Overflow};
use crate::tls::Protocol;
use crate::tls::client::Client;
use crate::transport::Transport;

/// One worker's way to one endpoint.
#[derive(Debug)]
pub struct Endpoint {
    cluster: Arc<Cluster>,
    host: Arc<Host>,
    pool: Rc<Pool>,
    http2: Http2Pool,
    metrics: Rc<EndpointMetrics>,
    /// TLS as all of its connections have it.
    tls: Option<Arc<Client>>,
    share_waiters: Rc<ShareWaiters>,
}

impl Endpoint {
    /// A way to `host` without connections yet; over `tls`, if there is any.
    pub(super) fn new(
        cluster: &Arc<Cluster>,
        host: &Arc<Host>,
        tls: Option<Arc<Client>>,
        metrics: EndpointMetrics,
    ) -> Self {
        // Seconds are counted; late is better than early.
        let idle = cluster.settings().idle_timeout;
        let keep_for = idle.as_secs().saturating_add(u64::from(idle.subsec_nanos() > 0)).max(1);
        let metrics = Rc::new(metrics);
        Self {
            pool: Rc::new(Pool::new(keep_for, &cluster.breaker)),
            http2: Http2Pool::new(keep_for, &metrics),
            cluster: Arc::clone(cluster),
            host: Arc::clone(host),
            metrics,
            tls,
            share_waiters: Rc::default(),
        }
    }

    /// Whether its connections are made by `client`, or with no TLS for none.
    pub(super) fn is_secured_by(&self, client: Option<&Arc<Client>>) -> bool {
        self.tls.as_ref().map(Arc::as_ptr) == client.map(Arc::as_ptr)
    }

    /// Its address in logs.
    pub fn name(&self) -> &str {
        &self.host.name
    }

    /// What all workers share of it.
    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// A request to it went well, or failed by its fault.
    pub fn note(&self, is_good: bool) {
        self.cluster.note_outcome(&self.host, is_good);
    }

    /// What is counted of it.
    pub fn metrics(&self) -> &EndpointMetrics {
        &self.metrics
    }

    /// Closes every connection that has no request.
    pub(super) fn close_unused(&self) {
        self.pool.close_unused();
        self.http2.close_unused();
    }

    /// A second has passed.
    pub(super) fn age(&self) {
        self.pool.age();
        self.http2.age();
    }

    /// A way for one request of `client` at once; `None` if a connection has to be made first, or the client has its
    /// share of the requests. A `call` of gRPC always goes over HTTP/2.
    ///
    /// # Errors
    /// [`Error::Overflow`] where as many requests are under way as may be.
    pub fn kept(&self, client: IpAddr, call: bool) -> Result<Option<Line>, Error> {
        if self.host.target == Target::Echo {
            return Ok(Some(Line { in_flight: None, kind: Kind::Echo }));
        }
        let Some(kind) = self.free(call) else { return Ok(None) };
        match self.begin(client, call) {
            Ok(in_flight) => Ok(Some(Line { in_flight, kind })),
            Err(full) => {
                self.give_back(kind);
                if full == Full::Share { Ok(None) } else { Err(self.overflow(Overflow::Requests)) }
            }
        }
    }

    /// A way for one request of `client` by a connection that is made for it, or, where there are as many as may be, by
    /// the first that is free. A client that has its share of the requests waits until another one of them has ended.
    ///
    /// # Errors
    /// [`Error`] if no connection can be made, or as much is under way as may be.
    pub async fn connect(&self, client: IpAddr, call: bool) -> Result<Line, Error> {
        let in_flight = match self.begin(client, call) {
            Ok(in_flight) => in_flight,
            Err(Full::Requests) => return Err(self.overflow(Overflow::Requests)),
            Err(Full::Share) => {
                let in_flight = self.wait_for_share(client, call).await?;
                if let Some(kind) = self.free(call) {
                    return Ok(Line { in_flight, kind });
                }
                in_flight
            }
        };
        let kind = if self.speaks_http2(call) {
            Kind::Http2(self.http2.acquire(&async || self.open_shared().await).await?)
        } else {
            let (connection, is_kept) = self.open().await?;
            Kind::Http1 { connection, is_kept }
        };
        Ok(Line { in_flight, kind })
    }

    /// A connection with room for a request, if there is one.
    fn free(&self, call: bool) -> Option<Kind> {
        match self.speaks_http2(call) {
            true => self.http2.try_acquire().map(Kind::Http2),
            false => self.pool.checkout().map(|connection| Kind::Http1 { connection, is_kept: true }),
        }
    }

    /// The request that was to go by it does not begin.
    fn give_back(&self, kind: Kind) {
        if let Kind::Http1 { connection, .. } = kind {
            self.pool.give_back(connection);
        }
    }

    /// A place among the client's requests, once it has fewer than its share.
    async fn wait_for_share(&self, client: IpAddr, call: bool) -> Result<Option<InFlight>, Error> {
        let breaker = &self.cluster.breaker;
        let Some(_waiting) = breaker.acquire(Resource::OverShare) else {
            return Err(self.overflow(Overflow::Client));
        };
        let beginning = self.share_waiters.wait_for(|| self.begin(client, call).ok());
        tokio::time::timeout(self.patience(), beginning).await.map_err(|_| self.overflow(Overflow::Client))
    }

    /// Sends a request and answers with the head of the answer, its body still to come. Interim responses are left in
    /// `interims`. Dropped before, it closes the connection or, over HTTP/2, resets the stream.
    ///
    /// # Errors
    /// [`Unanswered`] if none of the answer came or it was not HTTP.
    pub async fn send<B>(
        &self,
        line: Line,
        request: &Outgoing,
        body: B,
        interims: &Interims,
    ) -> Result<Response<Answer<B>>, Unanswered<B>>
    where
        B: Body<Data = Bytes> + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let Line { in_flight, kind } = line;
        let mut response = match kind {
            Kind::Echo => echo::answer(request, body),
            Kind::Http1 { connection, is_kept } => {
                self.send_by_http1(connection, is_kept, request, body, interims).await?
            }
            // Its future is large: it does not burden the requests of HTTP/1.1.
            Kind::Http2(permit) => Box::pin(self.send_by_http2(permit, request, body, interims)).await?,
        };
        response.body.hold(in_flight);
        Ok(response)
    }

    async fn send_by_http2<B>(
        &self,
        permit: http2::pool::StreamPermit,
        request: &Outgoing,
        body: B,
        interims: &Interims,
    ) -> Result<Response<Answer<B>>, Unanswered<B>>
    where
        B: Body<Data = Bytes> + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let scheme = if self.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
        let head = || http2::head::for_http2(request, scheme.clone(), &self.host.name);
        http2::send(permit, &self.http2, async || self.open_shared().await, head, interims, body).await
    }

    async fn send_by_http1<B>(
        &self,
        mut connection: Box<Connection>,
        is_kept: bool,
        request: &Outgoing,
        body: B,
        interims: &Interims,
    ) -> Result<Response<Answer<B>>, Unanswered<B>>
    where
        B: Body<Data = Bytes> + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let mut upload =
            Upload::new(&request.head, &request.ours, body, std::mem::take(&mut connection.conn.buffer));
        let to_head = request.head.method == Method::HEAD;
        let mut waiting = ResponseHeadReader::new(to_head, request.wants_map, interims);
        // What cannot be sent twice must not go out on a connection that has just ended, though we have not been told.
        let is_gone = is_kept && !upload.is_repeatable() && !connection.conn.stream.is_quiet_by_now();
        let sent = match is_gone {
            true => Err(NoResponse::Reset(io::ErrorKind::UnexpectedEof.into())),
            false => poll_fn(|cx| connection.conn.poll_head(&mut upload, &mut waiting, cx)).await,
        };
        let head = match sent {
            // The upstream had closed it already, or was about to.
            Err(NoResponse::Reset(_)) if is_kept && upload.may_repeat() => {
                self.metrics.retried();
                drop(connection);
                upload.repeat();
                waiting.begin_again();
                connection = match Box::pin(self.open()).await {
                    Ok((connection, _)) => connection,
                    Err(error) => return Err(Unanswered { error, body: upload.into_body() }),
                };
                poll_fn(|cx| connection.conn.poll_head(&mut upload, &mut waiting, cx))
                    .await
                    .map_err(Error::from)?
            }
            answered => answered.map_err(Error::from)?,
        };
        Ok(self.answer(head, connection, upload))
    }

    fn answer<B>(&self, head: Head, mut connection: Box<Connection>, upload: Upload<B>) -> Response<Answer<B>>
    where
        B: Body<Data = Bytes> + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let Head { status, headers, length, keeps } = head;
        let body = match length {
            _ if status == StatusCode::SWITCHING_PROTOCOLS => Answer::switched(connection.into()),
            Decoder::Length(octets) if connection.conn.has_read(octets) && upload.is_over() => {
                let content = connection.conn.take(octets);
                if keeps {
                    connection.conn.buffer = upload.into_buffer();
                    self.pool.give_back(connection);
                }
                Answer::whole(content)
            }
            length => Answer::streaming(Streaming::new(connection, upload, length, keeps, &self.pool)),
        };
        Response { status, headers, body }
    }

    /// A request begins: it has a place, if places are counted.
    fn begin(&self, client: IpAddr, call: bool) -> Result<Option<InFlight>, Full> {
        let breaker = &self.cluster.breaker;
        let Settings { balance, limits, .. } = self.cluster.settings();
        // Those that share connections are bounded by nothing else.
        let is_bounded = breaker.counts_requests() || self.speaks_http2(call);
        let is_counted = is_bounded || breaker.has_shares() || limits.min_client_rate.is_some();
        if *balance != Balance::LeastRequest && !is_counted {
            return Ok(None);
        }
        let permit = if is_counted { Some(breaker.acquire_request(client, is_bounded)?) } else { None };
        Ok(Some(InFlight::start(&self.host, permit, &self.share_waiters)))
    }

    fn speaks_http2(&self, call: bool) -> bool {
        call || self.cluster.settings().http2
    }

    /// A connection of its own for a request, and whether it was used before.
    async fn open(&self) -> Result<(Box<Connection>, bool), Error> {
        let permit = match self.in_time(self.pool.room()).await? {
            Room::Fresh(permit) => permit,
            Room::Kept(kept) => return Ok((kept, true)),
        };
        let transport = self.open_transport(Protocol::Http1).await?;
        Ok((Connection::new(transport, &self.metrics, permit), false))
    }

    /// A connection that requests share.
    async fn open_shared(&self) -> Result<(Transport, OwnedSemaphorePermit), Error> {
        let permit = self.in_time(self.pool.permit()).await?;
        Ok((self.open_transport(Protocol::Http2).await?, permit))
    }

    /// What the pool has room for, unless that takes too long.
    async fn in_time<T>(&self, room: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        match tokio::time::timeout(self.patience(), room).await {
            Ok(Ok(room)) => Ok(room),
            Ok(Err(_)) => Err(self.overflow(Overflow::Pending)),
            Err(_) => Err(self.overflow(Overflow::Connections)),
        }
    }

    async fn open_transport(&self, protocol: Protocol) -> Result<Transport, Error> {
        let opening = connect::connect(&self.cluster, &self.host, self.tls.as_deref(), protocol);
        let opened = match tokio::time::timeout(self.patience(), opening).await {
            Ok(opened) => opened.map_err(Error::Connect),
            Err(_) => Err(Error::ConnectTimeout),
        };
        opened.inspect_err(|_| self.metrics.connection_failed())
    }

    /// The answer's time runs meanwhile: an upstream that is away is to be told from one that is slow.
    fn patience(&self) -> Duration {
        let settings = self.cluster.settings();
        settings.connect_timeout.min(settings.timeout)
    }

    fn overflow(&self, limit: Overflow) -> Error {
        self.cluster.metrics.overflowed(limit);
        Error::Overflow
    }
}

/// A way for one request to an endpoint: what it speaks, and the connection it goes by.
#[derive(Debug)]
pub struct Line {
    in_flight: Option<InFlight>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Http1 {
        connection: Box<Connection>,
        /// It was used before, so the upstream may be about to close it.
        is_kept: bool,
    },
    Http2(http2::pool::StreamPermit),
    Echo,
}

impl Line {
    /// Whether a request that goes by it may leave HTTP. Over HTTP/2 the other side says so first (RFC 8441 section 3).
    pub async fn can_switch(&self) -> bool {
        match &self.kind {
            Kind::Http1 { .. } | Kind::Echo => true,
            Kind::Http2(permit) => permit.allows_extended_connect().await,
        }
    }
}
