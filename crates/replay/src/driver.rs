//! The main loop: opens the logs when their time has come, and passes requests to the rules in order of arrival.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

use super::decisions::Replay;
use super::format::fields::FieldNames;
use super::input::{LogInput, STANDARD_INPUT};
use super::record::{LineCounts, ParsedBlock};
use super::report::{LogReport, ReplayReport};
use super::simulation::Simulation;
use super::stream::{LogStream, MAX_EXAMPLES};
use super::timeline::{REORDERING_WINDOW, Timeline};
use super::{ReplayError, ReplayOptions, ReplayRules};
use weir_limiter::elastic::Headroom;
use weir_limiter::timestamp::Timestamp;
use weir_net::clock::Stopwatch;

/// A log that is being read.
struct MergedLog {
    stream: LogStream,
    /// Index among the reports.
    index: usize,
    /// Latest end of a request so far.
    last_end: Timestamp,
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
    if options.logs.iter().filter(|log| log.as_os_str() == STANDARD_INPUT).count() > 1 {
        return Err(ReplayError::Option("-: standard input can be read only once".to_owned()));
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
    let read = LogDriver { names: &names, bytes: &bytes, progress: &progress, started: &started };
    let outcome = read.replay(logs, &mut replay, &mut reports);
    progress.finish_and_clear();
    outcome?;
    Ok(ReplayReport::new(rules, against, options, replay, reports, started.elapsed()))
}

/// Reads logs in parallel and merges their requests.
struct LogDriver<'a> {
    names: &'a FieldNames,
    bytes: &'a Arc<AtomicU64>,
    progress: &'a ProgressBar,
    started: &'a Stopwatch,
}

impl LogDriver<'_> {
    fn replay(
        &self,
        logs: Vec<LogInput>,
        replay: &mut Replay,
        reports: &mut [LogReport],
    ) -> Result<(), ReplayError> {
        // The first one last, so that it is the first to be popped.
        let mut closed: Vec<(usize, LogInput)> = logs.into_iter().enumerate().collect();
        closed.sort_by_key(|(index, log)| std::cmp::Reverse((log.first, *index)));
        let mut lines = 0;
        std::thread::scope(|scope| {
            // Dropped before the threads are joined, so that they end if there is an error.
            let mut merge = LogMerge::default();
            loop {
                let frontier = merge.frontier();
                let is_due = |log: &LogInput| frontier.is_none_or(|frontier| log.first <= Some(frontier));
                if let Some((index, log)) = closed.pop_if(|(_, log)| is_due(log)) {
                    let stream = LogStream::start(scope, log, self.names, self.bytes)?;
                    merge.open.push(MergedLog { stream, index, last_end: Timestamp::EPOCH });
                    continue;
                }
                if merge.open.is_empty() {
                    merge.release(Timestamp::END, replay);
                    return Ok(());
                }
                // Every log with requests from before the frontier is open now.
                let frontier = frontier.unwrap_or_default();
                merge.release(frontier.saturating_sub(REORDERING_WINDOW), replay);
                lines += merge.read_block(reports);
                self.show_progress(lines);
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

/// The logs that are being read, and their requests that have not been decided.
#[derive(Default)]
struct LogMerge {
    open: Vec<MergedLog>,
    timeline: Timeline,
}

impl LogMerge {
    /// Returns the time up to which every open log has been read; `None` if there is none.
    fn frontier(&self) -> Option<Timestamp> {
        self.open.iter().map(|log| log.last_end).min()
    }

    /// Reads a block of the log that is behind the others; returns the number of its lines. A log that cannot be read to
    /// its end keeps the lines before.
    fn read_block(&mut self, reports: &mut [LogReport]) -> u64 {
        let Some(place) = (0..self.open.len()).min_by_key(|place| self.open[*place].last_end) else {
            return 0;
        };
        let log = &mut self.open[place];
        let read = log.stream.next_block();
        let Ok(Some(block)) = read else {
            reports[log.index].error = read.err().map(|error| error.to_string());
            self.open.swap_remove(place);
            return 0;
        };
        let lines = block.counts.lines;
        log.last_end = log.last_end.max(block.last_end);
        reports[log.index].add(&block);
        if let Some(unused) = self.timeline.add(block, log.index) {
            log.stream.recycle(unused);
        }
        lines
    }

    /// Decides the requests that arrived at `end` or before, and more while too many wait.
    fn release(&mut self, end: Timestamp, replay: &mut Replay) {
        let Self { open, timeline } = self;
        while timeline.release_batch(end) {
            replay.decide(timeline.batch());
            timeline.clear_batch(|block, index| {
                if let Some(log) = open.iter().find(|log| log.index == index) {
                    log.stream.recycle(block);
                }
            });
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
            implausible_examples: Vec::new(),
            error: None,
            found: log.found.clone(),
        }
    }

    /// Adds the lines of a block.
    fn add(&mut self, block: &ParsedBlock) {
        self.counts.add(block.counts);
        for (all, more) in [
            (&mut self.unreadable_examples, &block.examples),
            (&mut self.implausible_examples, &block.implausible),
        ] {
            let missing = MAX_EXAMPLES.saturating_sub(all.len());
            all.extend(more.iter().take(missing).cloned());
        }
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
