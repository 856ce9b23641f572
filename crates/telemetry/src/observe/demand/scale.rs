//! Demand of keys in periods of one length.

use std::collections::HashMap;
use std::time::Duration;

use weir_limiter::key::KeyHash;
use weir_limiter::timestamp::Timestamp;

/// Maximum number of keys that are counted in the present period, and of keys whose peak is kept. Those with less are
/// dropped first.
const MAX_KEYS: usize = 512;
/// Time for which a peak is kept.
const RETENTION: Duration = Duration::from_secs(7 * 86_400);

/// The demand in periods of one length.
#[derive(Debug)]
pub(super) struct DemandScale {
    length: Duration,
    /// Number of the present period.
    number: u64,
    sums: HashMap<KeyHash, u64>,
    peaks: HashMap<KeyHash, DemandPeak>,
}

/// The highest demand of a key.
#[derive(Clone, Copy, Debug)]
struct DemandPeak {
    demand: u64,
    at: Timestamp,
}

impl DemandScale {
    pub(super) fn new(length: Duration) -> Self {
        Self { length, number: 0, sums: HashMap::new(), peaks: HashMap::new() }
    }

    pub(super) const fn length(&self) -> Duration {
        self.length
    }

    /// Adds the demand of keys at `now`.
    pub(super) fn add(&mut self, counts: &[(KeyHash, u64)], now: Timestamp) {
        let number = now.as_secs() / self.length.as_secs().max(1);
        if number != self.number {
            self.number = number;
            self.sums.clear();
            self.peaks.retain(|_, peak| now.since(peak.at) < RETENTION);
        }
        for (key, count) in counts {
            let sum = self.sums.entry(*key).or_default();
            *sum = sum.saturating_add(*count);
            let peak = self.peaks.entry(*key).or_insert(DemandPeak { demand: 0, at: now });
            if *sum >= peak.demand {
                *peak = DemandPeak { demand: *sum, at: now };
            }
        }
        keep_largest(&mut self.sums, |sum| *sum);
        keep_largest(&mut self.peaks, |peak| peak.demand);
    }

    /// Returns the peaks of all keys, in descending order.
    pub(super) fn peaks(&self) -> Vec<u64> {
        let mut peaks: Vec<u64> = self.peaks.values().map(|peak| peak.demand).collect();
        peaks.sort_unstable_by(|one, other| other.cmp(one));
        peaks
    }
}

/// Drops the keys with the least demand beyond [`MAX_KEYS`].
fn keep_largest<T>(keys: &mut HashMap<KeyHash, T>, demand: impl Fn(&T) -> u64) {
    let excess = keys.len().saturating_sub(MAX_KEYS);
    if excess == 0 {
        return;
    }
    let mut all: Vec<(u64, KeyHash)> = keys.iter().map(|(key, value)| (demand(value), *key)).collect();
    all.select_nth_unstable(excess - 1);
    all[..excess].iter().for_each(|(_, key)| {
        keys.remove(key);
    });
}
