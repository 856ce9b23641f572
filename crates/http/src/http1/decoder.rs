//! Body decoder: finds the end of a body, and returns its pieces as they arrive.

use std::io;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;

use super::chunked::ChunkedDecoder;
use super::malformed::MalformedMessage;
use super::splice::SplicePipe;

/// Decoder of a body, for each way to mark its end (RFC 9112 section 6.3).
#[derive(Debug, PartialEq)]
pub enum BodyDecoder {
    /// By a length; this many bytes are left.
    Length(u64),
    /// By the last chunk.
    Chunked(ChunkedDecoder),
    /// By the end of the connection.
    Close,
}

/// Next part of a body.
#[derive(Debug, PartialEq)]
pub enum Piece {
    /// Content; never empty.
    Data(Bytes),
    /// The trailers, and the end of the body.
    Trailers(HeaderMap),
    /// The end of the body.
    End,
    /// More bytes have to be read first.
    NeedMore,
}

impl BodyDecoder {
    /// Takes the next piece of the body from `read`.
    ///
    /// # Errors
    /// If the chunked coding is malformed.
    pub fn decode(&mut self, read: &mut BytesMut) -> Result<Piece, MalformedMessage> {
        match self {
            Self::Length(0) => Ok(Piece::End),
            Self::Length(left) => Ok(take_data(read, left)),
            Self::Chunked(chunked) => chunked.decode(read),
            Self::Close => {
                let mut unbounded = u64::MAX;
                Ok(take_data(read, &mut unbounded))
            }
        }
    }

    /// Whether the end of the connection marks the end of the body.
    pub fn ends_with_connection(&self) -> bool {
        matches!(self, Self::Close)
    }

    /// Whether the body has ended.
    pub fn is_complete(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunked) => chunked.is_complete(),
            Self::Close => false,
        }
    }

    /// Returns `max`, or the number of bytes left if that is less; `None` if it is unknown.
    pub fn at_most_left(&self, max: usize) -> Option<usize> {
        Some(usize::try_from(self.left()?).unwrap_or(usize::MAX).min(max))
    }

    /// Records that the next part of a body with a length was spliced.
    ///
    /// # Errors
    /// That of the connection, or if it ended before the body.
    pub fn take_spliced(&mut self, spliced: io::Result<SplicePipe>) -> io::Result<SplicePipe> {
        let pipe = spliced?;
        let left = self.left().and_then(|left| left.checked_sub(pipe.held() as u64));
        *self = Self::Length(left.filter(|_| pipe.held() > 0).ok_or(MalformedMessage::Truncated)?);
        Ok(pipe)
    }

    /// Returns the number of bytes left, if known.
    pub fn left(&self) -> Option<u64> {
        match self {
            Self::Length(left) => Some(*left),
            Self::Chunked(_) | Self::Close => None,
        }
    }
}

/// Takes all bytes of `read`, at most `left`.
pub fn take_data(read: &mut BytesMut, left: &mut u64) -> Piece {
    let bytes = usize::try_from(*left).unwrap_or(usize::MAX).min(read.len());
    if bytes == 0 {
        return Piece::NeedMore;
    }
    *left -= bytes as u64;
    Piece::Data(read.split_to(bytes).freeze())
}
