//! What each connection is doing and since when, and the slow clock that ends what takes too long.
//!
//! A timer per request would cost more than the limiter's decision. Instead every connection notes the tick of
//! its last progress in a cell, and one sweep per tick looks at all of a worker's connections. Every timeout
//! downstream of us, the wait for an answer's head and the drain hang on this one clock, so they are late by
//! up to a tick and never early.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::task::Waker;
use std::time::Duration;

/// How often a worker looks at its connections.
pub const TICK: Duration = Duration::from_millis(100);
/// How long a draining worker waits for the next request on a connection that is idle: a client that keeps
/// a connection busy has one on its way, and is told `connection: close` with the answer.
const DRAIN_GRACE: u32 = 5;
/// How long the rest of an unread request is read and thrown away, so that the answer is not lost to a reset.
const LINGER: u32 = 10;

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
}

/// What has taken too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// The next request, or the connection has to go for the drain.
    Idle,
    /// The rest of a request's head.
    Head,
    /// The answer's head.
    Answer,
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

/// One connection's notes.
#[derive(Debug)]
pub struct Activity {
    clock: Rc<SlowClock>,
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
    /// When the answer's head is due, and how long a body may stand still, while those count.
    answer_due: Cell<Option<u32>>,
    stall: Cell<u32>,
    overdue: Cell<Option<Overdue>>,
    linger: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Activity {
    /// Something was read from the client.
    pub fn read(&self) {
        match self.doing.get() {
            Doing::Exchanging => self.since.set(self.clock.now.get()),
            Doing::Idle => self.turn_to(Doing::ReadingHead),
            // A head that comes byte by byte is one that takes long; a lingering client may go on as it likes.
            Doing::ReadingHead | Doing::Lingering => {}
        }
    }

    /// Something was written to the client.
    pub fn wrote(&self) {
        if self.doing.get() == Doing::Exchanging {
            self.since.set(self.clock.now.get());
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
        self.answer_due.set(None);
        self.unanswered.set(true);
        self.answering.set(true);
        self.uploading.set(false);
        // The rest of the request before has been read, or this one would not be here.
        self.linger.set(false);
        self.turn_to(Doing::Exchanging);
    }

    /// From now on its bodies may stand still for `stall`.
    pub fn bodies_may_rest(&self, stall: Duration) {
        self.stall.set(ticks(stall));
    }

    /// The request is held back: nothing of it is due.
    pub fn hold(&self) {
        self.answer_due.set(Some(u32::MAX));
    }

    /// A request that was held back goes on.
    pub fn go_on(&self) {
        self.answer_due.set(None);
        self.since.set(self.clock.now.get());
    }

    /// The request's last byte is out: the answer's head, if it is still to come, is due in `timeout`.
    pub fn await_answer(&self, timeout: Duration) {
        if self.unanswered.get() {
            self.answer_due.set(Some(self.clock.now.get().saturating_add(ticks(timeout))));
        }
    }

    /// The answer's head is here.
    pub fn answered(&self) {
        if matches!(self.overdue.get(), Some(Overdue::Answer | Overdue::Stalled)) {
            self.overdue.set(None);
        }
        self.unanswered.set(false);
        self.answer_due.set(None);
        self.since.set(self.clock.now.get());
    }

    /// Whether a request waits for the head of its answer.
    pub fn is_unanswered(&self) -> bool {
        self.unanswered.get()
    }

    /// The answer's last byte has been handed over; the exchange lasts until it is flushed.
    pub fn end_exchange(&self) {
        self.answered();
        self.answering.set(false);
        self.unflushed.set(true);
    }

    /// The request has a body; it is on its way as long as the answer is kept.
    pub fn begin_upload(self: &Rc<Self>) -> Uploading {
        self.uploading.set(true);
        Uploading { activity: Rc::clone(self), exchange: self.exchange.get() }
    }

    /// There is an unread rest of a request, so closing has to wait for the client.
    pub fn must_linger(&self) {
        self.linger.set(true);
    }

    /// The answer is out and the connection closed for writing; whether to wait for the client's end.
    pub fn begin_linger(&self) -> bool {
        // A head that was never understood has a rest, too.
        if self.doing.get() == Doing::ReadingHead {
            self.linger.set(true);
        }
        if self.linger.get() && self.doing.get() != Doing::Lingering {
            self.turn_to(Doing::Lingering);
        }
        self.linger.get()
    }

    /// What has taken too long, if anything has.
    pub fn overdue(&self) -> Option<Overdue> {
        self.overdue.get()
    }

    /// Whom to wake when something becomes overdue.
    pub fn wake_by(&self, waker: &Waker) {
        let mut kept = self.waker.borrow_mut();
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            *kept = Some(waker.clone());
        }
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
        self.since.set(self.clock.now.get());
    }

    /// Looks whether something is overdue and says so to whoever waits.
    fn sweep(&self) {
        if self.overdue.get().is_none() {
            self.overdue.set(self.find_overdue());
        }
        if self.overdue.get().is_some()
            && let Some(waker) = &*self.waker.borrow()
        {
            waker.wake_by_ref();
        }
    }

    fn find_overdue(&self) -> Option<Overdue> {
        let now = self.clock.now.get();
        let waited = now.saturating_sub(self.since.get());
        match self.doing.get() {
            Doing::Idle => {
                let draining = self
                    .clock
                    .draining_since
                    .get()
                    .is_some_and(|start| now.saturating_sub(start.max(self.since.get())) >= DRAIN_GRACE);
                (draining || waited > self.patience.idle).then_some(Overdue::Idle)
            }
            Doing::ReadingHead => (waited > self.patience.head).then_some(Overdue::Head),
            Doing::Exchanging => match self.answer_due.get() {
                Some(due) => (now > due).then_some(Overdue::Answer),
                None => (waited > self.stall.get()).then_some(Overdue::Stalled),
            },
            Doing::Lingering => (waited > LINGER).then_some(Overdue::Linger),
        }
    }
}

/// An upload on its way; it ends when this is dropped.
#[derive(Debug)]
pub struct Uploading {
    activity: Rc<Activity>,
    exchange: u32,
}

impl Uploading {
    /// The request's last byte has been read: nothing of it is left to linger for.
    pub fn is_whole(&self) {
        if self.is_current() {
            self.activity.linger.set(false);
        }
    }

    /// The request's last byte is out: the answer's head is due in `timeout`.
    pub fn await_answer(&self, timeout: Duration) {
        if self.is_current() {
            self.activity.await_answer(timeout);
        }
    }

    /// Another request may have begun on the connection before this one's last byte was asked for.
    fn is_current(&self) -> bool {
        self.exchange == self.activity.exchange.get()
    }
}

impl Drop for Uploading {
    fn drop(&mut self) {
        if self.is_current() {
            self.activity.uploading.set(false);
            self.activity.settle();
        }
    }
}

/// A worker's slow clock.
#[derive(Debug, Default)]
pub struct SlowClock {
    now: Cell<u32>,
    draining_since: Cell<Option<u32>>,
    connections: RefCell<Vec<Weak<Activity>>>,
}

impl SlowClock {
    /// Notes for a new connection, idle so far.
    pub fn watch(self: &Rc<Self>, patience: Patience) -> Rc<Activity> {
        let activity = Rc::new(Activity {
            clock: Rc::clone(self),
            patience,
            doing: Cell::new(Doing::Idle),
            since: Cell::new(self.now.get()),
            exchange: Cell::new(0),
            unanswered: Cell::new(false),
            answering: Cell::new(false),
            uploading: Cell::new(false),
            unflushed: Cell::new(false),
            answer_due: Cell::new(None),
            stall: Cell::new(u32::MAX),
            overdue: Cell::new(None),
            linger: Cell::new(false),
            waker: RefCell::default(),
        });
        self.connections.borrow_mut().push(Rc::downgrade(&activity));
        activity
    }

    /// From now on idle connections have to go.
    pub fn drain(&self) {
        self.draining_since.set(Some(self.now.get()));
    }

    /// Whether the drain has begun.
    pub fn is_draining(&self) -> bool {
        self.draining_since.get().is_some()
    }

    /// Answers once no connection is left; looks once per tick.
    pub async fn until_all_closed(&self) {
        while self.open() > 0 {
            tokio::time::sleep(TICK).await;
        }
    }

    /// A tick has passed.
    pub fn tick(&self) {
        self.now.set(self.now.get().saturating_add(1));
        self.connections.borrow_mut().retain(|connection| match connection.upgrade() {
            Some(activity) => {
                activity.sweep();
                true
            }
            None => false,
        });
    }

    /// Connections that are still open.
    pub fn open(&self) -> usize {
        self.connections.borrow().iter().filter(|connection| connection.strong_count() > 0).count()
    }
}

/// A duration in ticks, rounded up.
fn ticks(duration: Duration) -> u32 {
    let ticks = duration.as_nanos().div_ceil(TICK.as_nanos());
    u32::try_from(ticks).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock_and_connection() -> (Rc<SlowClock>, Rc<Activity>) {
        let clock = Rc::new(SlowClock::default());
        let patience = Patience::new(Duration::from_secs(2), Duration::from_secs(1));
        let activity = clock.watch(patience);
        (clock, activity)
    }

    fn pass(clock: &SlowClock, time: Duration) {
        for _ in 0..ticks(time) {
            clock.tick();
        }
    }

    #[test]
    fn nothing_is_ended_early() {
        let (clock, connection) = clock_and_connection();
        pass(&clock, Duration::from_secs(2));
        assert_eq!(connection.overdue(), None);
        clock.tick();
        assert_eq!(connection.overdue(), Some(Overdue::Idle));
    }

    #[test]
    fn a_head_has_its_time_however_it_drips() {
        let (clock, connection) = clock_and_connection();
        for _ in 0..11 {
            connection.read();
            clock.tick();
        }
        assert_eq!(connection.overdue(), Some(Overdue::Head));
    }

    #[test]
    fn a_body_may_take_long_as_long_as_it_moves() {
        let (clock, connection) = clock_and_connection();
        connection.begin_exchange(Duration::from_millis(500));
        for _ in 0..100 {
            pass(&clock, Duration::from_millis(400));
            connection.read();
        }
        assert_eq!(connection.overdue(), None);
        pass(&clock, Duration::from_millis(600));
        assert_eq!(connection.overdue(), Some(Overdue::Stalled));
    }

    #[test]
    fn only_the_answer_is_waited_for_once_the_request_is_out() {
        let (clock, connection) = clock_and_connection();
        connection.begin_exchange(Duration::from_millis(500));
        connection.await_answer(Duration::from_secs(3));
        pass(&clock, Duration::from_secs(3));
        assert_eq!(connection.overdue(), None);
        clock.tick();
        assert_eq!(connection.overdue(), Some(Overdue::Answer));
    }

    #[test]
    fn an_exchange_lasts_until_it_is_answered_flushed_and_read() {
        let (clock, connection) = clock_and_connection();
        connection.begin_exchange(Duration::from_secs(60));
        let upload = connection.begin_upload();
        connection.end_exchange();
        connection.flushed();
        connection.read();
        pass(&clock, Duration::from_secs(5));
        assert_eq!(connection.overdue(), None, "neither idle nor reading a head");
        drop(upload);
        pass(&clock, Duration::from_secs(2));
        assert_eq!(connection.overdue(), None);
        clock.tick();
        assert_eq!(connection.overdue(), Some(Overdue::Idle));
    }

    #[test]
    fn an_answer_that_the_client_does_not_take_is_a_stall() {
        let (clock, connection) = clock_and_connection();
        connection.begin_exchange(Duration::from_millis(500));
        connection.end_exchange();
        pass(&clock, Duration::from_millis(600));
        assert_eq!(connection.overdue(), Some(Overdue::Stalled));
        assert!(!connection.is_unanswered());
    }

    #[test]
    fn nothing_outlives_its_exchange() {
        let (clock, connection) = clock_and_connection();
        connection.begin_exchange(Duration::from_secs(60));
        connection.await_answer(Duration::from_millis(100));
        pass(&clock, Duration::from_millis(300));
        assert_eq!(connection.overdue(), Some(Overdue::Answer));
        let late = connection.begin_upload();
        connection.must_linger();
        connection.begin_exchange(Duration::from_secs(60));
        assert_eq!(connection.overdue(), None);
        late.await_answer(Duration::ZERO);
        drop(late);
        pass(&clock, Duration::from_secs(1));
        assert_eq!(connection.overdue(), None, "the upload before has no say in this exchange");
        assert!(!connection.begin_linger());
    }

    #[test]
    fn lingering_ends_even_where_the_connection_had_to_go_already() {
        let (clock, connection) = clock_and_connection();
        clock.drain();
        pass(&clock, Duration::from_millis(600));
        assert_eq!(connection.overdue(), Some(Overdue::Idle));
        connection.must_linger();
        assert!(connection.begin_linger());
        pass(&clock, Duration::from_millis(1100));
        assert_eq!(connection.overdue(), Some(Overdue::Linger));
    }

    #[test]
    fn a_drain_gives_idle_connections_a_moment() {
        let (clock, connection) = clock_and_connection();
        clock.drain();
        pass(&clock, Duration::from_millis(400));
        assert_eq!(connection.overdue(), None);
        clock.tick();
        assert_eq!(connection.overdue(), Some(Overdue::Idle));
    }

    #[test]
    fn closed_connections_are_forgotten() {
        let (clock, connection) = clock_and_connection();
        assert_eq!(clock.open(), 1);
        drop(connection);
        clock.tick();
        assert_eq!(clock.open(), 0);
    }
}
