//! Threads beside the workers: each start that fails is an error with the thread's name.

use std::io;

use tokio::runtime::{Builder, Runtime};

use super::AppError;
use weir_net::thread::StartedThread;

/// Starts a thread without a runtime.
pub(super) fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<StartedThread, AppError> {
    StartedThread::start(name, run).map_err(cannot_start(name))
}

/// Starts a thread with a runtime of its own for `work`.
pub(super) fn start_with_runtime<W, F>(name: &str, work: W) -> Result<StartedThread, AppError>
where
    W: FnOnce() -> F + Send + 'static,
    F: Future<Output = ()>,
{
    StartedThread::start_with_runtime(name, work).map_err(cannot_start(name))
}

/// Returns the error for a thread that cannot be started.
pub(super) fn cannot_start(name: &str) -> impl FnOnce(io::Error) -> AppError {
    AppError::system(format!("cannot start the thread `{name}`"))
}

/// Returns a runtime for the current thread.
pub(super) fn runtime() -> Result<Runtime, AppError> {
    Builder::new_current_thread().enable_all().build().map_err(AppError::system("cannot start a runtime"))
}
