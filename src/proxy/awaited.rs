//! Number of requests that are awaited without their clients.

use std::cell::Cell;

/// Number of such requests of a worker, or of one of its connections.
#[derive(Debug, Default)]
pub(super) struct AwaitedCount(Cell<u32>);

impl AwaitedCount {
    /// Returns the number.
    pub(super) fn get(&self) -> u32 {
        self.0.get()
    }

    /// Counts a request that is awaited from now on.
    pub(super) fn add(&self) {
        self.0.set(self.0.get().saturating_add(1));
    }

    /// Counts a request that is no longer awaited.
    pub(super) fn subtract(&self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}
