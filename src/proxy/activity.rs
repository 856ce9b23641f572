//! What each connection is doing and since when, and the slow clock that ends what takes too long.
//!
//! A timer per request would cost more than the limiter's decision. Instead every connection notes the tick of
//! its last progress in a cell, and one sweep per tick looks at all of a worker's connections. Every timeout
//! downstream of us, the wait for an answer's head and the drain hang on this one clock, so they are late by
//! up to two ticks and never early. Only an answer that is due within a second has a timer of its own.

mod lingering;
mod pace;
mod response_due;
mod slow_clock;
mod uploading;

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use self::pace::Pace;
use self::response_due::ResponseDue;
pub use self::slow_clock::SlowClock;
pub use self::uploading::Uploading;
use super::deadline::{SetBy, Timeout};
use crate::upstream::Scarcity;

/// How often a worker looks at its connections.
pub const TICK: Duration = Duration::from_millis(100);
/// How long a draining worker waits for the next request on a connection that is idle: a client that keeps
/// a connection busy has one on its way, and is told `connection: close` with the answer.
const DRAIN_GRACE: u32 = 5;
/// So many streams of HTTP/2 can fill the window of their connection with what the upstream has not taken yet.
pub const STREAMS_IN_WINDOW: u32 = 16;
/// How long the rest of an unread request is read and thrown away, so that the answer is not lost to a reset: in all, without
/// anything that comes, and in all while the process drains. Many clients write a body to its end before they read.
const LINGER: u32 = 300;
const LINGER_IDLE: u32 = 50;
const LINGER_DRAINING: u32 = 10;
/// How long a client of HTTP/2 that was told to go may stay without a stream.
const PARTING: u32 = 10;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Waiting for a request.
    Idle,
    /// Reading a request's head.
    ReadingHead,
    /// Between a request's head and its answer's last byte.
    Exchanging,
    /// Closed for writing; the client may still be sending.
    Lingering,
    /// Carrying exchanges side by side, each with notes of its own.
    Multiplexing,
    /// The same, after the client has been told to go.
    Parting,
}

/// What has taken too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// The next request, or the connection has to go for the drain.
    Idle,
    /// The rest of a request's head.
    Head,
    /// The answer's head, by a timeout that this party set.
    Answer(SetBy),
    /// Any progress of a body.
    Stalled,
    /// The client's end of the connection.
    Linger,
}

/// The limits of one listener's connections, in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    idle: u32,
    head: u32,
}

impl Patience {
    /// How long connections may be idle, and heads may take.
    pub fn new(idle: Duration, head: Duration) -> Self {
        Self { idle: ticks(idle), head: ticks(head) }
    }
}

/// The notes of one connection, or of one of the streams that share a connection.
#[derive(Debug)]
pub struct Activity {
    clock: Rc<SlowClock>,
    /// Of a stream: the connection it is on.
    connection: Option<Rc<Self>>,
    /// Of a connection: its streams, and those whose upload waits for the upstream.
    streams: Cell<u32>,
    held_uploads: Cell<u32>,
    patience: Patience,
    doing: Cell<Doing>,
    since: Cell<u32>,
    /// Counts exchanges, so that the end of one's upload is not taken for another's.
    exchange: Cell<u32>,
    /// What an exchange still lacks: the answer's head, its last byte, the request's last byte, the flush.
    unanswered: Cell<bool>,
    answering: Cell<bool>,
    uploading: Cell<bool>,
    unflushed: Cell<bool>,
    response_due: ResponseDue,
    /// How long a body may stand still, while no response is due.
    stall: Cell<u32>,
    overdue: Cell<Option<Overdue>>,
    linger: Cell<bool>,
    /// When something of an unread request came last.
    discarded: Cell<u32>,
    pace: Pace,
    waker: RefCell<Option<Waker>>,
    /// Of a stream: its upload's, which may outlast the task that serves it.
    upload_waker: RefCell<Option<Waker>>,
}

impl Activity {
    fn new(clock: &Rc<SlowClock>, connection: Option<Rc<Self>>, patience: Patience) -> Self {
        Self {
            clock: Rc::clone(clock),
            connection,
            streams: Cell::new(0),
            held_uploads: Cell::new(0),
            patience,
            doing: Cell::new(Doing::Idle),
            since: Cell::new(clock.now()),
            exchange: Cell::new(0),
            unanswered: Cell::new(false),
            answering: Cell::new(false),
            uploading: Cell::new(false),
            unflushed: Cell::new(false),
            response_due: ResponseDue::default(),
            stall: Cell::new(u32::MAX),
            overdue: Cell::new(None),
            linger: Cell::new(false),
            discarded: Cell::new(0),
            pace: Pace::default(),
            waker: RefCell::default(),
            upload_waker: RefCell::default(),
        }
    }

    /// The connection carries exchanges side by side from now on.
    pub fn multiplex(&self) {
        self.turn_to(Doing::Multiplexing);
    }

    /// The notes of another of its streams, which lasts as long as they do.
    pub fn open_stream(self: &Rc<Self>) -> Rc<Self> {
        self.streams.set(self.streams.get().saturating_add(1));
        let stream = Rc::new(Self::new(&self.clock, Some(Rc::clone(self)), self.patience));
        self.clock.add(&stream);
        stream
    }

    /// Whether these are the notes of a stream.
    pub fn is_stream(&self) -> bool {
        self.connection.is_some()
    }

    /// The client has been told to open no more streams; once the last has ended it should close.
    pub fn part(&self) {
        if self.doing.get() == Doing::Multiplexing {
            self.turn_to(Doing::Parting);
        }
    }

    /// The connection is not ready for requests yet; it has as long to be as a request's head has.
    pub fn prepare(&self) {
        self.turn_to(Doing::ReadingHead);
    }

    /// For how long a head has been read, to a tick.
    pub fn reads_since(&self) -> Duration {
        match self.doing.get() {
            Doing::ReadingHead => TICK.saturating_mul(self.clock.now().saturating_sub(self.since.get())),
            _ => Duration::ZERO,
        }
    }

    /// Now it is.
    pub fn is_prepared(&self) {
        self.turn_to(Doing::Idle);
    }

    /// Something was read from the client.
    pub fn read(&self) {
        match self.doing.get() {
            Doing::Exchanging => self.since.set(self.clock.now()),
            Doing::Idle => self.begun(),
            // A head that comes byte by byte is one that takes long; a lingering client may go on as it likes.
            Doing::ReadingHead | Doing::Lingering => {}
            // Frames alone are no progress: those that are have streams that note it.
            Doing::Multiplexing | Doing::Parting => {}
        }
    }

    /// A part of a request is here, and was when the one before had ended.
    pub fn begun(&self) {
        if self.doing.get() == Doing::Idle {
            self.turn_to(Doing::ReadingHead);
        }
    }

    /// Something was written to the client.
    pub fn wrote(&self) {
        if self.doing.get() == Doing::Exchanging {
            self.since.set(self.clock.now());
        }
    }

    /// All that was to be written is with the kernel.
    pub fn flushed(&self) {
        if !self.answering.get() {
            self.unflushed.set(false);
            self.settle();
        }
    }

    /// A request's head is complete; its bodies may stand still for `stall`.
    pub fn begin_exchange(&self, stall: Duration) {
        self.exchange.set(self.exchange.get().wrapping_add(1));
        self.stall.set(ticks(stall));
        self.response_due.clear();
        self.unanswered.set(true);
        self.answering.set(true);
        self.uploading.set(false);
        // The rest of the request before has been read, or this one would not be here.
        self.linger.set(false);
        self.pace.end();
        self.turn_to(Doing::Exchanging);
    }

    /// The client has to keep pace while requests are `scarce`; `counts_upload` says whether the request's body has to.
    pub fn keep_pace(&self, scarce: Rc<Scarcity>, counts_upload: bool) {
        self.pace.begin(scarce, counts_upload);
    }

    /// From now on the client may take as long as it likes.
    pub fn has_own_pace(&self) {
        self.pace.end();
    }

    /// A part of the answer's body is handed over to the client, which has not taken it yet.
    pub fn hands_over(&self, octets: usize) {
        self.wrote();
        self.pace.hands_over(octets);
    }

    /// More of the answer's body is asked for: the client has taken what was handed over. Over HTTP/1.1 its connection
    /// has said so before.
    pub fn is_asked(&self) {
        self.pace.is_asked(self.is_stream());
    }

    /// The client has taken so many bytes of its connection.
    pub fn took(&self, octets: usize) {
        self.wrote();
        self.pace.moved(octets as u64);
    }

    /// From now on its bodies may stand still for `stall`.
    pub fn bodies_may_rest(&self, stall: Duration) {
        self.stall.set(ticks(stall));
    }

    /// The request is held back: nothing of it is due.
    pub fn hold(&self) {
        self.response_due.suspend();
    }

    /// A request that was held back goes on.
    pub fn go_on(&self) {
        self.response_due.clear();
        self.since.set(self.clock.now());
    }

    /// The request's last byte is out, or its client will not wait any longer: the answer's head, if it is still to
    /// come, is due in `timeout`, or when it was due before.
    pub fn await_answer(&self, timeout: Timeout) {
        if self.unanswered.get() {
            self.response_due.add(timeout, self.clock.now());
        }
    }

    /// Who set the timeout of the response's head that has expired, where a tick would be too coarse for it. Otherwise
    /// its timer wakes the task of `cx`.
    pub fn poll_response_overdue(&self, cx: &mut Context<'_>) -> Poll<SetBy> {
        self.response_due.poll_timer(cx)
    }

    /// The answer's head is here.
    pub fn answered(&self) {
        if matches!(self.overdue.get(), Some(Overdue::Answer(_) | Overdue::Stalled)) {
            self.overdue.set(None);
        }
        self.unanswered.set(false);
        self.response_due.clear();
        self.since.set(self.clock.now());
    }

    /// Whether the client may have been kept from sending by other streams of its connection.
    fn is_held_up(&self) -> bool {
        let others = self.connection.as_ref().map_or(0, |connection| connection.held_uploads.get());
        others >= STREAMS_IN_WINDOW
    }

    /// Whether the request's body has to keep pace. While the answer is on its way both sides may talk when they like.
    fn is_upload_due(&self) -> bool {
        (self.unanswered.get() || !self.answering.get()) && !self.is_held_up()
    }

    /// Whether a request waits for the head of its answer.
    pub fn is_unanswered(&self) -> bool {
        self.unanswered.get()
    }

    /// The answer's last byte has been handed over; the exchange lasts until it is flushed.
    pub fn end_exchange(&self) {
        self.answered();
        self.pace.is_asked(false);
        self.answering.set(false);
        self.unflushed.set(true);
    }

    /// The request has a body; it is on its way as long as the answer is kept.
    pub fn begin_upload(self: &Rc<Self>) -> Uploading {
        self.uploading.set(true);
        Uploading::new(self)
    }

    /// There is an unread rest of a request, so closing has to wait for the client.
    pub fn must_linger(&self) {
        self.linger.set(true);
    }

    /// The answer is out and the connection closed for writing; whether to wait for the client's end.
    pub fn begin_linger(self: &Rc<Self>, peer: IpAddr) -> bool {
        // A head that was never understood has a rest, too.
        if self.doing.get() == Doing::ReadingHead {
            self.linger.set(true);
        }
        if self.linger.get() && self.doing.get() != Doing::Lingering {
            self.turn_to(Doing::Lingering);
            self.discarded();
            self.clock.linger(peer, self);
        }
        self.linger.get()
    }

    /// Something of the unread request has come.
    pub fn discarded(&self) {
        self.discarded.set(self.clock.now());
    }

    /// Other connections need the place of this one, which lingers.
    fn cut_linger(&self) {
        self.overdue.set(Some(Overdue::Linger));
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// What has taken too long, if anything has.
    pub fn overdue(&self) -> Option<Overdue> {
        self.overdue.get()
    }

    /// Whom to wake when something becomes overdue.
    pub fn wake_by(&self, waker: &Waker) {
        keep(&self.waker, waker);
    }

    /// An exchange is over when its answer is flushed and its request read to the end.
    fn settle(&self) {
        let busy = self.answering.get() || self.uploading.get() || self.unflushed.get();
        if self.doing.get() == Doing::Exchanging && !busy {
            self.turn_to(Doing::Idle);
        }
    }

    fn turn_to(&self, doing: Doing) {
        self.overdue.set(None);
        self.doing.set(doing);
        self.since.set(self.clock.now());
    }

    /// Looks whether something is overdue and says so to whoever waits.
    fn sweep(&self) {
        if self.overdue.get().is_none() {
            self.overdue.set(self.find_overdue());
        }
        if self.overdue.get().is_some() {
            for waker in [&self.waker, &self.upload_waker] {
                waker.borrow().as_ref().inspect(|waker| waker.wake_by_ref());
            }
        }
    }

    fn find_overdue(&self) -> Option<Overdue> {
        let now = self.clock.now();
        let waited = now.saturating_sub(self.since.get());
        match self.doing.get() {
            Doing::Idle => {
                let draining = self
                    .clock
                    .draining_since()
                    .is_some_and(|start| now.saturating_sub(start.max(self.since.get())) >= DRAIN_GRACE);
                (draining || waited > self.patience.idle).then_some(Overdue::Idle)
            }
            Doing::ReadingHead => (waited > self.patience.head).then_some(Overdue::Head),
            Doing::Exchanging if self.pace.is_too_slow(self.is_upload_due()) => Some(Overdue::Stalled),
            Doing::Exchanging => match self.response_due.get() {
                Some(due) => due.expired(now).map(Overdue::Answer),
                None => (waited > self.stall.get()).then_some(Overdue::Stalled),
            },
            Doing::Lingering => {
                let most = if self.clock.is_draining() { LINGER_DRAINING } else { LINGER };
                let is_idle = now.saturating_sub(self.discarded.get()) > LINGER_IDLE;
                (waited > most || is_idle).then_some(Overdue::Linger)
            }
            // To be told at once of a drain costs no request: those under way are finished.
            Doing::Multiplexing => {
                let unused = self.streams.get() == 0 && waited > self.patience.idle;
                (unused || self.clock.is_draining()).then_some(Overdue::Idle)
            }
            Doing::Parting => (self.streams.get() == 0 && waited > PARTING).then_some(Overdue::Linger),
        }
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection {
            connection.streams.set(connection.streams.get().saturating_sub(1));
            connection.since.set(self.clock.now());
        }
    }
}

/// Keeps `waker` in its place.
fn keep(place: &RefCell<Option<Waker>>, waker: &Waker) {
    let mut kept = place.borrow_mut();
    if !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
        *kept = Some(waker.clone());
    }
}

/// A duration in ticks, rounded up.
fn ticks(duration: Duration) -> u32 {
    let ticks = duration.as_nanos().div_ceil(TICK.as_nanos());
    u32::try_from(ticks).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
