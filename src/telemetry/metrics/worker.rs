//! What one worker counts, in memory that no other worker writes.
//!
//! Every number here only grows; what is open or in flight is the difference of two of them, so that an
//! event is one relaxed addition and a scrape never needs a lock that a worker might want.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::super::count::{self, Count, absorb_all};
use super::super::histogram::Histogram;
use super::arrival::{LOAD_SHED, Preamble, handshake_index};
use crate::overload::LoadShed;
use crate::tls::SessionStart;
use crate::tls::server::Failure;

/// Classes of status codes, 1xx to 5xx.
pub(super) const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// One listener's counts, of one worker or of all. Alignment keeps workers off each other's cache lines, which come in
/// pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct ListenerCounts {
    pub(super) started: Count,
    pub(super) answered: [Count; CLASSES.len()],
    pub(super) reset: Count,
    pub(super) opened: Count,
    pub(super) closed: Count,
    pub(super) handshakes: [Count; 2 + Failure::ALL.len()],
    pub(super) handshaking: Spans,
    pub(super) handshakes_waiting: Spans,
    pub(super) preambles: [Count; Preamble::LABELS.len()],
    pub(super) duration: Histogram,
}

/// What begins and ends.
#[derive(Debug, Default)]
pub(super) struct Spans {
    begun: Count,
    ended: Count,
}

// Wherever counts are added up or compared, the ends are read before the beginnings, and differences saturate: while
// others go on counting, nothing that is over can seem to have begun later and so make a gauge negative.

impl Spans {
    /// Those that go on.
    pub(super) fn open(&self) -> u64 {
        let ended = self.ended.get();
        self.begun.get().saturating_sub(ended)
    }

    /// Whether any has ever begun.
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

/// Something that has begun, until this is dropped.
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

/// All that one worker counts, or all of them together.
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

    /// Requests held back.
    pub(super) fn delayed(&self) -> u64 {
        self.delays_started.get().saturating_sub(self.delay.count())
    }
}

/// A worker's handle: clones count into the same memory, so a worker passes them on to its connections.
///
/// `listener` is always the position of the listener among the names given to
/// [`Metrics::new`](super::Metrics::new); an unknown one counts nowhere.
#[derive(Clone, Debug)]
pub struct WorkerMetrics {
    pub(super) counts: Arc<WorkerCounts>,
}

impl WorkerMetrics {
    /// A client's connection was accepted.
    pub fn downstream_connection_opened(&self, listener: usize) {
        self.with(listener, |counts| counts.opened.increment());
    }

    /// A client's connection ended, however.
    pub fn downstream_connection_closed(&self, listener: usize) {
        self.with(listener, |counts| counts.closed.increment());
    }

    /// A TLS handshake with a client ended.
    pub fn handshake(&self, listener: usize, outcome: Result<SessionStart, Failure>) {
        let index = handshake_index(outcome.map_err(|failure| failure as usize));
        self.with(listener, |counts| counts.handshakes[index].increment());
    }

    /// A handshake begins.
    pub fn handshake_begins(&self, listener: usize) -> Span {
        self.span(listener, |counts| &counts.handshaking)
    }

    /// A handshake waits for its turn.
    pub fn handshake_waits(&self, listener: usize) -> Span {
        self.span(listener, |counts| &counts.handshakes_waiting)
    }

    /// A connection came to a listener where a proxy may say who connected.
    pub fn preamble(&self, listener: usize, outcome: Preamble) {
        self.with(listener, |counts| counts.preambles[outcome as usize].increment());
    }

    /// A request's head has arrived. Exactly one of [`Self::request_finished`] and
    /// [`Self::request_reset`] must follow.
    pub fn request_started(&self, listener: usize) {
        self.with(listener, |counts| counts.started.increment());
    }

    /// The answer is complete; `duration` is the time since the request's head.
    pub fn request_finished(&self, listener: usize, status: StatusCode, duration: Duration) {
        self.with(listener, |counts| {
            counts.answered[class_of(status)].increment();
            counts.duration.record(duration);
        });
    }

    /// The client went away before the answer was complete.
    pub fn request_reset(&self, listener: usize) {
        self.with(listener, |counts| counts.reset.increment());
    }

    /// Bytes that are no request got a 400, 408 or 431; not one of the requests counted above.
    pub fn malformed_request(&self) {
        self.counts.malformed.increment();
    }

    /// A connection or a request was turned away, for there is too much of something.
    pub fn load_shed(&self, by: LoadShed) {
        self.counts.load_shed[by as usize].increment();
    }

    /// A connection could not be accepted, for want of descriptors or memory.
    pub fn accept_failed(&self) {
        self.counts.accept_failures.increment();
    }

    /// A limit holds a request back. Exactly one [`Self::delay_ended`] must follow.
    pub fn delay_started(&self) {
        self.counts.delays_started.increment();
    }

    /// A request that was held back goes on after so long, or its client has left.
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

/// Codes beyond 599 are counted with the failures they surely are.
pub(super) fn class_of(status: StatusCode) -> usize {
    usize::from(status.as_u16() / 100).clamp(1, CLASSES.len()) - 1
}
