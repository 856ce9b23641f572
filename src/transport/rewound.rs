//! A connection of which more was read than belonged to its preamble.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead as _, ReadBuf};

use super::Transport;

/// Bytes to be read again, and what follows them.
#[derive(Debug)]
pub struct Rewound {
    pub(super) again: Vec<u8>,
    pub(super) read: usize,
    pub(super) rest: Transport,
}

impl Rewound {
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let again = self.again.get(self.read..).unwrap_or_default();
        if again.is_empty() {
            return Pin::new(&mut self.rest).poll_read(cx, buffer);
        }
        let length = again.len().min(buffer.remaining());
        buffer.put_slice(&again[..length]);
        self.read += length;
        if self.read == self.again.len() {
            (self.again, self.read) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}
