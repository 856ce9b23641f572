//! Keys of one rule: how many requests each had in its busiest period, and what the rule did with those that it did not
//! simply admit.
//!
//! Memory is bounded: only the first keys are counted, as many as the limiter's table holds, and only the first keys that
//! the rule acted on are listed. What is left out is counted.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use foldhash::fast::FixedState;

use super::histogram::CountHistogram;
use crate::limiter::key::KeyHash;
use crate::limiter::timestamp::Timestamp;
use crate::rules::outcome::DecisionOutcome;

/// Maximum number of keys that are listed with their text.
const MAX_LISTED_KEYS: usize = 100_000;

/// What is counted of one key.
#[derive(Clone, Copy, Debug)]
struct KeyCount {
    /// Number of the present period since the first request.
    period: u32,
    /// Requests in the present period.
    requests: u32,
    /// Requests in the busiest period.
    peak: u32,
    /// Index of the key among the listed ones, plus one; 0 if it is not listed.
    listed: u32,
}

/// A key on which a rule acted.
#[derive(Clone, Debug)]
pub(in crate::replay) struct ListedKey {
    /// The key as text.
    pub(in crate::replay) text: Box<str>,
    /// Requests by outcome, in the order of [`DecisionOutcome::ALL`].
    pub(in crate::replay) outcomes: [u64; DecisionOutcome::ALL.len()],
    /// Times of the first and the last of these requests.
    pub(in crate::replay) first: Timestamp,
    pub(in crate::replay) last: Timestamp,
}

/// The keys of one rule.
#[derive(Debug)]
pub(in crate::replay) struct KeyTable {
    counts: HashMap<KeyHash, KeyCount, FixedState>,
    max_keys: usize,
    /// Length of a period, in nanoseconds.
    period: u64,
    /// Beginning of the first period.
    origin: Option<u64>,
    /// Requests of a key in one period.
    pub(in crate::replay) per_period: CountHistogram,
    /// Requests whose key was not counted, because there were too many.
    pub(in crate::replay) uncounted: u64,
    listed: Vec<ListedKey>,
    /// Requests on which the rule acted and whose key was not listed, because there were too many.
    pub(in crate::replay) unlisted: u64,
}

impl KeyTable {
    /// Creates a table for at most `max_keys` keys, which counts by periods of `period` nanoseconds.
    pub(in crate::replay) fn new(max_keys: usize, period: u64) -> Self {
        Self {
            counts: HashMap::default(),
            max_keys,
            period: period.max(1),
            origin: None,
            per_period: CountHistogram::default(),
            uncounted: 0,
            listed: Vec::new(),
            unlisted: 0,
        }
    }

    /// Counts a request. `text` is the key as text; it is needed for the first request that the rule does not simply
    /// admit.
    #[inline]
    pub(in crate::replay) fn count(
        &mut self,
        key: KeyHash,
        outcome: Option<DecisionOutcome>,
        now: Timestamp,
        text: impl FnOnce() -> String,
    ) {
        let origin = *self.origin.get_or_insert(now.as_nanos() / self.period);
        let period = u32::try_from((now.as_nanos() / self.period).saturating_sub(origin)).unwrap_or(u32::MAX);
        let is_full = self.counts.len() >= self.max_keys;
        let count = match self.counts.entry(key) {
            Entry::Occupied(count) => count.into_mut(),
            Entry::Vacant(_) if is_full => {
                self.uncounted += 1;
                self.unlisted += u64::from(acts(outcome).is_some());
                return;
            }
            Entry::Vacant(free) => free.insert(KeyCount { period, requests: 0, peak: 0, listed: 0 }),
        };
        if count.period != period {
            self.per_period.add(count.requests);
            (count.period, count.requests) = (period, 0);
        }
        count.requests = count.requests.saturating_add(1);
        count.peak = count.peak.max(count.requests);
        let Some(outcome) = acts(outcome) else { return };
        if count.listed == 0 {
            if self.listed.len() >= MAX_LISTED_KEYS {
                self.unlisted += 1;
                return;
            }
            let outcomes = [0; DecisionOutcome::ALL.len()];
            self.listed.push(ListedKey { text: text().into(), outcomes, first: now, last: now });
            count.listed = self.listed.len() as u32;
        }
        if let Some(listed) = self.listed.get_mut(count.listed as usize - 1) {
            listed.outcomes[outcome as usize] += 1;
            listed.last = now;
        }
    }

    /// Ends the present period of every key. Returns the distribution of the peaks.
    pub(in crate::replay) fn finish(&mut self) -> CountHistogram {
        let mut peaks = CountHistogram::default();
        for count in self.counts.values_mut() {
            self.per_period.add(count.requests);
            peaks.add(count.peak);
        }
        peaks
    }

    /// Number of keys that were counted.
    pub(in crate::replay) fn len(&self) -> usize {
        self.counts.len()
    }

    /// Returns the keys on which the rule acted.
    pub(in crate::replay) fn listed(&self) -> &[ListedKey] {
        &self.listed
    }
}

/// Returns the outcome if the rule did not simply admit the request.
fn acts(outcome: Option<DecisionOutcome>) -> Option<DecisionOutcome> {
    outcome.filter(|outcome| !matches!(outcome, DecisionOutcome::Allowed | DecisionOutcome::Exempt))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::key::KeyHasher;

    const MINUTE: u64 = 60_000_000_000;

    fn key(name: &str) -> KeyHash {
        KeyHasher::new([1, 2]).hash(name.as_bytes())
    }

    #[test]
    fn requests_are_counted_by_key_and_period() {
        let mut table = KeyTable::new(10, MINUTE);
        for (name, second) in [("a", 60), ("a", 119), ("a", 120), ("b", 180)] {
            table.count(key(name), Some(DecisionOutcome::Allowed), Timestamp::from_secs(second), String::new);
        }
        let peaks = table.finish();
        assert_eq!(peaks.buckets().collect::<Vec<_>>(), [(1, 1), (2, 1)]);
        assert_eq!(table.per_period.buckets().collect::<Vec<_>>(), [(1, 2), (2, 1)]);
        assert!(table.listed().is_empty());
    }

    #[test]
    fn keys_on_which_the_rule_acts_are_listed_with_their_times() {
        let mut table = KeyTable::new(10, MINUTE);
        let outcomes = [DecisionOutcome::Allowed, DecisionOutcome::Limited, DecisionOutcome::Limited];
        for (second, outcome) in (1..).zip(outcomes) {
            table.count(key("a"), Some(outcome), Timestamp::from_secs(second), || "a".to_owned());
        }
        let [listed] = table.listed() else { panic!("{table:?}") };
        assert_eq!(listed.outcomes[DecisionOutcome::Limited as usize], 2);
        assert_eq!((listed.first.as_secs(), listed.last.as_secs()), (2, 3));
    }

    #[test]
    fn full_table_counts_what_it_leaves_out() {
        let mut table = KeyTable::new(1, MINUTE);
        for name in ["a", "b", "a"] {
            table.count(key(name), Some(DecisionOutcome::Limited), Timestamp::EPOCH, || name.to_owned());
        }
        assert_eq!((table.len(), table.uncounted, table.unlisted), (1, 1, 1));
        assert_eq!(table.listed().len(), 1);
    }
}
