mod overflow;

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::algorithm::Algorithm;
use crate::algorithm::conversion::OnChange;
use crate::algorithm::history::History;
use crate::key::KeyHasher;
use crate::quota::{Limit, Period, TimeUnit};

const START: Timestamp = Timestamp::from_secs(1_795_248_000);
/// Bytes of histories, enough for all keys of a test.
const HISTORY_BYTES: usize = 1 << 20;
const FIRST: LimitId = LimitId(0);
const SECOND: LimitId = LimitId(1);

fn quota(algorithm: Algorithm, count: u32, unit: TimeUnit) -> Quota {
    let count = NonZeroU32::new(count).unwrap();
    Quota::new(algorithm, Limit::new(count, Period::one(unit)), None).unwrap()
}

fn per_second(count: u32) -> Quota {
    quota(Algorithm::Gcra, count, TimeUnit::Second)
}

fn shard(slots: usize, max_entries: usize, quotas: &[Option<Quota>]) -> Shard {
    let mut shard = Shard::new(slots, max_entries, HISTORY_BYTES);
    shard.adopt_quotas(&QuotaTable::new(quotas), START);
    shard
}

fn key(number: u32) -> Fingerprint {
    let hasher = KeyHasher::new([3, 5]);
    hasher.hash(&number.to_be_bytes()).salted(hasher.hash(b"salt"))
}

fn millis_later(millis: u64) -> Timestamp {
    START.saturating_add(Duration::from_millis(millis))
}

fn take(
    shard: &mut Shard,
    key: Fingerprint,
    limit: LimitId,
    units: u32,
    now: Timestamp,
) -> (CounterState, Placement) {
    let quota = *shard.quota(limit).unwrap();
    let slot = shard.find(key);
    let state = algorithm::charge(shard.state(slot, limit, now), &quota, units.into(), now);
    (state, shard.store_state(slot, key, limit, state, now))
}

fn used(shard: &Shard, key: Fingerprint, limit: LimitId, now: Timestamp) -> u32 {
    algorithm::usage(shard.state(shard.find(key), limit, now), shard.quota(limit).unwrap(), now).used
}

fn is_stored(shard: &Shard, key: Fingerprint) -> bool {
    matches!(shard.find(key), SlotLookup::Found(_))
}

#[test]
fn counters_in_use_survive_a_smaller_maximum_and_a_larger_one_has_room() {
    let mut shard = shard(512, 400, &[Some(per_second(5)), Some(per_second(5))]);
    let now = START;
    for number in 0..400 {
        assert_eq!(take(&mut shard, key(number), FIRST, 3, now).1, Placement::Own);
    }
    shard.set_max(64, 50);
    let all_used = |shard: &Shard| (0..400).all(|number| used(shard, key(number), FIRST, now) == 3);
    // Adopting other quotas builds a new array.
    shard.adopt_quotas(&QuotaTable::new(&[Some(per_second(6)), None]), now);
    assert!(all_used(&shard));
    assert_eq!(take(&mut shard, key(1000), FIRST, 1, now).1, Placement::Overflow);
    shard.set_max(4096, 3000);
    for number in 1001..2500 {
        assert_eq!(take(&mut shard, key(number), FIRST, 1, now).1, Placement::Own, "{number}");
    }
    assert!(all_used(&shard));
    assert_in_order(&shard);
    // Once all are unused, the smaller maximum has room again.
    shard.set_max(64, 50);
    let later = millis_later(60_000);
    let finds_room = |number| take(&mut shard, key(number), FIRST, 1, later).1 == Placement::Own;
    assert!((3000..3200).any(finds_room));
}

/// Asserts that no entry is before its home, and that only greater entries are between its home and itself.
fn assert_in_order(shard: &Shard) {
    let slots = shard.slots();
    let mut live = 0;
    for (index, slot) in slots.iter().enumerate().filter(|(_, slot)| !is_free(slot)) {
        let home = shard.home(slot[0]) * SLOTS_PER_GROUP;
        assert!(home <= index, "slot {index} is before its home {home}");
        if index > home {
            assert!(
                ordinal_of(&slots[index - 1]) > ordinal_of(slot),
                "slot {index} follows a lesser or free one"
            );
        }
        live += 1;
    }
    assert_eq!(shard.live(), live);
    assert!(live <= shard.max_entries);
    assert_histories(shard);
}

/// Asserts that every history belongs to one slot, and every slot marked as long has one.
fn assert_histories(shard: &Shard) {
    let long = shard.slots().iter().filter(|slot| !is_free(slot) && has_history(slot));
    let mut numbers: Vec<_> = long.map(number_of).collect();
    let bytes: usize =
        numbers.iter().map(|number| size_of::<History>() + shard.histories.get(*number).bytes()).sum();
    assert_eq!(shard.histories.bytes(), bytes);
    let all = numbers.len();
    assert_eq!(shard.histories.live(), all);
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), all, "two slots share a history");
}

#[derive(Clone, Debug)]
enum ShardStep {
    Take { key: u32, units: u32 },
    Wait { millis: u64 },
    Adopt { generation: usize },
}

fn steps() -> impl Strategy<Value = Vec<ShardStep>> {
    let step = prop_oneof![
        12 => (0_u32..40, 1_u32..5).prop_map(|(key, units)| ShardStep::Take { key, units }),
        3 => (0_u64..700).prop_map(|millis| ShardStep::Wait { millis }),
        1 => (0_usize..4).prop_map(|generation| ShardStep::Adopt { generation }),
    ];
    prop::collection::vec(step, 1..150)
}

/// Quotas of the first and the second limit, by generation.
fn generations() -> [[Option<Quota>; 2]; 4] {
    [
        [Some(per_second(10)), Some(quota(Algorithm::FixedWindow, 20, TimeUnit::Second))],
        [Some(per_second(3)), Some(quota(Algorithm::TokenBucket, 7, TimeUnit::Second))],
        [Some(quota(Algorithm::SlidingLog, 9, TimeUnit::Second)), None],
        [Some(quota(Algorithm::SlidingLog, 12, TimeUnit::Second)), Some(precise(20))],
    ]
}

fn precise(count: u32) -> Quota {
    quota(Algorithm::SlidingWindow, count, TimeUnit::Second).with_precision(5).unwrap()
}

/// One counter, without a shard.
#[derive(Clone, Debug)]
enum ModelCounter {
    Compact(CounterState),
    WithHistory(History),
}

impl ModelCounter {
    fn update(kept: Option<Self>, state: CounterState, quota: &Quota, now: Timestamp) -> Self {
        match kept {
            _ if !quota.needs_history() => Self::Compact(state),
            Some(Self::WithHistory(mut history)) => {
                history.apply_state(state, quota, now, true);
                Self::WithHistory(history)
            }
            _ => Self::WithHistory(History::from_state(state, quota, now)),
        }
    }

    fn compact_state(&self, quota: &Quota, now: Timestamp) -> CounterState {
        match self {
            Self::Compact(state) => *state,
            Self::WithHistory(history) => history.compact_state(quota, now),
        }
    }

    fn converted(self, change: &Change<'_>, now: Timestamp) -> Option<Self> {
        let short = self.compact_state(change.from, now);
        if let Self::WithHistory(mut history) = self
            && change.carry_history(&mut history)
        {
            return Some(Self::WithHistory(history));
        }
        change.convert(short, now).map(Self::Compact)
    }
}

/// Model of a shard, without its table.
struct ShardModel {
    quotas: [Option<Quota>; 2],
    own: HashMap<u32, ModelCounter>,
    shared: BTreeMap<LimitId, CounterState>,
}

impl ShardModel {
    fn limit(key: u32) -> LimitId {
        LimitId(key % 2)
    }

    fn quota(&self, limit: LimitId) -> Option<&Quota> {
        self.quotas[limit.0 as usize].as_ref()
    }

    fn is_unused(&self, limit: LimitId, state: CounterState, now: Timestamp) -> bool {
        algorithm::is_unused(state, self.quota(limit).unwrap(), now)
    }

    fn adopt(&mut self, quotas: [Option<Quota>; 2], now: Timestamp) {
        let old = std::mem::replace(&mut self.quotas, quotas);
        let change = |limit: LimitId| {
            let (from, to) = (old[limit.0 as usize].as_ref()?, quotas[limit.0 as usize].as_ref()?);
            Some(Change { from, to, on_change: OnChange::Keep })
        };
        let own = std::mem::take(&mut self.own).into_iter();
        let kept =
            |(key, kept): (u32, ModelCounter)| Some((key, kept.converted(&change(Self::limit(key))?, now)?));
        self.own = own.filter_map(kept).collect();
        let shared = std::mem::take(&mut self.shared).into_iter();
        self.shared =
            shared.filter_map(|(limit, state)| Some((limit, change(limit)?.convert(state, now)?))).collect();
    }

    /// Compares the shard with the model, and removes from the model what the shard was free to remove.
    fn assert_agrees(&mut self, shard: &Shard, now: Timestamp) {
        let mut found = 0;
        for number in 0..40 {
            let limit = Self::limit(number);
            let Some(quota) = self.quota(limit) else {
                assert!(
                    !is_stored(shard, key(number)),
                    "key {number} remains although its limit was removed"
                );
                continue;
            };
            let slot = shard.find(key(number));
            let kept = self.own.get(&number).map(|kept| kept.compact_state(quota, now));
            let given = shard.state(slot, limit, now);
            match slot {
                SlotLookup::Found(_) => {
                    found += 1;
                    assert_eq!(given, kept, "key {number}");
                }
                SlotLookup::Absent => {
                    let lost = kept.is_some_and(|state| !self.is_unused(limit, state, now));
                    assert!(!lost, "key {number} was evicted while in use");
                    let shared = self.shared.get(&limit).copied();
                    let usage = |state| algorithm::usage(state, quota, now).used;
                    assert_eq!(usage(given), usage(shared), "key {number} starts without the overflow");
                    self.own.remove(&number);
                }
            }
        }
        assert_eq!(shard.live(), found);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 384, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn shard_matches_a_map_model(groups in 2_usize..=8, spare in 0_usize..6, steps in steps()) {
        let slots = groups * SLOTS_PER_GROUP;
        let mut shard = shard(slots, slots - spare, &generations()[0]);
        let mut model =
            ShardModel { quotas: generations()[0], own: HashMap::new(), shared: BTreeMap::new() };
        let mut now = START;
        for step in steps {
            match step {
                ShardStep::Take { key: number, units } => {
                    let limit = ShardModel::limit(number);
                    if model.quota(limit).is_none() {
                        continue;
                    }
                    let (state, placement) = take(&mut shard, key(number), limit, units, now);
                    match placement {
                        Placement::Own => {
                            let quota = *model.quota(limit).unwrap();
                            let kept = model.own.remove(&number);
                            model.own.insert(number, ModelCounter::update(kept, state, &quota, now));
                        }
                        Placement::Overflow => {
                            let in_use = |(key, kept): (&u32, &ModelCounter)| {
                                let limit = ShardModel::limit(*key);
                                !model.is_unused(limit, kept.compact_state(model.quota(limit).unwrap(), now), now)
                            };
                            prop_assert_eq!(shard.live(), slots - spare);
                            prop_assert_eq!(
                                model.own.iter().filter(|entry| in_use(*entry)).count(),
                                slots - spare,
                                "shared although an entry could be reclaimed"
                            );
                            model.shared.insert(limit, state);
                        }
                    }
                }
                ShardStep::Wait { millis } => now = now.saturating_add(Duration::from_millis(millis)),
                ShardStep::Adopt { generation } => {
                    model.adopt(generations()[generation], now);
                    shard.adopt_quotas(&QuotaTable::new(&generations()[generation]), now);
                }
            }
            assert_in_order(&shard);
            model.assert_agrees(&shard, now);
        }
    }

    #[test]
    fn shard_finds_the_remaining_keys_after_removals_in_any_order(
        count in 1_usize..=32,
        removals in prop::collection::vec(any::<prop::sample::Index>(), 1..32),
    ) {
        let mut shard = shard(32, 32, &[Some(per_second(10))]);
        let mut keys: Vec<_> = (0..count as u32).map(key).collect();
        for key in &keys {
            take(&mut shard, *key, FIRST, 1, START);
        }
        for removal in removals {
            if keys.is_empty() {
                break;
            }
            let removed = keys.swap_remove(removal.index(keys.len()));
            let SlotLookup::Found(index) = shard.find(removed) else { panic!("the key is missing") };
            shard.remove(index);
            assert_in_order(&shard);
            prop_assert!(!is_stored(&shard, removed));
            prop_assert!(keys.iter().all(|key| is_stored(&shard, *key)));
        }
    }
}

#[test]
fn new_keys_of_a_full_shard_share_one_overflow_counter_per_limit() {
    let mut shard = shard(8, 2, &[Some(per_second(10)), Some(per_second(10))]);
    for number in 0..2 {
        assert_eq!(take(&mut shard, key(number), FIRST, 1, START).1, Placement::Own);
    }
    for (number, sum) in [(2, 1), (3, 2), (4, 3), (2, 4)] {
        assert_eq!(take(&mut shard, key(number), FIRST, 1, START).1, Placement::Overflow);
        assert_eq!(used(&shard, key(number), FIRST, START), sum);
    }
    assert_eq!(used(&shard, key(5), SECOND, START), 0);
    assert_eq!((used(&shard, key(0), FIRST, START), shard.live()), (1, 2));
}

#[test]
fn key_leaving_the_overflow_counter_keeps_its_usage() {
    let mut shard = shard(8, 1, &[Some(per_second(10))]);
    take(&mut shard, key(0), FIRST, 1, START);
    assert_eq!(take(&mut shard, key(1), FIRST, 8, START).1, Placement::Overflow);
    // The only entry is unused after 100 ms, the overflow counter only after 800 ms.
    let now = millis_later(300);
    assert_eq!(take(&mut shard, key(1), FIRST, 1, now).1, Placement::Own);
    assert_eq!(used(&shard, key(1), FIRST, now), 6);
    assert_eq!(used(&shard, key(2), FIRST, now), 5);
    let now = millis_later(900);
    assert_eq!(take(&mut shard, key(2), FIRST, 1, now).1, Placement::Own);
    assert_eq!(used(&shard, key(2), FIRST, now), 1);
    assert!(shard.overflow.is_empty());
}

#[test]
fn crowded_keys_spill_into_the_overflow_counter() {
    let mut shard = shard(64, 64, &[Some(per_second(10))]);
    let last = 64 / SLOTS_PER_GROUP - 1;
    let crowd: Vec<_> = (0..).map(key).filter(|key| shard.home(key.words()[0]) == last).take(50).collect();
    let room = SLOTS_PER_GROUP * (1 + SPARE_GROUPS);
    for (index, key) in crowd.iter().enumerate() {
        let expected = if index < room { Placement::Own } else { Placement::Overflow };
        assert_eq!(take(&mut shard, *key, FIRST, 1, START).1, expected, "key {index}");
        assert_in_order(&shard);
    }
    assert!(crowd[..room].iter().all(|key| is_stored(&shard, *key)));
    assert!(crowd[room..].iter().all(|key| !is_stored(&shard, *key)));
    // All of them have been reclaimed after one round of the hand.
    let later = millis_later(60_000);
    shard.sweep(2 * shard.slots().len(), later);
    assert_eq!(shard.live(), 0);
    assert_eq!(take(&mut shard, crowd[40], FIRST, 1, later).1, Placement::Own);
}

#[test]
fn keys_with_equal_first_words_differ_by_the_second() {
    let hash = KeyHasher::new([3, 5]).hash(b"any");
    // Salted with itself, a key becomes the least of all fingerprints.
    let min_key = hash.salted(hash);
    assert_eq!(min_key.words(), [1 << 63, 0]);
    let mut shard = shard(8, 8, &[Some(per_second(10))]);
    for second in [5, 9, 7, 1] {
        assert!(shard.place_entry([1 << 63, second, START.as_nanos(), 0]));
    }
    assert!(!is_stored(&shard, min_key));
    take(&mut shard, min_key, FIRST, 2, START);
    assert_in_order(&shard);
    assert_eq!((used(&shard, min_key, FIRST, START), shard.live()), (2, 5));
    shard.remove(shard.slots().iter().position(|slot| slot[1] == 9).unwrap());
    assert_in_order(&shard);
    assert_eq!(used(&shard, min_key, FIRST, START), 2);
}

#[test]
fn quota_adoption_converts_changed_counters_once_and_drops_removed_ones() {
    let (from, to) = (per_second(10), quota(Algorithm::TokenBucket, 100, TimeUnit::Minute));
    let mut shard = shard(32, 24, &[Some(from), Some(from)]);
    let states: Vec<_> =
        (0..20).map(|number| take(&mut shard, key(number), FIRST, 1 + number % 7, START).0).collect();
    (20..24).for_each(|number| assert_eq!(take(&mut shard, key(number), SECOND, 1, START).1, Placement::Own));
    assert_eq!(take(&mut shard, key(24), FIRST, 4, START).1, Placement::Overflow);
    shard.adopt_quotas(&QuotaTable::new(&[Some(to), None]), START);
    for (number, state) in states.into_iter().enumerate() {
        let now = shard.state(shard.find(key(number as u32)), FIRST, START);
        assert_eq!(now, algorithm::convert(state, &from, &to, START));
    }
    assert!((20..24).all(|number| !is_stored(&shard, key(number))));
    assert_eq!(used(&shard, key(24), FIRST, START), 4);
    assert_eq!(shard.live(), 20);
    assert_in_order(&shard);
    // A limit that reuses the id of a removed one starts unused.
    shard.adopt_quotas(&QuotaTable::new(&[Some(to), Some(from)]), START);
    assert_eq!(used(&shard, key(20), SECOND, START), 0);
    assert_eq!(used(&shard, key(24), FIRST, START), 4);
}

#[test]
fn shard_counts_only_counters_in_use() {
    let mut shard = shard(16, 16, &[Some(per_second(10)), Some(per_second(1))]);
    for number in 0..5 {
        take(&mut shard, key(number), LimitId(number % 2), 1, START);
    }
    let counted = |shard: &Shard, now| {
        let mut counts = [0, 0];
        shard.for_each_used(now, |limit| counts[limit.0 as usize] += 1);
        counts
    };
    assert_eq!(counted(&shard, START), [3, 2]);
    assert_eq!(counted(&shard, millis_later(100)), [0, 2]);
    assert_eq!((counted(&shard, millis_later(1000)), shard.live()), ([0, 0], 5));
}

#[test]
fn shard_without_history_memory_grants_no_fresh_quota() {
    let log = quota(Algorithm::SlidingLog, 10, TimeUnit::Minute);
    let mut shard = Shard::new(64, 64, 1000);
    shard.adopt_quotas(&QuotaTable::new(&[Some(log)]), START);
    let passes = |shard: &mut Shard, number, now| {
        let slot = shard.find(key(number));
        let (next, outcome) = algorithm::evaluate(shard.counter(slot, FIRST), &log, 1, now);
        let passes = outcome == algorithm::Outcome::Conform;
        if passes {
            shard.store_state(slot, key(number), FIRST, next, now);
        }
        passes
    };
    for second in 0..10 {
        let now = millis_later(1000 * second);
        assert!((0..40).all(|number| passes(&mut shard, number, now)), "second {second}");
        assert!(shard.histories.bytes() <= 1000 + 64);
        assert_in_order(&shard);
    }
    assert!(shard.histories.live() > 0 && shard.histories.live() < 40);
    let now = millis_later(59_999);
    assert!((0..40).all(|number| !passes(&mut shard, number, now)));
    // With a history the first unit expires after a minute; without one all expire with the last.
    let passed = (0..40).filter(|number| passes(&mut shard, *number, millis_later(60_000))).count();
    assert!((1..40).contains(&passed), "{passed}");
    shard.sweep(200, millis_later(180_000));
    assert_eq!((shard.live(), shard.histories.live(), shard.histories.bytes()), (0, 0, 0));
}
