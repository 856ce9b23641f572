//! The keys with the most decisions, in bounded memory.
//!
//! Filtered space-saving: Homem and Carvalho, "Finding top-k elements in data streams", Information Sciences 180 (2010).
//! Space-saving (Metwally, Agrawal and El Abbadi, ICDT 2005) replaces the least of the tracked keys at every request of
//! another key. Here such a request first counts in a filter cell that keys share, and enters only once its cell exceeds
//! the least tracked key. So a flood of keys that occur once costs an addition each, builds no text, and displaces
//! nothing.
//!
//! With fewer keys than the capacity, counts are exact. Otherwise a count may be too high, by at most the value of the
//! key's cell when it entered. It is too low only if the sketch is incomplete: the budget permitted not even one key.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::key_budget::{KeyBudget, KeyReservation, SketchOwner};
use weir_limiter::key::KeyHash;
use weir_limiter::timestamp::Timestamp;
use weir_policy::rules::outcome::DecisionOutcome;

/// Maximum number of keys that one sketch tracks.
pub const MAX_KEYS_PER_SKETCH: usize = 256;

/// Filter cells per tracked key.
///
/// With many keys of equal frequency, the share of decisions that replace a tracked key is the inverse of this.
const CELLS_PER_KEY: usize = 16;

/// Decisions of one key by their effect on the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecisionEffects {
    /// Admitted, marked and delayed requests included.
    pub admitted: u64,
    /// Rejected by a limit, a ban, or because the key is incomplete.
    pub rejected: u64,
    /// Over the limit of a rule in shadow mode.
    pub shadow: u64,
    /// Delayed; also among the admitted.
    pub delayed: u64,
}

#[derive(Clone, Debug)]
pub struct TrackedKey {
    pub key: KeyHash,
    /// The key as operators may see it.
    pub text: Arc<str>,
    /// Decisions since the key is tracked.
    pub counts: DecisionEffects,
    /// Maximum number of decisions before that. The estimate of all decisions includes it.
    pub overcount: u64,
    /// When the key entered.
    pub first_seen: Timestamp,
    /// Time of the last decision.
    pub last_seen: Timestamp,
}

/// The keys with the most decisions.
#[derive(Debug)]
pub struct KeySketch {
    keys: Vec<TrackedKey>,
    /// Estimate of each key, parallel to `keys`, so that the least one is found quickly.
    estimates: Vec<u64>,
    positions: HashMap<KeyHash, usize, RandomState>,
    /// Upper bounds for keys that are not tracked; empty until a key finds no room.
    cells: Box<[u32]>,
    /// A value that no estimate is below. It is renewed when no estimate equals it any more.
    floor: u64,
    /// Position up to which all estimates are above the floor.
    hand: usize,
    capacity: usize,
    /// The tracked keys' part of the budget.
    reservation: KeyReservation,
    is_incomplete: bool,
}

/// Copy of a sketch at one moment.
#[derive(Debug)]
pub struct SketchCopy {
    /// The tracked keys, in no order.
    pub keys: Vec<TrackedKey>,
    /// Whether decisions were not counted, because the budget permitted no key. Counts may then be too low.
    pub is_incomplete: bool,
    cells: Box<[u32]>,
}

impl DecisionEffects {
    pub fn record(&mut self, outcome: DecisionOutcome) {
        let count = match outcome {
            DecisionOutcome::Allowed
            | DecisionOutcome::Soft
            | DecisionOutcome::Exempt
            | DecisionOutcome::Diverted => &mut self.admitted,
            DecisionOutcome::Delayed => {
                self.delayed = self.delayed.saturating_add(1);
                &mut self.admitted
            }
            DecisionOutcome::Limited | DecisionOutcome::Banned | DecisionOutcome::Denied => {
                &mut self.rejected
            }
            DecisionOutcome::Shadow => &mut self.shadow,
        };
        *count = count.saturating_add(1);
    }

    pub const fn total(&self) -> u64 {
        self.admitted.saturating_add(self.rejected).saturating_add(self.shadow)
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.admitted = self.admitted.saturating_add(other.admitted);
        self.rejected = self.rejected.saturating_add(other.rejected);
        self.shadow = self.shadow.saturating_add(other.shadow);
        self.delayed = self.delayed.saturating_add(other.delayed);
    }

    /// Adds decisions of unknown outcome to the outcome that the key has most of.
    pub fn add_unknown(&mut self, decisions: u64) {
        let most = self.admitted.max(self.rejected).max(self.shadow);
        let count = match most {
            most if most == self.rejected => &mut self.rejected,
            most if most == self.admitted => &mut self.admitted,
            _ => &mut self.shadow,
        };
        *count = count.saturating_add(decisions);
    }
}

impl KeySketch {
    /// Returns an empty sketch of at most `capacity` keys. It takes memory as keys arrive, as far as `budget` permits an
    /// owner of this kind.
    pub fn new(capacity: usize, budget: &Arc<KeyBudget>, owner: SketchOwner) -> Self {
        Self {
            keys: Vec::new(),
            estimates: Vec::new(),
            positions: HashMap::default(),
            cells: Box::default(),
            floor: 0,
            hand: 0,
            capacity,
            reservation: KeyReservation::new(budget, owner),
            is_incomplete: false,
        }
    }

    /// Counts one decision. `text` is called only if the key becomes a tracked one.
    #[inline]
    pub fn record(
        &mut self,
        key: KeyHash,
        outcome: DecisionOutcome,
        now: Timestamp,
        text: impl FnOnce() -> Arc<str>,
    ) {
        let Some(&position) = self.positions.get(&key) else {
            return self.record_untracked(key, outcome, now, text);
        };
        self.count(position, outcome, now);
    }

    /// Returns a copy of the present state.
    pub fn copy(&self) -> SketchCopy {
        SketchCopy { keys: self.keys.clone(), is_incomplete: self.is_incomplete, cells: self.cells.clone() }
    }

    fn count(&mut self, position: usize, outcome: DecisionOutcome, now: Timestamp) {
        let tracked = &mut self.keys[position];
        tracked.counts.record(outcome);
        tracked.last_seen = now;
        self.estimates[position] = self.estimates[position].saturating_add(1);
    }

    #[inline(never)]
    fn record_untracked(
        &mut self,
        key: KeyHash,
        outcome: DecisionOutcome,
        now: Timestamp,
        text: impl FnOnce() -> Arc<str>,
    ) {
        let bound = bound_of(&self.cells, key);
        let enter = |text: Arc<str>| TrackedKey {
            key,
            text,
            counts: DecisionEffects::default(),
            overcount: bound,
            first_seen: now,
            last_seen: now,
        };
        if self.keys.len() < self.capacity && self.reservation.add_key() {
            self.positions.insert(key, self.keys.len());
            self.keys.push(enter(text()));
            self.estimates.push(bound);
            (self.floor, self.hand) = (0, 0);
            return self.count(self.keys.len() - 1, outcome, now);
        }
        if self.keys.is_empty() {
            // With no tracked key, untracked keys have no upper bound.
            self.is_incomplete = true;
            return;
        }
        if self.cells.is_empty() {
            self.cells = vec![0; (self.keys.len() * CELLS_PER_KEY).next_power_of_two()].into();
        }
        let Some(least) = self.least_up_to(bound) else {
            return raise(&mut self.cells, key, bound.saturating_add(1));
        };
        let evicted = std::mem::replace(&mut self.keys[least], enter(text()));
        self.positions.remove(&evicted.key);
        raise(&mut self.cells, evicted.key, self.estimates[least]);
        self.positions.insert(key, least);
        self.estimates[least] = bound;
        self.count(least, outcome, now);
    }

    /// Returns the position of the least estimate unless it exceeds `bound`. Takes constant time on average: estimates
    /// only grow, so those that the hand has passed stay above the floor.
    fn least_up_to(&mut self, bound: u64) -> Option<usize> {
        while bound >= self.floor {
            let rest = self.estimates.get(self.hand..).unwrap_or_default();
            if let Some(ahead) = rest.iter().position(|estimate| *estimate == self.floor) {
                self.hand += ahead;
                return Some(self.hand);
            }
            self.floor = self.estimates.iter().copied().min()?;
            self.hand = 0;
        }
        None
    }
}

impl SketchCopy {
    /// Returns the most that a key may have been seen which is not tracked.
    pub fn bound(&self, key: KeyHash) -> u64 {
        bound_of(&self.cells, key)
    }
}

fn bound_of(cells: &[u32], key: KeyHash) -> u64 {
    cell_of(cells, key).map_or(0, |cell| cells[cell].into())
}

/// Raises the cell of a key to at least `bound`.
fn raise(cells: &mut [u32], key: KeyHash, bound: u64) {
    if let Some(cell) = cell_of(cells, key) {
        // More than 2³² decisions of one rule in a window are out of reach.
        cells[cell] = cells[cell].max(u32::try_from(bound).unwrap_or(u32::MAX));
    }
}

/// Returns the position of a key's cell; their number is a power of two, or 0.
fn cell_of(cells: &[u32], key: KeyHash) -> Option<usize> {
    // The first word is a keyed hash, whose bits are independent of what clients choose.
    cells.len().checked_sub(1).map(|mask| key.words()[0] as usize & mask)
}

#[cfg(test)]
mod tests;
