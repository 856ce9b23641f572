//! Timeouts towards clients: one timer per connection and per request, and the slow clock that checks them.
//!
//! An operating-system timer per request would cost more than the limiter's decision. Instead each timer records the
//! tick of the last progress in a cell, and one sweep per tick checks all timers of a worker. Every downstream timeout, the
//! timeout of the response's head and the drain of connections use this clock, so they are late by up to two ticks and
//! never early. Only a response that is due within a second has an operating-system timer of its own.
//!
//! [`ConnectionTimer`] times what happens between requests: handshake, idle time, the head of a request, lingering close,
//! and a connection of HTTP/2 as a whole. [`RequestTimer`] times one request, over HTTP/1.1 or as a stream of HTTP/2, and
//! the tunnel that it may become.

mod connection;
mod linger;
mod min_rate;
mod request;
mod response_timeout;
mod slow_clock;
mod streams;
mod ticks;
mod upload;

use std::cell::RefCell;
use std::task::Waker;
use std::time::Duration;

pub(super) use self::connection::ConnectionTimer;
pub(super) use self::request::RequestTimer;
pub(super) use self::response_timeout::{SetBy, Timeout};
pub(super) use self::slow_clock::SlowClock;
pub(super) use self::upload::UploadTimer;

/// How often a worker checks its timers.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// So many streams of HTTP/2 can fill the window of their connection with what the upstream has not taken yet.
pub(super) const STREAMS_IN_WINDOW: u32 = 16;

/// Which timeout has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeoutKind {
    /// No request came, or the connection is idle while the process drains.
    Idle,
    /// A request's head, or the handshake before it, did not come to its end.
    Head,
    /// The response's head did not come; who set that timeout.
    Response(SetBy),
    /// A body made no progress, or the client was too slow with one.
    StreamIdle,
    /// The client did not close its end of the connection.
    Linger,
}

/// The timeouts of one listener's connections, in ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionTimeouts {
    idle: u32,
    head: u32,
}

impl ConnectionTimeouts {
    /// How long connections may be idle, and heads may take.
    pub(super) fn new(idle: Duration, head: Duration) -> Self {
        Self { idle: ticks(idle), head: ticks(head) }
    }
}

/// Stores `waker` unless an equal one is stored already.
fn store(slot: &RefCell<Option<Waker>>, waker: &Waker) {
    let mut stored = slot.borrow_mut();
    if !stored.as_ref().is_some_and(|stored| stored.will_wake(waker)) {
        *stored = Some(waker.clone());
    }
}

fn wake(slot: &RefCell<Option<Waker>>) {
    slot.borrow().as_ref().inspect(|waker| waker.wake_by_ref());
}

/// A duration in ticks, rounded up.
fn ticks(duration: Duration) -> u32 {
    let ticks = duration.as_nanos().div_ceil(TICK.as_nanos());
    u32::try_from(ticks).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
