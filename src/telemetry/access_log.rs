//! Access log: one line per request, in Envoy's default format or as JSON.
//!
//! Lines are passed to a separate thread through a bounded queue. If they cannot be written in time (full pipe, slow
//! disk), they are dropped and counted: a stalled log must not delay requests. `line` formats lines, `output` writes
//! them.

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

use self::output::{LogOutput, OutputControl};
use crate::limiter::timestamp::Timestamp;

/// Maximum number of queued lines. They take at most 40 MB, with all lines at their maximum, and usually 1 MB.
const MAX_QUEUED_LINES: usize = 4096;

/// Maximum time that shutdown waits for the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Settings of the access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLogSettings {
    /// Destination of lines.
    pub sink: Sink,
    /// Format of lines.
    pub format: Format,
}

/// Destination of access log lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sink {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// This file, opened for appending.
    File(PathBuf),
}

/// Format of access log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Envoy's default format string.
    #[default]
    Envoy,
    /// One JSON object.
    Json,
}

/// Contents of one line. Bytes are as received; the formatter escapes them.
#[derive(Clone, Debug)]
pub struct AccessLogEntry<'a> {
    /// Arrival time of the request's header section.
    pub start: Timestamp,
    /// Method.
    pub method: &'a Method,
    /// Request target as received, including the query.
    pub path: &'a str,
    /// Protocol version of the client.
    pub protocol: Version,
    /// Status code of the response, if there was one.
    pub status: Option<StatusCode>,
    /// Envoy's response flags, such as `RL`; empty for none.
    pub response_flags: &'static str,
    /// Bytes of the request body.
    pub bytes_received: u64,
    /// Bytes of the response body.
    pub bytes_sent: u64,
    /// Time from the request's header section to the end of the response.
    pub duration: Duration,
    /// Time until the upstream responded, if it did.
    pub upstream_time: Option<Duration>,
    /// X-Forwarded-For as sent upstream.
    pub x_forwarded_for: Option<&'a [u8]>,
    /// User-Agent.
    pub user_agent: Option<&'a [u8]>,
    /// X-Request-Id as sent upstream.
    pub request_id: Option<&'a [u8]>,
    /// Host, or the authority of the target.
    pub authority: Option<&'a [u8]>,
    /// Address of the endpoint, if the request was sent to one.
    pub upstream_host: Option<&'a str>,
    /// Number of attempts to send it upstream.
    pub attempts: u32,
    /// Address of the client, as used by the rules.
    pub client_ip: std::net::IpAddr,
    /// Rule that rejected the request, or would have.
    pub rule: Option<&'a str>,
}

/// Handle of the access log. Clones write to the same destination.
#[derive(Clone, Debug)]
pub struct AccessLog {
    queue: NonBlocking,
    overflow_counter: ErrorCounter,
    control: Arc<OutputControl>,
    format: Format,
}

/// Writes the queued lines when dropped, for a limited time.
#[must_use = "the access log stops when this is dropped"]
#[derive(Debug)]
pub struct AccessLogGuard(Option<WorkerGuard>);

impl AccessLog {
    /// Opens the log. The guard must be kept until the last request has been logged.
    ///
    /// # Errors
    /// Any error of opening the file.
    pub fn open(settings: &AccessLogSettings) -> io::Result<(Self, AccessLogGuard)> {
        let control = Arc::default();
        let output = LogOutput::open(settings.sink.clone(), Arc::clone(&control))?;
        Ok(Self::new(output, control, settings.format))
    }

    /// Writes a line for one request; never waits.
    pub fn log(&self, entry: &AccessLogEntry<'_>) {
        let line = match self.format {
            Format::Envoy => line::format_envoy(entry),
            Format::Json => line::format_json(entry),
        };
        // Never fails: if the queue is full, the line is dropped and counted there.
        let _ = io::Write::write_all(&mut self.queue.clone(), &line);
    }

    /// Reopens the file before the next line (SIGUSR1), for log rotation. Has no effect on standard output and error.
    pub fn reopen(&self) {
        self.control.is_reopen_requested.store(true, Ordering::Release);
        // An empty line wakes the thread without writing, so that a rotated file is closed at once.
        let _ = io::Write::write_all(&mut self.queue.clone(), &[]);
    }

    /// Returns the number of lines lost since the start, because the queue was full or writing failed.
    pub fn dropped_lines(&self) -> u64 {
        (self.overflow_counter.dropped_lines() as u64).saturating_add(self.control.lost_lines.get())
    }

    fn new<W: io::Write + Send + 'static>(
        writer: W,
        control: Arc<OutputControl>,
        format: Format,
    ) -> (Self, AccessLogGuard) {
        let (queue, guard) = NonBlockingBuilder::default()
            .buffered_lines_limit(MAX_QUEUED_LINES)
            .lossy(true)
            .thread_name("access-log")
            .finish(writer);
        let overflow_counter = queue.error_counter();
        (Self { queue, overflow_counter, control, format }, AccessLogGuard(Some(guard)))
    }
}

/// Returns the line of a request.
#[cfg(any(test, fuzzing))]
pub(crate) fn formatted_line(entry: &AccessLogEntry<'_>, format: Format) -> Vec<u8> {
    match format {
        Format::Envoy => line::format_envoy(entry),
        Format::Json => line::format_json(entry),
    }
}

impl Drop for AccessLogGuard {
    /// Drops the appender's guard on another thread. That guard waits without limit if its thread is stalled, and
    /// prints to standard output, which may be what is stalled.
    fn drop(&mut self) {
        let guard = self.0.take();
        let (done, wait) = mpsc::sync_channel(1);
        let flusher = thread::Builder::new().name("access-log-end".to_owned()).spawn(move || {
            drop(guard);
            let _ = done.send(());
        });
        if flusher.is_ok() {
            let _ = wait.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

#[cfg(test)]
mod tests;
