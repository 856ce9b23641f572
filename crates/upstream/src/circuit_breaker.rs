//! Circuit breaker of an upstream: maximum connections, requests and retries, shared by all workers.
//!
//! Requests are counted and permits acquired in one atomic step, so no maximum is ever exceeded. A request over HTTP/1.1 has a connection of
//! its own, so requests are not counted if at least as many requests as connections are allowed.

mod shares;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::Semaphore;

use self::shares::ClientShares;
use super::settings::CircuitBreakerLimits;

/// Maximums of one upstream, and how much of each is in use.
#[derive(Debug)]
pub(super) struct CircuitBreaker {
    /// Each open connection holds a permit.
    pub(super) connections: Arc<Semaphore>,
    pending: Gauge,
    requests: Gauge,
    retries: Gauge,
    /// Requests waiting until their client is within its share.
    over_share: Gauge,
    counts_requests: bool,
    /// Maximum number of requests served at once. Unless connections are multiplexed, each request needs one of its
    /// own.
    capacity: u32,
    /// Shares of clients; `None` if they are unlimited.
    shares: Option<ClientShares>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    /// A request waiting for a connection.
    Pending,
    /// A request in flight.
    Request,
    Retry,
    /// A request waiting until its client is within its share.
    OverShare,
}

/// Why a request cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitReached {
    /// The maximum number of requests is in flight.
    Requests,
    ClientShare,
}

/// A counter with its maximum. The alignment prevents false sharing.
#[derive(Debug)]
#[repr(align(128))]
struct Gauge {
    used: AtomicU32,
    max: u32,
}

/// One unit of a resource, released when dropped.
#[derive(Debug)]
pub(super) struct Permit {
    breaker: Arc<CircuitBreaker>,
    resource: Resource,
}

/// A request in flight. [`CircuitBreaker::end_request`] must follow.
// Not a guard with a pointer to the breaker, whose count of references all workers would write for every request.
#[derive(Debug)]
#[must_use]
pub(super) struct CountedRequest {
    /// Slot in which the client's requests are counted, if they are.
    client: Option<usize>,
}

impl CircuitBreaker {
    /// Creates a circuit breaker. With `shares_connections`, connections are multiplexed.
    pub(super) fn new(
        limits: CircuitBreakerLimits,
        counts_requests: bool,
        shares_connections: bool,
    ) -> Arc<Self> {
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
            // They occupy memory, but no capacity of the upstream.
            over_share: gauge(limits.pending),
            counts_requests,
            capacity,
            shares: ClientShares::new(limits.requests_per_client, capacity),
        })
    }

    /// Whether requests are counted in addition to connections.
    pub(super) fn counts_requests(&self) -> bool {
        self.counts_requests
    }

    /// Whether each client has a share.
    pub(super) fn has_shares(&self) -> bool {
        self.shares.is_some()
    }

    /// Whether more than half of the capacity is in use.
    pub(super) fn is_scarce(&self) -> bool {
        self.used(Resource::Request) > self.capacity / 2
    }

    /// Starts a request of `client`; `is_bounded` is whether the maximum number of requests applies to it.
    ///
    /// The client's count is raised first, and the decision is made in one step with the count of all requests. So
    /// neither maximum is exceeded, and a rejected request never takes capacity from other clients.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(super) fn start_request(
        &self,
        client: IpAddr,
        is_bounded: bool,
    ) -> Result<CountedRequest, LimitReached> {
        let max = if is_bounded { self.requests.max } else { u32::MAX };
        let counted = self.shares.as_ref().map(|shares| (shares, shares.add(client)));
        let fits = |used: u32| counted.is_none_or(|(shares, (_, own))| shares.allows(own, used));
        let more = |used: u32| (used < max && fits(used)).then(|| used.saturating_add(1));
        match self.requests.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(CountedRequest { client: counted.map(|(_, (slot, _))| slot) }),
            Err(used) => {
                counted.inspect(|(shares, (slot, _))| shares.remove(*slot));
                Err(if used < max { LimitReached::ClientShare } else { LimitReached::Requests })
            }
        }
    }

    /// Ends a request that [`Self::start_request`] has started.
    pub(super) fn end_request(&self, CountedRequest { client }: CountedRequest) {
        if let (Some(shares), Some(slot)) = (&self.shares, client) {
            shares.remove(slot);
        }
        self.requests.used.fetch_sub(1, Ordering::Relaxed);
    }

    /// Acquires a permit; `None` if the maximum is reached.
    pub(super) fn acquire(self: &Arc<Self>, resource: Resource) -> Option<Permit> {
        self.acquire_one_of(resource, self.gauge(resource).max)
    }

    /// Acquires a permit for a retry, up to `share` if that is larger than the maximum.
    pub(super) fn acquire_retry(self: &Arc<Self>, share: u32) -> Option<Permit> {
        self.acquire_one_of(Resource::Retry, self.retries.max.max(share))
    }

    /// Returns the number of permits in use.
    pub(super) fn used(&self, resource: Resource) -> u32 {
        self.gauge(resource).used.load(Ordering::Relaxed)
    }

    fn acquire_one_of(self: &Arc<Self>, resource: Resource, max: u32) -> Option<Permit> {
        let more = |used: u32| (used < max).then(|| used.saturating_add(1));
        self.gauge(resource).used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Permit { breaker: Arc::clone(self), resource })
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
        self.breaker.gauge(self.resource).used.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
