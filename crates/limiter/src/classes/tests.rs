use std::num::NonZeroU32;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;

use super::simulation::{ClassLoad, GateSimulation, LoadOutcome, Service, ServiceTimes};
use super::*;
use crate::key::KeyHasher;

const CHECKOUT: ClassIndex = ClassIndex(0);
const CRAWLERS: ClassIndex = ClassIndex(1);
const SERVICE: Service = Service { workers: 20, time: Duration::from_millis(20), times: ServiceTimes::Even };
/// Requests per second that the service completes at most.
const CAPACITY: f64 = 1000.0;

fn share(share: u32, is_sheddable: bool) -> ClassShare {
    ClassShare { share: NonZeroU32::new(share).unwrap(), is_sheddable, has_key: true }
}

fn fixed(limit: u32) -> AdaptiveRange {
    let limit = NonZeroU32::new(limit).unwrap();
    AdaptiveRange::new(limit, limit).unwrap()
}

fn flow(number: u32) -> KeyHash {
    KeyHasher::new([3, 4]).hash_u32(number)
}

fn second(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

fn admitted(entry: Entrance) -> ConcurrencySlot {
    match entry {
        Entrance::Admitted(slot) => slot,
        Entrance::Waits(..) => panic!("waits"),
    }
}

fn waits(entry: Entrance) -> (Waiting, Duration) {
    match entry {
        Entrance::Waits(waiting, patience) => (waiting, patience),
        Entrance::Admitted(_) => panic!("admitted"),
    }
}

fn poll(waiting: &mut Waiting) -> Option<ConcurrencySlot> {
    match Pin::new(waiting).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(slot) => Some(slot),
        Poll::Pending => None,
    }
}

fn class_view(gate: &ConcurrencyGate, class: ClassIndex) -> ClassView {
    gate.view(second(1)).classes[usize::from(class.0)]
}

#[test]
fn freed_slot_goes_to_the_class_furthest_below_its_share() {
    let gate = ConcurrencyGate::new(fixed(4), &[share(75, false), share(25, true)]);
    let enter = |class| gate.enter(class, flow(1), second(1));
    let taken: Vec<_> = (0..4).map(|_| admitted(enter(CRAWLERS))).collect();
    let mut crawler = waits(enter(CRAWLERS)).0;
    let mut checkouts: Vec<_> = (0..3).map(|_| waits(enter(CHECKOUT)).0).collect();

    let mut held = Vec::new();
    for slot in taken {
        drop(slot);
        held.extend(checkouts.iter_mut().filter_map(poll));
    }

    assert_eq!(held.len(), 3, "75 per cent of 4 slots");
    assert!(poll(&mut crawler).is_some());
    assert_eq!(class_view(&gate, CRAWLERS).in_flight, 0);
}

/// Returns how many slots each of two classes gets, of which requests always wait.
fn served_in_turns(limit: u32, shares: [u32; 2], turns: usize) -> [u64; 2] {
    let gate = ConcurrencyGate::new(fixed(limit), &shares.map(|weight| share(weight, false)));
    let enter = |class: usize| gate.enter(ClassIndex(u16::try_from(class).unwrap()), flow(1), second(1));
    let mut slots: Vec<_> = (0..limit).map(|_| admitted(enter(0))).collect();
    let mut waiting: Vec<_> = (0..8).map(|index| (index % 2, waits(enter(index % 2)).0)).collect();
    for _ in 0..turns {
        drop(slots.remove(0));
        let (place, slot) =
            waiting.iter_mut().enumerate().find_map(|(place, (_, one))| Some((place, poll(one)?))).unwrap();
        slots.push(slot);
        let (class, _) = waiting.remove(place);
        waiting.push((class, waits(enter(class)).0));
    }
    [0, 1].map(|class| gate.view(second(1)).classes[class].counts.waited)
}

#[test]
fn classes_take_turns_by_share_if_there_are_fewer_slots_than_classes() {
    assert_eq!(served_in_turns(1, [1, 1000], 1001), [1, 1000]);
    assert_eq!(served_in_turns(1, [1, 3], 400), [100, 300]);
    let [rare, usual] = served_in_turns(2, [1, 1000], 2002);
    assert!((1..=6).contains(&rare) && rare + usual == 2002, "{rare}");
}

#[test]
fn slots_that_a_class_leaves_unused_are_borrowed() {
    let gate = ConcurrencyGate::new(fixed(4), &[share(99, false), share(1, true)]);
    let taken: Vec<_> = (0..4).map(|_| admitted(gate.enter(CRAWLERS, flow(1), second(1)))).collect();
    assert_eq!(class_view(&gate, CRAWLERS).in_flight, 4);
    drop(taken);
}

#[test]
fn client_that_leaves_frees_its_place_at_once() {
    let gate = ConcurrencyGate::new(fixed(1), &[share(1, false)]);
    let slot = admitted(gate.enter(CHECKOUT, flow(1), second(1)));
    let (first, _) = waits(gate.enter(CHECKOUT, flow(1), second(1)));
    let (mut next, _) = waits(gate.enter(CHECKOUT, flow(1), second(1)));
    drop(first);
    assert_eq!(class_view(&gate, CHECKOUT).waiting, 1);
    drop(slot);
    assert!(poll(&mut next).is_some());

    let counts = class_view(&gate, CHECKOUT).counts;
    assert_eq!(counts, ClassCounts { admitted: 1, waited: 1, shed: 0, left: 1 });
}

#[test]
fn slot_of_a_client_that_leaves_before_it_is_woken_goes_to_the_next() {
    let gate = ConcurrencyGate::new(fixed(1), &[share(1, false)]);
    let slot = admitted(gate.enter(CHECKOUT, flow(1), second(1)));
    let (first, _) = waits(gate.enter(CHECKOUT, flow(1), second(1)));
    let (mut next, _) = waits(gate.enter(CHECKOUT, flow(1), second(1)));
    drop(slot);
    assert!(poll(&mut next).is_none(), "the first one has it");
    drop(first);
    assert!(poll(&mut next).is_some());
    assert_eq!(gate.view(second(1)).in_flight, 0);
}

#[test]
fn request_that_gets_its_slot_as_its_wait_ends_is_not_shed() {
    let gate = ConcurrencyGate::new(fixed(1), &[share(1, true)]);
    let slot = admitted(gate.enter(CHECKOUT, flow(1), second(1)));
    let (waiting, _) = waits(gate.enter(CHECKOUT, flow(1), second(1)));
    drop(slot);
    assert!(waiting.give_up(second(2)).is_some());
    assert_eq!(class_view(&gate, CHECKOUT).counts.shed, 0);
}

#[test]
fn sheddable_requests_wait_briefly_in_a_queue_that_stands() {
    let gate = ConcurrencyGate::new(fixed(1), &[share(1, false), share(1, true)]);
    let _slot = admitted(gate.enter(CHECKOUT, flow(1), second(1)));
    let at = |class, millis| {
        let now = second(1).saturating_add(Duration::from_millis(millis));
        waits(gate.enter(class, flow(1), now))
    };
    gate.set_interval_for_test(Duration::from_millis(100));
    let (_first, patience) = at(CRAWLERS, 0);
    assert_eq!(patience, Duration::from_millis(100));
    let (_more, patience) = at(CRAWLERS, 99);
    assert_eq!(patience, Duration::from_millis(100));
    // Its flow fills both of its queues, and then finds that both stand.
    let patience: Vec<_> = (0..4)
        .map(|_| at(CRAWLERS, 300))
        .map(|(waiting, patience)| {
            std::mem::forget(waiting);
            patience
        })
        .collect();
    assert_eq!(patience.last(), Some(&Duration::from_millis(5)));

    let (_other, patience) = at(CHECKOUT, 0);
    assert_eq!(patience, Duration::from_secs(1));
}

#[test]
fn class_counts_as_shed_until_it_has_been_quiet() {
    let gate = ConcurrencyGate::new(fixed(1), &[share(1, true)]);
    let _slot = admitted(gate.enter(CHECKOUT, flow(1), second(1)));
    let shed_for = |now| gate.view(second(now)).classes[0].shed_for.map(|time| time.as_secs());
    for now in [2, 9] {
        let (waiting, _) = waits(gate.enter(CHECKOUT, flow(1), second(now)));
        assert!(waiting.give_up(second(now)).is_none());
    }
    assert_eq!((shed_for(9), shed_for(18), shed_for(19)), (Some(7), Some(16), None));
}

#[test]
fn limit_that_grows_admits_those_that_wait() {
    let range = AdaptiveRange::new(NonZeroU32::MIN, NonZeroU32::new(100).unwrap()).unwrap();
    let gate = ConcurrencyGate::new(range, &[share(1, false)]);
    let slot = admitted(gate.enter(CHECKOUT, flow(1), second(1)));
    let (mut waiting, _) = waits(gate.enter(CHECKOUT, flow(1), second(1)));
    for tick in 1..=30 {
        slot.record(UpstreamSignal::Latency(Duration::from_millis(1)));
        gate.adapt(second(1).saturating_add(crate::control::TICK * tick));
    }
    assert!(poll(&mut waiting).is_some());
}

#[test]
fn new_gate_continues_with_the_limit_of_the_one_before() {
    let gate = ConcurrencyGate::new(AdaptiveRange::default(), &[share(1, false)]);
    let load = ClassLoad { class: CHECKOUT, rate: 0.9 * CAPACITY, flows: 10, first_flow: 0 };
    let mut simulation = GateSimulation::new(gate, SERVICE, 3);
    simulation.run(&[load], Duration::from_secs(5));
    let learned = simulation.gate.view(simulation.now).limit;
    assert!(learned.limit > 4, "{learned:?}");
    let next = ConcurrencyGate::new(AdaptiveRange::default(), &[share(1, true), share(1, false)]);
    next.inherit(&simulation.gate, [None, Some(CHECKOUT)]);
    let view = next.view(simulation.now);
    assert_eq!((view.limit, view.classes[0].counts), (learned, ClassCounts::default()));
    assert!(view.classes[1].counts.admitted > 0);
}

/// Runs critical requests at a part of the capacity beside 12 times the capacity of sheddable ones.
fn beside_crawlers(
    simulation: &mut GateSimulation,
    critical: f64,
    capacity: f64,
    seconds: u64,
) -> [LoadOutcome; 2] {
    let critical = ClassLoad { class: CHECKOUT, rate: critical * capacity, flows: 100, first_flow: 0 };
    let crawlers = ClassLoad { class: CRAWLERS, rate: 12.0 * CAPACITY, flows: 100, first_flow: 1000 };
    let outcomes = simulation.run(&[critical, crawlers], Duration::from_secs(seconds));
    outcomes.try_into().unwrap()
}

#[test]
fn critical_requests_are_served_under_any_load_of_sheddable_ones() {
    let unloaded = {
        let gate = ConcurrencyGate::new(fixed(1000), &[share(1, false)]);
        let load = ClassLoad { class: CHECKOUT, rate: 0.4 * CAPACITY, flows: 100, first_flow: 0 };
        GateSimulation::new(gate, SERVICE, 7).run(&[load], Duration::from_secs(10)).remove(0).quantile(0.99)
    };
    let gate = ConcurrencyGate::new(AdaptiveRange::default(), &[share(50, false), share(10, true)]);
    let mut simulation = GateSimulation::new(gate, SERVICE, 7);
    beside_crawlers(&mut simulation, 0.4, CAPACITY, 10);

    let [critical, crawlers] = beside_crawlers(&mut simulation, 0.4, CAPACITY, 30);
    let goodput = critical.goodput();
    let used = simulation.used(30.0);
    let slowdown = critical.quantile(0.99).as_secs_f64() / unloaded.as_secs_f64();
    assert!(goodput >= 0.99 && used >= 0.95 && slowdown <= 1.5, "{goodput} {used} {slowdown}");
    assert!(crawlers.served as f64 >= 0.5 * CAPACITY * 30.0, "they borrow the rest: {}", crawlers.served);
}

#[test]
fn capacity_is_used_however_service_times_vary() {
    for times in [ServiceTimes::Exponential, ServiceTimes::LogNormal, ServiceTimes::TwoKinds] {
        let gate = ConcurrencyGate::new(AdaptiveRange::default(), &[share(50, false), share(10, true)]);
        let mut simulation = GateSimulation::new(gate, Service { times, ..SERVICE }, 7);
        beside_crawlers(&mut simulation, 0.4, CAPACITY, 10);
        let [critical, _] = beside_crawlers(&mut simulation, 0.4, CAPACITY, 30);
        let goodput = critical.goodput();
        let used = simulation.used(30.0);
        assert!(goodput >= 0.99 && used >= 0.95, "{times:?}: {goodput} {used}");
    }
}

#[test]
fn capacity_that_is_halved_and_restored_is_found_again() {
    let gate = ConcurrencyGate::new(AdaptiveRange::default(), &[share(50, false), share(10, true)]);
    let mut simulation = GateSimulation::new(gate, SERVICE, 7);
    beside_crawlers(&mut simulation, 0.3, CAPACITY, 10);
    simulation.set_workers(SERVICE.workers / 2);
    beside_crawlers(&mut simulation, 0.3, CAPACITY, 10);
    let [critical, _] = beside_crawlers(&mut simulation, 0.3, CAPACITY, 20);
    let goodput = critical.goodput();
    assert!(goodput >= 0.99, "{goodput} with half of the workers");

    simulation.set_workers(SERVICE.workers);
    beside_crawlers(&mut simulation, 0.3, CAPACITY, 10);
    let [critical, _] = beside_crawlers(&mut simulation, 0.3, CAPACITY, 20);
    let goodput = critical.goodput();
    let used = simulation.used(20.0);
    assert!(goodput >= 0.99 && used >= 0.95, "{goodput} {used}");
}

#[test]
fn flow_that_sends_half_of_everything_does_not_slow_the_others() {
    for sheddable in [false, true] {
        let gate = ConcurrencyGate::new(fixed(20), &[share(1, sheddable)]);
        let mut simulation = GateSimulation::new(gate, SERVICE, 11);
        // Together they send what the service completes.
        let others = ClassLoad { class: CHECKOUT, rate: CAPACITY, flows: 9999, first_flow: 1 };
        let elephant = ClassLoad { class: CHECKOUT, rate: CAPACITY, flows: 1, first_flow: 0 };
        simulation.run(&[others, elephant], Duration::from_secs(5));
        let outcomes = simulation.run(&[others, elephant], Duration::from_secs(60));
        let goodput = outcomes[0].goodput();
        assert!(goodput >= 0.95, "{goodput}, sheddable: {sheddable}");
    }
}

/// What a client does in the property test.
#[derive(Clone, Copy, Debug)]
enum Step {
    Enter {
        class: u16,
        flow: u32,
    },
    /// Ends the request in flight at this position.
    End(usize),
    /// Polls the waiting request at this position.
    Poll(usize),
    Leave(usize),
    GiveUp(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..3_u16, 0..6_u32).prop_map(|(class, flow)| Step::Enter { class, flow }),
        3 => (0..8_usize).prop_map(Step::End),
        2 => (0..8_usize).prop_map(Step::Poll),
        1 => (0..8_usize).prop_map(Step::Leave),
        1 => (0..8_usize).prop_map(Step::GiveUp),
    ];
    prop::collection::vec(step, 1..200)
}

fn take<T>(from: &mut Vec<T>, index: usize) -> Option<T> {
    (!from.is_empty()).then(|| from.swap_remove(index % from.len()))
}

proptest! {
    /// Never more in flight than the limit, never a free slot while a request waits, and nothing is lost.
    #[test]
    fn slots_are_neither_lost_nor_invented(limit in 1..5_u32, steps in steps()) {
        let gate = ConcurrencyGate::new(fixed(limit), &[share(5, false), share(3, true), share(1, true)]);
        let (mut slots, mut waiting) = (Vec::new(), Vec::new());
        let mut entered = 0;
        for step in steps {
            match step {
                Step::Enter { class, flow: number } => {
                    entered += 1;
                    match gate.enter(ClassIndex(class), flow(number), second(1)) {
                        Entrance::Admitted(slot) => slots.push(slot),
                        Entrance::Waits(one, _) => waiting.push(one),
                    }
                }
                Step::End(index) => drop(take(&mut slots, index)),
                Step::Poll(index) => {
                    if let Some(mut one) = take(&mut waiting, index) {
                        match poll(&mut one) {
                            Some(slot) => slots.push(slot),
                            None => waiting.push(one),
                        }
                    }
                }
                Step::Leave(index) => drop(take(&mut waiting, index)),
                Step::GiveUp(index) => {
                    slots.extend(take(&mut waiting, index).and_then(|one| one.give_up(second(1))));
                }
            }
            let view = gate.view(second(1));
            let waits: u32 = view.classes.iter().map(|class| class.waiting).sum();
            prop_assert!(view.in_flight <= limit);
            prop_assert!(waits == 0 || view.in_flight == limit, "{view:?}");
            prop_assert_eq!(view.in_flight, view.classes.iter().map(|class| class.in_flight).sum::<u32>());
        }
        drop((slots, waiting));
        let view = gate.view(second(1));
        prop_assert_eq!(view.in_flight, 0);
        let counted = |counts: ClassCounts| counts.admitted + counts.waited + counts.shed + counts.left;
        prop_assert_eq!(view.classes.iter().map(|class| counted(class.counts)).sum::<u64>(), entered);
    }
}
