use std::num::NonZeroU32;

use proptest::prelude::*;

use super::super::algorithm::Algorithm;
use super::super::algorithm::conversion::OnChange;
use super::super::decision::Enforcement;
use super::super::quota::{Limit, Period, Unit};
use super::super::{Lineage, MeterSpec, Settings};
use super::*;

/// 2026-11-21T08:00:00Z.
const START: u64 = 1_795_248_000_000_000_000;
const HOUR: u64 = 3_600_000_000_000;

struct Bench {
    limiter: Limiter,
    meter: Meter,
    charging: Charging,
}

impl Bench {
    fn new(algorithm: Algorithm, count: u32, charging: Charging) -> Self {
        let limiter = Limiter::new(Settings { max_keys: 1000, secret: [1, 2] });
        let meter = limiter.install(&[Self::spec(algorithm, count)], Timestamp::from_nanos(START))[0];
        Self { limiter, meter, charging }
    }

    fn spec(algorithm: Algorithm, count: u32) -> MeterSpec {
        let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(Unit::Hour));
        let lineage = Lineage { rule: "r".into(), key: "k".into() };
        MeterSpec { lineage, quota: Quota::new(algorithm, limit, None).unwrap(), on_change: OnChange::Keep }
    }

    fn key(&self) -> KeyHash {
        self.limiter.hasher().hash(b"client")
    }

    fn arrive(&self, cost: u32, at: u64) -> Option<Reservation> {
        let now = Timestamp::from_nanos(at);
        let check = Check {
            meter: self.meter,
            key: self.key(),
            cost,
            enforcement: Enforcement::Enforced,
            charging: self.charging,
            terms: None,
        };
        let decision = self.limiter.check(&[check], now);
        (!decision.is_refused()).then(|| Reservation::new(&check, now))
    }

    fn settle(&self, mut reservation: Reservation, due: u32, at: u64) {
        self.limiter.settle(&mut reservation, due, Timestamp::from_nanos(at));
    }

    fn remaining(&self, at: u64) -> u32 {
        self.limiter.usage(self.meter, self.key(), Timestamp::from_nanos(at)).unwrap().remaining
    }
}

#[test]
fn a_thousand_at_once_hold_no_more_than_the_limit() {
    for algorithm in Algorithm::ALL {
        let bench = Bench::new(algorithm, 10, Charging::OnAnswer);
        let held: Vec<_> = (0..1000).filter_map(|_| bench.arrive(1, START)).collect();
        assert_eq!(held.len(), 10, "{algorithm}");
        for reservation in held {
            bench.settle(reservation, 1, START);
        }
        assert!(bench.arrive(1, START).is_none());
        assert_eq!(bench.remaining(START), 0);
    }
}

#[test]
fn what_does_not_count_leaves_no_trace() {
    for algorithm in Algorithm::ALL {
        let bench = Bench::new(algorithm, 10, Charging::OnAnswer);
        for _ in 0..100 {
            let held: Vec<_> = (0..10).filter_map(|_| bench.arrive(1, START)).collect();
            assert_eq!(held.len(), 10, "{algorithm}");
            held.into_iter().for_each(|reservation| bench.settle(reservation, 0, START + 1000));
        }
        assert_eq!((bench.remaining(START), bench.limiter.live_keys()), (10, 0), "{algorithm}");
    }
}

#[test]
fn a_true_cost_is_charged_past_the_limit() {
    for charging in [Charging::OnAnswer, Charging::OnArrival] {
        let bench = Bench::new(Algorithm::FixedWindow, 10, charging);
        let first = bench.arrive(1, START).unwrap();
        bench.settle(first, 25, START);
        assert_eq!(bench.remaining(START), 0);
        assert!(bench.arrive(1, START).is_none());
        assert!(bench.arrive(1, START + HOUR).is_some());
    }
}

#[test]
fn a_charge_is_given_back_whole_where_time_has_not_done_so() {
    for algorithm in Algorithm::ALL {
        let bench = Bench::new(algorithm, 10, Charging::OnArrival);
        let held: Vec<_> = (0..10).filter_map(|_| bench.arrive(1, START)).collect();
        assert_eq!((held.len(), bench.remaining(START)), (10, 0));
        held.into_iter().for_each(|reservation| bench.settle(reservation, 0, START));
        assert_eq!(bench.remaining(START), 10, "{algorithm}");
    }
}

#[test]
fn nothing_is_given_back_to_the_next_window() {
    let bench = Bench::new(Algorithm::FixedWindow, 10, Charging::OnArrival);
    let before = START + HOUR - 1;
    let old: Vec<_> = (0..10).filter_map(|_| bench.arrive(1, before)).collect();
    let after = START + HOUR;
    assert_eq!((0..10).filter_map(|_| bench.arrive(1, after)).count(), 10);
    old.into_iter().for_each(|reservation| bench.settle(reservation, 0, after + 1));
    assert!(bench.arrive(1, after + 2).is_none());
}

#[test]
fn what_time_has_given_back_is_not_given_back_again() {
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket] {
        let bench = Bench::new(algorithm, 10, Charging::OnArrival);
        let old: Vec<_> = (0..10).filter_map(|_| bench.arrive(1, START)).collect();
        let later = START + HOUR;
        assert_eq!((0..10).filter_map(|_| bench.arrive(1, later)).count(), 10);
        old.into_iter().for_each(|reservation| bench.settle(reservation, 0, later));
        assert!(bench.arrive(1, later).is_none(), "{algorithm}");
    }
}

#[test]
fn a_second_settlement_counts_from_the_first() {
    let bench = Bench::new(Algorithm::FixedWindow, 10, Charging::OnAnswer);
    let mut reservation = bench.arrive(1, START).unwrap();
    bench.limiter.settle(&mut reservation, 3, Timestamp::from_nanos(START));
    assert_eq!((reservation.units(), bench.remaining(START)), (3, 7));
    bench.limiter.settle(&mut reservation, 5, Timestamp::from_nanos(START));
    assert_eq!(bench.remaining(START), 5);
    bench.limiter.settle(&mut reservation, 0, Timestamp::from_nanos(START));
    assert_eq!(bench.remaining(START), 10);
}

#[test]
fn a_hold_survives_a_reload_and_ends_with_its_limit() {
    let bench = Bench::new(Algorithm::Gcra, 10, Charging::OnAnswer);
    let held: Vec<_> = (0..10).filter_map(|_| bench.arrive(1, START)).collect();
    let now = Timestamp::from_nanos(START);
    bench.limiter.install(&[Bench::spec(Algorithm::FixedWindow, 12)], now);
    assert_eq!((0..5).filter_map(|_| bench.arrive(1, START)).count(), 2);
    bench.limiter.retire_others(&[], now);
    held.into_iter().for_each(|reservation| bench.settle(reservation, 1, START));
    assert_eq!(bench.limiter.live_keys(), 0);
}

#[test]
fn a_request_that_only_meets_holds_is_told_to_come_back_soon() {
    let bench = Bench::new(Algorithm::FixedWindow, 1, Charging::OnAnswer);
    let first = bench.arrive(1, START).unwrap();
    let now = Timestamp::from_nanos(START);
    let check = Check {
        meter: bench.meter,
        key: bench.key(),
        cost: 1,
        enforcement: Enforcement::Enforced,
        charging: Charging::OnAnswer,
        terms: None,
    };
    let wait = || bench.limiter.check(&[check], now).verdicts()[0].wait();
    assert_eq!(wait(), Duration::ZERO);
    bench.settle(first, 1, START);
    assert_eq!(wait(), Duration::from_secs(3600));
}

/// What happens next: time passes, then requests arrive or the oldest or newest one under way ends.
#[derive(Clone, Copy, Debug)]
enum Event {
    Arrive { cost: u32 },
    End { newest: bool, counts: bool },
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let arrive = (1_u32..4).prop_map(|cost| Event::Arrive { cost });
    let end = (any::<bool>(), any::<bool>()).prop_map(|(newest, counts)| Event::End { newest, counts });
    let waits = prop_oneof![4 => Just(0_u64), 3 => 0_u64..400, 1 => 0_u64..3000];
    prop::collection::vec((waits, prop_oneof![3 => arrive, 2 => end]), 1..200)
}

/// Runs `events`, with time in thousandths of an hour, and answers what was charged for good and when:
/// at the end of the request where its cost is held, else on arrival.
fn counted(bench: &Bench, events: &[(u64, Event)]) -> Vec<(u64, u32)> {
    let (mut now, mut open, mut counted) = (START, Vec::new(), Vec::new());
    for (wait, event) in events {
        now += wait * HOUR / 1000;
        match *event {
            Event::Arrive { cost } => {
                open.extend(bench.arrive(cost, now).map(|reservation| (now, reservation)));
            }
            Event::End { newest, counts } if !open.is_empty() => {
                let (arrived, reservation) = open.remove(if newest { open.len() - 1 } else { 0 });
                let units = reservation.units();
                bench.settle(reservation, if counts { units } else { 0 }, now);
                let at = if bench.charging == Charging::OnAnswer { now } else { arrived };
                counted.extend(counts.then_some((at, units)));
            }
            Event::End { .. } => {}
        }
    }
    if bench.charging == Charging::OnArrival {
        counted.extend(open.iter().map(|(at, reservation)| (*at, reservation.units())));
    }
    counted.sort_unstable();
    counted
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_arrivals_and_answers_counts_more_than_the_limit(
        algorithm in prop::sample::select(&Algorithm::ALL[..]),
        charging in prop::sample::select(&[Charging::OnArrival, Charging::OnAnswer][..]),
        count in 1_u32..12,
        events in events(),
    ) {
        let bench = Bench::new(algorithm, count, charging);
        let counted = counted(&bench, &events);
        for first in 0..counted.len() {
            let mut sum = 0_u64;
            for &(at, units) in &counted[first..] {
                sum += u64::from(units);
                let (from, count) = (counted[first].0, u64::from(count));
                let most = match algorithm {
                    Algorithm::FixedWindow | Algorithm::SlidingWindow => (at / HOUR - from / HOUR + 1) * count,
                    _ => count + (at - from) * count / HOUR,
                };
                prop_assert!(sum <= most, "{sum} counted of {most} from {first} on");
            }
        }
    }

    #[test]
    fn what_ends_without_counting_leaves_the_counter_as_it_was(
        algorithm in prop::sample::select(&Algorithm::ALL[..]),
        count in 1_u32..12,
        events in events(),
    ) {
        let bench = Bench::new(algorithm, count, Charging::OnAnswer);
        let only_not: Vec<_> = events
            .iter()
            .map(|&(wait, event)| match event {
                Event::End { newest, .. } => (wait, Event::End { newest, counts: false }),
                arrive @ Event::Arrive { .. } => (wait, arrive),
            })
            .collect();
        counted(&bench, &only_not);
        prop_assert_eq!(bench.remaining(START), count);
    }
}
