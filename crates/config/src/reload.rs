//! Hot reload: follows the configuration file, the fetched document if the file is a bootstrap, and the data
//! files that they name.
//!
//! A new text is read once it has stopped changing, or after a second at the latest. It is compiled as a
//! whole and handed on. A text that has problems or cannot be read changes only the status. Content is
//! compared, not events or times, so that any way of replacing a file works and no change is missed. Files
//! that keep changing cost a bounded share of one CPU.

mod reload_log;
mod restart;
mod snapshot;
mod status;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

pub(super) use self::reload_log::hash_texts;
use self::reload_log::{log_reload, truncation_warning};
use self::restart::without_data;
use self::snapshot::{FileStamps, SourceContents, SourceSnapshot, missing_end_marker, truncated_lines};
use self::status::ReloadState;
pub use self::status::{Preparation, Reload, ReloadAttempt, ReloadHandle, ReloadStatus, UnusableSetting};
use super::data_files::DataFiles;
use super::{Config, Diagnostic, RestOfConfig, fragments, from_text_with_files, source};
use crate::central::document::FetchedDocument;
use crate::sections::{AT_STARTUP, changed_keys};
use weir_limiter::timestamp::Timestamp;
use weir_net::clock::Stopwatch;
use weir_net::watch::debounce::{self, Debounce};
use weir_net::watch::stamp::Stamp;
use weir_net::watch::{FileWatch, WaitResult};

/// Interval between checks of the file without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Maximum number of reads in a row of a file that keeps changing; the next check continues.
const MAX_READS: usize = 10;

/// Pause after work, as a multiple of its duration: files that are replaced all the time take a quarter of a
/// CPU.
const IDLE_TO_BUSY_RATIO: u32 = 3;

#[derive(Clone, Copy, Debug)]
struct ReloadTiming {
    debounce: debounce::DebounceTimes,
    poll_interval: Duration,
}

impl Default for ReloadTiming {
    fn default() -> Self {
        Self { debounce: debounce::DebounceTimes::default(), poll_interval: POLL_INTERVAL }
    }
}

/// The source of a configuration.
#[derive(Debug)]
enum ReloadOrigin {
    File(PathBuf),
    /// A bootstrap file, with a fetched document that is delivered.
    Central(PathBuf),
    /// Generated text that is not in a file.
    Text(Arc<str>),
}

impl ReloadOrigin {
    /// The file's name, which names of data files are relative to.
    fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Central(path) => path,
            Self::Text(_) => Path::new("environment"),
        }
    }

    /// Returns the files of which the text consists: those of the folder, or the file.
    fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::File(path) if path.is_dir() => fragments::files(path).unwrap_or_default(),
            Self::File(path) | Self::Central(path) => vec![path.clone()],
            Self::Text(_) => Vec::new(),
        }
    }

    fn read(&self) -> Result<String, Diagnostic> {
        match self {
            Self::File(path) | Self::Central(path) => source::read_text(path),
            Self::Text(text) => Ok((**text).to_owned()),
        }
    }
}

/// Watches the configuration file and the data files that it names.
#[derive(Debug)]
pub struct Reloader {
    origin: ReloadOrigin,
    watch: FileWatch,
    timing: ReloadTiming,
    state: Arc<ReloadState>,
    /// The configuration at startup, for finding changes that need another process.
    startup_config: Config,
    data_files: DataFiles,
    running_contents: SourceContents,
    /// The stamps of the files in force.
    running_stamps: FileStamps,
    /// The result of the last evaluation, for recognising that nothing has changed.
    last_contents: SourceContents,
    /// Time spent on reading and compiling since the last pause.
    busy_time: Duration,
}

impl Reloader {
    /// Loads the configuration at startup, and creates the reloader that follows its file.
    ///
    /// # Errors
    /// Returns every problem of the file.
    pub fn start(path: &Path) -> Result<(Config, Self), Vec<Diagnostic>> {
        // Watching starts before reading, so that a change in between is noticed.
        Self::start_from(
            ReloadOrigin::File(path.to_owned()),
            None,
            FileWatch::for_file(path),
            ReloadTiming::default(),
        )
    }

    /// Starts with a bootstrap and a fetched document; further documents are
    /// [delivered](ReloadHandle::deliver_document).
    ///
    /// # Errors
    /// Returns every problem of both.
    pub fn start_with_bootstrap(
        path: &Path,
        document: FetchedDocument,
    ) -> Result<(Config, Self), Vec<Diagnostic>> {
        Self::start_from(
            ReloadOrigin::Central(path.to_owned()),
            Some(document),
            FileWatch::for_file(path),
            ReloadTiming::default(),
        )
    }

    /// Starts with a configuration that is not in a file. Files that it names are followed.
    ///
    /// # Errors
    /// Returns every problem of the text.
    pub fn start_with_text(text: &str) -> Result<(Config, Self), Vec<Diagnostic>> {
        let watch = FileWatch::for_directories(HashSet::new());
        Self::start_from(ReloadOrigin::Text(text.into()), None, watch, ReloadTiming::default())
    }

    fn start_from(
        origin: ReloadOrigin,
        document: Option<FetchedDocument>,
        mut watch: FileWatch,
        timing: ReloadTiming,
    ) -> Result<(Config, Self), Vec<Diagnostic>> {
        let stamp = Stamp::from_path(origin.path());
        let text = origin.read().map_err(|problem| vec![problem])?;
        let mut files = DataFiles::default();
        let rest = rest_of_config(document.as_ref());
        let config =
            from_text_with_files(&text, origin.path(), rest, &source::environment_variable, &mut files)?;
        let data = files.recorded_hashes();
        watch.watch_files(data.keys().chain(&origin.files()));
        let running_stamps =
            [(origin.path().to_owned(), stamp)].into_iter().chain(files.recorded_stamps()).collect();
        let status = ReloadStatus {
            file: origin.path().to_owned(),
            generation: 1,
            text: text.as_str().into(),
            text_hash: hash_texts(&text, document.as_ref()),
            document: document.clone(),
            last_attempt: None,
        };
        let shared = ReloadState {
            status: Mutex::new(status),
            document: Mutex::new(document.clone()),
            is_requested: AtomicBool::new(false),
            fetch_notify: Arc::default(),
            is_stopped: AtomicBool::new(false),
        };
        let reloader = Self {
            origin,
            watch,
            timing,
            state: Arc::new(shared),
            startup_config: without_data(&config),
            data_files: files,
            running_contents: SourceContents {
                text: Ok(text.clone()),
                document: document.clone(),
                data_hashes: data.clone(),
            },
            running_stamps,
            last_contents: SourceContents { text: Ok(text), document, data_hashes: data },
            busy_time: Duration::ZERO,
        };
        Ok((config, reloader))
    }

    /// Returns a handle that controls the reloader from other threads.
    pub fn handle(&self) -> ReloadHandle {
        ReloadHandle { state: Arc::clone(&self.state), waker: self.watch.waker() }
    }

    /// Follows the file until [`ReloadHandle::stop`]. Blocks, so it needs a thread of its own.
    ///
    /// `prepare` opens what a valid configuration needs from the system. It also receives the changed keys that take effect
    /// only in another process. If it fails, the configuration is rejected.
    /// `apply` receives every outcome; the status shows an outcome once `apply` has returned. `tidy` is called at every
    /// look at the file.
    pub fn run(
        mut self,
        now: impl Fn() -> Timestamp,
        mut prepare: impl FnMut(&Config, &[&'static str]) -> Result<Preparation, UnusableSetting>,
        mut apply: impl FnMut(Reload),
        tidy: impl Fn(),
    ) {
        while !self.is_stopped() {
            let woken = self.watch.wait(self.timing.poll_interval);
            tidy();
            let requested = self.state.is_requested.swap(false, Ordering::AcqRel);
            let debounce = Debounce::start(self.timing.debounce);
            if woken == WaitResult::Notified && !requested {
                self.settle(&debounce);
            }
            if let Some(snapshot) = self.read_if_changed(requested, &debounce) {
                let began = Stopwatch::start();
                if let Some(reload) = self.evaluate(&snapshot, &mut prepare) {
                    let status = self.status_after(&reload, now());
                    apply(reload);
                    *self.state.status.lock() = status;
                }
                self.busy_time += began.elapsed();
            }
            self.idle_after_work();
        }
    }

    fn is_stopped(&self) -> bool {
        self.state.is_stopped.load(Ordering::Acquire)
    }

    fn settle(&self, debounce: &Debounce) {
        self.watch.settle(debounce, |_| true, || self.is_stopped());
    }

    /// Pauses in proportion to the work done since the last pause, whatever happens meanwhile.
    fn idle_after_work(&mut self) {
        let pause = std::mem::take(&mut self.busy_time).saturating_mul(IDLE_TO_BUSY_RATIO);
        self.pause(pause);
    }

    /// Waits for `duration`, or until stopped. Events during the pause are handled after it.
    fn pause(&self, duration: Duration) {
        let began = Stopwatch::start();
        let mut woken = WaitResult::TimedOut;
        while !self.is_stopped() {
            let remaining = duration.saturating_sub(began.elapsed());
            if remaining.is_zero() {
                break;
            }
            if self.watch.wait(remaining) == WaitResult::Notified {
                woken = WaitResult::Notified;
            }
        }
        if woken == WaitResult::Notified {
            self.watch.waker().wake();
        }
    }

    /// Reads the files; `None` if nothing has changed and no reload was requested, or if a file is being
    /// written.
    fn read_if_changed(&mut self, is_requested: bool, debounce: &Debounce) -> Option<SourceSnapshot> {
        let mut snapshot = self.read_snapshot();
        for _ in 0..MAX_READS {
            if self.is_stopped() {
                return None;
            }
            if snapshot.contents == self.last_contents {
                return is_requested.then_some(snapshot);
            }
            self.settle(debounce);
            let again = self.read_snapshot();
            if again.contents == snapshot.contents && snapshot.is_stable && !again.is_open {
                return self.is_unchanged_after_pause(&again).then_some(again);
            }
            if debounce.is_over() && snapshot.is_confirmed_by(&again, self.origin.path()) {
                // Changes since this snapshot are evaluated next.
                self.watch.waker().wake();
                return self.is_unchanged_after_pause(&snapshot).then_some(snapshot);
            }
            snapshot = again;
        }
        self.watch.waker().wake();
        None
    }

    /// If a file may be truncated, pauses and returns whether all are still the same afterwards.
    fn is_unchanged_after_pause(&mut self, snapshot: &SourceSnapshot) -> bool {
        if self.missing_lines(snapshot).is_none() && !snapshot.has_emptied_file(&self.running_stamps) {
            return true;
        }
        self.pause(self.timing.debounce.max_wait);
        let is_unchanged = self.read_snapshot().contents == snapshot.contents;
        if !is_unchanged {
            self.watch.waker().wake();
        }
        is_unchanged
    }

    /// Number of lines missing at the end of a text that was written over the running one. A file that was
    /// replaced by another is taken as complete.
    fn missing_lines(&self, snapshot: &SourceSnapshot) -> Option<usize> {
        let (Ok(running), Ok(text)) = (&self.running_contents.text, &snapshot.contents.text) else {
            return None;
        };
        let stamp = snapshot.stamps.get(self.origin.path())?.as_ref()?;
        self.running_stamps.get(self.origin.path())?.filter(|running| running.is_same_file_as(stamp))?;
        truncated_lines(running, text)
    }

    fn read_snapshot(&mut self) -> SourceSnapshot {
        let began = Stopwatch::start();
        let stamps = self.current_stamps();
        let document = self.state.document.lock().clone();
        let found = SourceContents {
            text: self.origin.read(),
            document,
            data_hashes: self.data_files.current_hashes(),
        };
        let is_steady = self.current_stamps() == stamps;
        self.busy_time += began.elapsed();
        let is_open = self.watch.has_open_files();
        SourceSnapshot { contents: found, stamps, is_stable: is_steady, is_open }
    }

    fn current_stamps(&self) -> FileStamps {
        let files = self.origin.files();
        let own = files.iter().map(PathBuf::as_path).chain([self.origin.path()]);
        self.data_files.paths().chain(own).map(|path| (path.to_owned(), Stamp::from_path(path))).collect()
    }

    /// Compiles what was read; `None` if a data file is being written at the moment.
    fn evaluate(
        &mut self,
        snapshot: &SourceSnapshot,
        prepare: impl FnMut(&Config, &[&'static str]) -> Result<Preparation, UnusableSetting>,
    ) -> Option<Reload> {
        let found = &snapshot.contents;
        let is_changed = *found != self.last_contents;
        let before = self.data_files.compilation_count();
        let compiled = match &found.text {
            Ok(_) if *found == self.running_contents => None,
            Ok(text) => Some(self.compile(text, found.document.as_ref())),
            Err(problem) => Some(Err(vec![problem.clone()])),
        };
        // The data files that were used may differ from those found, because the text may name other files
        // now.
        let data = if self.data_files.compilation_count() == before {
            found.data_hashes.clone()
        } else {
            self.data_files.recorded_hashes()
        };
        let used =
            SourceContents { text: found.text.clone(), document: found.document.clone(), data_hashes: data };
        self.watch.watch_files(used.data_hashes.keys().chain(&self.origin.files()));
        if !self.is_confirmed(snapshot, &used) {
            self.watch.waker().wake();
            return None;
        }
        // A file may have disappeared and returned, or be named again.
        let is_new = used != self.running_contents;
        let compiled = compiled.filter(|compiled| is_new || compiled.is_err());
        let reload = match compiled.map(|compiled| self.prepared(compiled?, prepare)) {
            None => Reload::Unchanged,
            Some(Ok((_, Preparation::TakenOver))) => Reload::TakenOver,
            Some(Ok((config, Preparation::Ready))) => {
                let warnings = self.missing_lines(snapshot).map(truncation_warning).into_iter().collect();
                self.running_contents = used.clone();
                self.running_stamps = self.used_stamps(snapshot);
                Reload::Applied { config: Box::new(config), document: used.document.clone(), warnings }
            }
            Some(Err(problems)) => Reload::Rejected { problems },
        };
        self.last_contents = used;
        if is_changed {
            log_reload(self.origin.path(), &reload);
        }
        Some(reload)
    }

    fn compile(&mut self, text: &str, document: Option<&FetchedDocument>) -> Result<Config, Vec<Diagnostic>> {
        let running = self.running_contents.text.as_deref().unwrap_or_default();
        let cut_off = missing_end_marker(running, text, self.origin.path()).or_else(|| {
            let (running, document) = self.running_contents.document.as_ref().zip(document)?;
            missing_end_marker(&running.text, &document.text, Path::new(&*document.url))
        });
        if let Some(problem) = cut_off {
            return Err(vec![problem]);
        }
        from_text_with_files(
            text,
            self.origin.path(),
            rest_of_config(document),
            &source::environment_variable,
            &mut self.data_files,
        )
    }

    /// Prepares what `config` needs from the system; a failure is one of its problems.
    fn prepared(
        &self,
        config: Config,
        mut prepare: impl FnMut(&Config, &[&'static str]) -> Result<Preparation, UnusableSetting>,
    ) -> Result<(Config, Preparation), Vec<Diagnostic>> {
        let changed: Vec<_> = changed_keys(AT_STARTUP, &self.startup_config, &config).collect();
        match prepare(&config, &changed) {
            Ok(preparation) => Ok((config, preparation)),
            Err(UnusableSetting { key, message }) => {
                let problem = Diagnostic::for_file(self.origin.path(), message);
                Err(vec![Diagnostic { path: key, ..problem }])
            }
        }
    }

    /// Whether the data files that were used are complete. Files with the same content as in `snapshot` are;
    /// others are read once more.
    fn is_confirmed(&mut self, snapshot: &SourceSnapshot, used: &SourceContents) -> bool {
        let is_known = |path: &PathBuf| snapshot.contents.data_hashes.get(path) == used.data_hashes.get(path);
        if used.data_hashes.keys().all(is_known) {
            return true;
        }
        let used = SourceSnapshot {
            contents: used.clone(),
            stamps: self.used_stamps(snapshot),
            is_stable: true,
            is_open: false,
        };
        let is_emptied = used.has_emptied_file(&self.running_stamps);
        self.pause(if is_emptied { self.timing.debounce.max_wait } else { self.timing.debounce.confirm });
        used.is_confirmed_by(&self.read_snapshot(), self.origin.path())
    }

    /// Returns the stamps of the files that were used.
    fn used_stamps(&self, snapshot: &SourceSnapshot) -> FileStamps {
        let mut stamps = snapshot.stamps.clone();
        stamps.extend(self.data_files.recorded_stamps());
        stamps
    }

    fn status_after(&self, reload: &Reload, at: Timestamp) -> ReloadStatus {
        let mut status = self.state.status.lock().clone();
        let (mut problems, mut status_warnings) = (Vec::new(), Vec::new());
        match reload {
            Reload::Applied { warnings, .. } => {
                status_warnings.clone_from(warnings);
                status.generation += 1;
                let text = self.running_contents.text.as_deref().unwrap_or_default();
                status.text = text.into();
                status.text_hash = hash_texts(text, self.running_contents.document.as_ref());
                status.document.clone_from(&self.running_contents.document);
            }
            Reload::Unchanged | Reload::TakenOver => {}
            Reload::Rejected { problems: found } => problems.extend(found.iter().map(ToString::to_string)),
        }
        status.last_attempt =
            Some(ReloadAttempt { time: at, outcome: reload.outcome(), problems, warnings: status_warnings });
        status
    }
}

/// Returns what a file is combined with.
fn rest_of_config(document: Option<&FetchedDocument>) -> RestOfConfig<'_> {
    document.map_or(RestOfConfig::Empty, RestOfConfig::Document)
}

#[cfg(test)]
mod tests;
