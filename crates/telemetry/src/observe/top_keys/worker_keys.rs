//! The sketches of one worker, behind one lock.
//!
//! A decision of many rules records a key for each of them. With a lock per sketch, it would lock as often.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::{WINDOWS, window_number};
use crate::observe::key_budget::{KeyBudget, SketchOwner};
use crate::observe::key_sketch::{KeySketch, MAX_KEYS_PER_SKETCH, SketchCopy};
use weir_limiter::key::KeyHash;
use weir_limiter::timestamp::Timestamp;
use weir_policy::rules::outcome::DecisionOutcome;

/// The heaviest keys of all rules on one worker.
#[derive(Debug)]
pub(super) struct WorkerKeys {
    slots: Mutex<Slots>,
    budget: Arc<KeyBudget>,
}

/// The windows of each rule, at the position that its [`WorkerSketch`] has. They are created at the first decision.
#[derive(Debug, Default)]
struct Slots {
    windows: Vec<Option<Box<Windows>>>,
    free: Vec<usize>,
}

/// Heaviest keys of one rule on one worker.
#[derive(Debug)]
pub struct WorkerSketch {
    worker: Arc<WorkerKeys>,
    owner: SketchOwner,
    slot: usize,
}

#[derive(Debug)]
pub struct LockedSketches<'a> {
    worker: &'a WorkerKeys,
    slots: MutexGuard<'a, Slots>,
    now: Timestamp,
    /// Number of the window of `now`.
    number: u64,
}

/// The current window and the one before.
#[derive(Debug)]
struct Windows {
    /// Number of the current window.
    number: u64,
    owner: SketchOwner,
    current: KeySketch,
    previous: KeySketch,
}

impl WorkerKeys {
    /// Creates a worker without sketches. Its sketches share `budget` with those of other workers.
    pub(super) fn new(budget: &Arc<KeyBudget>) -> Self {
        Self { slots: Mutex::default(), budget: Arc::clone(budget) }
    }

    pub(super) fn add(self: &Arc<Self>, owner: SketchOwner) -> WorkerSketch {
        let mut slots = self.slots.lock();
        let slot = slots.free.pop().unwrap_or_else(|| {
            slots.windows.push(None);
            slots.windows.len() - 1
        });
        WorkerSketch { worker: Arc::clone(self), owner, slot }
    }
}

impl WorkerSketch {
    /// Locks all sketches of the worker, for decisions at `now`. A reader contends for the lock only for the time of one
    /// copy.
    #[inline]
    pub fn lock_worker(&self, now: Timestamp) -> LockedSketches<'_> {
        LockedSketches {
            worker: &self.worker,
            slots: self.worker.slots.lock(),
            now,
            number: window_number(now),
        }
    }

    /// Returns copies of the windows that `now` covers. They are merged without the lock, for which a request may wait.
    pub(super) fn copy(&self, now: Timestamp) -> Option<[SketchCopy; WINDOWS]> {
        let mut slots = self.worker.slots.lock();
        let windows = slots.windows.get_mut(self.slot)?.as_mut()?;
        windows.advance(window_number(now), &self.worker.budget);
        Some([windows.current.copy(), windows.previous.copy()])
    }

    /// Frees the memory of windows that have passed.
    pub(super) fn expire(&self, now: Timestamp) {
        if let Some(windows) = self.worker.slots.lock().windows.get_mut(self.slot) {
            windows.take_if(|windows| windows.number.saturating_add(1) < window_number(now));
        }
    }
}

impl Drop for WorkerSketch {
    fn drop(&mut self) {
        let mut slots = self.worker.slots.lock();
        if let Some(windows) = slots.windows.get_mut(self.slot) {
            *windows = None;
            slots.free.push(self.slot);
        }
    }
}

impl LockedSketches<'_> {
    /// Counts one decision in a sketch of the locked worker. `text` is called only if the key becomes a tracked one.
    #[inline]
    pub fn record(
        &mut self,
        sketch: &WorkerSketch,
        key: KeyHash,
        outcome: DecisionOutcome,
        text: impl FnOnce() -> Arc<str>,
    ) {
        let is_own = std::ptr::eq(self.worker, &*sketch.worker);
        debug_assert!(is_own, "a sketch of another worker");
        let Some(windows) = self.slots.windows.get_mut(sketch.slot).filter(|_| is_own) else { return };
        let (number, budget) = (self.number, &self.worker.budget);
        let windows = windows.get_or_insert_with(|| Box::new(Windows::new(number, budget, sketch.owner)));
        windows.advance(number, budget);
        windows.current.record(key, outcome, self.now, text);
    }
}

impl Windows {
    fn new(number: u64, budget: &Arc<KeyBudget>, owner: SketchOwner) -> Self {
        let empty = || KeySketch::new(MAX_KEYS_PER_SKETCH, budget, owner);
        Self { number, owner, current: empty(), previous: empty() }
    }

    /// Makes the window with this number the current one. An earlier time belongs to the current window.
    #[inline]
    fn advance(&mut self, number: u64, budget: &Arc<KeyBudget>) {
        if number > self.number {
            self.start_window(number, budget);
        }
    }

    #[cold]
    fn start_window(&mut self, number: u64, budget: &Arc<KeyBudget>) {
        let old = std::mem::replace(self, Self::new(number, budget, self.owner));
        if self.number == old.number.saturating_add(1) {
            self.previous = old.current;
        }
    }
}
