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
use crate::telemetry::count::Count;

/// Buffer size at which lines are written, in bytes; the same as Envoy's.
const FLUSH_AT: usize = 64 * 1024;

/// State shared with the handles of the log.
#[derive(Debug, Default)]
pub(super) struct Control {
    pub(super) reopen: AtomicBool,
    /// Number of lines that could not be written.
    pub(super) lost: Count,
}

/// A buffered file that never returns an error, but counts lost lines.
#[derive(Debug)]
pub(super) struct Output {
    sink: Sink,
    /// `None` for a FIFO without a reader.
    file: Option<File>,
    buffer: Vec<u8>,
    control: Arc<Control>,
    failing: bool,
}

impl Output {
    pub(super) fn open(sink: Sink, control: Arc<Control>) -> io::Result<Self> {
        let file = match &sink {
            Sink::Stdout => Some(File::from(io::stdout().as_fd().try_clone_to_owned()?)),
            Sink::Stderr => Some(File::from(io::stderr().as_fd().try_clone_to_owned()?)),
            Sink::File(path) => append(path)?,
        };
        if file.is_none() {
            tracing::warn!(
                ?sink,
                "the access log is a FIFO without a reader: lines are dropped until there is one"
            );
        }
        Ok(Self { sink, file, buffer: Vec::new(), control, failing: false })
    }

    fn drain(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        match self.write_buffer() {
            Ok(()) => self.failing = false,
            Err(error) => self.lose(&error),
        }
        self.buffer.clear();
        self.buffer.shrink_to(FLUSH_AT);
    }

    fn write_buffer(&mut self) -> io::Result<()> {
        if let (None, Sink::File(path)) = (&self.file, &self.sink) {
            self.file = append(path)?;
        }
        self.file.as_mut().ok_or(Errno::NXIO)?.write_all(&self.buffer)
    }

    /// Counts lost lines. Logs the first failure only, because a full disk may fail for hours.
    fn lose(&mut self, error: &io::Error) {
        let lines = self.buffer.iter().filter(|byte| **byte == b'\n').count();
        self.control.lost.add(lines as u64);
        if !self.failing {
            tracing::warn!(%error, sink = ?self.sink, "cannot write the access log");
        }
        self.failing = true;
    }

    fn reopen_if_asked(&mut self) {
        if !self.control.reopen.swap(false, Ordering::AcqRel) {
            return;
        }
        self.drain();
        let Sink::File(path) = &self.sink else { return };
        match append(path) {
            Ok(file) => self.file = file,
            // Lines still go to the old file.
            Err(error) => tracing::warn!(%error, path = %path.display(), "cannot reopen the access log"),
        }
    }
}

impl Write for Output {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.reopen_if_asked();
        self.buffer.extend_from_slice(lines);
        if self.buffer.len() >= FLUSH_AT {
            self.drain();
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.drain();
        self.reopen_if_asked();
        Ok(())
    }
}

/// Opens a file for appending; `None` for a FIFO without a reader, on which opening would block (fifo(7)).
fn append(path: &Path) -> io::Result<Option<File>> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let opened = OpenOptions::new().create(true).append(true).custom_flags(nonblocking).open(path);
    match opened {
        Ok(file) => {
            // Writes must block: a line that does not fit waits for the reader.
            fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
            Ok(Some(file))
        }
        // Opening a socket fails with the same error, but a socket can never be written to.
        Err(error) if is(&error, Errno::NXIO) && fs::metadata(path)?.file_type().is_fifo() => Ok(None),
        Err(error) => Err(error),
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}
