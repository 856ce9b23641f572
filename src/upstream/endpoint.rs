//! One worker's way to one endpoint: its connections, and one request and answer over one of them.
//!
//! How a connection is had and what is spoken over it is decided here; whoever sends a request sees only a head
//! and an [`Answer`]. A request that meets a connection which the upstream has closed meanwhile is sent once more
//! on a fresh one, if that is safe.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::uri::Scheme;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Body;

use super::answer::Answer;
use super::cluster::Cluster;
use super::echo;
use super::error::Error;
use super::host::{Host, Target};
use super::http1::connection::{Connection, Waiting};
use super::http1::head::Head;
use super::http1::length::Length;
use super::http1::streaming::Streaming;
use super::http1::upload::Upload;
use super::http2::{self, lines::Lines};
use super::pool::Pool;
use super::settings::Balance;
use super::transport::{self, Transport};
use crate::telemetry::metrics::EndpointMetrics;

/// One worker's way to one endpoint.
#[derive(Debug)]
pub struct Endpoint {
    cluster: Arc<Cluster>,
    host: Arc<Host>,
    pool: Rc<Pool>,
    lines: Lines,
    metrics: Rc<EndpointMetrics>,
}

impl Endpoint {
    /// A way to `host` without connections yet.
    pub(super) fn new(cluster: &Arc<Cluster>, host: &Arc<Host>, metrics: EndpointMetrics) -> Self {
        let keep_for = cluster.settings().idle_timeout.as_secs().max(1);
        let metrics = Rc::new(metrics);
        Self {
            pool: Rc::new(Pool::new(keep_for)),
            lines: Lines::new(keep_for, &metrics),
            cluster: Arc::clone(cluster),
            host: Arc::clone(host),
            metrics,
        }
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

    /// A second has passed.
    pub(super) fn age(&self) {
        self.pool.age();
        self.lines.age();
    }

    /// Sends a request and answers with the head of the answer, its body still to come. Dropped before, it
    /// closes the connection or, over HTTP/2, resets the stream. A `call` of gRPC always goes over HTTP/2.
    ///
    /// # Errors
    /// [`Error`] if no connection could be made, or none of the answer came or it was not HTTP.
    pub async fn send<B>(&self, request: Request<B>, call: bool) -> Result<Response<Answer<B>>, Error>
    where
        B: Body<Data = Bytes> + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        if self.host.target == Target::Echo {
            return Ok(echo::answer(request));
        }
        let settings = self.cluster.settings();
        let least_request = settings.balance == Balance::LeastRequest;
        let under_way = least_request.then(|| UnderWay::begin(&self.host));
        let mut response = match call || settings.http2 {
            false => self.send_by_http1(request).await?,
            // Its future is large: it does not burden the requests of HTTP/1.1.
            true => Box::pin(self.send_by_http2(request)).await?,
        };
        response.body_mut().hold(under_way);
        Ok(response)
    }

    async fn send_by_http1<B>(&self, request: Request<B>) -> Result<Response<Answer<B>>, Error>
    where
        B: Body<Data = Bytes> + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let mut kept = self.pool.checkout();
        let is_kept = kept.is_some();
        let buffer = kept.as_mut().map(|kept| std::mem::take(&mut kept.buffer)).unwrap_or_default();
        let (parts, body) = request.into_parts();
        let mut upload = Upload::new(&parts, body, buffer);
        let mut waiting = Waiting::new(parts.method == Method::HEAD);
        // What is to be written is written down: nobody needs the head any more.
        drop(parts);
        let mut connection = match kept {
            Some(kept) => kept,
            // Connecting is rare and its future large: it does not burden the requests that need none.
            None => Box::pin(self.connect()).await?,
        };
        let head = match poll_fn(|cx| connection.poll_head(&mut upload, &mut waiting, cx)).await {
            // The upstream had closed it already, or was about to.
            Err(Error::Reset(_)) if is_kept && upload.may_repeat() => {
                self.metrics.retried();
                drop(connection);
                upload.repeat();
                waiting.begin_again();
                connection = Box::pin(self.connect()).await?;
                poll_fn(|cx| connection.poll_head(&mut upload, &mut waiting, cx)).await?
            }
            answered => answered?,
        };
        Ok(self.answer(head, connection, upload))
    }

    async fn send_by_http2<B>(&self, request: Request<B>) -> Result<Response<Answer<B>>, Error>
    where
        B: Body<Data = Bytes> + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let (parts, body) = request.into_parts();
        let head = http2::head::for_http2(parts, Scheme::HTTP, &self.host.name);
        http2::send(&self.lines, async || self.open().await, head, body).await
    }

    fn answer<B>(&self, head: Head, mut connection: Connection, upload: Upload<B>) -> Response<Answer<B>>
    where
        B: Body<Data = Bytes> + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let Head { status, headers, length, keeps } = head;
        let answer = match length {
            _ if status == StatusCode::SWITCHING_PROTOCOLS => Answer::switched(connection),
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
        let mut response = Response::new(answer);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }

    async fn connect(&self) -> Result<Connection, Error> {
        self.open().await.map(|transport| Connection::new(transport, &self.metrics))
    }

    async fn open(&self) -> Result<Transport, Error> {
        let settings = self.cluster.settings();
        // The answer's time runs meanwhile: an upstream that is away is to be told from one that is slow.
        let most = settings.connect_timeout.min(settings.timeout);
        let opened = match tokio::time::timeout(most, transport::open(&self.host.target)).await {
            Ok(opened) => opened.map_err(Error::Connect),
            Err(_) => Err(Error::ConnectTimeout),
        };
        opened.inspect_err(|_| self.metrics.connection_failed())
    }
}

/// A request under way, as long as somebody wants to know.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<Host>);

impl UnderWay {
    fn begin(host: &Arc<Host>) -> Self {
        host.under_way.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(host))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}
