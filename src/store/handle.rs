//! The workers' handle to the store: a queue of counters to query, whether the store is reachable, and how long to wait
//! for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::limiter::Limiter;
use crate::limiter::leases::SharedCounter;

/// Maximum number of queued queries. Further ones are dropped.
const MAX_QUEUED: usize = 65_536;

/// A counter to query, and the request that waits for the response.
#[derive(Debug)]
pub struct QueuedCounter {
    /// The counter.
    pub counter: SharedCounter,
    /// Whether to query the counter; if not, a query is queued or in flight.
    pub needs_query: bool,
    /// The request that waits for the response.
    pub waiter: Option<LeaseWaiter>,
}

/// A request that waits for the store.
#[derive(Debug)]
pub struct LeaseWaiter {
    /// Completed when the store has responded: whether it had units.
    pub sender: oneshot::Sender<bool>,
    /// Time until which the request waits.
    pub deadline: Instant,
}

impl LeaseWaiter {
    /// Wakes the request, which decides again. `has_units` is whether the store had units for it.
    pub fn wake(self, has_units: bool) {
        // The request may be gone.
        let _ = self.sender.send(has_units);
    }
}

/// Sending end of the queue.
#[derive(Clone, Debug)]
pub struct StoreHandle {
    sender: mpsc::Sender<QueuedCounter>,
    state: Arc<StoreStatus>,
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
    /// Requests whose wait has ended without a response, since they were last taken.
    unanswered: AtomicU64,
}

impl Default for StoreStatus {
    fn default() -> Self {
        Self {
            is_unreachable: AtomicBool::new(true),
            was_reached: Mutex::new(false),
            reached: Condvar::new(),
            wait_micros: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
        }
    }
}

impl StoreHandle {
    /// Creates a handle and the receiving end of its queue. The store counts as unreachable until
    /// [`Self::set_unreachable`] is called.
    pub fn new(limiter: &Arc<Limiter>) -> (Self, mpsc::Receiver<QueuedCounter>) {
        let (sender, queue) = mpsc::channel(MAX_QUEUED);
        (Self { sender, state: Arc::new(StoreStatus::default()), limiter: Arc::clone(limiter) }, queue)
    }

    /// Returns whether the store is unreachable, in which case the configured fallback applies.
    pub fn is_unreachable(&self) -> bool {
        self.state.is_unreachable.load(Ordering::Relaxed)
    }

    /// Sets whether the store is unreachable.
    pub fn set_unreachable(&self, is_unreachable: bool) {
        self.state.is_unreachable.store(is_unreachable, Ordering::Relaxed);
        if !is_unreachable {
            *self.state.was_reached.lock() = true;
            self.state.reached.notify_all();
        }
    }

    /// Blocks the thread until the store has been reached, at most for this time. Returns whether it has been.
    pub fn wait_until_reached(&self, timeout: Duration) -> bool {
        let mut was_reached = self.state.was_reached.lock();
        self.state.reached.wait_while_for(&mut was_reached, |reached| !*reached, timeout);
        *was_reached
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

    /// Counts a request whose wait has ended without a response.
    pub(super) fn count_unanswered(&self) {
        self.state.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the number of requests whose wait has ended without a response since the last call.
    pub fn take_unanswered(&self) -> u64 {
        self.state.unanswered.swap(0, Ordering::Relaxed)
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
            Err(_) => self.enqueue(queued),
        }
    }

    /// Queries a counter if `needs_query`. The receiver completes when the store has responded, and fails if no response
    /// can come before `max_wait` has elapsed.
    pub fn wait_for_response(
        &self,
        counter: SharedCounter,
        needs_query: bool,
        max_wait: Duration,
    ) -> oneshot::Receiver<bool> {
        let (sender, receiver) = oneshot::channel();
        let waiter = LeaseWaiter { sender, deadline: Instant::now() + max_wait };
        self.enqueue(QueuedCounter { counter, needs_query, waiter: Some(waiter) });
        receiver
    }

    /// Cancels a query that [`Limiter::acquire_units`] has asked for.
    pub(super) fn cancel_query(&self, counter: SharedCounter) {
        self.limiter.cancel_request(counter);
    }

    fn enqueue(&self, queued: QueuedCounter) {
        let (counter, needs_query) = (queued.counter, queued.needs_query);
        if self.sender.try_send(queued).is_err() && needs_query {
            self.limiter.cancel_request(counter);
        }
    }
}
