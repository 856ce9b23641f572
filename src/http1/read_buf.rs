//! What has been read from a connection and not yet decoded.

use std::io;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Room for a read: more than most answers take. What a read leaves free tells the runtime that there is no more.
const ROOM: usize = 8 * 1024;
/// With less room than this, more is made.
const LEAST_ROOM: usize = 2 * 1024;
/// The most that is read at once of a large body. Each read and write costs system calls and wakes somebody, but a body that
/// nobody takes holds this much memory as long as it stands still.
const MOST_ROOM: usize = 32 * 1024;
/// A body that fills the room gets so much more, up to that.
const GROWTH: usize = 4;

/// Where an [`ReadBuf`] reads.
pub trait Source: AsyncRead + Unpin {
    /// Ready when there may be something to be read, if only the end; whoever cannot tell is always ready. Where nothing has
    /// come, asking is cheaper than trying.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// The first bytes of a message are here.
    fn message_started(&self) {}
}

/// A connection's read buffer. Decoded parts are split off it, not copied; its memory is used again once
/// they are gone.
#[derive(Debug)]
pub struct ReadBuf {
    /// What is there to be decoded.
    pub bytes: BytesMut,
    room: usize,
    /// The last read left nothing.
    drained: bool,
}

impl Default for ReadBuf {
    fn default() -> Self {
        Self { bytes: BytesMut::new(), room: ROOM, drained: false }
    }
}

impl ReadBuf {
    /// Reads once; answers how much came, 0 at the end of the connection.
    pub fn poll_read(&mut self, stream: &mut impl Source, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.drained {
            ready!(stream.poll_readable(cx));
        }
        let least = if self.room > ROOM { self.room / 2 } else { LEAST_ROOM };
        if self.bytes.capacity() - self.bytes.len() < least {
            self.bytes.reserve(self.room);
        }
        let room = self.bytes.capacity() - self.bytes.len();
        let polled = pin!(stream.read_buf(&mut self.bytes)).poll(cx);
        self.drained = !matches!(&polled, Poll::Ready(Ok(read)) if *read == room);
        match &polled {
            Poll::Ready(Ok(read)) if *read == room => self.room = (self.room * GROWTH).min(MOST_ROOM),
            // It comes slowly: what waits for its reader should not hold more memory than it needs.
            Poll::Ready(Ok(read)) if *read < self.room / 4 => self.room = (self.room / 2).max(ROOM),
            _ => {}
        }
        polled
    }

    /// So many octets of a body are still to come.
    pub fn expect(&mut self, octets: u64) {
        self.room = usize::try_from(octets).unwrap_or(usize::MAX).clamp(ROOM, MOST_ROOM);
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// A message has ended: memory that was right for a large one is given back, unless the next one is in it.
    pub fn settle(&mut self) {
        self.room = ROOM;
        if self.bytes.is_empty() && self.bytes.capacity() > 2 * ROOM {
            self.bytes = BytesMut::new();
        }
    }
}
