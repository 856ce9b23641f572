//! Requests that arrive at the instances of a fleet: how many, at which instance, and with which key.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;

/// Distribution of the demand over instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// The same demand at all instances.
    Even,
    /// Zipf's law: the second instance has half of the first one's demand, the third one a third.
    Zipf,
    /// Most of the demand is at one third of the instances, and moves to another third every second.
    Shifting,
    /// Each instance receives all of its demand within 200 ms of every second.
    Bursts,
}

impl Pattern {
    pub(crate) const ALL: [Self; 4] = [Self::Even, Self::Zipf, Self::Shifting, Self::Bursts];

    /// Returns the fraction of the fleet's demand that one of `of` instances has at a given time.
    fn share(self, instance: usize, fleet_size: usize, at: Duration) -> f64 {
        let all = fleet_size as f64;
        match self {
            Self::Even => 1.0 / all,
            Self::Zipf => {
                let sum: f64 = (1..=fleet_size).map(|rank| 1.0 / rank as f64).sum();
                1.0 / (instance + 1) as f64 / sum
            }
            Self::Shifting => {
                let is_hot = instance as u64 % 3 == at.as_secs() % 3;
                if is_hot { 2.7 / all } else { 0.15 / all }
            }
            Self::Bursts => {
                let phase = (at.as_secs_f64() + instance as f64 / all).fract();
                if phase < 0.2 { 5.0 / all } else { 0.0 }
            }
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Even => "even",
            Self::Zipf => "zipf",
            Self::Shifting => "shifting",
            Self::Bursts => "bursts",
        })
    }
}

/// Demand of a whole fleet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    pub(crate) pattern: Pattern,
    /// Requests per second.
    pub(crate) rate: f64,
    /// Number of distinct keys; requests are distributed over them by Zipf's law.
    pub(crate) keys: u32,
}

impl Demand {
    /// Draws the number of requests that arrive at an instance within `elapsed`, which ends at `at`.
    pub(crate) fn arrivals(
        &self,
        (instance, of): (usize, usize),
        at: Duration,
        elapsed: Duration,
        rng: &mut Rng,
    ) -> u64 {
        let mean = self.rate * self.pattern.share(instance, of, at) * elapsed.as_secs_f64();
        mean as u64 + u64::from(rng.f64() < mean.fract())
    }

    /// Draws the key of one request.
    pub(crate) fn key(&self, rng: &mut Rng) -> u32 {
        if self.keys == 1 {
            return 0;
        }
        let rank = (rng.f64() * f64::from(self.keys + 1).ln()).exp() as u32;
        rank.clamp(1, self.keys) - 1
    }
}
