//! Groups of checks that count different values.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::check_options::WithoutRoom;

const LIMIT: u32 = 3;

fn bench(max_keys: usize) -> TransactionFixture {
    let limit = per_second(Algorithm::FixedWindow, LIMIT, 0);
    TransactionFixture::with_max_keys(&[limit, limit.for_one_unit().unwrap(), ban(500, 500)], max_keys)
}

fn of_value(check: Check, role: CounterRole, value: u8) -> Check {
    let without_room = WithoutRoom::Distinct(value.into());
    Check { options: Some(CheckOptions { without_room, ..CheckOptions::new(0, role) }), ..check }
}

/// Returns the checks of a request with this key and value.
fn checks(bench: &TransactionFixture, key: u8, value: u8) -> [Check; 2] {
    let limit = bench.check(0, &[key], CounterRole::Limit);
    let seen = bench.check(1, &[key, value], CounterRole::Seen);
    [of_value(limit, CounterRole::Limit, value), of_value(seen, CounterRole::Seen, value)]
}

fn used(bench: &TransactionFixture, key: u8) -> u32 {
    bench.limiter.usage(bench.handles[0], bench.limiter.hasher().hash(&[key]), START).unwrap().used
}

#[test]
fn known_value_passes_without_a_charge_although_the_limit_is_exhausted() {
    let bench = bench(1000);
    let is_rejected = |value| bench.decide(&checks(&bench, 0, value), 0).is_rejected();
    assert_eq!([1, 2, 1, 3, 4, 3, 4].map(is_rejected), [false, false, false, false, true, false, true]);
    assert_eq!(used(&bench, 0), 3);
    assert!(!bench.decide(&checks(&bench, 0, 4), 1000).is_rejected(), "in the next window");
}

#[test]
fn values_of_one_request_are_charged_together_or_not_at_all() {
    let bench = bench(1000);
    let request = |values: [u8; 2]| values.map(|value| checks(&bench, 0, value)).concat();
    assert!(!bench.decide(&request([1, 2]), 0).is_rejected());
    assert!(bench.decide(&request([3, 4]), 0).is_rejected());
    assert_eq!(used(&bench, 0), 2);
    assert!(!bench.decide(&request([2, 3]), 0).is_rejected());
    assert_eq!(used(&bench, 0), 3);
}

#[test]
fn full_table_knows_no_value() {
    let bench = bench(1);
    // It has the only counter of the table.
    bench.decide(&[bench.check(0, b"other", CounterRole::Limit)], 0);
    let is_rejected = || bench.decide(&checks(&bench, 0, 1), 0).is_rejected();
    assert_eq!([is_rejected(), is_rejected(), is_rejected(), is_rejected()], [false, false, false, true]);
}

#[test]
fn ban_applies_to_known_values() {
    let bench = bench(1000);
    let with_ban = |value| {
        let ban = of_value(bench.check(2, &[0], CounterRole::Ban), CounterRole::Ban, value);
        let [limit, seen] = checks(&bench, 0, value);
        [ban, limit, seen]
    };
    let is_rejected = |value, millis| bench.decide(&with_ban(value), millis).is_rejected();
    assert_eq!([1, 2, 3, 1, 4].map(|value| is_rejected(value, 0)), [false, false, false, false, true]);
    assert!(is_rejected(1, 400), "banned");
    assert!(!is_rejected(1, 600));
}

#[test]
fn known_value_is_no_violation_in_shadow_mode() {
    let bench = bench(1000);
    let exceeds = |value| {
        let shadow =
            checks(&bench, 0, value).map(|check| Check { enforcement: Enforcement::Shadow, ..check });
        let decision = bench.decide(&shadow, 0);
        assert!(!decision.is_rejected());
        let is_violation = |verdict: &crate::decision::Verdict| {
            verdict.exceeds() && verdict.enforcement == Enforcement::Shadow
        };
        decision.verdicts().iter().any(is_violation)
    };
    assert_eq!([1, 2, 3, 1, 4, 4].map(exceeds), [false, false, false, false, true, true]);
}

proptest! {
    #[test]
    fn different_values_are_counted_as_by_a_set(
        requests in prop::collection::vec((0..2_u8, 0..8_u8, 0..700_u64), 1..60),
    ) {
        let bench = bench(10_000);
        let (mut now, mut window) = (0, 0);
        let mut known: HashMap<u8, HashSet<u8>> = HashMap::new();
        for (key, value, pause) in requests {
            now += pause;
            if now / 1000 != window {
                window = now / 1000;
                known.clear();
            }
            let values = known.entry(key).or_default();
            let passes = values.contains(&value) || values.len() < LIMIT as usize;
            if passes {
                values.insert(value);
            }
            prop_assert_eq!(!bench.decide(&checks(&bench, key, value), now).is_rejected(), passes);
        }
    }
}
