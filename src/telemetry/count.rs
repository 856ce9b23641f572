//! A number that only grows.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counted by one thread and read by another. Relaxed, since no count says anything of another.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// One more.
    pub fn increment(&self) {
        self.add(1);
    }

    /// So many more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// The count so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds the count of `other` so far.
    pub fn absorb(&mut self, other: &Self) {
        let sum = self.get().saturating_add(other.get());
        *self.0.get_mut() = sum;
    }
}

/// Adds each count of `others` to the one beside it.
pub fn absorb_all(counts: &mut [Count], others: &[Count]) {
    counts.iter_mut().zip(others).for_each(|(count, other)| count.absorb(other));
}

/// The sum of all counts.
pub fn sum(counts: &[Count]) -> u64 {
    counts.iter().map(Count::get).sum()
}
