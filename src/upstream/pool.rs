//! Connections to the upstream that wait for their next request; one pool per worker.
//!
//! The one used last is used next, so that a burst's surplus ages and is closed.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::circuit_breaker::{CircuitBreaker, Resource};
use super::error::Error;
use super::http1::connection::Connection;

/// Idle connections kept per worker; beyond that they are closed.
const MOST_IDLE: usize = 1024;
/// After so many seconds unused, a connection gives its buffers back.
const REST_AFTER: u64 = 2;

/// The idle connections of one worker to one upstream.
#[derive(Debug)]
pub(super) struct Pool {
    idle: RefCell<Vec<Idle>>,
    /// Seconds this pool has lived, as told by [`Self::age`].
    seconds: Cell<u64>,
    keep_for: u64,
    breaker: Arc<CircuitBreaker>,
    /// Requests of this worker that wait for one to come back.
    waiting: Cell<u32>,
    returned: Notify,
    /// Whose turn it is where others wait too.
    others_turn: Cell<bool>,
}

/// What a request may use to get its connection.
#[derive(Debug)]
pub(super) enum Room {
    /// For one more connection.
    Fresh(OwnedSemaphorePermit),
    /// In one that was used before.
    Kept(Box<Connection>),
}

#[derive(Debug)]
struct Idle {
    connection: Box<Connection>,
    since: u64,
}

impl Pool {
    /// A pool that keeps unused connections for `keep_for` seconds.
    pub(super) fn new(keep_for: u64, breaker: &Arc<CircuitBreaker>) -> Self {
        Self {
            idle: RefCell::default(),
            seconds: Cell::new(0),
            keep_for,
            breaker: Arc::clone(breaker),
            waiting: Cell::new(0),
            returned: Notify::new(),
            others_turn: Cell::new(false),
        }
    }

    /// How long a connection may stay unused.
    pub(super) fn keep_for(&self) -> Duration {
        Duration::from_secs(self.keep_for)
    }

    /// Room for one more connection, or else the first that is free.
    ///
    /// # Errors
    /// [`Error::Overflow`] where as many wait already as may.
    pub(super) async fn room(&self) -> Result<Room, Error> {
        if let Ok(permit) = Arc::clone(&self.breaker.connections).try_acquire_owned() {
            return Ok(Room::Fresh(permit));
        }
        let _pending = self.breaker.acquire(Resource::Pending).ok_or(Error::Overflow)?;
        let _waiting = Waiting::begin(self);
        let permit = Arc::clone(&self.breaker.connections).acquire_owned();
        tokio::pin!(permit);
        loop {
            tokio::select! {
                biased;
                permit = &mut permit => return permit.map(Room::Fresh).map_err(|_| Error::Overflow),
                () = self.returned.notified() => {
                    if let Some(kept) = self.checkout() {
                        return Ok(Room::Kept(kept));
                    }
                }
            }
        }
    }

    /// Room for one more connection, and nothing else.
    ///
    /// # Errors
    /// [`Error::Overflow`] where as many wait already as may.
    pub(super) async fn permit(&self) -> Result<OwnedSemaphorePermit, Error> {
        let connections = &self.breaker.connections;
        if let Ok(permit) = Arc::clone(connections).try_acquire_owned() {
            return Ok(permit);
        }
        let _pending = self.breaker.acquire(Resource::Pending).ok_or(Error::Overflow)?;
        Arc::clone(connections).acquire_owned().await.map_err(|_| Error::Overflow)
    }

    /// Closes all that have no request.
    pub(super) fn close_unused(&self) {
        self.idle.borrow_mut().clear();
    }

    /// A connection that is open as far as we know, and on which nothing has come since its last answer.
    pub(super) fn checkout(&self) -> Option<Box<Connection>> {
        let mut idle = self.idle.borrow_mut();
        while let Some(Idle { mut connection, .. }) = idle.pop() {
            if connection.is_quiet() {
                return Some(connection);
            }
        }
        None
    }

    /// Puts a connection whose answer and request have ended back; one with anything left over is closed.
    pub(super) fn give_back(&self, mut connection: Box<Connection>) {
        if self.breaker.used(Resource::Pending) > 0 && !self.is_wanted_here() {
            return;
        }
        let mut idle = self.idle.borrow_mut();
        if connection.conn.is_settled() && idle.len() < MOST_IDLE {
            connection.conn.settle();
            idle.push(Idle { connection, since: self.seconds.get() });
        }
    }

    /// Where requests wait for a connection, whether it goes to one of ours: to every second, where others wait too,
    /// for whom it has to be closed.
    fn is_wanted_here(&self) -> bool {
        let ours = self.waiting.get();
        let others = self.breaker.used(Resource::Pending) > ours;
        let wanted = ours > 0 && !(others && self.others_turn.replace(!self.others_turn.get()));
        if wanted {
            self.returned.notify_one();
        }
        wanted
    }

    /// A second has passed: closes what has been unused for too long or was closed from the other side.
    pub(super) fn age(&self) {
        let now = self.seconds.get().saturating_add(1);
        self.seconds.set(now);
        self.idle.borrow_mut().retain_mut(|idle| {
            let unused = now.saturating_sub(idle.since);
            if unused == REST_AFTER {
                idle.connection.conn.rest();
            }
            unused <= self.keep_for && idle.connection.is_quiet()
        });
    }
}

/// A request that waits, until this is dropped.
struct Waiting<'a>(&'a Pool);

impl<'a> Waiting<'a> {
    fn begin(pool: &'a Pool) -> Self {
        pool.waiting.set(pool.waiting.get().saturating_add(1));
        Self(pool)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get().saturating_sub(1));
    }
}
