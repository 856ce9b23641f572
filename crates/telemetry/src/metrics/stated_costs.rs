//! Costs that the bodies of responses state, by rule name, across reloads and workers.

use std::sync::Arc;

use super::by_rule::ByRule;
use super::exporter::MetricRegistry;
use super::families;
use crate::atomic_counter::AtomicCounter;

/// Maximum number of rules that are counted separately. Further rules are counted together.
const MAX_RULES: usize = 1000;

/// How the cost of a response became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatedCostOutcome {
    /// The response has stated it.
    Stated,
    /// The response was read completely, and has no such field.
    Absent,
    /// The response cannot be read: another type, a content coding, or not JSON.
    Unreadable,
    /// The upstream broke off the response.
    BrokenOff,
    /// The client left before the end.
    Abandoned,
}

impl StatedCostOutcome {
    /// All outcomes, in order of declaration.
    pub const ALL: [Self; 5] =
        [Self::Stated, Self::Absent, Self::Unreadable, Self::BrokenOff, Self::Abandoned];

    /// Returns the label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stated => "stated",
            Self::Absent => "absent",
            Self::Unreadable => "unreadable",
            Self::BrokenOff => "broken_off",
            Self::Abandoned => "abandoned",
        }
    }
}

/// Metrics of one rule, which all workers share. Each response writes them once, at its end.
#[derive(Debug, Default)]
pub struct StatedCostMetrics {
    outcomes: [AtomicCounter; StatedCostOutcome::ALL.len()],
    units: AtomicCounter,
}

impl StatedCostMetrics {
    /// Counts a response, and the units that it was charged.
    pub fn record(&self, outcome: StatedCostOutcome, units: u32) {
        self.outcomes[outcome as usize].increment();
        self.units.add(units.into());
    }

    /// Returns the units that responses were charged so far.
    pub fn units(&self) -> u64 {
        self.units.get()
    }
}

/// Metrics of every rule with such a cost since the start, by name.
pub(super) type StatedCostRegistry = ByRule<Arc<StatedCostMetrics>, MAX_RULES>;

impl StatedCostRegistry {
    /// Sets the counters of all rules.
    pub(super) fn fill(&self, sums: &MetricRegistry) {
        for (name, rule) in self.iter() {
            sums.set_labelled_counters(
                &families::STATED_COSTS,
                ("rule", name),
                "outcome",
                StatedCostOutcome::ALL.map(StatedCostOutcome::as_str),
                &rule.outcomes,
            );
            sums.set_counter(&families::STATED_COST_UNITS, &[("rule", name)], rule.units.get());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_indexed_in_order() {
        for (index, outcome) in StatedCostOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index);
        }
    }
}
