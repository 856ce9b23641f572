//! Where a body ends, and its pieces as they come.

use bytes::{Bytes, BytesMut};
use http::HeaderMap;

use super::chunked::Chunked;
use super::malformed::Malformed;

/// How the end of a body is told (RFC 9112 section 6.3), and how far it has come.
#[derive(Debug, PartialEq)]
pub enum Decoder {
    /// So many octets are still to come.
    Length(u64),
    /// By the last chunk.
    Chunked(Chunked),
    /// By the end of the connection.
    Close,
}

/// What comes next of a body.
#[derive(Debug, PartialEq)]
pub enum Piece {
    /// Content, never empty.
    Data(Bytes),
    /// The fields after the last chunk, and the end.
    Trailers(HeaderMap),
    /// The end.
    End,
    /// More has to be read first.
    More,
}

impl Decoder {
    /// Takes the next piece off what has been read.
    ///
    /// # Errors
    /// Where the grammar of chunks is broken.
    pub fn decode(&mut self, read: &mut BytesMut) -> Result<Piece, Malformed> {
        match self {
            Self::Length(0) => Ok(Piece::End),
            Self::Length(left) => Ok(take(read, left)),
            Self::Chunked(chunked) => chunked.decode(read),
            Self::Close => {
                let mut unbounded = u64::MAX;
                Ok(take(read, &mut unbounded))
            }
        }
    }

    /// Whether the end of the connection is the end of the body.
    pub fn ends_with_connection(&self) -> bool {
        matches!(self, Self::Close)
    }

    /// Whether it has come to its end.
    pub fn is_over(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunked) => chunked.is_over(),
            Self::Close => false,
        }
    }

    /// The octets still to come, if that is known.
    pub fn left(&self) -> Option<u64> {
        match self {
            Self::Length(left) => Some(*left),
            Self::Chunked(_) | Self::Close => None,
        }
    }
}

/// All that is there, but no more than `left`.
pub fn take(read: &mut BytesMut, left: &mut u64) -> Piece {
    let octets = usize::try_from(*left).unwrap_or(usize::MAX).min(read.len());
    if octets == 0 {
        return Piece::More;
    }
    *left -= octets as u64;
    Piece::Data(read.split_to(octets).freeze())
}
