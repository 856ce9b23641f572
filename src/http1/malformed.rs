//! What can be wrong with a message.

use std::io;

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The grammar of the first line or of a field is broken.
    #[error("not a head of HTTP/1: {0}")]
    Head(httparse::Error),
    /// A status that is none.
    #[error("status below 100")]
    Status,
    /// A target that is none.
    #[error("not a target")]
    Target,
    /// A target over the limit.
    #[error("target over the limit")]
    LongTarget,
    /// The head or the trailers are longer than we take.
    #[error("fields over the limit")]
    TooLong,
    /// The connection ended in the middle of the message.
    #[error("message cut off")]
    CutOff,
    /// `Content-Length` is no number, or several.
    #[error("content-length is not one number")]
    Length,
    /// The body is coded in a way that we cannot follow.
    #[error("transfer-encoding is not chunked")]
    Coding,
    /// The grammar of a chunk is broken.
    #[error("not a chunk")]
    Chunk,
}

impl From<Malformed> for io::Error {
    fn from(malformed: Malformed) -> Self {
        let kind = match malformed {
            Malformed::CutOff => io::ErrorKind::UnexpectedEof,
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, malformed)
    }
}
