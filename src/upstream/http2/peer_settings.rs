//! Whether the endpoint allows extended CONNECT, which it says in its first SETTINGS frame (RFC 8441 section 3, RFC 9113
//! section 3.4).
//!
//! A connection is ready for requests before that frame has come. To tell *not allowed* from *not known yet* a PING is sent:
//! its acknowledgement comes behind that frame.

use std::cell::Cell;
use std::future::poll_fn;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Ping, PingPong};
use tokio::sync::Mutex;

/// What is known of the settings of one connection's endpoint.
#[derive(Debug)]
pub(super) struct PeerSettings {
    /// Its first frame has come.
    known: Cell<bool>,
    asking: Mutex<Asking>,
}

#[derive(Debug)]
struct Asking {
    pings: Option<PingPong>,
    /// A PING is out.
    asked: bool,
}

impl PeerSettings {
    /// Nothing is known yet; `pings` go by the connection.
    pub(super) fn new(pings: Option<PingPong>) -> Self {
        Self { known: Cell::new(false), asking: Mutex::new(Asking { pings, asked: false }) }
    }

    /// Something has come by the connection, so its first frame has.
    pub(super) fn note_received(&self) {
        self.known.set(true);
    }

    /// Whether `sender` may send an extended CONNECT.
    ///
    /// # Errors
    /// The connection has ended before its settings came.
    pub(super) async fn allow_extended_connect(
        &self,
        sender: &SendRequest<Bytes>,
    ) -> Result<bool, h2::Error> {
        if !self.known.get() && !sender.is_extended_connect_protocol_enabled() {
            let Asking { pings, asked } = &mut *self.asking.lock().await;
            if let Some(pings) = pings.as_mut().filter(|_| !self.known.get()) {
                // A request that asked before may have been dropped.
                if !std::mem::replace(asked, true) {
                    pings.send_ping(Ping::opaque())?;
                }
                poll_fn(|cx| pings.poll_pong(cx)).await?;
                self.known.set(true);
            }
        }
        Ok(sender.is_extended_connect_protocol_enabled())
    }
}
