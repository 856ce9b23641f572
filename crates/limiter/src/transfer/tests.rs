use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::mpsc::channel;

use proptest::prelude::*;

use super::*;
use crate::algorithm::Algorithm;
use crate::algorithm::conversion::OnChange;
use crate::decision::{Enforcement, Verdict};
use crate::quota::{Limit, Period, Quota, TimeUnit};
use crate::reservation::ChargeTiming;
use crate::saved::Restorer;
use crate::{Check, LimitIdentity, LimitSpec, LimiterSettings};

const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000_000_000);
const KEYS: u32 = 3;

fn specs() -> Vec<LimitSpec> {
    let spec = |rule: &str, algorithm, count, unit| LimitSpec {
        identity: LimitIdentity { rule: rule.into(), key: "[]".into() },
        quota: Quota::new(algorithm, Limit::new(NonZeroU32::new(count).unwrap(), Period::one(unit)), None)
            .unwrap(),
        on_change: OnChange::Keep,
        lease_policy: None,
    };
    vec![
        spec("gcra", Algorithm::Gcra, 20, TimeUnit::Hour),
        spec("window", Algorithm::FixedWindow, 20, TimeUnit::Day),
        spec("permits", Algorithm::InFlight, 6, TimeUnit::Second),
    ]
}

/// A limiter with its limits.
struct Process {
    limiter: Limiter,
    handles: Vec<LimitHandle>,
}

impl Process {
    fn with(limiter: Limiter) -> Self {
        let handles = limiter.install(&specs(), Timestamp::EPOCH);
        Self { limiter, handles }
    }

    fn new() -> Self {
        Self::with(Limiter::new(LimiterSettings { max_keys: 1000, secret: [1, 2] }))
    }

    fn check(&self, limit: usize, key: u32, timing: ChargeTiming) -> Option<Reservation> {
        let check = Check {
            handle: self.handles[limit],
            key: self.limiter.hasher().hash_u32(key),
            cost: 1,
            enforcement: Enforcement::Enforced,
            charge_timing: timing,
            options: None,
        };
        let decision = self.limiter.check([&check], NOW);
        (!decision.verdicts().iter().any(Verdict::rejects)).then(|| Reservation::new(&check, NOW))
    }

    fn used(&self, limit: usize, key: u32) -> u32 {
        let key = self.limiter.hasher().hash_u32(key);
        self.limiter.usage_with_holds(self.handles[limit], key, NOW).unwrap().used
    }

    fn all_used(&self) -> Vec<u32> {
        (0..3)
            .flat_map(|limit| (0..KEYS).map(move |key| (limit, key)))
            .map(|(l, k)| self.used(l, k))
            .collect()
    }
}

/// Transfers the counters of `old`; returns the new process, which has taken them over, and the late charges of `old`.
fn replace(old: &Process) -> (Process, AbsorbedCounters, std::sync::mpsc::Receiver<LateChargeMessage>) {
    let (late, charges) = channel();
    let mut restorers = [Restorer::new(1000, NOW), Restorer::new(1000, NOW)];
    let [first, last] = &mut restorers;
    old.limiter
        .save(NOW, |part, bytes| {
            first.read_part(part, bytes).unwrap();
            Ok::<_, Infallible>(())
        })
        .unwrap();
    let holds = old
        .limiter
        .transfer(NOW, late, |part, bytes| {
            last.read_part(part, bytes).unwrap();
            Ok::<_, Infallible>(())
        })
        .unwrap();
    let [first, last] = restorers.map(|restorer| restorer.finish().unwrap().limiter);
    let new = Process::with(first);
    let holds = TransferredHold::all_from_bytes(&TransferredHold::all_to_bytes(&holds)).unwrap();
    let absorbed = new.limiter.absorb(&last, &holds, NOW);
    (new, absorbed, charges)
}

/// What a request does: the limit that it is checked against, its key, and what it costs in the end.
fn requests() -> impl Strategy<Value = Vec<(usize, u32, u32)>> {
    prop::collection::vec((0_usize..3, 0..KEYS, 0_u32..4), 0..40)
}

fn timing_of(limit: usize) -> ChargeTiming {
    [ChargeTiming::OnResponse, ChargeTiming::OnArrival, ChargeTiming::WhileInFlight][limit]
}

fn finish(process: &Process, limit: usize, mut reservation: Reservation, due: u32) {
    match timing_of(limit) {
        ChargeTiming::WhileInFlight => process.limiter.release_permit(&reservation),
        ChargeTiming::OnArrival | ChargeTiming::OnResponse => {
            let _ = process.limiter.settle(&mut reservation, due, NOW);
        }
    }
}

proptest! {
    /// Whatever is in flight at the transfer, the counters end as in a process that was not replaced.
    #[test]
    fn requests_that_end_after_the_transfer_are_counted_once(requests in requests(), more in requests()) {
        let (old, control) = (Process::new(), Process::new());
        let mut in_flight = Vec::new();
        for (number, (limit, key, due)) in requests.into_iter().enumerate() {
            let timing = timing_of(limit);
            let (admitted, expected) = (old.check(limit, key, timing), control.check(limit, key, timing));
            prop_assert_eq!(admitted.is_some(), expected.is_some());
            let Some((one, other)) = admitted.zip(expected) else { continue };
            match number % 2 {
                0 => in_flight.push((limit, one, other, due)),
                _ => {
                    finish(&old, limit, one, due);
                    finish(&control, limit, other, due);
                }
            }
        }
        let (new, mut absorbed, late) = replace(&old);
        prop_assert_eq!(new.all_used(), control.all_used());
        for (limit, one, other, due) in in_flight {
            finish(&old, limit, one, due);
            finish(&control, limit, other, due);
            for charge in late.try_iter() {
                let charge = LateChargeMessage::from_bytes(&charge.to_bytes()).unwrap();
                absorbed.apply(&new.limiter, &charge, NOW);
            }
            prop_assert_eq!(new.all_used(), control.all_used());
        }
        for (limit, key, _) in more {
            let timing = timing_of(limit);
            prop_assert_eq!(new.check(limit, key, timing).is_some(), control.check(limit, key, timing).is_some());
        }
    }

    /// Decisions of the old process that come late are charged to the new one.
    #[test]
    fn late_decisions_are_counted_once(requests in requests(), more in requests()) {
        let (old, control) = (Process::new(), Process::new());
        for (limit, key, _) in requests {
            old.check(limit, key, timing_of(limit));
            control.check(limit, key, timing_of(limit));
        }
        let (new, mut absorbed, late) = replace(&old);
        let mut apply = |new: &Process| {
            late.try_iter().for_each(|charge| absorbed.apply(&new.limiter, &charge, NOW));
        };
        for (limit, key, due) in more {
            let timing = timing_of(limit);
            let (one, other) = (old.check(limit, key, timing), control.check(limit, key, timing));
            apply(&new);
            prop_assert_eq!(new.all_used(), control.all_used());
            let Some((one, other)) = one.zip(other) else { continue };
            finish(&old, limit, one, due);
            finish(&control, limit, other, due);
            apply(&new);
            prop_assert_eq!(new.all_used(), control.all_used());
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        if let Some(charge) = LateChargeMessage::from_bytes(&bytes) {
            let (new, mut absorbed, _late) = replace(&Process::new());
            absorbed.apply(&new.limiter, &charge, NOW);
        }
        let _ = TransferredHold::all_from_bytes(&bytes);
    }
}

#[test]
fn permits_of_a_process_that_has_ended_are_released() {
    let old = Process::new();
    let held: Vec<_> = (0..6).filter_map(|_| old.check(2, 0, ChargeTiming::WhileInFlight)).collect();
    let (new, mut absorbed, late) = replace(&old);
    assert!(new.check(2, 0, ChargeTiming::WhileInFlight).is_none(), "all permits are in use");
    old.limiter.release_permit(&held[0]);
    absorbed.apply(&new.limiter, &late.recv().unwrap(), NOW);
    assert!(new.check(2, 0, ChargeTiming::WhileInFlight).is_some());
    absorbed.release_all(&new.limiter);
    assert_eq!(new.used(2, 0), 1, "the permit of the new process stays in use");
}

#[test]
fn transfer_that_has_failed_reports_nothing_more() {
    let old = Process::new();
    let permit = old.check(2, 0, ChargeTiming::WhileInFlight).unwrap();
    let (_new, _absorbed, late) = replace(&old);
    old.limiter.end_transfer();
    old.limiter.release_permit(&permit);
    assert!(late.recv().is_err(), "the sender is gone, and nothing was sent");
    assert_eq!(old.used(2, 0), 0);
}
