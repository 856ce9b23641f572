//! Simulations of many waiting requests before one limit, with threads and timers that are some milliseconds late.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;
use crate::Limiter;
use crate::algorithm::Algorithm;
use crate::quota::{Limit, Period, Quota, TimeUnit};
use crate::timestamp::saturating_nanos;
use crate::wait_queue::pace::PaceMode;
use crate::wait_queue::tests::charged_ahead;
use crate::wait_queue::{Arrival, QueueOrder, QueueSettings, Ticket};

/// A whole second, at which windows begin.
const START: u64 = 1_795_248_000_000_000_000;
const MICROSECOND: u64 = 1000;
const MILLISECOND: u64 = 1_000_000;
/// Requests in 50 ms.
const RATE: u32 = 5000;
const PERIOD: u64 = 50 * MILLISECOND;
const PERIODS: u64 = 6;
const SETTINGS: QueueSettings = QueueSettings { max_queued: u32::MAX, order: QueueOrder::Fifo };

/// Requests that have been woken and not polled.
type Woken = Arc<Mutex<Vec<usize>>>;

struct WakeRequest {
    number: usize,
    woken: Woken,
}

impl Wake for WakeRequest {
    fn wake(self: Arc<Self>) {
        self.woken.lock().push(self.number);
    }
}

struct Waiting {
    ticket: Ticket,
    /// Number of its current timer; earlier ones are void.
    timer: u64,
}

/// When a request was decided, when it was due, and when it was forwarded.
#[derive(Clone, Copy, Debug)]
struct Departure {
    decided_at: u64,
    due: u64,
    forwarded_at: u64,
}

struct Simulation {
    limiter: Limiter,
    check: Check,
    pace: Option<Pace>,
    waiting: Vec<Option<Waiting>>,
    departures: Vec<Option<Departure>>,
    /// Time, request, and number of the timer; 0 for a request that was woken.
    events: BinaryHeap<Reverse<(u64, usize, u64)>>,
    woken: Woken,
    timers: u64,
    lateness: u64,
    random: fastrand::Rng,
}

impl Simulation {
    fn new(quota: Quota, mode: Option<PaceMode>, lateness: u64, seed: u64) -> Self {
        let (limiter, check) = charged_ahead(quota, Timestamp::from_nanos(START));
        Self {
            limiter,
            check,
            pace: mode.map(|mode| Pace::new(mode, &quota, NonZeroU32::MIN, 1)),
            waiting: Vec::new(),
            departures: Vec::new(),
            events: BinaryHeap::new(),
            woken: Woken::default(),
            timers: 0,
            lateness,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Returns the departures of as many requests as wait from the start, until `end`.
    fn run(mut self, requests: usize, end: u64) -> Vec<Option<Departure>> {
        let queues = Arc::clone(self.limiter.queues());
        for number in 0..requests {
            let arrival = Arrival { sequence: queues.next_arrival(), priority: 3, flow: 0 };
            let ticket = queues.join(self.check.counter_id(), SETTINGS, &arrival).expect("room");
            self.waiting.push(Some(Waiting { ticket, timer: 0 }));
            self.departures.push(None);
            self.events.push(Reverse((START, number, 0)));
        }
        while let Some(Reverse((at, number, timer))) = self.events.pop() {
            if at >= end {
                break;
            }
            if self.waiting[number].as_ref().is_some_and(|waiting| timer == 0 || waiting.timer == timer) {
                self.poll(number, at);
            }
            for woken in std::mem::take(&mut *self.woken.lock()) {
                let late = self.random.u64(0..=self.lateness);
                self.events.push(Reverse((at + 2 * MICROSECOND + late, woken, 0)));
            }
        }
        self.departures
    }

    /// Continues a request, as its task would.
    fn poll(&mut self, number: usize, now: u64) {
        let at = Timestamp::from_nanos(now);
        let Some(waiting) = &self.waiting[number] else { return };
        if let Some(grant) = waiting.ticket.take_grant() {
            return self.depart(number, &grant, now);
        }
        let waker = Arc::new(WakeRequest { number, woken: Arc::clone(&self.woken) }).into();
        let mut cx = Context::from_waker(&waker);
        let mut offer = Some(Box::new(self.offer()));
        match waiting.ticket.poll_first(&mut cx, &mut offer) {
            Poll::Pending => return,
            Poll::Ready(first) => assert!(first.is_ok(), "the queue is large enough"),
        }
        match self.decide_first(at) {
            Ok(grant) => self.depart(number, &grant, now),
            Err(wait) => {
                assert_eq!(waiting.ticket.poll_notified(&mut cx, &mut offer), Poll::Pending);
                self.start_timer(number, now + saturating_nanos(wait));
            }
        }
    }

    /// Decides the first request, or returns the time after which it tries again.
    fn decide_first(&self, at: Timestamp) -> Result<Grant, Duration> {
        let (queues, counter) = (self.limiter.queues(), self.check.counter_id());
        let slot = self.pace.map_or(PaceSlot::UNPACED, |pace| queues.reserve_pace(counter, &pace, at));
        let spacing = match slot {
            PaceSlot::Taken(spacing) => spacing,
            PaceSlot::After(wait) => return Err(wait),
        };
        let mut decision = self.decide(&[self.check], at);
        if decision.is_rejected() {
            queues.cancel_pace(counter, true, at);
            return Err(decision.verdicts()[0].retry_after());
        }
        let delay = decision.delay().max(spacing);
        decision.set_delay(0, delay);
        Ok(Grant { decision, at })
    }

    fn start_timer(&mut self, number: usize, at: u64) {
        self.timers += 1;
        let late = self.random.u64(0..=self.lateness);
        self.events.push(Reverse((at.div_ceil(MILLISECOND) * MILLISECOND + late, number, self.timers)));
        if let Some(waiting) = &mut self.waiting[number] {
            waiting.timer = self.timers;
        }
    }

    fn offer(&self) -> Offer {
        let until = Timestamp::from_nanos(u64::MAX);
        let checks = SmallVec::from_iter([self.check]);
        Offer { checks, position: 0, pace: self.pace, others: SmallVec::new(), until }
    }

    fn decide(&self, checks: &[Check], at: Timestamp) -> Decision {
        self.limiter.check(checks, at)
    }

    fn depart(&mut self, number: usize, grant: &Grant, now: u64) {
        let decided_at = grant.at.as_nanos();
        let due = decided_at + saturating_nanos(grant.decision.delay());
        self.departures[number] = Some(Departure { decided_at, due, forwarded_at: due.max(now) });
        let at = Timestamp::from_nanos(now);
        if let Some(waiting) = self.waiting[number].take() {
            waiting.ticket.leave_admitted(at, |checks| self.decide(checks, at));
        }
    }
}

/// Asserts that no period has more than `most` of these times, which are sorted.
fn assert_at_most(most: usize, times: &[u64]) -> Result<(), TestCaseError> {
    for window in times.windows(most + 1) {
        prop_assert!(window[most] - window[0] >= PERIOD, "{} in less than a period", most + 1);
    }
    Ok(())
}

/// Returns the part of a limit that is used at least by requests that wake up late by up to `lateness`.
///
/// The controller of `pid` takes some windows to settle after it has started.
///
/// A sliding window gives units back at its rate until it ends, and none of them is charged ahead. What comes back after
/// the last attempt is lost: the next window has its own count, whatever is left of this one. Each granted request that
/// continues is an attempt. If requests wake up soon, there are times without any, and the next attempt is that of the
/// first request. Its timer fires at the end of the millisecond in which the next unit comes back, and late. So a window
/// loses what comes back meanwhile, that unit, and one by rounding up what the previous window has left. If requests wake
/// up later, granted ones remain at all times: the rate times half the lateness, at least 25.
fn least_use(algorithm: Algorithm, mode: Option<PaceMode>, lateness: u64) -> f64 {
    let least = if mode == Some(PaceMode::Pid) { 0.97 } else { 0.99 };
    if algorithm != Algorithm::SlidingWindow || lateness >= MILLISECOND / 2 {
        return least;
    }
    let lost = (MILLISECOND + lateness) as f64 / PERIOD as f64 + 2.0 / f64::from(RATE);
    f64::min(least, 1.0 - lost)
}

/// Simulates requests before a limit, and asserts that they use it, in their order, and not more of it than there is.
fn assert_used(
    algorithm: Algorithm,
    mode: Option<PaceMode>,
    burst: u32,
    lateness: u64,
    seed: u64,
) -> Result<(), TestCaseError> {
    let count = |number| NonZeroU32::new(number).expect("not zero");
    let milliseconds = count((PERIOD / MILLISECOND) as u32);
    let limit = Limit::new(count(RATE), Period::new(milliseconds, TimeUnit::Millisecond));
    let burst = algorithm.can_delay().then(|| count(burst));
    let quota = Quota::new(algorithm, limit, burst).expect("valid");
    let requests = RATE as usize * (PERIODS as usize + 3);
    let departures = Simulation::new(quota, mode, lateness, seed).run(requests, START + PERIODS * PERIOD);

    let from = START + 2 * PERIOD;
    let used = departures.iter().flatten().filter(|one| one.forwarded_at >= from).count() as f64;
    let available = f64::from(RATE) * (PERIODS - 2) as f64;
    prop_assert!(used >= least_use(algorithm, mode, lateness) * available, "{} of {}", used, available);
    let decided: Vec<u64> = departures.iter().flatten().map(|one| one.decided_at).collect();
    prop_assert!(decided.is_sorted(), "in the order of arrival");
    let last = departures.iter().rposition(Option::is_some).expect("a departure");
    let missing = departures[..last].iter().filter(|one| one.is_none()).count();
    prop_assert!(missing <= MAX_GRANTED, "{} were overtaken", missing);
    let mut due: Vec<u64> = departures.iter().flatten().map(|one| one.due).collect();
    due.sort_unstable();
    match algorithm {
        Algorithm::FixedWindow => {
            // What is decided at the end of a window may be due in the next one.
            let windows = decided.chunk_by(|one, next| one / PERIOD == next / PERIOD);
            prop_assert!(windows.into_iter().all(|window| window.len() <= RATE as usize));
        }
        Algorithm::SlidingWindow => prop_assert!(due.len() as u64 <= u64::from(RATE) * (PERIODS + 1)),
        _ => assert_at_most(RATE as usize + quota.burst().get() as usize, &due)?,
    }
    Ok(())
}

/// Steps of requests in a queue.
#[derive(Clone, Debug)]
enum Step {
    /// A request with this priority joins.
    Join(u8),
    /// A request waits for its turn.
    Wait(usize),
    /// A request takes its offer back.
    TakeBack(usize),
    /// The first request is admitted, and the limit has room for so many others.
    Admit(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0_u8..8).prop_map(Step::Join),
        6 => any::<usize>().prop_map(Step::Wait),
        1 => any::<usize>().prop_map(Step::TakeBack),
        2 => (0_usize..40).prop_map(Step::Admit),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    // Each case simulates tens of thousands of requests.
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn fast_limits_are_used_by_requests_that_wake_up_late(
        algorithm in prop::sample::select(vec![
            Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow,
        ]),
        mode in prop::sample::select(vec![None, Some(PaceMode::Even), Some(PaceMode::Pid)]),
        burst in prop_oneof![1_u32..10, Just(RATE)],
        lateness in prop_oneof![0..4 * MILLISECOND, 0..MILLISECOND / 10],
        seed in any::<u64>(),
    ) {
        assert_used(algorithm, mode, burst, lateness, seed)?;
    }
}

#[test]
fn sliding_window_loses_only_what_comes_back_after_the_last_attempt() {
    let cases = [
        // Requests wake up at once, so only the timer of the first is left.
        (None, 454, 4_388_570_369_931_392_174),
        // Others wake up while that timer is late, and have to decide the first.
        (None, 2_116_403, 11_618_420_194_076_414_583),
        (Some(PaceMode::Pid), 3_232_135, 6_451_640_251_413_023_789),
    ];
    for (mode, lateness, seed) in cases {
        assert_used(Algorithm::SlidingWindow, mode, 1, lateness, seed).expect("used");
    }
}

proptest! {
    #[test]
    fn others_are_admitted_in_order_and_once(steps in steps()) {
        let queues: Arc<WaitQueues> = Arc::default();
        let counter = CounterId([7, 7]);
        let mut cx = Context::from_waker(Waker::noop());
        // Requests, whether they have an offer, and whether they are granted.
        let mut waiting: Vec<(Ticket, bool, bool)> = Vec::new();
        for step in steps {
            match step {
                Step::Join(priority) => {
                    let arrival = Arrival { sequence: queues.next_arrival(), priority, flow: 0 };
                    waiting.push((queues.join(counter, SETTINGS, &arrival).expect("room"), false, false));
                }
                Step::Wait(index) if !waiting.is_empty() => {
                    let index = index % waiting.len();
                    let (ticket, has_offer, _) = &mut waiting[index];
                    let offer = Offer {
                        checks: SmallVec::new(),
                        position: 0,
                        pace: None,
                        others: SmallVec::new(),
                        until: Timestamp::from_secs(9),
                    };
                    *has_offer |= ticket.poll_first(&mut cx, &mut Some(Box::new(offer))).is_pending();
                }
                Step::TakeBack(index) if !waiting.is_empty() => {
                    let index = index % waiting.len();
                    let (ticket, has_offer, is_granted) = &mut waiting[index];
                    prop_assert_eq!(ticket.take_grant().is_some(), *is_granted);
                    *has_offer = false;
                    if *is_granted {
                        waiting.remove(index);
                    }
                }
                Step::Admit(room) => {
                    let Some(first) = waiting.iter().position(|(ticket, ..)| ticket.is_first()) else { continue };
                    let (ticket, ..) = waiting.remove(first);
                    let mut expected: Vec<usize> =
                        (0..waiting.len()).filter(|index| !waiting[*index].2).collect();
                    expected.sort_by_key(|index| waiting[*index].0.rank);
                    let admitted = expected.iter().take_while(|index| waiting[**index].1).count();
                    expected.truncate(admitted.min(room).min(MAX_BATCH));
                    let mut left = room;
                    ticket.leave_admitted(Timestamp::from_secs(1), |_| {
                        let mut decision = Decision::default();
                        match left.checked_sub(1) {
                            Some(rest) => left = rest,
                            None => decision = rejection(),
                        }
                        decision
                    });
                    expected.into_iter().for_each(|index| waiting[index].2 = true);
                }
                Step::Wait(_) | Step::TakeBack(_) => {}
            }
            prop_assert_eq!(queues.waiting(), waiting.iter().filter(|one| !one.2).count());
        }
        for (ticket, _, is_granted) in waiting {
            prop_assert_eq!(ticket.take_grant().is_some(), is_granted);
        }
        prop_assert!(queues.is_empty());
        prop_assert!(queues.shards.iter().all(|shard| shard.lock().queues.is_empty()));
    }
}

#[test]
fn offer_is_small() {
    assert!(size_of::<Offer>() <= 256, "{} bytes", size_of::<Offer>());
}

/// Returns the decision of a limit without room.
fn rejection() -> Decision {
    let quota = Limit::new(NonZeroU32::MIN, Period::one(TimeUnit::Hour));
    let quota = Quota::new(Algorithm::Gcra, quota, None).expect("valid");
    let simulation = Simulation::new(quota, None, 0, 0);
    let (at, check) = (Timestamp::from_nanos(START), Check { options: None, ..simulation.check });
    simulation.decide(&[check], at);
    simulation.decide(&[check], at)
}

#[test]
fn limit_without_room_is_checked_once_for_the_first_request_until_units_come_back() {
    let limit = Limit::new(NonZeroU32::new(2).unwrap(), Period::one(TimeUnit::Hour));
    let quota = Quota::new(Algorithm::FixedWindow, limit, None).unwrap();
    let simulation = Simulation::new(quota, None, 0, 1);
    let (limiter, check) = (&simulation.limiter, simulation.check);
    let queues = limiter.queues();
    let (now, counter) = (Timestamp::from_nanos(START), check.counter_id());
    let mut cx = Context::from_waker(Waker::noop());
    let [first, second, _third] = [(); 3].map(|()| {
        let arrival = Arrival { sequence: queues.next_arrival(), priority: 3, flow: 0 };
        let ticket = queues.join(counter, SETTINGS, &arrival).expect("room");
        let _ = ticket.poll_first(&mut cx, &mut Some(Box::new(simulation.offer())));
        ticket
    });
    let checks = std::cell::Cell::new(0);
    let decide_at = |now| {
        let checks = &checks;
        move |offered: &[Check]| {
            checks.set(checks.get() + 1);
            limiter.check(offered, now)
        }
    };
    assert!(!limiter.check(&[check], now).is_rejected());
    first.leave_admitted(now, decide_at(now));
    assert_eq!(checks.get(), 2, "the second is admitted, and the third is not");
    assert!(second.take_grant().is_some());
    second.leave_admitted(now, decide_at(now));
    assert_eq!(checks.get(), 2, "nothing has changed");
    queues.wake_first(counter);
    second.leave_admitted(now, decide_at(now));
    assert_eq!(checks.get(), 3, "units may have come back");
    let next_window = Timestamp::from_nanos(START + 3_600_000_000_000);
    second.leave_admitted(next_window, decide_at(next_window));
    assert_eq!((checks.get(), queues.waiting()), (4, 0), "the third is admitted");
}
