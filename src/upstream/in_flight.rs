//! Requests in flight to an endpoint, and requests that wait until their client is within its share.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Notify;

use super::circuit_breaker::Permit;
use super::host::UpstreamHost;

/// Interval at which a waiting request checks its client's share without a notification.
const SHARE_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A request in flight, until this is dropped.
#[derive(Debug)]
pub(super) struct InFlightRequest {
    host: Arc<UpstreamHost>,
    _permit: Option<Permit>,
    waiters: Rc<ShareWaiters>,
}

/// Requests of one worker whose clients have reached their share. The end of another request wakes one of them.
#[derive(Debug, Default)]
pub(super) struct ShareWaiters {
    waiting: Cell<u32>,
    ended: Notify,
}

impl InFlightRequest {
    /// Starts a request to `host` that holds `permit`. Its end wakes one of `waiters`.
    pub(super) fn start(
        host: &Arc<UpstreamHost>,
        permit: Option<Permit>,
        waiters: &Rc<ShareWaiters>,
    ) -> Self {
        host.in_flight.fetch_add(1, Ordering::Relaxed);
        Self { host: Arc::clone(host), _permit: permit, waiters: Rc::clone(waiters) }
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.host.in_flight.fetch_sub(1, Ordering::Relaxed);
        // The permit is dropped after this, but before the waiter runs: both are on the same thread.
        if self.waiters.waiting.get() > 0 {
            self.waiters.ended.notify_one();
        }
    }
}

impl ShareWaiters {
    /// Waits until `start` returns a value. The end of a request on another worker is noticed within
    /// [`SHARE_RETRY_INTERVAL`].
    pub(super) async fn wait_for<T>(&self, start: impl Fn() -> Option<T>) -> T {
        let _waiting = ShareWaiter::start(self);
        loop {
            let _ = tokio::time::timeout(SHARE_RETRY_INTERVAL, self.ended.notified()).await;
            if let Some(started) = start() {
                return started;
            }
        }
    }
}

/// Counts a waiting request until dropped.
struct ShareWaiter<'a>(&'a ShareWaiters);

impl<'a> ShareWaiter<'a> {
    fn start(waiters: &'a ShareWaiters) -> Self {
        waiters.waiting.set(waiters.waiting.get().saturating_add(1));
        Self(waiters)
    }
}

impl Drop for ShareWaiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get().saturating_sub(1));
    }
}
