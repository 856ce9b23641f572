//! The workers' handle to the store: a queue of counters to query, whether the store is reachable, and how long to wait
//! for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::runtime;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use super::call_latency::MIN_WAIT;
use super::parts::StoreParts;
use super::regions::RegionStatus;
use weir_limiter::leases::{LeaseResponse, PartsByGroup, SharedCounter};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{LimitId, Limiter};
use weir_telemetry::metrics::Unanswered;

/// Maximum number of queued queries. Further ones are dropped.
const MAX_QUEUED: usize = 65_536;

/// A counter to query, and the request that waits for the response.
#[derive(Debug)]
pub struct QueuedCounter {
    pub counter: SharedCounter,
    /// Whether to query the counter; if not, a query is queued or in flight.
    pub needs_query: bool,
    /// The request that waits for the response.
    pub waiter: Option<LeaseWaiter>,
}

/// A request that waits for the store.
#[derive(Debug)]
pub struct LeaseWaiter {
    /// Completed when the store has responded. Dropped if the query is not sent.
    pub sender: oneshot::Sender<LeaseResponse>,
    /// Time until which the request waits.
    pub deadline: Instant,
}

impl LeaseWaiter {
    /// Wakes the request, which decides again.
    pub fn wake(self, response: LeaseResponse) {
        // The request may be gone.
        let _ = self.sender.send(response);
    }
}

/// Sending end of the queue.
#[derive(Clone, Debug)]
pub struct StoreHandle {
    sender: mpsc::Sender<QueuedCounter>,
    state: Arc<StoreStatus>,
    parts: Arc<StoreParts>,
    limiter: Arc<Limiter>,
}

/// What the workers know of the store.
#[derive(Debug)]
struct StoreStatus {
    is_unreachable: AtomicBool,
    /// Whether the store has ever been reached, for the thread that starts the process.
    was_reached: Mutex<bool>,
    reached: Condvar,
    /// Time in microseconds that requests wait for the store by default.
    wait_micros: AtomicU64,
    /// Requests whose wait has ended without a response, by the reason, since they were last taken.
    unanswered: [AtomicU64; Unanswered::ALL.len()],
    /// The limits of these requests. Locked only by requests that have waited in vain.
    unanswered_limits: Mutex<UnansweredLimits>,
    /// Notified if a query was dropped for which other requests may wait.
    query_dropped: Notify,
    /// Notified when leases are to be given up.
    give_up: Notify,
    /// Whether the leases are given up, for the thread that ends the process.
    are_given_up: Mutex<bool>,
    given_up: Condvar,
    /// What is known of the regions, if there are several.
    region: Mutex<Option<RegionStatus>>,
}

/// Limits for which requests have waited without a response.
#[derive(Debug, Default)]
struct UnansweredLimits {
    /// Those since the last report.
    new: BTreeSet<LimitId>,
    /// When this was last reported of a limit.
    reported: BTreeMap<LimitId, Timestamp>,
}

impl Default for StoreStatus {
    fn default() -> Self {
        Self {
            is_unreachable: AtomicBool::new(true),
            was_reached: Mutex::new(false),
            reached: Condvar::new(),
            // Nothing is measured before the first call.
            wait_micros: AtomicU64::new(MIN_WAIT.as_micros() as u64),
            unanswered: Default::default(),
            unanswered_limits: Mutex::default(),
            query_dropped: Notify::new(),
            give_up: Notify::new(),
            are_given_up: Mutex::new(false),
            given_up: Condvar::new(),
            region: Mutex::default(),
        }
    }
}

impl StoreHandle {
    /// Creates a handle and the receiving end of its queue. The store counts as unreachable until
    /// [`Self::set_unreachable`] is called.
    pub fn new(limiter: &Arc<Limiter>) -> (Self, mpsc::Receiver<QueuedCounter>) {
        let (sender, queue) = mpsc::channel(MAX_QUEUED);
        let (state, parts) = (Arc::default(), Arc::default());
        (Self { sender, state, parts, limiter: Arc::clone(limiter) }, queue)
    }

    /// Returns whether the store is unreachable, in which case the configured fallback applies.
    pub fn is_unreachable(&self) -> bool {
        self.state.is_unreachable.load(Ordering::Relaxed)
    }

    pub fn set_unreachable(&self, is_unreachable: bool) {
        self.state.is_unreachable.store(is_unreachable, Ordering::Relaxed);
        if !is_unreachable {
            *self.state.was_reached.lock() = true;
            self.state.reached.notify_all();
        }
    }

    /// Returns what is known of the regions; `None` if there is one store for all instances.
    pub fn region(&self) -> Option<RegionStatus> {
        self.state.region.lock().clone()
    }

    pub(super) fn set_region(&self, status: RegionStatus) {
        *self.state.region.lock() = Some(status);
    }

    /// Returns this instance's parts of the limits.
    pub(super) fn parts(&self) -> &Arc<StoreParts> {
        &self.parts
    }

    /// Returns the parts of the limits that requests may spend without the store, or may later.
    pub fn parts_by_group(&self, now: Timestamp) -> PartsByGroup {
        self.parts.by_group(now)
    }

    /// Blocks the thread until the store has been reached, at most for this time. Returns whether it has been.
    pub fn wait_until_reached(&self, timeout: Duration) -> bool {
        let mut was_reached = self.state.was_reached.lock();
        self.state.reached.wait_while_for(&mut was_reached, |reached| !*reached, timeout);
        *was_reached
    }

    /// Gives unspent units back to the store. Requests may go on to use it.
    pub fn give_up_leases(&self) {
        *self.state.are_given_up.lock() = false;
        self.state.give_up.notify_one();
    }

    /// As [`Self::give_up_leases`]; blocks the thread until it is done, at most for this time. Returns whether it is.
    pub fn finish(&self, timeout: Duration) -> bool {
        self.give_up_leases();
        let mut are_given_up = self.state.are_given_up.lock();
        self.state.given_up.wait_while_for(&mut are_given_up, |completed| !*completed, timeout);
        *are_given_up
    }

    /// Completes when leases are to be given up.
    pub(super) async fn wait_for_give_up(&self) {
        self.state.give_up.notified().await;
    }

    /// Reports that no leases are left to be given up.
    pub(super) fn set_given_up(&self) {
        *self.state.are_given_up.lock() = true;
        self.state.given_up.notify_all();
    }

    /// Returns the time that a request waits for the store, unless its rule has a maximum of its own.
    pub fn default_wait(&self) -> Duration {
        Duration::from_micros(self.state.wait_micros.load(Ordering::Relaxed))
    }

    /// Sets the time that requests wait for the store by default.
    pub fn set_default_wait(&self, wait: Duration) {
        let micros = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        self.state.wait_micros.store(micros, Ordering::Relaxed);
    }

    /// Counts a request whose wait for this limit has ended without a response.
    pub(super) fn count_unanswered(&self, limit: LimitId, reason: Unanswered) {
        self.state.unanswered_limits.lock().new.insert(limit);
        self.state.unanswered[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the number of requests whose wait has ended for this reason since the last call.
    pub fn take_unanswered(&self, reason: Unanswered) -> u64 {
        self.state.unanswered[reason as usize].swap(0, Ordering::Relaxed)
    }

    /// Reports at `now` the limits for which requests have waited without a response since the last report.
    pub(super) fn report_unanswered_limits(&self, now: Timestamp) {
        let UnansweredLimits { new, reported } = &mut *self.state.unanswered_limits.lock();
        reported.extend(std::mem::take(new).into_iter().map(|limit| (limit, now)));
    }

    /// Returns when a request was last reported to have waited without a response for one of these limits, if ever.
    pub fn last_unanswered(&self, limits: &[LimitId]) -> Option<Timestamp> {
        let reported = &self.state.unanswered_limits.lock().reported;
        limits.iter().filter_map(|limit| reported.get(limit)).max().copied()
    }

    /// Completes if a query was dropped since the last time. Requests may wait for it that have relied on it.
    pub(super) async fn query_dropped(&self) {
        self.state.query_dropped.notified().await;
    }

    /// Queries a counter for which no request waits.
    ///
    /// A separate task sends the message, because waking the store's thread takes a system call, which takes longer
    /// than the decision of the request in progress.
    pub fn query(&self, counter: SharedCounter) {
        let queued = QueuedCounter { counter, needs_query: true, waiter: None };
        match runtime::Handle::try_current() {
            Ok(runtime) => {
                let handle = self.clone();
                drop(runtime.spawn(async move { handle.enqueue(queued) }));
            }
            Err(_) => {
                self.enqueue(queued);
            }
        }
    }

    /// Queries a counter if `needs_query`. The receiver completes when the store has responded, and fails if no response
    /// can come before the deadline. Returns `None` if the queue is full.
    pub(super) fn wait_for_response(
        &self,
        counter: SharedCounter,
        needs_query: bool,
        deadline: Instant,
    ) -> Option<oneshot::Receiver<LeaseResponse>> {
        let (sender, receiver) = oneshot::channel();
        let waiter = Some(LeaseWaiter { sender, deadline });
        self.enqueue(QueuedCounter { counter, needs_query, waiter }).then_some(receiver)
    }

    /// Returns whether there was room.
    fn enqueue(&self, queued: QueuedCounter) -> bool {
        let (counter, needs_query) = (queued.counter, queued.needs_query);
        let is_queued = self.sender.try_send(queued).is_ok();
        if !is_queued && needs_query {
            self.limiter.cancel_request(counter);
            // After the query is cancelled, so that the store's task finds those that wait for it.
            self.state.query_dropped.notify_one();
        }
        is_queued
    }
}
