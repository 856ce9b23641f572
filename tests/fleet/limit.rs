//! Limits as the script gets them, and what one instance would admit by them.

use std::collections::VecDeque;

/// Limits of each kind that the script supports; times are in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    Bucket { interval: u64, burst: u64 },
    Window { count: u64, length: u64 },
    Sliding { count: u64, length: u64 },
    Refill { count: u64, every: u64, burst: u64 },
}

impl Limit {
    /// Returns what this limit and `other` admit together while both are in force: up to the higher rate and the higher burst.
    pub(crate) fn combined(self, other: Self) -> Self {
        match (self, other) {
            (
                Self::Bucket { interval, burst },
                Self::Bucket { interval: other_interval, burst: other_burst },
            ) => Self::Bucket { interval: interval.min(other_interval), burst: burst.max(other_burst) },
            (limit, _) => limit,
        }
    }

    /// Returns a query at `now` for leases that are valid for `valid`. `rest` has the numbers of the query, `tail` the last two.
    pub(crate) fn question(self, now: u64, valid: u64, rest: &str, tail: &str) -> String {
        match self {
            Self::Bucket { interval, burst } => format!("b {interval} {burst} {valid} 1 0 1 {rest} {tail}"),
            Self::Window { count, length } => {
                let start = now - now % length;
                let marks = format!("{start} {} {}", start + length, start + 2 * length);
                format!("w {count} {valid} 1 1 {rest} {marks} {tail}")
            }
            Self::Sliding { count, length } => format!("s {count} {length} 100 {valid} 1 1 {rest} {tail}"),
            Self::Refill { count, every, burst } => {
                format!("r {count} {every} {burst} {valid} 1 1 {rest} {tail}")
            }
        }
    }
}

/// Admissions as the limit counts them.
#[derive(Default)]
pub(crate) struct ExactCounter {
    level: f64,
    pub(crate) at: u64,
    spent: VecDeque<(u64, u64)>,
}

impl ExactCounter {
    /// Records the admission of `units` at `now`. Returns the units beyond the limit.
    pub(crate) fn admit(&mut self, limit: Limit, units: u64, now: u64) -> f64 {
        match limit {
            Limit::Bucket { interval, burst } => {
                let drained = (now - self.at) as f64 / interval as f64;
                (self.level, self.at) = ((self.level - drained).max(0.0) + units as f64, now);
                self.level - burst as f64
            }
            Limit::Window { count, length } => {
                self.record_spent(units, now, now - now % length);
                self.spent_units() - count as f64
            }
            Limit::Sliding { count, length } => {
                self.record_spent(units, now, now - length + 1);
                self.spent_units() - count as f64
            }
            Limit::Refill { count, every, burst } => {
                self.record_spent(units, now, now - 20 * every);
                let mut sum = 0;
                let spans = self.spent.iter().rev().map(|(at, units)| {
                    sum += units;
                    sum as f64 - (burst + count * ((now - at) / every + 1)) as f64
                });
                spans.fold(f64::MIN, f64::max)
            }
        }
    }

    fn record_spent(&mut self, units: u64, now: u64, from: u64) {
        self.spent.push_back((now, units));
        while self.spent.front().is_some_and(|(at, _)| *at < from) {
            self.spent.pop_front();
        }
    }

    fn spent_units(&self) -> f64 {
        self.spent.iter().map(|(_, units)| *units).sum::<u64>() as f64
    }
}
