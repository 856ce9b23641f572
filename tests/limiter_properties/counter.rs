//! One counter as a shard keeps it: in twelve bytes, or as a history.

use weir::limiter::algorithm::history::History;
use weir::limiter::algorithm::{self, Outcome, State, Usage};
use weir::limiter::quota::Quota;
use weir::limiter::timestamp::Timestamp;

#[derive(Clone, Debug)]
pub(super) struct Counter {
    pub(super) quota: Quota,
    state: Option<State>,
    history: History,
}

impl Counter {
    pub(super) fn new(quota: Quota) -> Self {
        Self { quota, state: None, history: History::default() }
    }

    /// What would happen, without consequences.
    pub(super) fn peek(&self, cost: u32, now: u64) -> (State, Outcome) {
        algorithm::evaluate(self.view(), &self.quota, cost, Timestamp::from_nanos(now))
    }

    /// Charges the request if it conforms.
    pub(super) fn ask(&mut self, cost: u32, now: u64) -> Outcome {
        let (next, outcome) = self.peek(cost, now);
        if outcome == Outcome::Conform {
            self.keep(next, now);
        }
        outcome
    }

    pub(super) fn charge(&mut self, amount: i64, now: u64) {
        let next = algorithm::charge(self.short(now), &self.quota, amount, Timestamp::from_nanos(now));
        self.keep(next, now);
    }

    pub(super) fn usage(&self, now: u64) -> Usage {
        algorithm::usage(self.view(), &self.quota, Timestamp::from_nanos(now))
    }

    /// The counter in twelve bytes.
    pub(super) fn short(&self, now: u64) -> Option<State> {
        self.view().in_short(&self.quota, Timestamp::from_nanos(now))
    }

    pub(super) fn is_unused(&self, now: u64) -> bool {
        let now_is = Timestamp::from_nanos(now);
        self.short(now).is_none_or(|state| algorithm::is_unused(state, &self.quota, now_is))
    }

    fn view(&self) -> algorithm::Counter<'_> {
        if self.quota.looks_back() { (&self.history).into() } else { self.state.into() }
    }

    fn keep(&mut self, next: State, now: u64) {
        if self.quota.looks_back() {
            self.history.follow(next, &self.quota, Timestamp::from_nanos(now), true);
        } else {
            self.state = Some(next);
        }
    }
}
