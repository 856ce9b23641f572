//! Requests that wait for a slot.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::ticket::SlotTicket;
use super::{ClassState, ConcurrencyGate, ConcurrencySlot};
use crate::timestamp::Timestamp;

/// A request that waits for a slot: a future of it. If it is dropped, the request no longer waits.
#[derive(Debug)]
pub struct Waiting {
    /// `None` once the slot has been returned.
    waits: Option<(Arc<ConcurrencyGate>, Arc<SlotTicket>)>,
}

impl Waiting {
    pub(super) fn new(gate: &Arc<ConcurrencyGate>, ticket: Arc<SlotTicket>) -> Self {
        Self { waits: Some((Arc::clone(gate), ticket)) }
    }

    /// Ends the wait, which has been too long. Returns the slot if the request has just got one.
    pub fn give_up(self, now: Timestamp) -> Option<ConcurrencySlot> {
        self.end(|class| class.record_shed(now))
    }

    /// Ends the wait at the deadline of the client. Returns the slot if the request has just got one.
    pub fn end_at_deadline(self) -> Option<ConcurrencySlot> {
        self.end(ClassState::record_left)
    }

    fn end(mut self, count: impl FnOnce(&mut ClassState)) -> Option<ConcurrencySlot> {
        let (gate, ticket) = self.waits.take()?;
        let waited = gate.end_wait(&ticket, count);
        (!waited).then(|| gate.slot(ticket.place))
    }
}

impl Future for Waiting {
    type Output = ConcurrencySlot;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ConcurrencySlot> {
        let is_admitted = self.waits.as_ref().is_some_and(|(_, ticket)| ticket.poll(context));
        match self.waits.take_if(|_| is_admitted) {
            Some((gate, ticket)) => Poll::Ready(gate.slot(ticket.place)),
            None => Poll::Pending,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some((gate, ticket)) = self.waits.take() else { return };
        if !gate.end_wait(&ticket, ClassState::record_left) {
            gate.change(|state| state.release(ticket.place));
        }
    }
}
