//! Signals of an upstream's spare capacity, and sets of them, as configured.

use std::fmt;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Deserialize;

use crate::control::samples::Samples;

/// A measurement that indicates how much more the upstream can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    /// Requests waiting for the upstream's response, compared with an adaptive limit.
    InFlight,
    /// Time until a response begins, compared with the usual time.
    Latency,
    /// Share of requests that fail at the upstream.
    Failures,
    /// Load that the upstream reports in ORCA headers.
    Utilization,
    /// Share of time in which work waits for a CPU.
    Cpu,
}

impl Signal {
    /// Every signal, in order of declaration.
    pub const ALL: [Self; 5] = [Self::InFlight, Self::Latency, Self::Failures, Self::Utilization, Self::Cpu];

    /// Returns the name in configuration.
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
pub struct SignalSet(u8);

impl SignalSet {
    /// All signals.
    pub const ALL: Self = Self((1 << Signal::ALL.len()) - 1);

    /// Whether the set contains `signal`.
    pub const fn contains(self, signal: Signal) -> bool {
        self.0 & (1 << signal as u8) != 0
    }
}

impl Default for SignalSet {
    fn default() -> Self {
        Self::ALL
    }
}

impl FromIterator<Signal> for SignalSet {
    fn from_iter<I: IntoIterator<Item = Signal>>(signals: I) -> Self {
        Self(signals.into_iter().fold(0, |set, signal| set | 1 << signal as u8))
    }
}

/// Measurements since the previous reading.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UpstreamMeasurement {
    /// Requests in flight at this moment.
    pub in_flight: u64,
    /// Times until responses began.
    pub response_times: Samples,
    /// Requests that ended, with or without a response, except those that clients cancelled.
    pub ended: u64,
    /// Those of them that failed at the upstream.
    pub failed: u64,
    /// Mean of the load that the upstream reported, if any; 1 is full utilization.
    pub utilization: Option<f64>,
    /// Share of time in which work waited for a CPU, if known; between 0 and 1.
    pub cpu: Option<f64>,
}

/// A signal at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SignalLevel {
    /// What is measured.
    pub signal: Signal,
    /// Value, in requests, seconds, or shares of 1.
    pub value: f64,
    /// Value from which the upstream has no headroom, in the same unit.
    pub threshold: f64,
}

impl SignalLevel {
    /// Value relative to the threshold, which is 1.
    pub fn pressure(&self) -> f64 {
        if self.threshold > 0.0 { self.value / self.threshold } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_set_contains_exactly_its_signals() {
        assert!(Signal::ALL.into_iter().all(|signal| SignalSet::ALL.contains(signal)));
        let some: SignalSet = [Signal::Latency, Signal::Cpu, Signal::Cpu].into_iter().collect();
        let contained: Vec<_> = Signal::ALL.into_iter().filter(|signal| some.contains(*signal)).collect();
        assert_eq!(contained, [Signal::Latency, Signal::Cpu]);
        assert_eq!(Signal::ALL.into_iter().collect::<SignalSet>(), SignalSet::ALL);
    }
}
