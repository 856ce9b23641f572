//! Simulation of the limiter with random rules, clients, clocks, table sizes, reloads, restarts and crashes.
//! It searches for violations of the limiter's guarantees in combinations that no other test covers.
//!
//! Every seed determines one run. `WEIR_SEED=17 cargo test -p weir-limiter --test simulation` repeats one, `WEIR_SEEDS=100000` runs
//! more of them.

#[path = "simulation/bans.rs"]
mod bans;
#[path = "properties/marks.rs"]
mod marks;
#[path = "simulation/model.rs"]
mod model;
#[path = "simulation/requests.rs"]
mod requests;
#[path = "simulation/rules.rs"]
mod rules;
#[path = "simulation/usage.rs"]
mod usage;

use std::collections::HashMap;
use std::fmt;

use bans::BanModel;
use fastrand::Rng;
use model::CounterModel;
use rules::Rules;
use weir_limiter::algorithm::conversion::OnChange;
use weir_limiter::reservation::{ChargeTiming, DebtLimit, Reservation};
use weir_limiter::saved::{Restorer, SavedPart};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{LimitHandle, Limiter, LimiterSettings};

/// 2026-11-21T08:00:00Z.
const START: u64 = 1_795_248_000_000_000_000;
const SECOND: u64 = 1_000_000_000;
const STEPS: usize = 1500;
const MAX_PENDING: usize = 30;

/// Identity of a limit, which it keeps across changes, and a key.
type Id = (u64, u32);

/// Expected state of a process, which the next one restores from the saved state.
#[derive(Clone)]
struct ExpectedState {
    counters: HashMap<Id, CounterModel>,
    bans: HashMap<Id, BanModel>,
    rules: Rules,
}

/// A request that has not completed.
#[derive(Debug)]
struct PendingRequest {
    id: Id,
    reservation: Reservation,
    debt_limit: DebtLimit,
    charge_timing: ChargeTiming,
    /// Units per request at the time of admission.
    units_per_request: u64,
    at: u64,
    /// Whether a refund is still possible: the units have not changed since then.
    is_refundable: bool,
}

struct Simulation {
    seed: u64,
    step: usize,
    rng: Rng,
    now: u64,
    clients: u32,
    max_keys: usize,
    limiter: Limiter,
    handles: Vec<LimitHandle>,
    expected: ExpectedState,
    pending: Vec<PendingRequest>,
    /// The most recent saved state, the expected state at that time, and the time.
    saved: (Vec<(SavedPart, Vec<u8>)>, ExpectedState, u64),
    /// Whether a restored table had no room for all counters. From then on the bans are unknown.
    bans_lost: bool,
}

impl fmt::Display for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WEIR_SEED={}, step {}", self.seed, self.step)
    }
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let max_keys = [16, 40, 400, 20_000][rng.usize(..4)];
        let rules = Rules::random(&mut rng);
        let limiter = Limiter::new(LimiterSettings { max_keys, secret: [rng.u64(..), rng.u64(..)] });
        let nothing =
            ExpectedState { counters: HashMap::new(), bans: HashMap::new(), rules: Rules::default() };
        let mut simulation = Self {
            seed,
            step: 0,
            now: START + rng.u64(..400 * 86_400) * SECOND,
            clients: [3, 30, 300][rng.usize(..3)],
            rng,
            max_keys,
            limiter,
            handles: Vec::new(),
            expected: ExpectedState { counters: HashMap::new(), bans: HashMap::new(), rules },
            pending: Vec::new(),
            saved: (Vec::new(), nothing, 0),
            bans_lost: false,
        };
        simulation.install();
        simulation.save();
        simulation
    }

    fn run(&mut self) {
        for step in 0..STEPS {
            self.step = step;
            self.advance_time();
            match self.rng.u32(..1000) {
                0..900 => self.request(),
                900..970 => self.settle(),
                970..985 => self.reload(),
                985..993 => self.save(),
                993..997 => self.restart(),
                _ => self.crash(),
            }
        }
    }

    /// Advances the time, mostly by the gap between two requests of a client that exceeds its limits.
    fn advance_time(&mut self) {
        self.now += match self.rng.u32(..100) {
            0..40 => 0,
            40..90 => self.rng.u64(..SECOND),
            90..98 => self.rng.u64(..120 * SECOND),
            98 => self.rng.u64(..7200 * SECOND),
            _ if self.rng.u32(..10) == 0 => self.rng.u64(..40 * 86_400 * SECOND),
            _ => self.rng.u64(..3 * 86_400 * SECOND),
        };
    }

    /// Whether keys share counters, so that requests may be rejected because of other clients.
    fn is_overflowing(&self) -> bool {
        self.limiter.overflowing_shards().0 > 0
    }

    fn reload(&mut self) {
        let before = self.expected.rules.clone();
        let mut after = before.clone();
        after.change(&mut self.rng);
        // Waiting requests of a removed limit would be settled on the limit that replaces it.
        let goes = |waiting: &PendingRequest| after.limit(waiting.id.0).is_none();
        while let Some(index) = self.pending.iter().position(goes) {
            self.settle_at(index);
        }
        self.expected.rules = after;
        self.apply_rule_change(&before);
        self.install();
    }

    /// Applies the change to the expected counters and bans: kept, converted or dropped with their limits.
    fn apply_rule_change(&mut self, before: &Rules) {
        let (after, now) = (&self.expected.rules, self.now);
        let both = |id: u64| Some((before.limit(id)?.1, after.limit(id)?));
        for waiting in &mut self.pending {
            let Some((from, (rule, to))) = both(waiting.id.0) else { continue };
            let goes_on =
                rule.on_change == OnChange::Keep && model::has_compatible_refunds(&from.quota, &to.quota);
            waiting.is_refundable &= from.quota == to.quota || goes_on;
        }
        self.expected.bans.retain(|(id, _), banned| {
            let from = both(*id).and_then(|(from, _)| from.ban);
            from.into_iter().for_each(|from| banned.prepare_reload(from, now));
            from.is_some()
        });
        self.expected.counters.retain(|(id, _), counter| match both(*id) {
            Some((from, (rule, to))) => {
                counter.convert(&from.quota, &to.quota, rule.on_change, now);
                true
            }
            None => false,
        });
    }

    fn install(&mut self) {
        let now = Timestamp::from_nanos(self.now);
        self.handles = self.limiter.install(&self.expected.rules.specs(), now);
        self.limiter.retire_others(&self.handles, now);
        // A request at the very moment of a change counts as having arrived before it.
        self.now += 1;
    }

    fn save(&mut self) {
        let mut parts = Vec::new();
        let written = self.limiter.save(Timestamp::from_nanos(self.now), |part, bytes| {
            parts.push((part, bytes.to_vec()));
            Ok::<(), ()>(())
        });
        assert!(written.is_ok(), "{self}: {written:?}");
        self.saved = (parts, self.expected.clone(), self.now);
    }

    /// Orderly restart: all requests complete, then the state is saved and restored.
    fn restart(&mut self) {
        while !self.pending.is_empty() {
            self.settle();
        }
        self.save();
        self.crash();
    }

    /// Starts a process from the most recent saved state, possibly with another clock, table size and other rules.
    fn crash(&mut self) {
        self.pending.clear();
        let (parts, shadow, at) = self.saved.clone();
        self.expected = shadow;
        if self.rng.u32(..3) == 0 {
            self.now = self.now.saturating_sub(self.rng.u64(..2 * 86_400 * SECOND)).max(START);
        }
        if self.rng.u32(..3) == 0 {
            self.max_keys = [16, 40, 400, 20_000][self.rng.usize(..4)];
        }
        let mut restorer = Restorer::new(self.max_keys, Timestamp::from_nanos(self.now));
        for (part, bytes) in &parts {
            let taken = restorer.read_part(*part, bytes);
            assert_eq!(taken, Ok(()), "{self}: the saved state is damaged");
        }
        let restored = restorer.finish();
        assert!(restored.is_ok(), "{self}: {restored:?}");
        let Ok(restored) = restored else { return };
        self.limiter = restored.limiter;
        self.bans_lost |= restored.overflowed > 0;
        let (before, now) = (self.expected.rules.clone(), self.now);
        for ((id, _), counter) in &mut self.expected.counters {
            let Some((_, limit)) = before.limit(*id) else { continue };
            counter.restore(&limit.quota, (at, now));
            if restored.overflowed > 0 {
                counter.mark_shared(&limit.quota, now);
            }
        }
        self.expected.bans.values_mut().for_each(|ban| ban.rebase((at, now)));
        if self.rng.bool() {
            self.expected.rules.change(&mut self.rng);
            self.apply_rule_change(&before);
        }
        self.install();
        self.save();
    }
}

#[test]
fn limiter_keeps_its_guarantees_in_random_runs() {
    let number = |name: &str| std::env::var_os(name).and_then(|number| number.to_str()?.parse::<u64>().ok());
    let seeds = match number("WEIR_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("WEIR_SEEDS").unwrap_or(128),
    };
    for seed in seeds {
        Simulation::new(seed).run();
    }
}
