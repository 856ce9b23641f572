//! A budget of memory that clients can make grow, exact across all threads.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A maximum number of bytes, and how many are in use.
#[derive(Debug)]
pub struct MemoryBudget {
    used: AtomicUsize,
    max: AtomicUsize,
}

impl MemoryBudget {
    /// Creates a budget without a maximum.
    pub const fn unlimited() -> Self {
        Self { used: AtomicUsize::new(0), max: AtomicUsize::new(usize::MAX) }
    }

    /// Sets the maximum, in bytes.
    pub fn set_max(&self, bytes: usize) {
        self.max.store(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes bytes if there is room for all of them.
    pub fn try_take(&self, bytes: usize) -> bool {
        let max = self.max.load(Ordering::Relaxed);
        let add = |used: usize| used.checked_add(bytes).filter(|total| *total <= max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// Takes bytes, even beyond the maximum.
    pub fn take(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives back bytes that [`Self::take`] or [`Self::try_take`] took.
    pub fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_never_exceeded_and_returns_to_zero() {
        let budget = MemoryBudget::unlimited();
        budget.set_max(1000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for bytes in (0..2000).map(|round| round % 700) {
                        if budget.try_take(bytes) {
                            assert!(budget.used() <= 1000);
                            budget.give_back(bytes);
                        }
                    }
                });
            }
        });
        assert_eq!((budget.used(), budget.try_take(1001), budget.try_take(1000)), (0, false, true));
        assert!(!budget.try_take(1));
    }
}
