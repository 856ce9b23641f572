//! What a held request waits for: its turn in a queue, or the store.

use std::future::poll_fn;
use std::time::Duration;

use crate::limiter::wait_queue::{Evicted, Offer, Ticket};
use crate::store::lease_wait::{LeaseWaits, StoreResponse};

/// What a request is held for.
#[derive(Debug)]
pub enum Hold<'a> {
    /// Responses of the store.
    Lease(LeaseWaits),
    /// Its turn in a queue.
    Turn(Turn<'a>),
}

/// Turn of a request in a queue.
#[derive(Debug)]
pub struct Turn<'a> {
    pub(super) ticket: &'a Ticket,
    pub(super) event: TurnEvent,
    /// Maximum time to wait for the event.
    pub(super) timeout: Duration,
    /// What others need to decide the request meanwhile.
    pub(super) offer: Option<Box<Offer>>,
}

/// Event for which a request waits in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnEvent {
    /// It becomes the first of the queue.
    First,
    /// Units come back, or the limit changes.
    Notified,
}

/// Why a request is no longer held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldEnd {
    /// It is to be decided again.
    Ready,
    /// The store had no units.
    NoUnits,
    /// The store has not responded in time.
    NoResponse,
    /// It has lost its place in a full queue.
    Evicted,
}

impl HoldEnd {
    /// Returns what the request, which has `waited` for the store so far, knows of it.
    pub(in crate::limits) fn store_response(self, waited: Duration) -> StoreResponse {
        match self {
            Self::Ready | Self::Evicted => StoreResponse::Awaited(waited),
            Self::NoUnits => StoreResponse::NoUnits,
            // Without a response in time, the store counts as unreachable for this request.
            Self::NoResponse => StoreResponse::Missing,
        }
    }
}

impl Hold<'_> {
    /// Completes when the request is to be decided again.
    pub async fn wait(self) -> HoldEnd {
        match self {
            // Boxed: it is larger than the others, for which more requests wait.
            Self::Lease(waits) => match Box::pin(waits.wait_all()).await {
                StoreResponse::Awaited(_) => HoldEnd::Ready,
                StoreResponse::NoUnits => HoldEnd::NoUnits,
                StoreResponse::Missing => HoldEnd::NoResponse,
            },
            Self::Turn(turn) => match turn.wait().await {
                Ok(()) => HoldEnd::Ready,
                Err(Evicted) => HoldEnd::Evicted,
            },
        }
    }
}

impl Turn<'_> {
    async fn wait(mut self) -> Result<(), Evicted> {
        let event = poll_fn(|cx| match self.event {
            TurnEvent::First => self.ticket.poll_first(cx, &mut self.offer),
            TurnEvent::Notified => self.ticket.poll_notified(cx),
        });
        tokio::time::timeout(self.timeout, event).await.unwrap_or(Ok(()))
    }
}
