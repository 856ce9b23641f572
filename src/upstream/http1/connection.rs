//! An HTTP/1.1 connection to an upstream, counted while it is open.

use std::rc::Rc;

use tokio::sync::OwnedSemaphorePermit;

use crate::http1::client::conn::ClientConn;
use crate::http1::read_buf::ReadBuf;
use crate::telemetry::metrics::EndpointMetrics;
use crate::transport::Transport;

/// An open connection, closed when dropped. Boxed, because it is moved with every request.
#[derive(Debug)]
pub(in crate::upstream) struct Http1Connection {
    pub(in crate::upstream) conn: ClientConn<Transport>,
    pub(super) guard: Http1ConnectionGuard,
}

/// Counts a connection while it is open.
#[derive(Debug)]
pub(super) struct Http1ConnectionGuard(
    Rc<EndpointMetrics>,
    #[expect(dead_code, reason = "held")] OwnedSemaphorePermit,
);

impl Drop for Http1ConnectionGuard {
    fn drop(&mut self) {
        self.0.connection_closed();
    }
}

impl Http1Connection {
    /// Creates a connection that is counted by `metrics`, and holds `permit`, until it is closed.
    pub(in crate::upstream) fn new(
        stream: Transport,
        metrics: &Rc<EndpointMetrics>,
        permit: OwnedSemaphorePermit,
    ) -> Box<Self> {
        metrics.connection_opened();
        let open = Http1ConnectionGuard(Rc::clone(metrics), permit);
        Box::new(Self { conn: ClientConn { stream, read_buf: ReadBuf::default() }, guard: open })
    }

    /// Whether nothing has arrived since the last response, not even the end, as far as the runtime has reported.
    pub(in crate::upstream) fn has_no_input(&mut self) -> bool {
        self.conn.stream.has_no_input()
    }
}
