//! One line per request, in Envoy's default format or as JSON.
//!
//! Lines are handed to a thread of their own through a bounded queue. Where nobody takes them (a full pipe, a
//! slow disk) they are dropped and counted: a stalled log must never stall a request. How a line looks is in
//! `line`, where it goes in `output`.

mod line;
mod output;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use http::{Method, StatusCode, Version};
use schemars::JsonSchema;
use serde::Deserialize;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

use self::output::{Control, Output};
use crate::limiter::timestamp::Timestamp;

/// Lines that may wait to be written. With the longest lines possible that is 40 MB; with usual ones, 1 MB.
const QUEUED_LINES: usize = 4096;

/// How long the end of the process waits for the last lines.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Where lines go and what they look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where.
    pub sink: Sink,
    /// How.
    pub format: Format,
}

/// Where access log lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sink {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// Appended to this file.
    File(PathBuf),
}

/// What a line of the access log looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Envoy's default format string.
    #[default]
    Envoy,
    /// One JSON object.
    Json,
}

/// All that a line says about one request. Bytes are as they came over the wire; escaping is done here.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// When the request's head arrived.
    pub start: Timestamp,
    /// The method.
    pub method: &'a Method,
    /// The request target as received, with its query.
    pub path: &'a str,
    /// The protocol the client spoke.
    pub protocol: Version,
    /// What it was answered.
    pub status: Option<StatusCode>,
    /// Envoy's response flags, e.g. `RL`; empty for none.
    pub flags: &'static str,
    /// Bytes of the request's body.
    pub bytes_received: u64,
    /// Bytes of the answer's body.
    pub bytes_sent: u64,
    /// From the request's head to the end of the answer.
    pub duration: Duration,
    /// Time the upstream took to answer, if it did.
    pub upstream_time: Option<Duration>,
    /// X-Forwarded-For as sent upstream.
    pub x_forwarded_for: Option<&'a [u8]>,
    /// User-Agent.
    pub user_agent: Option<&'a [u8]>,
    /// X-Request-Id as sent upstream.
    pub request_id: Option<&'a [u8]>,
    /// Host, or the authority of the target.
    pub authority: Option<&'a [u8]>,
    /// The upstream's address, if the request got that far.
    pub upstream_host: Option<&'a str>,
    /// How often it was sent there.
    pub attempts: u32,
    /// Who asked, as the rules saw it.
    pub client_ip: std::net::IpAddr,
    /// The rule that refused or would have.
    pub rule: Option<&'a str>,
}

/// The access log; clones write to the same place.
#[derive(Clone, Debug)]
pub struct AccessLog {
    queue: NonBlocking,
    full: ErrorCounter,
    control: Arc<Control>,
    format: Format,
}

/// Writes what is still queued when it is dropped, unless that takes too long.
#[must_use = "lines are lost unless this lives as long as the log"]
#[derive(Debug)]
pub struct Guard(Option<WorkerGuard>);

impl AccessLog {
    /// Opens the log. The guard is to be kept until the last request has been logged.
    ///
    /// # Errors
    /// Whatever the system says about opening the file.
    pub fn open(settings: &Settings) -> io::Result<(Self, Guard)> {
        let control = Arc::default();
        let output = Output::open(settings.sink.clone(), Arc::clone(&control))?;
        Ok(Self::new(output, control, settings.format))
    }

    /// Writes a line for one request; never waits.
    pub fn log(&self, entry: &Entry<'_>) {
        let line = match self.format {
            Format::Envoy => line::envoy(entry),
            Format::Json => line::json(entry),
        };
        // Takes every line: what finds the queue full is dropped there, and counted.
        let _ = io::Write::write_all(&mut self.queue.clone(), &line);
    }

    /// Opens the file anew before the next line (SIGUSR1): for whoever has moved it away. Nothing happens to
    /// standard output and error.
    pub fn reopen(&self) {
        self.control.reopen.store(true, Ordering::Release);
        // An empty line writes nothing and wakes the thread, so that the file moved away is let go at once.
        let _ = io::Write::write_all(&mut self.queue.clone(), &[]);
    }

    /// Lines lost since the start, because nobody took them or because writing failed.
    pub fn dropped(&self) -> u64 {
        (self.full.dropped_lines() as u64).saturating_add(self.control.lost.get())
    }

    fn new<W: io::Write + Send + 'static>(writer: W, control: Arc<Control>, format: Format) -> (Self, Guard) {
        let (queue, guard) = NonBlockingBuilder::default()
            .buffered_lines_limit(QUEUED_LINES)
            .lossy(true)
            .thread_name("access-log")
            .finish(writer);
        let full = queue.error_counter();
        (Self { queue, full, control, format }, Guard(Some(guard)))
    }
}

impl Drop for Guard {
    /// The appender's own guard complains on standard output when the thread does not end, and would wait
    /// there for ever if that is what has stalled; so it is dropped elsewhere.
    fn drop(&mut self) {
        let guard = self.0.take();
        let (done, wait) = mpsc::sync_channel(1);
        let flusher = thread::Builder::new().name("access-log-end".to_owned()).spawn(move || {
            drop(guard);
            let _ = done.send(());
        });
        if flusher.is_ok() {
            let _ = wait.recv_timeout(LAST_LINES);
        }
    }
}

#[cfg(test)]
mod tests;
