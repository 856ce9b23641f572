//! Says that a file, or anything in some directories, may have changed.
//!
//! What is watched is the directory: editors and Kubernetes replace a file instead of writing to it, and a
//! watch on the file itself would die with the old one. Events are only a reason to look, and a system
//! without them (NFS, no inotify instance left) is looked at every now and then all the same.

pub mod settling;
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

use self::settling::Settling;
use crate::clock::Stopwatch;

/// Files open for writing that are remembered. A write through a path, such as `truncate(2)`, is never followed by a close.
const MAX_OPEN: usize = 1024;

/// Whether waiting ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Something happened.
    Early,
    /// The time was up.
    InTime,
}

/// Wakes the one who waits.
#[derive(Clone, Debug)]
pub struct Waker(SyncSender<()>);

impl Waker {
    /// Wakes it, now or when it next waits. Many wakes before that are one.
    pub fn wake(&self) {
        // Full is as good as sent, and nobody is there to wake once the other end is gone.
        let _ = self.0.try_send(());
    }
}

/// The files that matter, by their last names; all of them where there is no list.
type Names = Arc<Mutex<Option<HashSet<OsString>>>>;

/// A watch on files, as long as it lives.
#[derive(Debug)]
pub struct Watch {
    wakes: Receiver<()>,
    waker: Waker,
    /// `None` where the system has no events for us.
    watcher: Option<RecommendedWatcher>,
    file: PathBuf,
    names: Names,
    open: Open,
    directories: HashSet<PathBuf>,
}

/// Files that were written to and not closed since, as far as events tell.
#[derive(Clone, Debug, Default)]
struct Open(Arc<Mutex<HashSet<PathBuf>>>);

impl Open {
    fn note(&self, event: &Event) {
        let mut open = self.0.lock();
        if event.need_rescan() {
            // Events were lost, and the close may be among them.
            return open.clear();
        }
        match event.kind {
            EventKind::Modify(ModifyKind::Data(_) | ModifyKind::Any) if open.len() < MAX_OPEN => {
                open.extend(event.paths.iter().cloned());
            }
            EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Remove(_)
            // What is renamed into place is whole, and what is renamed away has gone.
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

impl Watch {
    /// Watches the file at `path`, by events where there are any.
    pub fn on(path: &Path) -> Self {
        let watch = Self { file: path.to_owned(), ..Self::without_events() };
        *watch.names.lock() = Some(HashSet::from([name_of(path)]));
        watch.begin(HashSet::from([directory_of(path)]))
    }

    /// Watches everything in `directories`, but not what is in directories in them; by events where there are any.
    pub fn on_all_in(directories: HashSet<PathBuf>) -> Self {
        Self::without_events().begin(directories)
    }

    fn begin(mut self, directories: HashSet<PathBuf>) -> Self {
        match watcher(Arc::clone(&self.names), self.open.clone(), self.waker()) {
            Ok(watcher) => {
                self.watcher = Some(watcher);
                self.follow_directories(directories);
            }
            Err(error) => tracing::warn!(%error, "no events of files, polling only"),
        }
        self
    }

    /// From now on `others` belong to the file, and no others do.
    pub fn follow<'a>(&mut self, others: impl Iterator<Item = &'a PathBuf>) {
        let own = Some(&self.file).filter(|file| !file.as_os_str().is_empty()).cloned();
        let all: Vec<PathBuf> = others.cloned().chain(own).collect();
        let (names, directories) = all.iter().map(|path| (name_of(path), directory_of(path))).unzip();
        *self.names.lock() = Some(names);
        self.follow_directories(directories);
    }

    /// From now on these directories are watched, and no others are.
    pub fn follow_directories(&mut self, wanted: HashSet<PathBuf>) {
        let Some(watcher) = &mut self.watcher else { return };
        for gone in self.directories.difference(&wanted) {
            // Fails where the directory itself has gone.
            let _ = watcher.unwatch(gone);
        }
        self.directories.retain(|directory| wanted.contains(directory));
        for new in wanted {
            // One that cannot be watched is polled, and tried again at the next change.
            if !self.directories.contains(&new) && watcher.watch(&new, RecursiveMode::NonRecursive).is_ok() {
                self.directories.insert(new);
            }
        }
    }

    /// Is woken by wakers only.
    pub fn without_events() -> Self {
        let (sender, wakes) = sync_channel(1);
        Self {
            wakes,
            waker: Waker(sender),
            watcher: None,
            file: PathBuf::new(),
            names: Names::default(),
            open: Open::default(),
            directories: HashSet::new(),
        }
    }

    /// Wakes whoever waits here.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Waits until woken, for `longest` at most.
    pub fn wait(&self, longest: Duration) -> Woken {
        match self.wakes.recv_timeout(longest) {
            Ok(()) => Woken::Early,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Woken::InTime,
        }
    }

    /// Waits until nothing has happened for a while, or until `settling` is over and none of the files that `is_ours` is
    /// open for writing; or until it `ends`.
    pub fn settle(&self, settling: &Settling, is_ours: impl Fn(&Path) -> bool, ends: impl Fn() -> bool) {
        let began = Stopwatch::start();
        let mut quiet = began;
        while !ends() {
            let is_open = self.open.has(&is_ours);
            let left = settling.left(began.elapsed(), quiet.elapsed(), is_open);
            if left.is_zero() {
                // One that has rested for so long is not going to be closed.
                return if is_open {
                    self.open.forget()
                };
            }
            if self.wait(left) == Woken::Early {
                quiet = Stopwatch::start();
            }
        }
    }
}

fn watcher(names: Names, open: Open, waker: Waker) -> notify::Result<RecommendedWatcher> {
    notify::recommended_watcher(move |event: notify::Result<Event>| {
        // An error may hide a change.
        if event.as_ref().map_or(true, |event| concerns(event, names.lock().as_ref())) {
            event.iter().for_each(|event| open.note(event));
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

/// Whether an event may mean that a file with one of these names, or any file, reads differently now. Reading it is an event
/// too, and whatever else is written in the directory, a log perhaps, is none of ours.
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
    // A ConfigMap's files are links through `..data`, and only that is replaced.
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

    fn is_reason(kind: EventKind, path: &str) -> bool {
        concerns(&Event::new(kind).add_path(path.into()), Some(&names()))
    }

    fn names() -> HashSet<OsString> {
        ["weir.yaml", "list.txt"].map(OsString::from).into()
    }

    #[test]
    fn reading_the_file_is_no_reason_to_read_it() {
        assert!(!is_reason(EventKind::Access(AccessKind::Open(AccessMode::Any)), "/etc/weir/weir.yaml"));
        assert!(!is_reason(EventKind::Access(AccessKind::Close(AccessMode::Read)), "/etc/weir/weir.yaml"));
        assert!(is_reason(EventKind::Access(AccessKind::Close(AccessMode::Write)), "/etc/weir/weir.yaml"));
    }

    #[test]
    fn only_the_file_and_the_links_of_a_config_map_are_reasons() {
        let renamed = EventKind::Modify(ModifyKind::Name(RenameMode::To));
        assert!(is_reason(renamed, "/etc/weir/weir.yaml") && is_reason(renamed, "/etc/weir/..data"));
        assert!(!is_reason(EventKind::Create(CreateKind::File), "/etc/weir/weir.yaml.swp"));
        assert!(!is_reason(EventKind::Modify(ModifyKind::Data(DataChange::Any)), "/etc/weir/access.log"));
        assert!(concerns(&Event::new(EventKind::Other), Some(&names())));
        assert!(is_reason(renamed, "/elsewhere/list.txt"));
    }

    #[test]
    fn a_file_is_open_from_the_first_write_to_its_close_or_to_the_one_in_its_place() {
        let written = EventKind::Modify(ModifyKind::Data(DataChange::Any));
        let ends = [
            EventKind::Access(AccessKind::Close(AccessMode::Write)),
            EventKind::Modify(ModifyKind::Name(RenameMode::To)),
            EventKind::Remove(notify::event::RemoveKind::File),
        ];
        for end in ends {
            let open = Open::default();
            let note = |kind, path: &str| open.note(&Event::new(kind).add_path(path.into()));
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
    fn many_wakes_are_one() {
        let watch = Watch::without_events();
        for _ in 0..10 {
            watch.waker().wake();
        }
        assert_eq!(watch.wait(Duration::ZERO), Woken::Early);
        assert_eq!(watch.wait(Duration::ZERO), Woken::InTime);
    }

    #[test]
    fn a_directory_that_is_not_there_is_polled() {
        assert!(Watch::on(Path::new("/nonexistent/weir.yaml")).directories.is_empty());
        assert_eq!(Watch::on(Path::new("Cargo.toml")).directories.len(), 1);
    }

    #[test]
    fn where_everything_counts_any_name_is_a_reason_and_reading_is_none() {
        let event = |kind| Event::new(kind).add_path("/etc/ratelimit/config/any.yaml".into());
        assert!(concerns(&event(EventKind::Create(CreateKind::File)), None));
        assert!(!concerns(&event(EventKind::Access(AccessKind::Open(AccessMode::Any))), None));
    }
}
