//! One counter, stored as in a shard: in 12 bytes, or as a history.

use weir_limiter::algorithm::history::History;
use weir_limiter::algorithm::{self, CounterState, CounterUsage, Outcome};
use weir_limiter::quota::Quota;
use weir_limiter::timestamp::Timestamp;

#[derive(Clone, Debug)]
pub(super) struct Counter {
    pub(super) quota: Quota,
    state: Option<CounterState>,
    history: History,
}

impl Counter {
    pub(super) fn new(quota: Quota) -> Self {
        Self { quota, state: None, history: History::default() }
    }

    /// Evaluates a request without charging it.
    pub(super) fn peek(&self, cost: u32, now: u64) -> (CounterState, Outcome) {
        algorithm::evaluate(self.view(), &self.quota, cost, Timestamp::from_nanos(now))
    }

    /// Charges the request if it conforms.
    pub(super) fn try_charge(&mut self, cost: u32, now: u64) -> Outcome {
        let (next, outcome) = self.peek(cost, now);
        if outcome == Outcome::Conform {
            self.store_state(next, now);
        }
        outcome
    }

    pub(super) fn charge(&mut self, amount: i64, now: u64) {
        let next =
            algorithm::charge(self.compact_state(now), &self.quota, amount, Timestamp::from_nanos(now));
        self.store_state(next, now);
    }

    pub(super) fn usage(&self, now: u64) -> CounterUsage {
        algorithm::usage(self.view(), &self.quota, Timestamp::from_nanos(now))
    }

    /// Returns the counter reduced to 12 bytes.
    pub(super) fn compact_state(&self, now: u64) -> Option<CounterState> {
        self.view().compact_state(&self.quota, Timestamp::from_nanos(now))
    }

    pub(super) fn is_unused(&self, now: u64) -> bool {
        let now_is = Timestamp::from_nanos(now);
        self.compact_state(now).is_none_or(|state| algorithm::is_unused(state, &self.quota, now_is))
    }

    fn view(&self) -> algorithm::Counter<'_> {
        if self.quota.needs_history() { (&self.history).into() } else { self.state.into() }
    }

    fn store_state(&mut self, next: CounterState, now: u64) {
        if self.quota.needs_history() {
            self.history.apply_state(next, &self.quota, Timestamp::from_nanos(now), true);
        } else {
            self.state = Some(next);
        }
    }
}
