//! Permits: units of a shared limit on requests in flight. A permit is held as long as a request needs it.

use std::time::Duration;

use super::{Book, MAX_LEAD};
use crate::limiter::claims::Review;
use crate::limiter::timestamp::Timestamp;

/// How often permits that no request needs are looked for.
const LOOK: Duration = Duration::from_millis(100);

/// Permits to ask for: those in use, those that requests wait for, and some ahead.
pub(super) fn wanted(in_use: u64, needed: u32) -> u32 {
    let in_use = u32::try_from(in_use).unwrap_or(u32::MAX);
    let ahead = if in_use > 0 || needed > 0 { ahead(in_use) } else { 0 };
    in_use.saturating_add(needed).saturating_add(ahead)
}

const fn ahead(in_use: u32) -> u32 {
    in_use / 4 + 1
}

impl Book {
    /// When permits are to be looked at.
    pub(super) fn permits_due(&self, now: Timestamp) -> Timestamp {
        self.renewal().min(now.saturating_add(LOOK)).max(now)
    }

    /// When permits have to be asked for again, to be kept.
    fn renewal(&self) -> Timestamp {
        self.current.until.saturating_sub(self.lead)
    }

    /// Whether permits have to be renewed, or there are more than are needed here; `held` are granted.
    pub(super) fn review_permits(&mut self, held: u32, in_use: u64, now: Timestamp) -> Review {
        if self.is_asking {
            return Review::Later(now.saturating_add(MAX_LEAD));
        }
        if held == 0 && in_use == 0 {
            self.lapsed.units = 0;
            return if self.is_idle(now) { Review::Done } else { Review::Later(now.saturating_add(LOOK)) };
        }
        let in_use = u32::try_from(in_use).unwrap_or(u32::MAX);
        let spare = held.saturating_sub(in_use);
        let has_spare = spare > ahead(in_use) || in_use == 0;
        let is_due = now >= self.renewal() || has_spare && now.since(self.asked_at) >= LOOK;
        self.is_asking = is_due;
        if is_due { Review::Ask } else { Review::Later(self.permits_due(now)) }
    }
}
