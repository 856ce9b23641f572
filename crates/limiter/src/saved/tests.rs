use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::algorithm::Algorithm;
use crate::algorithm::conversion::OnChange;
use crate::decision::Enforcement;
use crate::key::KeyHash;
use crate::quota::{Ban, Limit, Period, Quota, TimeUnit};
use crate::reservation::ChargeTiming;
use crate::{Check, LimitHandle, LimitIdentity, LimitSpec, LimiterSettings};

/// 2026-11-21T08:00:00Z.
const SAVED_AT: Timestamp = Timestamp::from_secs(1_795_248_000);

type SavedParts = Vec<(SavedPart, Vec<u8>)>;

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
    let handles = limiter.install(specs, SAVED_AT);
    (limiter, handles)
}

fn key(limiter: &Limiter, number: u32) -> KeyHash {
    limiter.hasher().hash(&number.to_be_bytes())
}

fn admits(limiter: &Limiter, handle: LimitHandle, number: u32, cost: u32, now: Timestamp) -> bool {
    let check = Check {
        handle,
        key: key(limiter, number),
        cost,
        enforcement: Enforcement::Enforced,
        charge_timing: ChargeTiming::OnArrival,
        options: None,
    };
    !limiter.check(&[check], now).is_rejected()
}

fn used(limiter: &Limiter, handle: LimitHandle, number: u32, now: Timestamp) -> u32 {
    limiter.usage(handle, key(limiter, number), now).unwrap().used
}

fn save_parts(limiter: &Limiter, now: Timestamp) -> SavedParts {
    let mut parts = SavedParts::new();
    let write = |part, bytes: &[u8]| {
        parts.push((part, bytes.to_vec()));
        Ok::<(), ()>(())
    };
    limiter.save(now, write).unwrap();
    parts
}

fn restore_parts(parts: &SavedParts, max_keys: usize, now: Timestamp) -> Result<Restored, RestoreError> {
    let mut restorer = Restorer::new(max_keys, now);
    parts.iter().try_for_each(|(part, bytes)| restorer.read_part(*part, bytes))?;
    restorer.finish()
}

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

#[test]
fn restored_limiter_has_the_saved_usage() {
    for algorithm in Algorithm::RATES {
        let specs = [spec("a", quota(algorithm, 10)), spec("b", quota(algorithm, 20))];
        let (before, handles) = limiter(1000, &specs);
        for number in 0..500 {
            assert!(admits(&before, handles[0], number, number % 11, SAVED_AT));
            assert!(admits(&before, handles[1], number, number % 7, SAVED_AT));
        }
        let now = SAVED_AT.saturating_add(minutes(3));
        let after = restore_parts(&save_parts(&before, now), 1000, now).unwrap();
        let again = after.limiter.install(&specs, now);
        assert_eq!((after.overflowed, after.saved_at), (0, now));
        for number in 0..500 {
            for handle in 0..2 {
                let was = used(&before, handles[handle], number, now);
                assert_eq!(used(&after.limiter, again[handle], number, now), was, "{algorithm}");
            }
        }
    }
}

#[test]
fn restored_counter_survives_a_changed_limit() {
    let (before, handles) = limiter(1000, &[spec("a", quota(Algorithm::Gcra, 10))]);
    assert!(admits(&before, handles[0], 1, 7, SAVED_AT));
    let after = restore_parts(&save_parts(&before, SAVED_AT), 1000, SAVED_AT).unwrap().limiter;
    let raised = after.install(&[spec("a", quota(Algorithm::FixedWindow, 100))], SAVED_AT);
    assert_eq!(used(&after, raised[0], 1, SAVED_AT), 7);
    let renamed = after.install(&[spec("b", quota(Algorithm::Gcra, 10))], SAVED_AT);
    assert_eq!(used(&after, renamed[0], 1, SAVED_AT), 0);
}

#[test]
fn unused_and_in_flight_counters_are_not_saved() {
    let in_flight = Quota::in_flight(NonZeroU32::new(5).unwrap());
    let ban = Quota::ban(Ban { initial_duration: minutes(10), max_duration: minutes(60) });
    let specs = [spec("a", quota(Algorithm::Gcra, 1440)), spec("b", in_flight), spec("c", ban)];
    let (before, handles) = limiter(1000, &specs);
    assert!(admits(&before, handles[0], 1, 1, SAVED_AT) && admits(&before, handles[1], 1, 5, SAVED_AT));
    assert!(admits(&before, handles[0], 2, 5, SAVED_AT));
    let counted = |parts: &SavedParts| restore_parts(parts, 1000, SAVED_AT).unwrap().counters;
    assert_eq!(counted(&save_parts(&before, SAVED_AT)), 2);
    assert_eq!(counted(&save_parts(&before, SAVED_AT.saturating_add(minutes(2)))), 1);
    assert_eq!(counted(&save_parts(&before, SAVED_AT.saturating_add(minutes(6)))), 0);
}

#[test]
fn restore_into_a_smaller_table_keeps_every_key_limited() {
    let specs = [spec("a", quota(Algorithm::Gcra, 10))];
    let (before, handles) = limiter(4000, &specs);
    for number in 0..4000 {
        assert!(admits(&before, handles[0], number, 10, SAVED_AT));
    }
    let after = restore_parts(&save_parts(&before, SAVED_AT), 100, SAVED_AT).unwrap();
    assert!(after.counters == 4000 && after.overflowed > 3800, "{after:?}");
    let again = after.limiter.install(&specs, SAVED_AT);
    for number in 0..4000 {
        assert!(!admits(&after.limiter, again[0], number, 1, SAVED_AT), "unused limit for key {number}");
    }
}

#[test]
fn restored_ban_without_room_does_not_ban_other_keys() {
    let ban = Quota::ban(Ban { initial_duration: minutes(10), max_duration: minutes(60) });
    let (before, handles) = limiter(1000, &[spec("ban", ban)]);
    let banned = CounterState { word: SAVED_AT.saturating_add(minutes(10)).as_nanos(), extra: 0 };
    for number in 0..500 {
        let key = key(&before, number).salted(handles[0].salt);
        let mut shard = before.table.lock(before.table.shard_of(key));
        let slot = shard.find(key);
        shard.store_state(slot, key, handles[0].id, banned, SAVED_AT);
    }
    let after = restore_parts(&save_parts(&before, SAVED_AT), 16, SAVED_AT).unwrap();
    assert!(after.overflowed > 400, "{after:?}");
    let again = after.limiter.install(&[spec("ban", ban)], SAVED_AT);
    assert!(admits(&after.limiter, again[0], 10_000, 1, SAVED_AT), "a new client is admitted");
    let kept = after.limiter.live_keys();
    assert_eq!(
        (0..500).filter(|number| !admits(&after.limiter, again[0], *number, 1, SAVED_AT)).count(),
        kept
    );
}

#[test]
fn restored_overflow_counters_stay_exhausted_at_any_table_size() {
    let specs = [spec("a", quota(Algorithm::Gcra, 10))];
    let (before, handles) = limiter(400, &specs);
    let numbers = 0..3000;
    for number in numbers.clone() {
        admits(&before, handles[0], number, 10, SAVED_AT);
    }
    let parts = save_parts(&before, SAVED_AT);
    for max_keys in [40, 400, 100_000] {
        let after = restore_parts(&parts, max_keys, SAVED_AT).unwrap().limiter;
        let again = after.install(&specs, SAVED_AT);
        for number in numbers.clone() {
            assert!(
                !admits(&after, again[0], number, 1, SAVED_AT),
                "unused limit for {number} of {max_keys}"
            );
        }
    }
}

#[test]
fn restore_after_a_clock_step_back_does_not_prolong_a_limit() {
    let specs = [spec("a", quota(Algorithm::Gcra, 10))];
    let (before, handles) = limiter(100, &specs);
    assert!(admits(&before, handles[0], 1, 10, SAVED_AT));
    let then = Timestamp::from_secs(1_000_000_000);
    let after = restore_parts(&save_parts(&before, SAVED_AT), 100, then).unwrap().limiter;
    let again = after.install(&specs, then);
    assert!(!admits(&after, again[0], 1, 1, then));
    assert!(admits(&after, again[0], 1, 10, then.saturating_add(minutes(24 * 60))));
}

#[test]
fn save_fails_if_the_configuration_changes_meanwhile() {
    let (limiter, _) = limiter(1000, &[spec("a", quota(Algorithm::Gcra, 10))]);
    let change = |part: SavedPart, _: &[u8]| {
        if part == SavedPart::Limits {
            limiter.install(&[spec("b", quota(Algorithm::Gcra, 10))], SAVED_AT);
        }
        Ok::<(), ()>(())
    };
    assert_eq!(limiter.save(SAVED_AT, change), Err(SaveError::Changed));
    assert_eq!(limiter.save(SAVED_AT, |_, _| Err(7)), Err(SaveError::Write(7)));
}

#[test]
fn restore_rejects_missing_and_misordered_parts() {
    let (before, handles) = limiter(1000, &[spec("a", quota(Algorithm::Gcra, 10))]);
    assert!(admits(&before, handles[0], 1, 1, SAVED_AT));
    let parts = save_parts(&before, SAVED_AT);
    let of = |parts: &[(SavedPart, Vec<u8>)]| {
        restore_parts(&parts.to_vec(), 1000, SAVED_AT).map(|_| ()).unwrap_err()
    };
    assert_eq!(of(&[]), RestoreError::MissingEnd);
    assert_eq!(of(&parts[..parts.len() - 1]), RestoreError::MissingEnd);
    assert_eq!(of(&parts[1..]), RestoreError::Order);
    assert_eq!(of(&[&parts[..], &parts[..1]].concat()), RestoreError::Order);
    assert_eq!(of(&[&parts[..2], &parts[3..]].concat()), RestoreError::Count);
    assert_eq!(of(&[&parts[..2], &parts[1..]].concat()), RestoreError::Content, "the same limit twice");
}

/// Saved state of a limiter with every algorithm and a ban.
fn varied_parts() -> SavedParts {
    let ban = Quota::ban(Ban { initial_duration: minutes(10), max_duration: minutes(60) });
    let mut specs: Vec<_> =
        Algorithm::RATES.iter().map(|each| spec(each.as_str(), quota(*each, 10))).collect();
    specs.push(spec("ban", ban));
    let (before, handles) = limiter(16, &specs);
    for number in 0..30 {
        for handle in &handles {
            admits(&before, *handle, number, 1 + number % 10, SAVED_AT);
        }
    }
    let parts = save_parts(&before, SAVED_AT);
    assert!(parts.iter().any(|(part, _)| *part == SavedPart::Overflow));
    parts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn restore_of_corrupted_parts_never_panics(
        which in any::<prop::sample::Index>(),
        position in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<bool>(),
        now in any::<u64>(),
    ) {
        let mut parts = varied_parts();
        let index = which.index(parts.len());
        let bytes = &mut parts[index].1;
        let position = position.index(bytes.len());
        bytes[position] = byte;
        if cut {
            bytes.truncate(position);
        }
        let now = Timestamp::from_nanos(now);
        if let Ok(Restored { limiter, .. }) = restore_parts(&parts, 64, now) {
            // The limiter counts, and another configuration can be installed.
            let handles = limiter.install(&[spec("gcra", quota(Algorithm::TokenBucket, 5))], now);
            admits(&limiter, handles[0], 3, 1, now);
            limiter.retire_others(&handles, now);
            prop_assert!(limiter.live_keys() <= 80);
        }
    }

    #[test]
    fn restore_of_random_bytes_never_panics(
        parts in prop::collection::vec((0_u8..5, prop::collection::vec(any::<u8>(), 0..64)), 0..6),
    ) {
        let mut restorer = Restorer::new(64, SAVED_AT);
        restorer.read_part(SavedPart::Head, &varied_parts()[0].1).unwrap();
        for (tag, bytes) in parts {
            if restorer.read_part(SavedPart::from_tag(tag).unwrap(), &bytes).is_err() {
                return Ok(());
            }
        }
    }
}
