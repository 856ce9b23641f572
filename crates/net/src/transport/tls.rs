//! TLS over another transport.

use std::pin::Pin;
use std::task::{Context, Waker};

use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio_rustls::TlsStream;

use super::Transport;

/// A TLS connection. On drop, a connection that Weir opened sends `close_notify`, if the socket takes it at once (RFC
/// 8446 section 6.1).
#[derive(Debug)]
pub struct TlsTransport(pub(super) TlsStream<Transport>);

impl TlsTransport {
    /// Whether no application data has been received, nor the end of the stream. Processes TLS messages such as session
    /// tickets and key updates. If it returns `false`, a byte may have been consumed.
    pub(super) fn has_no_input(&mut self) -> bool {
        let mut byte = [0];
        // No wake-up is needed: the next read registers its own waker.
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(&mut self.0).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
    }

    /// Returns the transport below.
    pub(super) fn inner(&self) -> &Transport {
        self.0.get_ref().0
    }

    /// As [`TlsTransport::inner`].
    pub(super) fn inner_mut(&mut self) -> &mut Transport {
        self.0.get_mut().0
    }
}

impl Drop for TlsTransport {
    fn drop(&mut self) {
        if let TlsStream::Client(stream) = &mut self.0 {
            let mut cx = Context::from_waker(Waker::noop());
            let _ = Pin::new(stream).poll_shutdown(&mut cx);
        }
    }
}
