//! Which queries are sent, and when.

use super::*;
use weir_limiter::leases::LeaseOutcome;
use weir_limiter::testing::{NOW, limiter};

fn at(millis: u64) -> Timestamp {
    NOW.saturating_add(Duration::from_millis(millis))
}

fn scheduler() -> LeaseScheduler {
    LeaseScheduler::new(InstanceInfo { id: 1, weight: 1.0, instances: 1, clock_lead: 0 }, 1)
}

/// Leases 10 units for a second, which nothing spends.
fn lease(scheduler: &mut LeaseScheduler) -> Limiter {
    let (limiter, check) = limiter();
    limiter.acquire_units(&check, at(0));
    scheduler.enqueue(limiter.shared_counter(&check));
    let batch = scheduler.next_batch(&limiter, at(0), &mut |_| false).unwrap();
    let grants = vec![vec![10, 1_000_000, 0, 0, 0, 50]];
    let reply = BatchReply { generation: "1".into(), store_time: 1, part: -1, grants };
    scheduler.apply_reply(&batch, &reply, &limiter, at(1), |_, _, _| {});
    limiter
}

/// Returns whether a query is sent in a span of milliseconds in which the store responds to other calls with this
/// latency.
fn sends_query(
    scheduler: &mut LeaseScheduler,
    limiter: &Limiter,
    span: std::ops::Range<u64>,
    latency: Duration,
) -> bool {
    span.into_iter().any(|millis| {
        scheduler.latency.record(latency, at(millis));
        scheduler.review_due(limiter, at(millis));
        scheduler.next_batch(limiter, at(millis), &mut |_| false).is_some()
    })
}

#[test]
fn request_that_arrives_during_a_query_is_in_the_next_one() {
    let (limiter, check) = limiter();
    let counter = limiter.shared_counter(&check);
    let mut scheduler = scheduler();
    let next = |scheduler: &mut LeaseScheduler, millis| {
        scheduler
            .next_batch(&limiter, at(millis), &mut |_| false)
            .map(|batch| (batch.requests[0].needed, batch))
    };
    assert_eq!(limiter.acquire_units(&check, at(0)), LeaseOutcome::Requested(true));
    scheduler.enqueue(counter);
    let (needed, first) = next(&mut scheduler, 0).unwrap();
    assert_eq!(limiter.acquire_units(&check, at(1)), LeaseOutcome::Requested(false));
    let reply = |granted| BatchReply {
        generation: "1".into(),
        store_time: 1,
        part: -1,
        grants: vec![vec![granted, 20_000, 0, 0, 0, 50]],
    };
    scheduler.apply_reply(&first, &reply(1), &limiter, at(2), |_, _, _| {});
    assert!(limiter.is_request_pending(counter));
    let (needed_next, second) = next(&mut scheduler, 2).unwrap();
    assert_eq!([needed, needed_next], [1, 1]);
    scheduler.apply_reply(&second, &reply(1), &limiter, at(3), |_, _, _| {});
    assert!(!limiter.is_request_pending(counter) && next(&mut scheduler, 3).is_none());
}

#[test]
fn any_number_of_abandoned_queries_is_skipped() {
    let (limiter, check) = limiter();
    let mut scheduler = scheduler();
    for key in 0..10_000_u32 {
        let check = weir_limiter::Check { key: limiter.hasher().hash_u32(key), ..check };
        scheduler.enqueue(limiter.shared_counter(&check));
    }
    limiter.acquire_units(&check, at(0));
    scheduler.enqueue(limiter.shared_counter(&check));
    let batch = scheduler.next_batch(&limiter, at(0), &mut |_| false).unwrap();
    assert_eq!(batch.requests.len(), 1);
    assert_eq!(scheduler.take_removed().len(), 10_000);
}

#[test]
fn default_wait_follows_calls_that_fail() {
    let (limiter, check) = limiter();
    let mut scheduler = scheduler();
    let before = scheduler.default_wait(at(0));
    limiter.acquire_units(&check, at(0));
    scheduler.enqueue(limiter.shared_counter(&check));
    let batch = scheduler.next_batch(&limiter, at(0), &mut |_| false).unwrap();
    scheduler.apply_failure(&batch, &limiter, at(100));
    assert!(scheduler.default_wait(at(100)) > 4 * before, "{:?}", scheduler.default_wait(at(100)));
}

#[test]
fn units_are_given_back_later_while_the_store_is_overloaded() {
    const FAST: Duration = Duration::from_millis(1);
    const SLOW: Duration = Duration::from_millis(50);
    let mut scheduler = scheduler();
    let limiter = lease(&mut scheduler);
    assert!(sends_query(&mut scheduler, &limiter, 2..1000, FAST));
    let mut overloaded = self::scheduler();
    let limiter = lease(&mut overloaded);
    assert!(!sends_query(&mut overloaded, &limiter, 2..2000, SLOW));
    assert_eq!(overloaded.overload_latency(at(2000)), SLOW);
    assert!(sends_query(&mut overloaded, &limiter, 2000..4000, FAST));
}
