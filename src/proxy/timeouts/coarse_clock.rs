//! Clock of all downstream timeouts: one sweep per tick over all timers of a worker.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::connection::ConnectionTimer;
use super::linger::LingeringConnections;
use super::request::RequestTimer;
use super::ticks::Ticks;
use super::{ConnectionTimeouts, TICK};
use weir_net::listener::lifetime::ListenerLifetime;

/// A worker's coarse clock.
#[derive(Debug, Default)]
pub(in crate::proxy) struct CoarseClock {
    ticks: Rc<Ticks>,
    connections: RefCell<Vec<Weak<ConnectionTimer>>>,
    /// HTTP/2 streams; HTTP/1.1 requests are checked with their connection.
    streams: RefCell<Vec<Weak<RequestTimer>>>,
    lingering: Rc<LingeringConnections>,
    /// Wakes the task that advances the clock, if it has stopped because there was no timer.
    restart: Notify,
}

impl CoarseClock {
    /// Creates the timer of a new, idle connection, which a client has opened on a listener with this lifetime.
    pub(in crate::proxy) fn add_connection(
        &self,
        timeouts: ConnectionTimeouts,
        listener: Option<Arc<ListenerLifetime>>,
    ) -> Rc<ConnectionTimer> {
        let connection = Rc::new(ConnectionTimer::new(&self.ticks, &self.lingering, timeouts, listener));
        let mut connections = self.connections.borrow_mut();
        if connections.is_empty() {
            self.restart.notify_one();
        }
        connections.push(Rc::downgrade(&connection));
        connection
    }

    /// Whether there is no timer, so that the clock may stop. A stream has a connection.
    pub(in crate::proxy) fn is_unused(&self) -> bool {
        self.connections.borrow().is_empty() && self.streams.borrow().is_empty()
    }

    /// Waits until there is a timer.
    pub(in crate::proxy) async fn until_used(&self) {
        while self.is_unused() {
            self.restart.notified().await;
        }
    }

    /// Creates the timer of an HTTP/2 stream whose head is complete.
    pub(in crate::proxy) fn add_stream(
        &self,
        connection: &ConnectionTimer,
        stream_idle_timeout: Duration,
    ) -> Rc<RequestTimer> {
        let streams = connection.streams();
        streams.opened();
        let stream = Rc::new(RequestTimer::new(&self.ticks, Some(Rc::clone(streams))));
        stream.start(stream_idle_timeout);
        self.streams.borrow_mut().push(Rc::downgrade(&stream));
        stream
    }

    /// Starts the drain: idle connections are closed from now on.
    pub(in crate::proxy) fn drain(&self) {
        self.ticks.drain();
    }

    /// Whether the drain has begun.
    pub(in crate::proxy) fn is_draining(&self) -> bool {
        self.ticks.is_draining()
    }

    /// Waits until all connections are closed; checks once per tick.
    pub(in crate::proxy) async fn until_all_closed(&self) {
        while self.open_count() > 0 {
            tokio::time::sleep(TICK).await;
        }
    }

    /// Wakes the task of every connection.
    pub(in crate::proxy) fn wake_all(&self) {
        self.connections.borrow().iter().filter_map(Weak::upgrade).for_each(|connection| connection.wake());
    }

    /// Advances the clock by one tick, and checks all timers.
    pub(in crate::proxy) fn tick(&self) {
        self.ticks.advance();
        let sweep = |stream: Rc<RequestTimer>| _ = stream.sweep();
        self.streams.borrow_mut().retain(|stream| stream.upgrade().map(sweep).is_some());
        let sweep = |connection: Rc<ConnectionTimer>| connection.sweep();
        self.connections.borrow_mut().retain(|connection| connection.upgrade().map(sweep).is_some());
    }

    /// Returns the number of open connections and streams.
    pub(super) fn open_count(&self) -> usize {
        let connections = self.connections.borrow();
        let streams = self.streams.borrow();
        let open = connections.iter().filter(|connection| connection.strong_count() > 0).count();
        open + streams.iter().filter(|stream| stream.strong_count() > 0).count()
    }
}
