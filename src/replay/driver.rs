//! The main loop: opens the logs when their time has come, and passes requests to the rules in order of arrival.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::clients::ClientTable;
use super::format::fields::FieldNames;
use super::input::LogInput;
use super::record::{LineCounts, LoggedRequest, ParsedBlock};
use super::report::{LogReport, ReplayReport};
use super::simulation::{Fate, Simulation};
use super::stream::{LogStream, MAX_EXAMPLES};
use super::timeline::Timeline;
use super::{ReplayError, ReplayOptions, ReplayRules};
use crate::clock::Stopwatch;
use crate::limiter::elastic::Headroom;
use crate::limiter::timestamp::Timestamp;

/// How far the logs must have advanced beyond the arrival of a request before it is decided. Lines are written when
/// requests end, so this is how long a request may take without being out of order.
pub(super) const REORDERING_WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of requests that wait to be decided, about 400 MB. More make the window shorter.
pub(super) const MAX_WAITING: usize = 1_000_000;

/// A log that is being read.
struct OpenLog {
    stream: LogStream,
    /// Index among the reports.
    index: usize,
    /// Latest end of a request so far.
    last_end: Timestamp,
}

/// The rules, and what they did so far.
pub(super) struct Replay {
    pub(super) simulation: Simulation,
    /// The rules to compare with.
    pub(super) before: Option<Simulation>,
    pub(super) clients: ClientTable,
    /// The virtual clock.
    now: Timestamp,
    pub(super) first: Option<Timestamp>,
    pub(super) last: Timestamp,
    pub(super) requests: u64,
    /// Requests that the proxy would not accept.
    pub(super) malformed: u64,
    /// Requests that were read after later ones had been decided.
    pub(super) late: u64,
    /// Whether every time so far is a whole second.
    pub(super) has_whole_seconds: bool,
}

/// Replays logs with `rules`, and compares with the decisions of `against`. Progress is shown on standard error, if that
/// is a terminal.
///
/// # Errors
/// [`ReplayError`] if a log cannot be read.
pub fn run(
    rules: &ReplayRules<'_>,
    against: Option<&ReplayRules<'_>>,
    options: &ReplayOptions,
) -> Result<ReplayReport, ReplayError> {
    let started = Stopwatch::start();
    if !(0.0..=1.0).contains(&options.headroom) {
        let message = format!("--elastic-headroom {}: expected a number from 0 to 1", options.headroom);
        return Err(ReplayError::Option(message));
    }
    let headroom = Headroom::from_fraction(options.headroom);
    let simulate = |rules: &ReplayRules<'_>| Simulation::new(rules.policy, rules.max_keys, headroom);
    let mut replay = Replay::new(simulate(rules), against.map(simulate));
    let names = replay.field_names(&options.fields)?;
    let bytes = Arc::new(AtomicU64::new(0));
    let open = |path: &PathBuf| LogInput::open(path, options.format, &names, &bytes);
    let logs = options.logs.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let mut reports: Vec<LogReport> = logs.iter().map(LogReport::new).collect();
    let progress = progress_bar(&logs);
    let read = LogReader { names: &names, bytes: &bytes, progress: &progress, started: &started };
    let outcome = read.replay(logs, &mut replay, &mut reports);
    progress.finish_and_clear();
    outcome?;
    Ok(ReplayReport::new(rules, against, options, replay, reports, started.elapsed()))
}

impl Replay {
    fn new(simulation: Simulation, before: Option<Simulation>) -> Self {
        Self {
            simulation,
            before,
            clients: ClientTable::default(),
            now: Timestamp::EPOCH,
            first: None,
            last: Timestamp::EPOCH,
            requests: 0,
            malformed: 0,
            late: 0,
            has_whole_seconds: true,
        }
    }

    /// Returns the names of fields in JSON logs, among them those of all headers that the rules need.
    fn field_names(&mut self, mappings: &[String]) -> Result<FieldNames, ReplayError> {
        let mut headers = self.simulation.needs().headers().to_vec();
        let before = self.before.iter().flat_map(|before| before.needs().headers());
        let others: Vec<_> = before.filter(|name| !headers.contains(name)).cloned().collect();
        headers.extend(others);
        self.simulation.set_collected_headers(&headers);
        self.before.iter_mut().for_each(|before| before.set_collected_headers(&headers));
        FieldNames::new(&headers, mappings).map_err(ReplayError::Option)
    }

    /// Decides one request.
    #[inline]
    fn decide(&mut self, block: &ParsedBlock, request: &LoggedRequest) {
        self.requests += 1;
        self.late += u64::from(request.start < self.now);
        self.has_whole_seconds &= request.start.as_nanos() % 1_000_000_000 == 0;
        self.now = self.now.max(request.start);
        let now = self.now;
        self.first.get_or_insert(now);
        self.last = now;
        let (fate, mut client) = self.simulation.decide(block, request, now);
        let mut fate_before = None;
        if let Some(before) = &mut self.before {
            let (fate, its_client) = before.decide(block, request, now);
            (fate_before, client) = (Some(fate), client.or(its_client));
        }
        self.malformed += u64::from(fate == Fate::Malformed);
        let is_rejected = |fate| matches!(fate, Fate::Rejected(_));
        if is_rejected(fate) || fate_before.is_some_and(is_rejected) {
            self.clients.count(client, fate, fate_before, now);
        }
    }
}

/// Reads logs in parallel and merges their requests.
struct LogReader<'a> {
    names: &'a FieldNames,
    bytes: &'a Arc<AtomicU64>,
    progress: &'a ProgressBar,
    started: &'a Stopwatch,
}

impl LogReader<'_> {
    fn replay(
        &self,
        logs: Vec<LogInput>,
        replay: &mut Replay,
        reports: &mut [LogReport],
    ) -> Result<(), ReplayError> {
        // The first one last, so that it is the first to be popped.
        let mut closed: Vec<(usize, LogInput)> = logs.into_iter().enumerate().collect();
        closed.sort_by_key(|(index, log)| std::cmp::Reverse((log.first, *index)));
        let (mut timeline, mut lines) = (Timeline::default(), 0);
        std::thread::scope(|scope| {
            // Dropped before the threads are joined, so that they end if there is an error.
            let mut open = Vec::<OpenLog>::new();
            loop {
                let frontier = open.iter().map(|log| log.last_end).min();
                let is_due = |log: &LogInput| frontier.is_none_or(|frontier| log.first <= Some(frontier));
                if let Some((index, log)) = closed.pop_if(|(_, log)| is_due(log)) {
                    let stream = LogStream::start(scope, log, self.names, self.bytes)?;
                    open.push(OpenLog { stream, index, last_end: Timestamp::EPOCH });
                    continue;
                }
                let Some(place) = (0..open.len()).min_by_key(|place| open[*place].last_end) else {
                    release(&mut timeline, Timestamp::END, 0, replay, &open);
                    return Ok(());
                };
                match open[place].stream.next_block()? {
                    None => drop(open.swap_remove(place)),
                    Some(block) => {
                        lines += block.counts.lines;
                        let log = &mut open[place];
                        log.last_end = log.last_end.max(block.last_end);
                        reports[log.index].add(&block);
                        if let Some(unused) = timeline.add(block, log.index) {
                            log.stream.recycle(unused);
                        }
                        self.show_progress(lines);
                    }
                }
                let frontier = open.iter().map(|log| log.last_end).min().unwrap_or_default();
                release(
                    &mut timeline,
                    frontier.saturating_sub(REORDERING_WINDOW),
                    MAX_WAITING,
                    replay,
                    &open,
                );
            }
        })
    }

    fn show_progress(&self, lines: u64) {
        self.progress.set_position(self.bytes.load(Ordering::Relaxed));
        if !self.progress.is_hidden() {
            let rate = lines as f64 / self.started.elapsed().as_secs_f64().max(0.001);
            self.progress.set_message(format!("{lines} lines, {rate:.0} lines/s"));
        }
    }
}

/// Decides the requests that arrived at `end` or before, and more until at most `max_waiting` wait.
fn release(
    timeline: &mut Timeline,
    end: Timestamp,
    max_waiting: usize,
    replay: &mut Replay,
    open: &[OpenLog],
) {
    loop {
        let end = if timeline.waiting() > max_waiting { Timestamp::END } else { end };
        let recycle = |block, index| {
            if let Some(log) = open.iter().find(|log| log.index == index) {
                log.stream.recycle(block);
            }
        };
        if !timeline.release_first(end, |block, request| replay.decide(block, request), recycle) {
            return;
        }
    }
}

impl LogReport {
    /// Starts the report of a log.
    fn new(log: &LogInput) -> Self {
        Self {
            name: log.name.clone(),
            format: log.format,
            counts: LineCounts::default(),
            unreadable_examples: Vec::new(),
        }
    }

    /// Adds the lines of a block.
    fn add(&mut self, block: &ParsedBlock) {
        self.counts.add(block.counts);
        let missing = MAX_EXAMPLES.saturating_sub(self.unreadable_examples.len());
        self.unreadable_examples.extend(block.examples.iter().take(missing).cloned());
    }
}

/// Returns a progress bar in bytes, or a spinner if the size of a log is not known.
fn progress_bar(logs: &[LogInput]) -> ProgressBar {
    let size: Option<u64> = logs.iter().map(|log| log.size).sum();
    let (bar, template) = match size {
        Some(size) => (ProgressBar::new(size), "{wide_bar} {bytes}/{total_bytes}, {msg}, {eta} left"),
        None => (ProgressBar::no_length(), "{spinner} {bytes}, {msg}"),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
