//! Units for a counter that is out of units: from the reserve, or from the store, for which a request may wait.
//!
//! Nearly all requests use units of a lease that this instance holds, and do not reach this module. The proxy and the
//! rate limit service get units here and then decide again.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::handle::StoreHandle;
use weir_limiter::leases::{LeaseOutcome, SharedCounter, UnitSource};
use weir_telemetry::metrics::Unanswered;

/// Result for one counter that is out of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseDecision {
    /// Units are available; decide again.
    Available,
    /// The store is being queried, and the request waits.
    Pending,
    /// No units are available before this time has elapsed; zero if that is unknown.
    Rejected(Duration),
    /// The store is unreachable, or has not responded in time, and the configured fallback applies.
    Unavailable,
}

/// The store's responses for which a request waits or has waited. Each counter has a maximum wait of its own.
#[derive(Debug, Default)]
pub struct LeaseWaits(Vec<CounterWait>);

/// A counter about which the store was queried.
#[derive(Debug)]
struct CounterWait {
    counter: SharedCounter,
    /// Time for which the request has waited so far.
    waited: Duration,
    pending: Option<AwaitedResponse>,
    /// Response of the last wait, until it is taken.
    response: StoreResponse,
    /// Whether the request counts as unanswered already.
    is_counted: bool,
}

/// A response that has not arrived.
#[derive(Debug)]
struct AwaitedResponse {
    receiver: oneshot::Receiver<bool>,
    /// From here the wait counts: a wait until the deadline uses all of its time.
    since: Instant,
    deadline: Instant,
}

/// What a request knows of the store's response about a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StoreResponse {
    /// The store has units, or was not queried.
    #[default]
    None,
    /// The request still waits.
    Pending,
    /// The store had no units for the request.
    NoUnits,
    /// There is no response in time.
    Missing(Unanswered),
}

impl StoreHandle {
    /// Gets units for `counter` through `acquire`. `left` is the time for which the request may still wait for the store;
    /// `None` if it never waits. A wait that ends without a response counts as an unreachable store for this request: a
    /// late response says nothing about the limit. If the store had no units, the request is rejected.
    pub fn decide_lease(
        &self,
        counter: SharedCounter,
        left: Option<Duration>,
        waits: &mut LeaseWaits,
        acquire: impl FnOnce(UnitSource) -> LeaseOutcome,
    ) -> LeaseDecision {
        let left = left.filter(|left| !left.is_zero() || !waits.waited(counter).is_zero());
        let response = left.map_or(StoreResponse::None, |left| waits.take_response(counter, left));
        // A query for which no request waits would add to the load of a store that is too slow already.
        let source = if response == StoreResponse::None { UnitSource::Store } else { UnitSource::Held };
        match (acquire(source), left) {
            (LeaseOutcome::Ready(needs_query), _) => {
                self.query_if(needs_query, counter);
                LeaseDecision::Available
            }
            (LeaseOutcome::Requested(needs_query), None) => {
                self.query_if(needs_query, counter);
                LeaseDecision::Rejected(Duration::ZERO)
            }
            (LeaseOutcome::Requested(needs_query), Some(left)) => match response {
                StoreResponse::None => self.start_wait(counter, needs_query, left, waits),
                StoreResponse::Pending => LeaseDecision::Pending,
                StoreResponse::NoUnits => LeaseDecision::Rejected(Duration::ZERO),
                StoreResponse::Missing(reason) => self.end_unanswered(counter, reason, waits),
            },
            (LeaseOutcome::Rejected(wait), _) => LeaseDecision::Rejected(wait),
            (LeaseOutcome::Unavailable, _) => LeaseDecision::Unavailable,
        }
    }

    fn query_if(&self, needs_query: bool, counter: SharedCounter) {
        if needs_query {
            self.query(counter);
        }
    }

    fn start_wait(
        &self,
        counter: SharedCounter,
        needs_query: bool,
        left: Duration,
        waits: &mut LeaseWaits,
    ) -> LeaseDecision {
        let since = Instant::now();
        let deadline = since + left;
        match self.wait_for_response(counter, needs_query, deadline) {
            Some(receiver) => {
                waits.entry(counter).pending = Some(AwaitedResponse { receiver, since, deadline });
                LeaseDecision::Pending
            }
            None => self.end_unanswered(counter, Unanswered::QueueFull, waits),
        }
    }

    fn end_unanswered(
        &self,
        counter: SharedCounter,
        reason: Unanswered,
        waits: &mut LeaseWaits,
    ) -> LeaseDecision {
        if !std::mem::replace(&mut waits.entry(counter).is_counted, true) {
            self.count_unanswered(reason);
        }
        LeaseDecision::Unavailable
    }
}

impl LeaseWaits {
    /// Returns whether the request waits for a response.
    pub fn is_pending(&self) -> bool {
        self.0.iter().any(|wait| wait.pending.is_some())
    }

    /// Stops waiting. The request keeps what it has waited.
    pub fn stop(&mut self) {
        for wait in &mut self.0 {
            if let Some(pending) = wait.pending.take() {
                wait.waited = wait.waited.saturating_add(pending.since.elapsed());
            }
        }
    }

    /// Returns for how long the request has waited for responses about a counter.
    pub fn waited(&self, counter: SharedCounter) -> Duration {
        self.0.iter().find(|wait| wait.counter == counter).map_or(Duration::ZERO, |wait| wait.waited)
    }

    /// Completes when the store has responded about all counters, or when the wait for one of them has elapsed. The request
    /// is then decided again, and may wait on for the others.
    pub async fn wait(&mut self) {
        let deadlines =
            self.0.iter().filter_map(|wait| wait.pending.as_ref()).map(|pending| pending.deadline);
        let Some(deadline) = deadlines.min() else { return };
        if timeout_at(deadline, poll_fn(|cx| self.poll(cx))).await.is_err() {
            self.0.iter_mut().for_each(|wait| wait.elapse(deadline));
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.iter_mut().for_each(|wait| wait.poll(cx));
        if self.is_pending() { Poll::Pending } else { Poll::Ready(()) }
    }

    fn entry(&mut self, counter: SharedCounter) -> &mut CounterWait {
        let position = self.0.iter().position(|wait| wait.counter == counter).unwrap_or_else(|| {
            self.0.push(CounterWait::new(counter));
            self.0.len() - 1
        });
        &mut self.0[position]
    }

    /// Returns the response about a counter for a request that may still wait for the time that is `left`. It applies to
    /// one decision.
    fn take_response(&mut self, counter: SharedCounter, left: Duration) -> StoreResponse {
        let Some(wait) = self.0.iter_mut().find(|wait| wait.counter == counter) else {
            return StoreResponse::None;
        };
        if wait.pending.is_some() {
            return StoreResponse::Pending;
        }
        match std::mem::take(&mut wait.response) {
            StoreResponse::None if left.is_zero() => StoreResponse::Missing(Unanswered::Late),
            response => response,
        }
    }
}

impl CounterWait {
    const fn new(counter: SharedCounter) -> Self {
        Self {
            counter,
            waited: Duration::ZERO,
            pending: None,
            response: StoreResponse::None,
            is_counted: false,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) {
        let Some(pending) = &mut self.pending else { return };
        let Poll::Ready(response) = Pin::new(&mut pending.receiver).poll(cx) else { return };
        self.response = match response {
            Ok(true) => StoreResponse::None,
            Ok(false) => StoreResponse::NoUnits,
            // The store is too slow for a response in time, or was lost, which the next decision notices first.
            Err(_) => StoreResponse::Missing(Unanswered::NotSent),
        };
        self.waited = self.waited.saturating_add(pending.since.elapsed());
        self.pending = None;
    }

    /// Ends the wait if this is its deadline.
    fn elapse(&mut self, deadline: Instant) {
        let Some(pending) = self.pending.take_if(|pending| pending.deadline <= deadline) else { return };
        self.waited = self.waited.saturating_add(pending.since.elapsed());
        self.response = StoreResponse::Missing(Unanswered::Late);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::mpsc;

    use super::*;
    use crate::handle::QueuedCounter;
    use weir_limiter::testing::limiter;

    const SHORT: Duration = Duration::from_millis(10);
    const LONG: Duration = Duration::from_secs(60);

    /// A handle, its queue, and two counters that differ in their keys.
    fn handle() -> (StoreHandle, mpsc::Receiver<QueuedCounter>, [SharedCounter; 2]) {
        let (limiter, check) = limiter();
        let other =
            weir_limiter::Check { key: weir_limiter::key::KeyHasher::new([3, 4]).hash(b"b"), ..check };
        let counters = [check, other].map(|check| limiter.shared_counter(&check));
        let (handle, queue) = StoreHandle::new(&Arc::new(limiter));
        (handle, queue, counters)
    }

    /// Decides a counter without units.
    fn decide(
        handle: &StoreHandle,
        counter: SharedCounter,
        max_wait: Duration,
        waits: &mut LeaseWaits,
    ) -> LeaseDecision {
        let left = max_wait.saturating_sub(waits.waited(counter));
        handle.decide_lease(counter, Some(left), waits, |source| {
            LeaseOutcome::Requested(source == UnitSource::Store)
        })
    }

    #[tokio::test]
    async fn each_counter_has_its_own_wait() {
        let (handle, mut queue, [short, long]) = handle();
        let mut waits = LeaseWaits::default();
        assert_eq!(decide(&handle, short, SHORT, &mut waits), LeaseDecision::Pending);
        assert_eq!(decide(&handle, long, LONG, &mut waits), LeaseDecision::Pending);
        waits.wait().await;
        assert_eq!(decide(&handle, short, SHORT, &mut waits), LeaseDecision::Unavailable);
        assert_eq!(decide(&handle, long, LONG, &mut waits), LeaseDecision::Pending, "it has time left");
        assert_eq!(handle.take_unanswered(Unanswered::Late), 1);
        assert!(queue.recv().await.is_some());
        let waiter = queue.recv().await.unwrap().waiter.unwrap();
        assert!(queue.try_recv().is_err(), "no further query for a request that waits on");
        waiter.wake(false);
        waits.wait().await;
        assert_eq!(decide(&handle, long, LONG, &mut waits), LeaseDecision::Rejected(Duration::ZERO));
    }

    #[tokio::test]
    async fn waits_for_one_counter_add_up() {
        let (handle, mut queue, [counter, _]) = handle();
        let mut waits = LeaseWaits::default();
        let mut rounds = 0;
        while decide(&handle, counter, 3 * SHORT, &mut waits) == LeaseDecision::Pending {
            rounds += 1;
            assert!(rounds <= 6, "waits of {SHORT:?} do not add up");
            let waiter = queue.recv().await.unwrap().waiter.unwrap();
            let respond = async {
                tokio::time::sleep(SHORT).await;
                // Another request takes the units.
                waiter.wake(true);
            };
            tokio::join!(waits.wait(), respond);
            waits.stop();
        }
        assert!(waits.waited(counter) >= 3 * SHORT);
        assert_eq!(decide(&handle, counter, 3 * SHORT, &mut waits), LeaseDecision::Unavailable);
        assert_eq!(handle.take_unanswered(Unanswered::Late), 1, "a request counts once");
    }

    #[tokio::test]
    async fn query_that_does_not_fit_into_the_queue_is_not_waited_for() {
        let (handle, queue, [counter, _]) = handle();
        drop(queue);
        let mut waits = LeaseWaits::default();
        assert_eq!(decide(&handle, counter, LONG, &mut waits), LeaseDecision::Unavailable);
        assert_eq!(handle.take_unanswered(Unanswered::QueueFull), 1);
        assert!(!waits.is_pending());
    }

    #[tokio::test]
    async fn query_that_is_not_sent_is_unanswered() {
        let (handle, mut queue, [counter, _]) = handle();
        let mut waits = LeaseWaits::default();
        assert_eq!(decide(&handle, counter, LONG, &mut waits), LeaseDecision::Pending);
        drop(queue.recv().await);
        waits.wait().await;
        assert_eq!(decide(&handle, counter, LONG, &mut waits), LeaseDecision::Unavailable);
        assert_eq!(handle.take_unanswered(Unanswered::NotSent), 1);
    }
}
