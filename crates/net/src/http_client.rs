//! HTTP/1.1 client of the services that Weir itself uses, such as webhooks and collectors, with or without TLS.
//!
//! A client keeps one connection to one server, for requests one after another. Their timeouts are up to the caller:
//! dropping the future of a request closes its connection.

mod allowance;
mod target;

use std::error::Error as _;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, USER_AGENT};
use http::{Method, Request, Response, request};
use http_body_util::{BodyExt as _, Collected, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use self::allowance::ReadAllowance;
pub use self::target::{HttpTarget, HttpUrl};
use super::connect::{ServerAddress, connect};
use super::tls::AlpnProtocol;
use super::tls::client::TlsClient;
use super::transport::BoundedStream;

/// `User-Agent` of every request.
pub const PRODUCT: &str = concat!("weir/", env!("CARGO_PKG_VERSION"));

/// Time without a byte after which TCP keep-alive probes the server. A server may hold a request for minutes, and a
/// connection that is lost meanwhile would not be noticed otherwise.
const TCP_KEEPALIVE_IDLE: Duration = Duration::from_secs(15);

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum HttpClientError {
    /// Connecting failed.
    #[error(transparent)]
    Connect(io::Error),
    /// The connection broke, or the server does not speak HTTP.
    #[error("{0}{cause}", cause = .0.source().map(|cause| format!(": {cause}")).unwrap_or_default())]
    Http(hyper::Error),
    /// The body is longer than the maximum.
    #[error("length limit exceeded")]
    TooLong,
}

/// A request with its whole body.
pub type HttpRequest = Request<Full<Bytes>>;
/// A response whose body is still to be read.
pub type HttpResponse = Response<Incoming>;
/// A connection for requests one after another.
pub type HttpConnection = SendRequest<Full<Bytes>>;

/// Starts HTTP on a stream. The connection ends with the returned value and the bodies of responses.
///
/// # Errors
/// The error of the connection.
pub async fn start(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<HttpConnection, hyper::Error> {
    let (connection, driver) = handshake(TokioIo::new(stream)).await?;
    drop(tokio::spawn(driver));
    Ok(connection)
}

/// Reads a body of at most `max` bytes.
///
/// # Errors
/// [`HttpClientError::Http`] or [`HttpClientError::TooLong`].
pub async fn read_body(body: Incoming, max: usize) -> Result<Bytes, HttpClientError> {
    let read = Limited::new(body, max).collect().await.map(Collected::to_bytes);
    read.map_err(|error| match error.downcast::<hyper::Error>() {
        Ok(error) => HttpClientError::Http(*error),
        Err(_) => HttpClientError::TooLong,
    })
}

/// A client of one server.
#[derive(Debug)]
pub struct HttpClient {
    target: HttpTarget,
    address: ServerAddress,
    tls: Option<TlsClient>,
    connection: Option<HttpConnection>,
    /// Maximum number of bytes that are read for one request.
    max_read: usize,
    /// What may still be read of the connection.
    allowance: ReadAllowance,
}

impl HttpClient {
    /// Creates a client without a connection, for responses with bodies of at most `max_body` bytes.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn new(target: HttpTarget, max_body: usize) -> io::Result<Self> {
        let tls = target.tls.clone().map(TlsClient::new).transpose().map_err(io::Error::other)?;
        // A body with its framing, a header section, and interim responses.
        let max_read = max_body.saturating_mul(2);
        let address = ServerAddress::Tcp(target.url.host.clone(), target.url.port);
        let allowance = ReadAllowance::default();
        Ok(Self { target, address, tls, connection: None, max_read, allowance })
    }

    /// Returns a request to the target, without the headers that belong to its content.
    pub fn request(&self, method: Method) -> request::Builder {
        let HttpTarget { url, headers, .. } = &self.target;
        let request = Request::builder().method(method).uri(&*url.target);
        let mut request = request.header(HOST, &*url.authority).header(USER_AGENT, PRODUCT);
        if let Some(all) = request.headers_mut() {
            all.extend(headers.clone());
        }
        request
    }

    /// Sends a request and returns the head of the response. Needs a runtime.
    ///
    /// # Errors
    /// See [`HttpClientError`].
    pub async fn send(&mut self, request: HttpRequest) -> Result<HttpResponse, HttpClientError> {
        // The server may have closed an idle connection meanwhile, which is no failure.
        if let Some(idle) = self.connection.take().filter(|kept| !kept.is_closed())
            && let Ok(response) = self.send_over(idle, request.clone()).await
        {
            return Ok(response);
        }
        let fresh = self.connect().await?;
        self.send_over(fresh, request).await.map_err(HttpClientError::Http)
    }

    /// Closes the connection, after a response that is not read to its end.
    pub fn close(&mut self) {
        self.connection = None;
    }

    async fn send_over(
        &mut self,
        mut connection: HttpConnection,
        request: HttpRequest,
    ) -> Result<HttpResponse, hyper::Error> {
        self.allowance.renew(self.max_read);
        connection.ready().await?;
        let response = connection.send_request(request).await?;
        self.connection = Some(connection);
        Ok(response)
    }

    async fn connect(&self) -> Result<HttpConnection, HttpClientError> {
        let stream = connect(&self.address, self.tls.as_ref(), AlpnProtocol::Http1).await;
        let stream = stream.map_err(HttpClientError::Connect)?;
        stream.set_tcp_keepalive(TCP_KEEPALIVE_IDLE);
        // The allowance is shared with the connection before, which is closed by now.
        start(BoundedStream::new(stream, self.allowance.clone())).await.map_err(HttpClientError::Http)
    }
}

#[cfg(test)]
mod tests;
