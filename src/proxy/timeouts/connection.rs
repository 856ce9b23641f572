//! The timer of one client connection.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use super::linger::{LingerTimer, Lingering};
use super::request::RequestTimer;
use super::streams::Streams;
use super::ticks::Ticks;
use super::{ConnectionTimeouts, TICK, TimeoutKind, store, wake};

/// How long a draining worker waits for the next request on an idle connection, in ticks: a client that keeps a connection
/// busy has one on its way, whose response then has `connection: close`.
const DRAIN_GRACE: u32 = 5;
/// How long a connection of HTTP/2 may stay without a stream after GOAWAY, in ticks.
const GOAWAY_GRACE: u32 = 10;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnState {
    /// Waiting for a request.
    Idle,
    /// Before HTTP: the PROXY protocol and TLS.
    Handshake,
    /// Reading a request's head.
    ReadingHead,
    /// HTTP/1.1: between a request's head and its response's last byte.
    Serving,
    /// Closed for writing; the client may still be sending.
    Lingering,
    /// HTTP/2: carrying streams, each with a timer of its own.
    Multiplexing,
    /// HTTP/2 after GOAWAY.
    Draining,
}

/// The timer of one connection.
#[derive(Debug)]
pub(in crate::proxy) struct ConnectionTimer {
    ticks: Rc<Ticks>,
    timeouts: ConnectionTimeouts,
    state: Cell<ConnState>,
    /// The tick at which that began.
    since: Cell<u32>,
    expired: Cell<Option<TimeoutKind>>,
    waker: RefCell<Option<Waker>>,
    /// HTTP/1.1: the timer of the current request, used again for the next. An idle connection has none yet.
    request: OnceCell<Rc<RequestTimer>>,
    /// HTTP/2: its streams.
    streams: OnceCell<Rc<Streams>>,
    linger: LingerTimer,
    /// The worker's connections that linger.
    lingering: Rc<Lingering>,
}

impl ConnectionTimer {
    /// The timer of a new connection, idle so far.
    pub(super) fn new(ticks: &Rc<Ticks>, lingering: &Rc<Lingering>, timeouts: ConnectionTimeouts) -> Self {
        Self {
            ticks: Rc::clone(ticks),
            timeouts,
            state: Cell::new(ConnState::Idle),
            since: Cell::new(ticks.now()),
            expired: Cell::new(None),
            waker: RefCell::default(),
            request: OnceCell::new(),
            streams: OnceCell::new(),
            linger: LingerTimer::default(),
            lingering: Rc::clone(lingering),
        }
    }

    /// What comes before HTTP has as long as a request's head.
    pub(in crate::proxy) fn handshake_started(&self) {
        self.turn_to(ConnState::Handshake);
    }

    /// The connection is ready for HTTP.
    pub(in crate::proxy) fn handshake_done(&self) {
        self.turn_to(ConnState::Idle);
    }

    /// For how long a head has been read, to a tick.
    pub(in crate::proxy) fn head_duration(&self) -> Duration {
        match self.state() {
            ConnState::ReadingHead => TICK.saturating_mul(self.ticks.since(self.since.get())),
            _ => Duration::ZERO,
        }
    }

    /// Something was read from the client.
    pub(in crate::proxy) fn bytes_read(&self) {
        match self.state() {
            ConnState::Serving => self.request.get().map_or((), |request| request.progress()),
            ConnState::Idle => self.head_started(),
            // A head that comes byte by byte takes long all the same; a lingering client may send as it likes.
            ConnState::Handshake | ConnState::ReadingHead | ConnState::Lingering => {}
            // Frames alone are no progress: the streams record theirs.
            ConnState::Multiplexing | ConnState::Draining => {}
        }
    }

    /// The client has taken so many bytes.
    pub(in crate::proxy) fn bytes_written(&self, count: usize) {
        if let Some(request) = self.request.get() {
            request.bytes_written(count);
        }
    }

    /// All bytes written are with the kernel.
    pub(in crate::proxy) fn flushed(&self) {
        if let Some(request) = self.request.get() {
            request.flushed();
        }
    }

    /// A part of a request is here, maybe read with the request before.
    pub(in crate::proxy) fn head_started(&self) {
        if self.state() == ConnState::Idle {
            self.turn_to(ConnState::ReadingHead);
        }
    }

    /// HTTP/1.1: a request's head is complete. The request's timer.
    pub(in crate::proxy) fn start_request(&self, stream_idle_timeout: Duration) -> Rc<RequestTimer> {
        let request = self.request.get_or_init(|| Rc::new(RequestTimer::new(&self.ticks, None)));
        request.start(stream_idle_timeout);
        self.linger.forget_head();
        self.turn_to(ConnState::Serving);
        Rc::clone(request)
    }

    /// The connection carries streams of HTTP/2 from now on.
    pub(in crate::proxy) fn multiplex(&self) {
        self.turn_to(ConnState::Multiplexing);
    }

    /// HTTP/2: the connection's streams.
    pub(super) fn streams(&self) -> &Rc<Streams> {
        self.streams.get_or_init(Rc::default)
    }

    /// The client has been told to open no more streams; it should close once the last has ended.
    pub(in crate::proxy) fn goaway_sent(&self) {
        if self.state.get() == ConnState::Multiplexing {
            self.turn_to(ConnState::Draining);
        }
    }

    /// The last response is out and the connection closed for writing; whether to wait for the client's end.
    pub(in crate::proxy) fn start_linger(self: &Rc<Self>, peer: IpAddr) -> bool {
        let state = self.state();
        if state == ConnState::ReadingHead {
            self.linger.head_is_unread();
        }
        let has_unread = self.linger.has_unread_head()
            || self.request.get().is_some_and(|request| request.has_unread_body());
        if has_unread && state != ConnState::Lingering {
            self.turn_to(ConnState::Lingering);
            self.discarded();
            self.lingering.add(peer, self);
        }
        has_unread
    }

    /// Some of an unread request has come and was discarded.
    pub(in crate::proxy) fn discarded(&self) {
        self.linger.discarded(self.ticks.now());
    }

    /// Other connections need the place of this one, which lingers.
    pub(super) fn cut_linger(&self) {
        self.expired.set(Some(TimeoutKind::Linger));
        wake(&self.waker);
    }

    pub(super) fn is_lingering(&self) -> bool {
        self.state.get() == ConnState::Lingering && self.expired.get().is_none()
    }

    /// The timeout that has expired, if any: the connection's, or that of the request it serves.
    pub(in crate::proxy) fn expired(&self) -> Option<TimeoutKind> {
        match self.state() {
            ConnState::Serving => self.request.get().and_then(|request| request.expired()),
            _ => self.expired.get(),
        }
    }

    /// HTTP/1.1: whether the response's head is still to come.
    pub(in crate::proxy) fn awaits_response(&self) -> bool {
        self.request.get().is_some_and(|request| request.awaits_response())
    }

    /// Registers the task to wake when a timeout expires.
    pub(in crate::proxy) fn wake_by(&self, waker: &Waker) {
        store(&self.waker, waker);
    }

    /// What the connection is doing. A request that has ended leaves it idle since then.
    fn state(&self) -> ConnState {
        let state = self.state.get();
        if state == ConnState::Serving
            && let Some(ended) = self.request.get().and_then(|request| request.ended())
        {
            self.turn_to(ConnState::Idle);
            self.since.set(ended);
            return ConnState::Idle;
        }
        state
    }

    fn turn_to(&self, state: ConnState) {
        self.expired.set(None);
        self.state.set(state);
        self.since.set(self.ticks.now());
    }

    /// Checks the timeouts; wakes the connection's task if one has expired.
    pub(super) fn sweep(&self) {
        let expired = match self.state() {
            ConnState::Serving => self.request.get().and_then(|request| request.sweep()),
            state => {
                if self.expired.get().is_none() {
                    self.expired.set(self.find_expired(state));
                }
                self.expired.get()
            }
        };
        if expired.is_some() {
            wake(&self.waker);
        }
    }

    fn find_expired(&self, state: ConnState) -> Option<TimeoutKind> {
        let (ticks, since) = (&self.ticks, self.since.get());
        let elapsed = ticks.since(since);
        // For how long there has been no stream.
        let unused = || self.streams().unused_since(since).map_or(0, |since| ticks.since(since));
        let (is_expired, kind) = match state {
            ConnState::Idle => {
                let drain = ticks.draining_since();
                let is_drained = drain.is_some_and(|start| ticks.since(start.max(since)) >= DRAIN_GRACE);
                (is_drained || elapsed > self.timeouts.idle, TimeoutKind::Idle)
            }
            ConnState::Handshake | ConnState::ReadingHead => {
                (elapsed > self.timeouts.head, TimeoutKind::Head)
            }
            ConnState::Serving => return None,
            ConnState::Lingering => {
                (self.linger.is_over(ticks.now(), elapsed, ticks.is_draining()), TimeoutKind::Linger)
            }
            // GOAWAY costs no request, those in flight are finished: so it is sent as soon as the drain begins.
            ConnState::Multiplexing => {
                (unused() > self.timeouts.idle || ticks.is_draining(), TimeoutKind::Idle)
            }
            ConnState::Draining => (unused() > GOAWAY_GRACE, TimeoutKind::Linger),
        };
        is_expired.then_some(kind)
    }
}
