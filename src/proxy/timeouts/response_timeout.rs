//! Response timeout: the time for the head of the upstream's response, and the party that set it.
//!
//! If a configured timeout expires, it counts as a failure of the upstream. If the client has set it, it may have left
//! the upstream no chance, so it is neither refunded nor counted against the endpoint.
//!
//! The ticks of the coarse clock are too long for timeouts of up to a second, so these have a timer of their
//! own in addition.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use super::ticks;

/// Maximum length of timeouts that have a timer of their own.
const MAX_SHORT_TIMEOUT: Duration = Duration::from_secs(1);

/// The party that set a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::proxy) enum SetBy {
    /// The operator, for every request.
    Configuration,
    /// The client, for this request: `grpc-timeout` or one of Envoy's headers.
    Client,
}

/// A timeout of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) struct Timeout {
    pub(in crate::proxy) time: Duration,
    pub(in crate::proxy) set_by: SetBy,
}

impl Timeout {
    /// Creates a configured timeout.
    pub(in crate::proxy) const fn configured(time: Duration) -> Self {
        Self { time, set_by: SetBy::Configuration }
    }

    /// Creates a timeout set by the client.
    pub(in crate::proxy) const fn by_client(time: Duration) -> Self {
        Self { time, set_by: SetBy::Client }
    }
}

/// A due tick, and the party that set it. At the same tick, the configured timeout takes precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ResponseDeadline {
    tick: u32,
    set_by: SetBy,
}

impl ResponseDeadline {
    const NEVER: Self = Self { tick: u32::MAX, set_by: SetBy::Configuration };

    /// Returns the party that set the timeout, if it has expired at tick `now`.
    pub(super) fn expired(self, now: u32) -> Option<SetBy> {
        (now > self.tick).then_some(self.set_by)
    }
}

/// Due time of a response head: the earliest of the request's timeouts.
#[derive(Debug, Default)]
pub(super) struct ResponseTimeout {
    due: Cell<Option<ResponseDeadline>>,
    short_timer: RefCell<Option<(Pin<Box<Sleep>>, SetBy)>>,
}

impl ResponseTimeout {
    /// Returns the tick at which the response is due, if any.
    pub(super) fn get(&self) -> Option<ResponseDeadline> {
        self.due.get()
    }

    /// Removes all timeouts.
    pub(super) fn clear(&self) {
        self.due.set(None);
        self.short_timer.take();
    }

    /// Pauses the timeouts of the response and of the bodies.
    pub(super) fn suspend(&self) {
        self.due.set(Some(ResponseDeadline::NEVER));
        self.short_timer.take();
    }

    /// Returns whether the timeouts are paused.
    pub(super) fn is_suspended(&self) -> bool {
        self.due.get() == Some(ResponseDeadline::NEVER)
    }

    /// Adds a timeout that starts at tick `now`; the earliest one applies.
    pub(super) fn add(&self, timeout: Timeout, now: u32) {
        if timeout.time <= MAX_SHORT_TIMEOUT {
            self.add_timer(timeout);
        }
        let due = ResponseDeadline { tick: now.saturating_add(ticks(timeout.time)), set_by: timeout.set_by };
        self.due.set(Some(self.due.get().map_or(due, |earlier| earlier.min(due))));
    }

    fn add_timer(&self, timeout: Timeout) {
        let sleep = tokio::time::sleep(timeout.time);
        let mut soon = self.short_timer.borrow_mut();
        if soon.as_ref().is_none_or(|(earlier, _)| sleep.deadline() < earlier.deadline()) {
            *soon = Some((Box::pin(sleep), timeout.set_by));
        }
    }

    /// Ready with the party that set the timeout once its timer has fired. Until then, the timer wakes the task of
    /// `cx`.
    pub(super) fn poll_timer(&self, cx: &mut Context<'_>) -> Poll<SetBy> {
        match &mut *self.short_timer.borrow_mut() {
            Some((sleep, set_by)) => sleep.as_mut().poll(cx).map(|()| *set_by),
            None => Poll::Pending,
        }
    }
}
