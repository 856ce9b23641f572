//! Tests of the balance: among threads that accept at the same time, and of connections that no queue may lose.

use proptest::prelude::*;

use super::*;

/// Number of a connection; unique in a test.
type Number = usize;

fn counts(balancer: &ConnectionBalancer<Number>) -> Vec<usize> {
    balancer.workers.iter().map(|worker| worker.open.count()).collect()
}

fn difference(counts: &[usize]) -> usize {
    counts.iter().max().unwrap() - counts.iter().min().unwrap()
}

/// Takes what is queued.
fn take(incoming: &mut IncomingConnections<Number>) -> Vec<PlacedConnection<Number>> {
    std::iter::from_fn(|| incoming.0.try_recv().ok()).collect()
}

/// Accepts a connection, and returns it if this worker is to serve it.
fn place(balancer: &ConnectionBalancer<Number>, connection: Number) -> Option<PlacedConnection<Number>> {
    match balancer.reserve() {
        ReservedPlace::Own(place) => Some(PlacedConnection { connection, place }),
        ReservedPlace::Other(handover) => handover.send(connection),
    }
}

/// Returns the place of a connection, as if it was sent at once.
fn reserve(balancer: &ConnectionBalancer<Number>) -> ConnectionPlace {
    match balancer.reserve() {
        ReservedPlace::Own(place) | ReservedPlace::Other(Handover { place, .. }) => place,
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn single_worker_keeps_all_connections() {
    let member = members::<Number>(1).remove(0);
    let open: Vec<_> = (0..3 * MAX_HANDOVERS as usize).map(|n| place(&member.balancer, n).unwrap()).collect();
    assert_eq!(counts(&member.balancer), [open.len()]);
    drop(open);
    assert_eq!(counts(&member.balancer), [0]);
}

#[test]
fn worker_keeps_a_connection_unless_another_has_fewer() {
    let mut all = members::<Number>(3);
    let first = place(&all[0].balancer, 0);
    let second = place(&all[1].balancer, 1);
    assert!(first.is_some() && second.is_some());
    assert!(place(&all[0].balancer, 2).is_none());
    let third = take(&mut all[2].incoming);
    assert_eq!(third.iter().map(|placed| placed.connection).collect::<Vec<_>>(), [2]);
    assert_eq!(counts(&all[0].balancer), [1, 1, 1]);
    let kept = place(&all[0].balancer, 3);
    assert!(kept.is_some(), "all have the same number");
    assert_eq!(counts(&all[0].balancer), [2, 1, 1]);
}

#[test]
fn connection_for_a_full_queue_stays() {
    let mut all = members::<Number>(2);
    let mut kept = Vec::new();
    for n in 0..10 * MAX_QUEUED {
        all[0].balancer.budget.left.set(MAX_HANDOVERS);
        kept.extend(place(&all[0].balancer, n));
    }
    let queued = take(&mut all[1].incoming);
    assert_eq!((queued.len(), kept.len()), (MAX_QUEUED, 9 * MAX_QUEUED));
    assert_eq!(counts(&all[0].balancer), [kept.len(), queued.len()]);
}

#[test]
fn hand_overs_are_limited_for_each_window() {
    let budget = HandoverBudget::default();
    for _ in 0..MAX_HANDOVERS {
        assert!(budget.left.get() > 0);
        budget.spend();
    }
    assert!(!budget.renew(WINDOW - Duration::from_nanos(1)));
    assert_eq!(budget.left.get(), 0);
    assert!(budget.renew(WINDOW));
    assert_eq!(budget.left.get(), MAX_HANDOVERS);
}

#[test]
fn worker_without_a_hand_over_left_keeps_its_connections() {
    let mut all = members::<Number>(2);
    all[0].balancer.budget.left.set(2);
    let kept: Vec<_> = (0..50).filter_map(|n| place(&all[0].balancer, n)).collect();
    let handed_over = take(&mut all[1].incoming).len();
    // If the test is slow, a window may have begun meanwhile.
    let renewed = handed_over.saturating_sub(2);
    let left = if renewed == 0 { 0 } else { MAX_HANDOVERS as usize - renewed };
    assert_eq!((all[0].balancer.budget.left.get() as usize, kept.len()), (left, 50 - handed_over));
}

#[test]
fn connections_handed_over_before_the_drain_are_served_and_later_ones_stay() {
    let mut all = members::<Number>(2);
    let kept = place(&all[0].balancer, 0);
    assert!(kept.is_some() && place(&all[0].balancer, 1).is_none());
    let mut served = Vec::new();
    let incoming = all.pop().unwrap().incoming;
    run(incoming.serve(std::future::ready(()), |placed| served.push(placed)));
    assert_eq!(served.iter().map(|placed| placed.connection).collect::<Vec<_>>(), [1]);
    drop(served);
    assert!(place(&all[0].balancer, 2).is_some(), "the other worker has fewer, but drains");
    assert_eq!(counts(&all[0].balancer), [1, 0]);
}

#[test]
fn threads_that_accept_at_once_keep_the_counts_even() {
    const PER_THREAD: usize = 5_000;
    for workers in 2..=4 {
        let reserve_all = |member: BalanceMember<Number>| {
            let reserve = |_| {
                member.balancer.budget.left.set(MAX_HANDOVERS);
                reserve(&member.balancer)
            };
            (0..PER_THREAD).map(reserve).collect::<Vec<_>>()
        };
        let mut all = members::<Number>(workers);
        let shared = Arc::clone(&all[0].balancer.workers);
        // One of them accepts nothing.
        all.pop();
        let places = on_threads(all, reserve_all);
        let counts: Vec<_> = shared.iter().map(|worker| worker.open.count()).collect();
        assert!(difference(&counts) <= 1, "{counts:?}");
        assert_eq!(counts.iter().sum::<usize>(), places.iter().map(Vec::len).sum::<usize>());
    }
}

#[test]
fn no_connection_is_lost_or_served_twice_while_workers_drain_one_after_another() {
    const WORKERS: usize = 4;
    const MOST: usize = 4_000;
    let accept_and_drain = |BalanceMember { balancer, mut incoming }: BalanceMember<Number>| {
        let mut served = Vec::new();
        // Each worker drains while those after it are still accepting.
        for number in 0..(balancer.own + 1) * MOST / WORKERS {
            balancer.budget.left.set(MAX_HANDOVERS);
            served.extend(place(&balancer, balancer.own * MOST + number));
            served.extend(take(&mut incoming));
        }
        run(incoming.serve(std::future::ready(()), |placed| served.push(placed)));
        served
    };
    let all = members::<Number>(WORKERS);
    let shared = Arc::clone(&all[0].balancer.workers);
    let served = on_threads(all, accept_and_drain);
    let mut numbers: Vec<_> = served.iter().flatten().map(|placed| placed.connection).collect();
    numbers.sort_unstable();
    let accepted = (0..WORKERS).flat_map(|own| own * MOST..own * MOST + (own + 1) * MOST / WORKERS);
    assert!(numbers.into_iter().eq(accepted), "a connection was lost, or served twice");
    let counts: Vec<_> = shared.iter().map(|worker| worker.open.count()).collect();
    assert_eq!(counts, served.iter().map(Vec::len).collect::<Vec<_>>());
    drop(served);
    assert!(shared.iter().all(|worker| worker.open.count() == 0));
}

/// Runs `work` for each worker on a thread of its own.
fn on_threads<T: Send>(
    all: Vec<BalanceMember<Number>>,
    work: impl Fn(BalanceMember<Number>) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = all.into_iter().map(|member| scope.spawn(move || work(member))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

proptest! {
    #[test]
    fn new_connection_goes_to_a_worker_with_the_fewest(
        workers in 1_usize..5,
        steps in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 1..200),
    ) {
        let all = members::<Number>(workers);
        let shared = Arc::clone(&all[0].balancer.workers);
        let mut open = Vec::new();
        for (index, closes) in steps {
            if closes && !open.is_empty() {
                open.swap_remove(index.index(open.len()));
                continue;
            }
            let own = index.index(workers);
            let before: Vec<_> = shared.iter().map(|worker| worker.open.count()).collect();
            all[own].balancer.budget.left.set(MAX_HANDOVERS);
            open.push(reserve(&all[own].balancer));
            let least = before.iter().min().unwrap();
            let changed = |index: &usize| shared[*index].open.count() != before[*index];
            let chosen: Vec<_> = (0..workers).filter(changed).collect();
            prop_assert_eq!(chosen.len(), 1);
            prop_assert_eq!(before[chosen[0]], *least);
            prop_assert_eq!(shared[chosen[0]].open.count(), *least + 1);
            prop_assert_eq!(chosen[0] == own, before[own] == *least);
        }
    }
}
