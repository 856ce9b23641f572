//! Worker threads. Each has its own runtime and one socket per listener. Requests never move between threads; only
//! counters are shared.
//!
//! A thread that fails would leave its share of the clients unserved. [`ThreadGroup`] therefore reports at
//! once which threads are running and which of them has failed.

use std::io;
use std::sync::Arc;

use tokio::runtime::Builder;
use tokio::sync::watch;

use crate::thread::StartedThread;

/// Tasks to poll before the runtime polls for I/O events again. A request takes about four polls, so I/O is polled at
/// least once per 60 or so requests, even if the run queue never empties.
const EVENT_INTERVAL: u32 = 256;

/// Reason why a worker ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerFailed(pub &'static str);

/// Threads of one kind: how many are running, and which of them failed first.
#[derive(Debug, Default)]
pub struct ThreadGroup {
    state: watch::Sender<GroupState>,
}

#[derive(Debug, Default)]
struct GroupState {
    running: usize,
    failed: Option<Box<str>>,
}

impl ThreadGroup {
    /// Starts a thread with a runtime of its own and runs `work` on it. Both end when `work` completes; tasks that are
    /// still running are dropped. The thread has failed if it panics or returns [`WorkerFailed`].
    ///
    /// # Errors
    /// If the system cannot create the thread or its runtime.
    pub fn spawn<W, F>(self: &Arc<Self>, name: &str, work: W) -> io::Result<()>
    where
        W: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<(), WorkerFailed>>,
    {
        let guard = ThreadGuard::start(self, name);
        let mut runtime = Builder::new_current_thread();
        runtime.event_interval(EVENT_INTERVAL).global_queue_interval(EVENT_INTERVAL);
        let at_end = move |result| {
            // Moves the whole `ThreadGuard` into the closure, so that it is dropped when the thread ends.
            let mut guard = guard;
            match result {
                Ok(()) => guard.is_done = true,
                Err(WorkerFailed(why)) => tracing::error!(why, "a worker has failed"),
            }
        };
        StartedThread::start_on(runtime, name, work, at_end).map(drop)
    }

    /// Waits until no thread is running.
    pub async fn wait_for_exit(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.state.subscribe().wait_for(|state| state.running == 0).await;
    }

    /// Waits until a thread has failed, and returns the name of the first that did.
    pub async fn wait_for_failure(&self) -> Box<str> {
        let mut state = self.state.subscribe();
        let failed = state.wait_for(|state| state.failed.is_some()).await;
        failed.ok().and_then(|state| state.failed.clone()).unwrap_or_default()
    }

    /// Returns the name of the first thread that failed, if any.
    pub fn first_failure(&self) -> Option<Box<str>> {
        self.state.borrow().failed.clone()
    }
}

/// Guard for one running thread: records its end on drop, and its failure unless `is_done` is set.
struct ThreadGuard {
    group: Arc<ThreadGroup>,
    name: Box<str>,
    is_done: bool,
}

impl ThreadGuard {
    fn start(group: &Arc<ThreadGroup>, name: &str) -> Self {
        group.state.send_modify(|state| state.running += 1);
        Self { group: Arc::clone(group), name: name.into(), is_done: false }
    }
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        self.group.state.send_modify(|state| {
            state.running -= 1;
            if !self.is_done {
                state.failed.get_or_insert_with(|| self.name.clone());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn with_timeout(condition: impl Future<Output = ()>) {
        tokio::time::timeout(std::time::Duration::from_secs(10), condition).await.expect("timed out");
    }

    #[tokio::test]
    async fn worker_that_completes_is_not_a_failure() {
        let group = Arc::new(ThreadGroup::default());
        for index in 0..3 {
            group.spawn(&format!("worker-{index}"), || async { Ok(()) }).unwrap();
        }
        with_timeout(group.wait_for_exit()).await;
        assert_eq!(group.first_failure(), None);
    }

    #[tokio::test]
    async fn worker_that_returns_an_error_is_a_failure() {
        let group = Arc::new(ThreadGroup::default());
        group.spawn("worker-0", || async { Err(WorkerFailed("as a test")) }).unwrap();
        with_timeout(group.wait_for_exit()).await;
        assert_eq!(group.first_failure().as_deref(), Some("worker-0"));
    }

    #[tokio::test]
    async fn panic_of_a_task_does_not_fail_its_worker() {
        let group = Arc::new(ThreadGroup::default());
        let (sender, receiver) = tokio::sync::oneshot::channel();
        group
            .spawn("worker-0", || async {
                // Connections and streams also run as detached tasks.
                drop(tokio::task::spawn_local(async { panic!("panic of a test") }));
                tokio::task::yield_now().await;
                drop(tokio::task::spawn_local(async { sender.send(()).expect("a waiting receiver") }));
                receiver.await.map_err(|_| WorkerFailed("the other task has gone, too"))
            })
            .unwrap();
        with_timeout(group.wait_for_exit()).await;
        assert_eq!(group.first_failure(), None);
    }

    #[tokio::test]
    async fn worker_panic_is_reported_while_other_workers_run() {
        let group = Arc::new(ThreadGroup::default());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        group
            .spawn("worker-0", || async { stopped.await.map_err(|_| WorkerFailed("nobody has ended it")) })
            .unwrap();
        group.spawn("worker-1", || async { panic!("panic of a test") }).unwrap();
        with_timeout(async { assert_eq!(&*group.wait_for_failure().await, "worker-1") }).await;
        assert!(stop.send(()).is_ok(), "the other worker is still running");
        with_timeout(group.wait_for_exit()).await;
    }
}
