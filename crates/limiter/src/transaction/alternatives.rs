//! Groups of checks that do not simply reject: those that divert a request, those that count different values, and
//! those of which a request needs one.
//!
//! They are evaluated after all other checks, group by group. The charges of a group without room are withdrawn before
//! the next group is evaluated, so that both may charge one counter.

use std::ops::Range;
use std::time::Duration;

use smallvec::SmallVec;

use super::{NextStates, ProvisionalCharge, Transaction, VerdictList};
use crate::Check;
use crate::algorithm::Outcome;
use crate::check_options::{CounterRole, WithoutRoom};
use crate::decision::{Enforcement, Verdict};
use crate::evaluation;
use crate::reservation::ChargeTiming;
use crate::table::SlotLookup;
use crate::timestamp::Timestamp;

/// Positions of checks, in the order in which they are evaluated.
type Order = SmallVec<[usize; 8]>;

/// Whether any group of `checks` does not simply reject.
pub(super) fn are_among<'c>(checks: impl IntoIterator<Item = &'c &'c Check>) -> bool {
    checks.into_iter().any(|check| check.without_room() != WithoutRoom::Reject)
}

/// Applies the groups of `checks` to `verdicts` that were each decided on its own.
pub(crate) fn apply_to_independent(checks: &[&Check], verdicts: &mut [Verdict]) {
    if !are_among(checks) {
        return;
    }
    let (order, groups) = groups(checks);
    let mut set = SetProgress::default();
    for group in &groups {
        let positions = &order[group.clone()];
        let withdrawn = set.add(checks, positions, verdicts);
        if let Some(enforcement) = withdrawn {
            positions
                .iter()
                .for_each(|position| withdraw(checks[*position], &mut verdicts[*position], enforcement));
        }
    }
    set.end(checks, verdicts);
}

/// Which group of a set decides, while the groups are evaluated in their order.
#[derive(Debug, Default)]
struct SetProgress {
    set: Option<u16>,
    has_room: bool,
    /// The group that has room first if none has, and the time until then.
    first: Option<(Order, Duration)>,
}

impl SetProgress {
    /// Adds the evaluated group at `positions`. Returns how its verdicts are enforced if its charges are withdrawn.
    fn add(
        &mut self,
        checks: &[&Check],
        positions: &[usize],
        verdicts: &mut [Verdict],
    ) -> Option<Enforcement> {
        let rejecting = positions.iter().map(|position| &verdicts[*position]).filter(|one| one.rejects());
        let wait = rejecting.map(Verdict::retry_after).max();
        match checks[*positions.first()?].without_room() {
            WithoutRoom::Reject => None,
            WithoutRoom::Divert => wait.map(|_| Enforcement::Diverting),
            WithoutRoom::Distinct(_) => {
                let is_known = is_known_value(checks, positions, verdicts);
                is_known.then_some(Enforcement::PassedOver)
            }
            WithoutRoom::TryNext(alternative) => {
                if self.set != Some(alternative.set) {
                    self.end(checks, verdicts);
                    *self = Self { set: Some(alternative.set), ..Self::default() };
                }
                match wait {
                    None if !self.has_room => {
                        self.has_room = true;
                        return None;
                    }
                    Some(wait) if self.first.as_ref().is_none_or(|(_, first)| wait < *first) => {
                        self.first = Some((positions.into(), wait));
                    }
                    _ => {}
                }
                Some(Enforcement::PassedOver)
            }
        }
    }

    /// Ends the set: if none of its groups has room, the one that has it first rejects.
    fn end(&mut self, checks: &[&Check], verdicts: &mut [Verdict]) {
        let Some((positions, _)) = self.first.take().filter(|_| !self.has_room) else { return };
        for position in positions {
            verdicts[position].enforcement = checks[position].enforcement;
        }
    }
}

impl Transaction<'_> {
    /// As [`Transaction::evaluate`], if there are groups that do not simply reject.
    #[inline(never)]
    pub(super) fn evaluate_groups(&mut self, now: Timestamp) -> (VerdictList, NextStates) {
        self.find_slots();
        let mut evaluated = EvaluatedGroups::new(self);
        let checks = self.checks;
        let (order, groups) = groups(checks);
        let mut set = SetProgress::default();
        for group in groups {
            let positions = &order[group];
            let before = evaluated.charged.clone();
            positions.iter().for_each(|position| evaluated.evaluate(self, *position, now));
            if let Some(enforcement) = set.add(checks, positions, &mut evaluated.verdicts) {
                evaluated.charged = before;
                for position in positions {
                    evaluated.next[*position] = None;
                    let verdict = &mut evaluated.verdicts[*position];
                    withdraw(checks[*position], verdict, enforcement);
                    self.report_unchanged_counter(*position, verdict, now);
                }
            } else {
                evaluated.forget_values_over_the_limit(checks, positions);
            }
        }
        set.end(checks, &mut evaluated.verdicts);
        evaluated.finish(checks)
    }
}

/// The checks of a transaction while its groups are evaluated.
struct EvaluatedGroups {
    verdicts: VerdictList,
    next: NextStates,
    /// For each check, the position of the first one of the same counter.
    first_of_counter: Order,
    /// What the groups so far charge, at the position of the first check of each counter.
    charged: SmallVec<[ProvisionalCharge; 4]>,
}

impl EvaluatedGroups {
    fn new(transaction: &Transaction<'_>) -> Self {
        let count = transaction.checks.len();
        let mut first_of_counter = Order::with_capacity(count);
        for position in 0..count {
            let earlier = transaction.repeats.earlier(position);
            first_of_counter.push(earlier.map_or(position, |at| first_of_counter[at]));
        }
        // All positions are evaluated, so no verdict remains as it is here.
        let unknown = |check: &&Check| Verdict::plain(check, Outcome::Conform, None);
        Self {
            verdicts: transaction.checks.iter().map(unknown).collect(),
            next: SmallVec::from_elem(None, count),
            first_of_counter,
            charged: SmallVec::from_elem(ProvisionalCharge::default(), count),
        }
    }

    fn evaluate(&mut self, transaction: &Transaction<'_>, position: usize, now: Timestamp) {
        let (check, key) = (transaction.checks[position], transaction.keys[position]);
        let charged = &mut self.charged[self.first_of_counter[position]];
        let slot = transaction.slots[position];
        let mut before = transaction.before(position, slot, *charged, now);
        if check.has_role(CounterRole::Seen) && matches!(slot, SlotLookup::Absent) {
            // A counter that values share in a full table knows none of them, so it must not admit any.
            before.counter = None.into();
        }
        if check.has_role(CounterRole::Seen) {
            // A value is known once it has been charged. Before, its first request may still turn out not to count.
            before.held = 0;
        }
        let (verdict, state) = evaluation::evaluate(transaction.shard(position), check, key, before, now);
        *charged = charged.with(check, state);
        (self.verdicts[position], self.next[position]) = (verdict, state);
    }

    /// Withdraws the charge of a value that its limit has no room for. In shadow mode the request passes, and the value is as
    /// new as if it had been rejected.
    fn forget_values_over_the_limit(&mut self, checks: &[&Check], positions: &[usize]) {
        if positions.iter().any(|position| self.verdicts[*position].exceeds()) {
            let seen = positions.iter().filter(|position| checks[**position].has_role(CounterRole::Seen));
            seen.for_each(|position| self.next[*position] = None);
        }
    }

    /// Returns the verdicts, and the states to keep. They are written in another order than they were evaluated in, so
    /// all of one counter are its last.
    fn finish(mut self, checks: &[&Check]) -> (VerdictList, NextStates) {
        for (position, next) in self.next.iter_mut().enumerate() {
            let is_charged = next.is_some() && checks[position].charge_timing == ChargeTiming::OnArrival;
            if let Some(last) = self.charged[self.first_of_counter[position]].counter.filter(|_| is_charged) {
                *next = Some(last);
            }
        }
        (self.verdicts, self.next)
    }
}

/// Makes a verdict one of a group that is not charged.
fn withdraw(check: &Check, verdict: &mut Verdict, enforcement: Enforcement) {
    verdict.delay = 0;
    // In shadow mode, a check only reports. A value that is known is no violation to report.
    if verdict.enforcement != Enforcement::Shadow || check.is_distinct() {
        verdict.enforcement = enforcement;
    }
}

/// Whether the value of a group has been counted before. A ban applies to known values, too.
fn is_known_value(checks: &[&Check], positions: &[usize], verdicts: &[Verdict]) -> bool {
    let is_known =
        |position: &usize| checks[*position].has_role(CounterRole::Seen) && verdicts[*position].exceeds();
    let is_banned = |position: &usize| {
        let verdict = &verdicts[*position];
        verdict.rejects() && (verdict.is_banned() || checks[*position].has_role(CounterRole::Ban))
    };
    positions.iter().any(is_known) && !positions.iter().any(is_banned)
}

/// Returns the order in which `checks` are evaluated, and the groups in it. All that simply reject are one group.
fn groups(checks: &[&Check]) -> (Order, SmallVec<[Range<usize>; 8]>) {
    let group_of = |position: &usize| {
        let group = checks[*position].options.map_or(0, |options| options.group);
        match checks[*position].without_room() {
            WithoutRoom::Reject => (0, 0, 0, 0),
            WithoutRoom::Divert => (1, 0, 0, group),
            WithoutRoom::Distinct(value) => (2, value, 0, group),
            WithoutRoom::TryNext(alternative) => (3, alternative.set.into(), alternative.rank, group),
        }
    };
    let mut order: Order = (0..checks.len()).collect();
    order.sort_by_key(group_of);
    let mut end = 0;
    let range = |group: &[usize]| {
        let start = end;
        end += group.len();
        start..end
    };
    let groups = order.chunk_by(|one, next| group_of(one) == group_of(next)).map(range).collect();
    (order, groups)
}
