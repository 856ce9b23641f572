//! Headroom as all workers see it: one word, written by the control task and read by every request.

use std::sync::atomic::{AtomicU16, Ordering};

use crate::limiter::elastic::Headroom;

/// What elastic limits go by. Nothing until the control task says otherwise.
#[derive(Debug, Default)]
pub struct Elastic {
    headroom: AtomicU16,
}

impl Elastic {
    /// Headroom at the moment.
    pub fn headroom(&self) -> Headroom {
        // Nothing else is read by it, so no order is needed.
        Headroom::from_bits(self.headroom.load(Ordering::Relaxed))
    }
}
