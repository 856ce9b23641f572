//! Requests in flight to an endpoint, and those that wait until one of them has ended.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Notify;

use super::circuit_breaker::Permit;
use super::host::Host;

/// How long a request whose client is above its share waits before it looks again by itself.
const SHARE_RETRY: Duration = Duration::from_millis(100);

/// A request in flight, until this is dropped.
#[derive(Debug)]
pub(super) struct InFlight {
    host: Arc<Host>,
    _permit: Option<Permit>,
    waiters: Rc<ShareWaiters>,
}

/// Requests of one worker whose client is above its share; the end of another request wakes one.
#[derive(Debug, Default)]
pub(super) struct ShareWaiters {
    waiting: Cell<u32>,
    ended: Notify,
}

impl InFlight {
    /// A request to `host` that holds `permit`. Its end wakes one of `waiters`.
    pub(super) fn start(host: &Arc<Host>, permit: Option<Permit>, waiters: &Rc<ShareWaiters>) -> Self {
        host.in_flight.fetch_add(1, Ordering::Relaxed);
        Self { host: Arc::clone(host), _permit: permit, waiters: Rc::clone(waiters) }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.host.in_flight.fetch_sub(1, Ordering::Relaxed);
        // The waiter looks when all of this has been dropped: a worker is one thread.
        if self.waiters.waiting.get() > 0 {
            self.waiters.ended.notify_one();
        }
    }
}

impl ShareWaiters {
    /// What `start` gives, once it gives something. Ends of requests on other workers are noticed within
    /// [`SHARE_RETRY`].
    pub(super) async fn wait_for<T>(&self, start: impl Fn() -> Option<T>) -> T {
        let _waiting = Waiting::start(self);
        loop {
            let _ = tokio::time::timeout(SHARE_RETRY, self.ended.notified()).await;
            if let Some(started) = start() {
                return started;
            }
        }
    }
}

/// Counts a request that waits, until this is dropped.
struct Waiting<'a>(&'a ShareWaiters);

impl<'a> Waiting<'a> {
    fn start(waiters: &'a ShareWaiters) -> Self {
        waiters.waiting.set(waiters.waiting.get().saturating_add(1));
        Self(waiters)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get().saturating_sub(1));
    }
}
