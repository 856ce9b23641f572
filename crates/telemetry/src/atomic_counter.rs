//! Monotonic counter.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter written by one or more threads and read by others. Relaxed ordering suffices: counters are independent.
#[derive(Debug, Default)]
pub struct AtomicCounter(AtomicU64);

impl AtomicCounter {
    /// Creates a counter of 0.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds 1.
    pub fn increment(&self) {
        self.add(1);
    }

    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Adds `amount` and returns the sum.
    pub fn add_and_get(&self, amount: u64) -> u64 {
        self.0.fetch_add(amount, Ordering::Relaxed).saturating_add(amount)
    }

    /// As [`Self::increment`], without a locked instruction. An addition by another thread meanwhile would be lost.
    pub fn increment_exclusive(&self) {
        self.add_exclusive(1);
    }

    /// As [`Self::add`], without a locked instruction. An addition by another thread meanwhile would be lost.
    pub fn add_exclusive(&self, amount: u64) {
        self.0.store(self.get().wrapping_add(amount), Ordering::Relaxed);
    }

    /// Returns the current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds the current value of `other`.
    pub fn merge(&mut self, other: &Self) {
        let sum = self.get().saturating_add(other.get());
        *self.0.get_mut() = sum;
    }
}

/// Adds each counter of `others` to the counter at the same position.
pub fn merge_all(counters: &mut [AtomicCounter], others: &[AtomicCounter]) {
    counters.iter_mut().zip(others).for_each(|(count, other)| count.merge(other));
}

pub fn sum(counts: &[AtomicCounter]) -> u64 {
    counts.iter().map(AtomicCounter::get).sum()
}
