//! Decides and charges: the engine behind every entrance.
//!
//! All checks of a request are evaluated under their shards' locks and committed all or none, so a refused
//! request charges nobody and concurrent requests cannot both take the last unit. Pure: no clock, no I/O;
//! `now` comes with the call. What it is not: it knows nothing of rules, HTTP, or why a limit exists.

pub mod algorithm;
pub mod claims;
pub mod decision;
pub mod elastic;
pub mod key;
pub mod percent;
pub mod quota;
pub mod reservation;
pub mod saved;
pub mod tally;
pub mod terms;
pub mod timestamp;
pub mod zone;

mod judging;
mod meters;
mod repeats;
mod store;
mod together;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use self::algorithm::{State, claim};
use self::claims::SharedBans;
use self::decision::{Decision, Enforcement, Verdicts};
use self::judging::Before;
use self::key::{Fingerprint, KeyHash, KeyHasher};
use self::meters::Meters;
pub use self::meters::{Lineage, Meter, MeterSpec};
use self::reservation::Charging;
pub use self::store::MeterId;
use self::store::{Kept, Place, Shard, Store};
use self::terms::Terms;
use self::timestamp::Timestamp;
pub use self::together::Ruling;

/// How large the table is and under which secret its keys are hashed.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Counters the table has room for.
    pub max_keys: usize,
    /// The hasher's secret.
    pub secret: [u64; 2],
}

/// One limit that one request must pass.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Which limit.
    pub meter: Meter,
    /// Which counter of it.
    pub key: KeyHash,
    /// Units the request costs.
    pub cost: u32,
    /// Whether the limit refuses.
    pub enforcement: Enforcement,
    /// When it is charged.
    pub charging: Charging,
    /// What else it asks; most ask nothing else.
    pub terms: Option<Terms>,
}

/// The counters of this process and the quotas they are held against.
#[derive(Debug)]
pub struct Limiter {
    store: Store,
    hasher: KeyHasher,
    fleet: Mutex<Fleet>,
    named: Mutex<Arc<BTreeMap<Box<str>, NonZeroU32>>>,
    meters: Mutex<Meters>,
    overflows: AtomicU64,
    bans: Mutex<SharedBans>,
}

/// What instances that share limits have in common.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    /// The hasher for keys of shared limits, which are counted under the same name on all instances.
    pub hasher: KeyHasher,
    /// How many instances there are, as far as is known.
    pub instances: NonZeroU32,
}

/// By what numbers of instances limits are divided.
#[derive(Clone, Debug)]
pub struct Divisors {
    /// The size of the fleet.
    pub members: NonZeroU32,
    /// How many addresses names have, as far as is known.
    pub named: Arc<BTreeMap<Box<str>, NonZeroU32>>,
}

impl Divisors {
    /// Those of an instance that knows of no other.
    pub fn alone() -> Self {
        Self { members: NonZeroU32::MIN, named: Arc::default() }
    }
}

impl Limiter {
    /// An empty limiter.
    pub fn new(settings: Settings) -> Self {
        Self {
            store: Store::new(settings.max_keys),
            hasher: KeyHasher::new(settings.secret),
            fleet: Mutex::new(Fleet { hasher: KeyHasher::new(settings.secret), instances: NonZeroU32::MIN }),
            named: Mutex::default(),
            meters: Mutex::default(),
            overflows: AtomicU64::new(0),
            bans: Mutex::default(),
        }
    }

    /// The hasher for keys of this limiter.
    pub fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    /// What this instance has in common with others. Limits that are installed from now on go by it.
    pub fn fleet(&self) -> Fleet {
        *self.fleet.lock()
    }

    /// Joins a fleet, or learns its size.
    pub fn join(&self, fleet: Fleet) {
        *self.fleet.lock() = fleet;
    }

    /// By what limits are divided that are installed from now on.
    pub fn divisors(&self) -> Divisors {
        Divisors { members: self.fleet().instances, named: Arc::clone(&self.named.lock()) }
    }

    /// Learns how many addresses names have; whether that is news.
    pub fn learn_named(&self, named: BTreeMap<Box<str>, NonZeroU32>) -> bool {
        let mut known = self.named.lock();
        let is_new = **known != named;
        *known = Arc::new(named);
        is_new
    }

    /// Makes room for a generation's limits and answers their meters, in the order of `specs`.
    ///
    /// A limit whose lineage is known keeps its counters; where its quota changed, units used stay used.
    /// Limits not among `specs` go on until [`Self::retire_others`], so that the generation still being
    /// served is never without its limits.
    pub fn install(&self, specs: &[MeterSpec], now: Timestamp) -> Vec<Meter> {
        let mut meters = self.meters.lock();
        let installed = meters.install(specs, (self.hasher, self.fleet().hasher), now);
        self.store.adopt(&meters.quotas(), now);
        installed
    }

    /// Forgets every limit that is not among `meters`, with its counters.
    pub fn retire_others(&self, meters: &[Meter], now: Timestamp) {
        let mut known = self.meters.lock();
        if known.retire_others(meters) {
            self.store.adopt(&known.quotas(), now);
        }
    }

    /// Decides one request: every check, all or nothing.
    ///
    /// If no enforced limit refuses, every limit that conforms is charged; otherwise none is.
    pub fn check(&self, checks: &[Check], now: Timestamp) -> Decision {
        match checks {
            [] => Decision::default(),
            [check] if check.terms.is_none() => self.check_one(check, now),
            checks => together::check(self, checks, now),
        }
    }

    /// Charges a settled cost, or gives back a negative one; never refuses.
    pub fn charge(&self, meter: Meter, key: KeyHash, amount: i64, now: Timestamp) {
        let key = key.salted(meter.salt);
        let mut shard = self.store.lock(self.store.shard_of(key));
        let Some(quota) = shard.quota(meter.id).copied() else { return };
        let place = shard.find(key);
        let state = algorithm::charge(shard.state(place, meter.id, now), &quota, amount, now);
        let kept = shard.keep(place, key, meter.id, state, now);
        self.note(kept);
    }

    /// What a counter says, without touching it; `None` if the meter is gone.
    pub fn usage(&self, meter: Meter, key: KeyHash, now: Timestamp) -> Option<algorithm::Usage> {
        let key = key.salted(meter.salt);
        let shard = self.store.lock(self.store.shard_of(key));
        let quota = shard.quota(meter.id)?;
        let place = shard.find(key);
        Some(match quota.is_claimed() {
            true => {
                let state = shard.state(place, meter.id, now);
                claim::usage_of_all(state, quota, shard.beside(key, now), now)
            }
            false => algorithm::usage(shard.counter(place, meter.id), quota, now),
        })
    }

    /// Counters in use per meter id, for the metrics page; walks the table, one shard locked at a time.
    pub fn keys_per_meter(&self, now: Timestamp) -> std::collections::HashMap<MeterId, u64> {
        let mut counts = std::collections::HashMap::new();
        self.store.for_each_used(now, |meter| *counts.entry(meter).or_insert(0) += 1);
        counts
    }

    /// Entries in the table, in use or not yet reclaimed.
    pub fn live_keys(&self) -> usize {
        self.store.live()
    }

    /// The share of the table in which new keys share counters, in shards: so many of so many.
    pub fn crowded_shards(&self) -> (usize, usize) {
        (self.store.crowded(), self.store.shards())
    }

    /// Charges that went to an overflow counter because the table was full, since the start.
    pub fn overflows(&self) -> u64 {
        self.overflows.load(Ordering::Relaxed)
    }

    fn check_one(&self, check: &Check, now: Timestamp) -> Decision {
        let key = check.key.salted(check.meter.salt);
        let mut shard = self.store.lock(self.store.shard_of(key));
        match judging::plain(&mut shard, check, key, now) {
            Some(verdict) => Decision { verdicts: Verdicts::One(verdict), overflowed: false },
            None => self.check_any(shard, check, now),
        }
    }

    /// The same for a check of every kind. Out of line and with a key of its own, for what it needs to keep at hand would
    /// slow down the rest.
    #[inline(never)]
    fn check_any(&self, mut shard: MutexGuard<'_, Shard>, check: &Check, now: Timestamp) -> Decision {
        let key = check.key.salted(check.meter.salt);
        let place = shard.find(key);
        let (verdict, next) =
            judging::evaluate(&shard, check, Before::of(&shard, check, (key, place), now), now);
        let kept = next.map(|state| commit(&mut shard, check, (key, place), state, now));
        drop(shard);
        Decision { verdicts: Verdicts::One(verdict), overflowed: kept.is_some_and(|kept| self.note(kept)) }
    }

    fn note(&self, kept: Kept) -> bool {
        if kept == Kept::Shared {
            self.overflows.fetch_add(1, Ordering::Relaxed);
        }
        kept == Kept::Shared
    }
}

/// Charges a request that passes, or holds its cost until the answer is known.
fn commit(
    shard: &mut Shard,
    check: &Check,
    (key, place): (Fingerprint, Place),
    state: State,
    now: Timestamp,
) -> Kept {
    match check.charging {
        Charging::OnArrival => shard.keep(place, key, check.meter.id, state, now),
        Charging::OnAnswer | Charging::WhileServed => {
            shard.hold(key, check.meter.id, check.cost);
            Kept::Own
        }
    }
}

#[cfg(test)]
mod tests;
