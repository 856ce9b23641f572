//! State of an adaptive concurrency limit, for each key of a rule.
//!
//! Requests read the limit and count themselves with a few atomic operations on a slot. A control task computes the limits
//! ten times a second, off the request path. Slots are found by key in sets of sixteen, without a lock. A key that finds
//! its set full uses a slot that all such keys share; it also serves a rule without a key.

mod learned;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

pub use self::learned::LearnedLimit;
use super::AdaptiveRange;
use super::controller::{ControllerState, LimitController, Reading, Tolerance};
use crate::control::samples::{Samples, logarithm};
use crate::control::{LastTick, TICK};
use crate::key::KeyHash;
use crate::timestamp::Timestamp;

/// Number of slots in a set: two cache lines of tags.
const WAYS: usize = 16;
/// Number of sets.
const SETS: usize = 64;
/// Maximum number of keys of a rule with a limit of their own.
pub const MAX_KEYS: usize = SETS * WAYS;
/// Time without requests after which the state of a key is dropped.
const MAX_IDLE: Duration = Duration::from_secs(60);
/// Bits of the sum of logarithms; the bits above hold the count.
const SUM_BITS: u32 = 40;

/// The adaptive limits of one rule.
#[derive(Debug)]
pub struct AdaptiveLimits {
    tolerance: Tolerance,
    /// Tags of the slots, zero for a free slot; empty for a rule without a key.
    sets: Box<[TagSet]>,
    /// Slots in the order of the tags, and the shared slot.
    slots: Box<[KeySlot]>,
    control: Mutex<Control>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct TagSet([AtomicU64; WAYS]);

/// What requests of one key share.
#[derive(Debug, Default)]
#[repr(align(64))]
struct KeySlot {
    /// The limit in force; zero until the first one is computed.
    limit: AtomicU32,
    in_flight: AtomicU32,
    /// Maximum of `in_flight` since the last tick.
    peak: AtomicU32,
    /// Failures since the last tick.
    failed: AtomicU32,
    /// Number of responses since the last tick, and sum of the logarithms of their latencies, in one word.
    logarithms: AtomicU64,
    /// Sum of the squares of the logarithms.
    squares: AtomicU64,
}

#[derive(Debug, Default)]
struct Control {
    last_tick: LastTick,
    controllers: HashMap<SlotIndex, KeyController>,
}

#[derive(Debug)]
struct KeyController {
    controller: LimitController,
    idle: Duration,
}

/// Position of a slot, valid as long as a request of the slot is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotIndex(u16);

/// What the end of a request shows about the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamSignal {
    /// Its response began after this time.
    Latency(Duration),
    /// It lacks capacity: it did not respond, or responded that it is overloaded.
    Overload,
}

/// State of the limits of a rule, for operators.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AdaptiveState {
    /// Number of keys with a limit of their own.
    pub keys: usize,
    /// State of the key that may have the fewest requests in flight.
    pub lowest: ControllerState,
}

impl AdaptiveLimits {
    /// Creates the state of a rule; `has_key` is whether its requests have different keys.
    pub fn new(has_key: bool) -> Self {
        Self::with_tolerance(has_key, Tolerance::QUEUE_UPSTREAM)
    }

    /// As [`Self::new`], for limits that may exceed the concurrency of the upstream by `tolerance`.
    pub(crate) fn with_tolerance(has_key: bool, tolerance: Tolerance) -> Self {
        let sets: Box<[TagSet]> = (0..if has_key { SETS } else { 0 }).map(|_| TagSet::default()).collect();
        let slots = (0..=sets.len() * WAYS).map(|_| KeySlot::default()).collect();
        Self { tolerance, sets, slots, control: Mutex::default() }
    }

    /// Returns the limit in force for `key`, within `range`.
    pub fn limit(&self, key: KeyHash, range: AdaptiveRange) -> u32 {
        let slot = match self.find(key) {
            Ok(slot) => slot,
            Err(Vacancy::Free) => return range.min().get(),
            Err(Vacancy::Full) => self.shared_slot(),
        };
        let limit = self.slot(slot).map_or(0, |slot| slot.limit.load(Ordering::Relaxed));
        limit.clamp(range.min().get(), range.max().get())
    }

    /// Counts a request of `key` as in flight, until [`Self::release`] is called with the result.
    pub fn admit(&self, key: KeyHash) -> SlotIndex {
        let index = self.find_or_claim(key);
        if let Some(slot) = self.slot(index) {
            let in_flight = slot.in_flight.fetch_add(1, Ordering::Relaxed).saturating_add(1);
            if in_flight > slot.peak.load(Ordering::Relaxed) {
                slot.peak.fetch_max(in_flight, Ordering::Relaxed);
            }
        }
        index
    }

    /// Ends a request that was counted as in flight. Must be called exactly once for each.
    pub fn release(&self, index: SlotIndex) {
        if let Some(slot) = self.slot(index) {
            slot.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Records what a request that is in flight has shown.
    pub fn record(&self, index: SlotIndex, signal: UpstreamSignal) {
        let Some(slot) = self.slot(index) else { return };
        match signal {
            UpstreamSignal::Latency(latency) => {
                let logarithm = logarithm(latency);
                slot.logarithms.fetch_add(1 << SUM_BITS | logarithm, Ordering::Relaxed);
                slot.squares.fetch_add(logarithm * logarithm, Ordering::Relaxed);
            }
            UpstreamSignal::Overload => {
                slot.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Computes all limits from what was recorded since the last call.
    pub fn adapt(&self, range: AdaptiveRange, now: Timestamp) {
        let mut control = self.control.lock();
        let Control { last_tick, controllers } = &mut *control;
        let elapsed = last_tick.elapsed(now, TICK);
        for (index, slot) in (0_u16..).map(SlotIndex).zip(&self.slots) {
            let reading = slot.take_reading();
            if reading.is_empty() && !controllers.contains_key(&index) {
                continue;
            }
            let known = controllers.entry(index).or_insert_with(|| KeyController {
                controller: LimitController::new(range, self.tolerance, self.tag(index).map_or(0, load)),
                idle: Duration::ZERO,
            });
            known.idle = if reading.is_empty() { known.idle.saturating_add(elapsed) } else { Duration::ZERO };
            slot.limit.store(known.controller.adapt(&reading, range, elapsed), Ordering::Relaxed);
            if known.idle >= MAX_IDLE
                && let Some(tag) = self.tag(index)
            {
                controllers.remove(&index);
                slot.limit.store(0, Ordering::Relaxed);
                tag.store(0, Ordering::Release);
            }
        }
    }

    /// Returns the state of all limits.
    pub fn state(&self, range: AdaptiveRange) -> AdaptiveState {
        let control = self.control.lock();
        let states = control.controllers.values().map(|known| known.controller.state(range));
        let start = ControllerState { limit: range.min().get(), ..ControllerState::default() };
        AdaptiveState {
            keys: control.controllers.keys().filter(|index| **index != self.shared_slot()).count(),
            lowest: states.min_by_key(|state| state.limit).unwrap_or(start),
        }
    }

    fn slot(&self, index: SlotIndex) -> Option<&KeySlot> {
        self.slots.get(usize::from(index.0))
    }

    fn shared_slot(&self) -> SlotIndex {
        slot_index(self.sets.len() * WAYS)
    }

    /// Returns the tag of a slot; `None` for the shared one.
    fn tag(&self, index: SlotIndex) -> Option<&AtomicU64> {
        let index = usize::from(index.0);
        self.sets.get(index / WAYS)?.0.get(index % WAYS)
    }

    fn find(&self, key: KeyHash) -> Result<SlotIndex, Vacancy> {
        let Some((first, tag, set)) = self.set_of(key) else { return Err(Vacancy::Full) };
        let mut vacancy = Vacancy::Full;
        for (way, known) in set.0.iter().enumerate() {
            match load(known) {
                known if known == tag => return Ok(slot_index(first + way)),
                0 => vacancy = Vacancy::Free,
                _ => {}
            }
        }
        Err(vacancy)
    }

    fn find_or_claim(&self, key: KeyHash) -> SlotIndex {
        if let Ok(index) = self.find(key) {
            return index;
        }
        let Some((first, tag, set)) = self.set_of(key) else { return self.shared_slot() };
        // Another worker may claim a slot for the same key at the same time. If it takes the first free one, as usual, it
        // is found here; otherwise the key has two slots until one of them is idle.
        let claim =
            |known: &AtomicU64| match known.compare_exchange(0, tag, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => true,
                Err(known) => known == tag,
            };
        let claimed = set.0.iter().position(claim);
        claimed.map_or_else(|| self.shared_slot(), |way| slot_index(first + way))
    }

    /// Returns the index of the first slot of the key's set, the tag of the key, and the set.
    fn set_of(&self, key: KeyHash) -> Option<(usize, u64, &TagSet)> {
        let [word, other] = key.words();
        let set = (other as usize) % self.sets.len().max(1);
        // Zero marks a free slot.
        Some((set * WAYS, word | 1, self.sets.get(set)?))
    }
}

/// Whether a key without a slot would get one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vacancy {
    Free,
    Full,
}

impl KeySlot {
    fn take_reading(&self) -> Reading {
        // Most slots are free, and reading them must not invalidate the cache lines of others.
        let is_quiet = self.in_flight.load(Ordering::Relaxed) == 0
            && self.peak.load(Ordering::Relaxed) == 0
            && self.failed.load(Ordering::Relaxed) == 0
            && self.logarithms.load(Ordering::Relaxed) == 0;
        if is_quiet {
            return Reading::default();
        }
        let word = self.logarithms.swap(0, Ordering::Relaxed);
        let latencies = Samples {
            count: word >> SUM_BITS,
            logarithms: word & ((1 << SUM_BITS) - 1),
            squares: self.squares.swap(0, Ordering::Relaxed),
        };
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        let peak = self.peak.swap(in_flight, Ordering::Relaxed);
        Reading {
            latencies,
            failed: self.failed.swap(0, Ordering::Relaxed).into(),
            peak: peak.max(in_flight),
        }
    }
}

fn load(tag: &AtomicU64) -> u64 {
    tag.load(Ordering::Relaxed)
}

/// Returns the index as a smaller number; there are [`MAX_KEYS`] slots and one.
fn slot_index(index: usize) -> SlotIndex {
    SlotIndex(u16::try_from(index).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests;
