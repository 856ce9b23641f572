//! An HTTP/1.1 connection to an upstream, counted while it is open.

use std::rc::Rc;

use tokio::sync::OwnedSemaphorePermit;

use weir_http::http1::client::conn::ClientConn;
use weir_http::http1::read_buf::ReadBuf;
use weir_net::transport::Transport;
use weir_telemetry::metrics::EndpointMetrics;

/// An open connection, closed when dropped. Boxed, because it is moved with every request.
#[derive(Debug)]
pub(crate) struct Http1Connection {
    pub(crate) conn: ClientConn<Transport>,
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
    pub(crate) fn new(
        stream: Transport,
        metrics: &Rc<EndpointMetrics>,
        permit: OwnedSemaphorePermit,
    ) -> Box<Self> {
        metrics.connection_opened();
        let open = Http1ConnectionGuard(Rc::clone(metrics), permit);
        Box::new(Self { conn: ClientConn { stream, read_buf: ReadBuf::default() }, guard: open })
    }

    /// Whether nothing has arrived since the last response, not even the end, as far as the runtime has reported.
    pub(crate) fn has_no_input(&mut self) -> bool {
        self.conn.stream.has_no_input()
    }
}
