//! Concurrency of an upstream, divided between classes of requests.
//!
//! A request in flight takes a [`ConcurrencySlot`] of a [`ConcurrencyGate`]. While all slots are taken, requests wait, and each
//! freed slot goes to the class that uses the smallest part of its share. So under contention every class has at least
//! its share of the slots, and what a class leaves unused is borrowed by the others.
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
use crate::adaptive::limits::{AdaptiveLimits, UpstreamSignal};
use crate::key::KeyHash;
use crate::timestamp::{Timestamp, saturating_nanos};

/// Minimum of the interval: less than a scheduling delay on a busy machine says nothing.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum of the interval.
const MAX_INTERVAL: Duration = Duration::from_secs(2);
/// Part of the interval for which requests of a sheddable class wait at most in a standing queue, as in RFC 8289.
const TARGET: u32 = 20;
/// Number of intervals for which requests of other classes wait at most in a queue that does not stand.
const PATIENCE: u32 = 10;
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
    measured: crate::adaptive::limits::SlotIndex,
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
}

#[derive(Debug)]
struct ClassState {
    settings: ClassShare,
    in_flight: u32,
    flows: Flows,
    counts: ClassCounts,
    shedding: Option<Shedding>,
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
            flows: Flows::new(settings.has_key),
            counts: ClassCounts::default(),
            shedding: None,
        });
        Arc::new(Self {
            range,
            limits: AdaptiveLimits::with_tolerance(false, Tolerance::QUEUE_HERE),
            interval: AtomicU64::new(saturating_nanos(MIN_INTERVAL)),
            state: Mutex::new(GateState { in_flight: 0, waiting: 0, classes: classes.collect(), tickets: 0 }),
        })
    }

    /// Continues with what the limit of `before` has learned, and with the counts of the class that each class was before.
    /// No request may have entered. Requests in flight stay with `before`.
    pub fn inherit(&self, before: &Self, classes: impl IntoIterator<Item = Option<ClassIndex>>) {
        self.limits.restore(&before.limits.learned(), self.range);
        self.interval.store(before.interval.load(Ordering::Relaxed), Ordering::Relaxed);
        let known = before.state.lock();
        for (class, index) in self.state.lock().classes.iter_mut().zip(classes) {
            if let Some(known) = index.and_then(|index| known.classes.get(usize::from(index.0))) {
                (class.counts, class.shedding) = (known.counts, known.shedding);
            }
        }
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
        // Nobody waits while a slot is free.
        if state.in_flight < limit && state.waiting == 0 {
            of_class.counts.admitted = of_class.counts.admitted.saturating_add(1);
            state.admit(place);
            return Entrance::Admitted(self.slot(place));
        }
        let interval = Duration::from_nanos(self.interval.load(Ordering::Relaxed));
        let patience = of_class.patience(place.queue, interval, now);
        state.tickets = state.tickets.wrapping_add(1);
        let ticket = Arc::new(SlotTicket::new(place, state.tickets));
        of_class.flows.push(place.queue, &ticket, now);
        state.waiting = state.waiting.saturating_add(1);
        Entrance::Waits(Waiting::new(self, ticket), patience)
    }

    /// Records what a request in flight has shown about the upstream.
    pub fn record(&self, slot: &ConcurrencySlot, signal: UpstreamSignal) {
        self.limits.record(slot.measured, signal);
    }

    /// Computes the limit from what was recorded since the last call, and admits requests if it has grown.
    pub fn adapt(&self, now: Timestamp) {
        self.limits.adapt(self.range, now);
        let baseline = self.limits.state(self.range).lowest.baseline;
        let interval = baseline.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let interval = interval.unwrap_or(MIN_INTERVAL).clamp(MIN_INTERVAL, MAX_INTERVAL);
        self.interval.store(saturating_nanos(interval), Ordering::Relaxed);
        self.change(|_| {});
    }

    /// Returns the state for operators.
    pub fn view(&self, now: Timestamp) -> GateView {
        let limit = self.limits.state(self.range).lowest;
        let state = self.state.lock();
        let classes = state.classes.iter().map(|class| ClassView {
            in_flight: class.in_flight,
            waiting: class.flows.waiting(),
            counts: class.counts,
            shed_for: class.shed_for(now),
        });
        GateView { limit, in_flight: state.in_flight, classes: classes.collect() }
    }

    fn limit(&self) -> u32 {
        self.limits.limit(KeyHash::default(), self.range)
    }

    /// Returns the slot of a request that has been counted as in flight.
    fn slot(self: &Arc<Self>, place: GatePlace) -> ConcurrencySlot {
        ConcurrencySlot { gate: Arc::clone(self), place, measured: self.limits.admit(KeyHash::default()) }
    }

    /// Changes the state, then gives free slots to requests that wait.
    fn change<T>(&self, change: impl FnOnce(&mut GateState) -> T) -> T {
        let (changed, woken) = {
            let mut state = self.state.lock();
            let changed = change(&mut state);
            (changed, state.dispatch(self.limit()))
        };
        woken.iter().for_each(|ticket| ticket.wake());
        changed
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
            let waiting = self.classes.iter_mut().filter(|class| class.flows.waiting() > 0);
            let Some(next) = waiting.min_by(|a, b| a.used_share(b).cmp(&b.used_share(a))) else { break };
            let Some(ticket) = next.flows.pop() else { break };
            next.counts.waited = next.counts.waited.saturating_add(1);
            self.waiting = self.waiting.saturating_sub(1);
            self.admit(ticket.place);
            ticket.set_admitted();
            woken.push(ticket);
        }
        woken
    }
}

impl ClassState {
    /// Returns the used part of its share, in units in which that of `other` can be compared.
    fn used_share(&self, other: &Self) -> u64 {
        u64::from(self.in_flight).saturating_mul(other.settings.share.get().into())
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

    fn record_shed(&mut self, now: Timestamp) {
        self.counts.shed = self.counts.shed.saturating_add(1);
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
    /// Returns the gate to which it belongs.
    pub fn gate(&self) -> &Arc<ConcurrencyGate> {
        &self.gate
    }

    /// Records what the request has shown about the upstream.
    pub fn record(&self, signal: UpstreamSignal) {
        self.gate.record(self, signal);
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
