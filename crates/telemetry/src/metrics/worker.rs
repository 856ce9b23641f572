//! Counters of one worker, in memory that no other worker writes.
//!
//! All values only grow; the number of open or in-flight items is the difference of two of them. So an event costs one
//! addition without a locked instruction, and a scrape takes no lock that a worker needs.

use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::StatusCode;

use super::super::atomic_counter::{self, AtomicCounter, merge_all};
use super::super::histogram::Histogram;
use super::connection_setup::{LOAD_SHED_LABELS, handshake_index};
use super::countries::CountryCounts;
use super::final_outcome::{FinalOutcome, OUTCOMES};
use weir_bodies::Unreadable;
use weir_bodies::usage_option::Unchanged;
use weir_net::listener::preamble::ProxyProtocolOutcome;
use weir_net::overload::LoadShed;
use weir_net::tls::SessionStart;
use weir_net::tls::server::ServerHandshakeError;
use weir_policy::identify::geo::Country;

/// Maximum number of names that listeners may have had since the start.
pub const MAX_LISTENERS: usize = 1024;

/// Classes of status codes.
pub(super) const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Counters of one listener on one worker, or their sum. The alignment prevents false sharing between workers;
/// processors fetch cache lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct ListenerCounts {
    pub(super) requests_started: AtomicCounter,
    pub(super) responses: [AtomicCounter; STATUS_CLASSES.len()],
    pub(super) requests_reset: AtomicCounter,
    pub(super) outcomes: [AtomicCounter; OUTCOMES],
    pub(super) connections_opened: AtomicCounter,
    pub(super) connections_closed: AtomicCounter,
    pub(super) handshakes: [AtomicCounter; 2 + ServerHandshakeError::ALL.len()],
    pub(super) handshakes_in_flight: InProgressCounts,
    pub(super) handshakes_waiting: InProgressCounts,
    pub(super) proxy_protocol: [AtomicCounter; ProxyProtocolOutcome::LABELS.len()],
    pub(super) request_duration: Histogram,
}

/// Number of operations that began and that ended.
#[derive(Debug, Default)]
pub(super) struct InProgressCounts {
    started: AtomicCounter,
    ended: AtomicCounter,
}

// In sums and differences, ends are read before beginnings, and differences saturate. Otherwise an operation that ends
// while other threads count could make a gauge negative.

impl InProgressCounts {
    /// Returns the number of operations that have not ended.
    pub(super) fn in_progress(&self) -> u64 {
        let ended = self.ended.get();
        self.started.get().saturating_sub(ended)
    }

    /// Whether any operation has begun.
    pub(super) fn has_any(&self) -> bool {
        self.started.get() > 0
    }

    fn merge(&mut self, other: &Self) {
        self.ended.merge(&other.ended);
        self.started.merge(&other.started);
    }
}

impl ListenerCounts {
    pub(super) fn completed(&self) -> u64 {
        atomic_counter::sum(&self.responses)
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.requests_started.get().saturating_sub(self.completed().saturating_add(self.requests_reset.get()))
    }

    pub(super) fn open_connections(&self) -> u64 {
        self.connections_opened.get().saturating_sub(self.connections_closed.get())
    }

    fn merge(&mut self, other: &Self) {
        self.request_duration.merge(&other.request_duration);
        merge_all(&mut self.responses, &other.responses);
        self.requests_reset.merge(&other.requests_reset);
        merge_all(&mut self.outcomes, &other.outcomes);
        self.connections_closed.merge(&other.connections_closed);
        self.requests_started.merge(&other.requests_started);
        self.connections_opened.merge(&other.connections_opened);
        merge_all(&mut self.handshakes, &other.handshakes);
        self.handshakes_in_flight.merge(&other.handshakes_in_flight);
        self.handshakes_waiting.merge(&other.handshakes_waiting);
        merge_all(&mut self.proxy_protocol, &other.proxy_protocol);
    }
}

/// An operation that ends when this is dropped.
#[derive(Debug)]
pub struct InProgressGuard {
    worker: WorkerMetrics,
    listener: usize,
    select: fn(&ListenerCounts) -> &InProgressCounts,
}

impl Drop for InProgressGuard {
    fn drop(&mut self) {
        self.worker.with_listener(self.listener, |counts| (self.select)(counts).ended.increment_exclusive());
    }
}

/// Counters by the position of a listener. Those of a listener are created by its first event.
#[derive(Debug)]
pub(super) struct ListenerTable(Box<[OnceLock<Box<ListenerCounts>>]>);

impl Default for ListenerTable {
    fn default() -> Self {
        Self((0..MAX_LISTENERS).map(|_| OnceLock::new()).collect())
    }
}

impl ListenerTable {
    /// Returns the counters at a position; `None` beyond the maximum.
    pub(super) fn at(&self, position: usize) -> Option<&ListenerCounts> {
        Some(self.0.get(position)?.get_or_init(Box::default))
    }

    /// Returns the counters of all listeners that had an event.
    pub(super) fn iter(&self) -> impl Iterator<Item = &ListenerCounts> {
        self.0.iter().filter_map(OnceLock::get).map(|counts| &**counts)
    }

    fn merge(&mut self, other: &Self) {
        for (sum, one) in self.0.iter_mut().zip(&other.0) {
            let Some(one) = one.get() else { continue };
            sum.get_or_init(Box::default);
            sum.get_mut().into_iter().for_each(|sum| sum.merge(one));
        }
    }
}

/// Counters of one worker, or their sum.
#[derive(Debug, Default)]
pub(super) struct WorkerCounts {
    pub(super) listeners: ListenerTable,
    pub(super) malformed_requests: AtomicCounter,
    pub(super) removed_headers: AtomicCounter,
    /// Headers of untrusted peers that were removed.
    pub(super) removed_client_headers: AtomicCounter,
    /// Requests of which a trusted peer named a class that does not exist.
    pub(super) unknown_classes: AtomicCounter,
    pub(super) load_shed: [AtomicCounter; LOAD_SHED_LABELS.len()],
    pub(super) unreadable_bodies: [AtomicCounter; Unreadable::ALL.len()],
    /// Streams that were not asked to state their usage.
    pub(super) unchanged_streams: [AtomicCounter; Unchanged::ALL.len()],
    pub(super) accept_failures: AtomicCounter,
    pub(super) delays_started: AtomicCounter,
    pub(super) delay_duration: Histogram,
    pub(super) countries: CountryCounts,
}

impl WorkerCounts {
    pub(super) fn merge(&mut self, other: &Self) {
        self.listeners.merge(&other.listeners);
        self.malformed_requests.merge(&other.malformed_requests);
        self.removed_headers.merge(&other.removed_headers);
        self.removed_client_headers.merge(&other.removed_client_headers);
        self.unknown_classes.merge(&other.unknown_classes);
        merge_all(&mut self.load_shed, &other.load_shed);
        merge_all(&mut self.unreadable_bodies, &other.unreadable_bodies);
        merge_all(&mut self.unchanged_streams, &other.unchanged_streams);
        self.accept_failures.merge(&other.accept_failures);
        self.delay_duration.merge(&other.delay_duration);
        self.delays_started.merge(&other.delays_started);
        self.countries.merge(&other.countries);
    }

    /// Returns the number of requests that are currently delayed.
    pub(super) fn delayed(&self) -> u64 {
        self.delays_started.get().saturating_sub(self.delay_duration.count())
    }
}

/// Handle of one worker's counters. Clones share them, so that connections of the worker can have one each. All are on
/// one thread, and no other thread writes the counters.
///
/// `listener` is the position that [`Metrics::listener`](super::Metrics::listener) returned.
#[derive(Clone, Debug)]
pub struct WorkerMetrics {
    counts: Arc<WorkerCounts>,
    /// Keeps the handle on its thread.
    thread: PhantomData<Rc<()>>,
}

impl WorkerMetrics {
    /// Returns a handle of `counts`, which must be the only one.
    pub(super) fn new(counts: Arc<WorkerCounts>) -> Self {
        Self { counts, thread: PhantomData }
    }

    /// Records that a connection from a client was accepted.
    pub fn downstream_connection_opened(&self, listener: usize) {
        self.with_listener(listener, |counts| counts.connections_opened.increment_exclusive());
    }

    /// Records that a connection from a client ended, for any reason.
    pub fn downstream_connection_closed(&self, listener: usize) {
        self.with_listener(listener, |counts| counts.connections_closed.increment_exclusive());
    }

    /// Records the result of a TLS handshake with a client.
    pub fn record_handshake(&self, listener: usize, outcome: Result<SessionStart, ServerHandshakeError>) {
        let index = handshake_index(outcome.map_err(|failure| failure as usize));
        self.with_listener(listener, |counts| counts.handshakes[index].increment_exclusive());
    }

    /// Records that a handshake begins; it ends when the result is dropped.
    pub fn start_handshake(&self, listener: usize) -> InProgressGuard {
        self.start_operation(listener, |counts| &counts.handshakes_in_flight)
    }

    /// Records that a handshake is queued, until the result is dropped.
    pub fn start_handshake_wait(&self, listener: usize) -> InProgressGuard {
        self.start_operation(listener, |counts| &counts.handshakes_waiting)
    }

    /// Records how a connection began, on a listener that accepts the PROXY protocol.
    pub fn record_proxy_protocol(&self, listener: usize, outcome: ProxyProtocolOutcome) {
        self.with_listener(listener, |counts| counts.proxy_protocol[outcome as usize].increment_exclusive());
    }

    /// Records the arrival of a request's header section. Exactly one of [`Self::request_finished`] and
    /// [`Self::request_reset`] must follow.
    pub fn request_started(&self, listener: usize) {
        self.with_listener(listener, |counts| counts.requests_started.increment_exclusive());
    }

    /// Records a complete response. `duration` is the time since the request's header section arrived.
    pub fn request_finished(
        &self,
        listener: usize,
        status: StatusCode,
        duration: Duration,
        outcome: FinalOutcome,
    ) {
        self.with_listener(listener, |counts| {
            counts.outcomes[outcome.position()].increment_exclusive();
            counts.responses[status_class_index(status)].increment_exclusive();
            counts.request_duration.record_exclusive(duration);
        });
    }

    /// Records that the client left before the response was complete.
    pub fn request_reset(&self, listener: usize, outcome: FinalOutcome) {
        self.with_listener(listener, |counts| {
            counts.outcomes[outcome.position()].increment_exclusive();
            counts.requests_reset.increment_exclusive();
        });
    }

    /// Records malformed input that got a 400, 408 or 431. It is not included in the requests counted above.
    pub fn record_malformed_request(&self) {
        self.counts.malformed_requests.increment_exclusive();
    }

    /// Records request headers that were removed because their names imitate others.
    pub fn record_removed_headers(&self, count: usize) {
        self.counts.removed_headers.add_exclusive(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// Records that a trusted peer named a class that does not exist.
    pub fn record_unknown_class(&self) {
        self.counts.unknown_classes.add_exclusive(1);
    }

    /// Records headers in which an untrusted peer named a client or a target, and which were removed.
    pub fn record_removed_client_headers(&self, count: usize) {
        self.counts.removed_client_headers.add_exclusive(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// Records a connection or request that was rejected by load shedding.
    pub fn record_load_shed(&self, reason: LoadShed) {
        self.counts.load_shed[reason as usize].increment_exclusive();
    }

    /// Records a body whose fields rules need and cannot be read.
    pub fn record_unreadable_body(&self, reason: Unreadable) {
        self.counts.unreadable_bodies[reason as usize].increment_exclusive();
    }

    /// Records a request for a stream that was not changed to ask for its usage.
    pub fn record_unchanged_stream(&self, reason: Unchanged) {
        self.counts.unchanged_streams[reason as usize].increment_exclusive();
    }

    /// Records a connection that could not be accepted because file descriptors or memory ran out.
    pub fn accept_failed(&self) {
        self.counts.accept_failures.increment_exclusive();
    }

    /// Records a decided request whose client is in `country`, as far as that is known.
    pub fn record_country(&self, country: Option<Country>, is_rejected: bool) {
        self.counts.countries.record(country, is_rejected);
    }

    /// Records that a limit delays a request. Exactly one [`Self::delay_ended`] must follow.
    pub fn delay_started(&self) {
        self.counts.delays_started.increment_exclusive();
    }

    /// Records that a delay ended, because the request is forwarded or its client has left.
    pub fn delay_ended(&self, delay: Duration) {
        self.counts.delay_duration.record_exclusive(delay);
    }

    fn start_operation(
        &self,
        listener: usize,
        select: fn(&ListenerCounts) -> &InProgressCounts,
    ) -> InProgressGuard {
        self.with_listener(listener, |counts| select(counts).started.increment_exclusive());
        InProgressGuard { worker: self.clone(), listener, select }
    }

    fn with_listener(&self, listener: usize, count: impl FnOnce(&ListenerCounts)) {
        if let Some(counts) = self.counts.listeners.at(listener) {
            count(counts);
        }
    }
}

/// Returns the index of a status code's class. Codes above 599 count as 5xx.
pub(super) fn status_class_index(status: StatusCode) -> usize {
    usize::from(status.as_u16() / 100).clamp(1, STATUS_CLASSES.len()) - 1
}
