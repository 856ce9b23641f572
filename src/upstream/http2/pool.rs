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

use super::peer_settings::Offer;
use crate::telemetry::metrics::EndpointMetrics;
use crate::upstream::error::Error;
use crate::upstream::transport::Transport;

/// Connections per worker and endpoint; beyond that, requests wait for a stream to end.
const MOST_LINES: usize = 16;
/// Requests on a connection even where the endpoint would take more: one connection is one core there.
const MOST_STREAMS: usize = 1000;
/// Requests without an answer in a row that make a connection one that is not used for others.
const MOST_SILENT: u32 = 5;
/// What the endpoint may send of one answer, and of all on a connection, before we have passed it on. The second
/// is large, since what one slow client leaves must not hold up the others.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// What is kept of a request that the endpoint does not take.
const SEND_BUFFER: usize = 256 * 1024;
/// The fields of an answer may take this much.
const LARGEST_HEAD: u32 = 64 * 1024;

/// The connections of one worker to one endpoint.
#[derive(Debug)]
pub(in crate::upstream) struct Lines {
    lines: RefCell<Vec<Rc<Line>>>,
    connecting: tokio::sync::Mutex<()>,
    /// Attempts to connect that failed, and how the last one did.
    failed: Cell<u64>,
    last_failure: Cell<io::ErrorKind>,
    keep_for: u64,
    metrics: Rc<EndpointMetrics>,
}

/// One connection.
#[derive(Debug)]
struct Line {
    sender: SendRequest<Bytes>,
    /// Whether streams may leave HTTP.
    offer: Offer,
    under_way: Cell<usize>,
    /// Requests given up without an answer since the last answer.
    silent: Cell<u32>,
    gone: Cell<bool>,
    /// Seconds without a request.
    unused: Cell<u64>,
}

/// A place on a connection, for one request.
#[derive(Debug)]
pub(in crate::upstream) struct Taken {
    line: Rc<Line>,
    asked: Cell<bool>,
    answered: Cell<bool>,
}

impl Lines {
    /// None yet; unused ones are kept for `keep_for` seconds.
    pub(in crate::upstream) fn new(keep_for: u64, metrics: &Rc<EndpointMetrics>) -> Self {
        Self {
            lines: RefCell::default(),
            connecting: tokio::sync::Mutex::default(),
            failed: Cell::new(0),
            last_failure: Cell::new(io::ErrorKind::Other),
            keep_for,
            metrics: Rc::clone(metrics),
        }
    }

    /// A place on a connection with room, on a new one that `connect` makes, or where there are enough, on the one
    /// with the fewest requests.
    pub(in crate::upstream) async fn take(
        &self,
        connect: &impl AsyncFn() -> Result<(Transport, OwnedSemaphorePermit), Error>,
    ) -> Result<Taken, Error> {
        if let Some(taken) = self.free() {
            return Ok(taken);
        }
        let failed = self.failed.get();
        let _turn = self.connecting.lock().await;
        if let Some(taken) = self.free() {
            return Ok(taken);
        }
        if self.failed.get() != failed {
            return Err(Error::Connect(self.last_failure.get().into()));
        }
        match self.open(connect).await {
            Ok(line) => Ok(Taken::of(&line)),
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
        self.lines.borrow_mut().retain(|line| line.under_way.get() > 0);
    }

    /// A second has passed: connections that were unused for too long are closed.
    pub(in crate::upstream) fn age(&self) {
        self.lines.borrow_mut().retain(|line| {
            let unused = if line.under_way.get() > 0 { 0 } else { line.unused.get().saturating_add(1) };
            line.unused.set(unused);
            !line.gone.get() && unused <= self.keep_for
        });
    }

    /// A place on a connection that there is.
    pub(in crate::upstream) fn free(&self) -> Option<Taken> {
        let mut lines = self.lines.borrow_mut();
        lines.retain(|line| !line.gone.get());
        let with_room = lines.iter().find(|line| line.has_room());
        let chosen = with_room.or_else(|| match lines.len() {
            MOST_LINES.. => lines.iter().min_by_key(|line| line.under_way.get()),
            _ => None,
        });
        chosen.map(Taken::of)
    }

    async fn open(
        &self,
        connect: &impl AsyncFn() -> Result<(Transport, OwnedSemaphorePermit), Error>,
    ) -> Result<Rc<Line>, Error> {
        let (transport, permit) = connect().await?;
        let (sender, mut connection) = Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(SEND_BUFFER)
            .max_header_list_size(LARGEST_HEAD)
            .handshake(transport)
            .await
            .map_err(|error| Error::Reset(super::into_io(error)))?;
        let line = Rc::new(Line {
            sender,
            offer: Offer::new(connection.ping_pong()),
            under_way: Cell::new(0),
            silent: Cell::new(0),
            gone: Cell::new(false),
            unused: Cell::new(0),
        });
        let (open, watched) = (Open::new(&self.metrics, permit), Rc::downgrade(&line));
        drop(tokio::task::spawn_local(async move {
            let _open = open;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "upstream connection ended");
            }
            watched.upgrade().inspect(|line| line.gone.set(true));
        }));
        self.lines.borrow_mut().push(Rc::clone(&line));
        Ok(line)
    }
}

impl Line {
    fn has_room(&self) -> bool {
        self.under_way.get() < self.sender.current_max_send_streams().clamp(1, MOST_STREAMS)
    }
}

impl Taken {
    fn of(line: &Rc<Line>) -> Self {
        line.under_way.set(line.under_way.get().saturating_add(1));
        line.unused.set(0);
        Self { line: Rc::clone(line), asked: Cell::new(false), answered: Cell::new(false) }
    }

    /// The connection's way to open a stream.
    pub(super) fn sender(&self) -> SendRequest<Bytes> {
        self.asked.set(true);
        self.line.sender.clone()
    }

    /// Whether the other side lets streams leave HTTP; where its connection is gone, that will be seen when it is used.
    pub(in crate::upstream) async fn offers_switches(&self) -> bool {
        self.line.offer.stands(&self.line.sender).await.unwrap_or(true)
    }

    /// An answer has come: the connection is alive.
    pub(super) fn answered(&self) {
        self.line.offer.is_known();
        self.answered.set(true);
        self.line.silent.set(0);
    }

    /// The connection takes no more requests.
    pub(super) fn retire(&self) {
        self.line.gone.set(true);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let line = &self.line;
        line.under_way.set(line.under_way.get().saturating_sub(1));
        if self.asked.get() && !self.answered.get() {
            line.silent.set(line.silent.get().saturating_add(1));
            if line.silent.get() >= MOST_SILENT {
                // What is under way may still be answered; others are better off elsewhere.
                line.gone.set(true);
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
