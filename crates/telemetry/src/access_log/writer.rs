//! The thread that writes lines, and the bounded queue to it.
//!
//! Lines are queued as text, one after the other. The thread wakes at the first line, waits until a batch has gathered,
//! and writes it at once. So at high rates a line costs neither a wake-up nor a system call, and without requests
//! nothing wakes.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Sink;
use super::output::{LogOutput, OutputControl};

/// Maximum number of lines that are queued or being written. They take at most 40 MB, with all lines at their maximum,
/// and usually 1 MB.
pub(super) const MAX_QUEUED_LINES: usize = 4096;
/// Size at which a batch is written without waiting for more lines, in bytes; the same as Envoy's.
const BATCH_SIZE: usize = 64 * 1024;
/// Number of lines at which a batch is written, so that short lines do not fill the queue.
const BATCH_LINES: usize = MAX_QUEUED_LINES / 4;
/// Maximum time for which a line waits for further lines of its batch.
const BATCH_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum time that shutdown waits for the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Writes lines to one destination. Its thread writes what is queued and ends when this is dropped.
#[derive(Debug)]
pub(super) struct LogWriter {
    queue: Arc<LineQueue>,
    control: Arc<OutputControl>,
    sink: Sink,
}

#[derive(Debug, Default)]
struct LineQueue {
    state: Mutex<LineQueueState>,
    /// Wakes the thread, and at its end those that wait for that.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LineQueueState {
    batch: Batch,
    /// Lines that the thread is writing.
    lines_in_progress: usize,
    /// No more lines are accepted.
    is_closed: bool,
    /// The thread has written everything.
    has_ended: bool,
}

/// Lines that are written together.
#[derive(Debug, Default)]
struct Batch {
    text: Vec<u8>,
    lines: usize,
    /// Length of the text that precedes a request to reopen the file.
    reopen_at: Option<usize>,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.text.len() >= BATCH_SIZE || self.lines >= BATCH_LINES
    }

    /// Whether there is nothing to do.
    fn is_empty(&self) -> bool {
        self.lines == 0 && self.reopen_at.is_none()
    }

    fn clear(&mut self) {
        self.text.clear();
        self.text.shrink_to(2 * BATCH_SIZE);
        (self.lines, self.reopen_at) = (0, None);
    }
}

impl LogWriter {
    /// Opens `sink` and starts the thread.
    pub(super) fn open(sink: &Sink, control: OutputControl) -> io::Result<Self> {
        let control = Arc::new(control);
        let output = LogOutput::open(sink.clone(), Arc::clone(&control))?;
        Self::start(output, sink.clone(), control)
    }

    /// Starts the thread, which writes to `output`.
    pub(super) fn start<W: Write + Send + 'static>(
        output: W,
        sink: Sink,
        control: Arc<OutputControl>,
    ) -> io::Result<Self> {
        let queue = Arc::new(LineQueue::default());
        let (lines, of_thread) = (Arc::clone(&queue), Arc::clone(&control));
        let writing = move || write_batches(&lines, output, &of_thread);
        thread::Builder::new().name("access-log".to_owned()).spawn(writing)?;
        Ok(Self { queue, control, sink })
    }

    /// Returns the destination.
    pub(super) const fn sink(&self) -> &Sink {
        &self.sink
    }

    /// Queues a line. If the queue is full, the line is dropped and counted.
    pub(super) fn write(&self, line: &[u8]) {
        let mut state = self.queue.state.lock();
        let queued = state.batch.lines.saturating_add(state.lines_in_progress);
        if state.is_closed || queued >= MAX_QUEUED_LINES {
            drop(state);
            return self.control.lost_lines.increment();
        }
        let (was_empty, was_full) = (state.batch.is_empty(), state.batch.is_full());
        state.batch.text.extend_from_slice(line);
        state.batch.lines += 1;
        let wakes = was_empty || (!was_full && state.batch.is_full());
        drop(state);
        if wakes {
            self.queue.changed.notify_all();
        }
    }

    /// Reopens a file before the next line.
    pub(super) fn reopen(&self) {
        let mut state = self.queue.state.lock();
        state.batch.reopen_at = Some(state.batch.text.len());
        drop(state);
        // A rotated file is closed at once.
        self.queue.changed.notify_all();
    }

    /// Writes what is queued and ends the thread. Waits for a limited time, because the destination may be stalled.
    pub(super) fn finish(&self) {
        let mut state = self.close();
        self.queue.changed.wait_while_for(&mut state, |state| !state.has_ended, FLUSH_TIMEOUT);
    }

    fn close(&self) -> parking_lot::MutexGuard<'_, LineQueueState> {
        let mut state = self.queue.state.lock();
        state.is_closed = true;
        self.queue.changed.notify_all();
        state
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        drop(self.close());
    }
}

/// Writes lines until the queue is closed and empty.
fn write_batches(queue: &LineQueue, mut output: impl Write, control: &OutputControl) {
    let mut batch = Batch::default();
    while queue.next_batch(&mut batch) {
        // The output counts what it cannot write.
        if let Some(at) = batch.reopen_at.take() {
            let _ = output.write_all(&batch.text[..at]);
            control.is_reopen_requested.store(true, Ordering::Release);
            let _ = output.flush();
            let _ = output.write_all(&batch.text[at..]);
        } else {
            let _ = output.write_all(&batch.text);
        }
        batch.clear();
    }
    queue.state.lock().has_ended = true;
    queue.changed.notify_all();
}

impl LineQueue {
    /// Waits for the next batch, and exchanges it for the `written` one, which is empty. Returns `false` at the end.
    fn next_batch(&self, written: &mut Batch) -> bool {
        let mut state = self.state.lock();
        state.lines_in_progress = 0;
        self.changed.wait_while(&mut state, |state| state.batch.is_empty() && !state.is_closed);
        let is_gathering = |state: &mut LineQueueState| {
            !state.batch.is_full() && state.batch.reopen_at.is_none() && !state.is_closed
        };
        self.changed.wait_while_for(&mut state, is_gathering, BATCH_INTERVAL);
        std::mem::swap(&mut state.batch, written);
        state.lines_in_progress = written.lines;
        !written.is_empty()
    }
}
