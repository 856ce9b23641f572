//! Counter of panics in threads and tasks of this process.
//!
//! The runtime confines a panic to its task, so without the counter only one client would notice. The panic message
//! still goes to standard error.

use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Process-wide, like the panic hook.
static COUNTED: AtomicU64 = AtomicU64::new(0);
static WATCHING: Once = Once::new();

/// Starts counting panics. Further calls have no effect.
pub fn watch() {
    WATCHING.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            COUNTED.fetch_add(1, Ordering::Relaxed);
            before(panic);
        }));
    });
}

/// Returns the number of panics since the start of counting.
pub fn counted() -> u64 {
    COUNTED.load(Ordering::Relaxed)
}
