//! Waiting requests that decide each other, for any interleaving of their threads: each is decided once, and none is
//! forgotten.

use std::num::NonZeroU32;
use std::task::{Context, Poll, Waker};

use weir_limiter::algorithm::Algorithm;
use weir_limiter::algorithm::conversion::OnChange;
use weir_limiter::decision::Enforcement;
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};
use weir_limiter::reservation::ChargeTiming;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::wait_queue::{Arrival, Offer, QueueOrder, QueueSettings, Ticket};
use weir_limiter::{Check, LimitIdentity, LimitSpec, Limiter, LimiterSettings};
use shuttle::sync::Arc;
use shuttle::thread;
use smallvec::SmallVec;

const NOW: Timestamp = Timestamp::from_secs(1_795_248_000);
const SCHEDULES: usize = 1500;
const REQUESTS: usize = 4;
const SETTINGS: QueueSettings = QueueSettings { max_queued: 100, order: QueueOrder::Fifo };

/// Returns a limiter with one limit for so many requests a day.
fn limiter(count: u32) -> (Arc<Limiter>, Check) {
    let limiter = Limiter::new(LimiterSettings { max_keys: 100, secret: [7, 11] });
    let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(TimeUnit::Day));
    let spec = LimitSpec {
        identity: LimitIdentity { rule: "q".into(), key: "[]".into() },
        quota: Quota::new(Algorithm::FixedWindow, limit, None).unwrap(),
        on_change: OnChange::Keep,
        lease_policy: None,
    };
    let check = Check {
        handle: limiter.install(&[spec], NOW)[0],
        key: limiter.hasher().hash(b"client"),
        cost: 1,
        enforcement: Enforcement::Enforced,
        charge_timing: ChargeTiming::OnArrival,
        options: None,
    };
    (Arc::new(limiter), check)
}

/// Waits for its turn as a task does, though without a waker, and leaves. Returns whether it was admitted.
fn pass(limiter: &Limiter, check: Check, ticket: Ticket) -> bool {
    loop {
        let mut offer = Some(Box::new(Offer {
            checks: SmallVec::from_iter([check]),
            position: 0,
            pace: None,
            others: SmallVec::new(),
            until: Timestamp::from_nanos(u64::MAX),
        }));
        let turn = ticket.poll_first(&mut Context::from_waker(Waker::noop()), &mut offer);
        let is_granted = match turn {
            Poll::Pending => {
                thread::yield_now();
                // The time is over, or the configuration has changed.
                if shuttle::rand::Rng::gen_bool(&mut shuttle::rand::thread_rng(), 0.5) {
                    ticket.take_grant().is_some()
                } else {
                    continue;
                }
            }
            Poll::Ready(first) => {
                first.unwrap();
                ticket.take_grant().is_some()
            }
        };
        let is_first = ticket.is_first();
        if is_granted || (is_first && !limiter.check(&[check], NOW).is_rejected()) {
            ticket.leave_admitted(NOW, |checks| limiter.check(checks, NOW));
            return true;
        }
        if is_first {
            return false;
        }
    }
}

#[test]
fn requests_that_decide_each_other_are_decided_once() {
    let test = || {
        let (limiter, check) = limiter(3);
        let arrival = |_| Arrival { sequence: limiter.queues().next_arrival(), priority: 3, flow: 0 };
        let arrivals: Vec<_> = (0..REQUESTS).map(arrival).collect();
        let join = |arrival| limiter.queues().join(check.counter_id(), SETTINGS, arrival).unwrap();
        let tickets: Vec<_> = arrivals.iter().map(join).collect();
        let start = |ticket| {
            let limiter = Arc::clone(&limiter);
            thread::spawn(move || pass(&limiter, check, ticket))
        };
        let threads: Vec<_> = tickets.into_iter().map(start).collect();
        let admitted: Vec<bool> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(admitted, [true, true, true, false]);
        assert_eq!(limiter.usage(check.handle, check.key, NOW).unwrap().used, 3);
        assert!(limiter.queues().is_empty());
    };
    shuttle::check_random(test, SCHEDULES);
    shuttle::check_pct(test, SCHEDULES, 3);
}
