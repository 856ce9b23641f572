//! Buffer of bytes that have been read from a connection and not yet decoded.

use std::io;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::memory_pool;
use super::splice::Spliced;

/// Bytes reserved for a read: more than most responses take. A read that does not fill them shows that nothing more is
/// available.
pub const READ_SIZE: usize = 8 * 1024;
/// The buffer is enlarged if less than this is free.
const MIN_READ_SIZE: usize = 2 * 1024;
/// Maximum size of one read of a large body. Larger reads cost fewer system calls and wake-ups, but a body that is not
/// consumed holds this much memory.
const MAX_READ_SIZE: usize = 32 * 1024;
/// Factor by which the size grows after a read that filled the buffer.
const GROWTH: usize = 4;

/// Stream from which a [`ReadBuf`] reads.
pub trait ReadSource: AsyncRead + Unpin {
    /// Ready when there may be something to read, including the end of the stream. Streams that cannot tell are always
    /// ready. If nothing has arrived, this is cheaper than trying to read.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Moves at most `max` of the next bytes into a pipe.
    fn poll_splice(&mut self, _max: usize, _cx: &mut Context<'_>) -> Spliced<io::Error> {
        None
    }

    /// Called when the first bytes of a message have arrived.
    fn message_started(&self) {}
}

/// Read buffer of a connection. Decoded parts are split off without copying. Their memory is reused once they have been
/// dropped.
#[derive(Debug)]
pub struct ReadBuf {
    /// Bytes to be decoded.
    pub bytes: BytesMut,
    read_size: usize,
    /// The last read took everything that was available.
    drained: bool,
}

impl Drop for ReadBuf {
    fn drop(&mut self) {
        memory_pool::take_back_read(&mut self.bytes);
    }
}

impl Default for ReadBuf {
    fn default() -> Self {
        Self::from(BytesMut::new())
    }
}

impl From<BytesMut> for ReadBuf {
    /// With bytes that have been read already.
    fn from(bytes: BytesMut) -> Self {
        Self { bytes, read_size: READ_SIZE, drained: false }
    }
}

impl ReadBuf {
    /// Reads once and returns the number of bytes, 0 at the end of the connection.
    pub fn poll_read(
        &mut self,
        stream: &mut impl ReadSource,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.drained {
            ready!(stream.poll_readable(cx));
        }
        if self.bytes.is_empty() {
            // Starts again at the first byte, which is more likely to be in the processor's cache than the next ones.
            let _ = self.bytes.try_reclaim(READ_SIZE);
        }
        let least = if self.read_size > READ_SIZE { self.read_size / 2 } else { MIN_READ_SIZE };
        if self.bytes.capacity() - self.bytes.len() < least {
            memory_pool::reserve_for_read(&mut self.bytes, self.read_size);
        }
        let room = self.bytes.capacity() - self.bytes.len();
        let polled = pin!(stream.read_buf(&mut self.bytes)).poll(cx);
        self.drained = !matches!(&polled, Poll::Ready(Ok(read)) if *read == room);
        match &polled {
            Poll::Ready(Ok(read)) if *read == room => {
                self.read_size = (self.read_size * GROWTH).min(MAX_READ_SIZE)
            }
            // The peer sends slowly, so buffered bytes should not hold more memory than they need.
            Poll::Ready(Ok(read)) if *read < self.read_size / 4 => {
                self.read_size = (self.read_size / 2).max(READ_SIZE)
            }
            Poll::Pending if self.bytes.is_empty() => memory_pool::take_back_read(&mut self.bytes),
            _ => {}
        }
        polled
    }

    /// As [`Self::poll_read`], but reads only until the buffer has `max` bytes; it must have fewer.
    pub fn poll_read_up_to(
        &mut self,
        max: usize,
        stream: &mut impl ReadSource,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.drained {
            ready!(stream.poll_readable(cx));
        }
        let room = max.saturating_sub(self.bytes.len());
        self.bytes.reserve(room);
        let polled = pin!(stream.read_buf(&mut (&mut self.bytes).limit(room))).poll(cx);
        self.drained = !matches!(&polled, Poll::Ready(Ok(read)) if *read == room);
        polled
    }

    /// Announces a body of which `count` bytes are still to be read.
    pub fn expect_body(&mut self, count: u64) {
        self.read_size = usize::try_from(count).unwrap_or(usize::MAX).clamp(READ_SIZE, MAX_READ_SIZE);
    }

    /// Called when a body with `left` bytes passes by the buffer, which is empty: leaves the memory to other messages.
    pub fn bypass(&mut self, left: u64) {
        self.expect_body(left);
        memory_pool::take_back_read(&mut self.bytes);
    }

    /// Whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Called at the end of a message: leaves the memory to other messages, unless it holds the next one of this
    /// connection, or parts of it are still in use.
    pub fn release(&mut self) {
        self.read_size = READ_SIZE;
        if self.bytes.is_empty() {
            memory_pool::take_back_read(&mut self.bytes);
        }
    }
}
