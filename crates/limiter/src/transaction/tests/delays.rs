//! Delayed requests: when they leave, in which order, and which are rejected instead.

use proptest::prelude::*;

use super::*;
use crate::algorithm::Outcome;

/// Algorithms that earn unit by unit.
const CAN_DELAY: [Algorithm; 3] = [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::LeakyBucket];

/// Nanoseconds by which a token bucket may be late: one for each credit.
const MAX_ROUNDING_NANOS: u128 = 200;

fn millis(decision: &Decision) -> Option<u128> {
    (!decision.is_rejected()).then(|| decision.delay().as_millis())
}

#[test]
fn delayed_requests_are_evenly_spaced_in_arrival_order() {
    for algorithm in CAN_DELAY {
        let bench = TransactionFixture::new(&[per_second(algorithm, 10, 1)]);
        let check = bench.check(0, b"client", delay(500, None));
        let delays: Vec<_> = (0..7).map(|_| millis(&bench.decide(&[check], 0))).collect();
        let expected = [Some(0), Some(100), Some(200), Some(300), Some(400), Some(500), None];
        assert_eq!(delays, expected, "{algorithm}");
        // A rejected request has no place in the queue: the next one follows the last that waits.
        assert_eq!(millis(&bench.decide(&[check], 200)), Some(400), "{algorithm}");
        assert_eq!(millis(&bench.decide(&[check], 2000)), Some(0), "{algorithm}");
    }
}

#[test]
fn burst_is_admitted_before_requests_are_delayed() {
    for algorithm in CAN_DELAY {
        let bench = TransactionFixture::new(&[per_second(algorithm, 10, 3)]);
        let check = bench.check(0, b"client", delay(250, None));
        let delays: Vec<_> = (0..6).map(|_| millis(&bench.decide(&[check], 0))).collect();
        assert_eq!(delays, [Some(0), Some(0), Some(0), Some(100), Some(200), None], "{algorithm}");
    }
}

#[test]
fn delay_queue_rejects_beyond_max_queued() {
    for algorithm in CAN_DELAY {
        let bench = TransactionFixture::new(&[per_second(algorithm, 10, 1)]);
        let check = bench.check(0, b"client", delay(10_000, Some(2)));
        let delays: Vec<_> = (0..4).map(|_| millis(&bench.decide(&[check], 0))).collect();
        assert_eq!(delays, [Some(0), Some(100), Some(200), None], "{algorithm}");
        // One request has left the queue.
        assert_eq!(millis(&bench.decide(&[check], 150)), Some(150), "{algorithm}");
        assert_eq!(millis(&bench.decide(&[check], 150)), None, "{algorithm}");
    }
}

#[test]
fn delay_queue_is_bounded_by_default() {
    let bench = TransactionFixture::new(&[per_second(Algorithm::Gcra, 100_000, 1)]);
    let check = bench.check(0, b"client", delay(3_600_000, None));
    let waiting = (0..20_000).filter(|_| millis(&bench.decide(&[check], 0)).is_some()).count();
    assert_eq!(waiting, 10_001);
}

#[test]
fn longest_delay_applies_and_a_rejection_charges_no_limit() {
    let quotas = [per_second(Algorithm::Gcra, 10, 1), per_second(Algorithm::Gcra, 4, 1)];
    let bench = TransactionFixture::new(&[quotas[0], quotas[1], per_second(Algorithm::FixedWindow, 3, 0)]);
    let checks = [
        bench.check(0, b"client", delay(900, None)),
        bench.check(1, b"client", delay(900, None)),
        bench.check_without_options(2),
    ];
    let delays: Vec<_> = (0..5).map(|_| millis(&bench.decide(&checks, 0))).collect();
    assert_eq!(delays, [Some(0), Some(250), Some(500), None, None]);
    assert_eq!((bench.used(0, 0), bench.used(1, 0), bench.used(2, 0)), (3, 3, 3));
}

#[test]
fn shadow_limit_delays_no_request() {
    let bench = TransactionFixture::new(&[per_second(Algorithm::Gcra, 10, 1)]);
    let check = Check { enforcement: Enforcement::Shadow, ..bench.check(0, b"client", delay(500, None)) };
    let over: Vec<_> = (0..3)
        .map(|_| {
            let decision = bench.decide(&[check], 0);
            (millis(&decision), decision.verdicts()[0].exceeds())
        })
        .collect();
    assert_eq!(over, [(Some(0), false), (Some(0), true), (Some(0), true)]);
}

#[test]
fn marking_limit_delays_only_marked_requests_by_a_fixed_time() {
    let bench =
        TransactionFixture::new(&[per_second(Algorithm::Gcra, 4, 4), per_second(Algorithm::Gcra, 2, 2)]);
    let mark = Check { enforcement: Enforcement::Marking, ..bench.check(1, b"client", delay(50, None)) };
    let delays: Vec<_> =
        (0..5).map(|_| millis(&bench.decide(&[bench.check_without_options(0), mark], 0))).collect();
    assert_eq!(delays, [Some(0), Some(0), Some(50), Some(50), None]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn delayed_requests_keep_rate_and_order_within_max_delay(
        algorithm in prop::sample::select(&CAN_DELAY[..]),
        rate in 1_u32..50,
        burst in 1_u32..5,
        most in 1_u64..2000,
        queue in prop::option::of(1_u32..20),
        steps in prop::collection::vec((0_u64..200, 1_u32..3), 1..200),
    ) {
        let bench = TransactionFixture::new(&[per_second(algorithm, rate, burst)]);
        let (mut now, mut departures) = (0, Vec::<(u128, u128)>::new());
        for (step, cost) in steps {
            now += step;
            let check = Check { cost, ..bench.check(0, b"client", delay(most, queue)) };
            let decision = bench.decide(&[check], now);
            let waiting = departures.iter().filter(|(at, _)| *at > u128::from(now) * 1_000_000).count();
            if decision.is_rejected() {
                // Rejections are only due to the maximum delay, a full queue, or a cost above the burst.
                prop_assert!(waiting > 0 || most < 1000 * u64::from(cost) / u64::from(rate) + 1 || cost > burst);
                continue;
            }
            prop_assert!(decision.delay() <= Duration::from_millis(most));
            let leaves = u128::from(now) * 1_000_000 + decision.delay().as_nanos();
            prop_assert!(departures.last().is_none_or(|(last, _)| *last <= leaves), "a request overtakes an earlier one");
            departures.push((leaves, cost.into()));
        }
        for first in 0..departures.len() {
            let mut sum = 0;
            for (leaves, cost) in &departures[first..] {
                sum += cost;
                // Each is rounded up to a nanosecond, and a token bucket rounds twice.
                let within = (leaves - departures[first].0 + 2) * u128::from(rate) / 1_000_000_000;
                prop_assert!(sum <= u128::from(burst) + within, "{sum} from {first}");
            }
        }
    }

    #[test]
    fn retry_after_of_a_rejected_delay_is_exact(
        algorithm in prop::sample::select([CAN_DELAY.as_slice(), &[Algorithm::RefillBucket]].concat()),
        rate in 1_u32..50,
        more in 0_u32..5,
        most in 1_u64..2000,
        queue in prop::option::of(1_u32..20),
        steps in prop::collection::vec((0_u64..200, 1_u32..3), 1..100),
    ) {
        let burst = if algorithm == Algorithm::RefillBucket { rate + more } else { 1 + more };
        let quota = per_second(algorithm, rate, burst);
        let bench = TransactionFixture::new(&[quota]);
        let (mut now, mut admitted) = (0, Vec::new());
        for (step, cost) in steps {
            now += step;
            let check = Check { cost, ..bench.check(0, b"client", delay(most, queue)) };
            let decision = bench.decide(&[check], now);
            let wait = match decision.verdicts()[0].outcome {
                Outcome::Exceed { retry_after: Some(wait) } => wait,
                Outcome::Exceed { retry_after: None } => continue,
                Outcome::Conform => {
                    admitted.push((check, now));
                    continue;
                }
            };
            let is_refused = |at| {
                let again = TransactionFixture::new(&[quota]);
                admitted.iter().for_each(|(check, now)| assert!(!again.decide(&[*check], *now).is_rejected()));
                again.limiter.check(&[check], at).is_rejected()
            };
            let told = at(now).saturating_add(wait);
            // A token bucket rounds up when tokens are credited, and its waits include that.
            let earlier = Duration::from_nanos(if algorithm == Algorithm::TokenBucket { 3 } else { 1 });
            prop_assert!(wait <= earlier || is_refused(told.saturating_sub(earlier)), "retry-after is too long");
            prop_assert!(!is_refused(told), "retry-after is too short");
        }
    }

    #[test]
    fn delay_queue_holds_exactly_max_queued(
        algorithm in prop::sample::select(&CAN_DELAY[..]),
        rate in 1_u32..50,
        queue in 1_u32..20,
        steps in prop::collection::vec(0_u64..60, 1..200),
    ) {
        let bench = TransactionFixture::new(&[per_second(algorithm, rate, 1)]);
        let check = bench.check(0, b"client", delay(3_600_000, Some(queue)));
        let (mut now, mut departures) = (0, Vec::<u128>::new());
        for step in steps {
            now += step;
            let nanos = u128::from(now) * 1_000_000;
            let waiting = |at: u128| departures.iter().filter(|leaves| **leaves > at).count();
            let free = |at: u128| {
                departures.last().is_none_or(|last| at.saturating_sub(*last) * u128::from(rate) >= 1_000_000_000)
            };
            let full = |at: u128| !free(at) && waiting(at) >= queue as usize;
            let decision = bench.decide(&[check], now);
            // A request that leaves at this moment may be late by rounding.
            let (before, after) = (full(nanos.saturating_sub(MAX_ROUNDING_NANOS)), full(nanos + MAX_ROUNDING_NANOS));
            if before == after {
                prop_assert_eq!(decision.is_rejected(), before, "{} wait", waiting(nanos));
            }
            if !decision.is_rejected() {
                departures.push(nanos + decision.delay().as_nanos());
            }
        }
    }

    #[test]
    fn soft_limit_marks_beyond_the_configured_limit_and_rejects_beyond_the_margin(
        algorithm in prop::sample::select(&Algorithm::ALL[..]),
        rate in 1_u32..20,
        hundredths in 1_u32..10_000,
        steps in prop::collection::vec((0_u64..300, 1_u32..3), 1..200),
    ) {
        let written = per_second(algorithm, rate, if algorithm.has_burst() { rate } else { 0 });
        let raised = written.with_margin(crate::percent::Percent::from_hundredths(hundredths)).unwrap();
        // The same requests decided by each of the two limits alone.
        let (bench, alone) = (TransactionFixture::new(&[raised, written]), TransactionFixture::new(&[raised, written]));
        let mut now = 0;
        for (step, cost) in steps {
            now += step;
            let refuse = Check { cost, ..bench.check_without_options(0) };
            let mark = Check { cost, enforcement: Enforcement::Marking, ..bench.check_without_options(1) };
            let decision = bench.decide(&[refuse, mark], now);
            let above_raised = alone.decide(&[Check { cost, ..alone.check_without_options(0) }], now).is_rejected();
            prop_assert_eq!(decision.is_rejected(), above_raised);
            if above_raised {
                continue;
            }
            let above_written = alone.decide(&[Check { cost, ..alone.check_without_options(1) }], now).is_rejected();
            prop_assert_eq!(decision.verdicts()[1].marks(), above_written);
        }
    }
}
