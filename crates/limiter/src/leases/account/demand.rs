//! Measures the demand of a counter, in units per second.

use std::time::Duration;

use super::LeaseAccount;
use crate::control::approach;
use crate::timestamp::Timestamp;

/// Minimum time of a measurement with at least [`MEASURED_UNITS`] units.
const MIN_MEASURED: Duration = Duration::from_millis(20);
/// Time constant with which the rate follows a lower one.
const FADE: Duration = Duration::from_millis(250);
/// Minimum time over which a rate of fewer units is computed.
const MIN_PERIOD: Duration = Duration::from_millis(100);
/// Number of units that determines a rate well enough for a short measurement.
const MEASURED_UNITS: f64 = 30.0;

impl LeaseAccount {
    /// Returns the units demanded since the last query, and updates the rate.
    pub(super) fn count_demand(&mut self, left: u32, now: Timestamp, period: Duration) -> u32 {
        let there = u64::from(left)
            + u64::from(self.current.units)
            + u64::from(self.next.units)
            + u64::from(self.lapsed.units);
        let spent = self.accounted.saturating_sub(there);
        self.accounted = there;
        let demanded = spent + std::mem::take(&mut self.rejected) + u64::from(self.needed);
        self.measure(demanded, if self.is_quiet { self.looked.1 } else { now }, period);
        u32::try_from(demanded).unwrap_or(u32::MAX)
    }

    /// Number of held units that will be spent before they expire if the demand since the last look continues, with a
    /// quarter more as a margin. Infinite before a look is due.
    pub(super) fn spendable(&self, there: u32, now: Timestamp) -> f64 {
        let elapsed = now.since(self.looked.1);
        if elapsed < self.look {
            return f64::INFINITY;
        }
        let spent = self.spent_since_look(there) as f64;
        let ends = self.current.until.since(now).as_secs_f64();
        1.25 * spent / elapsed.as_secs_f64() * ends
    }

    pub(super) fn measure(&mut self, demanded: u64, now: Timestamp, period: Duration) {
        let (units, since) = (self.measured.0 + demanded, self.measured.1);
        self.measured.0 = units;
        let elapsed = now.since(since);
        let is_much = units as f64 >= MEASURED_UNITS;
        // Few requests do not determine a rate, so use a number that is exceeded almost certainly.
        let certain = (units as f64 - (units as f64).sqrt()).max(0.0);
        let min_elapsed = if is_much { MIN_MEASURED } else { period.max(MIN_PERIOD) };
        let seen = certain / elapsed.max(min_elapsed).as_secs_f64();
        let is_complete = elapsed >= period || is_much && elapsed >= MIN_MEASURED;
        if seen > self.demand_rate {
            self.demand_rate = seen;
        } else if is_complete {
            self.demand_rate = approach(self.demand_rate, seen, elapsed, FADE);
        }
        if is_complete {
            self.measured = (0, now);
        }
    }

    pub(super) fn spent_since_look(&self, there: u32) -> u64 {
        self.looked.0.saturating_sub(u64::from(there) + u64::from(self.next.units))
    }
}
