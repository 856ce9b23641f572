use std::collections::HashSet;
use std::num::NonZeroU32;

use super::*;
use crate::key::KeyHasher;

const RANGE: AdaptiveRange =
    AdaptiveRange { min: NonZeroU32::new(4).unwrap(), max: NonZeroU32::new(100).unwrap() };
const FAST: UpstreamSignal = UpstreamSignal::Latency(Duration::from_millis(10));

fn key(number: u32) -> KeyHash {
    KeyHasher::new([1, 2]).hash_u32(number)
}

/// Lets `count` requests of `key` respond in each of `ticks`, all of them in flight at once.
fn respond(limits: &AdaptiveLimits, key: KeyHash, count: u32, ticks: std::ops::Range<u64>) {
    for tick in ticks {
        let slots: Vec<SlotIndex> = (0..count).map(|_| limits.admit(key)).collect();
        for slot in slots {
            limits.record(slot, FAST);
            limits.release(slot);
        }
        limits.adapt(RANGE, Timestamp::from_nanos(tick * 100_000_000));
    }
}

#[test]
fn rule_without_a_key_has_one_limit() {
    let limits = AdaptiveLimits::new(false);
    assert_eq!(limits.limit(key(1), RANGE), 4);
    respond(&limits, key(1), 20, 1..10);
    assert!(limits.limit(key(1), RANGE) >= 30);
    assert_eq!(limits.limit(key(1), RANGE), limits.limit(key(2), RANGE));
    assert_eq!(limits.state(RANGE).keys, 0);
    assert_eq!(limits.state(RANGE).lowest.limit, limits.limit(key(1), RANGE));
}

#[test]
fn each_key_has_its_own_limit() {
    let limits = AdaptiveLimits::new(true);
    respond(&limits, key(1), 20, 1..10);
    respond(&limits, key(2), 1, 10..11);
    assert!(limits.limit(key(1), RANGE) >= 30);
    assert_eq!((limits.limit(key(2), RANGE), limits.limit(key(3), RANGE)), (4, 4));
    let state = limits.state(RANGE);
    assert_eq!((state.keys, state.lowest.limit), (2, 4));
}

#[test]
fn keys_beyond_the_maximum_share_one_limit() {
    let limits = AdaptiveLimits::new(true);
    let slots: HashSet<SlotIndex> = (0..20_000).map(|number| limits.admit(key(number))).collect();
    assert_eq!(slots.len(), MAX_KEYS + 1, "every slot, and the shared one");
    assert!(slots.contains(&limits.shared_slot()));
    assert_eq!(limits.limit(key(19_999), RANGE), 4);
}

#[test]
fn idle_keys_make_room_and_keys_with_requests_in_flight_stay() {
    let limits = AdaptiveLimits::new(true);
    respond(&limits, key(1), 20, 1..10);
    let held = limits.admit(key(2));
    for tick in 10..1000 {
        limits.adapt(RANGE, Timestamp::from_nanos(tick * 100_000_000));
    }
    assert_eq!(limits.state(RANGE).keys, 1);
    assert_eq!(limits.limit(key(1), RANGE), 4, "it starts again");
    limits.release(held);
    for tick in 1000..2000 {
        limits.adapt(RANGE, Timestamp::from_nanos(tick * 100_000_000));
    }
    assert_eq!(limits.state(RANGE).keys, 0);
}

#[test]
fn new_bounds_apply_at_once() {
    let limits = AdaptiveLimits::new(false);
    respond(&limits, key(1), 20, 1..10);
    let narrow = AdaptiveRange::new(NonZeroU32::MIN, NonZeroU32::new(7).unwrap()).unwrap();
    assert_eq!((limits.limit(key(1), narrow), limits.state(narrow).lowest.limit), (7, 7));
}

#[test]
fn another_process_continues_with_what_was_learned() {
    let (old, new) = (AdaptiveLimits::new(true), AdaptiveLimits::new(true));
    respond(&old, key(1), 20, 1..10);
    respond(&old, key(2), 1, 10..11);
    new.restore(&old.learned(), RANGE);
    assert_eq!(new.state(RANGE), old.state(RANGE));
    assert!(new.limit(key(1), RANGE) >= 30);
    // Requests of a known key use its slot.
    respond(&new, key(1), 20, 1..3);
    assert_eq!(new.state(RANGE).keys, 2);
    let lower = AdaptiveRange { max: NonZeroU32::new(8).unwrap(), ..RANGE };
    new.restore(&old.learned(), lower);
    assert_eq!(new.limit(key(1), lower), 8, "the range of the new process applies");
    let without_key = AdaptiveLimits::new(false);
    without_key.restore(&old.learned(), RANGE);
    assert_eq!(without_key.limit(key(1), RANGE), 4);
}
