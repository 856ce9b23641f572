//! The workers' handle to the store: a queue of counters to query, and whether the store is reachable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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
    is_unreachable: Arc<AtomicBool>,
    limiter: Arc<Limiter>,
}

impl StoreHandle {
    /// Creates a handle and the receiving end of its queue. The store counts as unreachable until
    /// [`Self::set_unreachable`] is called.
    pub fn new(limiter: &Arc<Limiter>) -> (Self, mpsc::Receiver<QueuedCounter>) {
        let (sender, queue) = mpsc::channel(MAX_QUEUED);
        (
            Self { sender, is_unreachable: Arc::new(AtomicBool::new(true)), limiter: Arc::clone(limiter) },
            queue,
        )
    }

    /// Returns whether the store is unreachable, in which case the configured fallback applies.
    pub fn is_unreachable(&self) -> bool {
        self.is_unreachable.load(Ordering::Relaxed)
    }

    /// Sets whether the store is unreachable.
    pub fn set_unreachable(&self, is_unreachable: bool) {
        self.is_unreachable.store(is_unreachable, Ordering::Relaxed);
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

    fn enqueue(&self, queued: QueuedCounter) {
        let (counter, needs_query) = (queued.counter, queued.needs_query);
        if self.sender.try_send(queued).is_err() && needs_query {
            self.limiter.cancel_request(counter);
        }
    }
}
