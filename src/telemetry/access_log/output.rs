//! Output of the access log: a file, or a duplicate of the descriptor of standard output or error.
//!
//! Only the log's own thread uses it, and flushes whenever the queue is empty. A duplicate descriptor is used instead
//! of Rust's handle, so that a stalled pipe does not hold the lock of that handle.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::Sink;
use crate::telemetry::atomic_counter::AtomicCounter;

/// Buffer size at which lines are written, in bytes; the same as Envoy's.
const FLUSH_THRESHOLD: usize = 64 * 1024;

/// State shared with the handles of the log.
#[derive(Debug, Default)]
pub(super) struct OutputControl {
    pub(super) is_reopen_requested: AtomicBool,
    /// Number of lines that could not be queued or written, to all destinations.
    pub(super) lost_lines: Arc<AtomicCounter>,
}

impl OutputControl {
    /// Counts lost lines in `lost_lines`.
    pub(super) fn new(lost_lines: &Arc<AtomicCounter>) -> Self {
        Self { is_reopen_requested: AtomicBool::new(false), lost_lines: Arc::clone(lost_lines) }
    }
}

/// A buffered file that never returns an error, but counts lost lines.
#[derive(Debug)]
pub(super) struct LogOutput {
    sink: Sink,
    /// `None` for a FIFO without a reader.
    file: Option<File>,
    buffer: Vec<u8>,
    control: Arc<OutputControl>,
    is_failing: bool,
}

impl LogOutput {
    pub(super) fn open(sink: Sink, control: Arc<OutputControl>) -> io::Result<Self> {
        let file = match &sink {
            Sink::Stdout => Some(File::from(io::stdout().as_fd().try_clone_to_owned()?)),
            Sink::Stderr => Some(File::from(io::stderr().as_fd().try_clone_to_owned()?)),
            Sink::File(path) => open_for_append(path)?,
        };
        if file.is_none() {
            tracing::warn!(
                ?sink,
                "the access log is a FIFO without a reader: lines are dropped until there is one"
            );
        }
        Ok(Self { sink, file, buffer: Vec::new(), control, is_failing: false })
    }

    fn flush_buffer(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        match self.write_buffer() {
            Ok(()) => self.is_failing = false,
            Err(error) => self.record_lost_lines(&error),
        }
        self.buffer.clear();
        self.buffer.shrink_to(FLUSH_THRESHOLD);
    }

    fn write_buffer(&mut self) -> io::Result<()> {
        if let (None, Sink::File(path)) = (&self.file, &self.sink) {
            self.file = open_for_append(path)?;
        }
        self.file.as_mut().ok_or(Errno::NXIO)?.write_all(&self.buffer)
    }

    /// Counts lost lines. Logs the first failure only, because a full disk may fail for hours.
    fn record_lost_lines(&mut self, error: &io::Error) {
        let lines = self.buffer.iter().filter(|byte| **byte == b'\n').count();
        self.control.lost_lines.add(lines as u64);
        if !self.is_failing {
            tracing::warn!(%error, sink = ?self.sink, "cannot write the access log");
        }
        self.is_failing = true;
    }

    fn reopen_if_requested(&mut self) {
        if !self.control.is_reopen_requested.swap(false, Ordering::AcqRel) {
            return;
        }
        self.flush_buffer();
        let Sink::File(path) = &self.sink else { return };
        match open_for_append(path) {
            Ok(file) => self.file = file,
            // Lines still go to the old file.
            Err(error) => tracing::warn!(%error, path = %path.display(), "cannot reopen the access log"),
        }
    }
}

impl Write for LogOutput {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.reopen_if_requested();
        self.buffer.extend_from_slice(lines);
        if self.buffer.len() >= FLUSH_THRESHOLD {
            self.flush_buffer();
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flush_buffer();
        self.reopen_if_requested();
        Ok(())
    }
}

/// Opens a file for appending; `None` for a FIFO without a reader, on which opening would block (fifo(7)).
fn open_for_append(path: &Path) -> io::Result<Option<File>> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let opened = OpenOptions::new().create(true).append(true).custom_flags(nonblocking).open(path);
    match opened {
        Ok(file) => {
            // Writes must block: a line that does not fit waits for the reader.
            fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
            Ok(Some(file))
        }
        // Opening a socket fails with the same error, but a socket can never be written to.
        Err(error) if has_errno(&error, Errno::NXIO) && fs::metadata(path)?.file_type().is_fifo() => Ok(None),
        Err(error) => Err(error),
    }
}

fn has_errno(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}
