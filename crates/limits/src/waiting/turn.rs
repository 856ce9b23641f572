//! What a held request waits for: its turn in a queue, or the store.

use std::future::poll_fn;
use std::time::Duration;

use weir_limiter::wait_queue::{Evicted, Offer, Ticket};
use weir_store::lease_wait::LeaseWaits;

/// What a request is held for.
#[derive(Debug)]
pub enum Hold<'a> {
    /// Responses of the store.
    Lease(&'a mut LeaseWaits),
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

impl Hold<'_> {
    /// Completes when the request is to be decided again.
    ///
    /// # Errors
    /// If the request has lost its place in a full queue.
    pub async fn wait(self) -> Result<(), Evicted> {
        match self {
            // Boxed: it is larger than the others, for which more requests wait.
            Self::Lease(waits) => {
                Box::pin(waits.wait()).await;
                Ok(())
            }
            Self::Turn(turn) => turn.wait().await,
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
