//! Compares the admissions of a fleet with those of a single instance: usage of the limit, and violations.

use std::time::Duration;

/// Lengths of the windows in which admissions are counted, in milliseconds.
pub(crate) const WINDOWS: [usize; 3] = [100, 1000, 10_000];

/// A bucket that drains at the rate of the limit.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    level: f64,
    at: Duration,
}

impl Bucket {
    fn drain(&mut self, at: Duration, rate: f64) {
        self.level = (self.level - at.saturating_sub(self.at).as_secs_f64() * rate).max(0.0);
        self.at = self.at.max(at);
    }
}

/// Counts the admissions under one limit, for each key.
#[derive(Debug)]
pub(crate) struct AdmissionStats {
    rate: f64,
    burst: f64,
    /// Start of the measurement of usage. Before it, the initial burst of a bucket is used up.
    measured_from: Duration,
    admitted_by_fleet: Vec<Bucket>,
    admitted_by_single_instance: Vec<Bucket>,
    /// Admissions in each millisecond. Empty if there are several keys.
    millis: Vec<u32>,
    pub(crate) offered: u64,
    pub(crate) possible: u64,
    pub(crate) admitted: u64,
    /// Maximum number of admissions beyond `rate * window + burst`, over windows of any length.
    pub(crate) excess: f64,
}

impl AdmissionStats {
    pub(crate) fn new((rate, burst): (f64, f64), keys: u32, (from, until): (Duration, Duration)) -> Self {
        let buckets = vec![Bucket::default(); keys as usize];
        let millis = if keys == 1 { until.as_millis() as usize + 1000 } else { 0 };
        Self {
            rate,
            burst,
            measured_from: from,
            admitted_by_fleet: buckets.clone(),
            admitted_by_single_instance: buckets,
            millis: vec![0; millis],
            offered: 0,
            possible: 0,
            admitted: 0,
            excess: f64::NEG_INFINITY,
        }
    }

    /// Records the arrival of a request. Returns whether a single instance would admit it.
    pub(crate) fn record_arrival(&mut self, key: u32, at: Duration) -> bool {
        let counts = u64::from(at >= self.measured_from);
        self.offered += counts;
        let bucket = &mut self.admitted_by_single_instance[key as usize];
        bucket.drain(at, self.rate);
        let is_admitted = bucket.level + 1.0 <= self.burst + 1e-9;
        if is_admitted {
            bucket.level += 1.0;
            self.possible += counts;
        }
        is_admitted
    }

    /// Records that the fleet admits a request.
    pub(crate) fn record_admission(&mut self, key: u32, at: Duration) {
        self.admitted += u64::from(at >= self.measured_from);
        let bucket = &mut self.admitted_by_fleet[key as usize];
        bucket.drain(at, self.rate);
        bucket.level += 1.0;
        self.excess = self.excess.max(bucket.level - self.burst);
        if let Some(count) = self.millis.get_mut(at.as_millis() as usize) {
            *count += 1;
        }
    }

    /// Returns how many windows of each length in [`WINDOWS`] have more admissions than `rate * window + burst`. `None`
    /// if there are several keys; [`Self::excess`] covers windows of every length.
    pub(crate) fn violations(&self) -> Option<[usize; 3]> {
        let most = |window: usize| self.rate * window as f64 / 1e3 + self.burst;
        let over = |window: usize| {
            let mut sum = 0_u64;
            let mut over = 0;
            for (index, count) in self.millis.iter().enumerate() {
                sum += u64::from(*count);
                if let Some(first) = index.checked_sub(window) {
                    sum -= u64::from(self.millis[first]);
                }
                over += usize::from(sum as f64 > most(window) + 1e-6);
            }
            over
        };
        (!self.millis.is_empty()).then(|| WINDOWS.map(over))
    }

    /// Returns the admissions in each second.
    pub(crate) fn admissions_per_second(&self) -> Vec<u32> {
        self.millis.chunks(1000).map(|second| second.iter().sum()).collect()
    }
}
