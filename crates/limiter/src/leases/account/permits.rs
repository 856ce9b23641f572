//! Permits: units of a shared concurrency limit. A permit is held as long as its request is in flight.

use std::time::Duration;

use super::{LeaseAccount, MAX_LEAD};
use crate::leases::LeaseReview;
use crate::timestamp::Timestamp;

/// Interval at which unneeded permits are looked for.
const LOOK: Duration = Duration::from_millis(100);

/// Number of permits to request: those in use, those that requests wait for, and some ahead.
pub(super) fn permits_to_request(in_use: u64, needed: u32) -> u32 {
    let in_use = u32::try_from(in_use).unwrap_or(u32::MAX);
    let ahead = if in_use > 0 || needed > 0 { ahead(in_use) } else { 0 };
    in_use.saturating_add(needed).saturating_add(ahead)
}

/// Number of permits to hold in addition to those in use.
const fn ahead(in_use: u32) -> u32 {
    in_use / 4 + 1
}

impl LeaseAccount {
    /// Time of the next review of the permits.
    pub(super) fn permits_due(&self, now: Timestamp) -> Timestamp {
        self.renewal().min(now.saturating_add(LOOK)).max(now)
    }

    /// Time at which the permits have to be renewed.
    fn renewal(&self) -> Timestamp {
        self.current.until.saturating_sub(self.lead)
    }

    /// Whether permits have to be renewed, or more of the `held` ones are present than this instance needs.
    pub(super) fn review_permits(&mut self, held: u32, in_use: u64, now: Timestamp) -> LeaseReview {
        if self.is_requesting {
            return LeaseReview::Later(now.saturating_add(MAX_LEAD));
        }
        if held == 0 && in_use == 0 {
            self.lapsed.units = 0;
            return if self.is_idle(now) {
                LeaseReview::Done
            } else {
                LeaseReview::Later(now.saturating_add(LOOK))
            };
        }
        let in_use = u32::try_from(in_use).unwrap_or(u32::MAX);
        let spare = held.saturating_sub(in_use);
        let has_spare = spare > ahead(in_use) || in_use == 0;
        let is_due = now >= self.renewal() || has_spare && now.since(self.requested_at) >= LOOK;
        self.is_requesting = is_due;
        if is_due { LeaseReview::Query } else { LeaseReview::Later(self.permits_due(now)) }
    }
}
