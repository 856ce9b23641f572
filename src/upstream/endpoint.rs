//! One worker's way to one endpoint: its connections, and one request and answer over one of them.
//!
//! How a connection is had and what is spoken over it is decided here; whoever sends a request sees only a head
//! and an [`Answer`]. A request that meets a connection which the upstream has closed meanwhile is sent once more
//! on a fresh one, if that is safe.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response};
use hyper::body::Body;
use tokio::net::{TcpStream, UnixStream};

use super::answer::Answer;
use super::cluster::{Cluster, Host};
use super::echo;
use super::error::Error;
use super::http1::connection::{Connection, Waiting};
use super::http1::head::Head;
use super::http1::length::Length;
use super::http1::streaming::Streaming;
use super::http1::upload::Upload;
use super::pool::Pool;
use super::settings::Address;
use super::transport::Transport;
use crate::telemetry::metrics::EndpointMetrics;

/// One worker's way to one endpoint.
#[derive(Debug)]
pub struct Endpoint {
    cluster: Arc<Cluster>,
    host: Arc<Host>,
    pool: Rc<Pool>,
    metrics: Rc<EndpointMetrics>,
}

impl Endpoint {
    /// A way to `host` without connections yet.
    pub(super) fn new(cluster: &Arc<Cluster>, host: &Arc<Host>, metrics: EndpointMetrics) -> Self {
        Self {
            pool: Rc::new(Pool::new(cluster.settings().idle_timeout.as_secs().max(1))),
            cluster: Arc::clone(cluster),
            host: Arc::clone(host),
            metrics: Rc::new(metrics),
        }
    }

    /// Its address in logs.
    pub fn name(&self) -> &str {
        &self.host.name
    }

    /// What is counted of it.
    pub fn metrics(&self) -> &EndpointMetrics {
        &self.metrics
    }

    /// A second has passed.
    pub(super) fn age(&self) {
        self.pool.age();
    }

    /// Sends a request and answers with the head of the answer, its body still to come. Dropped before, it
    /// closes the connection.
    ///
    /// # Errors
    /// [`Error`] if no connection could be made, or none of the answer came or it was not HTTP.
    pub async fn send<B>(&self, request: Request<B>) -> Result<Response<Answer<B>>, Error>
    where
        B: Body<Data = Bytes> + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        if self.host.address == Address::Echo {
            return Ok(echo::answer(request));
        }
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

    fn answer<B>(&self, head: Head, mut connection: Connection, upload: Upload<B>) -> Response<Answer<B>>
    where
        B: Body<Data = Bytes> + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let Head { status, headers, length, keeps } = head;
        let answer = match length {
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
        let settings = self.cluster.settings();
        // The answer's time runs meanwhile: an upstream that is away is to be told from one that is slow.
        let most = settings.connect_timeout.min(settings.timeout);
        let opened = match tokio::time::timeout(most, open(&self.host.address)).await {
            Ok(opened) => opened.map_err(Error::Connect),
            Err(_) => Err(Error::ConnectTimeout),
        };
        opened
            .map(|transport| Connection::new(transport, &self.metrics))
            .inspect_err(|_| self.metrics.connection_failed())
    }
}

async fn open(address: &Address) -> io::Result<Transport> {
    match address {
        Address::Tcp { host, port } => {
            let stream = TcpStream::connect((&**host, *port)).await?;
            stream.set_nodelay(true)?;
            Ok(Transport::Tcp(stream))
        }
        Address::Unix(path) => UnixStream::connect(path).await.map(Transport::Unix),
        Address::Echo => Err(io::ErrorKind::Unsupported.into()),
    }
}
