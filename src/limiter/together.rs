//! Several checks of one request, decided as one: all are charged or none.
//!
//! All their shards are locked, in ascending order, from the first look to the last charge. What a refusal
//! costs those rules that say so, and the ban it begins, are written under the same locks.

use std::ops::Range;
use std::time::Duration;

use smallvec::SmallVec;

use super::algorithm::{self, Outcome, State, ban};
use super::decision::{Decision, Enforcement, Verdict, Verdicts};
use super::judging::{self, Before};
use super::key::Fingerprint;
use super::repeats::Repeats;
use super::reservation::{self, Charging};
use super::store::{Locked, Place, Shard, Store};
use super::tally::{Counters, Counting, Tallied, Tally};
use super::terms::{OnDenied, Role};
use super::timestamp::Timestamp;
use super::{Check, Limiter, commit};

/// What becomes of a request, once all its counters are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// Whether what its checks cost is charged.
    pub passes: bool,
    /// Which of its tallies count.
    pub counting: Counting,
}

/// The checks of one request with their shards locked.
struct Trial<'a> {
    checks: &'a [Check],
    keys: SmallVec<[Fingerprint; 4]>,
    repeats: Repeats,
    locked: Locked<'a>,
}

/// What the checks up to one position would have charged to its counter.
#[derive(Clone, Copy, Debug, Default)]
struct Charged {
    counter: Option<State>,
    held: u64,
}

type Several = SmallVec<[Verdict; 2]>;
type Next = SmallVec<[Option<State>; 4]>;

/// Decides `checks` and charges what passes.
// Out of line, for a request with one check must not pay for what this needs.
#[inline(never)]
pub(super) fn check(limiter: &Limiter, checks: &[Check], now: Timestamp) -> Decision {
    let mut trial = Trial::begin(&limiter.store, checks, &[]);
    let (verdicts, next) = trial.evaluate(now);
    let passes = !verdicts.iter().any(Verdict::refuses);
    trial.end(verdicts, next, passes, limiter, now)
}

impl Limiter {
    /// Decides `checks` and counts `tallies` at one moment. What becomes of the request, and so whether it is
    /// charged and what is counted, `rule` says, which sees what all of them say; it runs under the locks and must
    /// not call the limiter. What a check refuses may not pass.
    pub fn check_and_tally(
        &self,
        (checks, tallies): (&[Check], &[Tally]),
        rule: impl FnOnce(&[Verdict], &[Tallied]) -> Ruling,
        now: Timestamp,
    ) -> (Decision, SmallVec<[Tallied; 4]>) {
        let counters = Counters::new(self, tallies);
        let mut trial = Trial::begin(&self.store, checks, counters.keys());
        let (verdicts, next) = trial.evaluate(now);
        let read = counters.read(&trial.locked, now);
        let Ruling { passes, counting } = rule(&verdicts, &read);
        let decision = trial.end(verdicts, next, passes, self, now);
        (decision, counters.count_all(read, counting, &mut trial.locked, now))
    }
}

impl Charged {
    /// The same after `check`, which keeps `state` if it is charged at all.
    fn with(self, check: &Check, state: Option<State>) -> Self {
        match (check.charging, state) {
            (_, None) => self,
            (Charging::OnArrival, charged) => Self { counter: charged, ..self },
            (Charging::OnAnswer | Charging::WhileServed, Some(_)) => {
                Self { held: self.held.saturating_add(check.cost.into()), ..self }
            }
        }
    }
}

impl<'a> Trial<'a> {
    /// Locks what `checks` and the counters of `others` need.
    fn begin(store: &'a Store, checks: &'a [Check], others: &[Fingerprint]) -> Self {
        let keys: SmallVec<[Fingerprint; 4]> =
            checks.iter().map(|check| check.key.salted(check.meter.salt)).collect();
        let repeats = Repeats::of(&keys);
        let locked = store.lock_all(keys.iter().chain(others).copied());
        Self { checks, keys, repeats, locked }
    }

    /// What each check says, and what its counter would say if it were charged.
    fn evaluate(&self, now: Timestamp) -> (Several, Next) {
        let mut verdicts = Several::new();
        let mut next = Next::new();
        let mut charged: SmallVec<[Charged; 4]> = SmallVec::new();
        for (position, check) in self.checks.iter().enumerate() {
            let earlier = self.repeats.earlier(position).map_or_else(Charged::default, |at| charged[at]);
            let before = self.before(position, earlier, now);
            let (verdict, state) = judging::evaluate(self.shard(position), check, before, now);
            verdicts.push(verdict);
            next.push(state);
            charged.push(earlier.with(check, state));
        }
        (verdicts, next)
    }

    /// Charges all that conforms, or nothing but what a refusal costs.
    fn end(
        &mut self,
        mut verdicts: Several,
        next: Next,
        passes: bool,
        limiter: &Limiter,
        now: Timestamp,
    ) -> Decision {
        let mut overflowed = false;
        if !passes {
            self.restate(&mut verdicts, now);
            if self.checks.iter().any(|check| check.terms.is_some()) {
                overflowed = self.punish(&mut verdicts, limiter, now);
            }
            return Decision { verdicts: Verdicts::Several(verdicts), overflowed };
        }
        for (position, state) in next.into_iter().enumerate() {
            let Some(state) = state else { continue };
            let (key, check, place) = (self.keys[position], &self.checks[position], self.place(position));
            let state = self.once_more(position, place, now).unwrap_or(state);
            let kept = commit(self.shard_mut(position), check, (key, place), state, now);
            overflowed |= limiter.note(kept);
        }
        Decision { verdicts: Verdicts::Several(verdicts), overflowed }
    }

    /// Where the counter of a check is. Out of line, for here it is asked from many places.
    #[inline(never)]
    fn place(&self, position: usize) -> Place {
        self.shard(position).find(self.keys[position])
    }

    fn shard(&self, position: usize) -> &Shard {
        self.locked.shard(self.keys[position])
    }

    fn shard_mut(&mut self, position: usize) -> &mut Shard {
        self.locked.shard_mut(self.keys[position])
    }

    /// What the counter at `position` says once the `earlier` checks of the same counter have been charged.
    fn before(&self, position: usize, earlier: Charged, now: Timestamp) -> Before<'_> {
        let (key, shard) = (self.keys[position], self.shard(position));
        let mut before = Before::of(shard, &self.checks[position], (key, self.place(position)), now);
        if let Some(charged) = earlier.counter {
            before.counter = Some(charged).into();
        }
        before.held = before.held.saturating_add(earlier.held);
        before
    }

    /// The state to keep where keys share a counter and this check has none of its own: checks before it may have
    /// been charged to the one that is shared, or their counters may have taken the place of one that said nothing.
    #[inline]
    fn once_more(&self, position: usize, place: Place, now: Timestamp) -> Option<State> {
        match place {
            Place::Absent if self.shard(position).is_crowded() => self.charged_now(position, place, now),
            _ => None,
        }
    }

    #[cold]
    fn charged_now(&self, position: usize, place: Place, now: Timestamp) -> Option<State> {
        let (shard, check) = (self.shard(position), &self.checks[position]);
        let state = shard.state(place, check.meter.id, now);
        Some(algorithm::charge(state, shard.quota(check.meter.id)?, check.cost.into(), now))
    }

    /// Nothing is charged: the counters are as they were.
    fn restate(&self, verdicts: &mut [Verdict], now: Timestamp) {
        for (position, verdict) in verdicts.iter_mut().enumerate() {
            verdict.delay = 0;
            if let Some((quota, state)) = &mut verdict.counter {
                let (shard, check) = (self.shard(position), &self.checks[position]);
                *state = match check.charging {
                    // All there is to a permit are those that are out.
                    Charging::WhileServed => {
                        let held = shard.held_of(self.keys[position], check.meter.id);
                        Some(reservation::shown(None, quota, held, now))
                    }
                    _ => shard.state(self.place(position), check.meter.id, now),
                };
            }
            if verdict.refuses()
                && let Some(outcome) = self.outcome_of_all(position, now)
            {
                verdict.outcome = outcome;
            }
        }
    }

    /// What the counter at `position` says to all checks of the request that it has, where there are several: a client
    /// that comes again pays for all of them.
    fn outcome_of_all(&self, position: usize, now: Timestamp) -> Option<Outcome> {
        let is_charged = |other: &usize| self.checks[*other].charging == Charging::OnArrival;
        let same = (0..self.keys.len()).filter(|other| self.keys[*other] == self.keys[position]);
        if same.clone().count() < 2 || !same.clone().all(|other| is_charged(&other)) {
            return None;
        }
        let cost = same.fold(0_u32, |sum, other| sum.saturating_add(self.checks[other].cost));
        let (shard, check) = (self.shard(position), &self.checks[position]);
        let counter = shard.counter(self.place(position), check.meter.id);
        match algorithm::evaluate(counter, shard.quota(check.meter.id)?, cost, now).1 {
            // What others hold was in the way.
            Outcome::Conform => None,
            exceeds @ Outcome::Exceed { .. } => Some(exceeds),
        }
    }

    /// What a refusal brings upon those that refused; whether a counter had to be shared for it.
    fn punish(&mut self, verdicts: &mut [Verdict], limiter: &Limiter, now: Timestamp) -> bool {
        let group_of = |check: &Check| check.terms.map(|terms| terms.group);
        let (mut from, mut overflowed) = (0, false);
        for group in self.checks.chunk_by(|a, b| group_of(a) == group_of(b)) {
            let range = from..from + group.len();
            from = range.end;
            let of_group = &verdicts[range.clone()];
            let is_ban = |check: &Check| check.terms.is_some_and(|terms| terms.role == Role::Ban);
            let banned =
                group.iter().zip(of_group).any(|(check, verdict)| is_ban(check) && verdict.refuses());
            let is_over = |(check, verdict): (&Check, &Verdict)| {
                // What is short is not over: the store may have units.
                verdict.refuses()
                    && !verdict.is_short()
                    && !reservation::may_come_to_nothing(check.charging, verdict.outcome)
            };
            // What a running ban refuses neither extends nor repeats it, nor is it charged.
            if !banned && group[0].terms.is_some() && group.iter().zip(of_group).any(is_over) {
                overflowed |= self.charge_denied(range.clone(), verdicts, limiter, now);
                self.begin_ban(range, verdicts, limiter, now);
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
        let (mut overflowed, mut longest) = (false, Duration::ZERO);
        for position in range.clone() {
            let check = &self.checks[position];
            let charges = check
                .terms
                .is_some_and(|terms| terms.on_denied == OnDenied::Charge && terms.role != Role::Ban);
            let counts =
                check.enforcement == Enforcement::Enforced && check.charging != Charging::WhileServed;
            let Some((quota, _)) = verdicts[position].counter.filter(|_| charges && counts) else { continue };
            let (key, meter, cost) = (self.keys[position], check.meter.id, check.cost);
            let place = self.place(position);
            let shard = self.shard_mut(position);
            let state = shard.state(place, meter, now);
            let cost = cost.min(reservation::room_for_debt(state, &quota, now));
            let next = algorithm::charge(state, &quota, cost.into(), now);
            let kept = shard.keep(place, key, meter, next, now);
            overflowed |= limiter.note(kept);
            let counter = shard.counter(shard.find(key), meter);
            if let Outcome::Exceed { retry_after: Some(wait) } = judging::again(check, (counter, &quota), now)
            {
                longest = longest.max(wait);
            }
            verdicts[position].counter = Some((quota, Some(next)));
        }
        // What was charged makes the wait longer, and may be what another limit of the rule has no room for.
        for verdict in verdicts[range].iter_mut().filter(|verdict| verdict.refuses()) {
            if let Outcome::Exceed { retry_after: Some(wait) } = &mut verdict.outcome {
                *wait = longest.max(*wait);
            }
        }
        overflowed
    }

    /// A ban for which the table has no room does not begin: in a counter that many share it would keep out
    /// everybody.
    fn begin_ban(
        &mut self,
        range: Range<usize>,
        verdicts: &mut [Verdict],
        limiter: &Limiter,
        now: Timestamp,
    ) {
        let is_ban = |check: &Check| check.terms.is_some_and(|terms| terms.role == Role::Ban);
        let Some(position) = range.clone().find(|position| is_ban(&self.checks[*position])) else { return };
        let Some((quota, state)) = verdicts[position].counter else { return };
        let (next, length) = ban::begin(state, &quota, now);
        let (key, meter) = (self.keys[position], self.checks[position].meter.id);
        let place = self.place(position);
        if !self.shard_mut(position).keep_own(place, key, meter, next, now) {
            return;
        }
        limiter.note_ban(meter, key);
        verdicts[position].counter = Some((quota, Some(next)));
        for verdict in verdicts[range].iter_mut().filter(|verdict| verdict.refuses()) {
            let wait = verdict.wait().max(length);
            verdict.outcome = Outcome::Exceed { retry_after: Some(wait) };
        }
    }
}

#[cfg(test)]
mod tests;
