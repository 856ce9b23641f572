//! Crowded keys: at the ends of the array, with equal first words, and more than the initial size.

use super::*;

/// A shard whose limit is slow enough for counters to stay in use.
fn slow_shard(slots: usize, max_entries: usize) -> Shard {
    shard(slots, max_entries, &[Some(per_minute())])
}

fn per_minute() -> Quota {
    quota(Algorithm::Gcra, 60, TimeUnit::Minute)
}

fn charge(shard: &mut Shard, key: Fingerprint, units: u32, now: Timestamp) -> Placement {
    take(shard, key, FIRST, units, now).1
}

/// Asserts that searches find every entry, and that entries are in descending order, across free slots too.
fn assert_found(shard: &Shard) {
    assert_in_order(shard);
    let entries = || shard.slots().iter().filter(|slot| !is_free(slot));
    assert!(entries().is_sorted_by(|one, next| ordinal_of(one) > ordinal_of(next)));
    assert!(entries().all(|entry| is_stored(shard, Fingerprint::with_words([entry[0], entry[1]]))));
}

/// Returns a key whose home is at `position`: 0 is the front of the array and 1 its end.
fn key_at(position: f64, which: u64) -> Fingerprint {
    let first = (((1.0 - position) * 2_f64.powi(63)) as u64).saturating_sub(which);
    Fingerprint::with_words([first.min((1 << 63) - 1 - which), which])
}

/// Requests: a key, the units charged, and the milliseconds that pass before it.
fn requests() -> impl Strategy<Value = Vec<(Fingerprint, u32, u64)>> {
    // Crowded at the front, in the middle and at the end, so that entries push each other on.
    let position = prop::sample::select(&[0.0, 0.02, 0.5, 0.97, 1.0][..]);
    let key = (position, 0_u64..12).prop_map(|(position, which)| key_at(position, which));
    prop::collection::vec((key, 1_u32..4, 0_u64..400), 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn counters_in_use_are_found_unchanged_in_a_crowded_shard(requests in requests(), slots in 8_usize..80) {
        let quota = per_minute();
        let mut shard = slow_shard(slots, slots - 2);
        let mut model: HashMap<[u64; 2], CounterState> = HashMap::new();
        let mut now = START;
        for (key, units, millis) in requests {
            now = now.saturating_add(Duration::from_millis(millis));
            let placement = charge(&mut shard, key, units, now);
            assert_found(&shard);
            if placement == Placement::Own {
                let state = shard.state(shard.find(key), FIRST, now).expect("a stored key");
                prop_assert!(!algorithm::is_unused(state, &quota, now));
                model.insert(key.words(), state);
            }
            prop_assert!(shard.live() <= slots - 2);
            model.retain(|words, state| match shard.find(Fingerprint::with_words(*words)) {
                slot @ SlotLookup::Found(_) => {
                    assert_eq!(shard.state(slot, FIRST, now), Some(*state));
                    true
                }
                SlotLookup::Absent => {
                    assert!(algorithm::is_unused(*state, &quota, now), "evicted while in use");
                    false
                }
            });
            prop_assert_eq!(shard.live(), model.len());
        }
    }

    #[test]
    fn removals_leave_the_other_crowded_keys_findable(
        entries in prop::collection::btree_set((0_u64..5, 0_u64..12), 1..40),
        order in any::<prop::sample::Index>(),
    ) {
        let mut shard = slow_shard(60, 58);
        let keys: Vec<_> = entries.iter().map(|(position, which)| key_at(*position as f64 / 4.0, *which)).collect();
        for key in &keys {
            charge(&mut shard, *key, 1, START);
        }
        prop_assume!(shard.live() == keys.len());
        for removed in 0..keys.len() {
            let key = keys[(removed + order.index(keys.len())) % keys.len()];
            let SlotLookup::Found(index) = shard.find(key) else { panic!("the key is missing") };
            shard.remove(index);
            assert_found(&shard);
            prop_assert!(matches!(shard.find(key), SlotLookup::Absent));
            prop_assert_eq!(shard.live(), keys.len() - removed - 1);
        }
    }
}

#[test]
fn shard_grows_to_its_configured_size_and_no_further() {
    let (slots, max_entries) = (10_000, 9_300);
    let mut shard = slow_shard(slots, max_entries);
    let key = |which: u64| Fingerprint::with_words([which.wrapping_mul(0x9E37_79B9_7F4A_7C15), which]);
    assert!(shard.slots().len() < slots / 10);
    for which in 0..max_entries as u64 {
        assert_eq!(charge(&mut shard, key(which), 1 + which as u32 % 7, START), Placement::Own);
    }
    assert_found(&shard);
    assert_eq!(shard.live(), max_entries);
    assert_eq!(shard.slots().len(), slots + SPARE_GROUPS * SLOTS_PER_GROUP);
    for which in 0..max_entries as u64 {
        assert_eq!(used(&shard, key(which), FIRST, START), 1 + which as u32 % 7);
    }
    assert_eq!(charge(&mut shard, key(max_entries as u64), 1, START), Placement::Overflow);
    assert_eq!(shard.slots().len(), slots + SPARE_GROUPS * SLOTS_PER_GROUP);
}

#[test]
fn keys_beyond_the_end_of_the_shard_use_the_overflow_counter() {
    let mut shard = slow_shard(80, 78);
    let room = (SPARE_GROUPS as u64 + 1) * SLOTS_PER_GROUP as u64;
    for which in 0..room {
        assert_eq!(charge(&mut shard, key_at(1.0, which), 1, START), Placement::Own, "{which}");
    }
    assert_eq!(charge(&mut shard, key_at(1.0, room), 1, START), Placement::Overflow);
    assert_eq!(charge(&mut shard, key_at(0.0, 0), 1, START), Placement::Own);
    assert_found(&shard);
}

#[test]
fn crowded_keys_with_equal_first_words_stay_distinct() {
    let mut shard = slow_shard(80, 78);
    for second in 0..10 {
        charge(&mut shard, Fingerprint::with_words([42, second]), 1 + second as u32, START);
    }
    assert_found(&shard);
    for second in 0..10 {
        assert_eq!(used(&shard, Fingerprint::with_words([42, second]), FIRST, START), 1 + second as u32);
    }
    assert!(matches!(shard.find(Fingerprint::with_words([42, 10])), SlotLookup::Absent));
}
