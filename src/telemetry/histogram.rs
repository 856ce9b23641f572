//! Durations counted into fixed buckets.
//!
//! The exporter's own histograms keep every sample until somebody scrapes, so their memory grows with
//! traffic. Here a sample is two relaxed additions to memory of constant size, and a scrape adds up the
//! histograms of all workers.

use std::time::Duration;

use super::count::{self, Count};
use crate::limiter::timestamp::saturating_nanos;

/// Upper bounds of the buckets, inclusive, in nanoseconds.
///
/// From 50 µs, which is what a request costs that never leaves this process, to 60 s, which is longer than
/// any reasonable timeout. Envoy's bounds between 0.5 ms and 60 s are all among them, so that dashboards
/// made for Envoy show exact numbers.
pub const BOUNDS: [u64; 19] = [
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
];

const BUCKETS: usize = BOUNDS.len() + 1;

/// Samples by how long they are.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [Count; BUCKETS],
    nanos: Count,
}

impl Clone for Histogram {
    fn clone(&self) -> Self {
        let mut copy = Self::default();
        copy.absorb(self);
        copy
    }
}

impl Histogram {
    /// Counts one sample.
    pub fn record(&self, duration: Duration) {
        let nanos = saturating_nanos(duration);
        self.buckets[bucket_of(nanos)].increment();
        self.nanos.add(nanos);
    }

    /// Adds the samples of `other` so far.
    pub fn absorb(&mut self, other: &Self) {
        count::absorb_all(&mut self.buckets, &other.buckets);
        self.nanos.absorb(&other.nanos);
    }

    /// Samples.
    pub fn count(&self) -> u64 {
        count::sum(&self.buckets)
    }

    /// All samples together.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.nanos.get())
    }

    /// Bounds in nanoseconds and how many samples were at most that long; samples beyond the last bound are
    /// in [`Self::count`] alone.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        BOUNDS.iter().zip(&self.buckets).scan(0, |below, (bound, bucket)| {
            *below += bucket.get();
            Some((*bound, *below))
        })
    }
}

/// The number of bounds below the sample: no branches, and the compiler compares several at a time.
fn bucket_of(nanos: u64) -> usize {
    BOUNDS.iter().map(|bound| usize::from(nanos > *bound)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(histograms: &[Histogram]) -> Histogram {
        let mut totals = Histogram::default();
        histograms.iter().for_each(|histogram| totals.absorb(histogram));
        totals
    }

    fn below(totals: &Histogram, bound: u64) -> u64 {
        totals.cumulative().find(|(at, _)| *at == bound).unwrap().1
    }

    #[test]
    fn a_bound_belongs_to_its_own_bucket() {
        for bound in BOUNDS {
            let histogram = Histogram::default();
            histogram.record(Duration::from_nanos(bound));
            histogram.record(Duration::from_nanos(bound + 1));
            let totals = totals(&[histogram]);
            assert_eq!(below(&totals, bound), 1, "{bound}");
            assert_eq!(totals.count(), 2);
        }
    }

    #[test]
    fn the_shortest_and_the_longest_samples_are_counted() {
        let histogram = Histogram::default();
        histogram.record(Duration::ZERO);
        histogram.record(Duration::from_secs(3600));
        let totals = totals(&[histogram]);
        assert_eq!(below(&totals, BOUNDS[0]), 1);
        assert_eq!(below(&totals, BOUNDS[BOUNDS.len() - 1]), 1);
        assert_eq!(totals.count(), 2);
        assert_eq!(totals.sum(), Duration::from_secs(3600));
    }

    #[test]
    fn workers_add_up() {
        let workers = [Histogram::default(), Histogram::default()];
        workers[0].record(Duration::from_millis(3));
        workers[1].record(Duration::from_millis(3));
        workers[1].record(Duration::from_millis(300));
        let totals = totals(&workers);
        assert_eq!(below(&totals, 5_000_000), 2);
        assert_eq!(below(&totals, 500_000_000), 3);
        assert_eq!(totals.sum(), Duration::from_millis(306));
    }

    #[test]
    fn buckets_never_shrink_from_bound_to_bound() {
        let histogram = Histogram::default();
        for nanos in [1, 60_000, 3_000_000, 70_000_000_000] {
            histogram.record(Duration::from_nanos(nanos));
        }
        let counts: Vec<_> = totals(&[histogram]).cumulative().map(|(_, count)| count).collect();
        assert!(counts.is_sorted());
    }
}
