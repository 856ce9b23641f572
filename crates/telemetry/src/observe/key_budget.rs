//! Division of the memory for tracked keys among sketches.
//!
//! Half of the keys are guaranteed: every sketch may track its part of them, whatever other sketches track. The other
//! half belongs to the sketches that ask first. So a rule with many keys uses what others leave, and cannot make another
//! rule invisible. The total is never exceeded, not even while a reload changes the number of sketches.
//!
//! Documents of the rate limit service may have thousands of limits, few of them in use. At most half of the guaranteed
//! keys are theirs if there are rules, so that they do not take those of the rules.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::key_sketch::MAX_KEYS_PER_SKETCH;

/// What the keys of a sketch belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SketchOwner {
    #[default]
    Rule,
    /// A limit of the rate limit service's documents.
    Document,
}

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
    /// Guaranteed keys of each sketch, by [`SketchOwner`].
    guaranteed: [AtomicUsize; 2],
}

/// Keys of the budget that one sketch holds. They are given back when this is dropped.
#[derive(Debug)]
pub(super) struct KeyReservation {
    budget: Arc<KeyBudget>,
    owner: SketchOwner,
    keys: usize,
    /// How many of `keys` were not guaranteed.
    extra: usize,
}

impl KeyBudget {
    /// Returns a budget of `max_keys` tracked keys, for the sketch of one rule.
    pub fn new(max_keys: usize) -> Arc<Self> {
        let budget = Self {
            max_keys,
            used: AtomicUsize::new(0),
            extra: AtomicUsize::new(0),
            max_extra: AtomicUsize::new(0),
            guaranteed: [const { AtomicUsize::new(0) }; 2],
        };
        budget.divide(1, 0);
        Arc::new(budget)
    }

    /// Divides half of the keys among the sketches of rules and of documents. Each of a rule gets at least one key.
    pub fn divide(&self, of_rules: usize, of_documents: usize) {
        let half = self.max_keys / 2;
        // As if there were no more sketches of documents than of rules.
        let sharing = of_rules.saturating_add(of_documents.min(of_rules));
        let rule = (half / sharing.max(1)).clamp(1, MAX_KEYS_PER_SKETCH);
        let taken = rule.saturating_mul(of_rules);
        let document = (half.saturating_sub(taken) / of_documents.max(1)).min(MAX_KEYS_PER_SKETCH);
        let taken = taken.saturating_add(document.saturating_mul(of_documents));
        self.guaranteed[SketchOwner::Rule as usize].store(rule, Ordering::Relaxed);
        self.guaranteed[SketchOwner::Document as usize].store(document, Ordering::Relaxed);
        self.max_extra.store(self.max_keys.saturating_sub(taken), Ordering::Relaxed);
    }
}

impl KeyReservation {
    /// Returns a reservation of no keys.
    pub(super) fn new(budget: &Arc<KeyBudget>, owner: SketchOwner) -> Self {
        Self { budget: Arc::clone(budget), owner, keys: 0, extra: 0 }
    }

    /// Reserves one more key; returns `false` if the budget does not permit it.
    pub(super) fn add_key(&mut self) -> bool {
        let budget = &*self.budget;
        let guaranteed = budget.guaranteed[self.owner as usize].load(Ordering::Relaxed);
        let is_extra = self.keys - self.extra >= guaranteed;
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
        budget.divide(10, 0);
        let mut sketches: Vec<_> = (0..10).map(|_| KeyReservation::new(&budget, SketchOwner::Rule)).collect();
        assert_eq!(reserve_all(&mut sketches[0]), 55);
        assert!(sketches[1..].iter_mut().all(|sketch| reserve_all(sketch) == 5));
        drop(sketches);
        assert_eq!((budget.used.load(Ordering::Relaxed), budget.extra.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn total_is_kept_while_the_number_of_sketches_grows() {
        let budget = KeyBudget::new(100);
        let mut first = KeyReservation::new(&budget, SketchOwner::Rule);
        assert_eq!(reserve_all(&mut first), 100);
        budget.divide(1000, 0);
        let mut other = KeyReservation::new(&budget, SketchOwner::Rule);
        assert!(!other.add_key());
        drop(first);
        assert_eq!(reserve_all(&mut other), 1, "no key is left beyond those that are guaranteed");
    }

    #[test]
    fn documents_with_many_limits_leave_half_of_what_is_guaranteed_to_rules() {
        let budget = KeyBudget::new(100);
        let reserve = |owner| reserve_all(&mut KeyReservation::new(&budget, owner));
        budget.divide(5, 1000);
        let mut documents: Vec<_> =
            (0..1000).map(|_| KeyReservation::new(&budget, SketchOwner::Document)).collect();
        assert_eq!(documents.iter_mut().map(reserve_all).sum::<usize>(), 75);
        let mut rules: Vec<_> = (0..5).map(|_| KeyReservation::new(&budget, SketchOwner::Rule)).collect();
        assert!(rules.iter_mut().all(|rule| reserve_all(rule) == 5));
        drop((documents, rules));
        budget.divide(0, 5);
        assert_eq!(reserve(SketchOwner::Document), 60, "all guaranteed keys are those of documents");
        budget.divide(5, 5);
        assert_eq!((reserve(SketchOwner::Rule), reserve(SketchOwner::Document)), (55, 55));
    }
}
