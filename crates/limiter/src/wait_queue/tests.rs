use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::task::Wake;

use proptest::prelude::*;

use super::*;
use crate::algorithm::conversion::OnChange;
use crate::check_options::{CheckOptions, CounterRole, DelayPolicy};
use crate::decision::Enforcement;
use crate::quota::Quota;
use crate::reservation::ChargeTiming;
use crate::{Check, LimitIdentity, LimitSpec, Limiter, LimiterSettings};

/// Creates a limit whose waiting requests are charged ahead, and a check of it.
pub(super) fn charged_ahead(quota: Quota, now: Timestamp) -> (Limiter, Check) {
    let limiter = Limiter::new(LimiterSettings { max_keys: 10, secret: [7, 11] });
    let spec = LimitSpec {
        identity: LimitIdentity { rule: "q".into(), key: "[]".into() },
        quota,
        on_change: OnChange::Keep,
        lease_policy: None,
    };
    let handle = limiter.install(&[spec], now)[0];
    let role = CounterRole::Delay(DelayPolicy::new(CHARGE_AHEAD, None));
    let delay = CheckOptions::new(0, role);
    let check = Check {
        handle,
        key: limiter.hasher().hash(b"client"),
        cost: 1,
        enforcement: Enforcement::Enforced,
        charge_timing: ChargeTiming::OnArrival,
        options: quota.algorithm().can_delay().then_some(delay),
    };
    (limiter, check)
}

const COUNTER: CounterId = CounterId([7, 7]);

/// A waker that records whether it was used.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Flag {
    fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}

fn settings(order: QueueOrder, max_queued: u32) -> QueueSettings {
    QueueSettings { max_queued, order }
}

fn arrival(queues: &WaitQueues, priority: u8, flow: u64) -> Arrival {
    Arrival { sequence: queues.next_arrival(), priority, flow }
}

fn poll_first(ticket: &Ticket, flag: &Arc<Flag>) -> Poll<Result<(), Evicted>> {
    ticket.poll_first(&mut Context::from_waker(&Arc::clone(flag).into()), &mut None)
}

/// Lets the first requests leave one after the other, and returns the names in that order.
fn drain(mut waiting: BTreeMap<usize, Ticket>) -> Vec<usize> {
    let mut order = Vec::new();
    while !waiting.is_empty() {
        let first = *waiting.iter().find(|(_, ticket)| ticket.is_first()).expect("a first request").0;
        waiting.remove(&first);
        order.push(first);
    }
    order
}

fn join_all(
    queues: &Arc<WaitQueues>,
    settings: QueueSettings,
    requests: &[(u8, u64)],
) -> BTreeMap<usize, Ticket> {
    let join = |(name, (priority, flow)): (usize, &(u8, u64))| {
        let arrival = arrival(queues, *priority, *flow);
        (name, queues.join(COUNTER, settings, &arrival).expect("room"))
    };
    requests.iter().enumerate().map(join).collect()
}

#[test]
fn orders_of_a_queue() {
    let flows = [(3, 1), (3, 1), (3, 1), (3, 2), (3, 2), (3, 3)];
    let order = |order| drain(join_all(&Arc::default(), settings(order, 10), &flows));
    assert_eq!(order(QueueOrder::Fifo), [0, 1, 2, 3, 4, 5]);
    assert_eq!(order(QueueOrder::Lifo), [5, 4, 3, 2, 1, 0]);
    assert_eq!(order(QueueOrder::Fair), [0, 3, 5, 1, 4, 2]);
}

#[test]
fn next_request_is_woken_when_the_first_leaves() {
    let queues = Arc::default();
    let mut waiting = join_all(&queues, settings(QueueOrder::Fifo, 10), &[(3, 0); 3]);
    let flags = [Arc::<Flag>::default(), Arc::default(), Arc::default()];
    assert_eq!(poll_first(&waiting[&0], &flags[0]), Poll::Ready(Ok(())));
    assert!(
        poll_first(&waiting[&1], &flags[1]).is_pending() && poll_first(&waiting[&2], &flags[2]).is_pending()
    );
    drop(waiting.remove(&1));
    assert!(!flags[2].take(), "it is not the first");
    drop(waiting.remove(&0));
    assert!(flags[2].take());
    assert_eq!(poll_first(&waiting[&2], &flags[2]), Poll::Ready(Ok(())));
    drop(waiting);
    assert!(queues.is_empty());
}

#[test]
fn notification_before_the_poll_is_not_lost() {
    let queues: Arc<WaitQueues> = Arc::default();
    let waiting = join_all(&queues, settings(QueueOrder::Fifo, 10), &[(3, 0); 2]);
    let flag = Arc::<Flag>::default();
    let poll = |name: usize| {
        waiting[&name].poll_notified(&mut Context::from_waker(&Arc::clone(&flag).into()), &mut None)
    };
    queues.wake_first(COUNTER);
    assert_eq!(poll(0), Poll::Ready(Ok(())));
    assert!(poll(0).is_pending(), "once for each notification");
    queues.wake_first(CounterId([8, 8]));
    assert!(!flag.take());
    queues.wake_first(COUNTER);
    assert!(flag.take());
    assert!(poll(1).is_pending());
}

#[test]
fn request_that_was_overtaken_is_notified_when_it_is_first_again() {
    let queues: Arc<WaitQueues> = Arc::default();
    let settings = settings(QueueOrder::Fifo, 10);
    let waiting = join_all(&queues, settings, &[(3, 0)]);
    let flag = Arc::<Flag>::default();
    let poll = || waiting[&0].poll_notified(&mut Context::from_waker(&Arc::clone(&flag).into()), &mut None);
    assert!(poll().is_pending());
    let urgent = queues.join(COUNTER, settings, &arrival(&queues, 0, 0)).expect("room");
    drop(urgent);
    assert!(flag.take());
    assert_eq!(poll(), Poll::Ready(Ok(())));
}

#[test]
fn more_urgent_request_takes_the_last_place_of_a_full_queue() {
    let queues: Arc<WaitQueues> = Arc::default();
    let settings = settings(QueueOrder::Fifo, 2);
    let waiting = join_all(&queues, settings, &[(3, 0), (5, 0)]);
    let flag = Arc::<Flag>::default();
    assert!(poll_first(&waiting[&1], &flag).is_pending());
    assert_eq!(queues.join(COUNTER, settings, &arrival(&queues, 5, 0)).err(), Some(QueueFull));
    let urgent = queues.join(COUNTER, settings, &arrival(&queues, 1, 0)).expect("the last one's place");
    assert!(flag.take() && urgent.is_first());
    assert_eq!(poll_first(&waiting[&1], &flag), Poll::Ready(Err(Evicted)));
    assert_eq!(queues.waiting(), 2);
    drop((waiting, urgent));
    assert!(queues.is_empty());
}

#[test]
fn request_that_waits_elsewhere_is_behind_earlier_arrivals_only() {
    let queues: Arc<WaitQueues> = Arc::default();
    let (settings, other) = (settings(QueueOrder::Lifo, 10), CounterId([9, 9]));
    let [early, middle, late] = [(); 3].map(|()| arrival(&queues, 3, 0));
    let ticket = queues.join(COUNTER, settings, &middle).expect("room");
    let early_ticket = queues.join(other, settings, &early).expect("room");
    assert!(queues.is_behind(other, settings, &middle, Some(&ticket)));
    drop(early_ticket);
    let late_ticket = queues.join(other, settings, &late).expect("room");
    assert!(!queues.is_behind(other, settings, &middle, Some(&ticket)));
    // A new request is compared by the order of the queue.
    assert!(!queues.is_behind(other, settings, &arrival(&queues, 3, 0), None));
    assert!(queues.is_behind(other, settings, &arrival(&queues, 4, 0), None));
    drop(late_ticket);
}

#[derive(Clone, Debug)]
enum Step {
    Join(u8, u64),
    Leave(usize),
    LeaveFirst,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u8..8, 0_u64..4).prop_map(|(priority, flow)| Step::Join(priority, flow)),
        1 => (0_usize..100).prop_map(Step::Leave),
        2 => Just(Step::LeaveFirst),
    ]
}

proptest! {
    #[test]
    fn no_request_is_lost_and_there_is_one_first(
        steps in prop::collection::vec(step(), 1..200),
        order in prop::sample::select(vec![QueueOrder::Fifo, QueueOrder::Lifo, QueueOrder::Fair]),
        max_queued in 1_u32..20,
    ) {
        let queues: Arc<WaitQueues> = Arc::default();
        let settings = settings(order, max_queued);
        let flag = Arc::<Flag>::default();
        let mut waiting: Vec<(Arrival, Ticket)> = Vec::new();
        for step in steps {
            match step {
                Step::Join(priority, flow) => {
                    let arrival = arrival(&queues, priority, flow);
                    match queues.join(COUNTER, settings, &arrival) {
                        Ok(ticket) => waiting.push((arrival, ticket)),
                        Err(QueueFull) => prop_assert_eq!(waiting.len(), max_queued as usize),
                    }
                    waiting.retain(|(_, ticket)| poll_first(ticket, &flag) != Poll::Ready(Err(Evicted)));
                }
                Step::Leave(index) if !waiting.is_empty() => drop(waiting.remove(index % waiting.len())),
                Step::LeaveFirst if !waiting.is_empty() => {
                    let first = waiting.iter().position(|(_, ticket)| ticket.is_first());
                    let (arrival, ticket) = waiting.remove(first.expect("a first request"));
                    let is_preceded = |other: &Arrival| match order {
                        QueueOrder::Fifo => other.sequence < arrival.sequence,
                        QueueOrder::Lifo => other.sequence > arrival.sequence,
                        QueueOrder::Fair => other.flow == arrival.flow && other.sequence < arrival.sequence,
                    };
                    for (other, _) in &waiting {
                        prop_assert!(other.priority >= arrival.priority);
                        prop_assert!(other.priority > arrival.priority || !is_preceded(other));
                    }
                    drop(ticket);
                }
                Step::Leave(_) | Step::LeaveFirst => {}
            }
            prop_assert_eq!(queues.waiting(), waiting.len());
            prop_assert_eq!(waiting.iter().filter(|(_, ticket)| ticket.is_first()).count(), waiting.len().min(1));
        }
        drop(waiting);
        prop_assert!(queues.is_empty());
        prop_assert!(queues.shards.iter().all(|shard| shard.lock().queues.is_empty()));
    }

    #[test]
    fn number_ahead_is_never_too_large(
        requests in prop::collection::vec((0_u8..8, 0_u64..4), 1..60),
        order in prop::sample::select(vec![QueueOrder::Fifo, QueueOrder::Lifo, QueueOrder::Fair]),
    ) {
        let queues: Arc<WaitQueues> = Arc::default();
        let settings = settings(order, 100);
        let mut waiting = join_all(&queues, settings, &requests[1..]);
        let last = arrival(&queues, requests[0].0, requests[0].1);
        let ahead = queues.ahead(COUNTER, settings, &last);
        waiting.insert(usize::MAX, queues.join(COUNTER, settings, &last).expect("room"));
        let place = drain(waiting).into_iter().position(|name| name == usize::MAX);
        prop_assert!(Some(ahead) <= place, "{} of {:?}", ahead, place);
    }

    #[test]
    fn fair_order_shares_equally(counts in prop::collection::vec(1_usize..40, 2..5)) {
        let requests: Vec<(u8, u64)> =
            (0..).zip(&counts).flat_map(|(flow, count)| vec![(3, flow); *count]).collect();
        let order = drain(join_all(&Arc::default(), settings(QueueOrder::Fair, 1000), &requests));
        let least = *counts.iter().min().expect("a flow");
        // While all flows have requests, each turn of all flows serves each of them once.
        for turn in order[..least * counts.len()].chunks(counts.len()) {
            let mut flows: Vec<u64> = turn.iter().map(|name| requests[*name].1).collect();
            flows.sort_unstable();
            prop_assert_eq!(flows, (0..counts.len() as u64).collect::<Vec<_>>());
        }
    }
}
