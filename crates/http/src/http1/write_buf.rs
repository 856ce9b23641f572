//! Buffer of bytes that are still to be written to a connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};

use super::memory_pool;
use super::splice::{SplicePipe, SpliceTarget};

/// Pieces up to this size are copied into the buffer; larger ones are written in place.
const MAX_COPIED_SIZE: usize = 1024;
/// Size at which the buffer takes no more pieces.
const MAX_BUFFERED_SIZE: usize = 8 * 1024;

/// Write buffer of a message: copied bytes, then at most one large piece, then more copied bytes. Its memory is that of
/// earlier messages.
#[derive(Debug, Default)]
pub struct WriteBuf {
    copied: Vec<u8>,
    written: usize,
    large: LargePiece,
    tail: Vec<u8>,
    bytes_written: u64,
    /// Whether written bytes may still be buffered in the stream: TLS accepts more than its socket takes.
    needs_flush: bool,
}

/// A piece that is not copied into the buffer.
#[derive(Debug)]
enum LargePiece {
    Bytes(Bytes),
    Pipe(SplicePipe),
}

impl Default for LargePiece {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

impl LargePiece {
    fn is_empty(&self) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.is_empty(),
            Self::Pipe(pipe) => pipe.held() == 0,
        }
    }

    /// Returns the bytes of the piece in the memory of this process.
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Pipe(_) => &[],
        }
    }
}

impl Drop for WriteBuf {
    fn drop(&mut self) {
        for buffer in [&mut self.copied, &mut self.tail] {
            memory_pool::take_back_write(std::mem::take(buffer));
        }
    }
}

impl WriteBuf {
    /// Starts again from the first byte. Only if all bytes are still in the buffer.
    pub fn rewind(&mut self) {
        self.written = 0;
        self.bytes_written = 0;
    }

    /// Returns the buffer to which small parts are appended.
    pub fn buffer_mut(&mut self) -> &mut Vec<u8> {
        if self.large.is_empty() && self.written == self.copied.len() {
            self.copied.clear();
            self.written = 0;
        }
        let buffer = if self.large.is_empty() { &mut self.copied } else { &mut self.tail };
        if buffer.capacity() == 0 {
            *buffer = memory_pool::write_buffer();
        }
        buffer
    }

    /// Appends a piece. There must be room.
    pub fn push(&mut self, piece: Bytes) {
        if piece.len() <= MAX_COPIED_SIZE {
            self.buffer_mut().extend_from_slice(&piece);
        } else {
            self.large = LargePiece::Bytes(piece);
        }
    }

    /// Appends a piece that is in a pipe. There must be room.
    pub fn push_pipe(&mut self, pipe: SplicePipe) {
        self.large = LargePiece::Pipe(pipe);
    }

    /// Whether another piece may be appended.
    pub fn has_room(&self) -> bool {
        self.large.is_empty() && self.copied.len() - self.written < MAX_BUFFERED_SIZE
    }

    /// Returns the number of bytes to be written, without those in a pipe, which the system holds.
    pub fn unsent_bytes(&self) -> usize {
        self.copied.len() - self.written + self.large.bytes().len() + self.tail.len()
    }

    /// Whether everything has been written and flushed.
    pub fn is_flushed(&self) -> bool {
        self.is_empty() && !self.needs_flush
    }

    pub fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    /// Requests another flush, so that the stream records when its bytes have been sent.
    pub fn request_flush(&mut self) {
        self.needs_flush = true;
    }

    /// Writes and flushes everything.
    pub fn poll_write(
        &mut self,
        stream: &mut impl SpliceTarget,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let copied = &self.copied[self.written..];
            let written = match &mut self.large {
                LargePiece::Bytes(large) if !large.is_empty() => {
                    let parts = [copied, large, &self.tail].map(IoSlice::new);
                    ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &parts))?
                }
                LargePiece::Pipe(pipe) if copied.is_empty() => ready!(stream.poll_drain(pipe, cx))?,
                LargePiece::Bytes(_) | LargePiece::Pipe(_) => {
                    ready!(Pin::new(&mut *stream).poll_write(cx, copied))?
                }
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(written);
        }
        if self.needs_flush {
            ready!(Pin::new(stream).poll_flush(cx))?;
            self.needs_flush = false;
        }
        Poll::Ready(Ok(()))
    }

    fn is_empty(&self) -> bool {
        self.written == self.copied.len() && self.large.is_empty()
    }

    fn advance(&mut self, mut bytes: usize) {
        self.bytes_written += bytes as u64;
        self.needs_flush = true;
        let copied = bytes.min(self.copied.len() - self.written);
        self.written += copied;
        bytes -= copied;
        let large = match &mut self.large {
            LargePiece::Bytes(large) => {
                let written = bytes.min(large.len());
                large.advance(written);
                written
            }
            // Draining has moved them already.
            LargePiece::Pipe(_) => bytes,
        };
        if large > 0 && self.large.is_empty() {
            self.large = LargePiece::default();
            self.copied.clear();
            self.written = bytes - large;
            // Otherwise the memory stays where the next bytes are appended.
            if !self.tail.is_empty() {
                std::mem::swap(&mut self.copied, &mut self.tail);
            }
        }
    }
}

#[cfg(test)]
mod tests;
