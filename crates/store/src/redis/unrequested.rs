//! Bound of what a server sends without a call that waits for it.
//!
//! The `redis` library reads and drops such replies as fast as they arrive, which would occupy a thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use weir_net::transport::ReadBound;

/// Maximum bytes that a server sends between two calls. Replies to calls that were dropped and messages of a Sentinel are
/// far smaller.
const MAX_UNREQUESTED: usize = 64 * 1024;

/// Calls on one connection that wait for a reply.
#[derive(Clone, Debug, Default)]
pub(super) struct OutstandingCalls(Arc<CallCount>);

#[derive(Debug, Default)]
struct CallCount {
    outstanding: AtomicUsize,
    /// Whether the server has exceeded [`MAX_UNREQUESTED`].
    is_exceeded: AtomicBool,
}

/// A call that waits for a reply, until it is dropped.
#[derive(Debug)]
pub(super) struct OutstandingCall<'c>(&'c CallCount);

impl OutstandingCalls {
    /// Counts a call until the result is dropped.
    pub(super) fn start(&self) -> OutstandingCall<'_> {
        self.0.outstanding.fetch_add(1, Ordering::Relaxed);
        OutstandingCall(&self.0)
    }

    /// Returns whether the connection was closed because the server has sent too much that was not requested.
    pub(super) fn is_exceeded(&self) -> bool {
        self.0.is_exceeded.load(Ordering::Relaxed)
    }

    fn is_empty(&self) -> bool {
        self.0.outstanding.load(Ordering::Relaxed) == 0
    }
}

impl Drop for OutstandingCall<'_> {
    fn drop(&mut self) {
        self.0.outstanding.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Bound of what a server sends that was not requested.
#[derive(Debug)]
pub(super) struct Unrequested {
    calls: OutstandingCalls,
    /// Bytes that have arrived since a call was outstanding.
    bytes: usize,
}

impl Unrequested {
    pub(super) const fn new(calls: OutstandingCalls) -> Self {
        Self { calls, bytes: 0 }
    }
}

impl ReadBound for Unrequested {
    fn count(&mut self, bytes: usize) -> io::Result<()> {
        self.bytes = if self.calls.is_empty() { self.bytes.saturating_add(bytes) } else { 0 };
        if self.bytes <= MAX_UNREQUESTED {
            return Ok(());
        }
        self.calls.0.is_exceeded.store(true, Ordering::Relaxed);
        Err(io::Error::new(io::ErrorKind::InvalidData, "replies that were not requested"))
    }
}
