//! Limits of each kind, and what all regions together spend of them.

use std::collections::HashMap;
use std::time::Duration;

use fastrand::Rng;
use weir_store::regions::RegionalLimit;

use crate::limit::{ExactCounter, Limit};

pub(super) const SECOND: u64 = 1_000_000;

impl Limit {
    pub(super) fn random(rng: &mut Rng) -> Self {
        match rng.u8(0..4) {
            0 => Self::Window {
                count: [7, 60, 1000][rng.usize(0..3)],
                length: [2, 90][rng.usize(0..2)] * SECOND,
            },
            1 => Self::Sliding {
                count: [7, 50, 1000][rng.usize(0..3)],
                length: [1, 30][rng.usize(0..2)] * SECOND,
            },
            2 => Self::Refill {
                count: 5,
                every: [SECOND, 10 * SECOND][rng.usize(0..2)],
                burst: [10, 60][rng.usize(0..2)],
            },
            _ => Self::Bucket {
                interval: [1000, 10_000, 1_000_000][rng.usize(0..3)],
                burst: [2, 10, 100, 1000][rng.usize(0..4)],
            },
        }
    }

    pub(super) fn units(self) -> u64 {
        match self {
            Self::Bucket { burst, .. } | Self::Refill { burst, .. } => burst,
            Self::Window { count, .. } | Self::Sliding { count, .. } => count,
        }
    }

    pub(super) fn settle(self) -> u64 {
        match self {
            Self::Bucket { interval, burst } => interval * burst,
            Self::Window { length, .. } => length,
            Self::Sliding { length, .. } => length + length / 100,
            Self::Refill { count, every, burst } => every * (burst.div_ceil(count) + 1),
        }
    }

    pub(super) fn regional(self) -> RegionalLimit {
        let has_rate = matches!(self, Self::Bucket { .. } | Self::Refill { .. });
        RegionalLimit {
            units: self.units() as u32,
            settle_time: Duration::from_micros(self.settle()),
            has_rate,
        }
    }

    /// Maximum validity of a lease.
    pub(super) fn max_valid(self) -> u64 {
        let valid = match self {
            Self::Bucket { interval, burst } => interval * (burst - 1) * 6 / 10,
            Self::Window { .. } => SECOND,
            Self::Sliding { length, .. } => length / 100,
            Self::Refill { every, .. } => every,
        };
        valid.min(SECOND)
    }
}

/// What all regions together have spent.
#[derive(Default)]
pub(super) struct Spending {
    counter: ExactCounter,
    /// Level of a bucket that drains at the rate of refills.
    level: f64,
    at: u64,
    of_window: HashMap<u64, u64>,
    pub(super) total: u64,
}

impl Spending {
    /// Records units that are spent at `now`, at `local` of the clock of the region; returns what exceeds the limit.
    pub(super) fn spend(&mut self, limit: Limit, units: u64, now: u64, local: u64) -> f64 {
        self.total += units;
        match limit {
            Limit::Bucket { .. } | Limit::Sliding { .. } => self.counter.admit(limit, units, now),
            // Regions have marks of their own.
            Limit::Refill { count, every, burst } => {
                let drained = (now - self.at) as f64 * count as f64 / every as f64;
                (self.level, self.at) = ((self.level - drained).max(0.0) + units as f64, now);
                self.level - (burst + count) as f64
            }
            // Regions have clocks of their own.
            Limit::Window { count, length } => {
                let used = self.of_window.entry(local / length).or_default();
                *used += units;
                *used as f64 - count as f64
            }
        }
    }
}
