use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::limiter::algorithm::Algorithm;
use crate::limiter::algorithm::conversion::OnChange;
use crate::limiter::decision::Enforcement;
use crate::limiter::key::KeyHash;
use crate::limiter::quota::{Ban, Limit, Period, Quota, TimeUnit};
use crate::limiter::reservation::ChargeTiming;
use crate::limiter::{Check, LimitHandle, LimitIdentity, LimitSpec, LimiterSettings};

/// 2026-11-21T08:00:00Z.
const SAVED: Timestamp = Timestamp::from_secs(1_795_248_000);

type Parts = Vec<(SavedPart, Vec<u8>)>;

fn quota(algorithm: Algorithm, count: u32) -> Quota {
    let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(TimeUnit::Day));
    Quota::new(algorithm, limit, None).unwrap()
}

fn spec(rule: &str, quota: Quota) -> LimitSpec {
    LimitSpec {
        identity: LimitIdentity { rule: rule.into(), key: "[client_ip]".into() },
        quota,
        on_change: OnChange::Keep,
        lease_policy: None,
    }
}

fn limiter(max_keys: usize, specs: &[LimitSpec]) -> (Limiter, Vec<LimitHandle>) {
    let limiter = Limiter::new(LimiterSettings { max_keys, secret: [7, 11] });
    let meters = limiter.install(specs, SAVED);
    (limiter, meters)
}

fn key(limiter: &Limiter, number: u32) -> KeyHash {
    limiter.hasher().hash(&number.to_be_bytes())
}

fn takes(limiter: &Limiter, meter: LimitHandle, number: u32, cost: u32, now: Timestamp) -> bool {
    let check = Check {
        handle: meter,
        key: key(limiter, number),
        cost,
        enforcement: Enforcement::Enforced,
        charge_timing: ChargeTiming::OnArrival,
        options: None,
    };
    !limiter.check(&[check], now).is_rejected()
}

fn used(limiter: &Limiter, meter: LimitHandle, number: u32, now: Timestamp) -> u32 {
    limiter.usage(meter, key(limiter, number), now).unwrap().used
}

fn saved(limiter: &Limiter, now: Timestamp) -> Parts {
    let mut parts = Parts::new();
    let write = |part, bytes: &[u8]| {
        parts.push((part, bytes.to_vec()));
        Ok::<(), ()>(())
    };
    limiter.save(now, write).unwrap();
    parts
}

fn restored(parts: &Parts, max_keys: usize, now: Timestamp) -> Result<Restored, RestoreError> {
    let mut restorer = Restorer::new(max_keys, now);
    parts.iter().try_for_each(|(part, bytes)| restorer.read_part(*part, bytes))?;
    restorer.finish()
}

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

#[test]
fn another_process_goes_on_where_this_one_ended() {
    for algorithm in Algorithm::RATES {
        let specs = [spec("a", quota(algorithm, 10)), spec("b", quota(algorithm, 20))];
        let (before, meters) = limiter(1000, &specs);
        for number in 0..500 {
            assert!(takes(&before, meters[0], number, number % 11, SAVED));
            assert!(takes(&before, meters[1], number, number % 7, SAVED));
        }
        let now = SAVED.saturating_add(minutes(3));
        let after = restored(&saved(&before, now), 1000, now).unwrap();
        let again = after.limiter.install(&specs, now);
        assert_eq!((after.overflowed, after.saved_at), (0, now));
        for number in 0..500 {
            for meter in 0..2 {
                let was = used(&before, meters[meter], number, now);
                assert_eq!(used(&after.limiter, again[meter], number, now), was, "{algorithm}");
            }
        }
    }
}

#[test]
fn a_limit_that_was_changed_between_two_processes_keeps_the_units_in_use() {
    let (before, meters) = limiter(1000, &[spec("a", quota(Algorithm::Gcra, 10))]);
    assert!(takes(&before, meters[0], 1, 7, SAVED));
    let after = restored(&saved(&before, SAVED), 1000, SAVED).unwrap().limiter;
    let raised = after.install(&[spec("a", quota(Algorithm::FixedWindow, 100))], SAVED);
    assert_eq!(used(&after, raised[0], 1, SAVED), 7);
    let renamed = after.install(&[spec("b", quota(Algorithm::Gcra, 10))], SAVED);
    assert_eq!(used(&after, renamed[0], 1, SAVED), 0);
}

#[test]
fn what_is_whole_again_or_ends_with_the_process_is_not_saved() {
    let in_flight = Quota::in_flight(NonZeroU32::new(5).unwrap());
    let ban = Quota::ban(Ban { initial_duration: minutes(10), max_duration: minutes(60) });
    let specs = [spec("a", quota(Algorithm::Gcra, 1440)), spec("b", in_flight), spec("c", ban)];
    let (before, meters) = limiter(1000, &specs);
    assert!(takes(&before, meters[0], 1, 1, SAVED) && takes(&before, meters[1], 1, 5, SAVED));
    assert!(takes(&before, meters[0], 2, 5, SAVED));
    let counted = |parts: &Parts| restored(parts, 1000, SAVED).unwrap().counters;
    assert_eq!(counted(&saved(&before, SAVED)), 2);
    assert_eq!(counted(&saved(&before, SAVED.saturating_add(minutes(2)))), 1);
    assert_eq!(counted(&saved(&before, SAVED.saturating_add(minutes(6)))), 0);
}

#[test]
fn a_table_that_has_become_smaller_forgets_nobody() {
    let specs = [spec("a", quota(Algorithm::Gcra, 10))];
    let (before, meters) = limiter(4000, &specs);
    for number in 0..4000 {
        assert!(takes(&before, meters[0], number, 10, SAVED));
    }
    let after = restored(&saved(&before, SAVED), 100, SAVED).unwrap();
    assert!(after.counters == 4000 && after.overflowed > 3800, "{after:?}");
    let again = after.limiter.install(&specs, SAVED);
    for number in 0..4000 {
        assert!(!takes(&after.limiter, again[0], number, 1, SAVED), "unused limit for key {number}");
    }
}

#[test]
fn a_ban_for_which_there_is_no_room_keeps_out_nobody_else() {
    let ban = Quota::ban(Ban { initial_duration: minutes(10), max_duration: minutes(60) });
    let (before, meters) = limiter(1000, &[spec("ban", ban)]);
    let banned = CounterState { word: SAVED.saturating_add(minutes(10)).as_nanos(), extra: 0 };
    for number in 0..500 {
        let key = key(&before, number).salted(meters[0].salt);
        let mut shard = before.table.lock(before.table.shard_of(key));
        let place = shard.find(key);
        shard.store_state(place, key, meters[0].id, banned, SAVED);
    }
    let after = restored(&saved(&before, SAVED), 16, SAVED).unwrap();
    assert!(after.overflowed > 400, "{after:?}");
    let again = after.limiter.install(&[spec("ban", ban)], SAVED);
    assert!(takes(&after.limiter, again[0], 10_000, 1, SAVED), "a new client is admitted");
    let kept = after.limiter.live_keys();
    assert_eq!((0..500).filter(|number| !takes(&after.limiter, again[0], *number, 1, SAVED)).count(), kept);
}

#[test]
fn who_was_counted_together_stays_so_whatever_the_size_of_the_table() {
    let specs = [spec("a", quota(Algorithm::Gcra, 10))];
    let (before, meters) = limiter(400, &specs);
    let numbers = 0..3000;
    for number in numbers.clone() {
        takes(&before, meters[0], number, 10, SAVED);
    }
    let parts = saved(&before, SAVED);
    for max_keys in [40, 400, 100_000] {
        let after = restored(&parts, max_keys, SAVED).unwrap().limiter;
        let again = after.install(&specs, SAVED);
        for number in numbers.clone() {
            assert!(!takes(&after, again[0], number, 1, SAVED), "unused limit for {number} of {max_keys}");
        }
    }
}

#[test]
fn a_clock_that_has_gone_back_blocks_nobody_for_longer() {
    let specs = [spec("a", quota(Algorithm::Gcra, 10))];
    let (before, meters) = limiter(100, &specs);
    assert!(takes(&before, meters[0], 1, 10, SAVED));
    let then = Timestamp::from_secs(1_000_000_000);
    let after = restored(&saved(&before, SAVED), 100, then).unwrap().limiter;
    let again = after.install(&specs, then);
    assert!(!takes(&after, again[0], 1, 1, then));
    assert!(takes(&after, again[0], 1, 10, then.saturating_add(minutes(24 * 60))));
}

#[test]
fn a_configuration_that_changes_meanwhile_is_noticed() {
    let (limiter, _) = limiter(1000, &[spec("a", quota(Algorithm::Gcra, 10))]);
    let change = |part: SavedPart, _: &[u8]| {
        if part == SavedPart::Limits {
            limiter.install(&[spec("b", quota(Algorithm::Gcra, 10))], SAVED);
        }
        Ok::<(), ()>(())
    };
    assert_eq!(limiter.save(SAVED, change), Err(SaveError::Changed));
    assert_eq!(limiter.save(SAVED, |_, _| Err(7)), Err(SaveError::Write(7)));
}

#[test]
fn parts_that_are_missing_or_out_of_order_are_no_limiter() {
    let (before, meters) = limiter(1000, &[spec("a", quota(Algorithm::Gcra, 10))]);
    assert!(takes(&before, meters[0], 1, 1, SAVED));
    let parts = saved(&before, SAVED);
    let of = |parts: &[(SavedPart, Vec<u8>)]| restored(&parts.to_vec(), 1000, SAVED).map(|_| ()).unwrap_err();
    assert_eq!(of(&[]), RestoreError::MissingEnd);
    assert_eq!(of(&parts[..parts.len() - 1]), RestoreError::MissingEnd);
    assert_eq!(of(&parts[1..]), RestoreError::Order);
    assert_eq!(of(&[&parts[..], &parts[..1]].concat()), RestoreError::Order);
    assert_eq!(of(&[&parts[..2], &parts[3..]].concat()), RestoreError::Count);
    assert_eq!(of(&[&parts[..2], &parts[1..]].concat()), RestoreError::Content, "the same limit twice");
}

/// Saved state of a limiter with every algorithm and a ban.
fn varied() -> Parts {
    let ban = Quota::ban(Ban { initial_duration: minutes(10), max_duration: minutes(60) });
    let mut specs: Vec<_> =
        Algorithm::RATES.iter().map(|each| spec(each.as_str(), quota(*each, 10))).collect();
    specs.push(spec("ban", ban));
    let (before, meters) = limiter(16, &specs);
    for number in 0..30 {
        for meter in &meters {
            takes(&before, *meter, number, 1 + number % 10, SAVED);
        }
    }
    let parts = saved(&before, SAVED);
    assert!(parts.iter().any(|(part, _)| *part == SavedPart::Overflow));
    parts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_part_says_is_a_limiter_or_damage(
        which in any::<prop::sample::Index>(),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<bool>(),
        now in any::<u64>(),
    ) {
        let mut parts = varied();
        let index = which.index(parts.len());
        let bytes = &mut parts[index].1;
        let place = place.index(bytes.len());
        bytes[place] = byte;
        if cut {
            bytes.truncate(place);
        }
        let now = Timestamp::from_nanos(now);
        if let Ok(Restored { limiter, .. }) = restored(&parts, 64, now) {
            // The limiter counts, and another configuration can be installed.
            let meters = limiter.install(&[spec("gcra", quota(Algorithm::TokenBucket, 5))], now);
            takes(&limiter, meters[0], 3, 1, now);
            limiter.retire_others(&meters, now);
            prop_assert!(limiter.live_keys() <= 80);
        }
    }

    #[test]
    fn random_bytes_are_never_more_than_damage(
        parts in prop::collection::vec((0_u8..5, prop::collection::vec(any::<u8>(), 0..64)), 0..6),
    ) {
        let mut restorer = Restorer::new(64, SAVED);
        restorer.read_part(SavedPart::Head, &varied()[0].1).unwrap();
        for (tag, bytes) in parts {
            if restorer.read_part(SavedPart::from_tag(tag).unwrap(), &bytes).is_err() {
                return Ok(());
            }
        }
    }
}
