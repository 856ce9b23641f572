//! Whether the other side takes extended CONNECT, which its first frame says (RFC 8441 section 3, RFC 9113 section 3.4).
//!
//! A connection is ready for requests before that frame has come. Whoever wants to know whether nothing is offered, or
//! nothing yet, asks for a frame that comes behind it: the answer to a PING.

use std::cell::Cell;
use std::future::poll_fn;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Ping, PingPong};
use tokio::sync::Mutex;

/// What is known of one connection's offer.
#[derive(Debug)]
pub(super) struct Offer {
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

impl Offer {
    /// Nothing is known yet; `pings` go by the connection.
    pub(super) fn new(pings: Option<PingPong>) -> Self {
        Self { known: Cell::new(false), asking: Mutex::new(Asking { pings, asked: false }) }
    }

    /// Something has come by the connection.
    pub(super) fn is_known(&self) {
        self.known.set(true);
    }

    /// Whether extended CONNECT is offered to `sender`.
    ///
    /// # Errors
    /// Nobody can say, for the connection is gone.
    pub(super) async fn stands(&self, sender: &SendRequest<Bytes>) -> Result<bool, h2::Error> {
        if !self.known.get() && !sender.is_extended_connect_protocol_enabled() {
            let Asking { pings, asked } = &mut *self.asking.lock().await;
            if let Some(pings) = pings.as_mut().filter(|_| !self.known.get()) {
                // Somebody may have asked and left.
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
