//! Transport that yields buffered bytes first, then reads from the inner transport.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead as _, ReadBuf};

use super::Transport;

/// Bytes to be read again, and the transport that follows them.
#[derive(Debug)]
pub struct PrefixedTransport {
    pub(super) prefix: Vec<u8>,
    pub(super) position: usize,
    pub(super) inner: Transport,
}

impl PrefixedTransport {
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let again = self.prefix.get(self.position..).unwrap_or_default();
        if again.is_empty() {
            return Pin::new(&mut self.inner).poll_read(cx, buffer);
        }
        let length = again.len().min(buffer.remaining());
        buffer.put_slice(&again[..length]);
        self.position += length;
        if self.position == self.prefix.len() {
            (self.prefix, self.position) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}
