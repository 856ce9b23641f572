//! A connection to the upstream, which is counted as long as it is open.

use std::rc::Rc;

use tokio::sync::OwnedSemaphorePermit;

use crate::http1::client::conn::Conn;
use crate::http1::read_buf::ReadBuf;
use crate::telemetry::metrics::EndpointMetrics;
use crate::transport::Transport;

/// An open connection. Dropped, it is closed. It is handed on with every request, so it lives in a box.
#[derive(Debug)]
pub(in crate::upstream) struct Connection {
    pub(in crate::upstream) conn: Conn<Transport>,
    pub(super) open: Open,
}

/// Counts a connection as long as it is open.
#[derive(Debug)]
pub(super) struct Open(Rc<EndpointMetrics>, #[expect(dead_code, reason = "held")] OwnedSemaphorePermit);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connection_closed();
    }
}

impl Connection {
    /// A fresh connection, counted by `metrics` from now on; it holds `permit` as long as it is open.
    pub(in crate::upstream) fn new(
        stream: Transport,
        metrics: &Rc<EndpointMetrics>,
        permit: OwnedSemaphorePermit,
    ) -> Box<Self> {
        metrics.connection_opened();
        let open = Open(Rc::clone(metrics), permit);
        Box::new(Self { conn: Conn { stream, read_buf: ReadBuf::default(), buffer: Vec::new() }, open })
    }

    /// Whether nothing has come since the last answer, not even the end, as far as we have been told.
    pub(in crate::upstream) fn is_quiet(&mut self) -> bool {
        self.conn.stream.is_quiet()
    }
}
