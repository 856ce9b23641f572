//! Why an upstream gave no answer.

use std::io;

/// What went wrong between us and the upstream.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection could be made.
    #[error("cannot connect to the upstream")]
    Connect(#[source] io::Error),
    /// No connection within the time for it.
    #[error("connecting to the upstream took too long")]
    ConnectTimeout,
    /// The connection ended before an answer came.
    #[error("the upstream closed the connection")]
    Reset(#[source] hyper::Error),
    /// What came was not HTTP.
    #[error("the upstream's answer is malformed")]
    Malformed(#[source] hyper::Error),
}

impl From<hyper::Error> for Error {
    fn from(error: hyper::Error) -> Self {
        if error.is_parse() || error.is_parse_too_large() || error.is_parse_status() {
            Self::Malformed(error)
        } else {
            Self::Reset(error)
        }
    }
}
