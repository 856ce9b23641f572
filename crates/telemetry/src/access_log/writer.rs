//! The thread that writes lines, and the bounded queue to it.
//!
//! Lines are queued as text, one after the other. The thread wakes at the first line, waits until a batch has gathered,
//! and writes it at once. So at high rates a line costs neither a wake-up nor a system call, and without requests
//! nothing wakes.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weir_net::batch_queue::{BatchQueue, Gathering};
use weir_net::thread::StartedThread;

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
    queue: Arc<BatchQueue<QueuedLines>>,
    control: Arc<OutputControl>,
    sink: Sink,
}

#[derive(Debug, Default)]
struct QueuedLines {
    batch: Batch,
    /// Lines that the thread is writing.
    in_progress: usize,
}

/// Lines that are written together.
#[derive(Debug, Default)]
struct Batch {
    text: Vec<u8>,
    lines: usize,
    /// Length of the text that precedes a request to reopen the file.
    reopen_at: Option<usize>,
}

impl Gathering for QueuedLines {
    fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// A rotated file is closed at once.
    fn is_full(&self) -> bool {
        let Batch { text, lines, reopen_at } = &self.batch;
        text.len() >= BATCH_SIZE || *lines >= BATCH_LINES || reopen_at.is_some()
    }

    fn end_batch(&mut self) {
        self.in_progress = 0;
    }
}

impl Batch {
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
        let queue = Arc::new(BatchQueue::new(BATCH_INTERVAL));
        let (lines, of_thread) = (Arc::clone(&queue), Arc::clone(&control));
        let writing = move || write_batches(&lines, output, &of_thread);
        StartedThread::start("access-log", writing)?;
        Ok(Self { queue, control, sink })
    }

    /// Returns the destination.
    pub(super) const fn sink(&self) -> &Sink {
        &self.sink
    }

    /// Queues a line. If the queue is full, the line is dropped and counted.
    pub(super) fn write(&self, line: &[u8]) {
        let is_queued = self.queue.add(|queued| {
            let QueuedLines { batch, in_progress } = queued;
            let has_room = batch.lines.saturating_add(*in_progress) < MAX_QUEUED_LINES;
            if has_room {
                batch.text.extend_from_slice(line);
                batch.lines += 1;
            }
            has_room
        });
        if !is_queued {
            self.control.lost_lines.increment();
        }
    }

    /// Reopens a file before the next line.
    pub(super) fn reopen(&self) {
        // After the end there is no next line.
        self.queue.add(|queued| {
            queued.batch.reopen_at = Some(queued.batch.text.len());
            true
        });
    }

    /// Writes what is queued and ends the thread. Waits for a limited time, because the destination may be stalled.
    pub(super) fn finish(&self) {
        self.queue.finish(FLUSH_TIMEOUT);
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// Writes lines until the queue is closed and empty.
fn write_batches(queue: &BatchQueue<QueuedLines>, mut output: impl Write, control: &OutputControl) {
    let mut batch = Batch::default();
    loop {
        queue.next(|queued| {
            std::mem::swap(&mut queued.batch, &mut batch);
            queued.in_progress = batch.lines;
        });
        if batch.is_empty() {
            break;
        }
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
    queue.ended();
}
