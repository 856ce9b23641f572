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

use self::directory::{DirectoryListing, RulesDirectory};
use super::document::{DomainDocument, LoadError};
use super::handler::RlsHandler;
use super::rules::DescriptorRules;
use weir_net::clock::Stopwatch;
use weir_net::watch::debounce::{Debounce, DebounceTimes};
use weir_net::watch::{FileWatch, WaitResult, Waker};

/// Interval between checks without an event.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Minimum total size in bytes for which parsing on several threads pays off.
const MIN_PARALLEL_BYTES: usize = 1 << 20;

/// Maximum reads in one check of files that change meanwhile; then the next check tries again.
const MAX_READS: usize = 10;

/// Ratio of idle time to work: files that are replaced continuously use a quarter of a CPU.
const IDLE_RATIO: u32 = 3;

/// Why rules cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// A file cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// A document is invalid.
    #[error(transparent)]
    Invalid(#[from] LoadError),
}

/// Rules, and a hash of their source.
#[derive(Clone, Debug)]
pub struct LoadedRules {
    pub rules: Arc<DescriptorRules>,
    hash: DirectoryHash,
}

/// Names and texts of files, or why they cannot be read.
type FileTexts = Result<Vec<(String, String)>, String>;

impl LoadedRules {
    /// Returns whether both were compiled from the same content.
    pub fn has_same_content(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

/// Hash of the files' content, to detect changes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DirectoryHash {
    content: Result<u64, String>,
    merge_domains: bool,
}

/// Loads the rules in `directory`.
///
/// # Errors
/// The first [`RulesError`].
pub fn load_rules(directory: &RulesDirectory) -> Result<LoadedRules, RulesError> {
    let listing = directory.list();
    let texts = listing.and_then(|listing| listing.read()).map_err(RulesError::Unreadable)?;
    let hash = DirectoryHash { content: Ok(hash_texts(&texts)), merge_domains: directory.merge_domains };
    let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    Ok(LoadedRules { rules: Arc::new(parse_rules(&texts, directory.merge_domains, threads)?), hash })
}

/// Compiles files, which must be sorted by name, with this many threads, because parsing YAML takes most of the time.
fn parse_rules(
    texts: &[(String, String)],
    merge_domains: bool,
    threads: NonZeroUsize,
) -> Result<DescriptorRules, LoadError> {
    let documents = parse_documents(texts, threads)?;
    DescriptorRules::from_documents(texts.iter().map(|(name, _)| name.as_str()).zip(documents), merge_domains)
}

fn parse_documents(
    files: &[(String, String)],
    threads: NonZeroUsize,
) -> Result<Vec<DomainDocument>, LoadError> {
    let read = |part: &[(String, String)]| -> Result<Vec<_>, LoadError> {
        part.iter().map(|(name, text)| DomainDocument::from_yaml(name, text)).collect()
    };
    let bytes: usize = files.iter().map(|(_, text)| text.len()).sum();
    if threads == NonZeroUsize::MIN || bytes < MIN_PARALLEL_BYTES {
        return read(files);
    }
    thread::scope(|scope| {
        let parts = files.chunks(files.len().div_ceil(threads.get()));
        let handles: Vec<_> = parts.map(|part| scope.spawn(move || read(part))).collect();
        let mut documents = Vec::with_capacity(files.len());
        for part in handles {
            documents.extend(part.join().unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        Ok(documents)
    })
}

/// Returns a hash of the files' content. It need not resist collisions, because the files are trusted.
fn hash_texts(texts: &[(String, String)]) -> u64 {
    let mut hasher = DefaultHasher::new();
    texts.hash(&mut hasher);
    hasher.finish()
}

/// Watches a directory and applies its rules to an [`RlsHandler`].
#[derive(Debug)]
pub struct DirectoryFollower {
    watch: FileWatch,
    followed: Arc<Mutex<FollowedDirectory>>,
    handler: Arc<RlsHandler>,
    /// Hash of the last content, whether it is in force or was rejected.
    last_hash: Option<DirectoryHash>,
    listing: Option<DirectoryListing>,
    /// Time spent working since the last pause.
    work_time: Duration,
}

/// Target of the follower, shared with its handles.
#[derive(Debug)]
struct FollowedDirectory {
    directory: RulesDirectory,
    is_stopped: bool,
}

/// Controls a [`DirectoryFollower`].
#[derive(Clone, Debug)]
pub struct DirectoryFollowerHandle {
    followed: Arc<Mutex<FollowedDirectory>>,
    waker: Waker,
}

impl DirectoryFollowerHandle {
    /// Replaces the watched directory.
    pub fn follow(&self, directory: RulesDirectory) {
        self.followed.lock().directory = directory;
        self.waker.wake();
    }

    /// Ends [`DirectoryFollower::run`].
    pub fn stop(&self) {
        self.followed.lock().is_stopped = true;
        self.waker.wake();
    }
}

impl DirectoryFollower {
    /// Creates a follower of `directory`. `loaded` is what is in force at `handler`.
    pub fn new(directory: RulesDirectory, loaded: Option<&LoadedRules>, handler: Arc<RlsHandler>) -> Self {
        Self {
            watch: FileWatch::for_directories(directory.paths_to_watch(None)),
            followed: Arc::new(Mutex::new(FollowedDirectory { directory, is_stopped: false })),
            last_hash: loaded.map(|loaded| loaded.hash.clone()),
            handler,
            listing: None,
            work_time: Duration::ZERO,
        }
    }

    pub fn handle(&self) -> DirectoryFollowerHandle {
        DirectoryFollowerHandle { followed: Arc::clone(&self.followed), waker: self.watch.waker() }
    }

    /// Watches until [`DirectoryFollowerHandle::stop`]. This blocks, so it needs a thread of its own.
    pub fn run(mut self) {
        let mut wait_result = WaitResult::Notified;
        loop {
            let directory = {
                let followed = self.followed.lock();
                if followed.is_stopped {
                    return;
                }
                followed.directory.clone()
            };
            self.apply_changes(&directory, wait_result);
            self.pause_after_work();
            wait_result = self.watch.wait(POLL_INTERVAL);
        }
    }

    fn is_stopped(&self) -> bool {
        self.followed.lock().is_stopped
    }

    /// Pauses in proportion to the work done. Events in the meantime are processed afterwards.
    fn pause_after_work(&mut self) {
        let pause = std::mem::take(&mut self.work_time).saturating_mul(IDLE_RATIO);
        let started = Stopwatch::start();
        let mut wait_result = WaitResult::TimedOut;
        while !self.is_stopped() && started.elapsed() < pause {
            if self.watch.wait(pause.saturating_sub(started.elapsed())) == WaitResult::Notified {
                wait_result = WaitResult::Notified;
            }
        }
        if wait_result == WaitResult::Notified {
            self.watch.waker().wake();
        }
    }

    /// Applies the files' content if it has changed.
    fn apply_changes(&mut self, directory: &RulesDirectory, wait_result: WaitResult) {
        let Some((hash, texts)) = self.read_if_changed(directory, wait_result) else { return };
        if self.last_hash.as_ref() == Some(&hash) {
            return;
        }
        let started = Stopwatch::start();
        self.load_and_apply(directory, hash, texts);
        self.work_time += started.elapsed();
    }

    fn load_and_apply(&mut self, directory: &RulesDirectory, hash: DirectoryHash, texts: FileTexts) {
        let parsed = texts
            .map_err(RulesError::Unreadable)
            // On one thread only, because there is traffic now.
            .and_then(|texts| {
                parse_rules(&texts, directory.merge_domains, NonZeroUsize::MIN).map_err(RulesError::Invalid)
            });
        self.last_hash = Some(hash);
        self.handler.stats().record_config_load(parsed.is_ok());
        let path = directory.path.display();
        match parsed {
            Ok(rules) => {
                if rules.is_empty() {
                    let prefix = &*directory.prefix;
                    tracing::warn!(directory = %path, prefix, "no rule files: nothing is limited");
                }
                self.handler.set_rules(Arc::new(rules));
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
    fn read_if_changed(
        &mut self,
        directory: &RulesDirectory,
        wait_result: WaitResult,
    ) -> Option<(DirectoryHash, FileTexts)> {
        let settling = Debounce::start(DebounceTimes::default());
        let mut listing = directory.list();
        if wait_result == WaitResult::TimedOut
            && listing.is_ok()
            && listing.as_ref().ok() == self.listing.as_ref()
        {
            return None;
        }
        for _ in 0..MAX_READS {
            if self.is_stopped() {
                return None;
            }
            self.watch.watch_directories(directory.paths_to_watch(listing.as_ref().ok()));
            let started = Stopwatch::start();
            let texts = listing.clone().and_then(|listing| listing.read());
            self.work_time += started.elapsed();
            self.settle(&settling, listing.as_ref().ok());
            let later = directory.list();
            let is_unchanged = later == listing;
            let is_consistent = match (&listing, &later) {
                (Ok(listing), Ok(later)) => settling.is_over() && listing.is_consistent_with(later),
                _ => false,
            };
            if is_unchanged || is_consistent {
                if !is_unchanged {
                    // Later changes are processed next.
                    self.watch.waker().wake();
                }
                self.listing = listing.ok();
                let content = texts.as_ref().map(|texts| hash_texts(texts)).map_err(Clone::clone);
                return Some((DirectoryHash { content, merge_domains: directory.merge_domains }, texts));
            }
            listing = later;
        }
        self.watch.waker().wake();
        None
    }

    fn settle(&self, settling: &Debounce, listing: Option<&DirectoryListing>) {
        let is_listed = |path: &Path| listing.is_some_and(|listing| listing.has_file(path));
        self.watch.settle(settling, is_listed, || self.is_stopped());
    }
}
