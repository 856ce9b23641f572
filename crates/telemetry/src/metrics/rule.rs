//! Decision counters of each rule, by rule name, across reloads and workers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::by_rule::ByRule;
use super::exporter::MetricRegistry;
use super::families;
use crate::atomic_counter::AtomicCounter;
pub use weir_policy::rules::outcome::DecisionOutcome;

/// Number of stripes, each for one or more threads.
const STRIPES: usize = 16;
/// Number of stripes that one thread writes: those of the first threads that count. Further threads share the others.
const EXCLUSIVE_STRIPES: usize = 12;

/// Maximum number of rules that are counted separately. Names come from the configuration, but a long-lived process may
/// see many configurations. Further rules are counted together.
const MAX_RULES: usize = 10_000;

/// Number of requests per outcome of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecisionCounts([u64; DecisionOutcome::ALL.len()]);

impl DecisionCounts {
    /// Returns the number of requests with this outcome.
    pub const fn get(&self, outcome: DecisionOutcome) -> u64 {
        self.0[outcome as usize]
    }

    /// Returns the number of requests with any of these outcomes.
    pub fn sum_of(&self, outcomes: &[DecisionOutcome]) -> u64 {
        outcomes.iter().map(|outcome| self.get(*outcome)).sum()
    }

    /// Returns every outcome with its count.
    pub fn iter(&self) -> impl Iterator<Item = (DecisionOutcome, u64)> + '_ {
        DecisionOutcome::ALL.into_iter().map(|outcome| (outcome, self.get(outcome)))
    }
}

/// Eight counters, aligned to the pair of cache lines that processors fetch together.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe([AtomicCounter; DecisionOutcome::ALL.len()]);

/// Counters of one rule. Handles with the same name share them, regardless of the configuration.
#[derive(Clone, Debug, Default)]
pub struct RuleMetrics(Arc<RuleCounters>);

#[derive(Debug, Default)]
struct RuleCounters {
    /// Created by the first request that a thread counts. Most of thousands of rules have none.
    stripes: [OnceLock<Box<Stripe>>; STRIPES],
    /// Requests whose limit cannot be read, if the rule reads limits of requests.
    unreadable_limits: OnceLock<AtomicCounter>,
}

impl RuleMetrics {
    /// Counts one request.
    pub fn record(&self, outcome: DecisionOutcome) {
        let stripe = STRIPE.with(|stripe| *stripe);
        let counter = &self.0.stripes[stripe].get_or_init(Box::default).0[outcome as usize];
        if stripe < EXCLUSIVE_STRIPES { counter.increment_exclusive() } else { counter.increment() }
    }

    /// Shows from now on how many requests state a limit that cannot be read.
    pub fn show_unreadable_limits(&self) {
        self.0.unreadable_limits.get_or_init(AtomicCounter::default);
    }

    /// Counts a request that states a limit that cannot be read.
    pub fn record_unreadable_limit(&self) {
        self.0.unreadable_limits.get_or_init(AtomicCounter::default).increment();
    }

    /// Returns the sums over all stripes.
    pub fn decisions(&self) -> DecisionCounts {
        let mut decisions = DecisionCounts::default();
        for stripe in self.0.stripes.iter().filter_map(OnceLock::get) {
            for (total, count) in decisions.0.iter_mut().zip(&stripe.0) {
                *total = total.saturating_add(count.get());
            }
        }
        decisions
    }
}

thread_local! {
    /// Stripe of this thread: all workers share the rules, but not their cache lines.
    static STRIPE: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        match NEXT.fetch_add(1, Ordering::Relaxed) {
            first if first < EXCLUSIVE_STRIPES => first,
            other => EXCLUSIVE_STRIPES + other % (STRIPES - EXCLUSIVE_STRIPES),
        }
    };
}

/// Counters of every rule since the start, by name.
pub(super) type RuleRegistry = ByRule<RuleMetrics, MAX_RULES>;

impl RuleRegistry {
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(name, _)| name)
    }

    /// Sets the counters of all rules.
    pub(super) fn fill(&self, sums: &MetricRegistry) {
        for (name, rule) in self.iter() {
            let name = ("rule", name);
            for (outcome, count) in rule.decisions().iter() {
                sums.set_counter(&families::DECISIONS, &[name, ("outcome", outcome.as_str())], count);
            }
            if let Some(unreadable) = rule.0.unreadable_limits.get() {
                sums.set_counter(&families::UNREADABLE_LIMITS, &[name], unreadable.get());
            }
        }
    }

    pub(super) fn decisions(&self) -> Vec<(Box<str>, DecisionCounts)> {
        self.iter().map(|(name, rule)| (name.into(), rule.decisions())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::by_rule::OTHER_RULES;
    use super::*;

    #[test]
    fn rule_counters_continue_across_reloads() {
        let mut rules = RuleRegistry::default();
        rules.get_or_insert("per-ip").record(DecisionOutcome::Allowed);
        rules.get_or_insert("per-ip").record(DecisionOutcome::Allowed);
        rules.get_or_insert("login").record(DecisionOutcome::Limited);
        let decisions = rules.get("per-ip").unwrap().decisions();
        assert_eq!(decisions.get(DecisionOutcome::Allowed), 2);
        assert_eq!(decisions.get(DecisionOutcome::Limited), 0);
    }

    #[test]
    fn rule_counters_of_threads_add_up() {
        const DECISIONS: u64 = 20_000;
        let (rule, begin) = (RuleMetrics::default(), std::sync::Barrier::new(2 * STRIPES));
        std::thread::scope(|scope| {
            for _ in 0..2 * STRIPES {
                scope.spawn(|| {
                    begin.wait();
                    (0..DECISIONS).for_each(|_| rule.record(DecisionOutcome::Shadow));
                });
            }
        });
        assert_eq!(rule.decisions().get(DecisionOutcome::Shadow), 2 * STRIPES as u64 * DECISIONS);
    }

    #[test]
    fn rules_beyond_the_maximum_share_counters() {
        let mut rules = RuleRegistry::default();
        for rule in 0..MAX_RULES + 3 {
            rules.get_or_insert(&format!("rule-{rule}")).record(DecisionOutcome::Allowed);
        }
        assert_eq!(rules.decisions().len(), MAX_RULES + 1);
        assert_eq!(rules.get(OTHER_RULES).unwrap().decisions().get(DecisionOutcome::Allowed), 3);
    }

    #[test]
    fn decision_outcomes_are_indexed_in_order() {
        for (index, outcome) in DecisionOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index);
        }
    }
}
