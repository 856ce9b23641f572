//! Limiter of concurrent TLS handshakes per worker.
//!
//! A handshake takes more CPU time than hundreds of requests, and memory until it ends. Excess clients are queued
//! instead of disconnected, to avoid a reconnect storm; a queued client costs a socket only. A permit is acquired when
//! the client has begun its handshake. If others are queued, [`HandshakeLimiter::tick`] aborts the oldest handshakes
//! after about a second, so that slow clients cannot hold permits.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use tokio::sync::Notify;

/// Ticks after which a handshake may be aborted. It takes two round trips; this allows for ten slow ones.
const MIN_TICKS: u32 = 10;

/// Handshakes of one listener on one worker.
#[derive(Debug, Default)]
pub struct HandshakeLimiter {
    /// Handshakes in flight, the oldest first.
    in_flight: RefCell<VecDeque<Rc<ActiveHandshake>>>,
    max: Cell<usize>,
    waiting: Cell<usize>,
    freed: Notify,
}

/// A handshake in flight.
#[derive(Debug, Default)]
struct ActiveHandshake {
    ticks: Cell<u32>,
    is_aborted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// Permit for one handshake, released when dropped.
#[derive(Debug)]
pub struct HandshakePermit<'a> {
    limiter: &'a HandshakeLimiter,
    handshake: Rc<ActiveHandshake>,
}

/// The handshake was aborted in favour of a queued one.
#[derive(Debug)]
pub struct Aborted;

impl HandshakeLimiter {
    /// Waits until fewer than `max` handshakes are in flight; first come, first served.
    pub async fn acquire(&self, max: usize) -> HandshakePermit<'_> {
        self.max.set(max.max(1));
        if self.waiting.get() > 0 || self.is_full() {
            let _waiting = QueuedHandshake::start(self);
            self.freed.notified().await;
            while self.is_full() {
                self.freed.notified().await;
            }
        }
        let handshake = Rc::new(ActiveHandshake::default());
        self.in_flight.borrow_mut().push_back(Rc::clone(&handshake));
        HandshakePermit { limiter: self, handshake }
    }

    /// Advances the time by one tick of the coarse clock, and aborts overdue handshakes if others are queued.
    pub fn tick(&self) {
        let in_flight = self.in_flight.borrow();
        in_flight.iter().for_each(|handshake| handshake.ticks.set(handshake.ticks.get().saturating_add(1)));
        if self.waiting.get() == 0 {
            return;
        }
        // A reload may have raised the maximum.
        if in_flight.len() < self.max.get() {
            self.freed.notify_one();
        }
        let oldest: Vec<_> = in_flight
            .iter()
            .filter(|handshake| handshake.ticks.get() >= MIN_TICKS)
            .take(self.waiting.get())
            .map(Rc::clone)
            .collect();
        drop(in_flight);
        oldest.iter().for_each(|handshake| handshake.abort());
    }

    fn is_full(&self) -> bool {
        self.in_flight.borrow().len() >= self.max.get()
    }
}

impl HandshakePermit<'_> {
    /// Runs `work` unless the handshake is aborted.
    ///
    /// # Errors
    /// [`Aborted`] in favour of a queued handshake.
    pub async fn run<W: Future + Unpin>(&self, mut work: W) -> Result<W::Output, Aborted> {
        poll_fn(|cx| {
            if self.handshake.is_aborted.get() {
                return Poll::Ready(Err(Aborted));
            }
            let mut waker = self.handshake.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            drop(waker);
            Pin::new(&mut work).poll(cx).map(Ok)
        })
        .await
    }
}

impl ActiveHandshake {
    fn abort(&self) {
        self.is_aborted.set(true);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

impl Drop for HandshakePermit<'_> {
    fn drop(&mut self) {
        self.limiter.in_flight.borrow_mut().retain(|handshake| !Rc::ptr_eq(handshake, &self.handshake));
        if self.limiter.waiting.get() > 0 {
            self.limiter.freed.notify_one();
        }
    }
}

/// Counts a queued client until dropped.
struct QueuedHandshake<'a>(&'a HandshakeLimiter);

impl<'a> QueuedHandshake<'a> {
    fn start(limiter: &'a HandshakeLimiter) -> Self {
        limiter.waiting.set(limiter.waiting.get().saturating_add(1));
        Self(limiter)
    }
}

impl Drop for QueuedHandshake<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    /// Polls once; returns the output if it is ready.
    fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn handshakes_queue_first_come_first_served() {
        let limiter = HandshakeLimiter::default();
        let one = poll_once(pin!(limiter.acquire(1))).unwrap();
        let (mut second, mut third) = (pin!(limiter.acquire(1)), pin!(limiter.acquire(1)));
        assert!(poll_once(second.as_mut()).is_none() && poll_once(third.as_mut()).is_none());
        drop(one);
        assert!(poll_once(third.as_mut()).is_none(), "the third handshake is behind the second");
        let two = poll_once(second.as_mut()).unwrap();
        assert!(poll_once(third.as_mut()).is_none());
        drop(two);
        assert!(poll_once(third.as_mut()).is_some());
    }

    #[test]
    fn oldest_handshake_is_aborted_only_if_others_queue() {
        let limiter = HandshakeLimiter::default();
        let (old, young) =
            (poll_once(pin!(limiter.acquire(2))).unwrap(), poll_once(pin!(limiter.acquire(2))).unwrap());
        (0..MIN_TICKS * 3).for_each(|_| limiter.tick());
        let keeps = |permit: &HandshakePermit<'_>| {
            poll_once(pin!(permit.run(std::future::pending::<()>()))).is_none()
        };
        assert!(keeps(&old) && keeps(&young), "no handshake is queued");
        let mut next = pin!(limiter.acquire(2));
        assert!(poll_once(next.as_mut()).is_none());
        limiter.tick();
        assert!(!keeps(&old) && keeps(&young), "one handshake is aborted for one that waits");
        drop(old);
        assert!(poll_once(next.as_mut()).is_some());
    }

    #[test]
    fn cancelled_handshake_passes_its_turn_to_the_next() {
        let limiter = HandshakeLimiter::default();
        let one = poll_once(pin!(limiter.acquire(1))).unwrap();
        let mut third = pin!(limiter.acquire(1));
        {
            let mut second = pin!(limiter.acquire(1));
            assert!(poll_once(second.as_mut()).is_none() && poll_once(third.as_mut()).is_none());
            drop(one);
        }
        assert!(poll_once(third.as_mut()).is_some());
        assert_eq!(limiter.waiting.get(), 0);
    }
}
