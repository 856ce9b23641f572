//! Limits inside streams, by rule name, across reloads and workers.

use std::sync::Arc;
use std::time::Duration;

use weir_policy::rules::stream_limit::StreamMeasure;

use super::by_rule::ByRule;
use super::exporter::{MetricRegistry, render_histograms};
use super::families;
use crate::atomic_counter::AtomicCounter;
use crate::histogram::Histogram;

/// Maximum number of rules that are counted separately. Further rules are counted together.
const MAX_RULES: usize = 1000;

/// What a limit did to a part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamOutcome {
    /// It passed at once.
    Allowed,
    /// It was held until the limit had room.
    Delayed,
    /// It would have been held, but the rule is in shadow mode.
    Shadow,
}

impl StreamOutcome {
    /// All outcomes, in order of declaration.
    pub const ALL: [Self; 3] = [Self::Allowed, Self::Delayed, Self::Shadow];

    /// Returns the label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Delayed => "delayed",
            Self::Shadow => "shadow",
        }
    }
}

/// Metrics of one rule, which all workers share.
#[derive(Debug, Default)]
pub struct StreamMetrics {
    units: [[AtomicCounter; StreamOutcome::ALL.len()]; StreamMeasure::ALL.len()],
    delays: Histogram,
}

/// What the limits of one rule on one measure have done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamCounts {
    pub measure: StreamMeasure,
    /// Units by outcome, in the order of [`StreamOutcome::ALL`].
    pub units: [u64; StreamOutcome::ALL.len()],
}

impl StreamMetrics {
    /// Counts a part of a stream, which is held for `delay`.
    pub fn record(&self, measure: StreamMeasure, outcome: StreamOutcome, units: u32, delay: Duration) {
        self.units[measure.index()][outcome as usize].add(units.into());
        if !delay.is_zero() {
            self.delays.record(delay);
        }
    }

    /// Returns what was counted so far, of the measures that were.
    pub fn counts(&self) -> Vec<StreamCounts> {
        let all = StreamMeasure::ALL.into_iter().zip(&self.units);
        let counts = all.map(|(measure, units)| StreamCounts {
            measure,
            units: [0, 1, 2].map(|outcome: usize| units[outcome].get()),
        });
        counts.filter(|counts| counts.units.iter().any(|units| *units > 0)).collect()
    }
}

/// Metrics of every rule with such limits since the start, by name.
pub(super) type StreamRegistry = ByRule<Arc<StreamMetrics>, MAX_RULES>;

impl StreamRegistry {
    /// Sets the counters of all rules.
    pub(super) fn fill(&self, sums: &MetricRegistry) {
        for (name, rule) in self.iter() {
            for StreamCounts { measure, units } in rule.counts() {
                for (outcome, units) in StreamOutcome::ALL.into_iter().zip(units) {
                    let labels =
                        [("rule", name), ("measure", measure.as_str()), ("outcome", outcome.as_str())];
                    sums.set_counter(&families::STREAM_UNITS, &labels, units);
                }
            }
        }
    }

    /// Renders the histograms of all rules; empty without rules.
    pub(super) fn render_delays(&self) -> String {
        if self.is_empty() {
            return String::new();
        }
        let delays = self.iter().map(|(name, rule)| (name, &rule.delays));
        render_histograms(&families::STREAM_DELAYS, "rule", delays)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_indexed_in_order() {
        for (index, outcome) in StreamOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index);
        }
        for (index, measure) in StreamMeasure::ALL.into_iter().enumerate() {
            assert_eq!(measure.index(), index);
        }
    }
}
