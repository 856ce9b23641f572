//! Sources of documents, and the task that applies their changes.
//!
//! As in the reference, a set of documents is applied as a whole, or the previous one stays in force. Changes are
//! detected by content. So it does not matter how files are replaced (by links, by `mv` or by a ConfigMap), or whether
//! there was an event.

pub mod directory;
pub mod xds;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use self::directory::{Directory, Listing};
use super::desk::Desk;
use super::document::{Document, LoadError};
use super::rules::Rules;
use crate::clock::Stopwatch;
use crate::watch::debounce::{Debounce, DebounceTimes};
use crate::watch::{FileWatch, WaitResult, Waker};

/// Interval between checks without an event.
const POLL: Duration = Duration::from_secs(2);

/// Minimum total size in bytes for which parsing on several threads pays off.
const MUCH: usize = 1 << 20;

/// Maximum reads in one check of files that change meanwhile; then the next check tries again.
const MOST_READS: usize = 10;

/// Ratio of rest to work: files that are replaced continuously use a quarter of a CPU.
const REST: u32 = 3;

/// Why rules cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// A document is invalid.
    #[error(transparent)]
    Invalid(#[from] LoadError),
}

/// Rules, and a mark of their source.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The rules.
    pub rules: Arc<Rules>,
    mark: Mark,
}

/// Names and texts of files, or why they cannot be read.
type Texts = Result<Vec<(String, String)>, String>;

impl Loaded {
    /// Returns whether both were compiled from the same content.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.mark == other.mark
    }
}

/// Mark of the files' content, to detect changes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    content: Result<u64, String>,
    merged: bool,
}

/// Loads the rules in `directory`.
///
/// # Errors
/// The first [`Error`].
pub fn load(directory: &Directory) -> Result<Loaded, Error> {
    let listing = directory.list();
    let texts = listing.and_then(|listing| listing.read()).map_err(Error::Unreadable)?;
    let mark = Mark { content: Ok(hash(&texts)), merged: directory.merge_domains };
    let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    Ok(Loaded { rules: Arc::new(parse(&texts, directory.merge_domains, threads)?), mark })
}

/// Compiles files, which must be sorted by name, with this many threads, because parsing YAML takes most of the time.
fn parse(texts: &[(String, String)], merge_domains: bool, threads: NonZeroUsize) -> Result<Rules, LoadError> {
    let documents = documents(texts, threads)?;
    Rules::load(texts.iter().map(|(name, _)| name.as_str()).zip(documents), merge_domains)
}

fn documents(files: &[(String, String)], threads: NonZeroUsize) -> Result<Vec<Document>, LoadError> {
    let read = |part: &[(String, String)]| -> Result<Vec<_>, LoadError> {
        part.iter().map(|(name, text)| Document::from_yaml(name, text)).collect()
    };
    let bytes: usize = files.iter().map(|(_, text)| text.len()).sum();
    if threads == NonZeroUsize::MIN || bytes < MUCH {
        return read(files);
    }
    thread::scope(|scope| {
        let parts = files.chunks(files.len().div_ceil(threads.get()));
        let reading: Vec<_> = parts.map(|part| scope.spawn(move || read(part))).collect();
        let mut documents = Vec::with_capacity(files.len());
        for part in reading {
            documents.extend(part.join().unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        Ok(documents)
    })
}

/// Returns a hash of the files' content. It need not resist collisions, because the files are trusted.
fn hash(texts: &[(String, String)]) -> u64 {
    let mut hasher = DefaultHasher::new();
    texts.hash(&mut hasher);
    hasher.finish()
}

/// Watches a directory and applies its rules to a desk.
#[derive(Debug)]
pub struct Follower {
    watch: FileWatch,
    wanted: Arc<Mutex<Wanted>>,
    desk: Arc<Desk>,
    /// Mark of the last content, whether it is in force or was rejected.
    seen: Option<Mark>,
    listing: Option<Listing>,
    /// Time spent working since the last rest.
    busy: Duration,
}

/// Target of the follower, shared with its handles.
#[derive(Debug)]
struct Wanted {
    directory: Directory,
    is_stopped: bool,
}

/// Controls a [`Follower`].
#[derive(Clone, Debug)]
pub struct Handle {
    wanted: Arc<Mutex<Wanted>>,
    waker: Waker,
}

impl Handle {
    /// Replaces the watched directory.
    pub fn follow(&self, directory: Directory) {
        self.wanted.lock().directory = directory;
        self.waker.wake();
    }

    /// Ends [`Follower::run`].
    pub fn stop(&self) {
        self.wanted.lock().is_stopped = true;
        self.waker.wake();
    }
}

impl Follower {
    /// Creates a follower of `directory`. `loaded` is what is in force at `desk`.
    pub fn new(directory: Directory, loaded: Option<&Loaded>, desk: Arc<Desk>) -> Self {
        Self {
            watch: FileWatch::for_directories(directory.watched(None)),
            wanted: Arc::new(Mutex::new(Wanted { directory, is_stopped: false })),
            seen: loaded.map(|loaded| loaded.mark.clone()),
            desk,
            listing: None,
            busy: Duration::ZERO,
        }
    }

    /// Returns a handle.
    pub fn handle(&self) -> Handle {
        Handle { wanted: Arc::clone(&self.wanted), waker: self.watch.waker() }
    }

    /// Watches until [`Handle::stop`]. This blocks, so it needs a thread of its own.
    pub fn run(mut self) {
        let mut woken = WaitResult::Notified;
        loop {
            let directory = {
                let wanted = self.wanted.lock();
                if wanted.is_stopped {
                    return;
                }
                wanted.directory.clone()
            };
            self.look(&directory, woken);
            self.rest();
            woken = self.watch.wait(POLL);
        }
    }

    fn is_stopped(&self) -> bool {
        self.wanted.lock().is_stopped
    }

    /// Rests in proportion to the work done. Events in the meantime are processed afterwards.
    fn rest(&mut self) {
        let lasts = std::mem::take(&mut self.busy).saturating_mul(REST);
        let began = Stopwatch::start();
        let mut woken = WaitResult::TimedOut;
        while !self.is_stopped() && began.elapsed() < lasts {
            if self.watch.wait(lasts.saturating_sub(began.elapsed())) == WaitResult::Notified {
                woken = WaitResult::Notified;
            }
        }
        if woken == WaitResult::Notified {
            self.watch.waker().wake();
        }
    }

    /// Applies the files' content if it has changed.
    fn look(&mut self, directory: &Directory, woken: WaitResult) {
        let Some((mark, texts)) = self.read(directory, woken) else { return };
        if self.seen.as_ref() == Some(&mark) {
            return;
        }
        let began = Stopwatch::start();
        self.take_over(directory, mark, texts);
        self.busy += began.elapsed();
    }

    fn take_over(&mut self, directory: &Directory, mark: Mark, texts: Texts) {
        let parsed = texts
            .map_err(Error::Unreadable)
            // On one thread only, because there is traffic now.
            .and_then(|texts| {
                parse(&texts, directory.merge_domains, NonZeroUsize::MIN).map_err(Error::Invalid)
            });
        self.seen = Some(mark);
        self.desk.stats().loaded(parsed.is_ok());
        let path = directory.path.display();
        match parsed {
            Ok(rules) => {
                self.desk.set_rules(Arc::new(rules));
                tracing::info!(directory = %path, "rate limit rules loaded");
            }
            Err(error) => {
                tracing::error!(
                    directory = %path,
                    %error,
                    "rate limit rules rejected: the previous rules stay in force"
                );
            }
        }
    }

    /// Returns the files' content, if it may have changed and no file was read during a write.
    fn read(&mut self, directory: &Directory, woken: WaitResult) -> Option<(Mark, Texts)> {
        let settling = Debounce::start(DebounceTimes::default());
        let mut listing = directory.list();
        if woken == WaitResult::TimedOut && listing.is_ok() && listing.as_ref().ok() == self.listing.as_ref()
        {
            return None;
        }
        for _ in 0..MOST_READS {
            if self.is_stopped() {
                return None;
            }
            self.watch.watch_directories(directory.watched(listing.as_ref().ok()));
            let began = Stopwatch::start();
            let texts = listing.clone().and_then(|listing| listing.read());
            self.busy += began.elapsed();
            self.settle(&settling, listing.as_ref().ok());
            let later = directory.list();
            let is_at_rest = later == listing;
            let is_whole = match (&listing, &later) {
                (Ok(listing), Ok(later)) => settling.is_over() && listing.is_whole_by(later),
                _ => false,
            };
            if is_at_rest || is_whole {
                if !is_at_rest {
                    // Later changes are processed next.
                    self.watch.waker().wake();
                }
                self.listing = listing.ok();
                let content = texts.as_ref().map(|texts| hash(texts)).map_err(Clone::clone);
                return Some((Mark { content, merged: directory.merge_domains }, texts));
            }
            listing = later;
        }
        self.watch.waker().wake();
        None
    }

    fn settle(&self, settling: &Debounce, listing: Option<&Listing>) {
        let is_ours = |path: &Path| listing.is_some_and(|listing| listing.has(path));
        self.watch.settle(settling, is_ours, || self.is_stopped());
    }
}
