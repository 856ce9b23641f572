//! What workers have of the store: a queue of counters to ask about, and whether the store is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{mpsc, oneshot};

use crate::limiter::Limiter;
use crate::limiter::claims::SharedCounter;

/// Questions that wait to be sent, at most; beyond that the store counts as away.
const MAX_QUEUED: usize = 65_536;

/// A counter to ask about, and the request that waits for it.
#[derive(Debug)]
pub struct Want {
    /// Which counter.
    pub counter: SharedCounter,
    /// Whether it is to be asked about; else that is on its way.
    pub asks: bool,
    /// Completed when the store has responded.
    pub waiter: Option<oneshot::Sender<()>>,
}

/// The end of the queue that workers have.
#[derive(Clone, Debug)]
pub struct Handle {
    wants: mpsc::Sender<Want>,
    is_away: Arc<AtomicBool>,
    limiter: Arc<Limiter>,
}

impl Handle {
    /// A handle, and the other end of its queue. The store is away until [`Self::set_away`] says otherwise.
    pub fn new(limiter: &Arc<Limiter>) -> (Self, mpsc::Receiver<Want>) {
        let (wants, queue) = mpsc::channel(MAX_QUEUED);
        (Self { wants, is_away: Arc::new(AtomicBool::new(true)), limiter: Arc::clone(limiter) }, queue)
    }

    /// Whether the store does not respond: limits then go by what is configured for that.
    pub fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    /// The store responds, or does not.
    pub fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::Relaxed);
    }

    /// Has a counter asked about, of which units are left.
    pub fn want(&self, counter: SharedCounter) {
        self.send(Want { counter, asks: true, waiter: None });
    }

    /// Has a counter asked about if `asks`; completed when the store has responded.
    pub fn wait(&self, counter: SharedCounter, asks: bool) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.send(Want { counter, asks, waiter: Some(sender) });
        receiver
    }

    fn send(&self, want: Want) {
        let (counter, asks) = (want.counter, want.asks);
        if self.wants.try_send(want).is_err() && asks {
            self.limiter.forget_question(counter);
        }
    }
}
