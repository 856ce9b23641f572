use std::num::NonZeroU32;
use std::time::Duration;

use crate::algorithm::Algorithm;
use crate::algorithm::conversion::OnChange;
use crate::check_options::{CheckOptions, CounterRole, DelayPolicy, OnDenied};
use crate::decision::{Decision, Enforcement};
use crate::quota::{Ban, Limit, Period, Quota, TimeUnit};
use crate::reservation::{ChargeTiming, Reservation};
use crate::timestamp::Timestamp;
use crate::{Check, LimitHandle, LimitIdentity, LimitSpec, Limiter, LimiterSettings};

mod alternatives;
mod bans;
mod delays;
mod distinct;
mod overflow;

const START: Timestamp = Timestamp::from_secs(1_795_248_000);

pub(super) fn at(millis: u64) -> Timestamp {
    START.saturating_add(Duration::from_millis(millis))
}

pub(super) fn count(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap()
}

/// `rate` per second with this burst.
pub(super) fn per_second(algorithm: Algorithm, rate: u32, burst: u32) -> Quota {
    Quota::new(algorithm, Limit::new(count(rate), Period::one(TimeUnit::Second)), NonZeroU32::new(burst))
        .unwrap()
}

/// A limiter with one rule of these quotas, in the order given.
pub(super) struct TransactionFixture {
    pub(super) limiter: Limiter,
    pub(super) handles: Vec<LimitHandle>,
}

impl TransactionFixture {
    pub(super) fn new(quotas: &[Quota]) -> Self {
        Self::with_max_keys(quotas, 1000)
    }

    pub(super) fn with_max_keys(quotas: &[Quota], max_keys: usize) -> Self {
        let limiter = Limiter::new(LimiterSettings { max_keys, secret: [7, 11] });
        let spec = |(index, quota): (usize, &Quota)| LimitSpec {
            identity: LimitIdentity { rule: index.to_string().into(), key: "[]".into() },
            quota: *quota,
            on_change: OnChange::Keep,
            lease_policy: None,
        };
        let specs: Vec<_> = quotas.iter().enumerate().map(spec).collect();
        let handles = limiter.install(&specs, START);
        Self { limiter, handles }
    }

    /// Returns a check of the limit at `index` for `key`, in group 0.
    pub(super) fn check(&self, index: usize, key: &[u8], role: CounterRole) -> Check {
        Check {
            handle: self.handles[index],
            key: self.limiter.hasher().hash(key),
            cost: 1,
            enforcement: Enforcement::Enforced,
            charge_timing: ChargeTiming::OnArrival,
            options: Some(CheckOptions::new(0, role)),
        }
    }

    pub(super) fn check_without_options(&self, index: usize) -> Check {
        Check { options: None, ..self.check(index, b"client", CounterRole::Limit) }
    }

    pub(super) fn decide(&self, checks: &[Check], millis: u64) -> Decision {
        self.limiter.check(checks, at(millis))
    }

    pub(super) fn used(&self, index: usize, millis: u64) -> u32 {
        let key = self.limiter.hasher().hash(b"client");
        self.limiter.usage(self.handles[index], key, at(millis)).unwrap().used
    }
}

pub(super) fn delay(max_millis: u64, queue: Option<u32>) -> CounterRole {
    CounterRole::Delay(DelayPolicy::new(Duration::from_millis(max_millis), queue))
}

pub(super) fn ban(initial_millis: u64, max_millis: u64) -> Quota {
    Quota::ban(Ban {
        initial_duration: Duration::from_millis(initial_millis),
        max_duration: Duration::from_millis(max_millis),
    })
}

#[test]
fn duplicate_counter_in_a_request_is_charged_twice() {
    for charging in [ChargeTiming::OnArrival, ChargeTiming::OnResponse, ChargeTiming::WhileInFlight] {
        let bench = TransactionFixture::new(&[per_second(Algorithm::Gcra, 5, 5)]);
        let check = Check { charge_timing: charging, ..bench.check_without_options(0) };
        let passes = |bench: &TransactionFixture| !bench.decide(&[check, check], 0).is_rejected();
        assert!(passes(&bench) && passes(&bench), "{charging:?}");
        assert!(!passes(&bench), "{charging:?}: one unit is left for a cost of two");
        let last = bench.decide(&[check], 0);
        assert!(!last.is_rejected() && bench.decide(&[check], 0).is_rejected(), "{charging:?}");
    }
}

#[test]
fn request_over_a_marking_limit_is_marked_and_charged_to_the_enforced_limit() {
    let bench = TransactionFixture::new(&[
        per_second(Algorithm::FixedWindow, 4, 0),
        per_second(Algorithm::FixedWindow, 3, 0),
    ]);
    let mark = Check { enforcement: Enforcement::Marking, ..bench.check_without_options(1) };
    let outcomes: Vec<_> = (0..5)
        .map(|_| {
            let decision = bench.decide(&[bench.check_without_options(0), mark], 0);
            (decision.is_rejected(), decision.verdicts()[1].marks())
        })
        .collect();
    assert_eq!(outcomes, [(false, false), (false, false), (false, false), (false, true), (true, true)]);
    assert_eq!((bench.used(0, 0), bench.used(1, 0)), (4, 3));
}

#[test]
fn in_flight_permits_are_held_until_released() {
    let bench = TransactionFixture::new(&[Quota::in_flight(count(2))]);
    let check = Check { charge_timing: ChargeTiming::WhileInFlight, ..bench.check_without_options(0) };
    let take_permit = |millis| {
        (!bench.decide(&[check], millis).is_rejected()).then(|| Reservation::new(&check, at(millis)))
    };
    let (first, second) = (take_permit(0).unwrap(), take_permit(0).unwrap());
    assert!(take_permit(0).is_none() && take_permit(86_400_000).is_none());
    assert_eq!(bench.decide(&[check], 0).verdicts()[0].retry_after(), Duration::ZERO);
    bench.limiter.release_permit(&first);
    let third = take_permit(1).unwrap();
    assert!(take_permit(1).is_none());
    [second, third].iter().for_each(|permit| bench.limiter.release_permit(permit));
    assert!(take_permit(2).is_some() && take_permit(2).is_some() && take_permit(2).is_none());
    assert_eq!(bench.limiter.live_keys(), 0, "permits use no entry of the table");
}

#[test]
fn rejected_request_takes_neither_permit_nor_units() {
    let bench = TransactionFixture::new(&[Quota::in_flight(count(2)), per_second(Algorithm::Gcra, 1, 1)]);
    let checks = [
        Check { charge_timing: ChargeTiming::WhileInFlight, ..bench.check_without_options(0) },
        bench.check_without_options(1),
    ];
    assert!(!bench.decide(&checks, 0).is_rejected());
    assert!((0..5).all(|_| bench.decide(&checks, 0).is_rejected()));
    // After four rejected requests a permit is still free; it is taken one second later.
    assert!(!bench.decide(&checks, 1000).is_rejected());
    assert!(bench.decide(&checks, 2000).verdicts()[0].rejects());
    assert_eq!(bench.used(1, 2000), 0, "rejected without a permit, so not charged");
}

#[test]
fn permits_survive_their_limit_and_never_go_below_zero() {
    let bench = TransactionFixture::new(&[Quota::in_flight(count(1))]);
    let check = Check { charge_timing: ChargeTiming::WhileInFlight, ..bench.check_without_options(0) };
    assert!(!bench.decide(&[check], 0).is_rejected());
    bench.limiter.retire_others(&[], START);
    let spec = LimitSpec {
        identity: LimitIdentity { rule: "0".into(), key: "[]".into() },
        quota: Quota::in_flight(count(2)),
        on_change: OnChange::Keep,
        lease_policy: None,
    };
    let handle = bench.limiter.install(&[spec], START)[0];
    let again = Check { handle, ..check };
    assert!(!bench.decide(&[again], 0).is_rejected() && bench.decide(&[again], 0).is_rejected());
    let permit = Reservation::new(&check, START);
    bench.limiter.release_permit(&permit);
    bench.limiter.release_permit(&Reservation::new(&again, START));
    assert_eq!((0..5).filter(|_| !bench.decide(&[again], 0).is_rejected()).count(), 2);
}

#[test]
fn concurrent_permits_never_exceed_the_in_flight_limit() {
    use std::sync::atomic::{AtomicU32, Ordering};
    const MAX_PERMITS: u32 = 3;
    // A full table does not affect permits.
    let bench = TransactionFixture::with_max_keys(
        &[Quota::in_flight(count(MAX_PERMITS)), per_second(Algorithm::Gcra, 1, 1)],
        1,
    );
    for key in 0..200_u32 {
        let flood =
            Check { key: bench.limiter.hasher().hash(&key.to_be_bytes()), ..bench.check_without_options(1) };
        bench.decide(&[flood], 0);
    }
    let check = Check { charge_timing: ChargeTiming::WhileInFlight, ..bench.check_without_options(0) };
    let (out, passed) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for round in 0..2000 {
                    if bench.decide(&[check], round).is_rejected() {
                        continue;
                    }
                    assert!(out.fetch_add(1, Ordering::SeqCst) < MAX_PERMITS);
                    passed.fetch_add(1, Ordering::SeqCst);
                    std::thread::yield_now();
                    out.fetch_sub(1, Ordering::SeqCst);
                    bench.limiter.release_permit(&Reservation::new(&check, at(round)));
                }
            });
        }
    });
    assert!(passed.load(Ordering::SeqCst) > 0);
    let left = (0..10).filter(|_| !bench.decide(&[check], 0).is_rejected()).count();
    assert_eq!(left, MAX_PERMITS as usize, "all permits were returned");
}

#[test]
fn rejected_request_is_charged_when_on_denied_is_charge() {
    let bench = TransactionFixture::new(&[
        per_second(Algorithm::FixedWindow, 2, 0),
        per_second(Algorithm::FixedWindow, 9, 0),
    ]);
    let charging = |index, group| {
        let options =
            CheckOptions { on_denied: OnDenied::Charge, ..CheckOptions::new(group, CounterRole::Limit) };
        Check { options: Some(options), ..bench.check_without_options(index) }
    };
    let (rejecting, other) = (charging(0, 0), charging(1, 1));
    assert!((0..2).all(|_| !bench.decide(&[rejecting, other], 0).is_rejected()));
    for sum in [3, 4, 4, 4] {
        let rejected = bench.decide(&[rejecting, other], 0);
        assert!(rejected.is_rejected());
        // The debt is at most one burst more; the other rule has not rejected.
        assert_eq!((bench.used(0, 0), bench.used(1, 0)), (sum, 2));
        assert_eq!(rejected.verdicts()[0].usage(START).unwrap().used, sum);
    }
    // All limits of a rule are charged, including those that had room.
    let bench = TransactionFixture::new(&[
        per_second(Algorithm::FixedWindow, 1, 0),
        per_second(Algorithm::FixedWindow, 9, 0),
    ]);
    let rule_checks = [0, 1].map(|index| {
        let options =
            CheckOptions { on_denied: OnDenied::Charge, ..CheckOptions::new(0, CounterRole::Limit) };
        Check { options: Some(options), ..bench.check_without_options(index) }
    });
    (0..3).for_each(|_| drop(bench.decide(&rule_checks, 0)));
    assert_eq!((bench.used(0, 0), bench.used(1, 0)), (2, 3));
}

#[test]
fn denied_charges_delay_a_client_by_at_most_one_refill() {
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket] {
        let bench = TransactionFixture::new(&[per_second(algorithm, 10, 10)]);
        let options =
            CheckOptions { on_denied: OnDenied::Charge, ..CheckOptions::new(0, CounterRole::Limit) };
        let check = Check { options: Some(options), ..bench.check_without_options(0) };
        let passed = (0..1000).filter(|_| !bench.decide(&[check], 0).is_rejected()).count();
        assert_eq!(passed, 10, "{algorithm}");
        assert!(
            bench.limiter.check(&[bench.check_without_options(0)], at(1050)).is_rejected(),
            "{algorithm}"
        );
        assert!(
            !bench.limiter.check(&[bench.check_without_options(0)], at(1101)).is_rejected(),
            "{algorithm}"
        );
    }
}
