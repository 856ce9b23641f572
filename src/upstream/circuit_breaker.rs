//! The circuit breaker of an upstream: how many connections, requests and retries may be in flight, all workers together.
//!
//! A permit is acquired at once or not at all: there is no moment between looking and taking, so no number is ever above
//! its limit. Requests over HTTP/1 each have a connection of their own, so where no fewer requests
//! than connections are allowed nobody counts them.

mod shares;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::Semaphore;

use self::shares::Shares;
use super::settings::Limits;

/// The limits of one upstream, and how much of each is in use.
#[derive(Debug)]
pub(super) struct CircuitBreaker {
    /// A permit goes with each open connection.
    pub(super) connections: Arc<Semaphore>,
    pending: Gauge,
    requests: Gauge,
    retries: Gauge,
    /// Requests that wait until their client is within its share.
    over_share: Gauge,
    counts_requests: bool,
    /// Requests that can be served at once: without connections to share, each needs one of its own.
    capacity: u32,
    /// `None` where no client has a share of its own.
    shares: Option<Shares>,
}

/// What can be full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    /// Waiting for a connection.
    Pending,
    /// Being under way.
    Request,
    /// Being tried again.
    Retry,
    /// Waiting for the client to be within its share.
    OverShare,
}

/// Why a request cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// As many requests are in flight as may be.
    Requests,
    /// The client has its share of them.
    Share,
}

/// Each counter has cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Gauge {
    used: AtomicU32,
    max: u32,
}

/// One unit of a resource, until this is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    breaker: Arc<CircuitBreaker>,
    resource: Resource,
    /// Where the client's requests are counted, if they are.
    client: Option<usize>,
}

impl CircuitBreaker {
    /// Nothing under way yet. With `shares_connections`, requests do not need a connection each.
    pub(super) fn new(limits: Limits, counts_requests: bool, shares_connections: bool) -> Arc<Self> {
        let gauge = |max| Gauge { used: AtomicU32::new(0), max };
        let counts_requests = counts_requests || limits.requests < limits.connections;
        let capacity =
            if shares_connections { limits.requests } else { limits.requests.min(limits.connections) };
        let connections =
            usize::try_from(limits.connections).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            connections: Arc::new(Semaphore::new(connections)),
            pending: gauge(limits.pending),
            requests: gauge(limits.requests),
            retries: gauge(limits.retries),
            // They hold nothing of the upstream, but memory of ours.
            over_share: gauge(limits.pending),
            counts_requests,
            capacity,
            shares: Shares::new(limits.requests_per_client, capacity),
        })
    }

    /// Whether `requests` bounds them beside the connections.
    pub(super) fn counts_requests(&self) -> bool {
        self.counts_requests
    }

    /// Whether each client has a share.
    pub(super) fn has_shares(&self) -> bool {
        self.shares.is_some()
    }

    /// Whether more than half of what can be served at once is in flight.
    pub(super) fn is_scarce(&self) -> bool {
        self.used(Resource::Request) > self.capacity / 2
    }

    /// Acquires a permit for a request of `client`; `is_bounded` says whether `requests` counts for it.
    ///
    /// The client's count is raised first and the decision taken together with the permit. So neither bound is ever
    /// exceeded, and a request that does not fit takes nothing away from other clients meanwhile.
    pub(super) fn acquire_request(
        self: &Arc<Self>,
        client: IpAddr,
        is_bounded: bool,
    ) -> Result<Permit, Full> {
        let max = if is_bounded { self.requests.max } else { u32::MAX };
        let counted = self.shares.as_ref().map(|shares| (shares, shares.add(client)));
        let fits = |used: u32| counted.is_none_or(|(shares, (_, own))| shares.allows(own, used));
        let more = |used: u32| (used < max && fits(used)).then(|| used.saturating_add(1));
        match self.requests.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => {
                let client = counted.map(|(_, (slot, _))| slot);
                Ok(Permit { breaker: Arc::clone(self), resource: Resource::Request, client })
            }
            Err(used) => {
                counted.inspect(|(shares, (slot, _))| shares.remove(*slot));
                Err(if used < max { Full::Share } else { Full::Requests })
            }
        }
    }

    /// Acquires a permit; `None` if there is none.
    pub(super) fn acquire(self: &Arc<Self>, resource: Resource) -> Option<Permit> {
        self.acquire_one_of(resource, self.gauge(resource).max)
    }

    /// Acquires a permit for a retry, which may be one of `share` where that is more than the limit.
    pub(super) fn acquire_retry(self: &Arc<Self>, share: u32) -> Option<Permit> {
        self.acquire_one_of(Resource::Retry, self.retries.max.max(share))
    }

    /// How many permits are in use.
    pub(super) fn used(&self, resource: Resource) -> u32 {
        self.gauge(resource).used.load(Ordering::Relaxed)
    }

    fn acquire_one_of(self: &Arc<Self>, resource: Resource, max: u32) -> Option<Permit> {
        let more = |used: u32| (used < max).then(|| used.saturating_add(1));
        self.gauge(resource).used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Permit { breaker: Arc::clone(self), resource, client: None })
    }

    const fn gauge(&self, resource: Resource) -> &Gauge {
        match resource {
            Resource::Pending => &self.pending,
            Resource::Request => &self.requests,
            Resource::Retry => &self.retries,
            Resource::OverShare => &self.over_share,
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let (Some(shares), Some(slot)) = (&self.breaker.shares, self.client) {
            shares.remove(slot);
        }
        self.breaker.gauge(self.resource).used.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
