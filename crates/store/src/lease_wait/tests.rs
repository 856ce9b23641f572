use std::sync::Arc;

use tokio::sync::mpsc;

use super::*;
use crate::handle::QueuedCounter;
use weir_limiter::LimitId;
use weir_limiter::testing::{NOW, limiter, shared_limit};
use weir_limiter::timestamp::Timestamp;

const SHORT: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_secs(60);

const RULE: WaitGroup = WaitGroup::Rule(RuleIndex(0));

/// A handle, its queue, and two counters that differ in their keys.
fn handle() -> (StoreHandle, mpsc::Receiver<QueuedCounter>, [SharedCounter; 2]) {
    let (limiter, check) = limiter();
    let other = weir_limiter::Check { key: weir_limiter::key::KeyHasher::new([3, 4]).hash(b"b"), ..check };
    let counters = [check, other].map(|check| limiter.shared_counter(&check));
    let (handle, queue) = StoreHandle::new(&Arc::new(limiter));
    handle.set_unreachable(false);
    (handle, queue, counters)
}

/// Decides a counter without units.
fn decide(
    handle: &StoreHandle,
    (group, counter): (WaitGroup, SharedCounter),
    max_wait: Duration,
    waits: &mut LeaseWaits,
) -> LeaseDecision {
    let left = max_wait.saturating_sub(waits.waited(group));
    handle.decide_lease(group, counter, Some(left), NOW, waits, |source| {
        LeaseOutcome::Requested(source == UnitSource::Store)
    })
}

#[tokio::test]
async fn each_rule_has_its_own_wait() {
    let (handle, mut queue, [short, long]) = handle();
    let (short, long) = ((RULE, short), (WaitGroup::Rule(RuleIndex(1)), long));
    let mut waits = LeaseWaits::default();
    assert_eq!(decide(&handle, short, SHORT, &mut waits), LeaseDecision::Pending);
    assert_eq!(decide(&handle, long, LONG, &mut waits), LeaseDecision::Pending);
    waits.wait().await;
    assert_eq!(decide(&handle, short, SHORT, &mut waits), LeaseDecision::Unavailable);
    assert_eq!(decide(&handle, long, LONG, &mut waits), LeaseDecision::Pending, "it has time left");
    assert_eq!(handle.take_unanswered(Unanswered::Late), 1);
    assert!(queue.recv().await.is_some());
    let waiter = queue.recv().await.unwrap().waiter.unwrap();
    assert!(queue.try_recv().is_err(), "no further query for a request that waits on");
    waiter.wake(LeaseResponse::NoUnits);
    waits.wait().await;
    assert_eq!(decide(&handle, long, LONG, &mut waits), LeaseDecision::Rejected(Duration::ZERO));
}

#[tokio::test]
async fn waits_for_the_counters_of_one_rule_add_up() {
    let (handle, mut queue, counters) = handle();
    let mut counters = counters.map(|counter| (RULE, counter)).into_iter().cycle();
    let mut waits = LeaseWaits::default();
    let mut rounds = 0;
    while decide(&handle, counters.next().unwrap(), 3 * SHORT, &mut waits) == LeaseDecision::Pending {
        rounds += 1;
        assert!(rounds <= 6, "waits of {SHORT:?} do not add up");
        let waiter = queue.recv().await.unwrap().waiter.unwrap();
        let respond = async {
            tokio::time::sleep(SHORT).await;
            // Another request takes the units.
            waiter.wake(LeaseResponse::Units);
        };
        tokio::join!(waits.wait(), respond);
        waits.stop();
    }
    assert!(waits.waited(RULE) >= 3 * SHORT);
    for counter in counters.take(2) {
        assert_eq!(decide(&handle, counter, 3 * SHORT, &mut waits), LeaseDecision::Unavailable);
    }
    assert_eq!(handle.take_unanswered(Unanswered::Late), 1, "a request counts once");
}

#[tokio::test]
async fn query_that_does_not_fit_into_the_queue_is_not_waited_for() {
    let (handle, queue, [counter, _]) = handle();
    drop(queue);
    let mut waits = LeaseWaits::default();
    assert_eq!(decide(&handle, (RULE, counter), LONG, &mut waits), LeaseDecision::Unavailable);
    assert_eq!(handle.take_unanswered(Unanswered::QueueFull), 1);
    assert!(!waits.is_pending());
}

#[tokio::test]
async fn query_that_is_not_sent_is_unanswered() {
    let (handle, mut queue, [counter, _]) = handle();
    let mut waits = LeaseWaits::default();
    assert_eq!(decide(&handle, (RULE, counter), LONG, &mut waits), LeaseDecision::Pending);
    drop(queue.recv().await);
    waits.wait().await;
    assert_eq!(decide(&handle, (RULE, counter), LONG, &mut waits), LeaseDecision::Unavailable);
    assert_eq!(handle.take_unanswered(Unanswered::NotSent), 1);
}

#[tokio::test]
async fn rule_waits_for_several_counters_at_the_same_time() {
    let (handle, _queue, counters) = handle();
    let mut waits = LeaseWaits::default();
    let started = Instant::now();
    for counter in counters {
        assert_eq!(decide(&handle, (RULE, counter), LONG, &mut waits), LeaseDecision::Pending);
    }
    tokio::time::sleep(SHORT).await;
    waits.stop();
    assert!(waits.waited(RULE) <= started.elapsed(), "the wait counts once");
}

#[tokio::test]
async fn grant_that_cannot_be_spent_says_nothing_about_the_limit() {
    let paused = LeaseOutcome::Rejected(LONG);
    for outcome in [LeaseOutcome::Requested(false), paused] {
        let (handle, mut queue, [counter, _]) = handle();
        let mut waits = LeaseWaits::default();
        assert_eq!(decide(&handle, (RULE, counter), LONG, &mut waits), LeaseDecision::Pending);
        queue.recv().await.unwrap().waiter.unwrap().wake(LeaseResponse::Unusable);
        waits.wait().await;
        let decided = handle.decide_lease(RULE, counter, Some(LONG), NOW, &mut waits, |_| outcome);
        assert_eq!(decided, LeaseDecision::Unavailable, "{outcome:?}");
        assert_eq!(handle.take_unanswered(Unanswered::Late), 1);
    }
}

#[tokio::test]
async fn response_of_a_wait_that_was_stopped_does_not_apply_to_a_later_decision() {
    let (handle, mut queue, [counter, _]) = handle();
    let mut waits = LeaseWaits::default();
    assert_eq!(decide(&handle, (RULE, counter), LONG, &mut waits), LeaseDecision::Pending);
    queue.recv().await.unwrap().waiter.unwrap().wake(LeaseResponse::NoUnits);
    waits.wait().await;
    waits.stop();
    assert_eq!(decide(&handle, (RULE, counter), LONG, &mut waits), LeaseDecision::Pending);
    assert!(queue.recv().await.unwrap().needs_query);
}

#[tokio::test]
async fn counter_without_units_is_not_asked_for_again_while_the_request_waits_for_others() {
    let (handle, mut queue, counters) = handle();
    let [empty, other] = [(RULE, counters[0]), (WaitGroup::Documents, counters[1])];
    let mut waits = LeaseWaits::default();
    assert_eq!(decide(&handle, empty, LONG, &mut waits), LeaseDecision::Pending);
    assert_eq!(decide(&handle, other, LONG, &mut waits), LeaseDecision::Pending);
    for response in [LeaseResponse::NoUnits, LeaseResponse::Units] {
        queue.recv().await.unwrap().waiter.unwrap().wake(response);
    }
    waits.wait().await;
    // Another request takes the units of the second counter.
    let none = LeaseDecision::Rejected(Duration::ZERO);
    for _ in 0..2 {
        assert_eq!(decide(&handle, empty, LONG, &mut waits), none);
        assert_eq!(decide(&handle, other, LONG, &mut waits), LeaseDecision::Pending);
    }
    assert_eq!(queue.recv().await.unwrap().counter, other.1);
    assert!(queue.try_recv().is_err());
}

#[tokio::test]
async fn dropped_query_wakes_the_task_of_the_store() {
    let (handle, queue, [counter, _]) = handle();
    drop(queue);
    let task = handle.clone();
    let woken = tokio::spawn(async move { task.query_dropped().await });
    // The task sleeps before the query is dropped.
    tokio::task::yield_now().await;
    let mut waits = LeaseWaits::default();
    assert_eq!(decide(&handle, (RULE, counter), LONG, &mut waits), LeaseDecision::Unavailable);
    woken.await.unwrap();
}

#[tokio::test]
async fn limits_without_a_response_are_reported_separately() {
    let (limiter, check) = limiter();
    let limits = limiter.install(&[shared_limit("shared"), shared_limit("other")], NOW);
    let [counter, other] =
        [limits[0], limits[1]].map(|handle| limiter.shared_counter(&weir_limiter::Check { handle, ..check }));
    let (handle, queue) = StoreHandle::new(&Arc::new(limiter));
    handle.set_unreachable(false);
    drop(queue);
    let now = |seconds| Timestamp::from_secs(seconds);
    let unavailable = |counter| {
        let decided = decide(&handle, (RULE, counter), LONG, &mut LeaseWaits::default());
        assert_eq!(decided, LeaseDecision::Unavailable);
    };
    unavailable(counter);
    handle.report_unanswered_limits(now(1));
    unavailable(other);
    handle.report_unanswered_limits(now(2));
    let last = |limits: &[LimitId]| handle.last_unanswered(limits);
    assert_eq!([last(&[counter.limit]), last(&[other.limit])], [Some(now(1)), Some(now(2))]);
    assert_eq!(last(&[counter.limit, other.limit]), Some(now(2)));
    assert_eq!(last(&[]), None);
}

#[tokio::test]
async fn unreachable_store_leaves_the_part_if_there_is_one() {
    let (handle, _queue, [counter, _]) = handle();
    handle.set_unreachable(true);
    let decided = |outcome| {
        handle.decide_lease(RULE, counter, Some(LONG), NOW, &mut LeaseWaits::default(), |_| outcome)
    };
    assert_eq!(decided(LeaseOutcome::Ready(false)), LeaseDecision::Unavailable, "it has no part");
    handle.parts().configure(1, Duration::from_secs(60));
    handle.parts().set_used(true);
    handle.parts().record_clock_lead(0, 0, NOW);
    handle.parts().renew(0, NOW).unwrap();
    handle.parts().apply(0, 1000, NOW, NOW);
    assert_eq!(decided(LeaseOutcome::Ready(false)), LeaseDecision::Available);
    assert_eq!(decided(LeaseOutcome::Rejected(LONG)), LeaseDecision::Rejected(LONG));
    assert_eq!(decided(LeaseOutcome::Unavailable), LeaseDecision::Unavailable);
}
