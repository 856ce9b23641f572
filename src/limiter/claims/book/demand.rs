//! The demand of a counter: what was asked of it lately, in units a second.

use std::time::Duration;

use super::Book;
use crate::limiter::timestamp::Timestamp;

/// Demand is measured for so long at least, or as long as it takes for this many units.
const MIN_MEASURED: Duration = Duration::from_millis(20);
const FADING: f64 = 4.0;
/// Of fewer units a rate is told over so long.
const MIN_PERIOD: Duration = Duration::from_millis(100);
const MEASURED_UNITS: f64 = 30.0;

impl Book {
    /// Units demanded since the last question, and the rate that makes.
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

    /// As many of the units held as are going to be spent before they lapse, should the demand since the last look last.
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
        // Of few requests no rate can be told: as much as is nearly certain.
        let certain = (units as f64 - (units as f64).sqrt()).max(0.0);
        let least = if is_much { MIN_MEASURED } else { period.max(MIN_PERIOD) };
        let seen = certain / elapsed.max(least).as_secs_f64();
        let is_complete = elapsed >= period || is_much && elapsed >= MIN_MEASURED;
        if seen > self.rate {
            self.rate = seen;
        } else if is_complete {
            self.rate = seen + (self.rate - seen) * (-FADING * elapsed.as_secs_f64()).exp();
        }
        if is_complete {
            self.measured = (0, now);
        }
    }

    pub(super) fn spent_since_look(&self, there: u32) -> u64 {
        self.looked.0.saturating_sub(u64::from(there) + u64::from(self.next.units))
    }
}
