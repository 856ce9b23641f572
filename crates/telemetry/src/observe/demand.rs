//! Demand of the heaviest keys of each rule, over days, for suggestions of limits.
//!
//! Once a minute, the sketches of the minute before are read. Of each key, the highest demand in a minute, an hour and a
//! day is kept for a week. Requests that a rule rejects are demand like any other. It is lost at a restart.

mod scale;

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use self::scale::DemandScale;
use super::top_keys::RuleTop;
use weir_limiter::key::KeyHash;
use weir_limiter::timestamp::Timestamp;

/// Maximum number of keys of a rule whose demand is read each minute.
pub const MAX_SAMPLED_KEYS: usize = 256;
/// Maximum number of rules. A rule takes up to 60 KB.
const MAX_RULES: usize = 256;
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// The demand of all rules.
#[derive(Debug, Default)]
pub struct DemandHistory {
    rules: Mutex<BTreeMap<Box<str>, RuleDemand>>,
}

/// The demand of one rule.
#[derive(Debug)]
struct RuleDemand {
    /// What the keys mean. Demand of another meaning is dropped.
    meaning: Box<str>,
    since: Timestamp,
    /// Highest number of keys in a minute.
    keys: usize,
    scales: [DemandScale; 3],
}

/// What is known of the demand of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DemandSummary {
    /// Time for which it was observed.
    pub observed: Duration,
    /// Highest number of keys that were tracked in a minute.
    pub keys: usize,
    /// For a minute, an hour and a day: the highest demand of each key, in descending order.
    pub peaks: [(Duration, Vec<u64>); 3],
}

impl DemandHistory {
    /// Adds the decisions of the minute before `now` about the keys of a rule, which have this meaning.
    pub fn record(&self, rule: &str, meaning: &str, top: &RuleTop, now: Timestamp) {
        let mut rules = self.rules.lock();
        if !rules.contains_key(rule) && rules.len() >= MAX_RULES {
            return;
        }
        let start = now.saturating_sub(MINUTE);
        let known = rules.entry(rule.into()).or_insert_with(|| RuleDemand::new(meaning, start));
        if *known.meaning != *meaning {
            *known = RuleDemand::new(meaning, start);
        }
        known.keys = known.keys.max(top.tracked);
        let counts: Vec<(KeyHash, u64)> = top.keys.iter().map(|key| (key.key, key.counts.total())).collect();
        known.scales.iter_mut().for_each(|scale| scale.add(&counts, start));
    }

    /// Drops the demand of rules that no configuration has any more.
    pub fn retain(&self, is_known: impl Fn(&str) -> bool) {
        self.rules.lock().retain(|rule, _| is_known(rule));
    }

    /// Returns the demand of a rule; `None` if nothing is known.
    pub fn summary(&self, rule: &str, now: Timestamp) -> Option<DemandSummary> {
        let rules = self.rules.lock();
        let known = rules.get(rule)?;
        Some(DemandSummary {
            observed: now.since(known.since),
            keys: known.keys,
            peaks: known.scales.each_ref().map(|scale| (scale.length(), scale.peaks())),
        })
    }

    /// Whether rules are left out, because there are too many.
    pub fn is_full(&self) -> bool {
        self.rules.lock().len() >= MAX_RULES
    }
}

impl RuleDemand {
    fn new(meaning: &str, since: Timestamp) -> Self {
        let scales = [MINUTE, HOUR, DAY].map(DemandScale::new);
        Self { meaning: meaning.into(), since, keys: 0, scales }
    }
}

#[cfg(test)]
mod tests;
