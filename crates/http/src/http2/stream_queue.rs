//! Requests that wait for a stream.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Waker};

/// Requests that wait because the server allows no more streams.
#[derive(Debug, Default)]
pub(super) struct StreamQueue {
    /// Number of senders, whether they wait or not.
    pub(super) senders: usize,
    queued: VecDeque<Rc<QueuedSender>>,
}

/// Place of a request in the queue.
#[derive(Debug)]
pub(super) struct QueuedSender {
    waker: RefCell<Waker>,
    /// Whether it was woken to open a stream.
    is_woken: Cell<bool>,
}

impl StreamQueue {
    /// Whether nothing can open further streams.
    pub(super) const fn has_no_senders(&self) -> bool {
        self.senders == 0
    }

    /// Returns the number of requests that wait.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.queued.len()
    }

    /// Wakes the next request, because a stream has ended.
    pub(super) fn wake_next(&mut self) {
        if let Some(next) = self.queued.pop_front() {
            next.is_woken.set(true);
            next.waker.borrow().wake_by_ref();
        }
    }

    /// Removes a request that has given up. The stream for which it was woken is left to the next one.
    pub(super) fn remove(&mut self, queued: &Rc<QueuedSender>) {
        if queued.is_woken.get() {
            self.wake_next();
        } else {
            self.queued.retain(|other| !Rc::ptr_eq(other, queued));
        }
    }

    /// Wakes all requests, because the number of streams or the state of the connection has changed.
    pub(super) fn wake_all(&mut self) {
        for queued in std::mem::take(&mut self.queued) {
            queued.is_woken.set(true);
            queued.waker.borrow().wake_by_ref();
        }
    }

    /// Adds a request to the queue, or keeps its place there.
    pub(super) fn enqueue(&mut self, place: &mut Option<Rc<QueuedSender>>, cx: &Context<'_>) {
        if let Some(queued) = place.as_ref().filter(|queued| !queued.is_woken.get()) {
            queued.waker.borrow_mut().clone_from(cx.waker());
            return;
        }
        let queued = QueuedSender { waker: RefCell::new(cx.waker().clone()), is_woken: Cell::new(false) };
        let queued = Rc::new(queued);
        self.queued.push_back(Rc::clone(&queued));
        *place = Some(queued);
    }
}
