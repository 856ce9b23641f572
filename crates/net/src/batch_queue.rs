//! A queue to a thread that takes what has gathered at once.
//!
//! The thread wakes at the first item, waits until a batch is full or old enough, and takes it. So at high rates an item
//! costs no wake-up, and without items nothing wakes. The items themselves and the bound on them are the user's.

use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// What is queued.
pub trait Gathering {
    /// Whether there is nothing to take.
    fn is_empty(&self) -> bool;
    /// Whether the thread takes a batch without waiting for more.
    fn is_full(&self) -> bool;
    /// Records that the thread is done with the batch that it took last.
    fn end_batch(&mut self) {}
}

/// The queue, shared by the thread and those that add to it.
#[derive(Debug)]
pub struct BatchQueue<G> {
    state: Mutex<State<G>>,
    /// Wakes the thread, and at its end those that wait for that.
    changed: Condvar,
    /// Maximum time for which an item waits for further items of its batch.
    interval: Duration,
}

#[derive(Debug)]
struct State<G> {
    items: G,
    /// No more items are accepted.
    is_closed: bool,
    /// The thread has taken everything and is done with it.
    has_ended: bool,
}

impl<G: Gathering + Default> BatchQueue<G> {
    /// Returns an empty queue.
    pub fn new(interval: Duration) -> Self {
        let state = State { items: G::default(), is_closed: false, has_ended: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), interval }
    }

    /// Adds with `add`, which returns whether there was room. Returns `false` if not, or if the queue is closed.
    pub fn add(&self, add: impl FnOnce(&mut G) -> bool) -> bool {
        let mut state = self.state.lock();
        let (was_empty, was_full) = (state.items.is_empty(), state.items.is_full());
        if state.is_closed || !add(&mut state.items) {
            return false;
        }
        let wakes = was_empty || (!was_full && state.items.is_full());
        drop(state);
        if wakes {
            self.changed.notify_all();
        }
        true
    }

    /// Ends the batch that was taken last, waits for another and takes it with `take`. At the end, there may be nothing
    /// to take.
    pub fn next<T>(&self, take: impl FnOnce(&mut G) -> T) -> T {
        let mut state = self.state.lock();
        state.items.end_batch();
        self.changed.wait_while(&mut state, |state| state.items.is_empty() && !state.is_closed);
        let is_gathering = |state: &mut State<G>| !state.items.is_full() && !state.is_closed;
        self.changed.wait_while_for(&mut state, is_gathering, self.interval);
        take(&mut state.items)
    }

    /// Records that the thread has ended.
    pub fn ended(&self) {
        self.state.lock().has_ended = true;
        self.changed.notify_all();
    }
}

impl<G> BatchQueue<G> {
    /// Whether no more items are accepted.
    pub fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Accepts no more items. The thread takes those that are queued.
    pub fn close(&self) {
        drop(self.locked_and_closed());
    }

    /// Accepts no more items, and waits until the thread has ended. Returns whether it did so within `timeout`.
    pub fn finish(&self, timeout: Duration) -> bool {
        let mut state = self.locked_and_closed();
        !self.changed.wait_while_for(&mut state, |state| !state.has_ended, timeout).timed_out()
    }

    fn locked_and_closed(&self) -> MutexGuard<'_, State<G>> {
        let mut state = self.state.lock();
        state.is_closed = true;
        self.changed.notify_all();
        state
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    /// Longer than any test takes.
    const FOREVER: Duration = Duration::from_secs(3600);

    #[derive(Debug, Default)]
    struct Numbers {
        queued: Vec<u8>,
        in_progress: usize,
    }

    impl Gathering for Numbers {
        fn is_empty(&self) -> bool {
            self.queued.is_empty()
        }

        fn is_full(&self) -> bool {
            self.queued.len() >= 2
        }

        fn end_batch(&mut self) {
            self.in_progress = 0;
        }
    }

    fn add(queue: &BatchQueue<Numbers>, number: u8) -> bool {
        queue.add(|numbers| {
            let has_room = numbers.queued.len() + numbers.in_progress < 3;
            numbers.queued.extend(has_room.then_some(number));
            has_room
        })
    }

    fn take(queue: &BatchQueue<Numbers>) -> Vec<u8> {
        queue.next(|numbers| {
            numbers.in_progress = numbers.queued.len();
            std::mem::take(&mut numbers.queued)
        })
    }

    #[test]
    fn full_batch_and_the_end_do_not_wait_for_more() {
        let queue = Arc::new(BatchQueue::new(FOREVER));
        let of_thread = Arc::clone(&queue);
        let taking = thread::spawn(move || {
            let taken = [take(&of_thread), take(&of_thread), take(&of_thread)];
            of_thread.ended();
            taken
        });
        assert!(add(&queue, 1) && add(&queue, 2));
        while !queue.state.lock().items.is_empty() {
            thread::yield_now();
        }
        assert!(add(&queue, 3));
        assert!(queue.finish(FOREVER));
        assert_eq!(taking.join().unwrap(), [vec![1, 2], vec![3], vec![]]);
    }

    #[test]
    fn batch_is_taken_when_it_is_old_enough() {
        let queue = BatchQueue::new(Duration::ZERO);
        assert!(add(&queue, 1));
        assert_eq!(take(&queue), [1]);
    }

    #[test]
    fn batch_is_in_progress_until_the_next_is_awaited() {
        let queue = Arc::new(BatchQueue::new(FOREVER));
        assert!(add(&queue, 1) && add(&queue, 2));
        assert_eq!(take(&queue), [1, 2]);
        assert!(add(&queue, 3) && !add(&queue, 4));
        let of_thread = Arc::clone(&queue);
        let taking = thread::spawn(move || take(&of_thread));
        while !add(&queue, 5) {
            thread::yield_now();
        }
        assert_eq!(taking.join().unwrap(), [3, 5]);
    }

    #[test]
    fn nothing_is_added_without_room_or_after_the_end() {
        let queue = BatchQueue::new(FOREVER);
        assert!(add(&queue, 1) && add(&queue, 2) && add(&queue, 3));
        assert!(!add(&queue, 4));
        assert_eq!(take(&queue), [1, 2, 3]);
        queue.close();
        assert!(!add(&queue, 5));
        assert!(take(&queue).is_empty());
        assert!(!queue.finish(Duration::ZERO), "nothing has ended");
    }
}
