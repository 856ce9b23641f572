//! Output of the access log: a file, or a duplicate of the descriptor of standard output or error.
//!
//! Only the log's own thread uses it, for a batch of lines at a time. A duplicate descriptor is used instead of Rust's
//! handle, so that a stalled pipe does not hold the lock of that handle.

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
use crate::atomic_counter::AtomicCounter;
use weir_net::outage::Outage;

/// State shared with the handles of the log.
#[derive(Debug, Default)]
pub(super) struct OutputControl {
    pub(super) is_reopen_requested: AtomicBool,
    /// Number of lines that could not be queued or written, to all destinations.
    pub(super) lost_lines: Arc<AtomicCounter>,
}

impl OutputControl {
    pub(super) fn new(lost_lines: &Arc<AtomicCounter>) -> Self {
        Self { is_reopen_requested: AtomicBool::new(false), lost_lines: Arc::clone(lost_lines) }
    }
}

/// A file that never returns an error, but counts lost lines.
#[derive(Debug)]
pub(super) struct LogOutput {
    sink: Sink,
    /// `None` for a FIFO without a reader.
    file: Option<File>,
    control: Arc<OutputControl>,
    outage: Outage,
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
        Ok(Self { sink, file, control, outage: Outage::default() })
    }

    fn write_lines(&mut self, lines: &[u8]) -> io::Result<()> {
        if let (None, Sink::File(path)) = (&self.file, &self.sink) {
            self.file = open_for_append(path)?;
        }
        self.file.as_mut().ok_or(Errno::NXIO)?.write_all(lines)
    }

    /// Counts lost lines.
    fn record_lost_lines(&self, lines: &[u8], error: &io::Error) {
        let lines = lines.iter().filter(|byte| **byte == b'\n').count();
        self.control.lost_lines.add(lines as u64);
        if self.outage.record_failure() == 1 {
            tracing::warn!(%error, sink = ?self.sink, "cannot write the access log");
        }
    }

    fn reopen_if_requested(&mut self) {
        if !self.control.is_reopen_requested.swap(false, Ordering::AcqRel) {
            return;
        }
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
        if !lines.is_empty() {
            match self.write_lines(lines) {
                Ok(()) if self.outage.record_success() > 0 => {
                    tracing::info!(sink = ?self.sink, "the access log can be written again");
                }
                Ok(()) => {}
                Err(error) => self.record_lost_lines(lines, &error),
            }
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
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
