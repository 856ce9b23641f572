//! Keys of one limit: how many requests each had in its busiest period, and what the rule did with those that it did not
//! simply admit.
//!
//! Memory is bounded: only the first keys are counted, as many as the limiter's table holds, and only the first keys that
//! the rule acted on are listed. What is left out is counted.

use std::hash::BuildHasher as _;

use foldhash::fast::FixedState;

use super::histogram::CountHistogram;
use super::periods::DemandPeriods;
use weir_limiter::key::KeyHash;
use weir_limiter::timestamp::Timestamp;
use weir_policy::rules::outcome::DecisionOutcome;

/// Maximum number of keys that are listed with their text.
const MAX_LISTED_KEYS: usize = 100_000;
/// Requests that are counted together. Their slots are read before, so that the processor fetches them from memory at the
/// same time: most of them are in no cache.
const BATCH_SIZE: usize = 32;
/// Initial number of slots, a power of two.
const MIN_SLOTS: usize = 1024;

/// What is counted of one key.
#[derive(Clone, Copy, Debug, Default)]
struct KeyCount {
    key: KeyHash,
    /// Number of the present period.
    period: u32,
    /// Requests in the present period.
    requests: u32,
    /// Requests in the busiest period.
    peak: u32,
    /// Index of the key among the listed ones, plus one; 0 if it is not listed.
    listed: u32,
}

impl KeyCount {
    /// Whether the slot has no key: every key has had requests that count, or is listed.
    #[inline]
    const fn is_free(&self) -> bool {
        self.peak | self.listed == 0
    }
}

/// A key on which a rule acted.
#[derive(Clone, Debug)]
pub(crate) struct ListedKey {
    pub(crate) text: Box<str>,
    /// Requests by outcome, in the order of [`DecisionOutcome::ALL`].
    pub(crate) outcomes: [u64; DecisionOutcome::ALL.len()],
    /// Times of the first and the last of these requests.
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
}

/// The keys of one limit. Those on which its rule acted are listed under the first limit of the rule.
#[derive(Debug)]
pub(crate) struct KeyTable {
    /// A power of two of slots, at most three quarters of them in use. Empty before the first request.
    slots: Vec<KeyCount>,
    used: usize,
    max_keys: usize,
    periods: DemandPeriods,
    /// Requests that count against the limit.
    requests: u64,
    /// Requests that were simply admitted and are not counted yet: their keys and periods.
    batch: Vec<(KeyHash, u32)>,
    /// Requests of a key in one period.
    pub(crate) per_period: CountHistogram,
    /// Requests whose key was not counted, because there were too many.
    pub(crate) uncounted: u64,
    listed: Vec<ListedKey>,
    /// Requests on which the rule acted and whose key was not listed, because there were too many.
    pub(crate) unlisted: u64,
}

impl KeyTable {
    /// Creates a table for at most `max_keys` keys, which counts by `periods`.
    pub(crate) fn new(max_keys: usize, periods: DemandPeriods) -> Self {
        Self {
            slots: Vec::new(),
            used: 0,
            max_keys,
            periods,
            requests: 0,
            batch: Vec::with_capacity(BATCH_SIZE),
            per_period: CountHistogram::default(),
            uncounted: 0,
            listed: Vec::new(),
            unlisted: 0,
        }
    }

    /// Counts a request that counts against the limit. `text` is the key as text; it is needed for the first request that the rule does not simply
    /// admit.
    #[inline]
    pub(crate) fn count(
        &mut self,
        key: KeyHash,
        outcome: Option<DecisionOutcome>,
        now: Timestamp,
        text: impl FnOnce() -> String,
    ) {
        let period = self.periods.number_at(now);
        self.requests += 1;
        match acts(outcome) {
            None => {
                self.batch.push((key, period));
                if self.batch.len() >= BATCH_SIZE {
                    self.count_batch();
                }
            }
            Some(outcome) => {
                // In order of time, since periods follow each other.
                self.count_batch();
                match self.add(key, period) {
                    Some(place) => self.list(place, outcome, now, text),
                    None => self.unlisted += 1,
                }
            }
        }
    }

    /// Lists a request that does not count against the limit, if the rule did not simply admit it.
    pub(crate) fn list_uncounted(
        &mut self,
        key: KeyHash,
        outcome: Option<DecisionOutcome>,
        now: Timestamp,
        text: impl FnOnce() -> String,
    ) {
        let Some(outcome) = acts(outcome) else { return };
        self.count_batch();
        let is_full = self.listed.len() >= MAX_LISTED_KEYS;
        // A slot of a key without counted requests must be listed.
        match self.claim(key, is_full) {
            Some(place) => self.list(place, outcome, now, text),
            None => self.unlisted += 1,
        }
    }

    fn count_batch(&mut self) {
        if let Some(last) = self.slots.len().checked_sub(1) {
            let places = self.batch.iter().map(|(key, _)| self.slots[home(*key, last)].peak);
            std::hint::black_box(places.fold(0, |all, peak| all | peak));
        }
        for index in 0..self.batch.len() {
            let (key, period) = self.batch[index];
            let _ = self.add(key, period);
        }
        self.batch.clear();
    }

    /// Counts a request of `key`; returns its slot, and `None` if there is no room for the key.
    #[inline]
    fn add(&mut self, key: KeyHash, period: u32) -> Option<usize> {
        let Some(place) = self.claim(key, false) else {
            self.uncounted += 1;
            return None;
        };
        let count = &mut self.slots[place];
        if count.period != period {
            if count.requests > 0 {
                self.per_period.add(count.requests);
            }
            (count.period, count.requests) = (period, 0);
        }
        count.requests = count.requests.saturating_add(1);
        count.peak = count.peak.max(count.requests);
        Some(place)
    }

    /// Returns the slot of `key`; `None` if it has none and the table `is_full`.
    #[inline]
    fn claim(&mut self, key: KeyHash, is_full: bool) -> Option<usize> {
        if self.used * 4 >= self.slots.len() * 3 {
            self.grow();
        }
        let place = self.place_of(key);
        let count = &mut self.slots[place];
        if count.is_free() {
            if is_full || self.used >= self.max_keys {
                return None;
            }
            self.used += 1;
            *count = KeyCount { key, ..KeyCount::default() };
        }
        Some(place)
    }

    /// Returns the slot of `key`, or the free one where it belongs.
    #[inline]
    fn place_of(&self, key: KeyHash) -> usize {
        let last = self.slots.len() - 1;
        let mut place = home(key, last);
        while !self.slots[place].is_free() && self.slots[place].key != key {
            place = (place + 1) & last;
        }
        place
    }

    fn grow(&mut self) {
        let number = (self.slots.len() * 2).max(MIN_SLOTS);
        let before = std::mem::replace(&mut self.slots, vec![KeyCount::default(); number]);
        for count in before.into_iter().filter(|count| !count.is_free()) {
            let place = self.place_of(count.key);
            self.slots[place] = count;
        }
    }

    /// Lists a request on which the rule acted, under the key in the slot at `place`.
    fn list(
        &mut self,
        place: usize,
        outcome: DecisionOutcome,
        now: Timestamp,
        text: impl FnOnce() -> String,
    ) {
        let count = &mut self.slots[place];
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
    pub(crate) fn finish(&mut self) -> CountHistogram {
        self.count_batch();
        let mut peaks = CountHistogram::default();
        for count in self.slots.iter().filter(|count| count.peak > 0) {
            self.per_period.add(count.requests);
            peaks.add(count.peak);
        }
        peaks
    }

    /// Number of requests that count against the limit.
    pub(crate) const fn requests(&self) -> u64 {
        self.requests
    }

    /// Number of keys that were counted or are listed.
    pub(crate) const fn number(&self) -> usize {
        self.used
    }

    /// Returns the keys on which the rule acted.
    pub(crate) fn listed(&self) -> &[ListedKey] {
        &self.listed
    }
}

/// Returns the slot at which the search for `key` begins; `last` is the index of the last slot.
#[inline]
fn home(key: KeyHash, last: usize) -> usize {
    FixedState::default().hash_one(key) as usize & last
}

/// Returns the outcome if the rule did not simply admit the request.
fn acts(outcome: Option<DecisionOutcome>) -> Option<DecisionOutcome> {
    outcome.filter(|outcome| !matches!(outcome, DecisionOutcome::Allowed | DecisionOutcome::Exempt))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use weir_limiter::key::KeyHasher;

    fn minutes() -> DemandPeriods {
        DemandPeriods::of_length(std::time::Duration::from_secs(60))
    }

    fn key(name: &str) -> KeyHash {
        KeyHasher::new([1, 2]).hash(name.as_bytes())
    }

    #[test]
    fn requests_are_counted_by_key_and_period() {
        let mut table = KeyTable::new(10, minutes());
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
        let mut table = KeyTable::new(10, minutes());
        let outcomes = [DecisionOutcome::Allowed, DecisionOutcome::Limited, DecisionOutcome::Limited];
        for (second, outcome) in (1..).zip(outcomes) {
            table.count(key("a"), Some(outcome), Timestamp::from_secs(second), || "a".to_owned());
        }
        let [listed] = table.listed() else { panic!("{table:?}") };
        assert_eq!(listed.outcomes[DecisionOutcome::Limited as usize], 2);
        assert_eq!((listed.first.as_secs(), listed.last.as_secs()), (2, 3));
    }

    #[test]
    fn request_that_does_not_count_is_only_listed() {
        let mut table = KeyTable::new(10, minutes());
        let now = Timestamp::from_secs(1);
        table.list_uncounted(key("a"), Some(DecisionOutcome::Allowed), now, String::new);
        assert_eq!((table.number(), table.listed().len()), (0, 0));
        table.list_uncounted(key("a"), Some(DecisionOutcome::Limited), now, || "a".to_owned());
        table.count(key("a"), Some(DecisionOutcome::Limited), Timestamp::from_secs(61), String::new);
        assert_eq!((table.number(), table.listed().len(), table.requests()), (1, 1, 1));
        assert_eq!(table.finish().buckets().collect::<Vec<_>>(), [(1, 1)]);
        assert_eq!(table.per_period.buckets().collect::<Vec<_>>(), [(1, 1)]);
    }

    proptest! {
        #[test]
        fn batches_count_like_single_requests(requests in proptest::collection::vec(0_u8..40, 0..3000)) {
            let mut table = KeyTable::new(1_000_000, minutes());
            let mut expected = std::collections::BTreeMap::<u8, u64>::new();
            for name in &requests {
                let name_of_key = name.to_string();
                table.count(key(&name_of_key), None, Timestamp::EPOCH, String::new);
                *expected.entry(*name).or_default() += 1;
            }
            let peaks: Vec<u64> = table.finish().buckets().flat_map(|(count, keys)| vec![count; keys as usize]).collect();
            let mut expected: Vec<u64> = expected.into_values().collect();
            expected.sort_unstable();
            prop_assert_eq!(peaks, expected);
        }

        #[test]
        fn table_grows_with_its_keys(number in 0_u32..5000) {
            let mut table = KeyTable::new(1_000_000, minutes());
            (0..number).for_each(|index| table.count(key(&index.to_string()), None, Timestamp::EPOCH, String::new));
            prop_assert_eq!(table.finish().excess(0), (u64::from(number), u64::from(number)));
            prop_assert_eq!(table.number(), number as usize);
        }
    }

    #[test]
    fn full_table_counts_what_it_leaves_out() {
        let mut table = KeyTable::new(1, minutes());
        for name in ["a", "b", "a"] {
            table.count(key(name), Some(DecisionOutcome::Limited), Timestamp::EPOCH, || name.to_owned());
        }
        assert_eq!((table.number(), table.uncounted, table.unlisted), (1, 1, 1));
        assert_eq!(table.listed().len(), 1);
    }
}
