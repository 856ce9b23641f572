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
use weir_limiter::leases::acquisition::LeaseDecision;
use weir_limiter::leases::{LeaseOutcome, LeaseResponse, SharedCounter, UnitSource};
use weir_limiter::timestamp::Timestamp;
use weir_policy::rules::RuleIndex;
use weir_telemetry::metrics::Unanswered;

/// Counters for which a request waits at most for one time together, however many of them are out of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitGroup {
    /// The counters of this rule.
    Rule(RuleIndex),
    /// The counters of the limits of documents.
    Documents,
}

/// The store's responses for which a request waits or has waited. Each group of counters has a maximum wait of its own.
#[derive(Debug, Default)]
pub struct LeaseWaits(Vec<GroupWait>);

/// A group about whose counters the store was queried.
#[derive(Debug)]
struct GroupWait {
    group: WaitGroup,
    counters: Vec<CounterWait>,
    /// Time for which the request has waited, before `since`.
    waited: Duration,
    /// From here the wait for the pending responses counts: a wait until the deadline uses all of its time.
    since: Option<Instant>,
    /// Whether the request counts as unanswered already.
    is_counted: bool,
}

/// A counter about which the store was queried.
#[derive(Debug)]
struct CounterWait {
    counter: SharedCounter,
    pending: Option<AwaitedResponse>,
    /// Response of the last wait, until it is taken.
    response: StoreResponse,
}

/// A response that has not arrived.
#[derive(Debug)]
struct AwaitedResponse {
    receiver: oneshot::Receiver<LeaseResponse>,
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
    /// The store granted units that cannot be spent.
    Unusable,
    /// There is no response in time.
    Missing(Unanswered),
}

impl StoreHandle {
    /// Gets units for `counter` through `acquire`. `left` is the time for which the request may still wait for the store for
    /// the counters of this group; `None` if it never waits. A wait that ends without a response counts as an unreachable
    /// store for this request: a late response says nothing about the limit. If the store had no units, the request is
    /// rejected.
    pub fn decide_lease(
        &self,
        group: WaitGroup,
        counter: SharedCounter,
        left: Option<Duration>,
        now: Timestamp,
        waits: &mut LeaseWaits,
        acquire: impl FnOnce(UnitSource) -> LeaseOutcome,
    ) -> LeaseDecision {
        if self.is_unreachable() {
            return self.decide_by_part(counter, now, acquire);
        }
        let left = left.filter(|left| !left.is_zero() || !waits.waited(group).is_zero());
        let response = left.map_or(StoreResponse::None, |left| waits.take_response(group, counter, left));
        // A query for which no request waits would add to the load of a store that is too slow already.
        let source = if response == StoreResponse::None { UnitSource::Store } else { UnitSource::Held };
        match (acquire(source), left) {
            (LeaseOutcome::Ready(needs_query), _) => {
                self.query_if(needs_query, counter);
                LeaseDecision::Available
            }
            // Even if the next query is due later: that is because of these units, which were granted.
            (LeaseOutcome::Rejected(_), Some(_)) if response == StoreResponse::Unusable => {
                self.end_unanswered(waits.group(group), counter, Unanswered::Late)
            }
            (LeaseOutcome::Requested(needs_query), None) => {
                self.query_if(needs_query, counter);
                LeaseDecision::Rejected(Duration::ZERO)
            }
            (LeaseOutcome::Requested(needs_query), Some(left)) => match response {
                StoreResponse::None => self.start_wait(waits.group(group), counter, needs_query, left),
                StoreResponse::Pending => LeaseDecision::Pending,
                StoreResponse::NoUnits => LeaseDecision::Rejected(Duration::ZERO),
                StoreResponse::Unusable => self.end_unanswered(waits.group(group), counter, Unanswered::Late),
                StoreResponse::Missing(reason) => self.end_unanswered(waits.group(group), counter, reason),
            },
            (LeaseOutcome::Rejected(wait), _) => LeaseDecision::Rejected(wait),
            (LeaseOutcome::Unavailable, _) => LeaseDecision::Unavailable,
        }
    }

    /// Decides by this instance's part of the limit, if it has one.
    fn decide_by_part(
        &self,
        counter: SharedCounter,
        now: Timestamp,
        acquire: impl FnOnce(UnitSource) -> LeaseOutcome,
    ) -> LeaseDecision {
        let Some(part) = self.parts().part_of(counter, now) else { return LeaseDecision::Unavailable };
        match acquire(UnitSource::Part(part)) {
            LeaseOutcome::Ready(needs_review) => {
                self.query_if(needs_review, counter);
                LeaseDecision::Available
            }
            LeaseOutcome::Rejected(wait) => LeaseDecision::Rejected(wait),
            LeaseOutcome::Requested(_) | LeaseOutcome::Unavailable => LeaseDecision::Unavailable,
        }
    }

    fn query_if(&self, needs_query: bool, counter: SharedCounter) {
        if needs_query {
            self.query(counter);
        }
    }

    fn start_wait(
        &self,
        group: &mut GroupWait,
        counter: SharedCounter,
        needs_query: bool,
        left: Duration,
    ) -> LeaseDecision {
        let now = Instant::now();
        let deadline = now + left;
        match self.wait_for_response(counter, needs_query, deadline) {
            Some(receiver) => {
                group.since.get_or_insert(now);
                group.counter(counter).pending = Some(AwaitedResponse { receiver, deadline });
                LeaseDecision::Pending
            }
            None => self.end_unanswered(group, counter, Unanswered::QueueFull),
        }
    }

    fn end_unanswered(
        &self,
        group: &mut GroupWait,
        counter: SharedCounter,
        reason: Unanswered,
    ) -> LeaseDecision {
        if !std::mem::replace(&mut group.is_counted, true) {
            self.count_unanswered(counter.limit, reason);
        }
        LeaseDecision::Unavailable
    }
}

impl LeaseWaits {
    /// Returns whether the request waits for a response.
    pub fn is_pending(&self) -> bool {
        self.0.iter().any(GroupWait::is_pending)
    }

    /// Stops waiting, and drops responses that were not taken: they say nothing about a later decision. The request keeps
    /// what it has waited.
    pub fn stop(&mut self) {
        for group in &mut self.0 {
            group.counters.iter_mut().for_each(CounterWait::stop);
            group.count_wait();
        }
    }

    /// Returns for how long the request has waited for responses about the counters of a group.
    pub fn waited(&self, group: WaitGroup) -> Duration {
        self.0.iter().find(|wait| wait.group == group).map_or(Duration::ZERO, GroupWait::waited)
    }

    /// Completes when the store has responded about all counters, or when the wait for one of them has elapsed. The request
    /// is then decided again, and may wait on for the others.
    pub async fn wait(&mut self) {
        let pending =
            self.0.iter().flat_map(|group| &group.counters).filter_map(|counter| counter.pending.as_ref());
        let Some(deadline) = pending.map(|pending| pending.deadline).min() else { return };
        if timeout_at(deadline, poll_fn(|cx| self.poll(cx))).await.is_err() {
            self.0.iter_mut().for_each(|group| group.elapse(deadline));
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.iter_mut().for_each(|group| group.poll(cx));
        if self.is_pending() { Poll::Pending } else { Poll::Ready(()) }
    }

    fn group(&mut self, group: WaitGroup) -> &mut GroupWait {
        let position = self.0.iter().position(|wait| wait.group == group).unwrap_or_else(|| {
            self.0.push(GroupWait::new(group));
            self.0.len() - 1
        });
        &mut self.0[position]
    }

    /// Returns the response about a counter for a request that may still wait for the time that is `left`. It applies to
    /// one decision; that there are no units, to all until the wait is stopped.
    fn take_response(&mut self, group: WaitGroup, counter: SharedCounter, left: Duration) -> StoreResponse {
        let Some(wait) = self.0.iter_mut().find(|wait| wait.group == group) else {
            return StoreResponse::None;
        };
        let known = wait.counters.iter_mut().find(|wait| wait.counter == counter);
        let response = known.map_or(StoreResponse::None, CounterWait::take_response);
        match response {
            // The other counters of the group have used the time.
            StoreResponse::None if left.is_zero() => StoreResponse::Missing(Unanswered::Late),
            response => response,
        }
    }
}

impl GroupWait {
    fn new(group: WaitGroup) -> Self {
        let (counters, waited) = (Vec::new(), Duration::ZERO);
        Self { group, counters, waited, since: None, is_counted: false }
    }

    fn is_pending(&self) -> bool {
        self.counters.iter().any(|counter| counter.pending.is_some())
    }

    fn waited(&self) -> Duration {
        self.since.map_or(self.waited, |since| self.waited.saturating_add(since.elapsed()))
    }

    fn counter(&mut self, counter: SharedCounter) -> &mut CounterWait {
        let position = self.counters.iter().position(|wait| wait.counter == counter).unwrap_or_else(|| {
            self.counters.push(CounterWait { counter, pending: None, response: StoreResponse::None });
            self.counters.len() - 1
        });
        &mut self.counters[position]
    }

    fn poll(&mut self, cx: &mut Context<'_>) {
        self.counters.iter_mut().for_each(|counter| counter.poll(cx));
        self.count_wait();
    }

    /// Ends the waits of which this is the deadline.
    fn elapse(&mut self, deadline: Instant) {
        self.counters.iter_mut().for_each(|counter| counter.elapse(deadline));
        self.count_wait();
    }

    /// Adds the time that the request has waited, once it waits for none of the counters any more.
    fn count_wait(&mut self) {
        if !self.is_pending() {
            self.waited = self.waited();
            self.since = None;
        }
    }
}

impl CounterWait {
    fn stop(&mut self) {
        (self.pending, self.response) = (None, StoreResponse::None);
    }

    fn take_response(&mut self) -> StoreResponse {
        match self.pending {
            Some(_) => StoreResponse::Pending,
            // A request that still waits for others must not ask again.
            None if self.response == StoreResponse::NoUnits => self.response,
            None => std::mem::take(&mut self.response),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) {
        let Some(pending) = &mut self.pending else { return };
        let Poll::Ready(response) = Pin::new(&mut pending.receiver).poll(cx) else { return };
        self.response = match response {
            Ok(LeaseResponse::Units) => StoreResponse::None,
            Ok(LeaseResponse::NoUnits) => StoreResponse::NoUnits,
            Ok(LeaseResponse::Unusable) => StoreResponse::Unusable,
            // The store is too slow for a response in time, or was lost, which the next decision notices first.
            Err(_) => StoreResponse::Missing(Unanswered::NotSent),
        };
        self.pending = None;
    }

    fn elapse(&mut self, deadline: Instant) {
        if self.pending.take_if(|pending| pending.deadline <= deadline).is_some() {
            self.response = StoreResponse::Missing(Unanswered::Late);
        }
    }
}

#[cfg(test)]
mod tests;
