//! The service beside us: connections to it, and one request and answer over one of them.
//!
//! Each worker has an [`Upstream`] of its own, so connections never cross threads. A request that meets a
//! connection which the upstream has closed meanwhile is sent once more on a fresh one, if that is safe.

pub mod answer;
pub mod error;

mod echo;
mod pool;
pub mod stream;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use hyper::body::Body;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use self::answer::{Answer, Lease};
use self::error::Error;
use self::pool::Pool;
use self::stream::Stream;
use crate::telemetry::metrics::WorkerMetrics;

/// An answer's head may take this much.
const LARGEST_HEAD: usize = 128 * 1024;

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
pub struct Upstream<B> {
    settings: Arc<Settings>,
    pool: Rc<Pool<B>>,
    metrics: Rc<WorkerMetrics>,
}

impl<B> Upstream<B>
where
    B: Body<Data = Bytes> + Default + Unpin + 'static,
    B::Error: std::error::Error + Send + Sync,
{
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

    /// Sends a request and answers with the head of the answer, its body still to come.
    ///
    /// # Errors
    /// [`Error`] if no connection could be made, or none of the answer came or it was not HTTP.
    pub async fn send(&self, request: Request<B>) -> Result<Response<Answer<B>>, Error> {
        let Address::Tcp { host, port } = &self.settings.address else {
            return Ok(echo::answer(request));
        };
        let request = match self.pool.checkout() {
            None => request,
            Some(mut sender) => {
                let spare = is_replayable(&request).then(|| copy_of_head(&request));
                match sender.try_send_request(request).await {
                    Ok(response) => return Ok(self.leased(response, sender)),
                    Err(mut failed) => {
                        let unsent = failed.take_message();
                        let error = Error::from(failed.into_error());
                        let again = match &error {
                            Error::Reset(_) => unsent.or(spare),
                            _ => None,
                        };
                        let again = again.ok_or(error)?;
                        self.metrics.upstream_retry();
                        again
                    }
                }
            }
        };
        // Connecting is rare and its future large: it does not burden the requests that need none.
        let mut sender = Box::pin(self.connect(host, *port)).await?;
        let response = sender.send_request(request).await?;
        Ok(self.leased(response, sender))
    }

    fn leased(
        &self,
        response: Response<hyper::body::Incoming>,
        sender: SendRequest<B>,
    ) -> Response<Answer<B>> {
        let lease = Lease { sender, pool: Rc::clone(&self.pool) };
        response.map(|incoming| Answer::new(incoming, lease))
    }

    async fn connect(&self, host: &str, port: u16) -> Result<SendRequest<B>, Error> {
        let connected = self.open(host, port).await;
        match &connected {
            Ok(_) => self.metrics.upstream_connection_opened(),
            Err(_) => self.metrics.upstream_connection_failed(),
        }
        let (sender, connection) =
            http1::Builder::new().max_header_size(LARGEST_HEAD).handshake(TokioIo::new(connected?)).await?;
        let metrics = Rc::clone(&self.metrics);
        tokio::task::spawn_local(async move {
            // Whoever waits for an answer is told of a failure; an idle connection may fail unheard.
            let _ = connection.await;
            metrics.upstream_connection_closed();
        });
        Ok(sender)
    }

    async fn open(&self, host: &str, port: u16) -> Result<Stream, Error> {
        let connecting = TcpStream::connect((host, port));
        // The answer's time runs meanwhile: an upstream that is away is to be told from one that is slow.
        let most = self.settings.connect_timeout.min(self.settings.timeout);
        let stream = tokio::time::timeout(most, connecting)
            .await
            .map_err(|_| Error::ConnectTimeout)?
            .map_err(Error::Connect)?;
        stream.set_nodelay(true).map_err(Error::Connect)?;
        Ok(Stream(stream))
    }
}

/// RFC 9110 section 9.2.2: the client could not tell two of these from one. With a body it could not be sent
/// again, since nobody kept the body.
fn is_replayable<B: Body>(request: &Request<B>) -> bool {
    let idempotent = matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS | Method::PUT | Method::DELETE | Method::TRACE
    );
    idempotent && request.body().is_end_stream()
}

fn copy_of_head<B: Default>(request: &Request<B>) -> Request<B> {
    let mut copy = Request::new(B::default());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}
