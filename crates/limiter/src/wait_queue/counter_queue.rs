//! The queue of one counter: its waiting requests in their order, and their wakers.
//!
//! A request has a [`Rank`], which does not change while it waits. Requests are admitted in the order of their ranks:
//! by priority first, then by the order of the queue, then by arrival.

use std::collections::{BTreeMap, HashMap};
use std::task::Waker;

use super::offer::{Grant, Offer};
use super::pace::Pacer;
use super::{QueueFull, QueueSettings};
use crate::timestamp::Timestamp;

/// Order in which waiting requests of the same priority are decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueOrder {
    /// The request that has waited longest is first.
    #[default]
    Fifo,
    /// The request that arrived last is first. Under overload the others time out, but those that are admitted have waited
    /// only a short time.
    Lifo,
    /// Flows take turns, whatever the number of their requests: start-time fair queueing (Goyal, Vin and Cheng 1996) with
    /// requests of equal size.
    Fair,
}

/// What the place of a request depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Number in the order of arrival, from [`super::WaitQueues::next_arrival`].
    pub sequence: u64,
    /// Urgency, from 0 for the most urgent to 7 as in RFC 9218 section 4.1. More urgent requests come first.
    pub priority: u8,
    /// Flow of the request, for [`QueueOrder::Fair`].
    pub flow: u64,
}

/// Maximum number of requests that are counted one by one.
const MAX_COUNTED: usize = 10_000;
/// Number of priorities.
const PRIORITIES: usize = 8;

/// Place in a queue; lower ones are first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    priority: u8,
    order: u64,
    sequence: u64,
}

impl Rank {
    /// Returns whether its request arrived earlier.
    pub(super) const fn is_earlier_than(self, arrival: &Arrival) -> bool {
        self.sequence < arrival.sequence
    }
}

/// A waiting request.
#[derive(Debug)]
struct Waiter {
    flow: u64,
    waker: Option<Waker>,
    is_notified: bool,
    /// Whether limits have been removed since the request was decided.
    is_reconfigured: bool,
    /// What others need to decide it while it waits.
    offer: Option<Box<Offer>>,
    /// Time before which the limit has no room for it, unless units come back.
    no_room_until: Timestamp,
}

/// Waiting requests of one flow.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    waiting: u32,
    /// Virtual time of its last request.
    last_tag: u64,
}

/// Waiting requests of one counter, and the pace at which they are admitted.
#[derive(Debug, Default)]
pub(super) struct CounterQueue {
    waiting: BTreeMap<Rank, Waiter>,
    by_priority: [u32; PRIORITIES],
    /// Flows with waiting requests, for [`QueueOrder::Fair`].
    flows: HashMap<u64, Flow>,
    /// Tag of the last request that was first.
    virtual_time: u64,
    pub(super) pacer: Option<Pacer>,
    /// Requests that others have admitted and that have not continued yet.
    pub(super) granted: BTreeMap<Rank, Grant>,
}

impl CounterQueue {
    /// Returns the place that a request would have now.
    pub(super) fn rank(&self, order: QueueOrder, arrival: &Arrival) -> Rank {
        let Arrival { sequence, priority, flow } = *arrival;
        let order = match order {
            QueueOrder::Fifo => sequence,
            QueueOrder::Lifo => u64::MAX - sequence,
            QueueOrder::Fair => self.next_tag(flow),
        };
        Rank { priority: priority.min(PRIORITIES as u8 - 1), order, sequence }
    }

    fn next_tag(&self, flow: u64) -> u64 {
        let last = self.flows.get(&flow).map_or(0, |flow| flow.last_tag);
        last.max(self.virtual_time).saturating_add(1)
    }

    /// Returns the place of the first request.
    pub(super) fn first(&self) -> Option<Rank> {
        self.waiting.first_key_value().map(|(rank, _)| *rank)
    }

    pub(super) fn contains(&self, rank: Rank) -> bool {
        self.waiting.contains_key(&rank)
    }

    /// Returns the number of requests that can be admitted now, as far as their pace permits.
    pub(super) fn demand(&self) -> u32 {
        let waiting = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        self.pacer.as_ref().map_or(waiting, |pacer| waiting.min(pacer.places_ahead()))
    }

    /// Returns a lower bound of the number of requests before one that joins now.
    pub(super) fn ahead(&self, order: QueueOrder, arrival: &Arrival) -> usize {
        let priority = usize::from(arrival.priority).min(PRIORITIES - 1);
        let more_urgent: usize = self.by_priority[..priority].iter().map(|count| *count as usize).sum();
        let equal = self.by_priority[priority] as usize;
        match order {
            QueueOrder::Fifo => more_urgent + equal,
            QueueOrder::Lifo => more_urgent,
            QueueOrder::Fair => {
                let rank = self.rank(order, arrival);
                let first = Rank { order: 0, sequence: 0, ..rank };
                more_urgent + self.waiting.range(first..rank).take(MAX_COUNTED).count()
            }
        }
    }

    /// Adds a request. Returns its place, and the waker of the request that it evicted, if the queue was full.
    pub(super) fn join(
        &mut self,
        settings: QueueSettings,
        arrival: &Arrival,
    ) -> Result<(Rank, Option<Option<Waker>>), QueueFull> {
        let rank = self.rank(settings.order, arrival);
        let mut evicted = None;
        if self.waiting.len() >= settings.max_queued as usize {
            let last = self.waiting.last_key_value().map(|(last, _)| *last);
            let last = last.filter(|last| rank < *last).ok_or(QueueFull)?;
            evicted = Some(self.remove(last).and_then(|waiter| waiter.waker));
        }
        let waiting = &mut self.by_priority[usize::from(rank.priority)];
        *waiting = waiting.saturating_add(1);
        if settings.order == QueueOrder::Fair {
            let flow = self.flows.entry(arrival.flow).or_default();
            (flow.waiting, flow.last_tag) = (flow.waiting.saturating_add(1), rank.order);
        }
        self.waiting.insert(
            rank,
            Waiter {
                flow: arrival.flow,
                waker: None,
                is_notified: false,
                is_reconfigured: false,
                offer: None,
                no_room_until: Timestamp::default(),
            },
        );
        Ok((rank, evicted))
    }

    /// Removes a request; returns the waker of the one that is now the first, or `None` if the request was evicted.
    pub(super) fn leave(&mut self, rank: Rank) -> Option<Option<Waker>> {
        let was_first = self.first() == Some(rank);
        self.remove(rank)?;
        if was_first {
            self.advance_virtual_time(rank);
        }
        // The next one may wait for a notification, if this request joined before it.
        Some(if was_first { self.notify_first() } else { None })
    }

    fn advance_virtual_time(&mut self, rank: Rank) {
        if !self.flows.is_empty() {
            self.virtual_time = self.virtual_time.max(rank.order);
        }
    }

    /// Sets what others need to decide a request, until it is taken back.
    pub(super) fn set_offer(&mut self, rank: Rank, offer: Box<Offer>) {
        if let Some(waiter) = self.waiting.get_mut(&rank) {
            waiter.offer = Some(offer);
        }
    }

    /// Takes the offer of a request back, or its grant, if there is one.
    pub(super) fn take_grant(&mut self, rank: Rank) -> Option<Grant> {
        if let Some(waiter) = self.waiting.get_mut(&rank) {
            waiter.offer = None;
        }
        self.granted.remove(&rank)
    }

    /// Takes the offer of the first request, unless the limit has no room for it.
    pub(super) fn take_first_offer(&mut self, now: Timestamp) -> Option<(Rank, Box<Offer>)> {
        let mut first = self.waiting.first_entry()?;
        // If limits have been removed, one of them may be its own, and would admit it.
        if first.get().is_reconfigured || now < first.get().no_room_until {
            return None;
        }
        let offer = first.get_mut().offer.take()?;
        Some((*first.key(), offer))
    }

    /// Returns an offer, which the limit has no room for until then unless units come back.
    pub(super) fn return_offer(&mut self, rank: Rank, offer: Box<Offer>, no_room_until: Timestamp) {
        if let Some(waiter) = self.waiting.get_mut(&rank) {
            (waiter.offer, waiter.no_room_until) = (Some(offer), no_room_until);
        }
    }

    /// Admits the first request. Returns its waker.
    pub(super) fn grant(&mut self, rank: Rank, grant: Grant) -> Option<Waker> {
        let waiter = self.remove(rank)?;
        self.advance_virtual_time(rank);
        self.granted.insert(rank, grant);
        // It had room, so units have come back since the next one was decided.
        if let Some(mut first) = self.waiting.first_entry() {
            first.get_mut().no_room_until = Timestamp::default();
        }
        waiter.waker
    }

    fn remove(&mut self, rank: Rank) -> Option<Waiter> {
        let waiter = self.waiting.remove(&rank)?;
        let waiting = &mut self.by_priority[usize::from(rank.priority)];
        *waiting = waiting.saturating_sub(1);
        if let Some(flow) = self.flows.get_mut(&waiter.flow) {
            flow.waiting = flow.waiting.saturating_sub(1);
            if flow.waiting == 0 {
                self.flows.remove(&waiter.flow);
            }
        }
        Some(waiter)
    }

    /// Marks the first request as notified that there may be room, and returns its waker.
    pub(super) fn notify_first(&mut self) -> Option<Waker> {
        self.waiting.first_entry()?.get_mut().no_room_until = Timestamp::default();
        self.notify_next()
    }

    /// Marks the first request as notified that it is the first, and returns its waker.
    pub(super) fn notify_next(&mut self) -> Option<Waker> {
        let mut first = self.waiting.first_entry()?;
        first.get_mut().is_notified = true;
        first.get_mut().waker.take()
    }

    /// Makes every request try again, because limits have been removed. Returns their wakers.
    pub(super) fn notify_all(&mut self) -> impl Iterator<Item = Waker> + '_ {
        self.waiting.values_mut().filter_map(|waiter| {
            waiter.is_reconfigured = true;
            waiter.waker.take()
        })
    }

    /// Returns whether limits have been removed since the last call.
    pub(super) fn take_reconfiguration(&mut self, rank: Rank) -> bool {
        self.waiting.get_mut(&rank).is_some_and(|waiter| std::mem::take(&mut waiter.is_reconfigured))
    }

    /// Returns whether a request is the first one; it is decided next, so earlier notifications are void.
    pub(super) fn take_turn(&mut self, rank: Rank) -> bool {
        let is_first = self.first() == Some(rank);
        if is_first {
            self.take_notification(rank);
        }
        is_first
    }

    /// Returns whether a request has been notified since the last call.
    pub(super) fn take_notification(&mut self, rank: Rank) -> bool {
        self.waiting.get_mut(&rank).is_some_and(|waiter| std::mem::take(&mut waiter.is_notified))
    }

    pub(super) fn register(&mut self, rank: Rank, waker: &Waker) {
        let Some(waiter) = self.waiting.get_mut(&rank) else { return };
        match &mut waiter.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// Whether nothing is lost if the queue is removed.
    pub(super) fn is_removable(&self) -> bool {
        self.waiting.is_empty() && self.granted.is_empty() && self.pacer.is_none()
    }

    /// Whether requests wait, or the pace of earlier ones still matters.
    pub(super) fn is_in_use(&self, now: Timestamp) -> bool {
        !self.waiting.is_empty()
            || !self.granted.is_empty()
            || self.pacer.as_ref().is_some_and(|pacer| !pacer.is_idle(now))
    }
}
