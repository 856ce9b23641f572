//! What is to be written to a connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use tokio::io::AsyncWrite;

/// Pieces up to this size are copied to those before them; larger ones are written from where they are.
const COPIED: usize = 1024;
/// Nothing is added to what has reached this.
const FULL: usize = 8 * 1024;
/// A buffer that has grown beyond this is not kept.
const KEPT: usize = 16 * 1024;

/// A connection's write buffer: copied bytes, then at most one large piece, then copied bytes behind that.
#[derive(Debug, Default)]
pub struct WriteBuf {
    copied: Vec<u8>,
    written: usize,
    large: Bytes,
    behind: Vec<u8>,
    /// Bytes that are out.
    out: u64,
    /// Whether something may lie with the stream still: TLS takes more than its socket does.
    lies: bool,
}

impl WriteBuf {
    /// Nothing to be written yet, in the memory of `buffer`.
    pub fn new(mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        Self { copied: buffer, ..Self::default() }
    }

    /// The memory, to be used again.
    pub fn into_buffer(self) -> Vec<u8> {
        if self.copied.capacity() > KEPT { Vec::new() } else { self.copied }
    }

    /// All is to be written once more. Only for what is here from its beginning.
    pub fn rewind(&mut self) {
        self.written = 0;
        self.out = 0;
    }

    /// Where small things are added.
    pub fn end(&mut self) -> &mut Vec<u8> {
        if !self.large.is_empty() {
            return &mut self.behind;
        }
        if self.written == self.copied.len() {
            self.copied.clear();
            self.written = 0;
        }
        &mut self.copied
    }

    /// Adds a piece. There must be room.
    pub fn push(&mut self, piece: Bytes) {
        if piece.len() <= COPIED {
            self.end().extend_from_slice(&piece);
        } else {
            self.large = piece;
        }
    }

    /// Whether another piece may be added.
    pub fn has_room(&self) -> bool {
        self.large.is_empty() && self.copied.len() - self.written < FULL
    }

    /// Whether all is written and on its way.
    pub fn is_out(&self) -> bool {
        self.is_empty() && !self.lies
    }

    /// How many bytes are out.
    pub fn out(&self) -> u64 {
        self.out
    }

    /// What was written is to be seen off once more: whoever waits for it is told when it is on its way.
    pub fn flush(&mut self) {
        self.lies = true;
    }

    /// Writes all there is.
    pub fn poll_write(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let copied = &self.copied[self.written..];
            let written = if self.large.is_empty() {
                ready!(Pin::new(&mut *stream).poll_write(cx, copied))?
            } else {
                let parts = [copied, &self.large, &self.behind].map(IoSlice::new);
                ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &parts))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(written);
        }
        if self.lies {
            ready!(Pin::new(stream).poll_flush(cx))?;
            self.lies = false;
        }
        Poll::Ready(Ok(()))
    }

    fn is_empty(&self) -> bool {
        self.written == self.copied.len() && self.large.is_empty()
    }

    fn advance(&mut self, mut octets: usize) {
        self.out += octets as u64;
        self.lies = true;
        let copied = octets.min(self.copied.len() - self.written);
        self.written += copied;
        octets -= copied;
        if self.large.is_empty() {
            return;
        }
        let large = octets.min(self.large.len());
        self.large.advance(large);
        if self.large.is_empty() {
            std::mem::swap(&mut self.copied, &mut self.behind);
            self.behind.clear();
            self.written = octets - large;
        }
    }
}

#[cfg(test)]
mod tests;
