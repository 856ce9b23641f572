//! Connections to the upstream that wait for their next request; one pool per worker.
//!
//! The one used last is used next, so that a burst's surplus ages and is closed.

use std::cell::{Cell, RefCell};

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
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: u64,
}

impl Pool {
    /// A pool that keeps unused connections for `keep_for` seconds.
    pub(super) fn new(keep_for: u64) -> Self {
        Self { idle: RefCell::default(), seconds: Cell::new(0), keep_for }
    }

    /// A connection that is open as far as we know, and on which nothing has come since its last answer.
    pub(super) fn checkout(&self) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        while let Some(Idle { connection, .. }) = idle.pop() {
            if connection.is_quiet() {
                return Some(connection);
            }
        }
        None
    }

    /// Puts a connection whose answer and request have ended back; one with anything left over is closed.
    pub(super) fn give_back(&self, mut connection: Connection) {
        let mut idle = self.idle.borrow_mut();
        if connection.is_settled() && idle.len() < MOST_IDLE {
            connection.settle();
            idle.push(Idle { connection, since: self.seconds.get() });
        }
    }

    /// A second has passed: closes what has been unused for too long or was closed from the other side.
    pub(super) fn age(&self) {
        let now = self.seconds.get().saturating_add(1);
        self.seconds.set(now);
        self.idle.borrow_mut().retain_mut(|idle| {
            let unused = now.saturating_sub(idle.since);
            if unused == REST_AFTER {
                idle.connection.rest();
            }
            unused <= self.keep_for && idle.connection.is_quiet()
        });
    }
}
