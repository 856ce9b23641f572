//! Read-ahead of the bodies of held requests, by which a closed connection is noticed.
//!
//! A client that leaves is noticed at the end of what it has sent. Few held requests may keep a body of usual size for
//! this. Many would occupy too much memory, so the others keep only the beginning.

use std::cell::Cell;

/// Maximum bytes that are read of a body while its request is held.
pub(super) const MAX_READ_AHEAD: usize = 4 * 1024;
/// The same for a connection with a permit.
pub(super) const MAX_PERMITTED_READ_AHEAD: usize = 32 * 1024;
/// Maximum number of permits per thread, for 16 MiB.
const MAX_PERMITS: usize = 512;

thread_local! {
    /// Permits in use. Connections stay on their thread.
    static PERMITS: Cell<usize> = const { Cell::new(0) };
}

/// Permit for [`MAX_PERMITTED_READ_AHEAD`], released when dropped.
#[derive(Debug)]
pub(super) struct ReadAheadPermit(());

impl ReadAheadPermit {
    /// Acquires a permit, unless all of this thread are in use.
    pub(super) fn acquire() -> Option<Self> {
        PERMITS.with(|used| {
            if used.get() >= MAX_PERMITS {
                return None;
            }
            used.set(used.get().saturating_add(1));
            Some(Self(()))
        })
    }
}

impl Drop for ReadAheadPermit {
    fn drop(&mut self) {
        // The thread may be ending.
        let _ = PERMITS.try_with(|used| used.set(used.get().saturating_sub(1)));
    }
}
