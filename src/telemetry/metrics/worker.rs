//! Counters of one worker, in memory that no other worker writes.
//!
//! All values only grow; the number of open or in-flight items is the difference of two of them. So an event costs one
//! relaxed addition, and a scrape takes no lock that a worker needs.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::super::count::{self, Count, absorb_all};
use super::super::histogram::Histogram;
use super::arrival::{LOAD_SHED, Preamble, handshake_index};
use crate::overload::LoadShed;
use crate::tls::SessionStart;
use crate::tls::server::ServerHandshakeError;

/// Classes of status codes.
pub(super) const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Counters of one listener on one worker, or their sum. The alignment prevents false sharing between workers;
/// processors fetch cache lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct ListenerCounts {
    pub(super) started: Count,
    pub(super) answered: [Count; CLASSES.len()],
    pub(super) reset: Count,
    pub(super) opened: Count,
    pub(super) closed: Count,
    pub(super) handshakes: [Count; 2 + ServerHandshakeError::ALL.len()],
    pub(super) handshaking: Spans,
    pub(super) handshakes_waiting: Spans,
    pub(super) preambles: [Count; Preamble::LABELS.len()],
    pub(super) duration: Histogram,
}

/// Number of operations that began and that ended.
#[derive(Debug, Default)]
pub(super) struct Spans {
    begun: Count,
    ended: Count,
}

// In sums and differences, ends are read before beginnings, and differences saturate. Otherwise an operation that ends
// while other threads count could make a gauge negative.

impl Spans {
    /// Returns the number of operations that have not ended.
    pub(super) fn open(&self) -> u64 {
        let ended = self.ended.get();
        self.begun.get().saturating_sub(ended)
    }

    /// Whether any operation has begun.
    pub(super) fn has_any(&self) -> bool {
        self.begun.get() > 0
    }

    fn absorb(&mut self, other: &Self) {
        self.ended.absorb(&other.ended);
        self.begun.absorb(&other.begun);
    }
}

impl ListenerCounts {
    pub(super) fn finished(&self) -> u64 {
        count::sum(&self.answered)
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.started.get().saturating_sub(self.finished().saturating_add(self.reset.get()))
    }

    pub(super) fn connections(&self) -> u64 {
        self.opened.get().saturating_sub(self.closed.get())
    }

    fn absorb(&mut self, other: &Self) {
        self.duration.absorb(&other.duration);
        absorb_all(&mut self.answered, &other.answered);
        self.reset.absorb(&other.reset);
        self.closed.absorb(&other.closed);
        self.started.absorb(&other.started);
        self.opened.absorb(&other.opened);
        absorb_all(&mut self.handshakes, &other.handshakes);
        self.handshaking.absorb(&other.handshaking);
        self.handshakes_waiting.absorb(&other.handshakes_waiting);
        absorb_all(&mut self.preambles, &other.preambles);
    }
}

/// An operation that ends when this is dropped.
#[derive(Debug)]
pub struct Span {
    counts: Arc<WorkerCounts>,
    listener: usize,
    of: fn(&ListenerCounts) -> &Spans,
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(counts) = self.counts.listeners.get(self.listener) {
            (self.of)(counts).ended.increment();
        }
    }
}

/// Counters of one worker, or their sum.
#[derive(Debug, Default)]
pub(super) struct WorkerCounts {
    pub(super) listeners: Box<[ListenerCounts]>,
    pub(super) malformed: Count,
    pub(super) load_shed: [Count; LOAD_SHED.len()],
    pub(super) accept_failures: Count,
    pub(super) delays_started: Count,
    pub(super) delay: Histogram,
}

impl WorkerCounts {
    pub(super) fn new(listeners: usize) -> Self {
        Self { listeners: (0..listeners).map(|_| ListenerCounts::default()).collect(), ..Self::default() }
    }

    pub(super) fn absorb(&mut self, other: &Self) {
        self.listeners.iter_mut().zip(&other.listeners).for_each(|(sum, one)| sum.absorb(one));
        self.malformed.absorb(&other.malformed);
        absorb_all(&mut self.load_shed, &other.load_shed);
        self.accept_failures.absorb(&other.accept_failures);
        self.delay.absorb(&other.delay);
        self.delays_started.absorb(&other.delays_started);
    }

    /// Returns the number of requests that are currently delayed.
    pub(super) fn delayed(&self) -> u64 {
        self.delays_started.get().saturating_sub(self.delay.count())
    }
}

/// Handle of one worker's counters. Clones share them, so that connections of the worker can have one each.
///
/// `listener` is the position of the listener among the names passed to [`Metrics::new`](super::Metrics::new). An
/// unknown position is ignored.
#[derive(Clone, Debug)]
pub struct WorkerMetrics {
    pub(super) counts: Arc<WorkerCounts>,
}

impl WorkerMetrics {
    /// Records that a connection from a client was accepted.
    pub fn downstream_connection_opened(&self, listener: usize) {
        self.with(listener, |counts| counts.opened.increment());
    }

    /// Records that a connection from a client ended, for any reason.
    pub fn downstream_connection_closed(&self, listener: usize) {
        self.with(listener, |counts| counts.closed.increment());
    }

    /// Records the result of a TLS handshake with a client.
    pub fn handshake(&self, listener: usize, outcome: Result<SessionStart, ServerHandshakeError>) {
        let index = handshake_index(outcome.map_err(|failure| failure as usize));
        self.with(listener, |counts| counts.handshakes[index].increment());
    }

    /// Records that a handshake begins; it ends when the result is dropped.
    pub fn handshake_begins(&self, listener: usize) -> Span {
        self.span(listener, |counts| &counts.handshaking)
    }

    /// Records that a handshake is queued, until the result is dropped.
    pub fn handshake_waits(&self, listener: usize) -> Span {
        self.span(listener, |counts| &counts.handshakes_waiting)
    }

    /// Records how a connection began, on a listener that accepts the PROXY protocol.
    pub fn preamble(&self, listener: usize, outcome: Preamble) {
        self.with(listener, |counts| counts.preambles[outcome as usize].increment());
    }

    /// Records the arrival of a request's header section. Exactly one of [`Self::request_finished`] and
    /// [`Self::request_reset`] must follow.
    pub fn request_started(&self, listener: usize) {
        self.with(listener, |counts| counts.started.increment());
    }

    /// Records a complete response. `duration` is the time since the request's header section arrived.
    pub fn request_finished(&self, listener: usize, status: StatusCode, duration: Duration) {
        self.with(listener, |counts| {
            counts.answered[class_of(status)].increment();
            counts.duration.record(duration);
        });
    }

    /// Records that the client left before the response was complete.
    pub fn request_reset(&self, listener: usize) {
        self.with(listener, |counts| counts.reset.increment());
    }

    /// Records malformed input that got a 400, 408 or 431. It is not included in the requests counted above.
    pub fn malformed_request(&self) {
        self.counts.malformed.increment();
    }

    /// Records a connection or request that was rejected by load shedding.
    pub fn load_shed(&self, by: LoadShed) {
        self.counts.load_shed[by as usize].increment();
    }

    /// Records a connection that could not be accepted because file descriptors or memory ran out.
    pub fn accept_failed(&self) {
        self.counts.accept_failures.increment();
    }

    /// Records that a limit delays a request. Exactly one [`Self::delay_ended`] must follow.
    pub fn delay_started(&self) {
        self.counts.delays_started.increment();
    }

    /// Records that a delay ended, because the request is forwarded or its client has left.
    pub fn delay_ended(&self, delay: Duration) {
        self.counts.delay.record(delay);
    }

    fn span(&self, listener: usize, of: fn(&ListenerCounts) -> &Spans) -> Span {
        self.with(listener, |counts| of(counts).begun.increment());
        Span { counts: Arc::clone(&self.counts), listener, of }
    }

    fn with(&self, listener: usize, count: impl FnOnce(&ListenerCounts)) {
        if let Some(counts) = self.counts.listeners.get(listener) {
            count(counts);
        }
    }
}

/// Returns the index of a status code's class. Codes above 599 count as 5xx.
pub(super) fn class_of(status: StatusCode) -> usize {
    usize::from(status.as_u16() / 100).clamp(1, CLASSES.len()) - 1
}
