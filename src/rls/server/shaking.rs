//! TLS handshakes under way on a worker: no more at once than the configuration says, for each of them takes memory and
//! time that calls would have.

use std::cell::Cell;

use tokio::sync::Notify;

/// Those of one worker.
#[derive(Debug, Default)]
pub(super) struct Shaking {
    now: Cell<usize>,
    freed: Notify,
}

/// One of them, until it is dropped.
pub(super) struct Place<'s>(&'s Shaking);

impl Shaking {
    /// Waits until there are fewer than `most`.
    pub(super) async fn take(&self, most: usize) -> Place<'_> {
        while self.now.get() >= most.max(1) {
            self.freed.notified().await;
        }
        self.now.set(self.now.get() + 1);
        Place(self)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.now.set(self.0.now.get().saturating_sub(1));
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn who_comes_when_all_places_are_taken_gets_the_next_that_is_free() {
        let all = Shaking::default();
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(first) = pin!(all.take(1)).poll(&mut cx) else { panic!("a place was free") };
        let (mut second, mut third) = (pin!(all.take(1)), pin!(all.take(1)));
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(third.as_mut().poll(&mut cx).is_pending());
        drop(first);
        assert!(third.as_mut().poll(&mut cx).is_pending(), "the second came before");
        let Poll::Ready(place) = second.as_mut().poll(&mut cx) else { panic!("it is free") };
        drop(place);
        assert!(third.as_mut().poll(&mut cx).is_ready());
    }
}
