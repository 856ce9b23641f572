//! Bytes that were received and not yet handled.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::frame::{FRAME_HEADER_SIZE, FrameHeader};

/// Bytes reserved for a read.
const READ_SIZE: usize = 32 * 1024;
/// Payloads of DATA up to this size are copied, so that they do not hold the memory of a whole read.
const MAX_COPIED_DATA: usize = 8 * 1024;

thread_local! {
    /// Memory of the connection that has read last. Connections without an incomplete frame have none.
    static SPARE: Cell<BytesMut> = Cell::new(BytesMut::new());
}

/// Input of a connection.
#[derive(Debug, Default)]
pub(super) struct InputBuf {
    bytes: BytesMut,
}

/// Data of a frame.
#[derive(Debug)]
pub(super) enum Payload<'a> {
    /// To be copied.
    Small(&'a [u8]),
    /// Split off the buffer.
    Large(Bytes),
}

impl Payload<'_> {
    /// Returns its size, in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Small(data) => data.len(),
            Self::Large(data) => data.len(),
        }
    }
}

impl InputBuf {
    /// Reads once. Returns the number of bytes, 0 at the end of the connection.
    pub(super) fn poll_read(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.bytes.capacity() == 0 {
            self.bytes = SPARE.take();
        }
        if self.bytes.capacity() - self.bytes.len() < READ_SIZE / 2 {
            self.bytes.reserve(READ_SIZE);
        }
        let polled = pin!(stream.read_buf(&mut self.bytes)).poll(cx);
        self.release();
        polled
    }

    /// Leaves the memory to other connections, if nothing is in it.
    fn release(&mut self) {
        if self.bytes.is_empty() {
            SPARE.set(std::mem::take(&mut self.bytes));
        }
    }

    /// Returns the bytes that have arrived.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Removes the first bytes.
    pub(super) fn advance(&mut self, bytes: usize) {
        bytes::Buf::advance(&mut self.bytes, bytes);
        self.release();
    }

    /// Returns the header of the next frame, once it has arrived.
    pub(super) fn peek_header(&self) -> Option<FrameHeader> {
        self.bytes.first_chunk().map(FrameHeader::parse)
    }

    /// Returns the payload of the next frame, once it has arrived.
    pub(super) fn payload(&self, length: usize) -> Option<&[u8]> {
        self.bytes.get(FRAME_HEADER_SIZE..FRAME_HEADER_SIZE + length)
    }

    /// Takes a part of the next frame's payload and removes the frame from the buffer, in either order.
    pub(super) fn with_data<R>(
        &mut self,
        length: usize,
        range: Range<usize>,
        take: impl FnOnce(Payload<'_>) -> R,
    ) -> R {
        let (start, end) = (FRAME_HEADER_SIZE + range.start, FRAME_HEADER_SIZE + length);
        let size = range.len();
        if size <= MAX_COPIED_DATA {
            let taken = take(Payload::Small(&self.bytes[start..start + size]));
            self.advance(end);
            return taken;
        }
        let mut frame = self.bytes.split_to(end);
        self.release();
        bytes::Buf::advance(&mut frame, start);
        frame.truncate(size);
        take(Payload::Large(frame.freeze()))
    }
}
