//! Shares and pauses of the keys of a rule.

use std::num::NonZeroU32;

use super::*;
use crate::algorithm::Algorithm;
use crate::algorithm::conversion::OnChange;
use crate::decision::Enforcement;
use crate::key::KeyHasher;
use crate::percent::Percent;
use crate::quota::{Limit, Period, Quota, TimeUnit};
use crate::reservation::ChargeTiming;
use crate::{Check, LimitIdentity, LimitSpec, LimiterSettings};

fn key(number: usize) -> KeyHash {
    KeyHasher::new([1, 2]).hash(&number.to_le_bytes())
}

fn settings() -> ControllerSettings {
    let percent = |hundredths| Percent::from_hundredths(hundredths);
    ControllerSettings::new(LimitShare::MIN, percent(3000), percent(500), Duration::from_secs(1))
}

#[test]
fn share_is_full_for_keys_that_the_provider_never_rejected() {
    let feedback = RuleFeedback::default();
    let now = Timestamp::from_secs(100);
    assert!(feedback.record_rejection(key(1), now, Duration::ZERO, now, &settings()));
    assert_eq!(feedback.share(key(1)).millionths(), 700_000);
    assert!(feedback.share(key(2)).is_full());
    assert_eq!(feedback.status(now).keys, 1);
}

#[test]
fn keys_beyond_the_table_share_one_entry_and_none_is_forgotten() {
    let feedback = RuleFeedback::default();
    let now = Timestamp::from_secs(100);
    for number in 0..MAX_KEYS + 10 {
        feedback.record_rejection(key(number), now, Duration::ZERO, now, &settings());
    }
    assert!((0..MAX_KEYS + 10).all(|number| !feedback.share(key(number)).is_full()));
    assert_eq!(feedback.keys.read().len(), MAX_KEYS);
    let limiter = Limiter::new(LimiterSettings { max_keys: 16, secret: [1, 2] });
    feedback.pause(key(MAX_KEYS + 1), now.saturating_add(MAX_IDLE), now, &limiter);
    assert_eq!(feedback.status(now).paused_for, Duration::ZERO, "a pause takes memory");
    let later = now.saturating_add(MAX_IDLE * 2);
    feedback.record_rejection(key(MAX_KEYS + 20), later, Duration::ZERO, later, &settings());
    assert_eq!(feedback.keys.read().len(), 1, "entries that have recovered make room");
}

#[test]
fn share_of_an_unused_key_is_forgotten_after_ten_minutes() {
    let feedback = RuleFeedback::default();
    let now = Timestamp::from_secs(100);
    feedback.record_rejection(key(1), now, Duration::ZERO, now, &settings());
    feedback.record_use(key(1), false, now.saturating_add(MAX_IDLE));
    assert!(!feedback.share(key(1)).is_full());
    feedback.record_use(key(1), false, now.saturating_add(MAX_IDLE * 3));
    assert!(feedback.share(key(1)).is_full());
}

#[test]
fn share_does_not_rise_while_the_limit_is_not_in_use() {
    let feedback = RuleFeedback::default();
    let at = |millis| Timestamp::from_secs(100).saturating_add(Duration::from_millis(millis));
    feedback.record_rejection(key(1), at(0), Duration::ZERO, at(0), &settings());
    for millis in (0..5000).step_by(100) {
        feedback.record_use(key(1), false, at(millis));
        feedback.record_success(key(1), at(millis), None, at(millis), &settings());
    }
    assert_eq!(feedback.share(key(1)).millionths(), 700_000);
    feedback.record_use(key(1), true, at(5000));
    feedback.record_success(key(1), at(5000), None, at(5000), &settings());
    assert!(feedback.share(key(1)).millionths() > 700_000);
}

#[test]
fn later_of_two_pauses_is_in_force() {
    let feedback = RuleFeedback::default();
    let now = Timestamp::from_secs(100);
    let limiter = Limiter::new(LimiterSettings { max_keys: 16, secret: [1, 2] });
    feedback.pause(key(1), Timestamp::from_secs(130), now, &limiter);
    feedback.pause(key(1), Timestamp::from_secs(110), now, &limiter);
    assert_eq!(feedback.status(now).paused_for, Duration::from_secs(30));
    assert_eq!(feedback.status_of(key(1)).1, Timestamp::from_secs(130));
}

/// Installs limits of a rule that admit any number of requests.
fn install(limiter: &Limiter, names: &[&str], now: Timestamp) -> Box<[LimitHandle]> {
    let limit = Limit::new(NonZeroU32::new(1000).unwrap(), Period::one(TimeUnit::Second));
    let quota = Quota::new(Algorithm::Gcra, limit, None).unwrap();
    let spec = |name: &&str| LimitSpec {
        identity: LimitIdentity { rule: (*name).into(), key: "[]".into() },
        quota,
        on_change: OnChange::Keep,
        lease_policy: None,
    };
    limiter.install(&names.iter().map(spec).collect::<Vec<_>>(), now).into()
}

fn admits(limiter: &Limiter, handle: LimitHandle, key: KeyHash, now: Timestamp) -> bool {
    let (enforcement, charge_timing) = (Enforcement::Enforced, ChargeTiming::OnArrival);
    let check = Check { handle, key, cost: 1, enforcement, charge_timing, options: None };
    !limiter.check(&[check], now).is_rejected()
}

#[test]
fn pause_applies_to_limits_that_replace_those_of_the_rule() {
    let book = FeedbackBook::default();
    let limiter = Limiter::new(LimiterSettings { max_keys: 1000, secret: [1, 2] });
    let (now, until) = (Timestamp::from_secs(100), Timestamp::from_secs(130));
    let limits = install(&limiter, &["old", "new"], now);
    let rule = book.of_rule("rule", [limits[0]].into(), false, &limiter, now);
    rule.pause(key(1), until, now, &limiter);
    assert!(!admits(&limiter, limits[0], key(1), now));
    assert!(admits(&limiter, limits[1], key(1), now));
    let later = Timestamp::from_secs(110);
    let rule = book.of_rule("rule", [limits[1]].into(), false, &limiter, later);
    assert_eq!(rule.status_of(key(1)).1, until);
    assert!(!admits(&limiter, limits[1], key(1), later), "the new limit is paused");
    assert!(admits(&limiter, limits[1], key(2), later), "for this key only");
    assert!(admits(&limiter, limits[1], key(1), until), "until the end of the pause");
    // A pause that is over is not applied.
    let others = install(&limiter, &["another"], until);
    book.of_rule("rule", others.clone(), false, &limiter, until);
    assert!(admits(&limiter, others[0], key(1), until));
}
