//! The turn of a held request in a queue.

use std::future::poll_fn;
use std::time::Duration;

use weir_limiter::wait_queue::{Evicted, Offer, Ticket};

/// Turn of a request in a queue.
#[derive(Debug)]
pub struct Turn {
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

impl Turn {
    /// Resolves when the request should be re-evaluated.
    pub(crate) async fn wait(mut self, ticket: &Ticket) -> Result<(), Evicted> {
        let event = poll_fn(|cx| match self.event {
            TurnEvent::First => ticket.poll_first(cx, &mut self.offer),
            TurnEvent::Notified => ticket.poll_notified(cx, &mut self.offer),
        });
        tokio::time::timeout(self.timeout, event).await.unwrap_or(Ok(()))
    }
}
