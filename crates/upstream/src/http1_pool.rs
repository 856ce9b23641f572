//! Pool of idle HTTP/1.1 connections, one per worker and endpoint.
//!
//! The most recently used connection is used next, so that surplus connections after a burst age and are closed.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::circuit_breaker::{CircuitBreaker, Resource};
use super::error::UpstreamError;
use super::http1::connection::Http1Connection;
use weir_http::http1::read_buf::ReadBuf;

/// Maximum number of idle connections per pool; more are closed.
const MAX_IDLE_CONNECTIONS: usize = 1024;
/// Seconds after which an idle connection releases a buffer that its last response still used at its end.
const RELEASE_BUFFER_AFTER: u64 = 2;

/// Idle connections of one worker to one endpoint.
#[derive(Debug)]
pub(super) struct Http1Pool {
    idle: RefCell<Vec<Idle>>,
    /// Age of the pool in seconds, advanced by [`Self::tick_second`].
    seconds: Cell<u64>,
    max_idle_seconds: u64,
    breaker: Arc<CircuitBreaker>,
    /// Number of requests of this pool that wait for a connection.
    waiting: Cell<u32>,
    returned: Notify,
    /// Whether the next returned connection is closed in favour of other pools, if requests of both wait.
    yields_next: Cell<bool>,
}

/// What a waiting request obtained.
#[derive(Debug)]
pub(super) enum Checkout {
    /// A permit for a new connection.
    New(OwnedSemaphorePermit),
    /// A connection that was used before.
    Reused(Box<Http1Connection>),
}

#[derive(Debug)]
struct Idle {
    connection: Box<Http1Connection>,
    since: u64,
}

impl Http1Pool {
    /// Creates a pool that keeps idle connections for `keep_for` seconds.
    pub(super) fn new(keep_for: u64, breaker: &Arc<CircuitBreaker>) -> Self {
        Self {
            idle: RefCell::default(),
            seconds: Cell::new(0),
            max_idle_seconds: keep_for,
            breaker: Arc::clone(breaker),
            waiting: Cell::new(0),
            returned: Notify::new(),
            yields_next: Cell::new(false),
        }
    }

    /// Returns the maximum idle time of a connection.
    pub(super) fn max_idle_time(&self) -> Duration {
        Duration::from_secs(self.max_idle_seconds)
    }

    /// Waits for a permit for a new connection, or for a returned connection.
    ///
    /// # Errors
    /// [`UpstreamError::Overflow`] if the maximum number of requests is waiting.
    pub(super) async fn acquire(&self) -> Result<Checkout, UpstreamError> {
        if let Ok(permit) = Arc::clone(&self.breaker.connections).try_acquire_owned() {
            return Ok(Checkout::New(permit));
        }
        let _pending = self.breaker.acquire(Resource::Pending).ok_or(UpstreamError::Overflow)?;
        let _waiting = PoolWaiter::start(self);
        let permit = Arc::clone(&self.breaker.connections).acquire_owned();
        tokio::pin!(permit);
        loop {
            tokio::select! {
                biased;
                permit = &mut permit => return permit.map(Checkout::New).map_err(|_| UpstreamError::Overflow),
                () = self.returned.notified() => {
                    if let Some(kept) = self.checkout() {
                        return Ok(Checkout::Reused(kept));
                    }
                }
            }
        }
    }

    /// Waits for a permit for a new connection.
    ///
    /// # Errors
    /// [`UpstreamError::Overflow`] if the maximum number of requests is waiting.
    pub(super) async fn acquire_permit(&self) -> Result<OwnedSemaphorePermit, UpstreamError> {
        let connections = &self.breaker.connections;
        if let Ok(permit) = Arc::clone(connections).try_acquire_owned() {
            return Ok(permit);
        }
        let _pending = self.breaker.acquire(Resource::Pending).ok_or(UpstreamError::Overflow)?;
        Arc::clone(connections).acquire_owned().await.map_err(|_| UpstreamError::Overflow)
    }

    /// Closes all idle connections.
    pub(super) fn close_unused(&self) {
        self.idle.borrow_mut().clear();
    }

    /// As [`Self::checkout`], for a request that has just arrived. `None` if other requests wait, because idle connections
    /// are then on their way to those.
    pub(super) fn checkout_on_arrival(&self) -> Option<Box<Http1Connection>> {
        if self.waiting.get() > 0 { None } else { self.checkout() }
    }

    /// Returns an idle connection that appears to be open, and on which nothing has arrived since its last response.
    fn checkout(&self) -> Option<Box<Http1Connection>> {
        let mut idle = self.idle.borrow_mut();
        while let Some(Idle { mut connection, .. }) = idle.pop() {
            if connection.has_no_input() {
                return Some(connection);
            }
        }
        None
    }

    /// Takes back a connection whose request and response have ended; closes one with unread data.
    pub(super) fn return_connection(&self, mut connection: Box<Http1Connection>) {
        if self.breaker.used(Resource::Pending) > 0 && !self.is_for_local_waiter() {
            return;
        }
        let mut idle = self.idle.borrow_mut();
        if connection.conn.is_drained() && idle.len() < MAX_IDLE_CONNECTIONS {
            connection.conn.read_buf.release();
            idle.push(Idle { connection, since: self.seconds.get() });
        }
    }

    /// Returns whether a returned connection stays in this pool while requests wait. If requests of other pools wait as
    /// well, every second connection is closed instead, which releases its permit to them.
    fn is_for_local_waiter(&self) -> bool {
        let ours = self.waiting.get();
        let others = self.breaker.used(Resource::Pending) > ours;
        let wanted = ours > 0 && !(others && self.yields_next.replace(!self.yields_next.get()));
        if wanted {
            self.returned.notify_one();
        }
        wanted
    }

    pub(super) fn idle_connections(&self) -> usize {
        self.idle.borrow().len()
    }

    /// Whether no connection is idle.
    pub(super) fn is_empty(&self) -> bool {
        self.idle.borrow().is_empty()
    }

    /// Advances the time by one second: closes connections that were idle for too long or closed by the peer.
    pub(super) fn tick_second(&self) {
        let now = self.seconds.get().saturating_add(1);
        self.seconds.set(now);
        self.idle.borrow_mut().retain_mut(|idle| {
            let unused = now.saturating_sub(idle.since);
            if unused == RELEASE_BUFFER_AFTER {
                // Whatever still uses its memory: the connection does not hold it any more.
                idle.connection.conn.read_buf = ReadBuf::default();
            }
            unused <= self.max_idle_seconds && idle.connection.has_no_input()
        });
    }
}

/// Counts a waiting request until dropped.
struct PoolWaiter<'a>(&'a Http1Pool);

impl<'a> PoolWaiter<'a> {
    fn start(pool: &'a Http1Pool) -> Self {
        pool.waiting.set(pool.waiting.get().saturating_add(1));
        Self(pool)
    }
}

impl Drop for PoolWaiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get().saturating_sub(1));
    }
}
