//! Replacement of the running process by another one: the state that all parts of the old process observe.
//!
//! Requests are decided in one process at a time. While the old process prepares, HTTP/2 connections end; then nothing
//! is decided until the new process has the counters; from then on the old one passes its connections on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::{Condvar, Mutex};

use crate::fd_channel::ConnectionSender;

/// Phase of a replacement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum ReplacementPhase {
    /// None has begun, or the last one has failed.
    #[default]
    Serving,
    /// HTTP/2 connections end, and new ones wait.
    Ending,
    /// No request is decided.
    Frozen,
    /// The new process serves.
    Replaced,
}

/// State of the replacement of this process.
#[derive(Debug, Default)]
pub struct Replacement {
    phase: AtomicU8,
    /// HTTP/2 connections on which further streams may still arrive.
    ending: AtomicUsize,
    /// Notified when there is none left.
    all_ended: (Mutex<()>, Condvar),
    /// Whether the process that this one has replaced still runs.
    has_predecessor: Mutex<bool>,
    predecessor_ended: Condvar,
    successor: ArcSwapOption<Successor>,
}

/// The process that replaces this one.
#[derive(Debug)]
pub struct Successor {
    pub sender: ConnectionSender,
    /// Names of its listeners.
    pub listeners: Box<[Box<str>]>,
}

impl Successor {
    /// Whether it has a listener with this name.
    pub fn has_listener(&self, name: &str) -> bool {
        self.listeners.iter().any(|known| **known == *name)
    }
}

/// An HTTP/2 connection on which further streams may still arrive.
#[derive(Debug)]
pub struct EndingConnection(Arc<Replacement>);

impl Replacement {
    /// Returns the phase.
    #[inline]
    pub fn phase(&self) -> ReplacementPhase {
        match self.phase.load(Ordering::Acquire) {
            0 => ReplacementPhase::Serving,
            1 => ReplacementPhase::Ending,
            2 => ReplacementPhase::Frozen,
            _ => ReplacementPhase::Replaced,
        }
    }

    /// Whether a replacement has begun.
    #[inline]
    pub fn has_begun(&self) -> bool {
        self.phase() != ReplacementPhase::Serving
    }

    /// Whether no request may be decided here.
    #[inline]
    pub fn is_frozen(&self) -> bool {
        self.phase() >= ReplacementPhase::Frozen
    }

    /// Changes the phase. The workers have to be told.
    pub fn set_phase(&self, phase: ReplacementPhase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// Sets the process to which connections go.
    pub fn set_successor(&self, successor: Option<Arc<Successor>>) {
        self.successor.store(successor);
    }

    /// Returns the process to which connections go.
    pub fn successor(&self) -> Option<Arc<Successor>> {
        self.successor.load_full()
    }

    /// Sets whether the process that this one has replaced still runs.
    pub fn set_predecessor(&self, is_running: bool) {
        *self.has_predecessor.lock() = is_running;
        self.predecessor_ended.notify_all();
    }

    /// Whether the process that this one has replaced still runs.
    pub fn has_predecessor(&self) -> bool {
        *self.has_predecessor.lock()
    }

    /// Blocks until the process that this one has replaced has ended.
    pub fn wait_for_predecessor(&self) {
        self.predecessor_ended.wait_while(&mut self.has_predecessor.lock(), |is_running| *is_running);
    }

    /// Counts an HTTP/2 connection that ends, until the result is dropped.
    pub fn connection_ends(self: &Arc<Self>) -> EndingConnection {
        self.ending.fetch_add(1, Ordering::Relaxed);
        EndingConnection(Arc::clone(self))
    }

    /// Blocks until no further streams may arrive on HTTP/2 connections, at most for this time.
    pub fn wait_for_endings(&self, timeout: Duration) {
        let (lock, all_ended) = &self.all_ended;
        all_ended.wait_while_for(&mut lock.lock(), |()| self.ending.load(Ordering::Relaxed) > 0, timeout);
    }
}

impl Drop for EndingConnection {
    fn drop(&mut self) {
        if self.0.ending.fetch_sub(1, Ordering::Relaxed) == 1 {
            let (lock, all_ended) = &self.0.all_ended;
            // A thread that waits has not looked yet, or waits already.
            drop(lock.lock());
            all_ended.notify_all();
        }
    }
}
