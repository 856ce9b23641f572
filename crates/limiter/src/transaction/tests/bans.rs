//! Bans: when they begin, how long they last, and what they do not affect.

use proptest::prelude::*;

use super::*;

fn with_ban(limit: u32, initial_millis: u64, max_millis: u64) -> TransactionFixture {
    TransactionFixture::new(&[ban(initial_millis, max_millis), per_second(Algorithm::FixedWindow, limit, 0)])
}

fn checks(bench: &TransactionFixture) -> [Check; 2] {
    [bench.check(0, b"client", CounterRole::Ban), bench.check(1, b"client", CounterRole::Limit)]
}

/// Whether the request is rejected, whether by the ban, and the wait in milliseconds.
fn decide(bench: &TransactionFixture, millis: u64) -> (bool, bool, u128) {
    let decision = bench.decide(&checks(bench), millis);
    let rejecting = decision.verdicts().iter().filter(|verdict| verdict.rejects());
    let wait = rejecting.map(|verdict| verdict.retry_after()).max().unwrap_or_default();
    (decision.is_rejected(), decision.verdicts()[0].rejects(), wait.as_millis())
}

#[test]
fn ban_runs_for_its_duration_from_the_first_rejection() {
    let bench = with_ban(2, 5000, 60_000);
    assert_eq!([decide(&bench, 0), decide(&bench, 1)], [(false, false, 0); 2]);
    assert_eq!(decide(&bench, 100), (true, false, 5000), "rejected by the limit, with the wait of the ban");
    // The window has ended and the ban has not; requests neither extend nor repeat it, nor are they charged.
    for now in [1100, 2000, 5000, 5099] {
        assert_eq!(decide(&bench, now), (true, true, u128::from(5100 - now)));
    }
    assert_eq!(bench.used(1, 5099), 0);
    assert_eq!(decide(&bench, 5100), (false, false, 0));
}

#[test]
fn repeated_ban_doubles_up_to_its_maximum() {
    let bench = with_ban(1, 1000, 3000);
    let mut now = 0;
    for expected in [1000, 2000, 3000, 3000, 3000] {
        assert!(!decide(&bench, now).0);
        assert_eq!(decide(&bench, now), (true, false, expected));
        now += u64::try_from(expected).unwrap();
    }
    // A ban is remembered for the maximum duration after its end, and then no longer.
    assert!(!decide(&bench, now + 4000).0);
    assert_eq!(decide(&bench, now + 4000), (true, false, 1000));
}

#[test]
fn shadow_limit_starts_no_ban() {
    let bench = with_ban(1, 1000, 3000);
    let [ban, limit] = checks(&bench);
    let shadow = Check { enforcement: Enforcement::Shadow, ..limit };
    assert!((0..3).all(|_| !bench.decide(&[ban, shadow], 0).is_rejected()));
}

#[test]
fn rejection_by_another_rule_starts_no_ban() {
    let bench = TransactionFixture::new(&[
        ban(1000, 3000),
        per_second(Algorithm::FixedWindow, 9, 0),
        per_second(Algorithm::FixedWindow, 1, 0),
    ]);
    let [ban, limit] = checks(&bench);
    let other = bench.check_without_options(2);
    assert!(!bench.decide(&[ban, limit, other], 0).is_rejected());
    assert!(bench.decide(&[ban, limit, other], 0).is_rejected());
    assert!(!bench.decide(&[ban, limit], 0).is_rejected());
    assert!(!bench.decide(&[ban, limit, other], 1000).is_rejected());
}

#[test]
fn request_blocked_only_by_holds_is_neither_banned_nor_charged() {
    let bench = with_ban(2, 5000, 60_000);
    let [ban, limit] = checks(&bench).map(|check| Check {
        options: check.options.map(|options| CheckOptions { on_denied: OnDenied::Charge, ..options }),
        ..check
    });
    let limit = Check { charge_timing: ChargeTiming::OnResponse, ..limit };
    let arrive = || !bench.decide(&[ban, limit], 0).is_rejected();
    let settle = |due| bench.limiter.settle(&mut Reservation::new(&limit, at(0)), due, at(0));
    assert_eq!([arrive(), arrive(), arrive(), arrive()], [true, true, false, false]);
    settle(0);
    settle(0);
    assert_eq!(bench.used(1, 0), 0, "neither admitted nor rejected requests are charged");
    assert_eq!([arrive(), arrive(), arrive()], [true, true, false], "no ban is in force");
    settle(1);
    settle(1);
    assert_eq!(decide(&bench, 0).2, 5000, "charged units begin a ban as usual");
}

#[test]
fn admitted_request_needs_no_ban_counter() {
    let bench = with_ban(5, 1000, 3000);
    assert!(!decide(&bench, 0).0);
    assert_eq!(bench.limiter.live_keys(), 1);
}

#[test]
fn ban_never_uses_the_overflow_counter() {
    let bench = TransactionFixture::with_max_keys(
        &[ban(60_000, 60_000), per_second(Algorithm::FixedWindow, 1, 0)],
        4,
    );
    let ask = |key: u32, now| {
        let key = key.to_be_bytes();
        let checks = [bench.check(0, &key, CounterRole::Ban), bench.check(1, &key, CounterRole::Limit)];
        bench.decide(&checks, now).verdicts()[0].rejects()
    };
    for key in 0..50 {
        // The first passes or shares the overflow counter; the second begins a ban if there is room for it.
        let _ = [ask(key, 0), ask(key, 0)];
    }
    let banned = (0..1000).filter(|key| ask(*key, 0)).count();
    assert!(banned <= 4, "{banned} bans in a table with room for four");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bans_match_the_reference_model(
        first in 1_u64..3000,
        more in 0_u64..9000,
        steps in prop::collection::vec(0_u64..2500, 1..150),
    ) {
        let most = first + more;
        let bench = with_ban(1, first, most);
        // The model: the end and length of the ban, and the second in which a request last passed.
        let (mut ban, mut passed, mut now) = (None::<(u64, u64)>, None, 0);
        for step in steps {
            now += step;
            let second = now / 1000;
            let expected = match ban {
                Some((end, _)) if now < end => (true, true, u128::from(end - now)),
                _ if passed != Some(second) => {
                    passed = Some(second);
                    (false, false, 0)
                }
                past => {
                    let length = match past {
                        Some((end, length)) if now <= end + most => (2 * length).min(most),
                        _ => first,
                    };
                    ban = Some((now + length, length));
                    (true, false, u128::from(length.max(1000 - now % 1000)))
                }
            };
            let given = decide(&bench, now);
            // If both reject, the longer wait is reported.
            let told = expected.2.max(if expected.1 && passed == Some(second) { u128::from(1000 - now % 1000) } else { 0 });
            prop_assert_eq!(given, (expected.0, expected.1, told), "at {}", now);
        }
    }
}
