//! Decoder of the chunked transfer coding (RFC 9112 section 7.1).
//!
//! Strict wherever a strict and a lenient parser could disagree about the end of a message: every line ends in CR LF, a
//! chunk size consists of hexadecimal digits only, and it must fit 64 bits.

use bytes::{Buf as _, BytesMut};
use http::HeaderName;
use smallvec::SmallVec;

use super::decoder::{Piece, take_data};
use super::head::to_header_map;
use super::malformed::MalformedMessage;

/// Maximum bytes of a chunk-size line, including its extensions.
const MAX_SIZE_LINE_LENGTH: u32 = 4096;
/// Maximum bytes of all chunk extensions of a body. More serve no purpose other than to waste the recipient's resources
/// (CVE-2023-39326).
const MAX_EXTENSIONS_SIZE: u32 = 16 * 1024;
/// Maximum bytes of all trailers together.
const MAX_TRAILERS_SIZE: usize = 16 * 1024;
/// Maximum number of trailers.
const MAX_TRAILERS: usize = 64;

/// Names of trailers that `Connection` lists.
pub type DroppedTrailers = SmallVec<[HeaderName; 1]>;

/// Decoder of a chunked body, at any point of it.
#[derive(Debug, Default, PartialEq)]
pub struct ChunkedDecoder {
    state: ChunkedState,
    /// Bytes of the current chunk-size line so far.
    line_length: u32,
    /// Bytes of extensions so far.
    extensions_length: u32,
    /// Names of trailers that are dropped, if there are any. Boxed, because a decoder is part of each response.
    dropped: Option<Box<DroppedTrailers>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum ChunkedState {
    /// Before the first digit of a chunk size.
    #[default]
    Start,
    Size(u64),
    /// After white space behind a chunk size: no further digit may follow.
    Space(u64),
    Extension(u64),
    SizeLf(u64),
    Data(u64),
    DataCr,
    DataLf,
    /// After the last chunk, with the number of bytes already searched for the end of the trailers.
    Trailers(usize),
    End,
    /// The syntax was invalid; what follows cannot be interpreted.
    Broken,
}

impl ChunkedDecoder {
    /// Creates a decoder that drops trailers of these names: those that `Connection` names are meant for this
    /// connection only (RFC 9110 section 7.6.1).
    pub fn without(dropped: DroppedTrailers) -> Self {
        Self { dropped: (!dropped.is_empty()).then(|| Box::new(dropped)), ..Self::default() }
    }

    /// Takes the next piece of the body from `read`.
    ///
    /// # Errors
    /// If the syntax is invalid or a limit is exceeded. All further calls fail as well.
    pub fn decode(&mut self, read: &mut BytesMut) -> Result<Piece, MalformedMessage> {
        let piece = self.next(read);
        if piece.is_err() {
            self.state = ChunkedState::Broken;
        }
        piece
    }

    fn next(&mut self, read: &mut BytesMut) -> Result<Piece, MalformedMessage> {
        loop {
            match &mut self.state {
                ChunkedState::Data(left) => {
                    let piece = take_data(read, left);
                    if *left == 0 {
                        self.state = ChunkedState::DataCr;
                    }
                    return Ok(piece);
                }
                ChunkedState::Trailers(looked) => match trailers(read, looked)? {
                    Piece::NeedMore => return Ok(Piece::NeedMore),
                    mut end => {
                        self.state = ChunkedState::End;
                        if let Piece::Trailers(fields) = &mut end {
                            for name in self.dropped.iter().flat_map(|names| names.iter()) {
                                fields.remove(name);
                            }
                        }
                        return Ok(end);
                    }
                },
                ChunkedState::End => return Ok(Piece::End),
                ChunkedState::Broken => return Err(MalformedMessage::Chunk),
                _ => {
                    if !self.read_line(read)? {
                        return Ok(Piece::NeedMore);
                    }
                }
            }
        }
    }

    /// Whether the end has been read.
    pub fn is_complete(&self) -> bool {
        self.state == ChunkedState::End
    }

    /// Reads chunk-size lines and line endings up to the next data or the trailers. Returns `false` if more bytes are
    /// needed.
    fn read_line(&mut self, read: &mut BytesMut) -> Result<bool, MalformedMessage> {
        let mut used = 0;
        for byte in read.iter() {
            used += 1;
            self.state = self.state.after(*byte).ok_or(MalformedMessage::Chunk)?;
            match self.state {
                ChunkedState::Data(_) | ChunkedState::Trailers(_) => {
                    self.line_length = 0;
                    break;
                }
                ChunkedState::Start => self.line_length = 0,
                ChunkedState::Extension(_) => {
                    self.line_length += 1;
                    self.extensions_length += 1;
                }
                _ => self.line_length += 1,
            }
            if self.line_length > MAX_SIZE_LINE_LENGTH || self.extensions_length > MAX_EXTENSIONS_SIZE {
                return Err(MalformedMessage::Chunk);
            }
        }
        read.advance(used);
        Ok(matches!(self.state, ChunkedState::Data(_) | ChunkedState::Trailers(_)))
    }
}

impl ChunkedState {
    /// Returns the state after one more byte of a line, or `None` if that byte is not allowed there.
    fn after(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Size(size), b'\r') | (Self::Space(size) | Self::Extension(size), b'\r') => {
                Self::SizeLf(size)
            }
            (Self::Size(size) | Self::Space(size), b';') => Self::Extension(size),
            (Self::Size(size) | Self::Space(size), b' ' | b'\t') => Self::Space(size),
            (Self::Start, digit) => Self::Size(hexadecimal(digit)?),
            (Self::Size(size), digit) => Self::Size(size.checked_mul(16)?.checked_add(hexadecimal(digit)?)?),
            // A lenient parser would treat a bare LF as the end of the line.
            (Self::Extension(_), b'\n') => return None,
            (Self::Extension(size), _) => Self::Extension(size),
            (Self::SizeLf(0), b'\n') => Self::Trailers(0),
            (Self::SizeLf(size), b'\n') => Self::Data(size),
            (Self::DataCr, b'\r') => Self::DataLf,
            (Self::DataLf, b'\n') => Self::Start,
            _ => return None,
        })
    }
}

fn hexadecimal(digit: u8) -> Option<u64> {
    char::from(digit).to_digit(16).map(u64::from)
}

/// Decodes the trailers once they are complete. The first `looked` bytes are known not to hold the end.
fn trailers(read: &mut BytesMut, looked: &mut usize) -> Result<Piece, MalformedMessage> {
    if read.starts_with(b"\r\n") {
        read.advance(2);
        return Ok(Piece::End);
    }
    let from = looked.saturating_sub(3).min(read.len());
    let end = read[from..].windows(4).position(|window| window == b"\r\n\r\n").map(|end| from + end + 4);
    if end.unwrap_or(read.len()) > MAX_TRAILERS_SIZE {
        return Err(MalformedMessage::FieldsTooLarge);
    }
    let Some(end) = end else {
        *looked = read.len();
        return Ok(Piece::NeedMore);
    };
    let block = read.split_to(end);
    let mut fields = [httparse::EMPTY_HEADER; MAX_TRAILERS];
    match httparse::parse_headers(&block, &mut fields).map_err(MalformedMessage::Head)? {
        httparse::Status::Complete((length, fields)) if length == end => {
            Ok(Piece::Trailers(to_header_map(fields)?))
        }
        // `httparse` also ends at bare line feeds, so it found an earlier end.
        _ => Err(MalformedMessage::Chunk),
    }
}

#[cfg(test)]
mod tests;
