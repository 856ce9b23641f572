//! The thread that writes lines, and the bounded queue to it.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::thread;
use std::time::Duration;

use super::Sink;
use super::output::{LogOutput, OutputControl};

/// Maximum number of queued lines. They take at most 40 MB, with all lines at their maximum, and usually 3 MB.
pub(super) const MAX_QUEUED_LINES: usize = 4096;

/// Maximum time that shutdown waits for the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// What the thread receives.
enum Message {
    /// A whole line, or nothing, to wake the thread.
    Line(Vec<u8>),
    /// Writes everything and ends. The sender is dropped when that is done.
    End(SyncSender<()>),
}

/// Writes lines to one destination. Its thread writes what is queued and ends when this is dropped.
#[derive(Debug)]
pub(super) struct LogWriter {
    queue: SyncSender<Message>,
    control: Arc<OutputControl>,
    sink: Sink,
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
        let (queue, lines) = mpsc::sync_channel(MAX_QUEUED_LINES);
        thread::Builder::new().name("access-log".to_owned()).spawn(move || write_lines(&lines, output))?;
        Ok(Self { queue, control, sink })
    }

    /// Returns the destination.
    pub(super) const fn sink(&self) -> &Sink {
        &self.sink
    }

    /// Queues a line. If the queue is full, the line is dropped and counted.
    pub(super) fn write(&self, line: Vec<u8>) {
        if self.queue.try_send(Message::Line(line)).is_err() {
            self.control.lost_lines.increment();
        }
    }

    /// Reopens a file before the next line.
    pub(super) fn reopen(&self) {
        self.control.is_reopen_requested.store(true, Ordering::Release);
        // Wakes the thread, so that a rotated file is closed at once. A full queue wakes it as well.
        let _ = self.queue.try_send(Message::Line(Vec::new()));
    }

    /// Writes what is queued and ends the thread. Waits for a limited time, because the destination may be stalled.
    pub(super) fn finish(&self) {
        let (done, wait) = mpsc::sync_channel(1);
        let queue = self.queue.clone();
        // On another thread, because a full queue blocks the sender.
        let ending = thread::Builder::new().name("access-log-end".to_owned()).spawn(move || {
            let _ = queue.send(Message::End(done));
        });
        if ending.is_ok() {
            // Returns an error once the thread has dropped the sender.
            let _ = wait.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

/// Writes lines until there are no senders, or the end is requested. Flushes whenever the queue is empty.
fn write_lines(lines: &Receiver<Message>, mut output: impl Write) {
    loop {
        let message = match lines.try_recv() {
            Ok(message) => message,
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                // The output counts what it cannot write.
                let _ = output.flush();
                let Ok(message) = lines.recv() else { break };
                message
            }
        };
        match message {
            Message::Line(line) => {
                let _ = output.write_all(&line);
            }
            Message::End(done) => {
                let _ = output.flush();
                drop(done);
                return;
            }
        }
    }
    let _ = output.flush();
}
