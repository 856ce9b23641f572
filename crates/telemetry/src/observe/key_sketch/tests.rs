use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use weir_limiter::key::KeyHasher;

fn key(number: u16) -> KeyHash {
    KeyHasher::new([1, 2]).hash(&number.to_be_bytes())
}

fn text() -> Arc<str> {
    "text".into()
}

/// Returns a key if it is tracked, otherwise the most that it may have been seen.
fn find(sketch: &KeySketch, key: KeyHash) -> Result<&TrackedKey, u64> {
    match sketch.positions.get(&key) {
        Some(&position) => Ok(&sketch.keys[position]),
        None => Err(sketch.copy().bound(key)),
    }
}

/// Plays a stream of keys and returns the sketch, and the true count of each key.
fn play(capacity: usize, budget: usize, stream: &[u16]) -> (KeySketch, BTreeMap<u16, u64>) {
    let mut sketch = KeySketch::new(capacity, &KeyBudget::new(budget), SketchOwner::Rule);
    let mut counts = BTreeMap::new();
    for &number in stream {
        sketch.record(key(number), DecisionOutcome::Allowed, Timestamp::EPOCH, text);
        *counts.entry(number).or_insert(0) += 1;
    }
    (sketch, counts)
}

/// A stream with a few frequent keys among many rare ones.
fn stream() -> impl Strategy<Value = Vec<u16>> {
    proptest::collection::vec(prop_oneof![0_u16..8, 0_u16..64, 0_u16..2000], 0..3000)
}

proptest! {
    #[test]
    fn estimates_are_never_too_low_and_at_most_the_overcount_too_high(
        stream in stream(), capacity in 1_usize..40, budget in 1_usize..60,
    ) {
        let (sketch, counts) = play(capacity, budget, &stream);
        prop_assert!(sketch.keys.len() <= capacity.min(budget));
        for (number, count) in &counts {
            match find(&sketch, key(*number)) {
                Ok(tracked) => {
                    let estimate = tracked.counts.total() + tracked.overcount;
                    prop_assert!(estimate >= *count, "{number}: {estimate} of {count}");
                    prop_assert!(tracked.counts.total() <= *count);
                }
                Err(bound) => prop_assert!(bound >= *count, "{number}: bound {bound} of {count}"),
            }
        }
        // Homem and Carvalho: no error exceeds the number of decisions divided by the capacity.
        let room = sketch.keys.len().max(1) as u64;
        let most = sketch.keys.iter().map(|tracked| tracked.overcount).max().unwrap_or_default();
        prop_assert!(most <= stream.len() as u64 / room);
    }

    #[test]
    fn counts_are_exact_with_fewer_keys_than_the_capacity(stream in stream()) {
        let (sketch, counts) = play(2000, 2000, &stream);
        for tracked in &sketch.keys {
            prop_assert_eq!(tracked.overcount, 0);
        }
        for (number, count) in counts {
            prop_assert_eq!(find(&sketch, key(number)).unwrap().counts.total(), count);
        }
    }

    #[test]
    fn a_key_with_more_than_its_share_is_tracked(stream in stream(), capacity in 1_usize..40) {
        let (sketch, counts) = play(capacity, capacity, &stream);
        for (number, count) in counts {
            if count > stream.len() as u64 / capacity as u64 {
                prop_assert!(find(&sketch, key(number)).is_ok(), "{number} occurs {count} times");
            }
        }
    }
}

#[test]
fn rare_keys_do_not_displace_frequent_ones_and_build_no_text() {
    let mut sketch = KeySketch::new(4, &KeyBudget::new(4), SketchOwner::Rule);
    for number in (0..4).cycle().take(400) {
        sketch.record(key(number), DecisionOutcome::Limited, Timestamp::EPOCH, text);
    }
    for number in 100..500 {
        sketch.record(key(number), DecisionOutcome::Allowed, Timestamp::EPOCH, || {
            unreachable!("text is built")
        });
    }
    for number in 0..4 {
        assert_eq!(find(&sketch, key(number)).unwrap().counts.rejected, 100);
    }
}

#[test]
fn outcomes_are_counted_by_their_effect() {
    let mut counts = DecisionEffects::default();
    DecisionOutcome::ALL.into_iter().for_each(|outcome| counts.record(outcome));
    assert_eq!(counts, DecisionEffects { admitted: 5, rejected: 3, shadow: 1, delayed: 1 });
    counts.add_unknown(5);
    assert_eq!((counts.admitted, counts.total()), (10, 14));
}

#[test]
fn dropped_sketch_gives_its_budget_back() {
    let budget = KeyBudget::new(3);
    for _ in 0..2 {
        let mut sketch = KeySketch::new(8, &budget, SketchOwner::Rule);
        for number in 0..5 {
            sketch.record(key(number), DecisionOutcome::Allowed, Timestamp::EPOCH, text);
        }
        assert_eq!(sketch.keys.len(), 3);
    }
}

#[test]
fn sketch_without_budget_tracks_nothing() {
    let mut sketch = KeySketch::new(8, &KeyBudget::new(0), SketchOwner::Rule);
    sketch.record(key(1), DecisionOutcome::Allowed, Timestamp::EPOCH, text);
    assert!(sketch.keys.is_empty() && sketch.cells.is_empty());
    assert!(sketch.copy().is_incomplete);
}
