//! TLS to an endpoint: how it rests and how it ends.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;

use super::Transport;

/// A connection under TLS. Dropped, it tells the endpoint that it ends, as far as the socket takes that at once
/// (RFC 8446 section 6.1).
#[derive(Debug)]
pub(in crate::upstream) struct TlsTransport(pub(in crate::upstream) TlsStream<Transport>);

impl TlsTransport {
    /// Whether nothing has come for us, not even the end. What comes for TLS alone is dealt with here: tickets for
    /// the next session, and new keys.
    pub(super) fn is_quiet(&mut self) -> bool {
        let mut byte = [0];
        // Nobody waits for it: whoever does so later says so anew.
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(&mut self.0).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
    }

    /// What it runs over.
    pub(super) fn inner(&self) -> &Transport {
        self.0.get_ref().0
    }
}

impl Drop for TlsTransport {
    fn drop(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        let _ = Pin::new(&mut self.0).poll_shutdown(&mut cx);
    }
}

impl AsyncRead for TlsTransport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for TlsTransport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, parts)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
