//! The service beside us: connections to it, and one request and answer over one of them.
//!
//! Each worker has an [`Upstream`] of its own, so connections never cross threads. A request that meets a
//! connection which the upstream has closed meanwhile is sent once more on a fresh one, if that is safe.

pub mod answer;
pub mod error;
pub mod stream;

mod echo;
mod http1;
mod pool;

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use hyper::body::Body;
use tokio::net::TcpStream;

use self::answer::Answer;
use self::error::Error;
use self::http1::connection::{Connection, Waiting};
use self::http1::head::Head;
use self::http1::length::Length;
use self::http1::streaming::Streaming;
use self::http1::upload::Upload;
use self::pool::Pool;
use crate::telemetry::metrics::WorkerMetrics;

/// Where requests go and how long that may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where.
    pub address: Address,
    /// Until a connection stands.
    pub connect_timeout: Duration,
    /// From the request's last byte to the answer's headers.
    pub timeout: Duration,
    /// How long a body may stand still, and how long an unused connection is kept.
    pub idle_timeout: Duration,
}

/// An upstream's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// HTTP/1.1 over TCP.
    Tcp {
        /// A name or an address, IPv6 without brackets.
        host: Box<str>,
        /// The port.
        port: u16,
    },
    /// A built-in answerer for trying things out.
    Echo,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Echo => f.write_str("echo"),
        }
    }
}

/// One worker's way to the upstream of one configuration.
#[derive(Debug)]
pub struct Upstream {
    settings: Arc<Settings>,
    pool: Rc<Pool>,
    metrics: Rc<WorkerMetrics>,
}

impl Upstream {
    /// A way to the upstream without connections yet.
    pub fn new(settings: Arc<Settings>, metrics: Rc<WorkerMetrics>) -> Self {
        let pool = Rc::new(Pool::new(settings.idle_timeout.as_secs().max(1)));
        Self { settings, pool, metrics }
    }

    /// The settings it was made from.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// A second has passed.
    pub fn age(&self) {
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
        let Address::Tcp { host, port } = &self.settings.address else {
            return Ok(echo::answer(request));
        };
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
            None => Box::pin(self.connect(host, *port)).await?,
        };
        let head = match poll_fn(|cx| connection.poll_head(&mut upload, &mut waiting, cx)).await {
            // The upstream had closed it already, or was about to.
            Err(Error::Reset(_)) if is_kept && upload.may_repeat() => {
                self.metrics.upstream_retry();
                drop(connection);
                upload.repeat();
                waiting.begin_again();
                connection = Box::pin(self.connect(host, *port)).await?;
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

    async fn connect(&self, host: &str, port: u16) -> Result<Connection, Error> {
        match self.open(host, port).await {
            Ok(stream) => Ok(Connection::new(stream, &self.metrics)),
            Err(error) => {
                self.metrics.upstream_connection_failed();
                Err(error)
            }
        }
    }

    async fn open(&self, host: &str, port: u16) -> Result<TcpStream, Error> {
        let connecting = TcpStream::connect((host, port));
        // The answer's time runs meanwhile: an upstream that is away is to be told from one that is slow.
        let most = self.settings.connect_timeout.min(self.settings.timeout);
        let stream = tokio::time::timeout(most, connecting)
            .await
            .map_err(|_| Error::ConnectTimeout)?
            .map_err(Error::Connect)?;
        stream.set_nodelay(true).map_err(Error::Connect)?;
        Ok(stream)
    }
}
