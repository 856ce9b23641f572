//! Why an upstream gave no answer, or only the beginning of one.

use std::io;

use crate::http1;
use crate::http1::client::conn::NoResponse;

/// What went wrong between us and the upstream.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection could be made.
    #[error("cannot connect to the upstream")]
    Connect(#[source] io::Error),
    /// No connection within the time for it.
    #[error("connecting to the upstream took too long")]
    ConnectTimeout,
    /// There is as much under way as may be.
    #[error("too much is under way already")]
    Overflow,
    /// The connection ended before an answer came, or the request's body before it was sent.
    #[error("the upstream closed the connection")]
    Reset(#[source] io::Error),
    /// What came was not HTTP.
    #[error("the upstream's answer is malformed")]
    Malformed(#[source] Malformed),
}

impl From<NoResponse> for Error {
    fn from(reason: NoResponse) -> Self {
        match reason {
            NoResponse::Reset(error) => Self::Reset(error),
            NoResponse::Malformed(malformed) => Self::Malformed(malformed.into()),
        }
    }
}

/// A request without an answer.
#[derive(Debug, thiserror::Error)]
#[error("no answer")]
pub struct Unanswered<B> {
    /// Why.
    #[source]
    pub error: Error,
    /// The request's body, of which nothing has been read, where the request may be sent to another endpoint as if it had
    /// never been sent: this one has not begun with it as it says itself, or has lost it on a connection that
    /// was as good as closed, and could not tell two of it from one.
    pub body: Option<B>,
}

impl<B> Unanswered<B> {
    /// One that may be sent elsewhere.
    pub(super) const fn untouched(error: Error, body: B) -> Self {
        Self { error, body: Some(body) }
    }
}

impl<B> From<Error> for Unanswered<B> {
    fn from(error: Error) -> Self {
        Self { error, body: None }
    }
}

/// What is wrong with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It is not HTTP/1.1.
    #[error(transparent)]
    Http1(#[from] http1::malformed::Malformed),
    /// What came is not HTTP/2, for this reason (RFC 9113 section 7).
    #[error("not HTTP/2: {0}")]
    Http2(h2::Reason),
}
