//! Histogram of durations with fixed buckets.
//!
//! The histograms of the exporter store every sample until the next scrape, so their memory grows with traffic. Here a
//! sample costs two additions in memory of constant size. A scrape sums the histograms of all workers.

use std::time::Duration;

use super::atomic_counter::{self, AtomicCounter};
use weir_limiter::timestamp::saturating_nanos;

/// Upper bounds of the buckets, inclusive, in nanoseconds.
///
/// They range from 50 µs, the time of a request with a local reply, to 60 s, longer than any reasonable timeout. They
/// include all of Envoy's bounds between 0.5 ms and 60 s, so dashboards made for Envoy show exact numbers.
pub const BUCKET_BOUNDS: [u64; 19] = [
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

const BUCKET_COUNT: usize = BUCKET_BOUNDS.len() + 1;

/// Number of samples per bucket, and their sum.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicCounter; BUCKET_COUNT],
    sum_nanos: AtomicCounter,
}

impl Clone for Histogram {
    fn clone(&self) -> Self {
        let mut copy = Self::default();
        copy.merge(self);
        copy
    }
}

impl Histogram {
    /// Counts one sample.
    pub fn record(&self, duration: Duration) {
        let nanos = saturating_nanos(duration);
        self.buckets[bucket_index(nanos)].increment();
        self.sum_nanos.add(nanos);
    }

    /// As [`Self::record`], without locked instructions. A sample that another thread records meanwhile would be lost.
    pub fn record_exclusive(&self, duration: Duration) {
        let nanos = saturating_nanos(duration);
        self.buckets[bucket_index(nanos)].increment_exclusive();
        self.sum_nanos.add_exclusive(nanos);
    }

    /// Adds the current samples of `other`.
    pub fn merge(&mut self, other: &Self) {
        atomic_counter::merge_all(&mut self.buckets, &other.buckets);
        self.sum_nanos.merge(&other.sum_nanos);
    }

    /// Returns the number of samples.
    pub fn count(&self) -> u64 {
        atomic_counter::sum(&self.buckets)
    }

    /// Returns the sum of all samples.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_nanos.get())
    }

    /// Returns each bound in nanoseconds with the number of samples up to it. Samples beyond the last bound are only
    /// included in [`Self::count`].
    pub fn cumulative_buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        BUCKET_BOUNDS.iter().zip(&self.buckets).scan(0, |below, (bound, bucket)| {
            *below += bucket.get();
            Some((*bound, *below))
        })
    }
}

/// Returns the number of bounds below the sample. Free of branches, so the compiler vectorises the comparison.
fn bucket_index(nanos: u64) -> usize {
    BUCKET_BOUNDS.iter().map(|bound| usize::from(nanos > *bound)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(histograms: &[Histogram]) -> Histogram {
        let mut totals = Histogram::default();
        histograms.iter().for_each(|histogram| totals.merge(histogram));
        totals
    }

    fn count_up_to(totals: &Histogram, bound: u64) -> u64 {
        totals.cumulative_buckets().find(|(at, _)| *at == bound).unwrap().1
    }

    #[test]
    fn histogram_bounds_are_inclusive() {
        for bound in BUCKET_BOUNDS {
            let histogram = Histogram::default();
            histogram.record(Duration::from_nanos(bound));
            histogram.record(Duration::from_nanos(bound + 1));
            let totals = totals(&[histogram]);
            assert_eq!(count_up_to(&totals, bound), 1, "{bound}");
            assert_eq!(totals.count(), 2);
        }
    }

    #[test]
    fn histogram_counts_samples_outside_its_bounds() {
        let histogram = Histogram::default();
        histogram.record(Duration::ZERO);
        histogram.record(Duration::from_secs(3600));
        let totals = totals(&[histogram]);
        assert_eq!(count_up_to(&totals, BUCKET_BOUNDS[0]), 1);
        assert_eq!(count_up_to(&totals, BUCKET_BOUNDS[BUCKET_BOUNDS.len() - 1]), 1);
        assert_eq!(totals.count(), 2);
        assert_eq!(totals.sum(), Duration::from_secs(3600));
    }

    #[test]
    fn histograms_of_workers_add_up() {
        let workers = [Histogram::default(), Histogram::default()];
        workers[0].record(Duration::from_millis(3));
        workers[1].record(Duration::from_millis(3));
        workers[1].record(Duration::from_millis(300));
        let totals = totals(&workers);
        assert_eq!(count_up_to(&totals, 5_000_000), 2);
        assert_eq!(count_up_to(&totals, 500_000_000), 3);
        assert_eq!(totals.sum(), Duration::from_millis(306));
    }

    #[test]
    fn histogram_buckets_are_cumulative() {
        let histogram = Histogram::default();
        for nanos in [1, 60_000, 3_000_000, 70_000_000_000] {
            histogram.record(Duration::from_nanos(nanos));
        }
        let counts: Vec<_> = totals(&[histogram]).cumulative_buckets().map(|(_, count)| count).collect();
        assert!(counts.is_sorted());
    }
}
