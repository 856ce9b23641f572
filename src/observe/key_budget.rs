//! Division of the memory for tracked keys among sketches.
//!
//! Half of the keys are guaranteed: every sketch may track its part of them, whatever other sketches track. The other
//! half belongs to the sketches that ask first. So a rule with many keys uses what others leave, and cannot make another
//! rule invisible. The total is never exceeded, not even while a reload changes the number of sketches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::key_sketch::MAX_KEYS_PER_SKETCH;

/// Number of tracked keys that all sketches together may have, and its division among them.
#[derive(Debug)]
pub struct KeyBudget {
    max_keys: usize,
    /// Tracked keys of all sketches.
    used: AtomicUsize,
    /// Tracked keys beyond the guaranteed ones of their sketches.
    extra: AtomicUsize,
    /// Maximum of `extra`.
    max_extra: AtomicUsize,
    /// Guaranteed keys of each sketch.
    guaranteed: AtomicUsize,
}

/// Keys of the budget that one sketch holds. They are given back when this is dropped.
#[derive(Debug)]
pub(super) struct KeyReservation {
    budget: Arc<KeyBudget>,
    keys: usize,
    /// How many of `keys` were not guaranteed.
    extra: usize,
}

impl KeyBudget {
    /// Returns a budget of `max_keys` tracked keys, for one sketch.
    pub fn new(max_keys: usize) -> Arc<Self> {
        let budget = Self {
            max_keys,
            used: AtomicUsize::new(0),
            extra: AtomicUsize::new(0),
            max_extra: AtomicUsize::new(0),
            guaranteed: AtomicUsize::new(0),
        };
        budget.divide(1);
        Arc::new(budget)
    }

    /// Guarantees each of `sketches` sketches an equal part of half of the keys, at least one key.
    pub fn divide(&self, sketches: usize) {
        let part = (self.max_keys / 2 / sketches.max(1)).clamp(1, MAX_KEYS_PER_SKETCH);
        let max_extra = self.max_keys.saturating_sub(part.saturating_mul(sketches));
        self.guaranteed.store(part, Ordering::Relaxed);
        self.max_extra.store(max_extra, Ordering::Relaxed);
    }
}

impl KeyReservation {
    /// Returns a reservation of no keys.
    pub(super) fn new(budget: &Arc<KeyBudget>) -> Self {
        Self { budget: Arc::clone(budget), keys: 0, extra: 0 }
    }

    /// Reserves one more key; returns `false` if the budget does not permit it.
    pub(super) fn add_key(&mut self) -> bool {
        let budget = &*self.budget;
        let is_extra = self.keys - self.extra >= budget.guaranteed.load(Ordering::Relaxed);
        if is_extra && !take_one(&budget.extra, budget.max_extra.load(Ordering::Relaxed)) {
            return false;
        }
        if !take_one(&budget.used, budget.max_keys) {
            budget.extra.fetch_sub(usize::from(is_extra), Ordering::Relaxed);
            return false;
        }
        self.keys += 1;
        self.extra += usize::from(is_extra);
        true
    }
}

impl Drop for KeyReservation {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.keys, Ordering::Relaxed);
        self.budget.extra.fetch_sub(self.extra, Ordering::Relaxed);
    }
}

fn take_one(count: &AtomicUsize, max: usize) -> bool {
    let more = |count: usize| (count < max).then(|| count + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserve_all(reservation: &mut KeyReservation) -> usize {
        std::iter::repeat_with(|| reservation.add_key()).take_while(|added| *added).count()
    }

    #[test]
    fn each_sketch_gets_its_part_after_others_have_taken_all_they_can() {
        let budget = KeyBudget::new(100);
        budget.divide(10);
        let mut sketches: Vec<_> = (0..10).map(|_| KeyReservation::new(&budget)).collect();
        assert_eq!(reserve_all(&mut sketches[0]), 55);
        assert!(sketches[1..].iter_mut().all(|sketch| reserve_all(sketch) == 5));
        drop(sketches);
        assert_eq!((budget.used.load(Ordering::Relaxed), budget.extra.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn total_is_kept_while_the_number_of_sketches_grows() {
        let budget = KeyBudget::new(100);
        let mut first = KeyReservation::new(&budget);
        assert_eq!(reserve_all(&mut first), 100);
        budget.divide(1000);
        let mut other = KeyReservation::new(&budget);
        assert!(!other.add_key());
        drop(first);
        assert_eq!(reserve_all(&mut other), 1, "no key is left beyond those that are guaranteed");
    }
}
