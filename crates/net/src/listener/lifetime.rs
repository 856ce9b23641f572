//! Lifetime of a bound listener: a reload may remove it, and its connections then drain.

use std::sync::atomic::{AtomicU8, Ordering};

const OPEN: u8 = 0;
const DRAINING: u8 = 1;
const TERMINATED: u8 = 2;

/// Lifetime of a listener, which its connections on all workers observe.
#[derive(Debug, Default)]
pub struct ListenerLifetime(AtomicU8);

impl ListenerLifetime {
    /// Begins the drain: idle connections are closed, and the others after their current request.
    pub fn drain(&self) {
        self.0.fetch_max(DRAINING, Ordering::Relaxed);
    }

    /// Ends the drain: connections that are still open are closed.
    pub fn terminate(&self) {
        self.0.fetch_max(TERMINATED, Ordering::Relaxed);
    }

    /// Whether the drain has begun.
    pub fn is_draining(&self) -> bool {
        self.0.load(Ordering::Relaxed) != OPEN
    }

    /// Whether the drain has ended.
    pub fn is_terminated(&self) -> bool {
        self.0.load(Ordering::Relaxed) == TERMINATED
    }
}
