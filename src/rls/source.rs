//! Where the documents come from, and that what they say is in force.
//!
//! A set of documents is taken whole, or what was there before stays, as the reference has it. What is compared is
//! the content: it does not matter how files were replaced, by links, by `mv` or by a ConfigMap, nor whether an event
//! told of it.

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
use crate::watch::settling::{Pace, Settling};
use crate::watch::{Waker, Watch, Woken};

/// How often is looked without a reason.
const POLL: Duration = Duration::from_secs(2);

/// Bytes from which on it is worth it to read on several threads.
const MUCH: usize = 1 << 20;

/// Files that change while they are read are left alone until the next look.
const MOST_READS: usize = 10;

/// After it was busy for a while it rests so many times longer: files that are replaced all the time take a quarter of a CPU.
const REST: u32 = 3;

/// Why there are no rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// What stands in the files is wrong.
    #[error(transparent)]
    Invalid(#[from] LoadError),
}

/// Rules, and what they were made of.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The rules.
    pub rules: Arc<Rules>,
    mark: Mark,
}

/// Names and texts of files, or why they cannot be read.
type Texts = Result<Vec<(String, String)>, String>;

impl Loaded {
    /// Whether both were made of the same.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.mark == other.mark
    }
}

/// What some files said.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    content: Result<u64, String>,
    merged: bool,
}

/// Reads the rules that are in `directory` now.
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

/// The rules of these files, which a listing has sorted, read on so many threads: to read YAML is what takes time.
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

/// The same wherever the same files say the same. Whoever writes them could as well write anything else.
fn hash(texts: &[(String, String)]) -> u64 {
    let mut hasher = DefaultHasher::new();
    texts.hash(&mut hasher);
    hasher.finish()
}

/// Keeps a desk's rules as the files have them.
#[derive(Debug)]
pub struct Follower {
    watch: Watch,
    wanted: Arc<Mutex<Wanted>>,
    desk: Arc<Desk>,
    /// What was read last, whether it is in force or not.
    seen: Option<Mark>,
    listing: Option<Listing>,
    /// How long reading has taken since the last rest.
    busy: Duration,
}

/// What is to be followed.
#[derive(Debug)]
struct Wanted {
    directory: Directory,
    is_stopped: bool,
}

/// A follower's remote control.
#[derive(Clone, Debug)]
pub struct Handle {
    wanted: Arc<Mutex<Wanted>>,
    waker: Waker,
}

impl Handle {
    /// From now on this is followed.
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
    /// A follower of `directory`, whose rules as `loaded` are in force at `desk`.
    pub fn new(directory: Directory, loaded: Option<&Loaded>, desk: Arc<Desk>) -> Self {
        Self {
            watch: Watch::on_all_in(directory.watched(None)),
            wanted: Arc::new(Mutex::new(Wanted { directory, is_stopped: false })),
            seen: loaded.map(|loaded| loaded.mark.clone()),
            desk,
            listing: None,
            busy: Duration::ZERO,
        }
    }

    /// The remote control.
    pub fn handle(&self) -> Handle {
        Handle { wanted: Arc::clone(&self.wanted), waker: self.watch.waker() }
    }

    /// Follows until [`Handle::stop`]. Blocks, so give it a thread of its own.
    pub fn run(mut self) {
        let mut woken = Woken::Early;
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

    /// Does nothing for a while if there was much to do. What happens meanwhile is looked at afterwards.
    fn rest(&mut self) {
        let lasts = std::mem::take(&mut self.busy).saturating_mul(REST);
        let began = Stopwatch::start();
        let mut woken = Woken::InTime;
        while !self.is_stopped() && began.elapsed() < lasts {
            if self.watch.wait(lasts.saturating_sub(began.elapsed())) == Woken::Early {
                woken = Woken::Early;
            }
        }
        if woken == Woken::Early {
            self.watch.waker().wake();
        }
    }

    /// Takes over what the files say, if that is news.
    fn look(&mut self, directory: &Directory, woken: Woken) {
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
            // On this thread alone: there is traffic now.
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
                tracing::error!(directory = %path, %error, "rate limit rules rejected, those before stay");
            }
        }
    }

    /// The files' content, if it may have changed and no file was caught in the middle of a write.
    fn read(&mut self, directory: &Directory, woken: Woken) -> Option<(Mark, Texts)> {
        let settling = Settling::begin(Pace::default());
        let mut listing = directory.list();
        if woken == Woken::InTime && listing.is_ok() && listing.as_ref().ok() == self.listing.as_ref() {
            return None;
        }
        for _ in 0..MOST_READS {
            if self.is_stopped() {
                return None;
            }
            self.watch.follow_directories(directory.watched(listing.as_ref().ok()));
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
                    // What has come since is looked at next.
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

    fn settle(&self, settling: &Settling, listing: Option<&Listing>) {
        let is_ours = |path: &Path| listing.is_some_and(|listing| listing.has(path));
        self.watch.settle(settling, is_ours, || self.is_stopped());
    }
}
