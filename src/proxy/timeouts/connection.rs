//! Timer of one client connection.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use tokio::task::AbortHandle;

use super::linger::{LingerTimer, LingeringConnections};
use super::request::RequestTimer;
use super::streams::StreamTracker;
use super::ticks::Ticks;
use super::{ConnectionTimeouts, TICK, TimeoutKind, store, wake};
use crate::proxy::awaited::AwaitedClient;
use weir_net::listener::lifetime::ListenerLifetime;

/// Time in ticks for which a draining worker waits for the next request on an idle connection. A busy client has one in
/// transit, and its response then carries `connection: close`.
const DRAIN_GRACE: u32 = 5;
/// Maximum time in ticks for which an HTTP/2 connection may stay without a stream after GOAWAY.
const GOAWAY_GRACE: u32 = 10;
/// Time in ticks without a request after which a connection is quiet.
const QUIET: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnState {
    /// Waiting for a request.
    Idle,
    /// Before HTTP: the PROXY protocol and TLS.
    Handshake,
    /// Reading the head of a request.
    ReadingHead,
    /// HTTP/1.1: between the head of a request and the last byte of its response.
    Serving,
    /// Closed for writing; the client may still be sending.
    Lingering,
    /// HTTP/2: carrying streams, each with its own timer.
    Multiplexing,
    /// HTTP/2 after GOAWAY.
    Draining,
}

#[derive(Debug)]
pub(in crate::proxy) struct ConnectionTimer {
    ticks: Rc<Ticks>,
    timeouts: ConnectionTimeouts,
    state: Cell<ConnState>,
    /// The tick at which the state began.
    since: Cell<u32>,
    expired: Cell<Option<TimeoutKind>>,
    waker: RefCell<Option<Waker>>,
    /// HTTP/1.1: timer of the current request, reused for the next. Created by the first request.
    request: OnceCell<Rc<RequestTimer>>,
    /// HTTP/2: the streams of the connection.
    streams: OnceCell<Rc<StreamTracker>>,
    linger: LingerTimer,
    /// The worker's lingering connections.
    lingering: Rc<LingeringConnections>,
    /// Lifetime of the listener; `None` if no client has opened the connection.
    listener: Option<Arc<ListenerLifetime>>,
    /// The tick at which the listener's drain was noticed.
    listener_drains_since: Cell<Option<u32>>,
    /// Ends the connection with its listener.
    abort: OnceCell<AbortHandle>,
}

impl ConnectionTimer {
    /// Creates the timer of a new, idle connection.
    pub(super) fn new(
        ticks: &Rc<Ticks>,
        lingering: &Rc<LingeringConnections>,
        timeouts: ConnectionTimeouts,
        listener: Option<Arc<ListenerLifetime>>,
    ) -> Self {
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
            listener,
            listener_drains_since: Cell::new(None),
            abort: OnceCell::new(),
        }
    }

    /// Has the task that serves the connection aborted when the drain of its listener is over.
    pub(in crate::proxy) fn abort_with_listener(&self, task: AbortHandle) {
        let _ = self.abort.set(task);
    }

    /// Whether the connection is to be closed, because its worker or its listener drains.
    pub(in crate::proxy) fn is_draining(&self) -> bool {
        self.ticks.is_draining() || self.listener.as_ref().is_some_and(|listener| listener.is_draining())
    }

    /// Starts the setup before HTTP, which has the same timeout as the head of a request.
    pub(in crate::proxy) fn handshake_started(&self) {
        self.set_state(ConnState::Handshake);
    }

    /// Ends the setup before HTTP.
    pub(in crate::proxy) fn handshake_done(&self) {
        self.set_state(ConnState::Idle);
    }

    /// Returns for how long the current head has been read, with the resolution of a tick.
    pub(in crate::proxy) fn head_duration(&self) -> Duration {
        match self.state() {
            ConnState::ReadingHead => TICK.saturating_mul(self.ticks.since(self.since.get())),
            _ => Duration::ZERO,
        }
    }

    /// Records that bytes were read from the client.
    pub(in crate::proxy) fn bytes_read(&self) {
        match self.state() {
            ConnState::Serving => self.request.get().map_or((), |request| request.record_progress()),
            ConnState::Idle => self.head_started(),
            // Bytes do not extend the timeout of a head, nor of a handshake. Lingering has its own limits.
            ConnState::Handshake | ConnState::ReadingHead | ConnState::Lingering => {}
            // HTTP/2 frames as such are no progress; each stream records its own.
            ConnState::Multiplexing | ConnState::Draining => {}
        }
    }

    /// Records that the client has taken `count` bytes.
    pub(in crate::proxy) fn bytes_written(&self, count: usize) {
        if let Some(request) = self.request.get() {
            request.bytes_written(count);
        }
    }

    /// Records that all written bytes have been passed to the kernel.
    pub(in crate::proxy) fn flushed(&self) {
        if let Some(request) = self.request.get() {
            request.flushed();
        }
    }

    /// Records that the head of a request has started, which may have been read with the previous request.
    pub(in crate::proxy) fn head_started(&self) {
        if self.state() == ConnState::Idle {
            self.set_state(ConnState::ReadingHead);
        }
    }

    /// HTTP/1.1: starts a request whose head is complete, and returns its timer.
    pub(in crate::proxy) fn start_request(&self, stream_idle_timeout: Duration) -> Rc<RequestTimer> {
        let request = self.request.get_or_init(|| Rc::new(RequestTimer::new(&self.ticks, None)));
        request.start(stream_idle_timeout);
        self.linger.forget_head();
        self.set_state(ConnState::Serving);
        Rc::clone(request)
    }

    /// Marks the connection as HTTP/2. Its preface and settings are incomplete since its first byte.
    pub(in crate::proxy) fn multiplex(&self) {
        self.streams().receiving(Some(0), self.since.get());
        self.set_state(ConnState::Multiplexing);
    }

    /// HTTP/2: records the number of the header section or frame that the client has begun and not completed.
    pub(in crate::proxy) fn receiving(&self, incomplete: Option<u64>) {
        self.streams().receiving(incomplete, self.ticks.now());
    }

    /// HTTP/2: returns the state that the connection's streams share.
    pub(super) fn streams(&self) -> &Rc<StreamTracker> {
        self.streams.get_or_init(Rc::default)
    }

    /// Records that GOAWAY was sent; the client should close the connection after its last stream.
    pub(in crate::proxy) fn goaway_sent(&self) {
        if self.state.get() == ConnState::Multiplexing {
            self.set_state(ConnState::Draining);
        }
    }

    /// Called once the last response is sent and the connection closed for writing. Returns whether to wait for the
    /// client to close.
    pub(in crate::proxy) fn start_linger(self: &Rc<Self>, peer: IpAddr) -> bool {
        let state = self.state();
        if state == ConnState::ReadingHead {
            self.linger.head_is_unread();
        }
        let has_unread = self.linger.has_unread_head()
            || self.request.get().is_some_and(|request| request.has_unread_body());
        if has_unread && state != ConnState::Lingering {
            self.set_state(ConnState::Lingering);
            self.discarded();
            self.lingering.add(peer, self);
        }
        has_unread
    }

    /// Marks what the client sends after its last request as unread.
    pub(in crate::proxy) fn must_linger(&self) {
        if let Some(request) = self.request.get() {
            request.must_linger();
        }
    }

    /// Records that bytes of an unread request were discarded.
    pub(in crate::proxy) fn discarded(&self) {
        self.linger.discarded(self.ticks.now());
    }

    /// Ends lingering early to make room for other connections.
    pub(super) fn cut_linger(&self) {
        self.expired.set(Some(TimeoutKind::Linger));
        wake(&self.waker);
    }

    pub(super) fn is_lingering(&self) -> bool {
        self.state.get() == ConnState::Lingering && self.expired.get().is_none()
    }

    /// Returns the timeout that has expired, if any: of the connection, or of the request that it serves.
    pub(in crate::proxy) fn expired(&self) -> Option<TimeoutKind> {
        match self.state() {
            ConnState::Serving => self.request.get().and_then(|request| request.expired()),
            _ => self.expired.get(),
        }
    }

    /// HTTP/1.1: whether there has been no request for a second. The connection's task is woken when that begins.
    pub(in crate::proxy) fn is_quiet(&self) -> bool {
        self.state() == ConnState::Idle && self.ticks.since(self.since.get()) >= QUIET
    }

    /// HTTP/1.1: whether the head of the response has not arrived yet.
    pub(in crate::proxy) fn awaits_response(&self) -> bool {
        self.request.get().is_some_and(|request| request.awaits_response())
    }

    /// HTTP/1.1: returns the client if the upstream has the request, and the response that it owes states the cost.
    pub(in crate::proxy) fn awaits_cost(&self) -> Option<AwaitedClient> {
        self.request.get().and_then(|request| request.awaits_cost())
    }

    /// HTTP/1.1: whether the request is held before it is forwarded.
    pub(in crate::proxy) fn holds_request(&self) -> bool {
        self.request.get().is_some_and(|request| request.is_paused())
    }

    /// Registers the task to wake when a timeout expires.
    pub(in crate::proxy) fn register_waker(&self, waker: &Waker) {
        store(&self.waker, waker);
    }

    /// Wakes the connection's task.
    pub(super) fn wake(&self) {
        wake(&self.waker);
    }

    /// Returns the state. After a request has ended, the connection has been idle since then.
    fn state(&self) -> ConnState {
        let state = self.state.get();
        if state == ConnState::Serving
            && let Some(ended) = self.request.get().and_then(|request| request.ended())
        {
            self.set_state(ConnState::Idle);
            self.since.set(ended);
            return ConnState::Idle;
        }
        state
    }

    fn set_state(&self, state: ConnState) {
        self.expired.set(None);
        self.state.set(state);
        self.since.set(self.ticks.now());
    }

    /// Checks the timeouts, and wakes the connection's task if one has expired.
    pub(super) fn sweep(&self) {
        if let Some(listener) = self.listener.as_ref().filter(|listener| listener.is_draining()) {
            self.sweep_draining(listener);
        }
        let expired = match self.state() {
            ConnState::Serving => self.request.get().and_then(|request| request.sweep()),
            state => {
                if self.expired.get().is_none() {
                    self.expired.set(self.find_expired(state));
                }
                self.expired.get()
            }
        };
        // Exactly one tick, so that a connection stays quiet without being woken again.
        let becomes_quiet =
            self.state.get() == ConnState::Idle && self.ticks.since(self.since.get()) == QUIET;
        if expired.is_some() || becomes_quiet {
            wake(&self.waker);
        }
    }

    /// Notices the drain of the listener, and ends the connection after it.
    fn sweep_draining(&self, listener: &ListenerLifetime) {
        if self.listener_drains_since.get().is_none() {
            self.listener_drains_since.set(Some(self.ticks.now()));
        }
        if let Some(task) = self.abort.get().filter(|_| listener.is_terminated()) {
            task.abort();
        }
    }

    /// Returns the tick at which the drain of the worker or of the listener began, if one has.
    fn draining_since(&self) -> Option<u32> {
        self.ticks.draining_since().or_else(|| self.listener_drains_since.get())
    }

    fn find_expired(&self, state: ConnState) -> Option<TimeoutKind> {
        let (ticks, since) = (&self.ticks, self.since.get());
        let elapsed = ticks.since(since);
        // Ticks for which there has been no stream.
        let unused = || self.streams().unused_since(since).map_or(0, |since| ticks.since(since));
        let is_multiplexed = matches!(state, ConnState::Multiplexing | ConnState::Draining);
        let incomplete =
            self.streams.get().filter(|_| is_multiplexed).and_then(|streams| streams.incomplete_since());
        if incomplete.is_some_and(|since| ticks.since(since) > self.timeouts.head) {
            return Some(TimeoutKind::Head);
        }
        let (is_expired, kind) = match state {
            ConnState::Idle => {
                let drain = self.draining_since();
                let is_drained = drain.is_some_and(|start| ticks.since(start.max(since)) >= DRAIN_GRACE);
                (is_drained || elapsed > self.timeouts.idle, TimeoutKind::Idle)
            }
            ConnState::Handshake | ConnState::ReadingHead => {
                (elapsed > self.timeouts.head, TimeoutKind::Head)
            }
            ConnState::Serving => return None,
            ConnState::Lingering => (
                self.linger.is_over(ticks.now(), elapsed, self.draining_since().is_some()),
                TimeoutKind::Linger,
            ),
            // GOAWAY costs no request, because streams in flight are completed. It is therefore sent as soon as the
            // drain begins.
            ConnState::Multiplexing => {
                (unused() > self.timeouts.idle || self.draining_since().is_some(), TimeoutKind::Idle)
            }
            ConnState::Draining => (unused() > GOAWAY_GRACE, TimeoutKind::Linger),
        };
        is_expired.then_some(kind)
    }
}
