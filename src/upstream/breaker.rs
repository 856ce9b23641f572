//! How much of an upstream may be under way at once, all workers together.
//!
//! Whoever takes a place takes it at once or not at all: there is no moment between looking and taking, so no number
//! is ever above its limit. Requests over HTTP/1 each have a connection of their own, so where no fewer requests
//! than connections are allowed nobody counts them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::Semaphore;

use super::settings::Limits;

/// The places of one upstream.
#[derive(Debug)]
pub(super) struct Breaker {
    /// A permit goes with each open connection.
    pub(super) connections: Arc<Semaphore>,
    pending: Gauge,
    requests: Gauge,
    retries: Gauge,
    counts_requests: bool,
}

/// What can be full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Waiting for a connection.
    Pending,
    /// Being under way.
    Request,
    /// Being tried again.
    Retry,
}

#[derive(Debug)]
struct Gauge {
    used: AtomicU32,
    most: u32,
}

/// A place that is taken, until this is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    breaker: Arc<Breaker>,
    place: Place,
}

impl Breaker {
    /// Nothing under way yet.
    pub(super) fn new(limits: Limits, counts_requests: bool) -> Arc<Self> {
        let gauge = |most| Gauge { used: AtomicU32::new(0), most };
        let connections =
            usize::try_from(limits.connections).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            connections: Arc::new(Semaphore::new(connections)),
            pending: gauge(limits.pending),
            requests: gauge(limits.requests),
            retries: gauge(limits.retries),
            counts_requests: counts_requests || limits.requests < limits.connections,
        })
    }

    /// Whether requests have to take places.
    pub(super) fn counts_requests(&self) -> bool {
        self.counts_requests
    }

    /// Takes a place; `None` if there is none.
    pub(super) fn take(self: &Arc<Self>, place: Place) -> Option<Taken> {
        self.take_one_of(place, self.gauge(place).most)
    }

    /// Takes a place where a retry may be one of so many.
    pub(super) fn take_retry(self: &Arc<Self>, share: u32) -> Option<Taken> {
        self.take_one_of(Place::Retry, self.retries.most.max(share))
    }

    /// How many places are taken.
    pub(super) fn used(&self, place: Place) -> u32 {
        self.gauge(place).used.load(Ordering::Relaxed)
    }

    fn take_one_of(self: &Arc<Self>, place: Place, most: u32) -> Option<Taken> {
        let more = |used: u32| (used < most).then(|| used.saturating_add(1));
        self.gauge(place).used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Taken { breaker: Arc::clone(self), place })
    }

    const fn gauge(&self, place: Place) -> &Gauge {
        match place {
            Place::Pending => &self.pending,
            Place::Request => &self.requests,
            Place::Retry => &self.retries,
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.breaker.gauge(self.place).used.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const LIMITS: Limits = Limits { connections: 9, pending: 3, requests: 3, retries: 1 };

    #[test]
    fn no_more_than_allowed_are_under_way_however_many_threads_try() {
        let breaker = Breaker::new(LIMITS, false);
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        if let Some(taken) = breaker.take(Place::Request) {
                            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            drop(taken);
                        }
                    }
                });
            }
        });
        assert!(most.into_inner() <= 3);
        assert_eq!(breaker.used(Place::Request), 0);
    }

    #[test]
    fn retries_may_be_a_share_of_requests_where_that_is_more() {
        let breaker = Breaker::new(LIMITS, true);
        let first = breaker.take_retry(0);
        assert!(first.is_some() && breaker.take_retry(1).is_none());
        assert!(breaker.take_retry(2).is_some());
    }

    #[test]
    fn requests_are_counted_only_where_connections_do_not_bound_them() {
        assert!(Breaker::new(LIMITS, false).counts_requests());
        assert!(!Breaker::new(Limits { requests: 9, ..LIMITS }, false).counts_requests());
        assert!(Breaker::new(Limits { requests: 9, ..LIMITS }, true).counts_requests());
    }
}
