//! Errors of malformed messages.

use std::io;

/// Reason why a message is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedMessage {
    /// The first line or a header has invalid syntax.
    #[error("not a head of HTTP/1: {0}")]
    Head(httparse::Error),
    /// The status code is invalid.
    #[error("status below 100")]
    Status,
    /// The request target is invalid.
    #[error("not a target")]
    Target,
    /// The request target exceeds the limit.
    #[error("target over the limit")]
    TargetTooLong,
    /// The head or the trailers exceed the limit.
    #[error("fields over the limit")]
    FieldsTooLarge,
    /// The connection ended in the middle of the message.
    #[error("message cut off")]
    Truncated,
    /// `Content-Length` is not a number, or there are several different ones.
    #[error("content-length is not one number")]
    ContentLength,
    /// The body has a transfer coding that is not supported.
    #[error("transfer-encoding is not chunked")]
    TransferEncoding,
    /// A chunk has invalid syntax.
    #[error("not a chunk")]
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
