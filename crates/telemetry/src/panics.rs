//! Counter of panics in threads and tasks of this process.
//!
//! The runtime confines a panic to its task, so without the counter only one client would notice. The panic message
//! still goes to standard error.

use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Process-wide, like the panic hook.
static PANIC_COUNT: AtomicU64 = AtomicU64::new(0);
static HOOK_INSTALLATION: Once = Once::new();

/// Starts counting panics. Further calls have no effect.
pub fn install_hook() {
    HOOK_INSTALLATION.call_once(|| {
        let previous_hook = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            PANIC_COUNT.fetch_add(1, Ordering::Relaxed);
            previous_hook(panic);
        }));
    });
}

/// Returns the number of panics since the start of counting.
pub fn count() -> u64 {
    PANIC_COUNT.load(Ordering::Relaxed)
}
