//! What has been read from a connection and not yet decoded.

use std::io;
use std::pin::pin;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Room for a read: more than most answers take. What a read leaves free tells the runtime that there is no more.
const ROOM: usize = 8 * 1024;
/// With less room than this, more is made.
const LEAST_ROOM: usize = 2 * 1024;
/// The most that is read at once of a body that comes faster than it is read.
const MOST_ROOM: usize = 64 * 1024;

/// A connection's read buffer. Decoded parts are split off it, not copied; its memory is used again once
/// they are gone.
#[derive(Debug)]
pub(in crate::upstream) struct Inbox {
    pub(super) bytes: BytesMut,
    room: usize,
}

impl Default for Inbox {
    fn default() -> Self {
        Self { bytes: BytesMut::new(), room: ROOM }
    }
}

impl Inbox {
    /// Reads once; answers how much came, 0 at the end of the connection.
    pub(super) fn poll_read(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.bytes.capacity() - self.bytes.len() < LEAST_ROOM {
            self.bytes.reserve(self.room);
        }
        let room = self.bytes.capacity() - self.bytes.len();
        let polled = pin!(stream.read_buf(&mut self.bytes)).poll(cx);
        if matches!(&polled, Poll::Ready(Ok(read)) if *read == room) {
            self.room = (self.room * 2).min(MOST_ROOM);
        }
        polled
    }

    /// Whether nothing is left.
    pub(in crate::upstream) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// An answer has ended: memory that was right for a large one is given back.
    pub(super) fn settle(&mut self) {
        if self.room > ROOM {
            *self = Self::default();
        }
    }
}
