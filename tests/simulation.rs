//! Random rules, clients, clocks, reloads, restarts and crashes, in tables large and small: what may never happen,
//! looked for where nobody has thought of looking.
//!
//! Every seed is a run of its own and always the same one. `WEIR_SEED=17 cargo test --test simulation` repeats one,
//! `WEIR_SEEDS=100000` tries more of them.

#[path = "simulation/bans.rs"]
mod bans;
#[path = "limiter_properties/marks.rs"]
mod marks;
#[path = "simulation/model.rs"]
mod model;
#[path = "simulation/requests.rs"]
mod requests;
#[path = "simulation/rules.rs"]
mod rules;
#[path = "simulation/used.rs"]
mod used;

use std::collections::HashMap;
use std::fmt;

use bans::Banned;
use fastrand::Rng;
use model::Counter;
use rules::Rules;
use weir::limiter::algorithm::conversion::OnChange;
use weir::limiter::reservation::{Charging, Debt, Reservation};
use weir::limiter::saved::{Part, Restorer};
use weir::limiter::timestamp::Timestamp;
use weir::limiter::{Limiter, Meter, Settings};

/// 2026-11-21T08:00:00Z.
const START: u64 = 1_795_248_000_000_000_000;
const SECOND: u64 = 1_000_000_000;
const STEPS: usize = 1500;
const MOST_WAITING: usize = 30;

/// One limit, over all that happens to it, and one key.
type Id = (u64, u32);

/// What one process knows that its next one may have to know.
#[derive(Clone)]
struct Shadow {
    counters: HashMap<Id, Counter>,
    bans: HashMap<Id, Banned>,
    rules: Rules,
}

/// A request whose answer has not come.
#[derive(Debug)]
struct Waiting {
    id: Id,
    reservation: Reservation,
    debt: Debt,
    charging: Charging,
    /// Units in a request, when it came, and when that was.
    shares: u64,
    at: u64,
    /// Whether units are still what they were then.
    gives_back: bool,
}

struct Simulation {
    seed: u64,
    step: usize,
    rng: Rng,
    now: u64,
    clients: u32,
    max_keys: usize,
    limiter: Limiter,
    meters: Vec<Meter>,
    shadow: Shadow,
    waiting: Vec<Waiting>,
    /// The last state that was saved, what was true then, and when.
    saved: (Vec<(Part, Vec<u8>)>, Shadow, u64),
    /// Whether a restart had no room for all: then nobody knows who is banned.
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
        let limiter = Limiter::new(Settings { max_keys, secret: [rng.u64(..), rng.u64(..)] });
        let nothing = Shadow { counters: HashMap::new(), bans: HashMap::new(), rules: Rules::default() };
        let mut simulation = Self {
            seed,
            step: 0,
            now: START + rng.u64(..400 * 86_400) * SECOND,
            clients: [3, 30, 300][rng.usize(..3)],
            rng,
            max_keys,
            limiter,
            meters: Vec::new(),
            shadow: Shadow { counters: HashMap::new(), bans: HashMap::new(), rules },
            waiting: Vec::new(),
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
            self.pass_time();
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

    /// Mostly the time between two requests of somebody who wants more than there is.
    fn pass_time(&mut self) {
        self.now += match self.rng.u32(..100) {
            0..40 => 0,
            40..90 => self.rng.u64(..SECOND),
            90..98 => self.rng.u64(..120 * SECOND),
            98 => self.rng.u64(..7200 * SECOND),
            _ if self.rng.u32(..10) == 0 => self.rng.u64(..40 * 86_400 * SECOND),
            _ => self.rng.u64(..3 * 86_400 * SECOND),
        };
    }

    /// Whether keys have to share counters: then some are refused for what others did.
    fn is_crowded(&self) -> bool {
        self.limiter.crowded_shards().0 > 0
    }

    fn reload(&mut self) {
        let before = self.shadow.rules.clone();
        let mut after = before.clone();
        after.change(&mut self.rng);
        // Who waits for a limit that goes would be settled by the one that takes its place.
        let goes = |waiting: &Waiting| after.limit(waiting.id.0).is_none();
        while let Some(index) = self.waiting.iter().position(goes) {
            self.settle_at(index);
        }
        self.shadow.rules = after;
        self.follow(&before);
        self.install();
    }

    /// Counters go with their limits: kept, converted, or dropped.
    fn follow(&mut self, before: &Rules) {
        let (after, now) = (&self.shadow.rules, self.now);
        let both = |id: u64| Some((before.limit(id)?.1, after.limit(id)?));
        for waiting in &mut self.waiting {
            let Some((from, (rule, to))) = both(waiting.id.0) else { continue };
            let goes_on = rule.on_change == OnChange::Keep && model::gives_back_like(&from.quota, &to.quota);
            waiting.gives_back &= from.quota == to.quota || goes_on;
        }
        self.shadow.bans.retain(|(id, _), banned| {
            let from = both(*id).and_then(|(from, _)| from.ban);
            from.into_iter().for_each(|from| banned.change(from, now));
            from.is_some()
        });
        self.shadow.counters.retain(|(id, _), counter| match both(*id) {
            Some((from, (rule, to))) => {
                counter.convert(&from.quota, &to.quota, rule.on_change, now);
                true
            }
            None => false,
        });
    }

    fn install(&mut self) {
        let now = Timestamp::from_nanos(self.now);
        self.meters = self.limiter.install(&self.shadow.rules.specs(), now);
        self.limiter.retire_others(&self.meters, now);
        // What comes at the very moment of a change is taken to have come before.
        self.now += 1;
    }

    fn save(&mut self) {
        let mut parts = Vec::new();
        let written = self.limiter.save(Timestamp::from_nanos(self.now), |part, bytes| {
            parts.push((part, bytes.to_vec()));
            Ok::<(), ()>(())
        });
        assert!(written.is_ok(), "{self}: {written:?}");
        self.saved = (parts, self.shadow.clone(), self.now);
    }

    /// An orderly end: every answer has come, and then the state is saved.
    fn restart(&mut self) {
        while !self.waiting.is_empty() {
            self.settle();
        }
        self.save();
        self.crash();
    }

    /// The next process has the last state, perhaps another clock, another table and other rules.
    fn crash(&mut self) {
        self.waiting.clear();
        let (parts, shadow, at) = self.saved.clone();
        self.shadow = shadow;
        if self.rng.u32(..3) == 0 {
            self.now = self.now.saturating_sub(self.rng.u64(..2 * 86_400 * SECOND)).max(START);
        }
        if self.rng.u32(..3) == 0 {
            self.max_keys = [16, 40, 400, 20_000][self.rng.usize(..4)];
        }
        let mut restorer = Restorer::new(self.max_keys, Timestamp::from_nanos(self.now));
        for (part, bytes) in &parts {
            let taken = restorer.take(*part, bytes);
            assert_eq!(taken, Ok(()), "{self}: its own state is damaged");
        }
        let restored = restorer.finish();
        assert!(restored.is_ok(), "{self}: {restored:?}");
        let Ok(restored) = restored else { return };
        self.limiter = restored.limiter;
        self.bans_lost |= restored.shared > 0;
        let (before, now) = (self.shadow.rules.clone(), self.now);
        for ((id, _), counter) in &mut self.shadow.counters {
            let Some((_, limit)) = before.limit(*id) else { continue };
            counter.restore(&limit.quota, (at, now));
            if restored.shared > 0 {
                counter.spoil(&limit.quota, now);
            }
        }
        self.shadow.bans.values_mut().for_each(|ban| ban.rebase((at, now)));
        if self.rng.bool() {
            self.shadow.rules.change(&mut self.rng);
            self.follow(&before);
        }
        self.install();
        self.save();
    }
}

#[test]
fn nothing_that_may_never_happen_happens() {
    let number = |name: &str| std::env::var_os(name).and_then(|number| number.to_str()?.parse::<u64>().ok());
    let seeds = match number("WEIR_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("WEIR_SEEDS").unwrap_or(512),
    };
    for seed in seeds {
        Simulation::new(seed).run();
    }
}
