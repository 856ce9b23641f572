//! What one worker counts, in memory that no other worker writes.
//!
//! Every number here only grows; what is open or in flight is the difference of two of them, so that an
//! event is one relaxed addition and a scrape never needs a lock that a worker might want.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;

use super::super::histogram::Histogram;
use super::arrival::{Handshake, LOAD_SHED, Preamble};
use crate::overload::LoadShed;

/// Classes of status codes, 1xx to 5xx.
pub(super) const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// One listener's numbers. Alignment keeps workers off each other's cache lines, which come in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct ListenerCells {
    pub(super) started: AtomicU64,
    pub(super) answered: [AtomicU64; CLASSES.len()],
    pub(super) reset: AtomicU64,
    pub(super) opened: AtomicU64,
    pub(super) closed: AtomicU64,
    pub(super) handshakes: [AtomicU64; Handshake::LABELS.len()],
    pub(super) shaking: Spans,
    pub(super) waiting_to_shake: Spans,
    pub(super) preambles: [AtomicU64; Preamble::LABELS.len()],
    pub(super) duration: Histogram,
}

/// What begins and ends.
#[derive(Debug, Default)]
pub(super) struct Spans {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Spans {
    /// Those that have begun so far, and those that have ended.
    pub(super) fn load(&self) -> (u64, u64) {
        // In this order, or what ends in between would make the difference negative.
        let ended = self.ended.load(Ordering::Relaxed);
        (self.begun.load(Ordering::Relaxed), ended)
    }
}

/// Something that has begun, until this is dropped.
#[derive(Debug)]
pub struct Span {
    cells: Arc<WorkerCells>,
    listener: usize,
    of: fn(&ListenerCells) -> &Spans,
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(cells) = self.cells.listeners.get(self.listener) {
            bump(&(self.of)(cells).ended);
        }
    }
}

/// All that one worker counts.
#[derive(Debug)]
pub(super) struct WorkerCells {
    pub(super) listeners: Box<[ListenerCells]>,
    pub(super) malformed: AtomicU64,
    pub(super) load_shed: [AtomicU64; LOAD_SHED.len()],
    pub(super) accept_failures: AtomicU64,
    pub(super) delays_started: AtomicU64,
    pub(super) delay: Histogram,
}

impl WorkerCells {
    pub(super) fn new(listeners: usize) -> Self {
        Self {
            listeners: (0..listeners).map(|_| ListenerCells::default()).collect(),
            malformed: AtomicU64::new(0),
            load_shed: Default::default(),
            accept_failures: AtomicU64::new(0),
            delays_started: AtomicU64::new(0),
            delay: Histogram::default(),
        }
    }
}

/// A worker's handle: clones count into the same memory, so a worker passes them on to its connections.
///
/// `listener` is always the position of the listener among the names given to
/// [`Metrics::new`](super::Metrics::new); an unknown one counts nowhere.
#[derive(Clone, Debug)]
pub struct WorkerMetrics {
    pub(super) cells: Arc<WorkerCells>,
}

impl WorkerMetrics {
    /// A client's connection was accepted.
    pub fn downstream_connection_opened(&self, listener: usize) {
        self.with(listener, |cells| bump(&cells.opened));
    }

    /// A client's connection ended, however.
    pub fn downstream_connection_closed(&self, listener: usize) {
        self.with(listener, |cells| bump(&cells.closed));
    }

    /// A client and we shook hands, or could not.
    pub fn handshake(&self, listener: usize, handshake: Handshake) {
        self.with(listener, |cells| bump(&cells.handshakes[handshake.index()]));
    }

    /// A handshake begins.
    pub fn handshake_begins(&self, listener: usize) -> Span {
        self.span(listener, |cells| &cells.shaking)
    }

    /// A handshake waits for its turn.
    pub fn handshake_waits(&self, listener: usize) -> Span {
        self.span(listener, |cells| &cells.waiting_to_shake)
    }

    /// A connection came to a listener where a proxy may say who connected.
    pub fn preamble(&self, listener: usize, outcome: Preamble) {
        self.with(listener, |cells| bump(&cells.preambles[outcome as usize]));
    }

    /// A request's head has arrived. Exactly one of [`Self::request_finished`] and
    /// [`Self::request_reset`] must follow.
    pub fn request_started(&self, listener: usize) {
        self.with(listener, |cells| bump(&cells.started));
    }

    /// The answer is complete; `duration` is the time since the request's head.
    pub fn request_finished(&self, listener: usize, status: StatusCode, duration: Duration) {
        self.with(listener, |cells| {
            bump(&cells.answered[class_of(status)]);
            cells.duration.record(duration);
        });
    }

    /// The client went away before the answer was complete.
    pub fn request_reset(&self, listener: usize) {
        self.with(listener, |cells| bump(&cells.reset));
    }

    /// Bytes that are no request got a 400, 408 or 431; not one of the requests counted above.
    pub fn malformed_request(&self) {
        bump(&self.cells.malformed);
    }

    /// A connection or a request was turned away, for there is too much of something.
    pub fn load_shed(&self, by: LoadShed) {
        bump(&self.cells.load_shed[by as usize]);
    }

    /// A connection could not be accepted, for want of descriptors or memory.
    pub fn accept_failed(&self) {
        bump(&self.cells.accept_failures);
    }

    /// A limit holds a request back. Exactly one [`Self::delay_ended`] must follow.
    pub fn delay_started(&self) {
        bump(&self.cells.delays_started);
    }

    /// A request that was held back goes on after so long, or its client has left.
    pub fn delay_ended(&self, delay: Duration) {
        self.cells.delay.record(delay);
    }

    fn span(&self, listener: usize, of: fn(&ListenerCells) -> &Spans) -> Span {
        self.with(listener, |cells| bump(&of(cells).begun));
        Span { cells: Arc::clone(&self.cells), listener, of }
    }

    fn with(&self, listener: usize, count: impl FnOnce(&ListenerCells)) {
        if let Some(cells) = self.cells.listeners.get(listener) {
            count(cells);
        }
    }
}

pub(super) fn bump(cell: &AtomicU64) {
    cell.fetch_add(1, Ordering::Relaxed);
}

/// Codes beyond 599 are counted with the failures they surely are.
pub(super) fn class_of(status: StatusCode) -> usize {
    usize::from(status.as_u16() / 100).clamp(1, CLASSES.len()) - 1
}
