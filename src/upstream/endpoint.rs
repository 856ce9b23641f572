//! One worker's way to one endpoint: its connections, and one request and answer over one of them.
//!
//! How a connection is had and what is spoken over it is decided here; whoever sends a request sees only a head
//! and an [`Answer`]. A request that meets a connection which the upstream has closed meanwhile is sent once more
//! on a fresh one, if that is safe.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::uri::Scheme;
use http::{Method, Response, StatusCode};
use hyper::body::Body;
use tokio::sync::OwnedSemaphorePermit;

use super::answer::Answer;
use super::breaker::{Place, Taken};
use super::cluster::Cluster;
use super::echo;
use super::error::{Error, Unanswered};
use super::host::{Host, Target};
use super::http1::connection::{Connection, Waiting};
use super::http1::head::Head;
use super::http1::streaming::Streaming;
use super::http1::upload::Upload;
use super::http2::{self, lines::Lines};
use super::outgoing::Outgoing;
use super::pool::{Pool, Room};
use super::secured;
use super::settings::Balance;
use super::transport::Transport;
use crate::http1::interim::Interims;
use crate::http1::length::Length;
use crate::telemetry::metrics::{EndpointMetrics, Overflow};
use crate::tls::Protocol;
use crate::tls::client::Client;

/// One worker's way to one endpoint.
#[derive(Debug)]
pub struct Endpoint {
    cluster: Arc<Cluster>,
    host: Arc<Host>,
    pool: Rc<Pool>,
    lines: Lines,
    metrics: Rc<EndpointMetrics>,
    /// TLS as all of its connections have it.
    tls: Option<Arc<Client>>,
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
            lines: Lines::new(keep_for, &metrics),
            cluster: Arc::clone(cluster),
            host: Arc::clone(host),
            metrics,
            tls,
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
        self.lines.close_unused();
    }

    /// A second has passed.
    pub(super) fn age(&self) {
        self.pool.age();
        self.lines.age();
    }

    /// A way for one request at once; `None` if a connection has to be made first. A `call` of gRPC always goes over
    /// HTTP/2.
    ///
    /// # Errors
    /// [`Error::Overflow`] where as many requests are under way as may be.
    pub fn kept(&self, call: bool) -> Result<Option<Line>, Error> {
        if self.host.target == Target::Echo {
            return Ok(Some(Line { under_way: None, kind: Kind::Echo }));
        }
        let kind = match self.speaks_http2(call) {
            true => self.lines.free().map(Kind::Http2),
            false => self.pool.checkout().map(|connection| Kind::Http1 { connection, is_kept: true }),
        };
        let Some(kind) = kind else { return Ok(None) };
        Ok(Some(Line { under_way: self.begin(call)?, kind }))
    }

    /// A way for one request by a connection that is made for it, or, where there are as many as may be, by the first
    /// that is free.
    ///
    /// # Errors
    /// [`Error`] if no connection can be made, or as much is under way as may be.
    pub async fn connect(&self, call: bool) -> Result<Line, Error> {
        let under_way = self.begin(call)?;
        let kind = if self.speaks_http2(call) {
            Kind::Http2(self.lines.take(&async || self.open_shared().await).await?)
        } else {
            let (connection, is_kept) = self.open().await?;
            Kind::Http1 { connection, is_kept }
        };
        Ok(Line { under_way, kind })
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
        let Line { under_way, kind } = line;
        let mut response = match kind {
            Kind::Echo => echo::answer(request, body),
            Kind::Http1 { connection, is_kept } => {
                self.send_by_http1((connection, is_kept), request, body, interims).await?
            }
            // Its future is large: it does not burden the requests of HTTP/1.1.
            Kind::Http2(taken) => Box::pin(self.send_by_http2(taken, request, body, interims)).await?,
        };
        response.body_mut().hold(under_way);
        Ok(response)
    }

    async fn send_by_http2<B>(
        &self,
        taken: http2::lines::Taken,
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
        http2::send(taken, &self.lines, async || self.open_shared().await, (head, interims), body).await
    }

    async fn send_by_http1<B>(
        &self,
        (mut connection, is_kept): (Box<Connection>, bool),
        request: &Outgoing,
        body: B,
        interims: &Interims,
    ) -> Result<Response<Answer<B>>, Unanswered<B>>
    where
        B: Body<Data = Bytes> + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let mut upload = Upload::new(request, body, std::mem::take(&mut connection.buffer));
        let to_head = request.head.method == Method::HEAD;
        let mut waiting = Waiting::new(to_head, request.lets_through, interims);
        // What cannot be sent twice must not go out on a connection that has just ended, though we have not been told.
        let is_gone = is_kept && !upload.is_repeatable() && !connection.is_quiet_by_now();
        let sent = match is_gone {
            true => Err(Error::Reset(io::ErrorKind::UnexpectedEof.into())),
            false => poll_fn(|cx| connection.poll_head(&mut upload, &mut waiting, cx)).await,
        };
        let head = match sent {
            // The upstream had closed it already, or was about to.
            Err(Error::Reset(_)) if is_kept && upload.may_repeat() => {
                self.metrics.retried();
                drop(connection);
                upload.repeat();
                waiting.begin_again();
                connection = match Box::pin(self.open()).await {
                    Ok((connection, _)) => connection,
                    Err(error) => return Err(Unanswered { error, body: upload.into_body() }),
                };
                poll_fn(|cx| connection.poll_head(&mut upload, &mut waiting, cx)).await?
            }
            answered => answered?,
        };
        Ok(self.answer(head, connection, upload))
    }

    fn answer<B>(&self, head: Head, mut connection: Box<Connection>, upload: Upload<B>) -> Response<Answer<B>>
    where
        B: Body<Data = Bytes> + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let Head { status, headers, lines, length, keeps } = head;
        let mut answer = match length {
            _ if status == StatusCode::SWITCHING_PROTOCOLS => Answer::switched(connection.into()),
            Length::Octets(octets) if connection.has_read(octets) && upload.is_over() => {
                let content = connection.take(octets);
                if keeps {
                    connection.buffer = upload.into_buffer();
                    self.pool.give_back(connection);
                }
                Answer::whole(content)
            }
            length => Answer::streaming(Streaming::new(connection, upload, (length, keeps), &self.pool)),
        };
        answer.come_with(lines);
        let mut response = Response::new(answer);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }

    /// A request begins: it has a place, if places are counted.
    fn begin(&self, call: bool) -> Result<Option<UnderWay>, Error> {
        let breaker = &self.cluster.breaker;
        let is_balanced = self.cluster.settings().balance == Balance::LeastRequest;
        // Those that share connections are bounded by nothing else.
        let is_counted = breaker.counts_requests() || self.speaks_http2(call);
        if !is_balanced && !is_counted {
            return Ok(None);
        }
        let taken = match is_counted.then(|| breaker.take(Place::Request)) {
            Some(None) => return Err(self.overflow(Overflow::Requests)),
            Some(taken) => taken,
            None => None,
        };
        self.host.under_way.fetch_add(1, Ordering::Relaxed);
        Ok(Some(UnderWay { host: Arc::clone(&self.host), _taken: taken }))
    }

    fn speaks_http2(&self, call: bool) -> bool {
        call || self.cluster.settings().http2
    }

    /// A connection of its own for a request, and whether it was used before.
    async fn open(&self) -> Result<(Box<Connection>, bool), Error> {
        let permit = match tokio::time::timeout(self.patience(), self.pool.room()).await {
            Ok(Ok(Room::Fresh(permit))) => permit,
            Ok(Ok(Room::Kept(kept))) => return Ok((kept, true)),
            Ok(Err(_)) => return Err(self.overflow(Overflow::Pending)),
            Err(_) => return Err(self.overflow(Overflow::Connections)),
        };
        let transport = self.open_transport(Protocol::Http1).await?;
        Ok((Connection::new(transport, &self.metrics, permit), false))
    }

    /// A connection that requests share.
    async fn open_shared(&self) -> Result<(Transport, OwnedSemaphorePermit), Error> {
        let permit = match tokio::time::timeout(self.patience(), self.pool.permit()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(self.overflow(Overflow::Pending)),
            Err(_) => return Err(self.overflow(Overflow::Connections)),
        };
        Ok((self.open_transport(Protocol::Http2).await?, permit))
    }

    async fn open_transport(&self, protocol: Protocol) -> Result<Transport, Error> {
        let opening = secured::open(&self.cluster, &self.host, self.tls.as_deref(), protocol);
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
    under_way: Option<UnderWay>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Http1 {
        connection: Box<Connection>,
        /// It was used before, so the upstream may be about to close it.
        is_kept: bool,
    },
    Http2(http2::lines::Taken),
    Echo,
}

impl Line {
    /// Whether a request that goes by it may leave HTTP. Over HTTP/2 the other side says so first (RFC 8441 section 3).
    pub async fn can_switch(&self) -> bool {
        match &self.kind {
            Kind::Http1 { .. } | Kind::Echo => true,
            Kind::Http2(taken) => taken.offers_switches().await,
        }
    }
}

/// A request under way, as long as somebody wants to know.
#[derive(Debug)]
pub(super) struct UnderWay {
    host: Arc<Host>,
    _taken: Option<Taken>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.host.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}
