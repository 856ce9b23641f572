//! Concurrency of an upstream, divided between classes of requests.
//!
//! A request in flight takes a [`ConcurrencySlot`] of a [`ConcurrencyGate`]. While all slots are taken, requests wait, and each
//! freed slot goes to a class with fewer slots than its share, in turns by share if there are several (start-time fair
//! queueing), and otherwise to the class that is least above its share. So under contention every class has at least its
//! share of the slots, also if that is less than one slot all the time, and what a class leaves unused is borrowed.
//!
//! Within a class, slots are divided between flows: requests with the same key. Flows are spread over queues by shuffle
//! sharding, of which each uses the shorter of two, and the next slot goes to the queue with the fewest requests in flight. A flow
//! that sends most of the requests fills two queues of many, and waits there alone.
//!
//! How long a request waits at most depends on its queue, as in CoDel (RFC 8289): a short queue may absorb a burst; one that has
//! stood for an interval only adds delay. Of a *sheddable* class such a queue admits no waits above a twentieth of the interval.
//!
//! The number of slots is fixed, or follows the latency of the upstream ([`crate::adaptive`]).

mod flows;
#[cfg(test)]
mod simulation;
mod ticket;
mod waiting;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;

use self::flows::Flows;
pub use self::ticket::ClassIndex;
use self::ticket::{GatePlace, QueueIndex, SlotTicket};
pub use self::waiting::Waiting;
use crate::adaptive::AdaptiveRange;
use crate::adaptive::controller::{ControllerState, Tolerance};
use crate::adaptive::limits::{AdaptiveLimits, LearnedLimit, SlotIndex, UpstreamSignal};
use crate::key::KeyHash;
use crate::timestamp::{Timestamp, saturating_nanos};

/// Interval until the latency of the upstream is known.
const FIRST_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum of the interval: less than a scheduling delay on a busy machine says nothing.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum of the interval.
const MAX_INTERVAL: Duration = Duration::from_secs(2);
/// Part of the interval for which requests of a sheddable class wait at most in a standing queue, as in RFC 8289.
const TARGET: u32 = 20;
/// Number of intervals for which requests of other classes wait at most in a queue that does not stand.
const PATIENCE: u32 = 10;
/// Virtual time of one slot for a class of share 1.
const SLOT_TIME: u64 = 1 << 20;
/// Time without a rejection after which a class no longer counts as being shed.
const QUIET: Duration = Duration::from_secs(10);

/// A class of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassShare {
    /// Weight of the class: its part of the slots under contention is this to the sum of all classes.
    pub share: NonZeroU32,
    /// Whether its requests are the first to be rejected.
    pub is_sheddable: bool,
    /// Whether its requests have different keys.
    pub has_key: bool,
}

/// The slots of an upstream.
#[derive(Debug)]
pub struct ConcurrencyGate {
    range: AdaptiveRange,
    limits: AdaptiveLimits,
    /// The interval in nanoseconds, which depends on the latency of the upstream.
    interval: AtomicU64,
    state: Mutex<GateState>,
}

/// Result of a request for a slot.
#[derive(Debug)]
pub enum Entrance {
    /// The slot.
    Admitted(ConcurrencySlot),
    /// None is free. The request may wait for one for this time at most.
    Waits(Waiting, Duration),
}

/// A request in flight. Dropping it frees the slot.
#[derive(Debug)]
pub struct ConcurrencySlot {
    gate: Arc<ConcurrencyGate>,
    place: GatePlace,
    measured: SlotIndex,
}

/// State of a gate, for operators.
#[derive(Clone, Debug, PartialEq)]
pub struct GateView {
    /// The limit in force, and what it is computed from.
    pub limit: ControllerState,
    /// Requests in flight.
    pub in_flight: u32,
    /// Classes in the order of their positions.
    pub classes: Vec<ClassView>,
}

/// State of a class, for operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassView {
    /// Requests in flight.
    pub in_flight: u32,
    /// Requests that wait for a slot.
    pub waiting: u32,
    /// What has become of requests since the start.
    pub counts: ClassCounts,
    /// For how long the class has been shed, if it is.
    pub shed_for: Option<Duration>,
}

/// What has become of the requests of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounts {
    /// Got a slot at once.
    pub admitted: u64,
    /// Got a slot after waiting for it.
    pub waited: u64,
    /// Rejected because their wait was over.
    pub shed: u64,
    /// Their clients left while they waited.
    pub left: u64,
}

#[derive(Debug)]
struct GateState {
    in_flight: u32,
    /// Requests that wait, in all classes.
    waiting: u32,
    classes: Box<[ClassState]>,
    tickets: u64,
    /// Virtual time of the class that was served last.
    virtual_now: u64,
}

#[derive(Debug)]
struct ClassState {
    settings: ClassShare,
    in_flight: u32,
    /// Virtual time at which its next slot begins, in a schedule that gives each class its share.
    next_slot: u64,
    flows: Flows,
    /// Shared with the gates before this one, in which requests may still end.
    counts: Arc<Counters>,
    shedding: Option<Shedding>,
}

/// [`ClassCounts`], as they are counted.
#[derive(Debug, Default)]
struct Counters {
    admitted: AtomicU64,
    waited: AtomicU64,
    shed: AtomicU64,
    left: AtomicU64,
}

impl Counters {
    fn load(&self) -> ClassCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ClassCounts {
            admitted: load(&self.admitted),
            waited: load(&self.waited),
            shed: load(&self.shed),
            left: load(&self.left),
        }
    }
}

/// Rejections without a pause of [`QUIET`] between them.
#[derive(Clone, Copy, Debug)]
struct Shedding {
    since: Timestamp,
    last: Timestamp,
}

/// Requests that have just got a slot, to be woken when the lock is released.
type WokenTickets = SmallVec<[Arc<SlotTicket>; 1]>;

impl ConcurrencyGate {
    /// Creates a gate whose number of slots stays within `range`, without requests. There must be a class.
    pub fn new(range: AdaptiveRange, classes: &[ClassShare]) -> Arc<Self> {
        let classes = classes.iter().map(|settings| ClassState {
            settings: *settings,
            in_flight: 0,
            next_slot: 0,
            flows: Flows::new(settings.has_key),
            counts: Arc::default(),
            shedding: None,
        });
        Arc::new(Self {
            range,
            limits: AdaptiveLimits::with_tolerance(false, Tolerance::QUEUE_HERE),
            interval: AtomicU64::new(saturating_nanos(FIRST_INTERVAL)),
            state: Mutex::new(GateState {
                in_flight: 0,
                waiting: 0,
                classes: classes.collect(),
                tickets: 0,
                virtual_now: 0,
            }),
        })
    }

    /// Continues with what the limit of `before` has learned, and with the counts of the class that each class was before.
    /// No request may have entered. Requests in flight stay with `before`.
    pub fn inherit(&self, before: &Self, classes: impl IntoIterator<Item = Option<ClassIndex>>) {
        self.limits.restore(&before.limits.learned(), self.range);
        self.set_interval();
        let known = before.state.lock();
        for (class, index) in self.state.lock().classes.iter_mut().zip(classes) {
            if let Some(known) = index.and_then(|index| known.classes.get(usize::from(index.0))) {
                (class.counts, class.shedding) = (Arc::clone(&known.counts), known.shedding);
            }
        }
    }

    /// Returns what the limit has learned, for a process that replaces this one.
    pub fn learned(&self) -> Vec<LearnedLimit> {
        self.limits.learned()
    }

    /// Continues with what the limit of another process has learned. No request may have entered.
    pub fn restore(&self, learned: &[LearnedLimit]) {
        self.limits.restore(learned, self.range);
        self.set_interval();
    }

    /// Takes a slot for a request of `class`, or has it wait. `flow` is the hash of its key.
    pub fn enter(self: &Arc<Self>, class: ClassIndex, flow: KeyHash, now: Timestamp) -> Entrance {
        let limit = self.limit();
        let mut state = self.state.lock();
        let state = &mut *state;
        let last = state.classes.len().saturating_sub(1);
        let class = ClassIndex(class.0.min(u16::try_from(last).unwrap_or(u16::MAX)));
        let of_class = &mut state.classes[usize::from(class.0)];
        let place = GatePlace { class, queue: of_class.flows.queue_of(flow) };
        // No request waits while a slot is free.
        if state.in_flight < limit && state.waiting == 0 {
            of_class.counts.admitted.fetch_add(1, Ordering::Relaxed);
            state.admit(place);
            return Entrance::Admitted(self.slot(place));
        }
        let interval = Duration::from_nanos(self.interval.load(Ordering::Relaxed));
        let patience = of_class.patience(place.queue, interval, now);
        state.tickets = state.tickets.wrapping_add(1);
        let ticket = Arc::new(SlotTicket::new(place, state.tickets));
        if of_class.flows.waiting() == 0 {
            // Slots that it did not use while none of its requests waited are not saved up.
            of_class.next_slot = of_class.next_slot.max(state.virtual_now);
        }
        of_class.flows.push(place.queue, &ticket, now);
        state.waiting = state.waiting.saturating_add(1);
        Entrance::Waits(Waiting::new(self, ticket), patience)
    }

    /// Computes the limit from what was recorded since the last call, and admits requests if it has grown.
    pub fn adapt(&self, now: Timestamp) {
        self.limits.adapt(self.range, now);
        self.set_interval();
        self.change(|_| {});
    }

    /// Returns the state for operators.
    pub fn view(&self, now: Timestamp) -> GateView {
        let limit = self.limits.state(self.range).lowest;
        let state = self.state.lock();
        let classes = state.classes.iter().map(|class| ClassView {
            in_flight: class.in_flight,
            waiting: class.flows.waiting(),
            counts: class.counts.load(),
            shed_for: class.shed_for(now),
        });
        GateView { limit, in_flight: state.in_flight, classes: classes.collect() }
    }

    #[cfg(test)]
    fn set_interval_for_test(&self, interval: Duration) {
        self.interval.store(saturating_nanos(interval), Ordering::Relaxed);
    }

    /// Derives the interval from the latency of the upstream.
    fn set_interval(&self) {
        let baseline = self.limits.state(self.range).lowest.baseline;
        let interval = baseline.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let interval = interval.unwrap_or(FIRST_INTERVAL).clamp(MIN_INTERVAL, MAX_INTERVAL);
        self.interval.store(saturating_nanos(interval), Ordering::Relaxed);
    }

    fn limit(&self) -> u32 {
        self.limits.limit(KeyHash::default(), self.range)
    }

    /// Returns the slot of a request that has been counted as in flight.
    fn slot(self: &Arc<Self>, place: GatePlace) -> ConcurrencySlot {
        ConcurrencySlot { gate: Arc::clone(self), place, measured: self.limits.admit(KeyHash::default()) }
    }

    /// Changes the state, then gives free slots to requests that wait.
    fn change(&self, change: impl FnOnce(&mut GateState)) {
        let woken = {
            let mut state = self.state.lock();
            change(&mut state);
            state.dispatch(self.limit())
        };
        woken.iter().for_each(|ticket| ticket.wake());
    }

    /// Ends the wait of a request. Returns false if it has a slot.
    fn end_wait(&self, ticket: &SlotTicket, count: impl FnOnce(&mut ClassState)) -> bool {
        let mut state = self.state.lock();
        let state = &mut *state;
        let GatePlace { class, queue } = ticket.place;
        let of_class = &mut state.classes[usize::from(class.0)];
        let waited = of_class.flows.remove(queue, ticket);
        if waited {
            state.waiting = state.waiting.saturating_sub(1);
            count(of_class);
        }
        waited
    }
}

impl GateState {
    fn admit(&mut self, GatePlace { class, queue }: GatePlace) {
        self.in_flight = self.in_flight.saturating_add(1);
        let class = &mut self.classes[usize::from(class.0)];
        class.in_flight = class.in_flight.saturating_add(1);
        class.flows.started(queue);
    }

    fn release(&mut self, GatePlace { class, queue }: GatePlace) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let class = &mut self.classes[usize::from(class.0)];
        class.in_flight = class.in_flight.saturating_sub(1);
        class.flows.ended(queue);
    }

    /// Gives free slots to requests that wait.
    fn dispatch(&mut self, limit: u32) -> WokenTickets {
        let mut woken = WokenTickets::new();
        while self.in_flight < limit && self.waiting > 0 {
            let Some(next) = self.next_class(limit).and_then(|index| self.classes.get_mut(index)) else {
                break;
            };
            let Some(ticket) = next.flows.pop() else { break };
            next.counts.waited.fetch_add(1, Ordering::Relaxed);
            self.virtual_now = next.next_slot;
            next.next_slot = next.next_slot.saturating_add(SLOT_TIME / next.share());
            self.waiting = self.waiting.saturating_sub(1);
            self.admit(ticket.place);
            ticket.set_admitted();
            woken.push(ticket);
        }
        woken
    }

    /// Returns the position of the class that gets the next slot: of those below their share the one whose turn it is,
    /// otherwise the one that is least above its share.
    fn next_class(&self, limit: u32) -> Option<usize> {
        let shares: u64 = self.classes.iter().filter(|class| class.is_active()).map(ClassState::share).sum();
        let waiting = self.classes.iter().enumerate().filter(|(_, class)| class.flows.waiting() > 0);
        let is_below = |class: &ClassState| {
            let slots = (u64::from(limit) * class.share()).div_ceil(shares.max(1));
            u64::from(class.in_flight) < slots
        };
        let below = waiting.clone().filter(|(_, class)| is_below(class));
        let next = below.min_by_key(|(_, class)| class.next_slot);
        let used = |(_, one): &(usize, &ClassState), (_, other): &(usize, &ClassState)| {
            let used = one.used_share(other).cmp(&other.used_share(one));
            used.then(one.next_slot.cmp(&other.next_slot))
        };
        next.or_else(|| waiting.min_by(used)).map(|(index, _)| index)
    }
}

impl ClassState {
    fn share(&self) -> u64 {
        self.settings.share.get().into()
    }

    /// Whether the class has requests.
    fn is_active(&self) -> bool {
        self.in_flight > 0 || self.flows.waiting() > 0
    }

    /// Returns the part of its share that it would use with another slot, in units in which that of `other` can be
    /// compared.
    fn used_share(&self, other: &Self) -> u64 {
        u64::from(self.in_flight).saturating_add(1).saturating_mul(other.share())
    }

    /// Returns the time for which a request that arrives in this queue may wait.
    fn patience(&self, queue: QueueIndex, interval: Duration, now: Timestamp) -> Duration {
        let since = self.flows.waiting_since(queue);
        let is_standing = since.is_some_and(|since| now.since(since) >= interval);
        match (self.settings.is_sheddable, is_standing) {
            (true, true) => interval / TARGET,
            (true, false) | (false, true) => interval,
            (false, false) => interval * PATIENCE,
        }
    }

    fn shed_for(&self, now: Timestamp) -> Option<Duration> {
        let shedding = self.shedding.filter(|shedding| !shedding.is_over(now));
        shedding.map(|shedding| now.since(shedding.since))
    }

    fn record_left(&mut self) {
        self.counts.left.fetch_add(1, Ordering::Relaxed);
    }

    fn record_shed(&mut self, now: Timestamp) {
        self.counts.shed.fetch_add(1, Ordering::Relaxed);
        let since = match self.shedding {
            Some(shedding) if !shedding.is_over(now) => shedding.since,
            _ => now,
        };
        self.shedding = Some(Shedding { since, last: now });
    }
}

impl Shedding {
    fn is_over(&self, now: Timestamp) -> bool {
        now.since(self.last) >= QUIET
    }
}

impl ConcurrencySlot {
    /// Records what the request has shown about the upstream.
    pub fn record(&self, signal: UpstreamSignal) {
        self.gate.limits.record(self.measured, signal);
    }
}

impl Drop for ConcurrencySlot {
    fn drop(&mut self) {
        self.gate.limits.release(self.measured);
        self.gate.change(|state| state.release(self.place));
    }
}

#[cfg(test)]
mod tests;
