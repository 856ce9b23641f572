//! Histogram of durations with a resolution of one part in sixteen.

use std::time::Duration;

const PARTS: u32 = 16;

/// Counts of durations, by nanoseconds.
#[derive(Debug)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self { counts: vec![0; 64 * PARTS as usize], total: 0 }
    }

    pub(crate) fn record(&mut self, duration: Duration) {
        let nanos = (duration.as_nanos() as u64).max(1);
        self.counts[Self::bin(nanos)] += 1;
        self.total += 1;
    }

    fn bin(nanos: u64) -> usize {
        let power = nanos.ilog2();
        let rest = if power < 4 { 0 } else { (nanos >> (power - 4)) as u32 % PARTS };
        (power * PARTS + rest) as usize
    }

    /// Returns the upper bound of the given quantile; zero if there are no values.
    pub(crate) fn quantile(&self, part: f64) -> Duration {
        let wanted = (self.total as f64 * part).ceil() as u64;
        let mut sum = 0;
        for (bin, count) in self.counts.iter().enumerate() {
            sum += count;
            if sum >= wanted && *count > 0 {
                let (power, rest) = (bin as u32 / PARTS, (bin as u32 % PARTS) as u64);
                let upper = (1_u64 << power) as f64 * (1.0 + (rest + 1) as f64 / f64::from(PARTS));
                return Duration::from_nanos(upper as u64);
            }
        }
        Duration::ZERO
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }
}
