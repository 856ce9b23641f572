//! The chunked transfer coding, read (RFC 9112 section 7.1).
//!
//! Strict where a reader and a lax one could disagree about the end of a message: every line ends in CR LF, a
//! size is hexadecimal digits and nothing else, and it must fit 64 bits.

use bytes::{Buf as _, BytesMut};

use super::decoder::{Piece, take};
use super::head::map;
use super::malformed::Malformed;

/// A line with a chunk's size, its extensions included, may take this much.
const LONGEST_LINE: usize = 4096;
/// All extensions of a body together may take this much: who needs more than that wants to cost more than to say
/// (CVE-2023-39326).
const LARGEST_EXTENSIONS: usize = 16 * 1024;
/// All trailers together may take this much.
const LARGEST_TRAILERS: usize = 16 * 1024;
/// So many trailers may come.
const MOST_TRAILERS: usize = 64;

/// A reader of chunks, at some point of the body.
#[derive(Debug, Default, PartialEq)]
pub struct Chunked {
    state: State,
    /// Octets of the line with the size so far.
    line: usize,
    /// Octets of extensions so far.
    extensions: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum State {
    /// Before the first digit of a size.
    #[default]
    Start,
    Size(u64),
    /// After white space behind a size: no digit may follow.
    Space(u64),
    Extension(u64),
    SizeLf(u64),
    Data(u64),
    DataCr,
    DataLf,
    /// After the last chunk; so much has been looked at in search of the end.
    Trailers(usize),
    Over,
    /// The grammar was broken: nothing that follows means anything.
    Broken,
}

impl Chunked {
    /// Takes the next piece off what has been read.
    ///
    /// # Errors
    /// Where the grammar is broken or a limit passed, and ever after.
    pub fn decode(&mut self, read: &mut BytesMut) -> Result<Piece, Malformed> {
        let piece = self.next(read);
        if piece.is_err() {
            self.state = State::Broken;
        }
        piece
    }

    fn next(&mut self, read: &mut BytesMut) -> Result<Piece, Malformed> {
        loop {
            match &mut self.state {
                State::Data(left) => {
                    let piece = take(read, left);
                    if *left == 0 {
                        self.state = State::DataCr;
                    }
                    return Ok(piece);
                }
                State::Trailers(looked) => match trailers(read, looked)? {
                    Piece::More => return Ok(Piece::More),
                    end => {
                        self.state = State::Over;
                        return Ok(end);
                    }
                },
                State::Over => return Ok(Piece::End),
                State::Broken => return Err(Malformed::Chunk),
                _ => {
                    if !self.read_line(read)? {
                        return Ok(Piece::More);
                    }
                }
            }
        }
    }

    /// Whether the end has been read.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Reads between the chunks; whether what follows is data or the end.
    fn read_line(&mut self, read: &mut BytesMut) -> Result<bool, Malformed> {
        let mut used = 0;
        for byte in read.iter() {
            used += 1;
            self.state = self.state.after(*byte).ok_or(Malformed::Chunk)?;
            match self.state {
                State::Data(_) | State::Trailers(_) => {
                    self.line = 0;
                    break;
                }
                State::Start => self.line = 0,
                State::Extension(_) => {
                    self.line += 1;
                    self.extensions += 1;
                }
                _ => self.line += 1,
            }
            if self.line > LONGEST_LINE || self.extensions > LARGEST_EXTENSIONS {
                return Err(Malformed::Chunk);
            }
        }
        read.advance(used);
        Ok(matches!(self.state, State::Data(_) | State::Trailers(_)))
    }
}

impl State {
    /// The state after one more byte of a line; `None` where that byte must not stand.
    fn after(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Size(size), b'\r') | (Self::Space(size) | Self::Extension(size), b'\r') => {
                Self::SizeLf(size)
            }
            (Self::Size(size) | Self::Space(size), b';') => Self::Extension(size),
            (Self::Size(size) | Self::Space(size), b' ' | b'\t') => Self::Space(size),
            (Self::Start, digit) => Self::Size(hexadecimal(digit)?),
            (Self::Size(size), digit) => Self::Size(size.checked_mul(16)?.checked_add(hexadecimal(digit)?)?),
            // A lax reader would take it for the end of the line.
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

/// The fields after the last chunk, once they are all there; `looked` bytes of them hold no end.
fn trailers(read: &mut BytesMut, looked: &mut usize) -> Result<Piece, Malformed> {
    if read.starts_with(b"\r\n") {
        read.advance(2);
        return Ok(Piece::End);
    }
    let from = looked.saturating_sub(3).min(read.len());
    let end = read[from..].windows(4).position(|window| window == b"\r\n\r\n").map(|end| from + end + 4);
    if end.unwrap_or(read.len()) > LARGEST_TRAILERS {
        return Err(Malformed::TooLong);
    }
    let Some(end) = end else {
        *looked = read.len();
        return Ok(Piece::More);
    };
    let block = read.split_to(end);
    let mut fields = [httparse::EMPTY_HEADER; MOST_TRAILERS];
    match httparse::parse_headers(&block, &mut fields).map_err(Malformed::Head)? {
        httparse::Status::Complete((length, fields)) if length == end => Ok(Piece::Trailers(map(fields)?)),
        // It ended before what we took for its end, in bare line feeds.
        _ => Err(Malformed::Chunk),
    }
}

#[cfg(test)]
mod tests;
