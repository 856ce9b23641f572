//! Errors of malformed messages.

use std::io;

/// Reason why a message is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedMessage {
    /// The first line or a header has invalid syntax.
    #[error("malformed HTTP/1 header section: {0}")]
    Head(httparse::Error),
    /// The status code is invalid.
    #[error("status code below 100")]
    Status,
    /// The request target is invalid.
    #[error("malformed request target")]
    Target,
    /// The request target exceeds the limit.
    #[error("request target too long")]
    TargetTooLong,
    /// The head or the trailers exceed the limit.
    #[error("header section or trailers too large")]
    FieldsTooLarge,
    /// The connection ended in the middle of the message.
    #[error("incomplete message")]
    Truncated,
    /// `Content-Length` is not a number, or there are several different ones.
    #[error("invalid content-length")]
    ContentLength,
    /// The body has a transfer coding that is not supported.
    #[error("unsupported transfer-encoding")]
    TransferEncoding,
    /// A chunk has invalid syntax.
    #[error("malformed chunk")]
    Chunk,
}

impl From<MalformedMessage> for io::Error {
    fn from(malformed: MalformedMessage) -> Self {
        let kind = match malformed {
            MalformedMessage::Truncated => io::ErrorKind::UnexpectedEof,
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, malformed)
    }
}
