//! Groups of checks that divert a request, and those of which it needs one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use proptest::prelude::*;

use super::{TransactionFixture, at, ban, per_second};
use crate::Check;
use crate::algorithm::Algorithm;
use crate::check_options::{AlternativePlace, CheckOptions, CounterRole, WithoutRoom};
use crate::decision::{Decision, Enforcement};
use crate::quota::Quota;
use crate::reservation::{ChargeTiming, Reservation};

fn window(count: u32) -> Quota {
    per_second(Algorithm::FixedWindow, count, 0)
}

/// Returns `check` in `group`.
fn in_group(check: Check, group: u32, without_room: WithoutRoom) -> Check {
    let role = check.options.map_or(CounterRole::Limit, |options| options.role);
    let options = CheckOptions { without_room, ..CheckOptions::new(group, role) };
    Check { options: Some(options), ..check }
}

fn alternative(set: u16, rank: u8) -> WithoutRoom {
    WithoutRoom::TryNext(AlternativePlace { set, rank })
}

impl TransactionFixture {
    /// Returns a check of the limit at `index`, which is a group of its own.
    fn group(&self, index: usize, without_room: WithoutRoom) -> Check {
        in_group(self.check_without_options(index), u32::try_from(index).unwrap(), without_room)
    }
}

fn charged(decision: &Decision) -> Vec<bool> {
    let is_charged = |verdict: &crate::decision::Verdict| !decision.is_rejected() && verdict.is_charged();
    decision.verdicts().iter().map(is_charged).collect()
}

#[test]
fn first_alternative_with_room_is_charged_alone_in_the_order_of_the_set() {
    let bench = TransactionFixture::new(&[window(1), window(2), window(9)]);
    // The set prefers the second limit.
    let checks = [
        bench.group(0, alternative(3, 1)),
        bench.group(1, alternative(3, 0)),
        bench.check_without_options(2),
    ];
    let decided: Vec<_> = (0..4).map(|_| charged(&bench.decide(&checks, 0))).collect();
    let expected = [[false, true, true], [false, true, true], [true, false, true], [false, false, false]];
    assert_eq!(decided, expected);
    assert_eq!([0, 1, 2].map(|index| bench.used(index, 0)), [1, 2, 3]);
    assert_eq!(charged(&bench.decide(&checks, 1000)), [false, true, true], "in the next window");
}

#[test]
fn exhausted_set_rejects_by_the_group_that_has_room_first() {
    let slow = per_second(Algorithm::Gcra, 1, 1);
    let fast = per_second(Algorithm::Gcra, 10, 1);
    let bench = TransactionFixture::new(&[slow, fast]);
    let checks = [bench.group(0, alternative(0, 0)), bench.group(1, alternative(0, 1))];
    assert_eq!(charged(&bench.decide(&checks, 0)), [true, false]);
    assert_eq!(charged(&bench.decide(&checks, 0)), [false, true]);
    let rejected = bench.decide(&checks, 0);
    let verdicts = rejected.verdicts();
    assert!(rejected.is_rejected() && verdicts[1].rejects());
    assert!(verdicts[0].is_passed_over() && verdicts[0].exceeds() && !verdicts[0].rejects());
    let waits = verdicts.iter().map(crate::decision::Verdict::retry_after).collect::<Vec<_>>();
    assert_eq!(waits, [Duration::from_secs(1), Duration::from_millis(100)]);
    assert_eq!(charged(&bench.decide(&checks, 100)), [false, true], "after the shorter wait");
}

#[test]
fn group_of_several_limits_has_room_only_if_all_have() {
    let bench = TransactionFixture::new(&[window(5), window(1), window(5)]);
    let first = |index| in_group(bench.check_without_options(index), 0, alternative(0, 0));
    let checks = [first(0), first(1), bench.group(2, alternative(0, 1))];
    assert_eq!(charged(&bench.decide(&checks, 0)), [true, true, false]);
    let second = bench.decide(&checks, 0);
    assert_eq!(charged(&second), [false, false, true]);
    assert_eq!(second.verdicts()[0].usage(at(0)).unwrap().used, 1, "shown without a charge");
    assert_eq!([0, 1, 2].map(|index| bench.used(index, 0)), [1, 1, 1]);
}

#[test]
fn request_rejected_by_another_limit_is_charged_to_no_alternative() {
    let bench = TransactionFixture::new(&[window(1), window(1), window(1)]);
    let alternatives = [bench.group(0, alternative(0, 0)), bench.group(1, alternative(0, 1))];
    let other = bench.check_without_options(2);
    assert!(!bench.decide(&[other], 0).is_rejected());
    assert!(bench.decide(&[alternatives[0], alternatives[1], other], 0).is_rejected());
    assert_eq!([0, 1].map(|index| bench.used(index, 0)), [0, 0]);
}

#[test]
fn alternatives_and_another_check_of_one_counter_are_charged_together() {
    let bench = TransactionFixture::new(&[window(3), window(1)]);
    let checks = [
        bench.group(0, alternative(0, 1)),
        bench.check_without_options(0),
        bench.group(1, alternative(0, 0)),
    ];
    assert_eq!(charged(&bench.decide(&checks, 0)), [false, true, true]);
    assert_eq!(charged(&bench.decide(&checks, 0)), [true, true, false]);
    assert_eq!(bench.used(0, 0), 3);
    assert!(bench.decide(&checks, 0).is_rejected());
}

#[test]
fn permit_of_an_alternative_is_held_only_if_it_is_chosen() {
    let permits = Quota::in_flight(super::count(1));
    let bench = TransactionFixture::new(&[permits, permits]);
    let permit = |index, rank| Check {
        charge_timing: ChargeTiming::WhileInFlight,
        ..bench.group(index, alternative(0, rank))
    };
    let checks = [permit(0, 0), permit(1, 1)];
    assert_eq!(charged(&bench.decide(&checks, 0)), [true, false]);
    assert_eq!(charged(&bench.decide(&checks, 0)), [false, true]);
    assert!(bench.decide(&checks, 0).is_rejected());
    bench.limiter.release_permit(&Reservation::new(&checks[0], at(0)));
    assert_eq!(charged(&bench.decide(&checks, 0)), [true, false]);
}

#[test]
fn diverted_request_is_charged_to_all_but_the_group_without_room() {
    let bench = TransactionFixture::new(&[window(5), window(1), window(3)]);
    let group = |index| in_group(bench.check_without_options(index), 0, WithoutRoom::Divert);
    let checks = [group(0), group(1), bench.check_without_options(2)];
    assert_eq!(charged(&bench.decide(&checks, 0)), [true, true, true]);
    for _ in 0..2 {
        let diverted = bench.decide(&checks, 0);
        assert_eq!(charged(&diverted), [false, false, true]);
        let verdicts = diverted.verdicts();
        assert_eq!([verdicts[0].diverts(), verdicts[1].diverts()], [false, true]);
        assert_eq!(verdicts[0].enforcement, Enforcement::Diverting);
    }
    assert_eq!([0, 1, 2].map(|index| bench.used(index, 0)), [1, 1, 3]);
    assert!(bench.decide(&checks, 0).is_rejected(), "by the other limit");
}

#[test]
fn ban_of_a_diverting_group_starts_once_and_diverts_until_it_ends() {
    let bench = TransactionFixture::new(&[ban(5000, 60_000), window(1), window(9)]);
    let group = |check| in_group(check, 0, WithoutRoom::Divert);
    let checks = [
        group(bench.check(0, b"client", CounterRole::Ban)),
        group(bench.check_without_options(1)),
        bench.check_without_options(2),
    ];
    let is_diverted = |millis| {
        let decision = bench.decide(&checks, millis);
        assert!(!decision.is_rejected());
        decision.verdicts().iter().any(crate::decision::Verdict::diverts)
    };
    assert_eq!([0, 0, 1000, 4999].map(is_diverted), [false, true, true, true]);
    assert!(!is_diverted(5000), "the ban ran from the first diverted request");
}

#[test]
fn peek_decides_by_the_group_that_would_be_charged() {
    let bench = TransactionFixture::new(&[window(1), window(1)]);
    let checks = [bench.group(0, alternative(0, 0)), bench.group(1, alternative(0, 1))];
    let peek = || bench.limiter.peek(checks, at(0));
    for expected in [[true, false], [false, true], [false, false]] {
        assert_eq!(charged(&peek()), expected);
        assert_eq!(charged(&bench.decide(&checks, 0)), expected);
    }
    let divert = [bench.group(0, WithoutRoom::Divert)];
    let peeked = bench.limiter.peek(divert, at(0));
    assert!(!peeked.is_rejected() && peeked.verdicts()[0].diverts());
}

#[test]
fn concurrent_requests_take_exactly_the_units_of_all_alternatives() {
    let limits = [137, 40, 60];
    let bench = TransactionFixture::new(&limits.map(window));
    let checks = [0_u8, 1, 2].map(|rank| bench.group(rank.into(), alternative(0, rank)));
    let admitted = [0, 1, 2].map(|_| AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let by = charged(&bench.decide(&checks, 0));
                    assert!(by.iter().filter(|is_charged| **is_charged).count() <= 1);
                    let charged = admitted.iter().zip(by).filter(|(_, is_charged)| *is_charged);
                    charged.for_each(|(count, _)| _ = count.fetch_add(1, Ordering::Relaxed));
                }
            });
        }
    });
    assert_eq!(admitted.map(AtomicU32::into_inner), limits);
    assert_eq!([0, 1, 2].map(|index| bench.used(index, 0)), limits);
}

/// A request: the cost under each limit, and whether the last limit applies to it, of which all requests are charged.
fn request(limits: usize) -> impl Strategy<Value = (Vec<u32>, Option<u32>)> {
    (prop::collection::vec(1_u32..6, limits), prop::option::of(1_u32..4))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn decisions_are_those_of_a_sequential_model(
        (limits, requests) in prop::collection::vec(1_u32..30, 2..6).prop_flat_map(|limits| {
            let count = limits.len() - 1;
            (Just(limits), prop::collection::vec(request(count), 1..80))
        }),
    ) {
        let quotas: Vec<_> = limits.iter().map(|limit| window(*limit)).collect();
        let (bench, last) = (TransactionFixture::new(&quotas), limits.len() - 1);
        let mut left = limits;
        for (costs, other) in requests {
            let alternatives = costs.iter().enumerate().map(|(index, cost)| {
                let rank = u8::try_from(index).unwrap();
                Check { cost: *cost, ..bench.group(index, alternative(7, rank)) }
            });
            let beside = other.map(|cost| Check { cost, ..bench.check_without_options(last) });
            let checks: Vec<_> = alternatives.chain(beside).collect();
            let chosen = costs.iter().zip(&left).position(|(cost, left)| cost <= left);
            let passes = chosen.is_some() && other.is_none_or(|cost| cost <= left[last]);
            let decision = bench.decide(&checks, 0);
            prop_assert_eq!(!decision.is_rejected(), passes);
            let by = charged(&decision);
            if let Some(chosen) = chosen.filter(|_| passes) {
                left[chosen] -= costs[chosen];
                left[last] -= other.unwrap_or(0);
                prop_assert_eq!(by[..last].iter().position(|is_charged| *is_charged), Some(chosen));
            }
            let used: Vec<_> = (0..=last).map(|index| bench.used(index, 0)).collect();
            let expected: Vec<_> = quotas.iter().zip(&left).map(|(quota, left)| quota.capacity() - left).collect();
            prop_assert_eq!(used, expected);
        }
    }
}
