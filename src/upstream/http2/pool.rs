//! Connections of one worker to one endpoint, each carrying many requests.
//!
//! As many as the endpoint allows share a connection before another is opened, and only one is opened at a time:
//! who waits for it finds it or, if it failed, fails with it.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::{Rc, Weak};

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use tokio::sync::OwnedSemaphorePermit;

use super::peer_settings::PeerSettings;
use crate::telemetry::metrics::EndpointMetrics;
use crate::transport::Transport;
use crate::upstream::error::Error;

/// Connections per worker and endpoint; beyond that, requests wait for a stream to end.
const MAX_CONNECTIONS: usize = 16;
/// Requests on a connection even where the endpoint would take more: one connection is one core there.
const MAX_STREAMS: usize = 1000;
/// Requests without an answer in a row that make a connection one that is not used for others.
const MAX_UNANSWERED: u32 = 5;
/// What the endpoint may send of one answer, and of all on a connection, before we have passed it on. The second
/// is large, since what one slow client leaves must not hold up the others.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// What is kept of a request that the endpoint does not take.
const SEND_BUFFER: usize = 256 * 1024;
/// The fields of an answer may take this much.
const MAX_HEADER_LIST: u32 = 64 * 1024;

/// The connections of one worker to one endpoint.
#[derive(Debug)]
pub(in crate::upstream) struct Pool {
    connections: RefCell<Vec<Rc<Connection>>>,
    connecting: tokio::sync::Mutex<()>,
    /// Attempts to connect that failed, and how the last one did.
    failed: Cell<u64>,
    last_failure: Cell<io::ErrorKind>,
    keep_for: u64,
    metrics: Rc<EndpointMetrics>,
}

/// One connection.
#[derive(Debug)]
struct Connection {
    sender: SendRequest<Bytes>,
    /// Whether streams may leave HTTP.
    settings: PeerSettings,
    in_flight: Cell<usize>,
    /// Requests given up without an answer since the last answer.
    silent: Cell<u32>,
    gone: Cell<bool>,
    /// Seconds without a request.
    unused: Cell<u64>,
}

/// Room for one stream on a connection, until this is dropped.
#[derive(Debug)]
pub(in crate::upstream) struct StreamPermit {
    connection: Rc<Connection>,
    asked: Cell<bool>,
    answered: Cell<bool>,
}

impl Pool {
    /// None yet; unused ones are kept for `keep_for` seconds.
    pub(in crate::upstream) fn new(keep_for: u64, metrics: &Rc<EndpointMetrics>) -> Self {
        Self {
            connections: RefCell::default(),
            connecting: tokio::sync::Mutex::default(),
            failed: Cell::new(0),
            last_failure: Cell::new(io::ErrorKind::Other),
            keep_for,
            metrics: Rc::clone(metrics),
        }
    }

    /// A place on a connection with room, on a new one that `open` makes, or where there are enough, on the one
    /// with the fewest requests.
    pub(in crate::upstream) async fn acquire(
        &self,
        open: &impl AsyncFn() -> Result<(Transport, OwnedSemaphorePermit), Error>,
    ) -> Result<StreamPermit, Error> {
        if let Some(permit) = self.try_acquire() {
            return Ok(permit);
        }
        let failed = self.failed.get();
        let _turn = self.connecting.lock().await;
        if let Some(permit) = self.try_acquire() {
            return Ok(permit);
        }
        if self.failed.get() != failed {
            return Err(Error::Connect(self.last_failure.get().into()));
        }
        match self.open_connection(open).await {
            Ok(connection) => Ok(StreamPermit::of(&connection)),
            // Ours to say, and for each request anew.
            Err(Error::Overflow) => Err(Error::Overflow),
            Err(error) => {
                self.failed.set(failed.wrapping_add(1));
                self.last_failure.set(match &error {
                    Error::Connect(error) | Error::Reset(error) => error.kind(),
                    Error::ConnectTimeout | Error::Overflow => io::ErrorKind::TimedOut,
                    Error::Malformed(_) => io::ErrorKind::InvalidData,
                });
                Err(error)
            }
        }
    }

    /// Lets go of all that have no request.
    pub(in crate::upstream) fn close_unused(&self) {
        self.connections.borrow_mut().retain(|connection| connection.in_flight.get() > 0);
    }

    /// A second has passed: connections that were unused for too long are closed.
    pub(in crate::upstream) fn age(&self) {
        self.connections.borrow_mut().retain(|connection| {
            let unused =
                if connection.in_flight.get() > 0 { 0 } else { connection.unused.get().saturating_add(1) };
            connection.unused.set(unused);
            !connection.gone.get() && unused <= self.keep_for
        });
    }

    /// A place on a connection that there is.
    pub(in crate::upstream) fn try_acquire(&self) -> Option<StreamPermit> {
        let mut connections = self.connections.borrow_mut();
        connections.retain(|connection| !connection.gone.get());
        let with_room = connections.iter().find(|connection| connection.has_room());
        let chosen = with_room.or_else(|| match connections.len() {
            MAX_CONNECTIONS.. => connections.iter().min_by_key(|connection| connection.in_flight.get()),
            _ => None,
        });
        chosen.map(StreamPermit::of)
    }

    async fn open_connection(
        &self,
        open: &impl AsyncFn() -> Result<(Transport, OwnedSemaphorePermit), Error>,
    ) -> Result<Rc<Connection>, Error> {
        let (transport, permit) = open().await?;
        let (sender, mut driver) = Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(SEND_BUFFER)
            .max_header_list_size(MAX_HEADER_LIST)
            .handshake(transport)
            .await
            .map_err(|error| Error::Reset(super::into_io(error)))?;
        let connection = Rc::new(Connection {
            sender,
            settings: PeerSettings::new(driver.ping_pong()),
            in_flight: Cell::new(0),
            silent: Cell::new(0),
            gone: Cell::new(false),
            unused: Cell::new(0),
        });
        let (open, watched) = (Open::new(&self.metrics, permit), Rc::downgrade(&connection));
        drop(tokio::task::spawn_local(async move {
            let _open = open;
            if let Err(error) = driver.await {
                tracing::debug!(%error, "upstream connection ended");
            }
            watched.upgrade().inspect(|connection| connection.gone.set(true));
        }));
        self.connections.borrow_mut().push(Rc::clone(&connection));
        Ok(connection)
    }
}

impl Connection {
    fn has_room(&self) -> bool {
        self.in_flight.get() < self.sender.current_max_send_streams().clamp(1, MAX_STREAMS)
    }
}

impl StreamPermit {
    fn of(connection: &Rc<Connection>) -> Self {
        connection.in_flight.set(connection.in_flight.get().saturating_add(1));
        connection.unused.set(0);
        Self { connection: Rc::clone(connection), asked: Cell::new(false), answered: Cell::new(false) }
    }

    /// The connection's way to open a stream.
    pub(super) fn sender(&self) -> SendRequest<Bytes> {
        self.asked.set(true);
        self.connection.sender.clone()
    }

    /// Whether the other side lets streams leave HTTP; where its connection is gone, that will be seen when it is used.
    pub(in crate::upstream) async fn allows_extended_connect(&self) -> bool {
        self.connection.settings.allow_extended_connect(&self.connection.sender).await.unwrap_or(true)
    }

    /// An answer has come: the connection is alive.
    pub(super) fn answered(&self) {
        self.connection.settings.note_received();
        self.answered.set(true);
        self.connection.silent.set(0);
    }

    /// The connection takes no more requests.
    pub(super) fn retire(&self) {
        self.connection.gone.set(true);
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let connection = &self.connection;
        connection.in_flight.set(connection.in_flight.get().saturating_sub(1));
        if self.asked.get() && !self.answered.get() {
            connection.silent.set(connection.silent.get().saturating_add(1));
            if connection.silent.get() >= MAX_UNANSWERED {
                // What is under way may still be answered; others are better off elsewhere.
                connection.gone.set(true);
            }
        }
    }
}

/// Counts a connection as long as it is open.
struct Open(Weak<EndpointMetrics>, #[expect(dead_code, reason = "held")] OwnedSemaphorePermit);

impl Open {
    fn new(metrics: &Rc<EndpointMetrics>, permit: OwnedSemaphorePermit) -> Self {
        metrics.connection_opened();
        Self(Rc::downgrade(metrics), permit)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.upgrade().inspect(|metrics| metrics.connection_closed());
    }
}
