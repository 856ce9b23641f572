//! Pauses that a provider has signalled.

use super::*;
use crate::check_options::{CheckOptions, CounterRole, DelayPolicy};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn delaying(check: Check, max_delay: Duration) -> Check {
    let role = CounterRole::Delay(DelayPolicy::new(max_delay, None));
    Check { options: Some(CheckOptions::new(0, role)), ..check }
}

#[test]
fn paused_counter_has_room_only_after_the_pause() {
    for algorithm in Algorithm::RATES {
        let (limiter, check) = limiter(quota(algorithm, 10));
        assert_eq!(admitted(&limiter, &check, NOW), 10);
        assert!(limiter.reset_counter(check.handle, check.key));
        limiter.pause_counter(check.handle, check.key, after(seconds(30)), NOW);
        limiter.pause_counter(check.handle, check.key, after(seconds(20)), NOW);
        let decision = limiter.check(&[check], after(seconds(10)));
        let verdict = &decision.verdicts()[0];
        assert!(verdict.rejects() && verdict.is_paused(), "{algorithm}");
        assert_eq!(verdict.retry_after(), seconds(20), "{algorithm}: until the later end");
        let burst = if matches!(algorithm, Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket)
        {
            1
        } else {
            10
        };
        assert_eq!(admitted(&limiter, &check, after(seconds(30))), burst, "{algorithm}: no burst follows");
        let other = Check { key: limiter.hasher().hash(b"b"), ..check };
        assert_eq!(admitted(&limiter, &other, NOW), 10, "{algorithm}: another key is not paused");
    }
}

#[test]
fn retry_after_of_a_paused_counter_covers_its_own_wait() {
    let (limiter, check) = limiter(quota(Algorithm::Gcra, 24));
    assert_eq!(admitted(&limiter, &check, NOW), 24);
    limiter.pause_counter(check.handle, check.key, after(seconds(60)), NOW);
    let verdict = limiter.check(&[check], NOW).verdicts()[0];
    assert_eq!(verdict.retry_after(), HOUR);
    limiter.pause_counter(check.handle, check.key, after(HOUR * 2), NOW);
    let verdict = limiter.check(&[check], NOW).verdicts()[0];
    assert_eq!(verdict.retry_after(), HOUR * 2);
}

#[test]
fn delayed_request_leaves_when_the_pause_ends_and_those_behind_it_later() {
    let hourly = Limit::new(NonZeroU32::new(3600).unwrap(), Period::one(TimeUnit::Hour));
    let quota = Quota::new(Algorithm::Gcra, hourly, Some(NonZeroU32::MIN)).unwrap();
    let (limiter, check) = limiter(quota);
    let check = delaying(check, seconds(12));
    limiter.pause_counter(check.handle, check.key, after(seconds(10)), NOW);
    let delays: Vec<_> = (0..4)
        .map(|_| {
            let verdict = limiter.check(&[check], NOW).verdicts()[0];
            (!verdict.rejects()).then(|| verdict.delay())
        })
        .collect();
    assert_eq!(delays, [Some(seconds(10)), Some(seconds(11)), Some(seconds(12)), None]);
    let too_long = delaying(check, seconds(9));
    let verdict = limiter.check(&[too_long], NOW).verdicts()[0];
    assert!(verdict.rejects() && verdict.retry_after() >= seconds(10));
}

#[test]
fn pause_survives_a_reload_and_ends_with_its_limit() {
    let (limiter, check) = limiter(quota(Algorithm::Gcra, 10));
    limiter.pause_counter(check.handle, check.key, after(seconds(30)), NOW);
    let handle = limiter.install(&[spec(quota(Algorithm::Gcra, 20))], NOW)[0];
    let check = Check { handle, ..check };
    assert_eq!(admitted(&limiter, &check, after(seconds(1))), 0);
    limiter.retire_others(&[], NOW);
    let handle = limiter.install(&[spec(quota(Algorithm::Gcra, 20))], NOW)[0];
    assert_eq!(admitted(&limiter, &Check { handle, ..check }, after(seconds(1))), 20);
}
