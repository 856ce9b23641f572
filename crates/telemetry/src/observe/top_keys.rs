//! Heaviest keys of each rule over the last one to two minutes, counted by each worker and merged on demand.
//!
//! Each worker has a sketch per rule in memory of its own, behind one lock for which only a reader contends, for the time
//! of one copy. Limits of the rate limit service's documents have sketches as rules have. Time is divided into windows of [`WINDOW`]. Results cover the current window and the one before. The
//! memory for keys is divided among all sketches whenever a configuration is installed.

mod worker_keys;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use self::worker_keys::WorkerKeys;
pub use self::worker_keys::{LockedSketches, WorkerSketch};
use super::key_budget::{KeyBudget, SketchOwner};
use super::key_sketch::{DecisionEffects, SketchCopy};
use super::key_writer::{LogKeys, key_of};
use weir_limiter::key::KeyHash;
use weir_limiter::timestamp::Timestamp;
use weir_policy::rules::rule::Rule;

/// Length of a window.
pub const WINDOW: Duration = Duration::from_secs(60);

/// Maximum number of keys that all rules, workers and windows together track. They take about 400 bytes each with the
/// longest texts, so 26 MB in all, and usually a tenth of that.
pub const MAX_TRACKED_KEYS: usize = 65_536;

/// Windows of a rule that a worker keeps.
const WINDOWS: usize = 2;

/// Sketches of every rule and worker.
#[derive(Debug)]
pub struct TopKeys {
    rules: Mutex<NamedSketches>,
    budget: Arc<KeyBudget>,
    workers: Mutex<Vec<Arc<WorkerKeys>>>,
}

/// Identifies a worker among those that count keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerId(usize);

/// Sketches by the name of the rule, or of the limit of documents.
#[derive(Debug, Default)]
struct NamedSketches {
    by_name: BTreeMap<Box<str>, RuleSketches>,
    /// How many of them are of documents.
    of_documents: usize,
}

#[derive(Debug, Default)]
struct RuleSketches {
    owner: SketchOwner,
    /// What the keys mean. Sketches of another meaning are replaced.
    meaning: Box<str>,
    by_worker: BTreeMap<usize, Arc<WorkerSketch>>,
}

/// The heaviest keys of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleTop {
    pub tracked: usize,
    /// Maximum number by which any tracked key's decisions may be too high.
    pub max_overcount: u64,
    /// Whether counts may be too low and keys may be missing, because all rules have too many keys.
    pub is_incomplete: bool,
    /// The keys with the most decisions, in descending order.
    pub keys: Vec<TopKey>,
}

impl RuleTop {
    /// Returns the number of decisions about these keys.
    pub fn decisions(&self) -> u64 {
        self.keys.iter().fold(0, |sum, key| sum.saturating_add(key.counts.total()))
    }
}

/// One of the heaviest keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopKey {
    pub key: KeyHash,
    /// The key as operators may see it.
    pub text: Arc<str>,
    pub counts: DecisionEffects,
    /// Maximum number by which their sum may be too high.
    pub overcount: u64,
    /// When it entered the present windows.
    pub first_seen: Timestamp,
    /// Time of its last decision.
    pub last_seen: Timestamp,
}

impl WorkerId {
    /// Returns its position among the workers.
    pub const fn index(self) -> usize {
        self.0
    }
}

impl Default for TopKeys {
    fn default() -> Self {
        Self::with_budget(MAX_TRACKED_KEYS)
    }
}

impl TopKeys {
    fn with_budget(max_keys: usize) -> Self {
        Self { rules: Mutex::default(), budget: KeyBudget::new(max_keys), workers: Mutex::default() }
    }

    /// Returns the identity of a new worker.
    pub fn add_worker(&self) -> WorkerId {
        let mut workers = self.workers.lock();
        workers.push(Arc::new(WorkerKeys::new(&self.budget)));
        WorkerId(workers.len() - 1)
    }

    /// Returns the identities of all workers so far.
    pub fn workers(&self) -> impl Iterator<Item = WorkerId> {
        (0..self.workers.lock().len()).map(WorkerId)
    }

    /// Returns the sketch of a limit of documents on a worker; it continues across reloads while `meaning`, which
    /// describes the key, stays the same. Takes a lock, so call it at configuration time.
    pub fn document_sketch(&self, worker: WorkerId, name: &str, meaning: &str) -> Arc<WorkerSketch> {
        self.sketch(worker, name, meaning, SketchOwner::Document)
    }

    fn sketch(&self, worker: WorkerId, name: &str, meaning: &str, owner: SketchOwner) -> Arc<WorkerSketch> {
        let mut rules = self.rules.lock();
        let sketches = rules.get_or_add(name, owner);
        if *sketches.meaning != *meaning {
            *sketches = RuleSketches { owner, meaning: meaning.into(), by_worker: BTreeMap::new() };
        }
        // A `WorkerId` is the position of a worker.
        let create = || Arc::new(self.workers.lock()[worker.0].add(owner));
        let sketch = Arc::clone(sketches.by_worker.entry(worker.0).or_insert_with(create));
        self.divide_budget(&rules);
        sketch
    }

    /// Returns the sketch of a rule on a worker; `None` if the rule has no key. Operators see keys as `log_keys` says. A
    /// sketch whose keys are written differently starts anew.
    pub fn rule_sketch(
        &self,
        worker: WorkerId,
        rule: &Rule,
        log_keys: Option<LogKeys>,
    ) -> Option<Arc<WorkerSketch>> {
        let meaning = format!("{} {log_keys:?}", key_of(rule)?);
        Some(self.sketch(worker, &rule.name, &meaning, SketchOwner::Rule))
    }

    fn divide_budget(&self, sketches: &NamedSketches) {
        let windows = self.workers.lock().len().max(1) * WINDOWS;
        let of_rules = sketches.by_name.len() - sketches.of_documents;
        self.budget.divide(of_rules * windows, sketches.of_documents * windows);
    }

    /// Returns the `max` heaviest keys of a rule; an empty result if it has none.
    pub fn top(&self, rule: &str, max: usize, now: Timestamp) -> RuleTop {
        self.merged(rule, max, now, |windows| windows.into())
    }

    /// As [`Self::top`], of the whole window before the one of `now`.
    pub fn top_of_last_window(&self, rule: &str, max: usize, now: Timestamp) -> RuleTop {
        self.merged(rule, max, now, |[_, previous]| vec![previous])
    }

    fn merged(
        &self,
        rule: &str,
        max: usize,
        now: Timestamp,
        wanted: fn([SketchCopy; WINDOWS]) -> Vec<SketchCopy>,
    ) -> RuleTop {
        let sketches: Vec<_> = match self.rules.lock().by_name.get(rule) {
            Some(rule) => rule.by_worker.values().cloned().collect(),
            None => return RuleTop::default(),
        };
        let copies: Vec<SketchCopy> =
            sketches.iter().filter_map(|sketch| sketch.copy(now)).flat_map(wanted).collect();
        let mut merge = Merge::default();
        copies.iter().for_each(|copy| merge.add_counts(copy));
        copies.iter().for_each(|copy| merge.add_bounds(copy));
        merge.finish(max)
    }

    /// Frees the memory of windows that have passed, and of rules that no configuration has any more.
    pub fn expire(&self, now: Timestamp) {
        let mut rules = self.rules.lock();
        rules.by_name.retain(|_, sketches| {
            sketches.by_worker.values().for_each(|sketch| sketch.expire(now));
            sketches.by_worker.values().any(|sketch| Arc::strong_count(sketch) > 1)
        });
        rules.of_documents =
            rules.by_name.values().filter(|sketches| sketches.owner == SketchOwner::Document).count();
        self.divide_budget(&rules);
    }
}

impl NamedSketches {
    fn get_or_add(&mut self, name: &str, owner: SketchOwner) -> &mut RuleSketches {
        let add = || {
            self.of_documents += usize::from(owner == SketchOwner::Document);
            RuleSketches { owner, ..RuleSketches::default() }
        };
        self.by_name.entry(name.into()).or_insert_with(add)
    }
}

/// Returns the time that results at `now` cover, in a process that started at `start`.
pub fn covered_time(start: Timestamp, now: Timestamp) -> Duration {
    let current = now.since(Timestamp::from_secs(window_number(now).saturating_mul(WINDOW.as_secs())));
    now.since(start).min(WINDOW.saturating_add(current))
}

/// Returns the number of the window of `now`.
pub const fn window_number(now: Timestamp) -> u64 {
    now.as_secs() / WINDOW.as_secs()
}

/// Sum of several sketches.
#[derive(Debug, Default)]
struct Merge {
    keys: HashMap<KeyHash, TopKey>,
    is_incomplete: bool,
}

impl Merge {
    fn add_counts(&mut self, sketch: &SketchCopy) {
        self.is_incomplete |= sketch.is_incomplete;
        for tracked in &sketch.keys {
            let sum = self.keys.entry(tracked.key).or_insert_with(|| TopKey {
                key: tracked.key,
                text: Arc::clone(&tracked.text),
                counts: DecisionEffects::default(),
                overcount: 0,
                first_seen: tracked.first_seen,
                last_seen: tracked.last_seen,
            });
            sum.counts.merge(&tracked.counts);
            sum.overcount = sum.overcount.saturating_add(tracked.overcount);
            sum.first_seen = sum.first_seen.min(tracked.first_seen);
            sum.last_seen = sum.last_seen.max(tracked.last_seen);
        }
    }

    /// Adds what a sketch may have seen of keys that it does not track.
    fn add_bounds(&mut self, sketch: &SketchCopy) {
        let tracked: HashSet<KeyHash> = sketch.keys.iter().map(|tracked| tracked.key).collect();
        for sum in self.keys.values_mut().filter(|sum| !tracked.contains(&sum.key)) {
            sum.overcount = sum.overcount.saturating_add(sketch.bound(sum.key));
        }
    }

    fn finish(self, max: usize) -> RuleTop {
        let is_incomplete = self.is_incomplete;
        let mut keys: Vec<TopKey> = self.keys.into_values().collect();
        let (tracked, max_overcount) = (keys.len(), keys.iter().map(|key| key.overcount).max());
        keys.iter_mut().for_each(|key| key.counts.add_unknown(key.overcount));
        // By the hash as well, so that the order of equals does not change from one result to the next.
        keys.sort_unstable_by(|one, other| {
            (other.counts.total(), one.key).cmp(&(one.counts.total(), other.key))
        });
        keys.truncate(max);
        RuleTop { tracked, max_overcount: max_overcount.unwrap_or_default(), is_incomplete, keys }
    }
}

#[cfg(test)]
mod tests;
