//! What tells how much more an upstream could take, and which of it an operator wants to be gone by.

use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;

use super::latency::Samples;

/// Something that tells how much more the upstream could take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    /// Requests that wait for the upstream's answer, against an adaptive limit.
    InFlight,
    /// The time until an answer begins, against what is usual.
    Latency,
    /// The share of requests that the upstream fails.
    Failures,
    /// The load that the upstream reports in ORCA's headers.
    Utilization,
    /// The share of time that work waits for a CPU.
    Cpu,
}

impl Signal {
    /// Every signal, in the order of their declaration.
    pub const ALL: [Self; 5] = [Self::InFlight, Self::Latency, Self::Failures, Self::Utilization, Self::Cpu];

    /// As it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InFlight => "in_flight",
            Self::Latency => "latency",
            Self::Failures => "failures",
            Self::Utilization => "utilization",
            Self::Cpu => "cpu",
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signals(u8);

impl Signals {
    /// All of them.
    pub const ALL: Self = Self((1 << Signal::ALL.len()) - 1);

    /// Whether `signal` is among them.
    pub const fn contains(self, signal: Signal) -> bool {
        self.0 & (1 << signal as u8) != 0
    }
}

impl Default for Signals {
    fn default() -> Self {
        Self::ALL
    }
}

impl FromIterator<Signal> for Signals {
    fn from_iter<I: IntoIterator<Item = Signal>>(signals: I) -> Self {
        Self(signals.into_iter().fold(0, |set, signal| set | 1 << signal as u8))
    }
}

/// What has been measured since the reading before.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// Requests under way at this moment.
    pub in_flight: u64,
    /// How long answers took to begin.
    pub answers: Samples,
    /// Requests that ended, with or without an answer; those that clients gave up apart.
    pub ended: u64,
    /// Those among them that the upstream failed.
    pub failed: u64,
    /// Mean of what the upstream reported, if it did: 1 is all it has.
    pub utilization: Option<f64>,
    /// The share of time that work waited for a CPU, if that is known: between 0 and 1.
    pub cpu: Option<f64>,
}

/// A signal at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// Which.
    pub signal: Signal,
    /// What it says: requests, seconds, or shares of 1.
    pub value: f64,
    /// From where on the upstream has no headroom, in the same unit.
    pub threshold: f64,
}

impl Level {
    /// How far it has gone to its threshold, which is 1.
    pub fn pressure(&self) -> f64 {
        if self.threshold > 0.0 { self.value / self.threshold } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_into_it() {
        assert!(Signal::ALL.into_iter().all(|signal| Signals::ALL.contains(signal)));
        let some: Signals = [Signal::Latency, Signal::Cpu, Signal::Cpu].into_iter().collect();
        let contained: Vec<_> = Signal::ALL.into_iter().filter(|signal| some.contains(*signal)).collect();
        assert_eq!(contained, [Signal::Latency, Signal::Cpu]);
        assert_eq!(Signal::ALL.into_iter().collect::<Signals>(), Signals::ALL);
    }
}
