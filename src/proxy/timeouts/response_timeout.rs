//! How long the upstream has for the head of its response, and who set that time.
//!
//! A timeout of the configuration that expires is the upstream's failure. One that the client set is the client's
//! doing: the upstream may have been given no chance at all, so it is neither refunded nor held against the endpoint.
//!
//! The slow clock ends a wait of seconds. A tick is too coarse for a timeout of up to a second, so such a one has a timer
//! of its own beside the tick.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use super::ticks;

/// A timeout of at most this length has a timer of its own.
const SOON: Duration = Duration::from_secs(1);

/// Who set a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::proxy) enum SetBy {
    /// The operator, for every request.
    Configuration,
    /// The client, for this request: `grpc-timeout` or a header of Envoy's.
    Client,
}

/// A time limit of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) struct Timeout {
    pub(in crate::proxy) time: Duration,
    pub(in crate::proxy) set_by: SetBy,
}

impl Timeout {
    /// The one that the configuration sets.
    pub(in crate::proxy) const fn configured(time: Duration) -> Self {
        Self { time, set_by: SetBy::Configuration }
    }

    /// The one that the client asks for.
    pub(in crate::proxy) const fn by_client(time: Duration) -> Self {
        Self { time, set_by: SetBy::Client }
    }
}

/// A tick, and who set the timeout that ends there. Of two at the same tick the configuration's is the earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Due {
    tick: u32,
    set_by: SetBy,
}

impl Due {
    const NEVER: Self = Self { tick: u32::MAX, set_by: SetBy::Configuration };

    /// Who set the timeout, if it has expired at tick `now`.
    pub(super) fn expired(self, now: u32) -> Option<SetBy> {
        (now > self.tick).then_some(self.set_by)
    }
}

/// When the head of the response to one request is due: the earliest of its timeouts.
#[derive(Debug, Default)]
pub(super) struct ResponseTimeout {
    due: Cell<Option<Due>>,
    soon: RefCell<Option<(Pin<Box<Sleep>>, SetBy)>>,
}

impl ResponseTimeout {
    /// The tick by which the response is due, while there is one.
    pub(super) fn get(&self) -> Option<Due> {
        self.due.get()
    }

    /// No response is due.
    pub(super) fn clear(&self) {
        self.due.set(None);
        self.soon.take();
    }

    /// Nothing is due for now, neither a response nor the progress of a body.
    pub(super) fn suspend(&self) {
        self.due.set(Some(Due::NEVER));
        self.soon.take();
    }

    /// The response is due in `timeout` from tick `now`, or when it was due before if that is earlier.
    pub(super) fn add(&self, timeout: Timeout, now: u32) {
        if timeout.time <= SOON {
            self.add_timer(timeout);
        }
        let due = Due { tick: now.saturating_add(ticks(timeout.time)), set_by: timeout.set_by };
        self.due.set(Some(self.due.get().map_or(due, |earlier| earlier.min(due))));
    }

    fn add_timer(&self, timeout: Timeout) {
        let sleep = tokio::time::sleep(timeout.time);
        let mut soon = self.soon.borrow_mut();
        if soon.as_ref().is_none_or(|(earlier, _)| sleep.deadline() < earlier.deadline()) {
            *soon = Some((Box::pin(sleep), timeout.set_by));
        }
    }

    /// Who set the timeout whose timer has fired. Otherwise the timer, if there is one, wakes the task of `cx`.
    pub(super) fn poll_timer(&self, cx: &mut Context<'_>) -> Poll<SetBy> {
        match &mut *self.soon.borrow_mut() {
            Some((sleep, set_by)) => sleep.as_mut().poll(cx).map(|()| *set_by),
            None => Poll::Pending,
        }
    }
}
