//! Pool of HTTP/2 connections of one worker to one endpoint, each multiplexing many requests.
//!
//! A connection is filled up to the endpoint's maximum before another one is opened. Only one is opened at a time;
//! requests that wait for it share it, or its failure.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use crate::error::UpstreamError;
use crate::host::UpstreamHost;
use weir_http::http2::{AcceptedOrigins, ClientConnection, Http2Settings, RequestSender};
use weir_net::transport::Transport;
use weir_telemetry::malformed_streams::{self, MalformedSide};
use weir_telemetry::metrics::EndpointMetrics;

/// Maximum number of connections per pool. Beyond it, requests wait for a stream to end.
const MAX_CONNECTIONS: usize = 16;
/// Maximum number of requests per connection, even if the endpoint allows more: an endpoint often handles a connection
/// with one core.
const MAX_STREAMS: usize = 1000;
/// Number of consecutive requests without a response after which a connection is not used for further requests.
const MAX_UNANSWERED: u32 = 5;
/// Flow-control windows of a stream, in bytes: that of every stream, and the maximum while its response is read.
const STREAM_WINDOW: u32 = 16 * 1024;
const MAX_STREAM_WINDOW: u32 = 256 * 1024;
/// Bytes by which all windows of a connection together may exceed the former.
const SHARED_WINDOW: u32 = 16 * 1024 * 1024;
/// Maximum size of a response's header section, in bytes.
const MAX_HEADER_LIST: u32 = 64 * 1024;
/// Limits of this end of a connection.
pub(super) const SETTINGS: Http2Settings = Http2Settings {
    // A server opens no streams.
    max_streams: 0,
    max_header_list: MAX_HEADER_LIST,
    stream_window: STREAM_WINDOW,
    max_stream_window: MAX_STREAM_WINDOW,
    shared_window: SHARED_WINDOW,
    connect_protocol: false,
    origins: AcceptedOrigins::Uri,
    max_premature_resets: u32::MAX,
    max_error_resets: MAX_ERROR_RESETS,
};
/// Maximum malformed responses of a connection; more close it.
const MAX_ERROR_RESETS: u32 = 1024;

/// Connections of one worker to one endpoint.
#[derive(Debug)]
pub(crate) struct Http2Pool {
    connections: RefCell<Vec<Rc<Http2Connection>>>,
    connecting: tokio::sync::Mutex<()>,
    /// Number of failed attempts to connect, and the last error.
    failed: Cell<u64>,
    last_failure: Cell<OpenFailure>,
    max_idle_seconds: u64,
    /// Maximum time until a connection is usable.
    connect_timeout: Duration,
    metrics: Rc<EndpointMetrics>,
    /// For its name in the log.
    host: Arc<UpstreamHost>,
    /// Whether the endpoint allows no streams, as its last connection has shown.
    is_closed: Cell<bool>,
    /// Whether that was found in this second, so that no further connection is tried.
    was_closed_recently: Cell<bool>,
}

#[derive(Debug)]
struct Http2Connection {
    sender: RequestSender,
    in_flight: Cell<usize>,
    /// Number of requests abandoned without a response since the last response.
    unanswered: Cell<u32>,
    is_retired: Cell<bool>,
    /// Idle time, in seconds.
    unused: Cell<u64>,
}

/// Why a connection could not be opened, for the requests that have waited for it.
#[derive(Clone, Copy, Debug)]
enum OpenFailure {
    Connect(io::ErrorKind),
    ServerName(io::ErrorKind),
}

impl From<&UpstreamError> for OpenFailure {
    fn from(error: &UpstreamError) -> Self {
        Self::Connect(match error {
            UpstreamError::ServerName(error) => return Self::ServerName(error.kind()),
            UpstreamError::Connect(error) | UpstreamError::Reset(error) => error.kind(),
            UpstreamError::ConnectTimeout | UpstreamError::Overflow => io::ErrorKind::TimedOut,
            UpstreamError::Malformed(_) => io::ErrorKind::InvalidData,
        })
    }
}

impl From<OpenFailure> for UpstreamError {
    fn from(failure: OpenFailure) -> Self {
        match failure {
            OpenFailure::Connect(kind) => Self::Connect(kind.into()),
            OpenFailure::ServerName(kind) => Self::ServerName(kind.into()),
        }
    }
}

/// Permit for one stream on a connection, released when dropped.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    connection: Rc<Http2Connection>,
    is_used: Cell<bool>,
    has_response: Cell<bool>,
}

impl Http2Pool {
    /// Creates an empty pool that keeps idle connections for `keep_for` seconds.
    pub(crate) fn new(
        keep_for: u64,
        connect_timeout: Duration,
        metrics: &Rc<EndpointMetrics>,
        host: &Arc<UpstreamHost>,
    ) -> Self {
        Self {
            connections: RefCell::default(),
            connecting: tokio::sync::Mutex::default(),
            failed: Cell::new(0),
            last_failure: Cell::new(OpenFailure::Connect(io::ErrorKind::Other)),
            max_idle_seconds: keep_for,
            connect_timeout,
            metrics: Rc::clone(metrics),
            host: Arc::clone(host),
            is_closed: Cell::new(false),
            was_closed_recently: Cell::new(false),
        }
    }

    /// Acquires a stream on a connection with room, or on a new one that `open` establishes. If the maximum number of
    /// connections is open, uses the one with the fewest requests.
    pub(crate) async fn acquire(
        &self,
        open: &impl AsyncFn() -> Result<(Transport, OwnedSemaphorePermit), UpstreamError>,
    ) -> Result<StreamPermit, UpstreamError> {
        if let Some(permit) = self.try_acquire() {
            return Ok(permit);
        }
        let failed = self.failed.get();
        let _turn = self.connecting.lock().await;
        if let Some(permit) = self.try_acquire() {
            return Ok(permit);
        }
        if self.failed.get() != failed {
            return Err(self.last_failure.get().into());
        }
        if self.was_closed_recently.get() {
            return Err(UpstreamError::Connect(io::ErrorKind::ConnectionRefused.into()));
        }
        match self.open_usable_connection(open).await {
            Ok(connection) => Ok(StreamPermit::new(&connection)),
            // A local limit, which each request must check for itself.
            Err(UpstreamError::Overflow) => Err(UpstreamError::Overflow),
            Err(error) => {
                self.failed.set(failed.wrapping_add(1));
                self.last_failure.set(OpenFailure::from(&error));
                Err(error)
            }
        }
    }

    /// Closes all idle connections.
    pub(crate) fn close_unused(&self) {
        self.connections.borrow_mut().retain(|connection| connection.in_flight.get() > 0);
    }

    /// Returns the number of connections without a request.
    pub(crate) fn idle_connections(&self) -> usize {
        self.connections.borrow().iter().filter(|connection| connection.in_flight.get() == 0).count()
    }

    /// Whether there is no connection.
    pub(crate) fn is_empty(&self) -> bool {
        self.connections.borrow().is_empty()
    }

    /// Advances the time by one second: closes connections that were idle for too long.
    pub(crate) fn tick_second(&self) {
        self.was_closed_recently.set(false);
        self.connections.borrow_mut().retain(|connection| {
            let unused =
                if connection.in_flight.get() > 0 { 0 } else { connection.unused.get().saturating_add(1) };
            connection.unused.set(unused);
            !connection.is_retired.get() && unused <= self.max_idle_seconds
        });
    }

    /// Acquires a stream on an existing connection.
    pub(crate) fn try_acquire(&self) -> Option<StreamPermit> {
        let mut connections = self.connections.borrow_mut();
        connections.retain(|connection| {
            let is_closed = connection.sender.max_streams() == 0;
            if is_closed {
                self.record_closed();
            }
            !is_closed && !connection.is_retired.get()
        });
        let with_room = connections.iter().find(|connection| connection.has_room());
        let chosen = with_room.or_else(|| match connections.len() {
            MAX_CONNECTIONS.. => connections.iter().min_by_key(|connection| connection.in_flight.get()),
            _ => None,
        });
        chosen.map(StreamPermit::new)
    }

    /// Opens a connection. If the endpoint has allowed no streams on the last one, waits for the settings of this one:
    /// a request that is sent before would wait in vain.
    async fn open_usable_connection(
        &self,
        open: &impl AsyncFn() -> Result<(Transport, OwnedSemaphorePermit), UpstreamError>,
    ) -> Result<Rc<Http2Connection>, UpstreamError> {
        let connection = self.open_connection(open).await?;
        if self.is_closed.get() {
            // Until then, no other request can use the connection. It closes if this one ends first.
            if let Err(error) = self.await_settings(&connection).await {
                self.metrics.connection_failed();
                return Err(error);
            }
            if connection.sender.max_streams() == 0 {
                self.record_closed();
                return Err(UpstreamError::Connect(io::ErrorKind::ConnectionRefused.into()));
            }
            self.is_closed.set(false);
        }
        self.connections.borrow_mut().push(Rc::clone(&connection));
        Ok(connection)
    }

    /// Waits for the endpoint's settings, for a limited time: other requests wait for this connection.
    async fn await_settings(&self, connection: &Http2Connection) -> Result<(), UpstreamError> {
        let mut sender = connection.sender.clone();
        let settings = poll_fn(|cx| sender.poll_connect_protocol(cx));
        match tokio::time::timeout(self.connect_timeout, settings).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(UpstreamError::Connect(io::Error::from(error))),
            Err(_) => Err(UpstreamError::ConnectTimeout),
        }
    }

    /// Records that the endpoint allows no streams.
    fn record_closed(&self) {
        self.was_closed_recently.set(true);
        if !self.is_closed.replace(true) {
            tracing::warn!(
                endpoint = %self.host.name,
                "the endpoint allows no streams (SETTINGS_MAX_CONCURRENT_STREAMS is 0): it counts as refusing connections"
            );
        }
    }

    async fn open_connection(
        &self,
        open: &impl AsyncFn() -> Result<(Transport, OwnedSemaphorePermit), UpstreamError>,
    ) -> Result<Rc<Http2Connection>, UpstreamError> {
        let (transport, permit) = open().await?;
        let (sender, mut driver) = ClientConnection::new(transport, SETTINGS);
        let connection = Rc::new(Http2Connection {
            sender,
            in_flight: Cell::new(0),
            unanswered: Cell::new(0),
            is_retired: Cell::new(false),
            unused: Cell::new(0),
        });
        let host = Arc::clone(&self.host);
        let (open, watched) = (Http2ConnectionGuard::new(&self.metrics, permit), Rc::downgrade(&connection));
        drop(tokio::task::spawn_local(async move {
            let _open = open;
            let ended = poll_fn(|cx| {
                let polled = Pin::new(&mut driver).poll(cx);
                if let Some(streams) = driver.take_malformed() {
                    malformed_streams::record(MalformedSide::Upstream, &host.name, &streams);
                }
                polled
            });
            if let Err(error) = ended.await {
                tracing::debug!(%error, "upstream connection ended");
            }
            watched.upgrade().inspect(|connection| connection.is_retired.set(true));
        }));
        Ok(connection)
    }
}

impl Http2Connection {
    fn has_room(&self) -> bool {
        self.in_flight.get() < self.sender.max_streams().min(MAX_STREAMS)
    }
}

impl StreamPermit {
    fn new(connection: &Rc<Http2Connection>) -> Self {
        connection.in_flight.set(connection.in_flight.get().saturating_add(1));
        connection.unused.set(0);
        Self { connection: Rc::clone(connection), is_used: Cell::new(false), has_response: Cell::new(false) }
    }

    /// Returns a handle that opens a stream.
    pub(super) fn sender(&self) -> RequestSender {
        self.is_used.set(true);
        self.connection.sender.clone()
    }

    /// Whether the peer allows upgrades. Also `true` if the connection has ended, which its use will reveal.
    pub(crate) async fn allows_extended_connect(&self) -> bool {
        let mut sender = self.connection.sender.clone();
        poll_fn(|cx| sender.poll_connect_protocol(cx)).await.unwrap_or(true)
    }

    /// Records that a response arrived, so the connection is alive.
    pub(super) fn record_response(&self) {
        self.has_response.set(true);
        self.connection.unanswered.set(0);
    }

    /// Excludes the connection from further requests.
    pub(super) fn retire(&self) {
        self.connection.is_retired.set(true);
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let connection = &self.connection;
        connection.in_flight.set(connection.in_flight.get().saturating_sub(1));
        if self.is_used.get() && !self.has_response.get() {
            connection.unanswered.set(connection.unanswered.get().saturating_add(1));
            if connection.unanswered.get() >= MAX_UNANSWERED {
                // Requests in flight may still get a response; further ones use another connection.
                connection.is_retired.set(true);
            }
        }
    }
}

/// Counts a connection while it is open.
struct Http2ConnectionGuard(
    Weak<EndpointMetrics>,
    #[expect(dead_code, reason = "held")] OwnedSemaphorePermit,
);

impl Http2ConnectionGuard {
    fn new(metrics: &Rc<EndpointMetrics>, permit: OwnedSemaphorePermit) -> Self {
        metrics.connection_opened();
        Self(Rc::downgrade(metrics), permit)
    }
}

impl Drop for Http2ConnectionGuard {
    fn drop(&mut self) {
        self.0.upgrade().inspect(|metrics| metrics.connection_closed());
    }
}
