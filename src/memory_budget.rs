//! Budgets of memory that clients can make grow: what waits to be written to them, and what waits for room in limits.
//!
//! A budget counts bytes exactly across all threads. What is counted may exceed it by what one caller adds at once; the
//! caller then has to give something up.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Responses that clients do not read: bytes that wait to be written, of connections with more than a few of them.
pub static UNSENT: MemoryBudget = MemoryBudget::unlimited();

const KIBIBYTE: usize = 1024;

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

    /// Whether there is room for more.
    pub fn has_room(&self) -> bool {
        self.used() < self.max.load(Ordering::Relaxed)
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

    /// Gives bytes back.
    pub fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What one connection uses of [`UNSENT`]; given back when it is dropped. In KiB, rounded up: it is a part of each response.
#[derive(Debug, Default)]
pub struct UnsentBytes(u16);

impl UnsentBytes {
    /// Bytes of a connection that are not counted: a part of a body, and small heads. Every connection may have them.
    pub const FREE: usize = 48 * 1024;

    /// Records that `bytes` wait to be written on the connection.
    #[inline]
    pub fn record(&mut self, bytes: usize) {
        let counted = if bytes > Self::FREE { bytes } else { 0 };
        let kibibytes = u16::try_from(counted.div_ceil(KIBIBYTE)).unwrap_or(u16::MAX);
        if kibibytes != self.0 {
            self.change(kibibytes);
        }
    }

    #[cold]
    fn change(&mut self, kibibytes: u16) {
        let difference = usize::from(kibibytes.abs_diff(self.0)) * KIBIBYTE;
        if kibibytes > self.0 {
            UNSENT.take(difference);
        } else {
            UNSENT.give_back(difference);
        }
        self.0 = kibibytes;
    }

    /// Whether a connection on which `bytes` wait may add more.
    pub fn has_room(bytes: usize) -> bool {
        bytes <= Self::FREE || UNSENT.has_room()
    }
}

impl Drop for UnsentBytes {
    fn drop(&mut self) {
        self.record(0);
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
        assert!(!budget.has_room() && !budget.try_take(1));
    }

    #[test]
    fn small_amounts_are_not_counted() {
        let mut unsent = UnsentBytes::default();
        unsent.record(UnsentBytes::FREE);
        assert_eq!(unsent.0, 0);
        unsent.record(UnsentBytes::FREE + 1);
        assert_eq!(usize::from(unsent.0), UnsentBytes::FREE / KIBIBYTE + 1);
        assert!(UNSENT.used() > UnsentBytes::FREE);
        unsent.record(1);
        assert_eq!(unsent.0, 0);
    }
}
