//! Counts in a transaction: charged whether or not there is room, and reported as numbers.
//!
//! All counters are evaluated first. The caller sees the results of checks and counts, and then selects which counts are
//! written.

use std::time::Duration;

use smallvec::SmallVec;

use super::{CheckList, Transaction};
use crate::algorithm::{self, CounterState};
use crate::decision::{Decision, Verdict};
use crate::duplicate_counters::DuplicateCounters;
use crate::key::Fingerprint;
use crate::quota::Quota;
use crate::timestamp::Timestamp;
use crate::transfer::LateCharge;
use crate::unconditional_count::{self, CountOperation, CountResult, CountSelection};
use crate::{Check, Limiter};

/// What happens to a request, once all its counters are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JointOutcome {
    /// Whether its checks are charged.
    pub passes: bool,
    /// Which of its unconditional counts are written.
    pub count_selection: CountSelection,
}

/// The counts of one request.
struct CountList<'a> {
    operations: &'a [CountOperation],
    keys: SmallVec<[Fingerprint; 4]>,
    repeats: DuplicateCounters,
}

type CountResults = SmallVec<[CountResult; 4]>;

impl Limiter {
    /// Counts on several counters at one moment, over their limits or not; returns what each read, in the order of
    /// the operations.
    ///
    /// `select` is called with what all of them would read and returns which counts are written. It runs under the
    /// locks and must not call the limiter.
    pub fn count_unconditionally(
        &self,
        operations: &[CountOperation],
        select: impl FnOnce(&[CountResult]) -> CountSelection,
        now: Timestamp,
    ) -> SmallVec<[CountResult; 4]> {
        let decide = |_: &[Verdict], read: &[CountResult]| JointOutcome {
            passes: true,
            count_selection: select(read),
        };
        self.check_and_count(&[], operations, decide, now).1
    }

    /// Decides checks and performs count operations in one critical section.
    ///
    /// `decide` is called with all results. It returns whether the request passes, and so is charged, and which counts
    /// are written. It must return `passes: false` if a check rejects. It runs under the locks and must not call the
    /// limiter.
    pub fn check_and_count(
        &self,
        checks: &[Check],
        operations: &[CountOperation],
        decide: impl FnOnce(&[Verdict], &[CountResult]) -> JointOutcome,
        now: Timestamp,
    ) -> (Decision, SmallVec<[CountResult; 4]>) {
        let counts = CountList::new(operations);
        let checks: CheckList<'_> = checks.iter().collect();
        let mut transaction = Transaction::lock(&self.table, &checks, &counts.keys, now);
        let (verdicts, next) = transaction.evaluate(now);
        let mut results = transaction.evaluate_counts(&counts, now);
        let JointOutcome { passes, count_selection } = decide(&verdicts, &results);
        let decision = transaction.finish(verdicts, next, passes, self, now);
        transaction.finish_counts(&counts, &mut results, count_selection, self, now);
        drop(transaction);
        self.note(&checks, &decision, now);
        (decision, results)
    }
}

impl<'a> CountList<'a> {
    fn new(operations: &'a [CountOperation]) -> Self {
        let keys: SmallVec<[Fingerprint; 4]> =
            operations.iter().map(|operation| operation.key.salted(operation.handle.salt)).collect();
        let repeats = DuplicateCounters::new(&keys);
        Self { operations, keys, repeats }
    }
}

impl Transaction<'_> {
    /// Returns what every counter would read if all counted. The second count on the same counter reads what the first
    /// one leaves.
    fn evaluate_counts(&self, counts: &CountList<'_>, now: Timestamp) -> CountResults {
        let mut states: SmallVec<[Option<CounterState>; 4]> = SmallVec::new();
        let mut results = CountResults::new();
        for (position, (operation, key)) in counts.operations.iter().zip(&counts.keys).enumerate() {
            let earlier = counts.repeats.earlier(position).map(|earlier| states[earlier]);
            let (next, result) = self.evaluate_count(operation, *key, earlier, now);
            states.push(next);
            results.push(result);
        }
        results
    }

    /// `earlier` is the state that an earlier count on the same counter leaves.
    fn evaluate_count(
        &self,
        operation: &CountOperation,
        key: Fingerprint,
        earlier: Option<Option<CounterState>>,
        now: Timestamp,
    ) -> (Option<CounterState>, CountResult) {
        let shard = self.locked.shard(key);
        let Some(quota) = shard.quota(operation.handle.id).map(|quota| quota.with_units(operation.limit))
        else {
            return (None, CountResult::default());
        };
        let state = earlier.unwrap_or_else(|| shard.state(shard.find(key), operation.handle.id, now));
        let outside_slot =
            if quota.is_leased() { shard.known_remaining_outside_slot(key, now) } else { None };
        let (next, result) = unconditional_count::evaluate(state, &quota, outside_slot, operation, now);
        (Some(next), result)
    }

    /// Writes the counts that `selection` covers, and corrects the results of the others.
    fn finish_counts(
        &mut self,
        counts: &CountList<'_>,
        results: &mut CountResults,
        selection: CountSelection,
        limiter: &Limiter,
        now: Timestamp,
    ) {
        for ((operation, key), result) in counts.operations.iter().zip(&counts.keys).zip(results) {
            if selection.covers(result.is_over) {
                self.count(operation, *key, limiter, now);
            } else if result.is_over {
                self.record_demand(operation, *key, now);
            } else {
                result.after = result.before;
                // Units to be given back were not.
                result.is_over = result.after > u64::from(operation.limit);
                result.reset = result.reset.and_then(|_| self.time_until_unused(operation, *key, now));
            }
        }
    }

    fn count(&mut self, operation: &CountOperation, key: Fingerprint, limiter: &Limiter, now: Timestamp) {
        let (limit, shard) = (operation.handle.id, self.locked.shard_mut(key));
        // A read creates no counter.
        let Some(quota) = shard.quota(limit).filter(|_| operation.amount != 0) else { return };
        if quota.is_leased() {
            return unconditional_count::count_leased(shard, key, operation, now);
        }
        let quota = quota.with_units(operation.limit);
        let slot = shard.find(key);
        let state = unconditional_count::normalised(shard.state(slot, limit, now), &quota);
        let next = algorithm::charge(state, &quota, operation.amount, now);
        if shard.is_transferred() {
            limiter.report_late(LateCharge::Charge(operation.handle, operation.amount), key);
        }
        limiter.record_placement(shard.store_state(slot, key, limit, next, now));
    }

    /// Counts a rejection as demand for a shared limit.
    fn record_demand(&mut self, operation: &CountOperation, key: Fingerprint, now: Timestamp) {
        let shard = self.locked.shard_mut(key);
        if shard.quota(operation.handle.id).is_some_and(Quota::is_leased) {
            unconditional_count::count_leased(shard, key, operation, now);
        }
    }

    /// Time until all of the limit is available again.
    fn time_until_unused(
        &self,
        operation: &CountOperation,
        key: Fingerprint,
        now: Timestamp,
    ) -> Option<Duration> {
        let shard = self.locked.shard(key);
        let quota = shard.quota(operation.handle.id)?.with_units(operation.limit);
        let state = shard.state(shard.find(key), operation.handle.id, now);
        Some(algorithm::usage(unconditional_count::normalised(state, &quota), &quota, now).reset)
    }
}
