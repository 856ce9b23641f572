//! How many TLS handshakes of a listener a worker has under way at once.
//!
//! A handshake costs more of a worker than hundreds of requests, and memory until it has ended. Above the bound, who
//! comes next waits: to close instead would have everybody come back at once, as after a restart in front of us. Who
//! waits has not cost anything yet but a socket. For that a place must not be held by those who do nothing with it: it
//! is taken when the client has begun, and where others wait it is taken away again from whoever has had it for longest,
//! after a second.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use tokio::sync::Notify;

/// Ticks after which a place may be taken away: a handshake takes two round trips, and this is ten of a slow one.
const OURS_FOR: u32 = 10;

/// The places of one listener on one worker.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Handshakes {
    /// Those that are taken, the oldest first.
    taken: RefCell<VecDeque<Rc<Hold>>>,
    most: Cell<usize>,
    waiting: Cell<usize>,
    freed: Notify,
}

/// Who has a place.
#[derive(Debug, Default)]
struct Hold {
    ticks: Cell<u32>,
    is_lost: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A place, until this is dropped.
#[derive(Debug)]
pub(super) struct Place<'a> {
    all: &'a Handshakes,
    hold: Rc<Hold>,
}

/// The place was taken away for others.
#[derive(Debug)]
pub(super) struct Lost;

impl Handshakes {
    /// A place, as soon as one of so many is free.
    pub(super) async fn take(&self, most: usize) -> Place<'_> {
        self.most.set(most.max(1));
        if self.waiting.get() > 0 || self.is_full() {
            let _waiting = Waiting::begin(self);
            self.freed.notified().await;
            while self.is_full() {
                self.freed.notified().await;
            }
        }
        let hold = Rc::new(Hold::default());
        self.taken.borrow_mut().push_back(Rc::clone(&hold));
        Place { all: self, hold }
    }

    /// A tick of the slow clock has passed.
    pub(in crate::proxy) fn tick(&self) {
        let taken = self.taken.borrow();
        taken.iter().for_each(|hold| hold.ticks.set(hold.ticks.get().saturating_add(1)));
        if self.waiting.get() == 0 {
            return;
        }
        // A reload may have made more room.
        if taken.len() < self.most.get() {
            self.freed.notify_one();
        }
        let lost: Vec<_> = taken
            .iter()
            .filter(|hold| hold.ticks.get() >= OURS_FOR)
            .take(self.waiting.get())
            .map(Rc::clone)
            .collect();
        drop(taken);
        lost.iter().for_each(|hold| hold.lose());
    }

    fn is_full(&self) -> bool {
        self.taken.borrow().len() >= self.most.get()
    }
}

impl Place<'_> {
    /// What `work` comes to, unless the place is taken away before.
    pub(super) async fn keep<W: Future + Unpin>(&self, mut work: W) -> Result<W::Output, Lost> {
        poll_fn(|cx| {
            if self.hold.is_lost.get() {
                return Poll::Ready(Err(Lost));
            }
            let mut waker = self.hold.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            drop(waker);
            Pin::new(&mut work).poll(cx).map(Ok)
        })
        .await
    }
}

impl Hold {
    fn lose(&self) {
        self.is_lost.set(true);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.all.taken.borrow_mut().retain(|hold| !Rc::ptr_eq(hold, &self.hold));
        if self.all.waiting.get() > 0 {
            self.all.freed.notify_one();
        }
    }
}

/// Somebody who waits, until this is dropped.
struct Waiting<'a>(&'a Handshakes);

impl<'a> Waiting<'a> {
    fn begin(all: &'a Handshakes) -> Self {
        all.waiting.set(all.waiting.get().saturating_add(1));
        Self(all)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    /// Polls once; whether it is ready.
    fn once<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn who_comes_first_gets_the_next_place() {
        let all = Handshakes::default();
        let one = once(pin!(all.take(1))).unwrap();
        let (mut second, mut third) = (pin!(all.take(1)), pin!(all.take(1)));
        assert!(once(second.as_mut()).is_none() && once(third.as_mut()).is_none());
        drop(one);
        assert!(once(third.as_mut()).is_none(), "it is not its turn");
        let two = once(second.as_mut()).unwrap();
        assert!(once(third.as_mut()).is_none());
        drop(two);
        assert!(once(third.as_mut()).is_some());
    }

    #[test]
    fn a_place_is_taken_away_after_a_while_and_only_for_others() {
        let all = Handshakes::default();
        let (old, young) = (once(pin!(all.take(2))).unwrap(), once(pin!(all.take(2))).unwrap());
        (0..OURS_FOR * 3).for_each(|_| all.tick());
        let keeps = |place: &Place<'_>| once(pin!(place.keep(std::future::pending::<()>()))).is_none();
        assert!(keeps(&old) && keeps(&young), "nobody else wants one");
        let mut next = pin!(all.take(2));
        assert!(once(next.as_mut()).is_none());
        all.tick();
        assert!(!keeps(&old) && keeps(&young), "one is enough for one");
        drop(old);
        assert!(once(next.as_mut()).is_some());
    }

    #[test]
    fn whoever_stops_waiting_leaves_its_turn_to_the_next() {
        let all = Handshakes::default();
        let one = once(pin!(all.take(1))).unwrap();
        let mut third = pin!(all.take(1));
        {
            let mut second = pin!(all.take(1));
            assert!(once(second.as_mut()).is_none() && once(third.as_mut()).is_none());
            drop(one);
        }
        assert!(once(third.as_mut()).is_some());
        assert_eq!(all.waiting.get(), 0);
    }
}
