use std::collections::HashMap;
use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;
use crate::limiter::algorithm::Algorithm;
use crate::limiter::quota::{Limit, Period, Unit};

const METER: MeterId = MeterId(0);
const OTHER: MeterId = MeterId(1);
const START: Timestamp = Timestamp::from_secs(1_795_248_000);

fn per_second(count: u32, burst: u32) -> Quota {
    let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(Unit::Second));
    Quota::new(Algorithm::Gcra, limit, NonZeroU32::new(burst)).unwrap()
}

fn shard(slots: usize, most: usize, quotas: &[Quota]) -> Shard {
    let mut shard = Shard::new(slots, most);
    shard.adopt(&quotas_of(quotas), START);
    shard
}

fn quotas_of(quotas: &[Quota]) -> Quotas {
    Quotas::new(&quotas.iter().copied().map(Some).collect::<Vec<_>>())
}

fn after(seconds: u64) -> Timestamp {
    Timestamp::from_secs(START.as_secs() + seconds)
}

/// The key that belongs at `place`, 0 for the front of the array and 1 for its end.
fn key_at(place: f64, which: u64) -> Fingerprint {
    let first = (((1.0 - place) * 2_f64.powi(63)) as u64).saturating_sub(which);
    Fingerprint::of([first.min((1 << 63) - 1 - which), which])
}

/// Charges `units` to a counter and answers where they went.
fn charge(shard: &mut Shard, key: Fingerprint, meter: MeterId, units: i64, now: Timestamp) -> Kept {
    let place = shard.find(key);
    let quota = *shard.quota(meter).unwrap();
    let state = algorithm::charge(shard.state(place, meter), &quota, units, now);
    shard.keep(place, key, meter, state, now)
}

fn used(shard: &Shard, key: Fingerprint, meter: MeterId, now: Timestamp) -> u32 {
    algorithm::usage(shard.state(shard.find(key), meter), shard.quota(meter).unwrap(), now).used
}

/// What must hold of the array at any time.
fn assert_ordered(shard: &Shard) {
    let slots = shard.slots();
    let entries: Vec<_> = slots.iter().enumerate().filter(|(_, slot)| !is_free(slot)).collect();
    assert_eq!(entries.len(), shard.live());
    assert!(entries.is_sorted_by(|(_, one), (_, next)| ordinal_of(one) > ordinal_of(next)));
    for (index, entry) in entries {
        let home = shard.home(entry[0]) * GROUP;
        assert!(home <= index, "before its home");
        assert!(!slots[home..index].iter().any(is_free), "beyond a free slot, where no search comes");
        let found = shard.find(Fingerprint::of([entry[0], entry[1]]));
        assert!(matches!(found, Place::At(at) if at == index), "{found:?} instead of {index}");
    }
}

/// One request: a key, the units it is charged and how many milliseconds have gone by before it.
fn requests() -> impl Strategy<Value = Vec<(Fingerprint, i64, u64)>> {
    // Crowded at the front, in the middle and at the end, so that entries push each other on.
    let place = prop::sample::select(&[0.0, 0.02, 0.5, 0.97, 1.0][..]);
    let key = (place, 0_u64..12).prop_map(|(place, which)| key_at(place, which));
    prop::collection::vec((key, 1_i64..4, 0_u64..400), 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_counter_in_use_is_found_as_it_was_kept(requests in requests(), slots in 8_usize..80) {
        let quota = per_second(1, 10);
        let mut shard = shard(slots, slots - 2, &[quota]);
        let mut model: HashMap<[u64; 2], State> = HashMap::new();
        let mut now = START;
        for (key, units, millis) in requests {
            now = now.saturating_add(std::time::Duration::from_millis(millis));
            let kept = charge(&mut shard, key, METER, units, now);
            assert_ordered(&shard);
            if kept == Kept::Own {
                let state = shard.state(shard.find(key), METER).unwrap();
                prop_assert!(!algorithm::is_unused(state, &quota, now));
                model.insert(key.words(), state);
            }
            prop_assert!(shard.live() <= slots - 2);
            model.retain(|words, state| match shard.find(Fingerprint::of(*words)) {
                place @ Place::At(_) => {
                    assert_eq!(shard.state(place, METER), Some(*state));
                    true
                }
                Place::Absent => {
                    assert!(algorithm::is_unused(*state, &quota, now), "lost while in use");
                    false
                }
            });
            prop_assert_eq!(shard.live(), model.len());
        }
    }

    #[test]
    fn whatever_is_removed_the_rest_is_found(
        entries in prop::collection::btree_set((0_u64..5, 0_u64..12), 1..40),
        order in any::<prop::sample::Index>(),
    ) {
        let mut shard = shard(60, 58, &[per_second(1, 10)]);
        let keys: Vec<_> = entries.iter().map(|(place, which)| key_at(*place as f64 / 4.0, *which)).collect();
        for key in &keys {
            charge(&mut shard, *key, METER, 1, START);
        }
        prop_assume!(shard.live() == keys.len());
        for removed in 0..keys.len() {
            let key = keys[(removed + order.index(keys.len())) % keys.len()];
            let Place::At(index) = shard.find(key) else { panic!("lost") };
            shard.remove(index);
            assert_ordered(&shard);
            prop_assert!(matches!(shard.find(key), Place::Absent));
            prop_assert_eq!(shard.live(), keys.len() - removed - 1);
        }
    }
}

#[test]
fn it_grows_to_its_full_size_and_no_further() {
    let (slots, most) = (10_000, 9_300);
    let mut shard = shard(slots, most, &[per_second(1, 10)]);
    let key = |which: u64| Fingerprint::of([which.wrapping_mul(0x9E37_79B9_7F4A_7C15), which]);
    assert!(shard.slots().len() < slots / 10);
    for which in 0..most as u64 {
        assert_eq!(charge(&mut shard, key(which), METER, 1 + which as i64 % 7, START), Kept::Own);
    }
    assert_ordered(&shard);
    assert_eq!(shard.live(), most);
    assert_eq!(shard.slots().len(), slots + SPARE_GROUPS * GROUP);
    for which in 0..most as u64 {
        assert_eq!(used(&shard, key(which), METER, START), 1 + which as u32 % 7);
    }
    assert_eq!(charge(&mut shard, key(most as u64), METER, 1, START), Kept::Shared);
    assert_eq!(shard.slots().len(), slots + SPARE_GROUPS * GROUP);
}

#[test]
fn what_finds_no_room_at_the_end_shares() {
    let mut shard = shard(80, 78, &[per_second(1, 10)]);
    let room = (SPARE_GROUPS as u64 + 1) * GROUP as u64;
    for which in 0..room {
        assert_eq!(charge(&mut shard, key_at(1.0, which), METER, 1, START), Kept::Own, "{which}");
    }
    assert_eq!(charge(&mut shard, key_at(1.0, room), METER, 1, START), Kept::Shared);
    assert_eq!(charge(&mut shard, key_at(0.0, 0), METER, 1, START), Kept::Own);
    assert_ordered(&shard);
}

#[test]
fn keys_with_the_same_first_word_are_told_apart() {
    let mut shard = shard(80, 78, &[per_second(1, 20)]);
    for second in 0..10 {
        charge(&mut shard, Fingerprint::of([42, second]), METER, 1 + second as i64, START);
    }
    assert_ordered(&shard);
    for second in 0..10 {
        assert_eq!(used(&shard, Fingerprint::of([42, second]), METER, START), 1 + second as u32);
    }
    assert!(matches!(shard.find(Fingerprint::of([42, 10])), Place::Absent));
}

#[test]
fn a_full_shard_counts_newcomers_together_until_that_is_forgotten() {
    let mut shard = shard(16, 10, &[per_second(1, 100)]);
    for which in 0..10 {
        assert_eq!(charge(&mut shard, key_at(0.3, which), METER, 1, START), Kept::Own);
    }
    assert_eq!(charge(&mut shard, key_at(0.6, 1), METER, 20, START), Kept::Shared);
    assert_eq!(charge(&mut shard, key_at(0.6, 2), METER, 30, START), Kept::Shared);
    assert_eq!(used(&shard, key_at(0.6, 3), METER, START), 50);
    assert_eq!(used(&shard, key_at(0.3, 3), METER, START), 1, "those that were there keep their own");

    // Room for all, but whoever comes now may be one of those who were counted together.
    assert_eq!(used(&shard, key_at(0.6, 2), METER, after(10)), 40);
    assert_eq!(charge(&mut shard, key_at(0.6, 2), METER, 1, after(10)), Kept::Own);
    assert_eq!(used(&shard, key_at(0.6, 2), METER, after(10)), 41);

    // All that was charged together has been earned again.
    assert_eq!(charge(&mut shard, key_at(0.6, 3), METER, 1, after(51)), Kept::Own);
    assert!(shard.overflow.is_empty());
    assert_eq!(used(&shard, key_at(0.6, 4), METER, after(51)), 0);
}

#[test]
fn other_quotas_convert_every_counter_once_and_drop_those_of_retired_meters() {
    let mut shard = shard(40, 12, &[per_second(1, 100), per_second(5, 5)]);
    for which in 0..10 {
        charge(&mut shard, key_at(0.5, which), METER, 10 + which as i64, START);
    }
    charge(&mut shard, key_at(0.5, 20), OTHER, 3, START);
    charge(&mut shard, key_at(0.5, 21), OTHER, 3, START);
    assert_eq!(charge(&mut shard, key_at(0.5, 22), METER, 60, START), Kept::Shared);
    assert_eq!(charge(&mut shard, key_at(0.5, 23), OTHER, 2, START), Kept::Shared);

    let next = Quotas::new(&[Some(per_second(2, 50)), None]);
    for _ in 0..2 {
        shard.adopt(&next, START);
        assert_ordered(&shard);
        assert_eq!(shard.live(), 10);
        for which in 0..10 {
            assert_eq!(used(&shard, key_at(0.5, which), METER, START), 10 + which as u32);
        }
        assert!(shard.quota(OTHER).is_none());
        assert!(matches!(shard.find(key_at(0.5, 20)), Place::Absent));
        assert_eq!(shard.overflow.keys().collect::<Vec<_>>(), [&METER]);
        assert_eq!(used(&shard, key_at(0.5, 24), METER, START), 60);
    }
}

#[test]
fn only_counters_in_use_are_counted() {
    let mut shard = shard(40, 30, &[per_second(1, 100), per_second(1, 100)]);
    charge(&mut shard, key_at(0.1, 0), METER, 5, START);
    charge(&mut shard, key_at(0.2, 0), METER, 50, START);
    charge(&mut shard, key_at(0.3, 0), OTHER, 50, START);
    let counted = |now| {
        let mut counted = Vec::new();
        shard.for_each_used(now, |meter| counted.push(meter));
        counted
    };
    assert_eq!(counted(START), [METER, METER, OTHER]);
    assert_eq!(counted(after(6)), [METER, OTHER]);
    assert_eq!(counted(after(60)), []);
    assert_eq!(shard.live(), 3, "counting forgets nothing");
}
