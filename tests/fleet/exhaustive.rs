//! Every schedule of a small fleet, on a grid of time, against the model of the store's script. A schedule decides when
//! queries are sent, what they request and give back, when leases are spent, and when the store loses its data. One test
//! for each assumption of design note 023 breaks it, and the bound with it.

use std::collections::HashSet;

use crate::limit::Limit;
use crate::model::Model;

/// Grid of time, in microseconds.
const STEP: u64 = 100_000;
const START: u64 = 1_795_248_000_000_000;
/// Maximum queries in one step, of whichever instance.
const QUERIES_IN_A_STEP: u32 = 2;
/// Maximum leases that are out at one time.
const MAX_LEASES: usize = 3;
/// How many refills back units are compared with a limit of refills.
const REFILLS: u64 = 4;

/// What breaks an assumption of the proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Breach {
    /// An instance's clock is so slow that it spends leases this many steps after they have expired.
    SlowClock(u64),
    /// The store runs a query that gives units back twice.
    RepeatedCall,
    /// An instance goes on spending units that it has given back.
    SpentAfterReturn,
    /// The store's clock jumps ahead once, by this many steps.
    ClockAhead(u64),
    /// After a loss of data, an instance that has just started queries first.
    NewInstanceFirst,
    /// A query states this many steps less than the validity that its instance uses.
    UnderstatedValidity(u64),
}

/// A small fleet. Instances are interchangeable, so that only their leases are told apart.
#[derive(Clone, Copy, Debug)]
struct Fleet<'a> {
    limits: &'a [Limit],
    /// Validities that queries ask for, in steps.
    valid: &'a [u64],
    /// Units that queries ask for: needed, and wanted in all.
    units: &'a [(u64, u64)],
    steps: u64,
    /// How often the store may lose its data.
    losses: u32,
    breach: Option<Breach>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Lease {
    until: u64,
    granted_at: u64,
    units: u64,
    limit: usize,
}

#[derive(Clone, Debug)]
struct State {
    store: Model,
    leases: Vec<Lease>,
    /// What one instance with the limit would have used: microseconds of backlog, or units of the window.
    used: u64,
    /// When units were spent, and how many, as far back as the limit looks. Empty for buckets and fixed windows.
    spent: Vec<(u64, u64)>,
    queries: u32,
    losses: u32,
    /// Number of the store's generation that instances know; zero if none does.
    known: u32,
    /// How far the store's clock has jumped ahead.
    ahead: u64,
}

/// What a search has found.
#[derive(Debug, Default)]
struct Found {
    states: usize,
    /// Most units beyond the limit, in thousandths.
    excess: u64,
}

impl Fleet<'_> {
    /// The rate and burst of all limits in force together.
    fn bound(&self) -> Limit {
        self.limits[1..].iter().fold(self.limits[0], |bound, limit| bound.combined(*limit))
    }

    /// Visits every state that can be reached, step by step, until there is `enough` excess.
    fn search(&self, enough: u64) -> Found {
        let first = State {
            store: Model::default(),
            leases: Vec::new(),
            used: 0,
            spent: Vec::new(),
            queries: 0,
            losses: 0,
            known: 0,
            ahead: 0,
        };
        let (mut layer, mut found) = (vec![first], Found::default());
        for step in 0..self.steps {
            let now = START + step * STEP;
            let mut seen = HashSet::new();
            let mut next = Vec::new();
            while let Some(state) = layer.pop() {
                if found.excess >= enough {
                    return found;
                }
                if seen.insert(state.fingerprint()) {
                    self.act(&state, now, &mut layer, &mut found);
                    next.push(self.advance(state, now, &mut found));
                }
            }
            found.states += seen.len();
            layer = next;
        }
        found
    }

    /// Adds the states after each possible action at `now`.
    fn act(&self, state: &State, now: u64, after: &mut Vec<State>, found: &mut Found) {
        for index in 0..state.leases.len() {
            let mut spent = state.clone();
            let lease = spent.leases.remove(index);
            self.spend(&mut spent, lease.units, now, found);
            after.push(spent);
        }
        if state.losses < self.losses && state.known > 0 {
            let mut lost = state.clone();
            lost.store.flush();
            lost.losses += 1;
            if self.breach == Some(Breach::NewInstanceFirst) {
                lost.known = 0;
            }
            after.push(lost);
        }
        if let Some(Breach::ClockAhead(steps)) = self.breach
            && state.ahead == 0
        {
            after.push(State { ahead: steps * STEP, ..state.clone() });
        }
        if state.queries < QUERIES_IN_A_STEP && state.leases.len() < MAX_LEASES {
            let returns = (0..state.leases.len()).map(Some).chain([None]);
            for returned in returns {
                for (limit, valid, units) in self.queries() {
                    let is_of_limit = returned.is_none_or(|index| state.leases[index].limit == limit);
                    if is_of_limit {
                        after.push(self.query(state.clone(), now, (limit, valid, units), returned));
                    }
                }
            }
        }
    }

    fn queries(&self) -> impl Iterator<Item = (usize, u64, (u64, u64))> {
        let kinds = move |limit| {
            self.valid
                .iter()
                .flat_map(move |valid| self.units.iter().map(move |units| (limit, *valid, *units)))
        };
        (0..self.limits.len()).flat_map(kinds)
    }

    /// Sends a query that gives a lease back, if any. Its reply arrives at once, which is the most that can be made of it.
    fn query(
        &self,
        mut state: State,
        now: u64,
        (limit, steps, (needed, wanted)): (usize, u64, (u64, u64)),
        returned: Option<usize>,
    ) -> State {
        let keeps = self.breach == Some(Breach::SpentAfterReturn);
        let lease = returned.map(|index| state.leases[index].clone());
        if let Some(index) = returned.filter(|_| !keeps) {
            state.leases.remove(index);
        }
        let stated = match self.breach {
            Some(Breach::UnderstatedValidity(less)) => steps.saturating_sub(less),
            _ => steps,
        };
        let (back, granted_at) = lease.map_or((0, 0), |lease| (lease.units, lease.granted_at));
        let server = now + state.ahead;
        // No demand is reported, so that the store grants as much as it can.
        let rest = format!("{needed} {wanted} 0 0 {back} {granted_at} 0 {STEP}");
        let tail = format!("1 {}", needed.min(1));
        let question = self.limits[limit].question(server, stated * STEP, &rest, &tail);
        let calls = 1 + u32::from(self.breach == Some(Breach::RepeatedCall) && back > 0);
        for _ in 0..calls {
            let known = if state.known == 0 { "-".to_owned() } else { state.known.to_string() };
            let new = (state.losses + 1).to_string();
            let (generation, reply) = state.store.ask("key", [&known, "1", &new], &question, server);
            state.known = generation.parse().unwrap();
            let [granted, valid, ..] = reply;
            if granted > 0 {
                let valid = valid as u64 + (steps - stated) * STEP + self.lateness();
                let (units, until) = (granted as u64, now + valid);
                state.leases.push(Lease { until, granted_at: server, units, limit });
            }
        }
        state.leases.sort_unstable();
        state.queries += 1;
        state
    }

    fn lateness(&self) -> u64 {
        match self.breach {
            Some(Breach::SlowClock(steps)) => steps * STEP,
            _ => 0,
        }
    }

    /// Goes on to the next step. Leases that expire by then are spent at their last moment: nothing would be worse for the
    /// limit.
    fn advance(&self, mut state: State, now: u64, found: &mut Found) -> State {
        let next = now + STEP;
        let (expiring, kept) = state.leases.iter().cloned().partition(|lease| lease.until <= next);
        state.leases = kept;
        let expiring: Vec<Lease> = expiring;
        let bound = self.bound();
        if let Limit::Bucket { .. } = bound {
            // A microsecond before the next step.
            state.used = state.used.saturating_sub(STEP - 1);
        }
        expiring.iter().for_each(|lease| self.spend(&mut state, lease.units, next - 1, found));
        match bound {
            Limit::Bucket { .. } => state.used = state.used.saturating_sub(1),
            Limit::Window { length, .. } if next.is_multiple_of(length) => state.used = 0,
            Limit::Window { .. } => {}
            Limit::Sliding { length, .. } => state.spent.retain(|(at, _)| at + length > next),
            Limit::Refill { every, .. } => state.spent.retain(|(at, _)| at + REFILLS * every > next),
        }
        state.queries = 0;
        state
    }

    fn spend(&self, state: &mut State, units: u64, at: u64, found: &mut Found) {
        let bound = self.bound();
        if let Limit::Sliding { .. } | Limit::Refill { .. } = bound {
            state.spent.push((at, units));
        }
        let excess = match bound {
            Limit::Bucket { interval, burst } => {
                state.used += units * interval;
                state.used.saturating_sub(burst * interval) * 1000 / interval
            }
            Limit::Window { count, .. } => {
                state.used += units;
                state.used.saturating_sub(count) * 1000
            }
            Limit::Sliding { count, .. } => {
                state.spent.iter().map(|(_, units)| units).sum::<u64>().saturating_sub(count) * 1000
            }
            Limit::Refill { count, every, burst } => {
                let mut sum = 0;
                let spans = state.spent.iter().rev().map(|(since, units)| {
                    sum += units;
                    // The first refill may come at once.
                    sum.saturating_sub(burst + count * ((at - since) / every + 1)) * 1000
                });
                spans.max().unwrap_or(0)
            }
        };
        found.excess = found.excess.max(excess);
    }
}

/// The store's data, the leases, the units spent, and the other numbers of a state.
type Fingerprint = (Vec<u64>, Vec<Lease>, Vec<(u64, u64)>, [u64; 5]);

impl State {
    fn fingerprint(&self) -> Fingerprint {
        let numbers = [self.used, self.queries.into(), self.losses.into(), self.known.into(), self.ahead];
        (self.store.fingerprint(), self.leases.clone(), self.spent.clone(), numbers)
    }
}

/// Four units, one more in each step. Leases are valid for half of the time in which they drain.
const BUCKET: Limit = Limit::Bucket { interval: STEP, burst: 4 };
const OF_BUCKET: Fleet<'_> =
    Fleet { limits: &[BUCKET], valid: &[2], units: &[(1, 1), (0, 4)], steps: 8, losses: 0, breach: None };
const OF_WINDOW: Fleet<'_> = Fleet {
    limits: &[Limit::Window { count: 5, length: 4 * STEP }],
    valid: &[1, 3],
    units: &[(1, 1), (2, 2), (0, 5)],
    steps: 13,
    losses: 0,
    breach: None,
};

/// Units that leave the window within the search.
const OF_SLIDING_WINDOW: Fleet<'_> =
    Fleet { limits: &[Limit::Sliding { count: 4, length: 3 * STEP }], valid: &[1, 2], steps: 7, ..OF_WINDOW };
/// Two units at once, three in all.
const OF_REFILLS: Fleet<'_> = Fleet {
    limits: &[Limit::Refill { count: 2, every: 2 * STEP, burst: 3 }],
    valid: &[2],
    units: &[(1, 1), (0, 3)],
    steps: 6,
    ..OF_WINDOW
};

fn assert_kept(fleet: Fleet<'_>, at_least: usize) {
    let found = fleet.search(u64::MAX);
    assert_eq!(found.excess, 0, "{found:?}");
    assert!(found.states >= at_least, "hardly anything was searched: {found:?}");
}

/// Returns the most units that are admitted beyond the limit within a few steps.
fn excess(breach: Breach, fleet: Fleet<'_>) -> f64 {
    Fleet { breach: Some(breach), steps: 5, ..fleet }.search(u64::MAX).excess as f64 / 1000.0
}

/// Whether a schedule of a few steps admits a unit beyond the limit.
fn exceeds(breach: Breach, fleet: Fleet<'_>) -> bool {
    // Rounded down.
    const UNIT: u64 = 990;
    Fleet { breach: Some(breach), steps: 5, ..fleet }.search(UNIT).excess >= UNIT
}

#[test]
fn no_schedule_exceeds_a_bucket() {
    assert_kept(OF_BUCKET, 100_000);
}

#[test]
fn no_schedule_exceeds_a_bucket_whose_leases_differ() {
    assert_kept(Fleet { valid: &[1, 2], steps: 6, ..OF_BUCKET }, 100_000);
}

#[test]
fn no_schedule_exceeds_a_bucket_whose_store_loses_its_data() {
    assert_kept(Fleet { losses: 1, steps: 7, ..OF_BUCKET }, 100_000);
}

#[test]
fn no_schedule_exceeds_the_higher_of_two_limits_in_force() {
    let limits = [BUCKET, Limit::Bucket { interval: 2 * STEP, burst: 3 }];
    assert_kept(Fleet { limits: &limits, steps: 6, ..OF_BUCKET }, 100_000);
}

#[test]
fn no_schedule_exceeds_a_window() {
    assert_kept(OF_WINDOW, 4000);
    assert_kept(Fleet { losses: 1, ..OF_WINDOW }, 10_000);
}

#[test]
fn no_schedule_exceeds_a_sliding_window() {
    assert_kept(OF_SLIDING_WINDOW, 4000);
    assert_kept(Fleet { losses: 1, ..OF_SLIDING_WINDOW }, 10_000);
}

#[test]
fn no_schedule_exceeds_refills() {
    assert_kept(OF_REFILLS, 4000);
    assert_kept(Fleet { losses: 1, ..OF_REFILLS }, 10_000);
}

#[test]
fn leases_spent_after_their_end_exceed_the_limit() {
    assert!(exceeds(Breach::SlowClock(1), OF_BUCKET));
    assert!(exceeds(Breach::SlowClock(1), OF_WINDOW));
    assert!(exceeds(Breach::SlowClock(1), OF_SLIDING_WINDOW));
    assert!(exceeds(Breach::SlowClock(1), OF_REFILLS));
}

#[test]
fn validity_that_the_store_does_not_know_exceeds_the_limit() {
    assert!(exceeds(Breach::UnderstatedValidity(1), OF_BUCKET));
}

#[test]
fn query_that_runs_twice_exceeds_the_limit() {
    assert!(exceeds(Breach::RepeatedCall, OF_BUCKET));
    assert!(exceeds(Breach::RepeatedCall, OF_WINDOW));
    assert!(exceeds(Breach::RepeatedCall, OF_SLIDING_WINDOW));
    assert!(exceeds(Breach::RepeatedCall, OF_REFILLS));
}

#[test]
fn units_spent_after_their_return_exceed_the_limit() {
    assert!(exceeds(Breach::SpentAfterReturn, OF_BUCKET));
    assert!(exceeds(Breach::SpentAfterReturn, OF_WINDOW));
    assert!(exceeds(Breach::SpentAfterReturn, OF_SLIDING_WINDOW));
    assert!(exceeds(Breach::SpentAfterReturn, OF_REFILLS));
}

#[test]
fn clock_of_the_store_that_jumps_ahead_exceeds_the_limit() {
    assert!(exceeds(Breach::ClockAhead(2), OF_BUCKET));
}

/// The one exception of the proof: one more burst, once for each loss.
#[test]
fn loss_of_data_that_a_new_instance_finds_first_admits_one_more_burst() {
    let more = excess(Breach::NewInstanceFirst, Fleet { losses: 1, ..OF_BUCKET });
    assert!((0.99..=4.0).contains(&more), "{more}");
    let more = excess(Breach::NewInstanceFirst, Fleet { losses: 1, ..OF_WINDOW });
    assert_eq!(more, 5.0);
    for fleet in [OF_SLIDING_WINDOW, OF_REFILLS] {
        assert!(exceeds(Breach::NewInstanceFirst, Fleet { losses: 1, ..fleet }));
    }
}
