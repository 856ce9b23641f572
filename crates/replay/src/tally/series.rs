//! Requests of a rule over time, by outcome. Memory is bounded: if the log is long, the intervals become longer.

use weir_limiter::timestamp::Timestamp;
use weir_policy::rules::outcome::DecisionOutcome;

const NANOS_PER_MINUTE: u64 = 60_000_000_000;
/// Maximum number of intervals, one month of minutes. A longer log has intervals of two minutes, four, and so on.
const MAX_INTERVALS: usize = 31 * 24 * 60;

/// Outcomes that a plot distinguishes.
pub(crate) const CLASSES: [&str; 4] = ["allowed", "soft, delayed or diverted", "rejected", "shadow"];

/// Number of requests per interval, by class of outcome.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutcomeSeries {
    /// Beginning of the first interval, in minutes since the epoch.
    first_minute: u64,
    /// Length of an interval, in minutes; 0 before the first request.
    minutes: u64,
    intervals: Vec<[u32; CLASSES.len()]>,
    /// Requests in the present minute.
    minute: MinuteCount,
    /// The minute with most requests.
    busiest: MinuteCount,
    /// End of the present minute, and the index of its interval.
    minute_end: u64,
    interval: usize,
}

/// Requests in one minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MinuteCount {
    /// Minutes since the epoch.
    pub(crate) minute: u64,
    pub(crate) requests: u64,
    pub(crate) rejected: u64,
}

const fn class(outcome: DecisionOutcome) -> usize {
    match outcome {
        DecisionOutcome::Allowed | DecisionOutcome::Exempt => 0,
        DecisionOutcome::Soft | DecisionOutcome::Delayed | DecisionOutcome::Diverted => 1,
        DecisionOutcome::Limited | DecisionOutcome::Banned | DecisionOutcome::Denied => 2,
        DecisionOutcome::Shadow => 3,
    }
}

impl OutcomeSeries {
    /// Adds a request. Times never decrease.
    #[inline]
    pub(crate) fn add(&mut self, outcome: DecisionOutcome, now: Timestamp) {
        if now.as_nanos() >= self.minute_end {
            self.start_minute(now.as_nanos() / NANOS_PER_MINUTE);
        }
        let class = class(outcome);
        if let Some(interval) = self.intervals.get_mut(self.interval) {
            interval[class] = interval[class].saturating_add(1);
        }
        self.minute.requests += 1;
        self.minute.rejected += u64::from(class == 2);
    }

    fn start_minute(&mut self, minute: u64) {
        self.busiest = self.busiest();
        self.minute = MinuteCount { minute, requests: 0, rejected: 0 };
        self.minute_end = (minute + 1).saturating_mul(NANOS_PER_MINUTE);
        if self.minutes == 0 {
            (self.first_minute, self.minutes) = (minute, 1);
        }
        let first = self.first_minute;
        let place = |minutes| usize::try_from((minute - first) / minutes).unwrap_or(usize::MAX);
        while place(self.minutes) >= MAX_INTERVALS {
            self.halve();
        }
        self.interval = place(self.minutes);
        self.intervals.resize(self.interval + 1, [0; CLASSES.len()]);
    }

    /// Joins each two intervals.
    fn halve(&mut self) {
        let joined = self.intervals.chunks(2).map(|pair| {
            let mut sum = pair[0];
            if let Some(second) = pair.get(1) {
                sum.iter_mut().zip(second).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
            }
            sum
        });
        self.intervals = joined.collect();
        self.minutes *= 2;
    }

    /// Returns the minute with most requests.
    pub(crate) fn busiest(&self) -> MinuteCount {
        if self.minute.requests > self.busiest.requests { self.minute } else { self.busiest }
    }

    /// Returns the beginning of the first interval.
    pub(crate) const fn start(&self) -> Timestamp {
        Timestamp::from_secs(self.first_minute * 60)
    }

    /// Length of an interval, in minutes; 0 if there was no request.
    pub(crate) const fn minutes(&self) -> u64 {
        self.minutes
    }

    /// Returns the intervals, with the number of requests of each of [`CLASSES`].
    pub(crate) fn intervals(&self) -> &[[u32; CLASSES.len()]] {
        &self.intervals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(minute: u64) -> Timestamp {
        Timestamp::from_secs(minute * 60 + 30)
    }

    #[test]
    fn requests_are_counted_by_minute_and_class() {
        let mut series = OutcomeSeries::default();
        for (at, outcome) in [
            (100, DecisionOutcome::Allowed),
            (100, DecisionOutcome::Limited),
            (100, DecisionOutcome::Soft),
            (102, DecisionOutcome::Shadow),
        ] {
            series.add(outcome, minute(at));
        }
        assert_eq!((series.start(), series.minutes()), (Timestamp::from_secs(6000), 1));
        assert_eq!(series.intervals(), [[1, 1, 1, 0], [0; 4], [0, 0, 0, 1]]);
        assert_eq!(series.busiest(), MinuteCount { minute: 100, requests: 3, rejected: 1 });
    }

    #[test]
    fn long_logs_have_longer_intervals() {
        let mut series = OutcomeSeries::default();
        let last = MAX_INTERVALS as u64 * 5;
        (0..=last).for_each(|at| series.add(DecisionOutcome::Allowed, minute(at)));
        assert_eq!(series.minutes(), 8);
        assert!(series.intervals().len() <= MAX_INTERVALS);
        let sum: u64 = series.intervals().iter().map(|interval| u64::from(interval[0])).sum();
        assert_eq!(sum, last + 1);
        series.add(DecisionOutcome::Allowed, Timestamp::END);
        assert!(series.intervals().len() <= MAX_INTERVALS);
    }
}
