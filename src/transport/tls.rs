//! TLS over another transport.

use std::pin::Pin;
use std::task::{Context, Waker};

use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio_rustls::TlsStream;

use super::Transport;

/// A connection under TLS. Dropped, one that we have opened tells the other side that it ends, as far as the socket takes
/// that at once (RFC 8446 section 6.1).
#[derive(Debug)]
pub struct Tls(pub(super) TlsStream<Transport>);

impl Tls {
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

impl Drop for Tls {
    fn drop(&mut self) {
        if let TlsStream::Client(stream) = &mut self.0 {
            let mut cx = Context::from_waker(Waker::noop());
            let _ = Pin::new(stream).poll_shutdown(&mut cx);
        }
    }
}
