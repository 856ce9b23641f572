//! Requests in flight to an endpoint, and requests that wait until their client is within its share.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Notify;

use super::circuit_breaker::{CountedRequest, LimitReached};
use super::cluster::Cluster;
use super::host::UpstreamHost;
use super::settings::{Balance, UpstreamSettings};

/// Interval at which a waiting request checks its client's share without a notification.
const SHARE_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A request in flight, until this is dropped.
#[derive(Debug)]
pub(super) struct InFlightRequest {
    requests: Rc<EndpointRequests>,
    counted: Option<CountedRequest>,
}

/// Counts the requests of one worker to one endpoint.
#[derive(Debug)]
pub(super) struct EndpointRequests {
    cluster: Arc<Cluster>,
    /// The endpoint, if the upstream balances by the number of requests in flight.
    balanced_host: Option<Arc<UpstreamHost>>,
    /// Number of requests whose clients have reached their share. The end of another request wakes one of them.
    waiting: Cell<u32>,
    ended: Notify,
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        let requests = &self.requests;
        if let Some(counted) = self.counted.take() {
            requests.cluster.breaker.end_request(counted);
        }
        if let Some(host) = &requests.balanced_host {
            host.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
        if requests.waiting.get() > 0 {
            requests.ended.notify_one();
        }
    }
}

impl EndpointRequests {
    /// Returns the counter of the requests to `host`.
    pub(super) fn new(cluster: &Arc<Cluster>, host: &Arc<UpstreamHost>) -> Rc<Self> {
        let is_balanced = cluster.settings().balance == Balance::LeastRequest;
        Rc::new(Self {
            cluster: Arc::clone(cluster),
            balanced_host: is_balanced.then(|| Arc::clone(host)),
            waiting: Cell::new(0),
            ended: Notify::new(),
        })
    }

    /// Counts the start of a request of `client`, if requests are counted. `is_multiplexed` is whether it is sent over
    /// HTTP/2.
    ///
    /// # Errors
    /// The limit of the circuit breaker that is reached.
    pub(super) fn start(
        self: &Rc<Self>,
        client: IpAddr,
        is_multiplexed: bool,
    ) -> Result<Option<InFlightRequest>, LimitReached> {
        let breaker = &self.cluster.breaker;
        let UpstreamSettings { limits, .. } = self.cluster.settings();
        // Multiplexed requests have no other bound.
        let is_bounded = breaker.counts_requests() || is_multiplexed;
        let is_counted = is_bounded || breaker.has_shares() || limits.min_client_rate.is_some();
        if self.balanced_host.is_none() && !is_counted {
            return Ok(None);
        }
        let counted = if is_counted { Some(breaker.start_request(client, is_bounded)?) } else { None };
        if let Some(host) = &self.balanced_host {
            host.in_flight.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Some(InFlightRequest { requests: Rc::clone(self), counted }))
    }

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
struct ShareWaiter<'a>(&'a EndpointRequests);

impl<'a> ShareWaiter<'a> {
    fn start(requests: &'a EndpointRequests) -> Self {
        requests.waiting.set(requests.waiting.get().saturating_add(1));
        Self(requests)
    }
}

impl Drop for ShareWaiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get().saturating_sub(1));
    }
}
