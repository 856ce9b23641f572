//! Decides several checks of one request together: either all of them are charged or none.
//!
//! All their shards are locked, in ascending order, from the first read to the last charge. The charges of rules that
//! charge rejections, and a ban that a rejection starts, are written under the same locks.

pub(super) mod alternatives;
mod counting;

use std::ops::Range;
use std::time::Duration;

use smallvec::SmallVec;

pub use self::counting::JointOutcome;
use super::algorithm::{self, CounterState, Outcome, ban};
use super::check_options::{CounterRole, OnDenied};
use super::decision::{Decision, Enforcement, Verdict, Verdicts};
use super::duplicate_counters::DuplicateCounters;
use super::evaluation::{self, CounterView};
use super::key::Fingerprint;
use super::leases::SharedCounter;
use super::reservation::{self, ChargeTiming};
use super::table::{CounterTable, LockedShards, Shard, SlotLookup};
use super::timestamp::Timestamp;
use super::{Check, Limiter, commit};

/// The checks of one request, with their shards locked.
struct Transaction<'a> {
    checks: &'a [&'a Check],
    keys: SmallVec<[Fingerprint; 4]>,
    /// Position of each key's shard among the locked ones.
    shards: SmallVec<[usize; 4]>,
    /// Each key's counter, since its check was evaluated.
    slots: SmallVec<[SlotLookup; 4]>,
    repeats: DuplicateCounters,
    locked: LockedShards<'a>,
}

/// What earlier checks of the same counter have charged and reserved.
#[derive(Clone, Copy, Debug, Default)]
struct ProvisionalCharge {
    counter: Option<CounterState>,
    held: u64,
}

/// The checks of one request.
pub(super) type CheckList<'a> = SmallVec<[&'a Check; 8]>;
type VerdictList = SmallVec<[Verdict; 2]>;
type NextStates = SmallVec<[Option<CounterState>; 4]>;

/// Decides `checks` and charges those that conform, if the request passes.
// Out of line, so that a request with one check does not pay for the stack frame of this.
#[inline(never)]
pub(super) fn check(limiter: &Limiter, checks: &[&Check], now: Timestamp) -> Decision {
    let mut transaction = Transaction::lock(&limiter.table, checks, &[], now);
    if let Some(decision) = transaction.check_plain(now) {
        return decision;
    }
    let (verdicts, next) = transaction.evaluate(now);
    let passes = !verdicts.iter().any(Verdict::rejects);
    transaction.finish(verdicts, next, passes, limiter, now)
}

impl ProvisionalCharge {
    /// Adds `check`, whose next state is `state` if it is charged at all.
    fn with(self, check: &Check, state: Option<CounterState>) -> Self {
        match (check.charge_timing, state) {
            (_, None) => self,
            (ChargeTiming::OnArrival, charged) => Self { counter: charged, ..self },
            (ChargeTiming::OnResponse | ChargeTiming::WhileInFlight, Some(_)) => {
                Self { held: self.held.saturating_add(check.cost.into()), ..self }
            }
        }
    }
}

impl<'a> Transaction<'a> {
    /// Locks the shards of `checks` and of the counters `others`.
    fn lock(
        store: &'a CounterTable,
        checks: &'a [&'a Check],
        others: &[Fingerprint],
        now: Timestamp,
    ) -> Self {
        let keys: SmallVec<[Fingerprint; 4]> =
            checks.iter().map(|check| check.key.salted(check.handle.salt)).collect();
        let repeats = DuplicateCounters::of_checks(checks, &keys);
        let mut locked = store.lock_all(keys.iter().chain(others).copied());
        locked.end_overrides(now);
        let shards = locked.positions(&keys);
        for ((check, key), shard) in checks.iter().zip(&keys).zip(&shards) {
            locked.at_mut(*shard).set_request_limit(*key, check.handle.id, check.request_limit(), now);
        }
        Self { checks, keys, shards, slots: SmallVec::new(), repeats, locked }
    }

    /// Decides and charges the common case: different counters that exist, checks without options that are charged on
    /// arrival, and none of them rejects. Returns `None` otherwise, without a change.
    fn check_plain(&mut self, now: Timestamp) -> Option<Decision> {
        let is_plain =
            |check: &&Check| check.options.is_none() && check.charge_timing == ChargeTiming::OnArrival;
        if self.repeats.has_any() || !self.checks.iter().all(is_plain) {
            return None;
        }
        let mut verdicts = VerdictList::with_capacity(self.checks.len());
        let mut indices: SmallVec<[usize; 4]> = SmallVec::with_capacity(self.checks.len());
        for ((check, key), shard) in self.checks.iter().zip(&self.keys).zip(&self.shards) {
            let (slot, state, quota) = self.locked.at(*shard).own_state(*key, check.handle.id)?;
            let (state, outcome) = algorithm::evaluate(Some(state), quota, check.cost, now);
            let verdict = Verdict::plain(check, outcome, Some((*quota, Some(state))));
            if verdict.rejects() {
                return None;
            }
            indices.push(slot);
            verdicts.push(verdict);
        }
        for (position, (slot, verdict)) in indices.iter().zip(&verdicts).enumerate() {
            if let (Outcome::Conform, Some((_, Some(state)))) = (verdict.outcome, verdict.counter) {
                let limit = self.checks[position].handle.id;
                self.shard_mut(position).set_own_state(*slot, limit, state);
            }
        }
        Some(Decision { verdicts: Verdicts::Several(verdicts), overflowed: false })
    }

    /// Returns the verdict of each check, and the state of its counter if it is charged.
    fn evaluate(&mut self, now: Timestamp) -> (VerdictList, NextStates) {
        if alternatives::are_among(self.checks) {
            return self.evaluate_groups(now);
        }
        let count = self.checks.len();
        let (mut verdicts, mut next) = (VerdictList::with_capacity(count), NextStates::with_capacity(count));
        let mut charged: SmallVec<[ProvisionalCharge; 4]> = SmallVec::with_capacity(count);
        self.slots.reserve(count);
        for (position, check) in self.checks.iter().enumerate() {
            let earlier =
                self.repeats.earlier(position).map_or_else(ProvisionalCharge::default, |at| charged[at]);
            let slot = self.find_slot(position);
            let before = self.before(position, slot, earlier, now);
            let (verdict, state) =
                evaluation::evaluate(self.shard(position), check, self.keys[position], before, now);
            verdicts.push(verdict);
            next.push(state);
            charged.push(earlier.with(check, state));
            self.slots.push(slot);
        }
        (verdicts, next)
    }

    /// Charges all that conforms if the request passes, otherwise only what a rejection costs.
    fn finish(
        &mut self,
        mut verdicts: VerdictList,
        next: NextStates,
        passes: bool,
        limiter: &Limiter,
        now: Timestamp,
    ) -> Decision {
        let mut overflowed = false;
        if !passes {
            self.report_uncharged(&mut verdicts, now);
            if self.checks.iter().any(|check| check.options.is_some()) {
                overflowed = self.apply_rejection(&mut verdicts, limiter, now);
            }
            return Decision { verdicts: Verdicts::Several(verdicts), overflowed };
        }
        if verdicts.iter().any(Verdict::diverts) {
            overflowed |= self.apply_rejection(&mut verdicts, limiter, now);
            self.find_slots();
        }
        let mut has_inserted = false;
        for (position, state) in next.into_iter().enumerate() {
            let Some(state) = state else { continue };
            let (key, check) = (self.keys[position], &self.checks[position]);
            // An insertion moves other counters.
            let slot = if has_inserted { self.find_slot(position) } else { self.slots[position] };
            has_inserted |= matches!(slot, SlotLookup::Absent);
            let state = self.state_in_overflow(position, slot, now).unwrap_or(state);
            let placement = commit(self.shard_mut(position), check, key, slot, state, now);
            overflowed |= limiter.record_placement(placement);
        }
        Decision { verdicts: Verdicts::Several(verdicts), overflowed }
    }

    /// Finds the counters of all checks.
    fn find_slots(&mut self) {
        self.slots = (0..self.checks.len()).map(|position| self.find_slot(position)).collect();
    }

    /// Slot of a check's counter. Out of line, because it is called from many places.
    #[inline(never)]
    fn find_slot(&self, position: usize) -> SlotLookup {
        self.shard(position).find(self.keys[position])
    }

    fn shard(&self, position: usize) -> &Shard {
        self.locked.at(self.shards[position])
    }

    fn shard_mut(&mut self, position: usize) -> &mut Shard {
        self.locked.at_mut(self.shards[position])
    }

    /// Returns the counter at `position` as it is after the `earlier` checks of the same counter.
    fn before(
        &self,
        position: usize,
        slot: SlotLookup,
        earlier: ProvisionalCharge,
        now: Timestamp,
    ) -> CounterView<'_> {
        let (key, shard) = (self.keys[position], self.shard(position));
        let mut before = CounterView::new(shard, self.checks[position], key, slot, now);
        if let Some(charged) = earlier.counter {
            before.counter = Some(charged).into();
        }
        before.held = before.held.saturating_add(earlier.held);
        before
    }

    /// Recomputes the state to keep if the check has no counter of its own and an overflow counter is in use. Earlier
    /// checks may have charged the overflow counter, or their new counters may have replaced an unused one.
    #[inline]
    fn state_in_overflow(&self, position: usize, slot: SlotLookup, now: Timestamp) -> Option<CounterState> {
        match slot {
            SlotLookup::Absent if self.shard(position).has_overflow() => {
                self.charged_now(position, slot, now)
            }
            _ => None,
        }
    }

    #[cold]
    fn charged_now(&self, position: usize, slot: SlotLookup, now: Timestamp) -> Option<CounterState> {
        let (shard, check) = (self.shard(position), &self.checks[position]);
        let state = shard.state(slot, check.handle.id, now);
        let quota = shard.quota_of(self.keys[position], check.handle.id)?;
        Some(algorithm::charge(state, quota, check.cost.into(), now))
    }

    /// Corrects the verdicts of a rejected request: nothing is charged, so counters are as before.
    fn report_uncharged(&self, verdicts: &mut [Verdict], now: Timestamp) {
        for (position, verdict) in verdicts.iter_mut().enumerate() {
            verdict.delay = 0;
            self.report_unchanged_counter(position, verdict, now);
            if verdict.rejects()
                && !verdict.is_banned()
                && !verdict.is_paused()
                && !self.checks[position].is_distinct()
                && let Some(outcome) = self.outcome_of_all(position, now)
            {
                verdict.outcome = outcome;
            }
        }
    }

    /// Makes a verdict show the counter as it is.
    fn report_unchanged_counter(&self, position: usize, verdict: &mut Verdict, now: Timestamp) {
        let Some((quota, state)) = &mut verdict.counter else { return };
        let (shard, check) = (self.shard(position), &self.checks[position]);
        *state = match check.charge_timing {
            // A concurrency limit consists of reservations only.
            ChargeTiming::WhileInFlight => {
                let held = evaluation::units_held(shard, check, self.keys[position]);
                Some(reservation::state_with_holds(None, quota, held, now))
            }
            _ => shard.state(self.slots[position], check.handle.id, now),
        };
    }

    /// Returns the outcome of all checks of the request for the counter at `position` together, if there are several: a
    /// client that retries pays for all of them.
    fn outcome_of_all(&self, position: usize, now: Timestamp) -> Option<Outcome> {
        let is_charged = |other: &usize| self.checks[*other].charge_timing == ChargeTiming::OnArrival;
        let same = (0..self.keys.len()).filter(|other| self.keys[*other] == self.keys[position]);
        if same.clone().count() < 2 || !same.clone().all(|other| is_charged(&other)) {
            return None;
        }
        let cost = same.fold(0_u32, |sum, other| sum.saturating_add(self.checks[other].cost));
        let (shard, check) = (self.shard(position), &self.checks[position]);
        let counter = shard.counter(self.slots[position], check.handle.id);
        let quota = shard.quota_of(self.keys[position], check.handle.id)?;
        match algorithm::evaluate(counter, quota, cost, now).1 {
            // Reservations of other requests were the reason.
            Outcome::Conform => None,
            exceeds @ Outcome::Exceed { .. } => Some(exceeds),
        }
    }

    /// Applies the consequences of a rejection to the groups that rejected or diverted the request; returns whether an
    /// overflow counter was used.
    fn apply_rejection(&mut self, verdicts: &mut [Verdict], limiter: &Limiter, now: Timestamp) -> bool {
        let group_of = |check: &Check| check.options.map(|options| options.group);
        let (mut from, mut overflowed) = (0, false);
        for group in self.checks.chunk_by(|a, b| group_of(a) == group_of(b)) {
            let range = from..from + group.len();
            from = range.end;
            let group_verdicts = &verdicts[range.clone()];
            let is_ban = |check: &Check, verdict: &Verdict| {
                (check.has_role(CounterRole::Ban) || verdict.is_banned()) && is_without_room(verdict)
            };
            let banned = group.iter().zip(group_verdicts).any(|(check, verdict)| is_ban(check, verdict));
            let is_over = |(check, verdict): (&&Check, &Verdict)| {
                // A counter that is out of leased units is not over its limit: the store may have more. Neither is one
                // that the provider has paused.
                is_without_room(verdict)
                    && !verdict.is_paused()
                    && !verdict.awaits_lease()
                    && !reservation::is_blocked_by_pending_charges(check.charge_timing, verdict.outcome)
            };
            // Rejections by a running ban neither extend nor repeat it, and are not charged.
            if !banned && group[0].options.is_some() && group.iter().zip(group_verdicts).any(is_over) {
                overflowed |= self.charge_denied(range.clone(), verdicts, limiter, now);
                self.start_ban(range, verdicts, limiter, now);
            }
        }
        overflowed
    }

    fn charge_denied(
        &mut self,
        range: Range<usize>,
        verdicts: &mut [Verdict],
        limiter: &Limiter,
        now: Timestamp,
    ) -> bool {
        let (mut overflowed, mut max_wait) = (false, Duration::ZERO);
        for position in range.clone() {
            let check = &self.checks[position];
            let charges = check.options.is_some_and(|options| {
                options.on_denied == OnDenied::Charge && options.role != CounterRole::Ban
            });
            let counts = check.enforcement == Enforcement::Enforced
                && check.charge_timing != ChargeTiming::WhileInFlight;
            let Some((quota, _)) = verdicts[position].counter.filter(|_| charges && counts) else { continue };
            let (key, limit, cost) = (self.keys[position], check.handle.id, check.cost);
            let slot = self.find_slot(position);
            let shard = self.shard_mut(position);
            let state = shard.state(slot, limit, now);
            let cost = cost.min(reservation::room_for_debt(state, &quota, now));
            let next = algorithm::charge(state, &quota, cost.into(), now);
            if quota.is_leased() {
                limiter.record_debt(shard, SharedCounter { limit, key }, cost, state, now);
            }
            let placement = shard.store_state(slot, key, limit, next, now);
            overflowed |= limiter.record_placement(placement);
            let counter = shard.counter(shard.find(key), limit);
            if let Outcome::Exceed { retry_after: Some(wait) } =
                evaluation::reevaluate(check, counter, &quota, now)
            {
                max_wait = max_wait.max(wait);
            }
            verdicts[position].counter = Some((quota, Some(next)));
        }
        // The charges extend the wait, and another limit of the rule may now be the one without room.
        for verdict in verdicts[range].iter_mut().filter(|verdict| verdict.rejects()) {
            if let Outcome::Exceed { retry_after: Some(wait) } = &mut verdict.outcome {
                *wait = max_wait.max(*wait);
            }
        }
        overflowed
    }

    /// Starts a ban, unless the table has no room for it: in an overflow counter it would reject every key that shares
    /// it.
    fn start_ban(
        &mut self,
        range: Range<usize>,
        verdicts: &mut [Verdict],
        limiter: &Limiter,
        now: Timestamp,
    ) {
        let is_ban = |position: &usize| self.checks[*position].has_role(CounterRole::Ban);
        let Some(position) = range.clone().find(is_ban) else { return };
        let Some((quota, state)) = verdicts[position].counter else { return };
        let (next, length) = ban::start_ban(state, &quota, now);
        let (key, limit) = (self.keys[position], self.checks[position].handle.id);
        let slot = self.find_slot(position);
        if !self.shard_mut(position).store_own_state(slot, key, limit, next, now) {
            return;
        }
        limiter.record_ban(limit, key);
        verdicts[position].counter = Some((quota, Some(next)));
        for verdict in verdicts[range].iter_mut().filter(|verdict| is_without_room(verdict)) {
            let wait = verdict.retry_after().max(length);
            verdict.outcome = Outcome::Exceed { retry_after: Some(wait) };
        }
    }
}

/// Whether a verdict rejects or diverts the request.
fn is_without_room(verdict: &Verdict) -> bool {
    verdict.rejects() || verdict.diverts()
}

#[cfg(test)]
mod tests;
