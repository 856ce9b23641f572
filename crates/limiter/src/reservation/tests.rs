use std::num::NonZeroU32;

use proptest::prelude::*;

use super::super::algorithm::Algorithm;
use super::super::algorithm::conversion::OnChange;
use super::super::decision::Enforcement;
use super::super::elastic::ElasticRange;
use super::super::quota::{Limit, Period, TimeUnit};
use super::super::{LimitIdentity, LimitSpec, LimiterSettings};
use super::*;

/// 2026-11-21T08:00:00Z.
const START: u64 = 1_795_248_000_000_000_000;
const HOUR: u64 = 3_600_000_000_000;

struct ReservationFixture {
    limiter: Limiter,
    handle: LimitHandle,
    charge_timing: ChargeTiming,
}

impl ReservationFixture {
    fn new(algorithm: Algorithm, count: u32, charging: ChargeTiming) -> Self {
        let limiter = Limiter::new(LimiterSettings { max_keys: 1000, secret: [1, 2] });
        let handle = limiter.install(&[Self::spec(algorithm, count)], Timestamp::from_nanos(START - 1))[0];
        Self { limiter, handle, charge_timing: charging }
    }

    fn quota(algorithm: Algorithm, count: u32) -> Quota {
        let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(TimeUnit::Hour));
        Quota::new(algorithm, limit, None).unwrap()
    }

    fn spec(algorithm: Algorithm, count: u32) -> LimitSpec {
        let lineage = LimitIdentity { rule: "r".into(), key: "k".into() };
        LimitSpec {
            identity: lineage,
            quota: Self::quota(algorithm, count),
            on_change: OnChange::Keep,
            lease_policy: None,
        }
    }

    fn reload(&self, spec: LimitSpec, at: u64) {
        self.limiter.install(&[spec], Timestamp::from_nanos(at));
    }

    fn key(&self) -> KeyHash {
        self.limiter.hasher().hash(b"client")
    }

    fn reserve(&self, cost: u32, at: u64) -> Option<Reservation> {
        let now = Timestamp::from_nanos(at);
        let check = Check {
            handle: self.handle,
            key: self.key(),
            cost,
            enforcement: Enforcement::Enforced,
            charge_timing: self.charge_timing,
            options: None,
        };
        let decision = self.limiter.check(&[check], now);
        let quota = decision.verdicts()[0].quota()?;
        (!decision.is_rejected()).then(|| Reservation::new(&check, now).in_units_of(quota))
    }

    fn settle(&self, mut reservation: Reservation, due: u32, at: u64) {
        self.limiter.settle(&mut reservation, due, Timestamp::from_nanos(at));
    }

    fn remaining(&self, at: u64) -> u32 {
        self.limiter.usage(self.handle, self.key(), Timestamp::from_nanos(at)).unwrap().remaining
    }
}

#[test]
fn concurrent_reservations_never_exceed_the_limit() {
    for algorithm in Algorithm::RATES {
        let bench = ReservationFixture::new(algorithm, 10, ChargeTiming::OnResponse);
        let held: Vec<_> = (0..1000).filter_map(|_| bench.reserve(1, START)).collect();
        assert_eq!(held.len(), 10, "{algorithm}");
        for reservation in held {
            bench.settle(reservation, 1, START);
        }
        assert!(bench.reserve(1, START).is_none());
        assert_eq!(bench.remaining(START), 0);
    }
}

#[test]
fn settling_at_zero_frees_the_reservation() {
    for algorithm in Algorithm::RATES {
        let bench = ReservationFixture::new(algorithm, 10, ChargeTiming::OnResponse);
        for _ in 0..100 {
            let held: Vec<_> = (0..10).filter_map(|_| bench.reserve(1, START)).collect();
            assert_eq!(held.len(), 10, "{algorithm}");
            held.into_iter().for_each(|reservation| bench.settle(reservation, 0, START + 1000));
        }
        assert_eq!((bench.remaining(START), bench.limiter.live_keys()), (10, 0), "{algorithm}");
    }
}

#[test]
fn settled_cost_is_charged_beyond_the_limit() {
    for charging in [ChargeTiming::OnResponse, ChargeTiming::OnArrival] {
        let bench = ReservationFixture::new(Algorithm::FixedWindow, 10, charging);
        let first = bench.reserve(1, START).unwrap();
        bench.settle(first, 25, START);
        assert_eq!(bench.remaining(START), 0);
        assert!(bench.reserve(1, START).is_none());
        // The debt of ten beyond the limit is all of the next window.
        assert!(bench.reserve(1, START + HOUR).is_none());
        assert!(bench.reserve(1, START + 2 * HOUR).is_some());
    }
}

#[test]
fn refund_returns_the_full_charge_before_it_expires() {
    for algorithm in Algorithm::RATES {
        let bench = ReservationFixture::new(algorithm, 10, ChargeTiming::OnArrival);
        let held: Vec<_> = (0..10).filter_map(|_| bench.reserve(1, START)).collect();
        assert_eq!((held.len(), bench.remaining(START)), (10, 0));
        held.into_iter().for_each(|reservation| bench.settle(reservation, 0, START));
        assert_eq!(bench.remaining(START), 10, "{algorithm}");
    }
}

#[test]
fn refund_does_not_apply_to_the_next_window() {
    let bench = ReservationFixture::new(Algorithm::FixedWindow, 10, ChargeTiming::OnArrival);
    let before = START + HOUR - 1;
    let old: Vec<_> = (0..10).filter_map(|_| bench.reserve(1, before)).collect();
    let after = START + HOUR;
    assert_eq!((0..10).filter_map(|_| bench.reserve(1, after)).count(), 10);
    old.into_iter().for_each(|reservation| bench.settle(reservation, 0, after + 1));
    assert!(bench.reserve(1, after + 2).is_none());
}

#[test]
fn refund_excludes_units_already_expired() {
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket] {
        let bench = ReservationFixture::new(algorithm, 10, ChargeTiming::OnArrival);
        let old: Vec<_> = (0..10).filter_map(|_| bench.reserve(1, START)).collect();
        let later = START + HOUR;
        assert_eq!((0..10).filter_map(|_| bench.reserve(1, later)).count(), 10);
        old.into_iter().for_each(|reservation| bench.settle(reservation, 0, later));
        assert!(bench.reserve(1, later).is_none(), "{algorithm}");
    }
}

#[test]
fn repeated_settlement_charges_only_the_difference() {
    let bench = ReservationFixture::new(Algorithm::FixedWindow, 10, ChargeTiming::OnResponse);
    let mut reservation = bench.reserve(1, START).unwrap();
    bench.limiter.settle(&mut reservation, 3, Timestamp::from_nanos(START));
    assert_eq!((reservation.units(), bench.remaining(START)), (3, 7));
    bench.limiter.settle(&mut reservation, 5, Timestamp::from_nanos(START));
    assert_eq!(bench.remaining(START), 5);
    bench.limiter.settle(&mut reservation, 0, Timestamp::from_nanos(START));
    assert_eq!(bench.remaining(START), 10);
}

#[test]
fn hold_survives_a_reload_and_ends_with_its_limit() {
    let bench = ReservationFixture::new(Algorithm::Gcra, 10, ChargeTiming::OnResponse);
    let held: Vec<_> = (0..10).filter_map(|_| bench.reserve(1, START)).collect();
    let now = Timestamp::from_nanos(START);
    bench.limiter.install(&[ReservationFixture::spec(Algorithm::FixedWindow, 12)], now);
    assert_eq!((0..5).filter_map(|_| bench.reserve(1, START)).count(), 2);
    bench.limiter.retire_others(&[], now);
    held.into_iter().for_each(|reservation| bench.settle(reservation, 1, START));
    assert_eq!(bench.limiter.live_keys(), 0);
}

/// The quota as it is, and in shares of requests.
fn elastic_and_plain_specs(algorithm: Algorithm, count: u32) -> [(LimitSpec, u32); 2] {
    let stretch = ElasticRange::from_hundredths(300).unwrap();
    let (quota, prices) = ReservationFixture::quota(algorithm, count).to_elastic(stretch).unwrap();
    let spec = ReservationFixture::spec(algorithm, count);
    [(LimitSpec { quota, ..spec.clone() }, prices.full().get().into()), (spec, 1)]
}

#[test]
fn refund_counts_whole_requests_across_an_elastic_reload() {
    for algorithm in Algorithm::RATES {
        let ways = elastic_and_plain_specs(algorithm, 10);
        for (from, to) in [(0, 1), (1, 0)] {
            let ((before, cost), (after, price)) = (ways[from].clone(), ways[to].clone());
            let bench = ReservationFixture::new(algorithm, 10, ChargeTiming::OnArrival);
            bench.reload(before, START - 1);
            let mut passed: Vec<_> = (0..10).filter_map(|_| bench.reserve(cost, START)).collect();
            assert_eq!(passed.len(), 10);
            bench.reload(after, START);
            bench.settle(passed.remove(0), 0, START);
            bench.settle(passed.remove(0), cost, START);
            assert_eq!(bench.remaining(START), price, "{algorithm}: one unused request was refunded");
            bench.settle(passed.remove(0), 2 * cost, START);
            assert_eq!(bench.remaining(START), 0, "{algorithm}: a request with twice the cost");
        }
    }
}

#[test]
fn hold_counts_whole_requests_across_an_elastic_reload() {
    for algorithm in Algorithm::RATES {
        let ways = elastic_and_plain_specs(algorithm, 10);
        for (from, to) in [(0, 1), (1, 0)] {
            let ((before, cost), (after, price)) = (ways[from].clone(), ways[to].clone());
            let bench = ReservationFixture::new(algorithm, 10, ChargeTiming::OnResponse);
            bench.reload(before, START - 1);
            let held: Vec<_> = (0..4).filter_map(|_| bench.reserve(cost, START)).collect();
            bench.reload(after, START);
            let more: Vec<_> = (0..10).filter_map(|_| bench.reserve(price, START)).collect();
            assert_eq!((held.len(), more.len()), (4, 6), "{algorithm}");
            held.into_iter().for_each(|reservation| bench.settle(reservation, cost, START));
            more.into_iter().for_each(|reservation| bench.settle(reservation, 0, START));
            assert_eq!(bench.remaining(START), 6 * price, "{algorithm}: four units charged, none held");
        }
    }
}

#[test]
fn refund_of_a_cheaper_elastic_request_is_not_rounded_up() {
    let [(stretched, full), (whole, _)] = elastic_and_plain_specs(Algorithm::FixedWindow, 10);
    let bench = ReservationFixture::new(Algorithm::FixedWindow, 10, ChargeTiming::OnArrival);
    bench.reload(stretched, START - 1);
    let passed: Vec<_> = (0..30).filter_map(|_| bench.reserve(full / 3, START)).collect();
    assert_eq!(passed.len(), 30, "three requests per unit");
    bench.reload(whole, START);
    passed.into_iter().take(3).for_each(|reservation| bench.settle(reservation, 0, START));
    assert_eq!(bench.remaining(START), 0);
}

#[test]
fn refund_excludes_units_reset_by_a_reload() {
    let later = START + HOUR / 2;
    let before = |algorithm| {
        let bench = ReservationFixture::new(algorithm, 10, ChargeTiming::OnArrival);
        let passed: Vec<_> = (0..10).filter_map(|_| bench.reserve(1, START)).collect();
        assert_eq!(passed.len(), 10);
        (bench, passed)
    };
    let give_back = |bench: &ReservationFixture, passed: Vec<Reservation>| {
        passed.into_iter().for_each(|reservation| bench.settle(reservation, 0, later));
    };
    for algorithm in Algorithm::RATES {
        let (bench, passed) = before(algorithm);
        bench.reload(
            LimitSpec { on_change: OnChange::Reset, ..ReservationFixture::spec(algorithm, 9) },
            later,
        );
        assert_eq!((0..9).filter_map(|_| bench.reserve(1, later)).count(), 9);
        give_back(&bench, passed);
        assert_eq!(bench.remaining(later), 0, "{algorithm} after a reset");
        let (bench, passed) = before(algorithm);
        bench.reload(
            LimitSpec { on_change: OnChange::Proportional, ..ReservationFixture::spec(algorithm, 1) },
            later,
        );
        give_back(&bench, passed);
        assert_eq!(bench.remaining(later), 0, "{algorithm}, a tenth of it");
    }
    // Half of them had drained from the bucket when it became a window.
    let (bench, passed) = before(Algorithm::TokenBucket);
    bench.reload(ReservationFixture::spec(Algorithm::FixedWindow, 10), later);
    give_back(&bench, passed);
    assert_eq!(bench.remaining(later), 5);
}

#[test]
fn refund_after_raising_a_limit_returns_the_original_charge() {
    for algorithm in Algorithm::RATES {
        let bench = ReservationFixture::new(algorithm, 10, ChargeTiming::OnArrival);
        let passed: Vec<_> = (0..10).filter_map(|_| bench.reserve(1, START)).collect();
        bench.reload(ReservationFixture::spec(algorithm, 20), START + 1);
        passed.into_iter().for_each(|reservation| bench.settle(reservation, 0, START + 1));
        // If a unit stands for another time than before, units in use stay in use.
        let expected = if algorithm.has_burst() { 10 } else { 20 };
        assert_eq!(bench.remaining(START + 1), expected, "{algorithm}");
    }
}

#[test]
fn debt_from_a_reported_cost_is_limited_to_one_burst() {
    for algorithm in Algorithm::RATES {
        for charging in [ChargeTiming::OnArrival, ChargeTiming::OnResponse] {
            let bench = ReservationFixture::new(algorithm, 10, charging);
            let told: Vec<_> = (0..5).filter_map(|_| bench.reserve(1, START)).collect();
            told.into_iter().for_each(|reservation| bench.settle(reservation, u32::MAX, START));
            let used = |at| {
                let at = Timestamp::from_nanos(at);
                bench.limiter.usage(bench.handle, bench.key(), at).unwrap().used
            };
            assert_eq!(used(START), 20, "{algorithm}");
            // A sliding window takes another tenth of its period to make room for the first of ten.
            assert!(bench.reserve(1, START + 2 * HOUR + HOUR / 10).is_some(), "{algorithm}");
        }
    }
}

#[test]
fn debt_is_unlimited_when_the_rule_allows_the_cost() {
    let bench = ReservationFixture::new(Algorithm::Gcra, 10, ChargeTiming::OnResponse);
    let told = bench.reserve(1, START).unwrap().with_debt_limit(DebtLimit::Unlimited);
    bench.settle(told, 100, START);
    assert!(bench.reserve(1, START + 9 * HOUR).is_none());
    assert!(bench.reserve(1, START + 10 * HOUR).is_some());
}

#[test]
fn refund_never_exceeds_the_charge() {
    let bench = ReservationFixture::new(Algorithm::FixedWindow, 10, ChargeTiming::OnArrival);
    let (mut told, mut other) = (bench.reserve(1, START).unwrap(), bench.reserve(1, START).unwrap());
    let now = Timestamp::from_nanos(START);
    bench.limiter.settle(&mut other, 9, now);
    bench.limiter.settle(&mut told, 1000, now);
    assert_eq!(told.units(), 1000);
    bench.limiter.settle(&mut told, 0, now);
    assert_eq!(bench.remaining(START), 1);
}

#[test]
fn retry_after_is_zero_when_only_holds_block() {
    let bench = ReservationFixture::new(Algorithm::FixedWindow, 1, ChargeTiming::OnResponse);
    let first = bench.reserve(1, START).unwrap();
    let now = Timestamp::from_nanos(START);
    let check = Check {
        handle: bench.handle,
        key: bench.key(),
        cost: 1,
        enforcement: Enforcement::Enforced,
        charge_timing: ChargeTiming::OnResponse,
        options: None,
    };
    let wait = || bench.limiter.check(&[check], now).verdicts()[0].retry_after();
    assert_eq!(wait(), Duration::ZERO);
    bench.settle(first, 1, START);
    assert_eq!(wait(), Duration::from_secs(3600));
}

/// An event of a simulation: time passes, then a request arrives, or the oldest or newest one in flight ends.
#[derive(Clone, Copy, Debug)]
enum RequestEvent {
    Arrive { cost: u32 },
    End { newest: bool, counts: bool },
}

fn events() -> impl Strategy<Value = Vec<(u64, RequestEvent)>> {
    let arrive = (1_u32..4).prop_map(|cost| RequestEvent::Arrive { cost });
    let end =
        (any::<bool>(), any::<bool>()).prop_map(|(newest, counts)| RequestEvent::End { newest, counts });
    let waits = prop_oneof![4 => Just(0_u64), 3 => 0_u64..400, 1 => 0_u64..3000];
    prop::collection::vec((waits, prop_oneof![3 => arrive, 2 => end]), 1..200)
}

/// Runs `events`, with time in thousandths of an hour. Returns what was charged for good and when: at the end of the
/// request if its cost is reserved, otherwise on arrival.
fn run_events(bench: &ReservationFixture, events: &[(u64, RequestEvent)]) -> Vec<(u64, u32)> {
    let (mut now, mut open, mut counted) = (START, Vec::new(), Vec::new());
    for (wait, event) in events {
        now += wait * HOUR / 1000;
        match *event {
            RequestEvent::Arrive { cost } => {
                open.extend(bench.reserve(cost, now).map(|reservation| (now, reservation)));
            }
            RequestEvent::End { newest, counts } if !open.is_empty() => {
                let (arrived, reservation) = open.remove(if newest { open.len() - 1 } else { 0 });
                let units = reservation.units();
                bench.settle(reservation, if counts { units } else { 0 }, now);
                let at = if bench.charge_timing == ChargeTiming::OnResponse { now } else { arrived };
                counted.extend(counts.then_some((at, units)));
            }
            RequestEvent::End { .. } => {}
        }
    }
    if bench.charge_timing == ChargeTiming::OnArrival {
        counted.extend(open.iter().map(|(at, reservation)| (*at, reservation.units())));
    }
    counted.sort_unstable();
    counted
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reservations_in_any_order_never_exceed_the_limit(
        algorithm in prop::sample::select(&Algorithm::RATES[..]),
        charging in prop::sample::select(&[ChargeTiming::OnArrival, ChargeTiming::OnResponse][..]),
        count in 1_u32..12,
        events in events(),
    ) {
        let bench = ReservationFixture::new(algorithm, count, charging);
        let counted = run_events(&bench, &events);
        for first in 0..counted.len() {
            let mut sum = 0_u64;
            for &(at, units) in &counted[first..] {
                sum += u64::from(units);
                let (from, count) = (counted[first].0, u64::from(count));
                let most = match algorithm {
                    Algorithm::FixedWindow | Algorithm::SlidingWindow => (at / HOUR - from / HOUR + 1) * count,
                    Algorithm::RefillBucket => count + ((at - from) / HOUR + 1) * count,
                    _ => count + (at - from) * count / HOUR,
                };
                prop_assert!(sum <= most, "{sum} units charged since {first}, at most {most} allowed");
            }
        }
    }

    #[test]
    fn uncounted_requests_leave_the_counter_unchanged(
        algorithm in prop::sample::select(&Algorithm::RATES[..]),
        count in 1_u32..12,
        events in events(),
    ) {
        let bench = ReservationFixture::new(algorithm, count, ChargeTiming::OnResponse);
        let only_not: Vec<_> = events
            .iter()
            .map(|&(wait, event)| match event {
                RequestEvent::End { newest, .. } => (wait, RequestEvent::End { newest, counts: false }),
                arrive @ RequestEvent::Arrive { .. } => (wait, arrive),
            })
            .collect();
        run_events(&bench, &only_not);
        prop_assert_eq!(bench.remaining(START), count);
    }
}

#[test]
fn debt_of_a_burst_is_paid_within_the_wait_that_is_forecast() {
    for (algorithm, is_steady) in [
        (Algorithm::Gcra, true),
        (Algorithm::TokenBucket, true),
        (Algorithm::RefillBucket, true),
        (Algorithm::LeakyBucket, true),
        (Algorithm::FixedWindow, false),
        (Algorithm::SlidingWindow, false),
    ] {
        for count in [1, 7, 1000] {
            let fixture = ReservationFixture::new(algorithm, count, ChargeTiming::OnArrival);
            let mut reservation = fixture.reserve(1, START).expect("room");
            let now = Timestamp::from_nanos(START);
            fixture.limiter.settle(&mut reservation, u32::MAX, now);
            let RoomForecast { wait, max_debt_wait } = fixture.limiter.room_forecast(&reservation, now);
            assert!(!wait.is_zero(), "{algorithm:?}, {count}");
            assert_eq!(wait <= max_debt_wait, is_steady, "{algorithm:?}, {count}: {wait:?}");
        }
    }
}
