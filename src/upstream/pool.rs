//! Connections to the upstream that wait for their next request; one pool per worker.
//!
//! The one used last is used next, so that a burst's surplus ages and is closed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use hyper::body::Body;
use hyper::client::conn::http1::SendRequest;

/// Idle connections kept per worker; beyond that they are closed.
const MOST_IDLE: usize = 1024;

/// The idle connections of one worker to one upstream.
#[derive(Debug)]
pub(super) struct Pool<B> {
    idle: RefCell<Vec<Idle<B>>>,
    /// Seconds this pool has lived, as told by [`Self::age`].
    seconds: Cell<u64>,
    keep_for: u64,
}

#[derive(Debug)]
struct Idle<B> {
    sender: SendRequest<B>,
    since: u64,
}

impl<B: Body + 'static> Pool<B> {
    /// A pool that keeps unused connections for `keep_for` seconds.
    pub(super) fn new(keep_for: u64) -> Self {
        Self { idle: RefCell::default(), seconds: Cell::new(0), keep_for }
    }

    /// A connection that is open as far as we know.
    pub(super) fn checkout(&self) -> Option<SendRequest<B>> {
        let mut idle = self.idle.borrow_mut();
        while let Some(Idle { sender, .. }) = idle.pop() {
            if sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    /// Puts a connection whose answer has ended back, as soon as it can take another request.
    pub(super) fn give_back(self: &Rc<Self>, mut sender: SendRequest<B>) {
        if sender.is_ready() {
            return self.keep(sender);
        }
        if sender.is_closed() {
            return;
        }
        let pool = Rc::clone(self);
        tokio::task::spawn_local(async move {
            if sender.ready().await.is_ok() {
                pool.keep(sender);
            }
        });
    }

    /// A second has passed: closes what has been unused for too long or was closed from the other side.
    pub(super) fn age(&self) {
        self.seconds.set(self.seconds.get() + 1);
        let oldest = self.seconds.get().saturating_sub(self.keep_for);
        self.idle.borrow_mut().retain(|idle| idle.since >= oldest && !idle.sender.is_closed());
    }

    fn keep(&self, sender: SendRequest<B>) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < MOST_IDLE {
            idle.push(Idle { sender, since: self.seconds.get() });
        }
    }
}
