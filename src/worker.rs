//! One thread, one runtime, one socket per listener: nothing a request touches crosses threads, except the
//! counters.
//!
//! A thread that ends before its work is done would leave its share of the clients waiting for ever, so a
//! [`Crew`] knows who is at work and who has failed, at the moment it happens.

use std::io;
use std::sync::Arc;

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;

/// Tasks run between two looks at the sockets: a request takes about four, so this is a look per sixty or so
/// requests even where the queue never runs empty.
const TASKS_PER_LOOK: u32 = 256;

/// Why a worker gave up before it was told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished(pub &'static str);

/// The threads of one kind: how many are at work, and which of them failed first.
#[derive(Debug, Default)]
pub struct Crew {
    standing: watch::Sender<Standing>,
}

#[derive(Debug, Default)]
struct Standing {
    at_work: usize,
    failed: Option<Box<str>>,
}

impl Crew {
    /// Runs `work` on a thread of its own with a runtime of its own; both end when it ends, and whatever it has
    /// left running is dropped. A thread that panics, gives up or gets no runtime has failed.
    ///
    /// # Errors
    /// If the system has no thread left to give.
    pub fn spawn<W, F>(self: &Arc<Self>, name: String, work: W) -> io::Result<()>
    where
        W: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<(), Unfinished>>,
    {
        let shift = Shift::begin(self, &name);
        let run = move || {
            // Whole: its end is the thread's.
            let mut shift = shift;
            // A runtime that stays on its thread cannot be sent there, so it is made here.
            let mut builder = Builder::new_current_thread();
            builder.enable_all().event_interval(TASKS_PER_LOOK).global_queue_interval(TASKS_PER_LOOK);
            match builder.build_local(LocalOptions::default()) {
                Ok(runtime) => match runtime.block_on(work()) {
                    Ok(()) => shift.is_done = true,
                    Err(Unfinished(why)) => tracing::error!(why, "a worker gives up"),
                },
                Err(error) => tracing::error!(%error, "cannot start a worker's runtime"),
            }
        };
        std::thread::Builder::new().name(name).spawn(run).map(drop)
    }

    /// Answers once nobody is at work any more.
    pub async fn gone(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.standing.subscribe().wait_for(|standing| standing.at_work == 0).await;
    }

    /// Answers with the name of the first that failed, once one has.
    pub async fn failed(&self) -> Box<str> {
        let mut standing = self.standing.subscribe();
        let failed = standing.wait_for(|standing| standing.failed.is_some()).await;
        failed.ok().and_then(|standing| standing.failed.clone()).unwrap_or_default()
    }

    /// Who failed first, if anybody has.
    pub fn failure(&self) -> Option<Box<str>> {
        self.standing.borrow().failed.clone()
    }
}

/// One thread's time at work, however it ends.
struct Shift {
    crew: Arc<Crew>,
    name: Box<str>,
    is_done: bool,
}

impl Shift {
    fn begin(crew: &Arc<Crew>, name: &str) -> Self {
        crew.standing.send_modify(|standing| standing.at_work += 1);
        Self { crew: Arc::clone(crew), name: name.into(), is_done: false }
    }
}

impl Drop for Shift {
    fn drop(&mut self) {
        self.crew.standing.send_modify(|standing| {
            standing.at_work -= 1;
            if !self.is_done {
                standing.failed.get_or_insert_with(|| self.name.clone());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn soon(condition: impl Future<Output = ()>) {
        tokio::time::timeout(std::time::Duration::from_secs(10), condition).await.expect("never happened");
    }

    #[tokio::test]
    async fn whoever_has_done_its_work_has_not_failed() {
        let crew = Arc::new(Crew::default());
        for index in 0..3 {
            crew.spawn(format!("worker-{index}"), || async { Ok(()) }).unwrap();
        }
        soon(crew.gone()).await;
        assert_eq!(crew.failure(), None);
    }

    #[tokio::test]
    async fn a_worker_that_gives_up_has_failed() {
        let crew = Arc::new(Crew::default());
        crew.spawn("worker-0".to_owned(), || async { Err(Unfinished("as a test")) }).unwrap();
        soon(crew.gone()).await;
        assert_eq!(crew.failure().as_deref(), Some("worker-0"));
    }

    #[tokio::test]
    async fn a_task_that_panics_ends_alone() {
        let crew = Arc::new(Crew::default());
        let (tell, told) = tokio::sync::oneshot::channel();
        crew.spawn("worker-0".to_owned(), || async {
            // As connections and streams run: on their own, and nobody waits for them.
            drop(tokio::task::spawn_local(async { panic!("as a test of a task's end") }));
            tokio::task::yield_now().await;
            drop(tokio::task::spawn_local(async { tell.send(()).expect("the other side waits") }));
            told.await.map_err(|_| Unfinished("the other task has gone, too"))
        })
        .unwrap();
        soon(crew.gone()).await;
        assert_eq!(crew.failure(), None);
    }

    #[tokio::test]
    async fn a_worker_that_panics_is_noticed_while_the_others_go_on() {
        let crew = Arc::new(Crew::default());
        let (end, ending) = tokio::sync::oneshot::channel::<()>();
        crew.spawn("worker-0".to_owned(), || async {
            ending.await.map_err(|_| Unfinished("nobody has ended it"))
        })
        .unwrap();
        crew.spawn("worker-1".to_owned(), || async { panic!("as a test of the watch") }).unwrap();
        soon(async { assert_eq!(&*crew.failed().await, "worker-1") }).await;
        assert!(end.send(()).is_ok(), "the other one is at work");
        soon(crew.gone()).await;
    }
}
