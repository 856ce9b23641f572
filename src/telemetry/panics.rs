//! How often a thread or a task of this process has panicked.
//!
//! The runtime contains a panic to the task it happens in, so that nobody would notice but the client of one
//! request. What is said of it goes where it always goes, to standard error.

use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// There is one hook to a process, so there is one count.
static COUNTED: AtomicU64 = AtomicU64::new(0);
static WATCHING: Once = Once::new();

/// Counts every panic from now on.
pub fn watch() {
    WATCHING.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            COUNTED.fetch_add(1, Ordering::Relaxed);
            before(panic);
        }));
    });
}

/// Panics counted so far.
pub fn counted() -> u64 {
    COUNTED.load(Ordering::Relaxed)
}
