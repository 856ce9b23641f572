//! Access log: one line per request, in Envoy's default format, as JSON or in a custom format.
//!
//! A line is formatted by the worker, into memory that it reuses, and appended to the bounded batch of a separate thread.
//! If lines cannot be written in time (full pipe, slow disk), they are dropped and counted: a stalled log must not delay
//! requests. `line` and `custom_format` format lines, `writer` queues them, `output` writes them. A request is logged
//! where and how its generation of the configuration says, so a reload loses no line.

mod custom_format;
mod hidden_parameters;
mod line;
mod output;
mod time_format;
mod writer;

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode, Version};
use parking_lot::Mutex;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Deserialize;

pub use self::custom_format::{CustomFormat, FormatError};
use self::output::OutputControl;
use self::writer::LogWriter;
use super::atomic_counter::AtomicCounter;
use weir_limiter::percent::Percent;
use weir_limiter::timestamp::{Timestamp, saturating_millis};
use weir_policy::rules::outcome::DecisionOutcome;

/// Capacity of the memory for a line that is kept for the next one, enough for most lines.
const KEPT_LINE_CAPACITY: usize = 4096;

thread_local! {
    /// Memory for the line that is being formatted.
    static LINE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLogSettings {
    /// Destination of lines.
    pub sink: Sink,
    /// Format of lines.
    pub format: Format,
    /// Share of the requests that are logged, among those that `only` selects.
    pub sample: Percent,
    /// Kinds of requests that are logged; empty for all requests.
    pub only: Box<[RequestKind]>,
    /// Names of query parameters whose values are not logged.
    pub hidden_parameters: Box<[Box<str>]>,
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

impl fmt::Display for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::Stderr => f.write_str("stderr"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Format of access log lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Envoy's default format string.
    #[default]
    Envoy,
    /// One JSON object.
    Json,
    /// Another format string.
    Custom(Arc<CustomFormat>),
}

/// Kind of requests that the access log may be restricted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum RequestKind {
    /// Requests that a rule rejected, delayed or marked, or would have rejected.
    Limited,
    /// Requests with a status code of 500 or above, or without a response.
    Errors,
}

/// Contents of one line. Bytes are as received; the formatter escapes them.
#[derive(Clone, Debug)]
pub struct AccessLogEntry<'a> {
    /// Arrival time of the request's header section.
    pub start: Timestamp,
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
    pub user_agent: Option<&'a [u8]>,
    /// X-Request-Id as sent upstream.
    pub request_id: Option<&'a [u8]>,
    /// Host, or the authority of the target.
    pub authority: Option<&'a [u8]>,
    /// Values of [`AccessLog::other_headers`], in that order.
    pub other_headers: &'a [Option<HeaderValue>],
    /// Address of the endpoint, if the request was sent to one.
    pub upstream_host: Option<&'a str>,
    /// Number of attempts to send it upstream.
    pub attempts: u32,
    /// Class of the request, if the concurrency of upstreams is limited and it may be forwarded.
    pub class: Option<&'a str>,
    /// Address of the client, as used by the rules.
    pub client_ip: std::net::IpAddr,
    /// What the rules decided; `None` if no rule applied.
    pub decision: Option<LoggedRule<'a>>,
}

/// The rule that mattered most for a request, and what it did.
#[derive(Clone, Debug)]
pub struct LoggedRule<'a> {
    pub rule: &'a str,
    /// What it did.
    pub outcome: DecisionOutcome,
    /// Key of the request under the rule, as operators may see it.
    pub key: Option<&'a str>,
    /// The limit with the fewest units left.
    pub limit: Option<u32>,
    /// Units that it had left after the decision.
    pub remaining: Option<u32>,
    /// Time for which the request was delayed.
    pub delay: Duration,
    /// Units that it was charged, if its end has decided that.
    pub cost: Option<u32>,
    /// Names of the rules in shadow mode whose limits the request exceeds.
    pub shadow_rules: &'a [&'a str],
}

/// An open access log with its format. Clones share it.
#[derive(Clone, Debug)]
pub struct AccessLog(Arc<OpenLog>);

#[derive(Debug)]
struct OpenLog {
    settings: AccessLogSettings,
    writer: Arc<LogWriter>,
}

/// Opens the access logs of successive configurations. A destination that stays the same is not opened again.
#[derive(Debug, Default)]
pub struct AccessLogManager {
    /// Writers of all destinations. One that is no longer configured exists until its last request has ended.
    writers: Mutex<Vec<Weak<LogWriter>>>,
    lost_lines: Arc<AtomicCounter>,
}

impl AccessLogSettings {
    /// Returns settings by which every request is logged to `sink`.
    pub fn new(sink: Sink, format: Format) -> Self {
        let hidden_parameters = Box::default();
        Self { sink, format, sample: Percent::ONE_HUNDRED, only: Box::default(), hidden_parameters }
    }
}

impl AccessLogEntry<'_> {
    /// Returns the rule that rejected the request.
    pub fn rejecting_rule(&self) -> Option<&str> {
        let decision = self.decision.as_ref()?;
        match decision.outcome {
            DecisionOutcome::Limited | DecisionOutcome::Banned | DecisionOutcome::Denied => {
                Some(decision.rule)
            }
            DecisionOutcome::Allowed
            | DecisionOutcome::Soft
            | DecisionOutcome::Delayed
            | DecisionOutcome::Exempt
            | DecisionOutcome::Shadow
            | DecisionOutcome::Diverted => None,
        }
    }

    fn is_of_kind(&self, kind: RequestKind) -> bool {
        match kind {
            RequestKind::Limited => self.decision.as_ref().is_some_and(|decision| match decision.outcome {
                DecisionOutcome::Allowed | DecisionOutcome::Exempt => !decision.shadow_rules.is_empty(),
                DecisionOutcome::Soft
                | DecisionOutcome::Delayed
                | DecisionOutcome::Limited
                | DecisionOutcome::Banned
                | DecisionOutcome::Denied
                | DecisionOutcome::Shadow
                | DecisionOutcome::Diverted => true,
            }),
            RequestKind::Errors => self.status.is_none_or(|status| status.as_u16() >= 500),
        }
    }
}

impl LoggedRule<'_> {
    /// Returns the delay in milliseconds; `None` if there was none.
    pub(super) fn delay_millis(&self) -> Option<u64> {
        (!self.delay.is_zero()).then(|| saturating_millis(self.delay))
    }
}

impl AccessLog {
    /// Returns whether a request is in the sample. `random` supplies a uniform number.
    pub fn is_sampled(&self, random: impl FnOnce() -> u64) -> bool {
        let sample = self.0.settings.sample;
        sample == Percent::ONE_HUNDRED || sample.includes(random())
    }

    /// Returns the request headers in the format that an [`AccessLogEntry`] does not contain otherwise.
    pub fn other_headers(&self) -> &[HeaderName] {
        match &self.0.settings.format {
            Format::Custom(format) => format.other_headers(),
            Format::Envoy | Format::Json => &[],
        }
    }

    /// Returns whether lines contain the key of the request under the rule.
    pub fn shows_keys(&self) -> bool {
        match &self.0.settings.format {
            Format::Envoy => false,
            Format::Json => true,
            Format::Custom(format) => format.shows_keys(),
        }
    }

    /// Writes a line for one request of the sample, if it is of a kind that is logged; never waits.
    pub fn log(&self, entry: &AccessLogEntry<'_>) {
        let OpenLog { settings, writer } = &*self.0;
        if !settings.only.is_empty() && !settings.only.iter().any(|kind| entry.is_of_kind(*kind)) {
            return;
        }
        match hidden_parameters::hide(entry.path, &settings.hidden_parameters) {
            Cow::Borrowed(_) => writer.write_entry(entry, &settings.format),
            Cow::Owned(path) => {
                writer.write_entry(&AccessLogEntry { path: &path, ..entry.clone() }, &settings.format);
            }
        }
    }
}

impl LogWriter {
    fn write_entry(&self, entry: &AccessLogEntry<'_>, format: &Format) {
        LINE.with_borrow_mut(|line| {
            format.write(entry, line);
            self.write(line);
            line.clear();
            line.shrink_to(KEPT_LINE_CAPACITY);
        });
    }
}

impl Format {
    /// Appends the line of a request, without its end.
    pub fn write(&self, entry: &AccessLogEntry<'_>, line: &mut Vec<u8>) {
        match self {
            Self::Envoy => line::write_envoy(entry, line),
            Self::Json => line::write_json(entry, line),
            Self::Custom(format) => format.write(entry, line),
        }
    }
}

impl AccessLogManager {
    /// Opens the access log of a configuration; `None` if it has none.
    ///
    /// # Errors
    /// Any error of opening the file or starting a thread.
    pub fn open(&self, settings: Option<&AccessLogSettings>) -> io::Result<Option<AccessLog>> {
        let Some(settings) = settings else { return Ok(None) };
        let writer = self.writer(&settings.sink)?;
        Ok(Some(AccessLog(Arc::new(OpenLog { settings: settings.clone(), writer }))))
    }

    /// Reopens the files before the next line (SIGUSR1), for log rotation. Has no effect on standard output and error.
    pub fn reopen(&self) {
        self.writers.lock().iter().filter_map(Weak::upgrade).for_each(|writer| writer.reopen());
    }

    /// Returns the number of lines lost since the start, because a queue was full or writing failed.
    pub fn lost_lines(&self) -> u64 {
        self.lost_lines.get()
    }

    /// Writes the last lines, for a limited time. Lines after that are lost.
    pub fn finish(&self) {
        let writers: Vec<_> = self.writers.lock().iter().filter_map(Weak::upgrade).collect();
        writers.iter().for_each(|writer| writer.finish());
    }

    /// Returns the writer of a destination, which may still serve requests of an earlier configuration.
    fn writer(&self, sink: &Sink) -> io::Result<Arc<LogWriter>> {
        let mut writers = self.writers.lock();
        writers.retain(|writer| writer.strong_count() > 0);
        if let Some(open) = writers.iter().filter_map(Weak::upgrade).find(|open| open.sink() == sink) {
            return Ok(open);
        }
        let writer = Arc::new(LogWriter::open(sink, OutputControl::new(&self.lost_lines))?);
        writers.push(Arc::downgrade(&writer));
        Ok(writer)
    }
}

#[cfg(test)]
mod tests;
