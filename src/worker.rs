//! One thread, one runtime, one socket per listener: nothing a request touches crosses threads, except the
//! counters.

use std::io;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, LocalOptions};

/// Tasks run between two looks at the sockets: a request takes about four, so this is a look per sixty or so
/// requests even where the queue never runs empty.
const TASKS_PER_LOOK: u32 = 256;

/// Runs `work` on a thread of its own with a runtime of its own; both end when it ends, and whatever it has
/// left running is dropped.
///
/// # Errors
/// If the system has no thread or no event queue left to give.
pub fn spawn<W, F>(name: String, work: W) -> io::Result<JoinHandle<()>>
where
    W: FnOnce() -> F + Send + 'static,
    F: Future<Output = ()>,
{
    let runtime = std::thread::Builder::new().name(name);
    runtime.spawn(move || {
        // A runtime that stays on its thread cannot be sent there, so it is made here.
        let mut builder = Builder::new_current_thread();
        builder.enable_all().event_interval(TASKS_PER_LOOK).global_queue_interval(TASKS_PER_LOOK);
        match builder.build_local(LocalOptions::default()) {
            Ok(runtime) => runtime.block_on(work()),
            Err(error) => tracing::error!(%error, "cannot start a worker's runtime"),
        }
    })
}
