//! HTTP client of the admin port, for `weir top`, `weir explain` and `kubectl weir`.
//!
//! One connection per request, over TCP or a Unix socket, without TLS: the admin port is on loopback, or behind
//! `kubectl port-forward`. Sizes and times are bounded, since the address may be that of another server.

mod address;
mod events;

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::runtime;
use tokio::time::timeout;

use self::address::parse_address;
pub use self::events::SnapshotStream;
use weir_net::connect::{ServerAddress, connect};
use weir_net::http_client::{self, HttpClientError};
use weir_net::tls::AlpnProtocol;

/// Maximum time to connect, and then for the header section of the response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum size of a response body, in bytes.
const MAX_BODY_SIZE: usize = 16 << 20;

/// Maximum length of an error response that is shown, in characters.
const MAX_SHOWN_ERROR: usize = 300;

/// Maximum length of a content type that is shown, in characters.
const MAX_SHOWN_TYPE: usize = 60;

/// A request to the admin port without a response that can be used.
#[derive(Debug, thiserror::Error)]
pub enum AdminClientError {
    /// The address has no valid form.
    #[error("invalid admin address {0:?}, expected HOST:PORT or unix:PATH")]
    Address(String),
    /// The token cannot be sent in a header.
    #[error("the admin token has characters that a header cannot carry")]
    Token,
    /// There is no connection.
    #[error("cannot reach the admin port at {address}: {error}")]
    Connect {
        /// The address.
        address: ServerAddress,
        /// The error of the system.
        error: io::Error,
    },
    /// The server does not speak HTTP, or has ended the connection early.
    #[error("the admin port at {address} does not respond in HTTP: {error}")]
    Http {
        /// The address.
        address: ServerAddress,
        /// The error of the connection.
        error: hyper::Error,
    },
    /// The server has not responded in time.
    #[error("the admin port at {0} does not respond")]
    Timeout(ServerAddress),
    /// The admin port requires a token, or another one.
    #[error("the admin port requires a token: use --token-file FILE, --token TOKEN or WEIR_ADMIN_TOKEN")]
    Unauthorized,
    /// The status code is not 200.
    #[error("the admin port responds {status}: {message}")]
    Status {
        /// The status code.
        status: StatusCode,
        /// The response body, shortened.
        message: String,
    },
    /// The server is not the admin port of an instance.
    #[error("{address} is not an admin port: `GET /events` responds {response}")]
    NotAdmin {
        /// The address.
        address: ServerAddress,
        /// Status code and content type of the response.
        response: String,
    },
    /// The response is longer than any valid one.
    #[error("the response of the admin port is longer than {} MiB", MAX_BODY_SIZE >> 20)]
    TooLong,
}

/// A response of the admin port.
#[derive(Clone, Debug)]
pub struct AdminResponse {
    /// Status code.
    pub status: u16,
    /// Body.
    pub body: Vec<u8>,
}

/// Sends `GET target` to an admin port and waits for the response; for commands without a runtime of their own.
/// `authorization` is the value of the header.
///
/// # Errors
/// See [`AdminClientError`]. A status code other than 200 is no error.
pub fn get(
    address: &str,
    target: &str,
    authorization: Option<&str>,
) -> Result<AdminResponse, AdminClientError> {
    let address = parse_address(address)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| AdminClientError::Connect { address: address.clone(), error })?;
    let authorization = authorization.map(sensitive_value).transpose()?;
    runtime.block_on(AdminClient { address, authorization }.get(target))
}

/// A client of one admin port.
#[derive(Clone, Debug)]
pub struct AdminClient {
    address: ServerAddress,
    authorization: Option<HeaderValue>,
}

impl AdminClient {
    /// Creates a client; it connects with each request.
    ///
    /// # Errors
    /// If the address is invalid, or the token cannot be sent in a header.
    pub fn new(address: &str, token: Option<&str>) -> Result<Self, AdminClientError> {
        let address = parse_address(address)?;
        let authorization = token.map(|token| sensitive_value(&format!("Bearer {token}"))).transpose()?;
        Ok(Self { address, authorization })
    }

    /// Returns the address of the admin port.
    pub const fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// Sends a GET and returns the response, whatever its status code. `target` is a path with a query.
    ///
    /// # Errors
    /// See [`AdminClientError`].
    pub async fn get(&self, target: &str) -> Result<AdminResponse, AdminClientError> {
        self.respond(Method::GET, target).await
    }

    /// Sends a POST without a body and returns the response, whatever its status code.
    ///
    /// # Errors
    /// See [`AdminClientError`].
    pub async fn post(&self, target: &str) -> Result<AdminResponse, AdminClientError> {
        self.respond(Method::POST, target).await
    }

    async fn respond(&self, method: Method, target: &str) -> Result<AdminResponse, AdminClientError> {
        let response = self.send(method, target, "*/*").await?;
        let status = response.status().as_u16();
        Ok(AdminResponse { status, body: self.read_body(response.into_body()).await?.into() })
    }

    /// Opens the stream of snapshots, `GET /events`.
    ///
    /// # Errors
    /// See [`AdminClientError`].
    pub async fn events(&self) -> Result<SnapshotStream, AdminClientError> {
        let response = self.send(Method::GET, "/events", "text/event-stream").await?;
        match response.status() {
            StatusCode::OK if is_event_stream(&response) => {
                Ok(SnapshotStream::new(self.address.clone(), response.into_body()))
            }
            status @ (StatusCode::OK | StatusCode::NOT_FOUND) => {
                let kind = response.headers().get(CONTENT_TYPE).map_or(&b"none"[..], HeaderValue::as_bytes);
                let response = format!("{status}, content type {}", shortened(kind, MAX_SHOWN_TYPE));
                Err(AdminClientError::NotAdmin { address: self.address.clone(), response })
            }
            StatusCode::UNAUTHORIZED => Err(AdminClientError::Unauthorized),
            status => {
                let body = self.read_body(response.into_body()).await.unwrap_or_default();
                Err(AdminClientError::Status { status, message: shortened(&body, MAX_SHOWN_ERROR) })
            }
        }
    }

    /// Sends a request and returns the header section of the response.
    async fn send(
        &self,
        method: Method,
        target: &str,
        accept: &'static str,
    ) -> Result<Response<Incoming>, AdminClientError> {
        let exchange = timeout(RESPONSE_TIMEOUT, self.exchange(method, target, accept)).await;
        exchange.unwrap_or_else(|_| Err(AdminClientError::Timeout(self.address.clone())))
    }

    async fn exchange(
        &self,
        method: Method,
        target: &str,
        accept: &'static str,
    ) -> Result<Response<Incoming>, AdminClientError> {
        let http = |error| AdminClientError::Http { address: self.address.clone(), error };
        let stream = connect(&self.address, None, AlpnProtocol::Http1).await;
        let stream =
            stream.map_err(|error| AdminClientError::Connect { address: self.address.clone(), error })?;
        let mut connection = http_client::start(stream).await.map_err(http)?;
        let mut request = Request::builder()
            .method(method)
            .uri(target)
            .header(HOST, self.address.authority())
            .header(ACCEPT, accept)
            .header(USER_AGENT, http_client::PRODUCT);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request =
            request.body(Full::default()).map_err(|_| AdminClientError::Address(self.address.to_string()))?;
        connection.send_request(request).await.map_err(http)
    }

    async fn read_body(&self, body: Incoming) -> Result<Bytes, AdminClientError> {
        let read = timeout(RESPONSE_TIMEOUT, http_client::read_body(body, MAX_BODY_SIZE)).await;
        read.map_err(|_| AdminClientError::Timeout(self.address.clone()))?.map_err(|error| match error {
            HttpClientError::Connect(error) => {
                AdminClientError::Connect { address: self.address.clone(), error }
            }
            HttpClientError::Http(error) => AdminClientError::Http { address: self.address.clone(), error },
            HttpClientError::TooLong => AdminClientError::TooLong,
        })
    }
}

/// Returns text of a server without control characters, which would reach the terminal.
fn shortened(text: &[u8], max_chars: usize) -> String {
    let text = String::from_utf8_lossy(text);
    text.trim().chars().filter(|letter| !letter.is_control()).take(max_chars).collect()
}

fn is_event_stream(response: &Response<Incoming>) -> bool {
    let kind = response.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// Returns a header value that is never logged.
fn sensitive_value(text: &str) -> Result<HeaderValue, AdminClientError> {
    let mut value = HeaderValue::from_str(text).map_err(|_| AdminClientError::Token)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests;
