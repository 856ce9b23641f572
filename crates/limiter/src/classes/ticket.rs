//! The place of a request in a gate, and what a waiting request shares with its queue.

use std::task::{Context, Waker};

use parking_lot::Mutex;

/// Position of a class in its gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassIndex(pub u16);

/// Position of a queue in its class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueueIndex(pub(super) u16);

/// Class and queue of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct GatePlace {
    pub(super) class: ClassIndex,
    pub(super) queue: QueueIndex,
}

/// What a waiting request and its queue share.
#[derive(Debug)]
pub(super) struct SlotTicket {
    pub(super) place: GatePlace,
    /// Position in the order of arrival.
    pub(super) number: u64,
    progress: Mutex<WaitProgress>,
}

#[derive(Debug)]
enum WaitProgress {
    Waits(Option<Waker>),
    /// It is counted as in flight.
    Admitted(Option<Waker>),
}

impl Default for WaitProgress {
    fn default() -> Self {
        Self::Waits(None)
    }
}

impl SlotTicket {
    pub(super) fn new(place: GatePlace, number: u64) -> Self {
        Self { place, number, progress: Mutex::default() }
    }

    pub(super) fn set_admitted(&self) {
        let mut progress = self.progress.lock();
        if let WaitProgress::Waits(waker) = &mut *progress {
            *progress = WaitProgress::Admitted(waker.take());
        }
    }

    /// Wakes the task of a request that has been admitted.
    pub(super) fn wake(&self) {
        let waker = match &mut *self.progress.lock() {
            WaitProgress::Admitted(waker) => waker.take(),
            WaitProgress::Waits(_) => None,
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns whether the request is admitted; otherwise its task is woken when it is.
    pub(super) fn poll(&self, context: &Context<'_>) -> bool {
        match &mut *self.progress.lock() {
            WaitProgress::Admitted(_) => true,
            WaitProgress::Waits(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                false
            }
        }
    }
}
