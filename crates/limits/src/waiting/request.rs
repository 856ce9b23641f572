//! A waiting request: its deadlines, and its place in a queue.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use smallvec::SmallVec;

use crate::LimitsView;
use weir_limiter::Limiter;
use weir_limiter::decision::Verdict;
use weir_limiter::reservation::ChargeTiming;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::wait_queue::{Arrival, Ticket, WaitQueues, WaitingMemory};
use weir_policy::identify::Attributes;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::selection::SelectedCheck;
use weir_telemetry::metrics::{WaitRejection, WaitingGuard};

/// Memory of a waiting request without its header section, in bytes: its state, its stream or connection and its timers,
/// as measured with many of them.
const REQUEST_SIZE: usize = 4 * 1024;
/// What each header field takes beside its name and value.
const FIELD_SIZE: usize = 64;

/// State of a request that waits.
#[derive(Debug)]
pub(crate) struct WaitingRequest {
    queues: Arc<WaitQueues>,
    arrival: QueueArrival,
    rules: SmallVec<[WaitingRule; 1]>,
    /// Memory of the request, in bytes.
    size: usize,
    place: Option<QueuePlace>,
}

/// When a request arrived. It is kept if the request is decided again under another configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueArrival {
    /// Number in the order of arrival.
    sequence: u64,
    at: Timestamp,
}

/// A request under one of the rules for which it may wait.
#[derive(Debug)]
struct WaitingRule {
    rule: RuleIndex,
    arrival: Arrival,
    /// When the request stops waiting.
    until: Timestamp,
    /// Whether it has been in a queue of the rule.
    has_waited: bool,
}

/// Place in a queue, and its count in the metrics.
#[derive(Debug)]
struct QueuePlace {
    ticket: Ticket,
    memory: WaitingMemory,
    _counted: Option<WaitingGuard>,
}

impl WaitingRequest {
    /// Creates the state of a request that has arrived at `now`, unless its `arrival` is known.
    pub(super) fn new(
        view: &LimitsView,
        selected: &[SelectedCheck],
        request: &Attributes<'_>,
        arrival: Option<QueueArrival>,
        now: Timestamp,
    ) -> Self {
        let queues = Arc::clone(view.limiter.queues());
        let arrival = arrival.unwrap_or_else(|| QueueArrival { sequence: queues.next_arrival(), at: now });
        let mut rules = SmallVec::<[WaitingRule; 1]>::new();
        for one in selected {
            let Some(policy) = view.wait_for(one) else { continue };
            if rules.last().is_none_or(|last| last.rule != one.rule) {
                rules.push(WaitingRule {
                    rule: one.rule,
                    arrival: policy.arrival(request, arrival.sequence, view.limiter.hasher()),
                    until: arrival.at.saturating_add(policy.max_wait(request.headers)),
                    has_waited: false,
                });
            }
        }
        Self { queues, arrival, rules, size: waiting_size(request.headers), place: None }
    }

    /// Returns when the request arrived.
    pub(super) const fn since(&self) -> Timestamp {
        self.arrival.at
    }

    pub(crate) const fn arrival(&self) -> QueueArrival {
        self.arrival
    }

    /// Returns whether it has been in a queue of the rule.
    pub(super) fn has_waited(&self, rule: RuleIndex) -> bool {
        self.rule(rule).is_some_and(|rule| rule.has_waited)
    }

    /// Returns the time for which the request may still wait for a rule.
    pub(crate) fn time_left(&self, rule: RuleIndex, now: Timestamp) -> Duration {
        self.rule(rule).map_or(Duration::ZERO, |rule| rule.until.since(now))
    }

    /// Returns its place in a queue, if it has one.
    pub(crate) fn ticket(&self) -> Option<&Ticket> {
        self.place.as_ref().map(|place| &place.ticket)
    }

    /// Leaves the queue.
    pub(super) fn leave(&mut self) {
        self.place = None;
    }

    /// Leaves the queue of an admitted request, and decides those that are first then. Returns the memory of the request,
    /// for the time for which it is still delayed.
    pub(super) fn leave_admitted(&mut self, limiter: &Limiter, now: Timestamp) -> WaitingMemory {
        let Some(QueuePlace { ticket, memory, .. }) = self.place.take() else {
            return self.queues.count_memory(self.size);
        };
        ticket.leave_admitted(now, |checks| limiter.check(checks, now));
        memory
    }

    /// Returns the position of a check in whose queue another request comes first.
    pub(super) fn position_behind(&self, view: &LimitsView, selected: &[SelectedCheck]) -> Option<usize> {
        selected.iter().position(|one| {
            view.wait_for(one).zip(self.rule(one.rule)).is_some_and(|(policy, rule)| {
                let counter = one.check.counter_id();
                self.queues.is_behind(counter, policy.queue(), &rule.arrival, self.ticket())
            })
        })
    }

    /// Returns whether the request is in the queue of a check.
    pub(super) fn is_in_queue_of(&self, one: &SelectedCheck) -> bool {
        self.ticket().is_some_and(|ticket| ticket.counter() == one.check.counter_id())
    }

    /// Returns the number of requests that come before this one in the queue of a check.
    pub(super) fn ahead(&self, view: &LimitsView, one: &SelectedCheck) -> usize {
        let waited = view.wait_for(one).zip(self.rule(one.rule));
        waited.map_or(0, |(policy, rule)| {
            self.queues.ahead(one.check.counter_id(), policy.queue(), &rule.arrival)
        })
    }

    /// Joins the queue of a check with this verdict, unless the request is in it. `pace` is a lower bound of the time until
    /// its turn, if the rule has a pace.
    ///
    /// # Errors
    /// Why it cannot wait there.
    pub(super) fn join(
        &mut self,
        view: &LimitsView,
        one: &SelectedCheck,
        verdict: &Verdict,
        pace: Duration,
        now: Timestamp,
    ) -> Result<(), WaitRejection> {
        let counter = one.check.counter_id();
        if self.is_in_queue_of(one) {
            return Ok(());
        }
        let Some((policy, rule)) = view.wait_for(one).zip(self.rule(one.rule)) else {
            return Err(WaitRejection::NoTime);
        };
        let (arrival, settings, left) = (rule.arrival, policy.queue(), rule.until.since(now));
        let ahead = self.queues.ahead(counter, settings, &arrival);
        if left.is_zero() || predicted_wait(one, verdict, ahead, now).max(pace) > left {
            return Err(WaitRejection::NoTime);
        }
        // Left first: a request waits in one queue at a time.
        self.place = None;
        let Some(memory) = self.queues.take_memory(self.size) else { return Err(WaitRejection::NoMemory) };
        let joined = self.queues.join(counter, settings, &arrival);
        let ticket = joined.map_err(|_| WaitRejection::QueueFull)?;
        let counted = view.wait_metrics(one.rule).map(|metrics| metrics.start_wait());
        self.place = Some(QueuePlace { ticket, memory, _counted: counted });
        if let Some(rule) = self.rules.iter_mut().find(|rule| rule.rule == one.rule) {
            rule.has_waited = true;
        }
        Ok(())
    }

    /// Returns the time until a request like this one is likely to be admitted within the maximum wait.
    pub(super) fn time_until_place(
        &self,
        view: &LimitsView,
        one: &SelectedCheck,
        verdict: &Verdict,
        pace: Duration,
        now: Timestamp,
    ) -> Duration {
        let Some((policy, rule)) = view.wait_for(one).zip(self.rule(one.rule)) else { return Duration::ZERO };
        let ahead = self.queues.ahead(one.check.counter_id(), policy.queue(), &rule.arrival);
        let wait = predicted_wait(one, verdict, ahead, now).max(pace);
        // The request is charged if it is sent again when its wait is short enough.
        if ahead < policy.max_queued as usize { wait.saturating_sub(policy.max) } else { wait }
    }

    fn rule(&self, rule: RuleIndex) -> Option<&WaitingRule> {
        self.rules.iter().find(|waiting| waiting.rule == rule)
    }
}

/// Returns the memory of a waiting request with this header section, in bytes.
pub fn waiting_size(headers: &HeaderMap) -> usize {
    headers.iter().fold(REQUEST_SIZE, |size, (name, value)| {
        size.saturating_add(FIELD_SIZE).saturating_add(name.as_str().len()).saturating_add(value.len())
    })
}

/// Returns a lower bound of the wait behind `ahead` requests, which are assumed to cost as much as this one.
fn predicted_wait(one: &SelectedCheck, verdict: &Verdict, ahead: usize, now: Timestamp) -> Duration {
    match one.check.charge_timing {
        ChargeTiming::OnArrival => verdict.min_wait_behind(ahead, one.check.cost, now),
        // Requests before this one may release their units, or hold them for any time.
        ChargeTiming::OnResponse | ChargeTiming::WhileInFlight => verdict.retry_after(),
    }
}
