//! Detects whether an endpoint allows extended CONNECT, according to its first SETTINGS frame (RFC 8441 section 3, RFC
//! 9113 section 3.4).
//!
//! A connection accepts requests before that frame has arrived. To distinguish *not allowed* from *not known yet*, a
//! PING is sent: its acknowledgement arrives after the frame.

use std::cell::Cell;
use std::future::poll_fn;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Ping, PingPong};
use tokio::sync::Mutex;

/// Known settings of one connection's endpoint.
#[derive(Debug)]
pub(super) struct PeerSettings {
    /// Whether its first frame has arrived.
    is_received: Cell<bool>,
    ping: Mutex<PingState>,
}

#[derive(Debug)]
struct PingState {
    pings: Option<PingPong>,
    /// Whether a PING was sent.
    is_sent: bool,
}

impl PeerSettings {
    /// Creates an unknown state; `pings` belongs to the connection.
    pub(super) fn new(pings: Option<PingPong>) -> Self {
        Self { is_received: Cell::new(false), ping: Mutex::new(PingState { pings, is_sent: false }) }
    }

    /// Records that data has arrived on the connection, so its first frame has.
    pub(super) fn mark_received(&self) {
        self.is_received.set(true);
    }

    /// Whether `sender` may send an extended CONNECT.
    ///
    /// # Errors
    /// If the connection ended before its settings arrived.
    pub(super) async fn allow_extended_connect(
        &self,
        sender: &SendRequest<Bytes>,
    ) -> Result<bool, h2::Error> {
        if !self.is_received.get() && !sender.is_extended_connect_protocol_enabled() {
            let PingState { pings, is_sent: asked } = &mut *self.ping.lock().await;
            if let Some(pings) = pings.as_mut().filter(|_| !self.is_received.get()) {
                // The PING may have been sent for a request that was cancelled.
                if !std::mem::replace(asked, true) {
                    pings.send_ping(Ping::opaque())?;
                }
                poll_fn(|cx| pings.poll_pong(cx)).await?;
                self.is_received.set(true);
            }
        }
        Ok(sender.is_extended_connect_protocol_enabled())
    }
}
