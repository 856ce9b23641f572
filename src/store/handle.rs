//! The workers' handle to the store: a queue of counters to query, and whether the store is reachable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime;
use tokio::sync::{mpsc, oneshot};

use crate::limiter::Limiter;
use crate::limiter::leases::SharedCounter;

/// Maximum number of queued queries. Further ones are dropped.
const MAX_QUEUED: usize = 65_536;

/// A counter to query, and the request that waits for the response.
#[derive(Debug)]
pub struct Want {
    /// The counter.
    pub counter: SharedCounter,
    /// Whether to query the counter; if not, a query is already in flight.
    pub asks: bool,
    /// Completed when the store has responded.
    pub waiter: Option<oneshot::Sender<()>>,
}

/// Sending end of the queue.
#[derive(Clone, Debug)]
pub struct Handle {
    wants: mpsc::Sender<Want>,
    is_away: Arc<AtomicBool>,
    limiter: Arc<Limiter>,
}

impl Handle {
    /// Creates a handle and the receiving end of its queue. The store counts as unreachable until [`Self::set_away`] is
    /// called.
    pub fn new(limiter: &Arc<Limiter>) -> (Self, mpsc::Receiver<Want>) {
        let (wants, queue) = mpsc::channel(MAX_QUEUED);
        (Self { wants, is_away: Arc::new(AtomicBool::new(true)), limiter: Arc::clone(limiter) }, queue)
    }

    /// Returns whether the store is unreachable, in which case the configured fallback applies.
    pub fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    /// Sets whether the store is unreachable.
    pub fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::Relaxed);
    }

    /// Queries a counter for which no request waits.
    ///
    /// A separate task sends the message, because waking the store's thread takes a system call, which takes longer
    /// than the decision of the request in progress.
    pub fn want(&self, counter: SharedCounter) {
        let want = Want { counter, asks: true, waiter: None };
        match runtime::Handle::try_current() {
            Ok(runtime) => {
                let handle = self.clone();
                drop(runtime.spawn(async move { handle.send(want) }));
            }
            Err(_) => self.send(want),
        }
    }

    /// Queries a counter if `asks`. The receiver completes when the store has responded.
    pub fn wait(&self, counter: SharedCounter, asks: bool) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.send(Want { counter, asks, waiter: Some(sender) });
        receiver
    }

    fn send(&self, want: Want) {
        let (counter, asks) = (want.counter, want.asks);
        if self.wants.try_send(want).is_err() && asks {
            self.limiter.cancel_request(counter);
        }
    }
}
