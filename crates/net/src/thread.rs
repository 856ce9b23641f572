//! Threads: how one starts, with a runtime or without, and how its end is awaited.

use std::io;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, LocalOptions};

/// A thread that has been started. It runs on if this is dropped.
#[derive(Debug)]
pub struct StartedThread {
    /// Receives a message when the thread has ended; fails if it has panicked.
    ended: Mutex<Receiver<()>>,
}

impl StartedThread {
    /// Starts a thread without a runtime.
    ///
    /// # Errors
    /// If the system cannot create the thread.
    pub fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (ended_sender, ended) = sync_channel(1);
        let run = move || {
            run();
            // Fails if nothing waits for the end.
            let _ = ended_sender.send(());
        };
        thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { ended: Mutex::new(ended) })
    }

    /// Starts a thread with a runtime of its own and runs `work` on it. Both end when `work` completes; tasks that are
    /// still running are dropped.
    ///
    /// # Errors
    /// If the system cannot create the thread or its runtime.
    pub fn start_with_runtime<W, F>(name: &str, work: W) -> io::Result<Self>
    where
        W: FnOnce() -> F + Send + 'static,
        F: Future<Output = ()>,
    {
        Self::start_on(Builder::new_current_thread(), name, work, |()| {})
    }

    /// Starts a thread as [`Self::start_with_runtime`]. `at_end` gets the result of `work` after the runtime has ended,
    /// and is dropped if the thread panics.
    pub(crate) fn start_on<W, F>(
        mut runtime: Builder,
        name: &str,
        work: W,
        at_end: impl FnOnce(F::Output) + Send + 'static,
    ) -> io::Result<Self>
    where
        W: FnOnce() -> F + Send + 'static,
        F: Future,
    {
        let (started_sender, started) = sync_channel(1);
        let run = move || {
            // A local runtime cannot be sent between threads, so it is created on its own.
            let result = match runtime.enable_all().build_local(LocalOptions::default()) {
                Ok(runtime) => {
                    let _ = started_sender.send(Ok(()));
                    runtime.block_on(work())
                }
                Err(error) => {
                    let _ = started_sender.send(Err(error));
                    return;
                }
            };
            at_end(result);
        };
        let thread = Self::start(name, run)?;
        started.recv().map_err(io::Error::other)??;
        Ok(thread)
    }

    /// Waits until the thread has ended, at most for `timeout`. Returns whether it has, and without a panic.
    pub fn wait_for_end(&self, timeout: Duration) -> bool {
        self.ended.lock().recv_timeout(timeout).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Longer than any test takes.
    const FOREVER: Duration = Duration::from_secs(3600);

    #[test]
    fn end_of_a_thread_is_awaited_for_a_limited_time() {
        let (stop, stopped) = sync_channel::<()>(1);
        let started = StartedThread::start("test", move || _ = stopped.recv()).unwrap();
        assert!(!started.wait_for_end(Duration::ZERO));
        drop(stop);
        assert!(started.wait_for_end(FOREVER));
    }

    #[test]
    fn thread_that_panics_does_not_end_in_order() {
        let started = StartedThread::start("test", || panic!("panic of a test")).unwrap();
        assert!(!started.wait_for_end(FOREVER));
    }

    #[test]
    fn thread_ends_after_the_tasks_of_its_runtime() {
        /// Set when a task is dropped.
        struct Dropped(Arc<AtomicBool>);

        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }

        let is_dropped = Arc::new(AtomicBool::new(false));
        let task = Dropped(Arc::clone(&is_dropped));
        let work = || async {
            drop(tokio::task::spawn_local(async {
                let _task = task;
                std::future::pending::<()>().await;
            }));
            tokio::task::yield_now().await;
        };
        let started = StartedThread::start_with_runtime("test", work).unwrap();
        assert!(started.wait_for_end(FOREVER));
        assert!(is_dropped.load(Ordering::SeqCst));
    }
}
