//! Errors of requests to an upstream.

use std::io;

use weir_http::http1;
use weir_http::http1::client::conn::NoResponse;
use weir_http::http2::Reason;

/// Why an upstream request failed.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The connection could not be established.
    #[error("cannot connect to the upstream")]
    Connect(#[source] io::Error),
    /// The connection could not be established in time.
    #[error("connection to the upstream timed out")]
    ConnectTimeout,
    /// The endpoint has no certificate for the host of the request, which is the server name in TLS.
    #[error("the upstream has no certificate for the host of the request")]
    ServerName(#[source] io::Error),
    /// A circuit breaker is open: a maximum of `upstream.limits` is reached.
    #[error("circuit breaker of the upstream is open")]
    Overflow,
    /// The connection ended before the response, or the request body ended early.
    #[error("the upstream closed the connection")]
    Reset(#[source] io::Error),
    #[error("malformed response from the upstream")]
    Malformed(#[source] MalformedResponse),
}

/// Why a destination of a forward proxy has no address to connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAddress {
    /// Its name cannot be resolved.
    NotFound,
    /// Its name could not be resolved in time.
    TimedOut,
    /// Its name resolves to addresses that must not be reached.
    Prohibited,
    /// Its name resolves to this process.
    Loop,
}

impl From<NoResponse> for UpstreamError {
    fn from(reason: NoResponse) -> Self {
        match reason {
            NoResponse::Reset(error) => Self::Reset(error),
            NoResponse::Malformed(malformed) => Self::Malformed(malformed.into()),
        }
    }
}

/// A request without a response.
#[derive(Debug, thiserror::Error)]
#[error("no response")]
pub struct SendError<B> {
    #[source]
    pub error: UpstreamError,
    /// The unread body, if the request may safely be sent to another endpoint: this one rejected it before processing,
    /// or it was lost on a connection that was already closing and is idempotent.
    pub body: Option<B>,
}

impl<B> SendError<B> {
    /// Creates an error for a request that may be sent to another endpoint.
    pub(super) const fn retryable(error: UpstreamError, body: B) -> Self {
        Self { error, body: Some(body) }
    }
}

impl<B> From<UpstreamError> for SendError<B> {
    fn from(error: UpstreamError) -> Self {
        Self { error, body: None }
    }
}

/// Why a response is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedResponse {
    /// It is not valid HTTP/1.1.
    #[error(transparent)]
    Http1(#[from] http1::malformed::MalformedMessage),
    /// It is not valid HTTP/2, with this error code (RFC 9113 section 7).
    #[error("HTTP/2 protocol error: {0}")]
    Http2(Reason),
}
