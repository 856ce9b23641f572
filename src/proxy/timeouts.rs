//! Downstream timeouts: one timer per connection and per request, and the coarse clock that checks them.
//!
//! An operating-system timer per request would cost more than a rate limit decision. Instead, each timer records the
//! tick of the last progress, and one sweep per tick checks all timers of a worker. Every downstream timeout, the
//! response timeout and the drain of connections use this clock. They expire up to two ticks late and never early. Only
//! a response that is due within a second also has an operating-system timer.
//!
//! [`ConnectionTimer`] covers the time between requests: handshake, idle time, the head of a request, lingering close,
//! and an HTTP/2 connection as a whole. [`RequestTimer`] covers one request, over HTTP/1.1 or as an HTTP/2 stream, and
//! the tunnel that it may become.

mod coarse_clock;
mod connection;
mod linger;
mod min_rate;
mod request;
mod response_timeout;
mod streams;
mod ticks;
mod upload;

use std::cell::RefCell;
use std::task::Waker;
use std::time::Duration;

pub(super) use self::coarse_clock::CoarseClock;
pub(super) use self::connection::ConnectionTimer;
pub(super) use self::request::RequestTimer;
pub(super) use self::response_timeout::{SetBy, Timeout};
pub(super) use self::upload::UploadTimer;
use weir_limiter::timestamp::saturating_nanos;

/// Interval at which a worker checks its timers.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// Timeout that has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeoutKind {
    /// No request arrived, or the connection is idle during a drain.
    Idle,
    /// The head of a request, or the handshake before it, was not complete in time.
    Head,
    /// The head of the response did not arrive in time; with the party that set that timeout.
    Response(SetBy),
    /// A body made no progress, or the client was below the minimum rate.
    StreamIdle,
    /// The client did not close its side of the connection.
    Linger,
}

/// Timeouts of one listener's connections, in ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionTimeouts {
    idle: u32,
    head: u32,
}

impl ConnectionTimeouts {
    /// Creates the timeouts for idle connections and for heads of requests.
    pub(super) fn new(idle: Duration, head: Duration) -> Self {
        Self { idle: ticks(idle), head: ticks(head) }
    }
}

/// Stores `waker` unless an equivalent one is stored already.
fn store(slot: &RefCell<Option<Waker>>, waker: &Waker) {
    let mut stored = slot.borrow_mut();
    if !stored.as_ref().is_some_and(|stored| stored.will_wake(waker)) {
        *stored = Some(waker.clone());
    }
}

fn wake(slot: &RefCell<Option<Waker>>) {
    slot.borrow().as_ref().inspect(|waker| waker.wake_by_ref());
}

/// Converts a duration to ticks, rounded up.
fn ticks(duration: Duration) -> u32 {
    // Divided as 64 bits, because a division of 128 bits takes several times as long.
    let ticks = saturating_nanos(duration).div_ceil(saturating_nanos(TICK));
    u32::try_from(ticks).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
