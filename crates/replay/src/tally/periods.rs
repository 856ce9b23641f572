//! Periods by which the requests of keys are counted: the windows of a fixed window, in its time zone; for other
//! algorithms the length of the limit's period, aligned to the epoch.

use std::time::Duration;

use weir_limiter::quota::Quota;
use weir_limiter::timestamp::{Timestamp, saturating_nanos};

/// Numbers the periods in which there are requests, in order of time.
#[derive(Debug)]
pub(crate) struct DemandPeriods {
    /// The limit, if its windows are the periods.
    windows: Option<Quota>,
    /// Length of a period without windows, in nanoseconds.
    length: u64,
    /// End of the present period, in nanoseconds since the epoch.
    end: u64,
    number: u32,
}

impl DemandPeriods {
    pub(crate) fn of_length(length: Duration) -> Self {
        Self { windows: None, length: saturating_nanos(length).max(1), end: 0, number: 0 }
    }

    /// Returns the periods of a limit.
    pub(crate) fn of(quota: &Quota) -> Self {
        let windows = quota.fixed_window_end(Timestamp::EPOCH).map(|_| *quota);
        Self { windows, ..Self::of_length(quota.window().duration()) }
    }

    /// Returns the number of the period at `now`, which never decreases from call to call.
    #[inline]
    pub(crate) fn number_at(&mut self, now: Timestamp) -> u32 {
        if now.as_nanos() >= self.end {
            self.start(now);
        }
        self.number
    }

    fn start(&mut self, now: Timestamp) {
        self.number = self.number.saturating_add(1);
        let window = self.windows.and_then(|quota| quota.fixed_window_end(now));
        let next = (now.as_nanos() / self.length).saturating_add(1).saturating_mul(self.length);
        self.end = window.map_or(next, Timestamp::as_nanos);
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use weir_limiter::algorithm::Algorithm;
    use weir_limiter::quota::{Limit, Period, TimeUnit};
    use weir_limiter::zone::Zone;

    /// Returns the numbers of the periods of a limit per `unit` at these times.
    fn numbers(algorithm: Algorithm, unit: TimeUnit, zone: Zone, times: &[&str]) -> Vec<u32> {
        let limit = Limit::new(NonZeroU32::MIN, Period::one(unit));
        let quota = Quota::new(algorithm, limit, None).unwrap();
        let mut periods = DemandPeriods::of(&quota.in_zone(zone).unwrap_or(quota));
        let at = |time: &&str| {
            let time: jiff::Timestamp = time.parse().unwrap();
            periods.number_at(Timestamp::from_secs(time.as_second() as u64))
        };
        times.iter().map(at).collect()
    }

    #[test]
    fn periods_of_fixed_windows_follow_the_calendar() {
        use Algorithm::FixedWindow;
        // A Wednesday, a Thursday, a Sunday and a Monday.
        let week =
            ["2026-11-18T12:00:00Z", "2026-11-19T12:00:00Z", "2026-11-22T23:59:59Z", "2026-11-23T00:00:00Z"];
        assert_eq!(numbers(FixedWindow, TimeUnit::Week, Zone::UTC, &week), [1, 1, 1, 2]);
        let month = ["2026-10-01T00:00:00Z", "2026-10-31T23:59:59Z", "2026-11-01T00:00:00Z"];
        assert_eq!(numbers(FixedWindow, TimeUnit::Month, Zone::UTC, &month), [1, 1, 2]);
        assert_eq!(numbers(FixedWindow, TimeUnit::Year, Zone::UTC, &month), [1, 1, 1]);
    }

    #[test]
    fn periods_of_other_algorithms_have_one_length() {
        let days =
            ["2026-11-18T12:00:00Z", "2026-11-18T23:59:59Z", "2026-11-19T00:00:00Z", "2026-11-22T00:00:00Z"];
        assert_eq!(numbers(Algorithm::Gcra, TimeUnit::Day, Zone::UTC, &days), [1, 1, 2, 3]);
        assert_eq!(numbers(Algorithm::Gcra, TimeUnit::Week, Zone::UTC, &days), [1, 1, 2, 2], "from Thursday");
    }

    #[test]
    fn last_moment_has_a_period() {
        let mut periods = DemandPeriods::of_length(Duration::ZERO);
        assert_eq!((periods.number_at(Timestamp::EPOCH), periods.number_at(Timestamp::END)), (1, 2));
    }
}
