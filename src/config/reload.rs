//! Hot reload: follows the configuration file, the fetched document if the file is a bootstrap, and the data
//! files that they name.
//!
//! A new text is read once it has stopped changing, or after a second at the latest. It is compiled as a
//! whole and handed on. A text that has problems or cannot be read changes only the status. Content is
//! compared, not events or times, so that any way of replacing a file works and no change is missed. Files
//! that keep changing cost a bounded share of one CPU.

mod reading;
mod report;
mod restart;
mod status;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use self::reading::{Found, Reading, Stamps, lines_cut_off, missing_end};
use self::report::{hash, log, shortened};
pub use self::restart::restart_fields;
use self::restart::without_data;
use self::status::Shared;
pub use self::status::{Attempt, Handle, Reload, Status};
use super::files::Files;
use super::{Config, Problem, Rest, source, with_files};
use crate::central::document::Document;
use crate::clock::Stopwatch;
use crate::limiter::timestamp::Timestamp;
use crate::watch::debounce::{self, Debounce};
use crate::watch::stamp::Stamp;
use crate::watch::{FileWatch, WaitResult};

/// Interval between checks of the file without a notification.
const POLL: Duration = Duration::from_secs(2);

/// Maximum number of reads in a row of a file that keeps changing; the next check continues.
const MOST_READS: usize = 10;

/// Pause after work, as a multiple of its duration: files that are replaced all the time take a quarter of a
/// CPU.
const REST: u32 = 3;

#[derive(Clone, Copy, Debug)]
struct Pace {
    settling: debounce::DebounceTimes,
    poll: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { settling: debounce::DebounceTimes::default(), poll: POLL }
    }
}

/// The source of a configuration.
#[derive(Debug)]
enum Origin {
    File(PathBuf),
    /// A bootstrap file, with a fetched document that is delivered.
    Central(PathBuf),
    /// Generated text that is not in a file.
    Text(Arc<str>),
}

impl Origin {
    /// The file's name, which names of data files are relative to.
    fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Central(path) => path,
            Self::Text(_) => Path::new("environment"),
        }
    }

    fn read(&self) -> Result<String, Problem> {
        match self {
            Self::File(path) | Self::Central(path) => source::read(path),
            Self::Text(text) => Ok((**text).to_owned()),
        }
    }
}

/// Watches the configuration file and the data files that it names.
#[derive(Debug)]
pub struct Reloader {
    origin: Origin,
    watch: FileWatch,
    pace: Pace,
    shared: Arc<Shared>,
    /// The configuration at startup, for finding changes that need a restart.
    started: Config,
    files: Files,
    running: Found,
    /// The stamp of the file with the running text.
    running_stamp: Option<Stamp>,
    /// The result of the last evaluation, for recognising that nothing has changed.
    seen: Found,
    /// Time spent on reading and compiling since the last pause.
    busy: Duration,
}

impl Reloader {
    /// Loads the configuration at startup, and creates the reloader that follows its file.
    ///
    /// # Errors
    /// Returns every problem of the file.
    pub fn start(path: &Path) -> Result<(Config, Self), Vec<Problem>> {
        // Watching starts before reading, so that a change in between is noticed.
        Self::with(Origin::File(path.to_owned()), None, FileWatch::for_file(path), Pace::default())
    }

    /// Starts with a bootstrap and a fetched document; further documents are [delivered](Handle::deliver).
    ///
    /// # Errors
    /// Returns every problem of both.
    pub fn start_central(path: &Path, document: Document) -> Result<(Config, Self), Vec<Problem>> {
        Self::with(
            Origin::Central(path.to_owned()),
            Some(document),
            FileWatch::for_file(path),
            Pace::default(),
        )
    }

    /// Starts with a configuration that is not in a file. Files that it names are followed.
    ///
    /// # Errors
    /// Returns every problem of the text.
    pub fn start_with(text: &str) -> Result<(Config, Self), Vec<Problem>> {
        let watch = FileWatch::for_directories(HashSet::new());
        Self::with(Origin::Text(text.into()), None, watch, Pace::default())
    }

    fn with(
        origin: Origin,
        document: Option<Document>,
        mut watch: FileWatch,
        pace: Pace,
    ) -> Result<(Config, Self), Vec<Problem>> {
        let running_stamp = Stamp::from_path(origin.path());
        let text = origin.read().map_err(|problem| vec![problem])?;
        let mut files = Files::default();
        let rest = rest(document.as_ref());
        let config = with_files(&text, origin.path(), rest, &source::variable, &mut files)?;
        let data = files.marks();
        watch.watch_files(data.keys());
        let status = Status {
            file: origin.path().to_owned(),
            generation: 1,
            text: text.as_str().into(),
            text_hash: hash(&text, document.as_ref()),
            document: document.clone(),
            needs_restart: Vec::new(),
            last: None,
        };
        let shared = Shared {
            status: Mutex::new(status),
            document: Mutex::new(document.clone()),
            requested: AtomicBool::new(false),
            hurry: Arc::default(),
            stopped: AtomicBool::new(false),
        };
        let reloader = Self {
            origin,
            watch,
            pace,
            shared: Arc::new(shared),
            started: without_data(&config),
            files,
            running: Found { text: Ok(text.clone()), document: document.clone(), data: data.clone() },
            running_stamp,
            seen: Found { text: Ok(text), document, data },
            busy: Duration::ZERO,
        };
        Ok((config, reloader))
    }

    /// Returns a handle that controls the reloader from other threads.
    pub fn handle(&self) -> Handle {
        Handle { shared: Arc::clone(&self.shared), waker: self.watch.waker() }
    }

    /// Follows the file until [`Handle::stop`]. Blocks, so it needs a thread of its own.
    ///
    /// `apply` receives every outcome; the status shows an outcome once `apply` has returned.
    pub fn run(mut self, now: impl Fn() -> Timestamp, mut apply: impl FnMut(Reload)) {
        while !self.is_stopped() {
            let woken = self.watch.wait(self.pace.poll);
            let requested = self.shared.requested.swap(false, Ordering::AcqRel);
            let settling = Debounce::start(self.pace.settling);
            if woken == WaitResult::Notified && !requested {
                self.settle(&settling);
            }
            if let Some(reading) = self.look(requested, &settling) {
                let began = Stopwatch::start();
                if let Some(reload) = self.evaluate(&reading) {
                    let status = self.status_after(&reload, now());
                    apply(reload);
                    *self.shared.status.lock() = status;
                }
                self.busy += began.elapsed();
            }
            self.rest();
        }
    }

    fn is_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Acquire)
    }

    fn settle(&self, settling: &Debounce) {
        self.watch.settle(settling, |_| true, || self.is_stopped());
    }

    /// Pauses in proportion to the work done since the last pause, whatever happens meanwhile.
    fn rest(&mut self) {
        let lasts = std::mem::take(&mut self.busy).saturating_mul(REST);
        self.pause(lasts);
    }

    /// Waits for `lasts`, or until stopped. Events during the pause are handled after it.
    fn pause(&self, lasts: Duration) {
        let began = Stopwatch::start();
        let mut woken = WaitResult::TimedOut;
        while !self.is_stopped() {
            let left = lasts.saturating_sub(began.elapsed());
            if left.is_zero() {
                break;
            }
            if self.watch.wait(left) == WaitResult::Notified {
                woken = WaitResult::Notified;
            }
        }
        if woken == WaitResult::Notified {
            self.watch.waker().wake();
        }
    }

    /// Reads the files; `None` if nothing has changed and no reload was requested, or if a file is being
    /// written.
    fn look(&mut self, requested: bool, settling: &Debounce) -> Option<Reading> {
        let mut reading = self.read();
        for _ in 0..MOST_READS {
            if self.is_stopped() {
                return None;
            }
            if reading.found == self.seen {
                return requested.then_some(reading);
            }
            self.settle(settling);
            let again = self.read();
            let is_open = self.watch.has_open_files();
            if again.found == reading.found && reading.is_steady && !is_open {
                return self.has_rested(&again).then_some(again);
            }
            if settling.is_over() && !is_open && reading.is_confirmed_by(&again, self.origin.path()) {
                // Changes since this reading are evaluated next.
                self.watch.waker().wake();
                return self.has_rested(&reading).then_some(reading);
            }
            reading = again;
        }
        self.watch.waker().wake();
        None
    }

    /// If the text may be truncated, pauses and returns whether it is still the same afterwards.
    fn has_rested(&mut self, reading: &Reading) -> bool {
        if self.cut_off(reading).is_none() {
            return true;
        }
        self.pause(self.pace.settling.max_wait);
        let rested = self.read().found.text == reading.found.text;
        if !rested {
            self.watch.waker().wake();
        }
        rested
    }

    /// Number of lines missing at the end of a text that was written over the running one. A file that was
    /// replaced by another is taken as complete.
    fn cut_off(&self, reading: &Reading) -> Option<usize> {
        let (Ok(running), Ok(text)) = (&self.running.text, &reading.found.text) else { return None };
        let stamp = reading.stamps.get(self.origin.path())?.as_ref()?;
        self.running_stamp.filter(|running| running.is_same_file_as(stamp))?;
        lines_cut_off(running, text)
    }

    fn read(&mut self) -> Reading {
        let began = Stopwatch::start();
        let stamps = self.stamps();
        let document = self.shared.document.lock().clone();
        let found = Found { text: self.origin.read(), document, data: self.files.look() };
        let is_steady = self.stamps() == stamps;
        self.busy += began.elapsed();
        Reading { found, stamps, is_steady }
    }

    fn stamps(&self) -> Stamps {
        let paths = self.files.paths().chain([self.origin.path()]);
        paths.map(|path| (path.to_owned(), Stamp::from_path(path))).collect()
    }

    /// Compiles what was read; `None` if a data file is being written at the moment.
    fn evaluate(&mut self, reading: &Reading) -> Option<Reload> {
        let found = &reading.found;
        let is_news = *found != self.seen;
        let before = self.files.compilations();
        let compiled = match &found.text {
            Ok(_) if *found == self.running => None,
            Ok(text) => Some(self.compile(text, found.document.as_ref())),
            Err(problem) => Some(Err(vec![problem.clone()])),
        };
        // The data files that were used may differ from those found, because the text may name other files
        // now.
        let data = if self.files.compilations() == before { found.data.clone() } else { self.files.marks() };
        let used = Found { text: found.text.clone(), document: found.document.clone(), data };
        self.watch.watch_files(used.data.keys());
        if !self.is_confirmed(reading, &used) {
            self.watch.waker().wake();
            return None;
        }
        let reload = match compiled {
            None => Reload::Unchanged,
            // A file may have disappeared and returned, or be named again.
            Some(Ok(_)) if used == self.running => Reload::Unchanged,
            Some(Ok(config)) => {
                let needs_restart = restart_fields(&self.started, &config);
                let warnings = self.cut_off(reading).map(shortened).into_iter().collect();
                self.running = used.clone();
                self.running_stamp = reading.stamps.get(self.origin.path()).copied().flatten();
                let document = used.document.clone();
                Reload::Applied { config: Box::new(config), document, needs_restart, warnings }
            }
            Some(Err(problems)) => Reload::Rejected { problems },
        };
        self.seen = used;
        if is_news {
            log(self.origin.path(), &reload);
        }
        Some(reload)
    }

    fn compile(&mut self, text: &str, document: Option<&Document>) -> Result<Config, Vec<Problem>> {
        let running = self.running.text.as_deref().unwrap_or_default();
        let cut_off = missing_end(running, text, self.origin.path()).or_else(|| {
            let (running, document) = self.running.document.as_ref().zip(document)?;
            missing_end(&running.text, &document.text, Path::new(&*document.url))
        });
        if let Some(problem) = cut_off {
            return Err(vec![problem]);
        }
        with_files(text, self.origin.path(), rest(document), &source::variable, &mut self.files)
    }

    /// Whether the data files that were used are complete. Files with the same content as in `reading` are;
    /// others are read once more.
    fn is_confirmed(&mut self, reading: &Reading, used: &Found) -> bool {
        let is_known = |path: &PathBuf| reading.found.data.get(path) == used.data.get(path);
        if used.data.keys().all(is_known) {
            return true;
        }
        let used = Reading { found: used.clone(), stamps: self.stamps_used(reading), is_steady: true };
        self.pause(self.pace.settling.confirm);
        let again = self.read();
        !self.watch.has_open_files() && used.is_confirmed_by(&again, self.origin.path())
    }

    /// Returns the stamps of the files that were used.
    fn stamps_used(&self, reading: &Reading) -> Stamps {
        let mut stamps = reading.stamps.clone();
        stamps.extend(self.files.stamps());
        stamps
    }

    fn status_after(&self, reload: &Reload, at: Timestamp) -> Status {
        let mut status = self.shared.status.lock().clone();
        let (mut problems, mut said) = (Vec::new(), Vec::new());
        match reload {
            Reload::Applied { needs_restart, warnings, .. } => {
                said.clone_from(warnings);
                status.generation += 1;
                let text = self.running.text.as_deref().unwrap_or_default();
                status.text = text.into();
                status.text_hash = hash(text, self.running.document.as_ref());
                status.document.clone_from(&self.running.document);
                status.needs_restart.clone_from(needs_restart);
            }
            Reload::Unchanged => {}
            Reload::Rejected { problems: found } => problems.extend(found.iter().map(ToString::to_string)),
        }
        status.last = Some(Attempt { at, outcome: reload.outcome(), problems, warnings: said });
        status
    }
}

/// Returns what a file is combined with.
fn rest(document: Option<&Document>) -> Rest<'_> {
    document.map_or(Rest::Nothing, Rest::Document)
}

#[cfg(test)]
mod tests;
