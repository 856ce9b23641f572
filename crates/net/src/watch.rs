//! Detects changes of a file, or of any file in some directories.
//!
//! The watch is on the directory: editors and Kubernetes replace a file instead of writing to it, and a watch on the
//! file itself would end with the old file. Events only trigger a check. Callers also check at intervals, for systems
//! without events (NFS, no inotify instances left).

pub mod debounce;
pub mod stamp;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};
use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher as _};
use parking_lot::Mutex;

use self::debounce::Debounce;
use crate::clock::Stopwatch;

/// Maximum number of files remembered as open for writing. The bound is needed because a write through a path, such as
/// `truncate(2)`, is never followed by a close event.
const MAX_OPEN: usize = 1024;

/// Whether a wait ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitResult {
    /// A file event or a [`Waker`] ended the wait.
    Notified,
    /// The time elapsed.
    TimedOut,
}

/// Handle that ends the wait of a [`FileWatch`].
#[derive(Clone, Debug)]
pub struct Waker(SyncSender<()>);

impl Waker {
    /// Ends the present wait, or else the next one. Several calls before that wait count as one.
    pub fn wake(&self) {
        // If the channel is full, a wake is already pending. If it is disconnected, no watch is waiting.
        let _ = self.0.try_send(());
    }
}

/// Final path components of the watched files; `None` for all files.
type WatchedNames = Arc<Mutex<Option<HashSet<OsString>>>>;

/// A watch on files; dropping it ends the watch.
#[derive(Debug)]
pub struct FileWatch {
    wakes: Receiver<()>,
    waker: Waker,
    /// `None` if the system provides no events.
    watcher: Option<RecommendedWatcher>,
    file: PathBuf,
    names: WatchedNames,
    open: OpenFiles,
    directories: HashSet<PathBuf>,
}

/// Files with writes that no close has followed, according to the events.
#[derive(Clone, Debug, Default)]
struct OpenFiles(Arc<Mutex<HashSet<PathBuf>>>);

impl OpenFiles {
    fn record_event(&self, event: &Event) {
        let mut open = self.0.lock();
        if event.need_rescan() {
            // Events were lost, perhaps including close events.
            return open.clear();
        }
        match event.kind {
            EventKind::Modify(ModifyKind::Data(_) | ModifyKind::Any) if open.len() < MAX_OPEN => {
                open.extend(event.paths.iter().cloned());
            }
            EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Remove(_)
            // A file renamed into place is complete, and one renamed away is gone.
            | EventKind::Modify(ModifyKind::Name(_)) => {
                open.retain(|path| !event.paths.contains(path));
            }
            _ => {}
        }
    }

    fn has(&self, is_ours: impl Fn(&Path) -> bool) -> bool {
        self.0.lock().iter().any(|path| is_ours(path))
    }

    fn forget(&self) {
        self.0.lock().clear();
    }
}

impl FileWatch {
    /// Watches the file at `path`, by events if the system provides them.
    pub fn for_file(path: &Path) -> Self {
        let watch = Self { file: path.to_owned(), ..Self::without_events() };
        *watch.names.lock() = Some(HashSet::from([name_of(path)]));
        watch.start_watching(HashSet::from([directory_of(path)]))
    }

    /// Watches all files in `directories`, but not in their subdirectories; by events if the system provides them.
    pub fn for_directories(directories: HashSet<PathBuf>) -> Self {
        Self::without_events().start_watching(directories)
    }

    fn start_watching(mut self, directories: HashSet<PathBuf>) -> Self {
        match watcher(Arc::clone(&self.names), self.open.clone(), self.waker()) {
            Ok(watcher) => {
                self.watcher = Some(watcher);
                self.watch_directories(directories);
            }
            Err(error) => tracing::warn!(%error, "cannot watch files for changes, polling instead"),
        }
        self
    }

    /// Replaces the set of watched files, in addition to the file of [`Self::for_file`], by `others`.
    pub fn watch_files<'a>(&mut self, others: impl Iterator<Item = &'a PathBuf>) {
        let own = Some(&self.file).filter(|file| !file.as_os_str().is_empty()).cloned();
        let all: Vec<PathBuf> = others.cloned().chain(own).collect();
        let (names, directories) = all.iter().map(|path| (name_of(path), directory_of(path))).unzip();
        *self.names.lock() = Some(names);
        self.watch_directories(directories);
    }

    /// Replaces the set of watched directories.
    pub fn watch_directories(&mut self, directories: HashSet<PathBuf>) {
        let Some(watcher) = &mut self.watcher else { return };
        for gone in self.directories.difference(&directories) {
            // Fails if the directory has been removed.
            let _ = watcher.unwatch(gone);
        }
        self.directories.retain(|directory| directories.contains(directory));
        for new in directories {
            // A directory that cannot be watched is covered by polling, and tried again at the next change.
            if !self.directories.contains(&new) && watcher.watch(&new, RecursiveMode::NonRecursive).is_ok() {
                self.directories.insert(new);
            }
        }
    }

    /// Creates a watch without file events, which only wakers end.
    pub fn without_events() -> Self {
        let (sender, wakes) = sync_channel(1);
        Self {
            wakes,
            waker: Waker(sender),
            watcher: None,
            file: PathBuf::new(),
            names: WatchedNames::default(),
            open: OpenFiles::default(),
            directories: HashSet::new(),
        }
    }

    /// Returns a handle that ends waits on this watch.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Waits until an event or a waker, or for at most `max_wait`.
    pub fn wait(&self, max_wait: Duration) -> WaitResult {
        match self.wakes.recv_timeout(max_wait) {
            Ok(()) => WaitResult::Notified,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => WaitResult::TimedOut,
        }
    }

    /// Returns whether a file is open for writing, as far as events have shown.
    pub fn has_open_files(&self) -> bool {
        self.open.has(|_| true)
    }

    /// Waits until there have been no events for a while. The wait also ends when `settling` is over and no file
    /// accepted by `is_ours` is open for writing, or when `ends` returns true.
    pub fn settle(
        &self,
        settling: &Debounce,
        is_ours: impl Fn(&Path) -> bool,
        is_stopped: impl Fn() -> bool,
    ) {
        let began = Stopwatch::start();
        let mut quiet = began;
        while !is_stopped() {
            let is_open = self.open.has(&is_ours);
            let left = settling.left(began.elapsed(), quiet.elapsed(), is_open);
            if left.is_zero() {
                // A file without events for this long is not going to be closed.
                return if is_open {
                    self.open.forget()
                };
            }
            if self.wait(left) == WaitResult::Notified {
                quiet = Stopwatch::start();
            }
        }
    }
}

fn watcher(names: WatchedNames, open: OpenFiles, waker: Waker) -> notify::Result<RecommendedWatcher> {
    notify::recommended_watcher(move |event: notify::Result<Event>| {
        // An error may hide a change.
        if event.as_ref().map_or(true, |event| concerns(event, names.lock().as_ref())) {
            event.iter().for_each(|event| open.record_event(event));
            waker.wake();
        }
    })
}

fn name_of(path: &Path) -> OsString {
    path.file_name().unwrap_or_default().into()
}

fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Returns whether an event may mean that the content of a file with one of these names (or of any file, if `None`) has
/// changed. Reads are ignored, as are other files in the directory, such as logs.
fn concerns(event: &Event, names: Option<&HashSet<OsString>>) -> bool {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => {}
        EventKind::Access(_) => return false,
        EventKind::Any
        | EventKind::Create(_)
        | EventKind::Modify(_)
        | EventKind::Remove(_)
        | EventKind::Other => {}
    }
    // The files of a ConfigMap are links through `..data`, and an update replaces only that link.
    let is_ours = |given: &OsStr| {
        let is_named = names.is_none_or(|names| names.contains(given));
        is_named || given.as_encoded_bytes().starts_with(b"..")
    };
    event.need_rescan()
        || event.paths.is_empty()
        || event.paths.iter().any(|path| path.file_name().is_none_or(is_ours))
}

#[cfg(test)]
mod tests {
    use notify::event::{AccessKind, CreateKind, DataChange, ModifyKind, RenameMode};

    use super::*;

    fn triggers_reload(kind: EventKind, path: &str) -> bool {
        concerns(&Event::new(kind).add_path(path.into()), Some(&names()))
    }

    fn names() -> HashSet<OsString> {
        ["weir.yaml", "list.txt"].map(OsString::from).into()
    }

    #[test]
    fn read_access_does_not_trigger_a_reload() {
        assert!(!triggers_reload(
            EventKind::Access(AccessKind::Open(AccessMode::Any)),
            "/etc/weir/weir.yaml"
        ));
        assert!(!triggers_reload(
            EventKind::Access(AccessKind::Close(AccessMode::Read)),
            "/etc/weir/weir.yaml"
        ));
        assert!(triggers_reload(
            EventKind::Access(AccessKind::Close(AccessMode::Write)),
            "/etc/weir/weir.yaml"
        ));
    }

    #[test]
    fn only_watched_files_and_config_map_links_trigger_a_reload() {
        let renamed = EventKind::Modify(ModifyKind::Name(RenameMode::To));
        assert!(
            triggers_reload(renamed, "/etc/weir/weir.yaml") && triggers_reload(renamed, "/etc/weir/..data")
        );
        assert!(!triggers_reload(EventKind::Create(CreateKind::File), "/etc/weir/weir.yaml.swp"));
        assert!(!triggers_reload(
            EventKind::Modify(ModifyKind::Data(DataChange::Any)),
            "/etc/weir/access.log"
        ));
        assert!(concerns(&Event::new(EventKind::Other), Some(&names())));
        assert!(triggers_reload(renamed, "/elsewhere/list.txt"));
    }

    #[test]
    fn file_counts_as_open_from_first_write_to_close_rename_or_removal() {
        let written = EventKind::Modify(ModifyKind::Data(DataChange::Any));
        let ends = [
            EventKind::Access(AccessKind::Close(AccessMode::Write)),
            EventKind::Modify(ModifyKind::Name(RenameMode::To)),
            EventKind::Remove(notify::event::RemoveKind::File),
        ];
        for end in ends {
            let open = OpenFiles::default();
            let note = |kind, path: &str| open.record_event(&Event::new(kind).add_path(path.into()));
            let is_open = || open.has(|path| path == Path::new("/etc/list.txt"));
            note(written, "/etc/list.txt");
            assert!(is_open());
            note(end, "/etc/other.txt");
            assert!(is_open());
            note(end, "/etc/list.txt");
            assert!(!is_open(), "{end:?}");
        }
    }

    #[test]
    fn wakes_are_coalesced() {
        let watch = FileWatch::without_events();
        for _ in 0..10 {
            watch.waker().wake();
        }
        assert_eq!(watch.wait(Duration::ZERO), WaitResult::Notified);
        assert_eq!(watch.wait(Duration::ZERO), WaitResult::TimedOut);
    }

    #[test]
    fn missing_directory_is_polled_without_events() {
        assert!(FileWatch::for_file(Path::new("/nonexistent/weir.yaml")).directories.is_empty());
        assert_eq!(FileWatch::for_file(Path::new("Cargo.toml")).directories.len(), 1);
    }

    #[test]
    fn directory_watch_triggers_on_any_change_but_no_read() {
        let event = |kind| Event::new(kind).add_path("/etc/ratelimit/config/any.yaml".into());
        assert!(concerns(&event(EventKind::Create(CreateKind::File)), None));
        assert!(!concerns(&event(EventKind::Access(AccessKind::Open(AccessMode::Any))), None));
    }
}
