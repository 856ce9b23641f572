//! Queues of one class, between which its flows are divided.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::ticket::{QueueIndex, SlotTicket};
use crate::key::KeyHash;
use crate::timestamp::Timestamp;

/// Number of queues of a class with a key. With two for each flow, a flow shares both with another one in 130 000 cases.
const QUEUES: usize = 512;

/// The queues of a class.
#[derive(Debug)]
pub(super) struct Flows {
    queues: Box<[FlowQueue]>,
    /// Queues in which requests wait, by requests in flight and then in turn.
    ready: BTreeSet<QueueTurn>,
    turns: u64,
    waiting: u32,
}

/// Position of a queue in the order in which queues are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct QueueTurn {
    in_flight: u32,
    number: u64,
    queue: QueueIndex,
}

#[derive(Debug, Default)]
struct FlowQueue {
    in_flight: u32,
    turn: u64,
    /// Since when it has not been empty.
    since: Timestamp,
    waiting: BTreeMap<u64, Arc<SlotTicket>>,
}

impl Flows {
    pub(super) fn new(has_key: bool) -> Self {
        let queues = (0..if has_key { QUEUES } else { 1 }).map(|_| FlowQueue::default());
        Self { queues: queues.collect(), ready: BTreeSet::new(), turns: 0, waiting: 0 }
    }

    /// Returns the number of requests that wait.
    pub(super) const fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Returns the shorter of the two queues of a flow.
    pub(super) fn queue_of(&self, flow: KeyHash) -> QueueIndex {
        // The other word of an address is the address itself, which clients choose.
        let [word, _] = flow.words();
        let [first, second] =
            [word, word.rotate_left(32)].map(|word| word as u32 as usize % self.queues.len());
        let load = |index: usize| {
            let queue = &self.queues[index];
            (queue.waiting.len(), queue.in_flight)
        };
        let index = if load(second) < load(first) { second } else { first };
        QueueIndex(u16::try_from(index).unwrap_or_default())
    }

    /// Returns since when requests have waited in the queue without a pause; `None` if none waits.
    pub(super) fn waiting_since(&self, index: QueueIndex) -> Option<Timestamp> {
        let queue = &self.queues[usize::from(index.0)];
        (!queue.waiting.is_empty()).then_some(queue.since)
    }

    /// Adds a request to the end of a queue.
    pub(super) fn push(&mut self, index: QueueIndex, ticket: &Arc<SlotTicket>, now: Timestamp) {
        self.waiting = self.waiting.saturating_add(1);
        let turns = self.next_turn();
        let queue = &mut self.queues[usize::from(index.0)];
        if queue.waiting.is_empty() {
            (queue.since, queue.turn) = (now, turns);
        }
        queue.waiting.insert(ticket.number, Arc::clone(ticket));
        self.ready.insert(self.turn(index));
    }

    /// Removes the request that is next.
    pub(super) fn pop(&mut self) -> Option<Arc<SlotTicket>> {
        let QueueTurn { queue: index, .. } = self.ready.pop_first()?;
        let turns = self.next_turn();
        let queue = &mut self.queues[usize::from(index.0)];
        queue.turn = turns;
        let (_, ticket) = queue.waiting.pop_first()?;
        self.waiting = self.waiting.saturating_sub(1);
        if !queue.waiting.is_empty() {
            self.ready.insert(self.turn(index));
        }
        Some(ticket)
    }

    /// Removes a request from a queue. Returns false if it does not wait there.
    pub(super) fn remove(&mut self, index: QueueIndex, ticket: &SlotTicket) -> bool {
        let queue = &mut self.queues[usize::from(index.0)];
        let is_removed = queue.waiting.remove(&ticket.number).is_some();
        if is_removed {
            self.waiting = self.waiting.saturating_sub(1);
            if queue.waiting.is_empty() {
                let turn = self.turn(index);
                self.ready.remove(&turn);
            }
        }
        is_removed
    }

    /// Counts a request of the queue as in flight.
    pub(super) fn started(&mut self, index: QueueIndex) {
        self.set_in_flight(index, |in_flight| in_flight.saturating_add(1));
    }

    /// Counts a request of the queue as no longer in flight.
    pub(super) fn ended(&mut self, index: QueueIndex) {
        self.set_in_flight(index, |in_flight| in_flight.saturating_sub(1));
    }

    fn set_in_flight(&mut self, index: QueueIndex, change: impl FnOnce(u32) -> u32) {
        let is_ready = self.ready.remove(&self.turn(index));
        let queue = &mut self.queues[usize::from(index.0)];
        queue.in_flight = change(queue.in_flight);
        if is_ready {
            self.ready.insert(self.turn(index));
        }
    }

    fn turn(&self, index: QueueIndex) -> QueueTurn {
        let FlowQueue { in_flight, turn, .. } = self.queues[usize::from(index.0)];
        QueueTurn { in_flight, number: turn, queue: index }
    }

    const fn next_turn(&mut self) -> u64 {
        self.turns = self.turns.wrapping_add(1);
        self.turns
    }
}
