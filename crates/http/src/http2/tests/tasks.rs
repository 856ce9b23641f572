//! Tasks without a runtime: whether one waits is exact, and a test chooses their order.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

/// Maximum polls of a test; more mean that tasks wake each other for ever.
const MAX_POLLS: usize = 2_000_000;

#[derive(Clone, Default)]
pub(super) struct Tasks {
    tasks: Rc<RefCell<Vec<Task>>>,
    spawned: Rc<RefCell<Vec<Task>>>,
}

struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    woken: Arc<Woken>,
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Tasks {
    /// Adds a task, also while others run.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        self.spawned.borrow_mut().push(Task { future: Box::pin(task), woken });
    }

    /// Runs until all tasks wait.
    pub(super) fn run_until_idle(&self) {
        self.run_in_order(|count| count - 1);
    }

    /// Runs until all tasks wait. `choose` selects one of so many tasks that were woken.
    pub(super) fn run_in_order(&self, mut choose: impl FnMut(usize) -> usize) {
        let mut tasks = self.tasks.borrow_mut();
        for _ in 0..MAX_POLLS {
            tasks.append(&mut self.spawned.borrow_mut());
            let woken = tasks.iter().enumerate().filter(|(_, task)| task.woken.0.load(Ordering::Relaxed));
            let woken: Vec<_> = woken.map(|(index, _)| index).collect();
            if woken.is_empty() {
                return;
            }
            let index = woken[choose(woken.len())];
            let task = &mut tasks[index];
            task.woken.0.store(false, Ordering::Relaxed);
            let waker = Waker::from(Arc::clone(&task.woken));
            if task.future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                drop(tasks.swap_remove(index));
            }
        }
        panic!("tasks wake each other for ever");
    }

    /// Runs a task to its end with all others.
    pub(super) fn block_on<R: 'static>(&self, task: impl Future<Output = R> + 'static) -> R {
        let result = Rc::new(RefCell::new(None));
        let slot = Rc::clone(&result);
        self.spawn(async move {
            let value = task.await;
            *slot.borrow_mut() = Some(value);
        });
        self.run_until_idle();
        result.take().expect("the task waits for ever")
    }

    /// Returns the number of tasks that have not ended.
    pub(super) fn len(&self) -> usize {
        self.tasks.borrow().len()
    }
}
