//! The data files that a configuration names: lists of networks, databases, members of plans.
//!
//! [`Files`] reads each of them once and keeps what was made of it until the content differs, so that a
//! reload does not parse an unchanged database anew. It remembers what it was asked for, and thereby knows
//! what has to be watched and whether anything of it has changed. What a file means is its kind's business.

pub(super) mod certificates;
pub(super) mod content;
pub(super) mod databases;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
pub(super) mod keys;
pub(super) mod members;
pub(super) mod networks;
mod reading;
pub(super) mod values;

use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) use self::reading::hash;
use self::reading::{hash_of, read};
use super::at::At;
use super::problem::{Fault, Problem, Report, Severity, quoted};
use super::source;
use crate::clock::Clock;
use crate::limiter::timestamp::Timestamp;
use crate::watch::stamp::Stamp;

/// More mistakes of one file than anybody reads.
const MOST_FLAWS: usize = 20;

/// A kind of data file.
#[derive(Debug)]
pub(super) struct Kind<T> {
    /// What such a file is called; no two kinds share a name.
    pub(super) name: &'static str,
    /// Larger files are refused unread, in bytes.
    pub(super) largest: u64,
    /// Makes something of the content, or says what is wrong with it.
    pub(super) parse: fn(Vec<u8>) -> Result<T, Vec<Flaw>>,
}

/// Something wrong in a data file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flaw {
    /// Line and column, both from 1; none where the file as a whole is meant.
    pub(super) place: Option<(usize, usize)>,
    /// What it is.
    pub(super) fault: Fault,
}

impl Flaw {
    /// A flaw of the whole file.
    pub(super) fn whole(fault: impl Into<Fault>) -> Self {
        Self { place: None, fault: fault.into() }
    }

    /// A flaw at a line and a column, both from 1.
    pub(super) fn at(line: usize, column: usize, fault: impl Into<Fault>) -> Self {
        Self { place: Some((line, column)), fault: fault.into() }
    }
}

/// The content of a file as a hash, or why there is none.
pub(super) type Mark = Result<u128, String>;

/// What all files in use said when they were looked at.
pub(super) type Marks = BTreeMap<PathBuf, Mark>;

type Parsed = Result<Arc<dyn Any + Send + Sync>, Arc<[Flaw]>>;

/// The data files of one configuration and its successors.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// The directory to which the names of files are relative.
    base: PathBuf,
    records: BTreeMap<PathBuf, Record>,
    /// How many configurations have been compiled with them.
    compilations: u64,
}

#[derive(Debug)]
struct Record {
    stamp: Option<Stamp>,
    /// Read twice under this stamp: from then on the stamp speaks for the content. Once is not enough, since
    /// a clock that ticks slowly gives two writes the same time.
    is_settled: bool,
    mark: Mark,
    largest: u64,
    /// What each kind made of the content that `mark` stands for.
    parsed: Vec<(&'static str, Parsed)>,
    /// Named by the configuration that was looked at last.
    is_used: bool,
}

impl Files {
    /// The configuration in `file` is about to be compiled, and names files anew.
    pub(super) fn begin(&mut self, file: &Path) {
        self.base = file.parent().map_or_else(PathBuf::new, Path::to_owned);
        self.records.values_mut().for_each(|record| record.is_used = false);
    }

    /// It has been compiled: what it did not name is forgotten.
    pub(super) fn finish(&mut self) {
        self.records.retain(|_, record| record.is_used);
        self.compilations = self.compilations.wrapping_add(1);
    }

    /// Counts the configurations that were compiled so far.
    pub(super) fn compilations(&self) -> u64 {
        self.compilations
    }

    /// The content of the file that is called `name` at the place `at`, as `kind` understands it. Problems go
    /// to `report`, those of the file as a whole to that place.
    pub(super) fn load<T: Any + Send + Sync>(
        &mut self,
        name: &str,
        kind: &Kind<T>,
        at: At<'_>,
        report: &mut Report<'_>,
    ) -> Option<Arc<T>> {
        if name.is_empty() {
            report.value(at, "empty, expected the name of a file");
            return None;
        }
        let path = self.path(name);
        let parsed =
            self.parsed(&path, kind).unwrap_or_else(|unreadable| Err([Flaw::whole(unreadable)].into()));
        match parsed {
            Ok(value) => value.downcast().ok(),
            Err(flaws) => {
                flaws.iter().for_each(|flaw| tell(flaw, Severity::Problem, &path, at, report));
                None
            }
        }
    }

    /// The path of the file that is called `name`.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    /// The time, for what a file says about how long it holds.
    pub(super) fn now(&self) -> Timestamp {
        Clock::start().now()
    }

    /// What every file in use says now. Reads only those that may have changed.
    pub(super) fn look(&mut self) -> Marks {
        let look = |(path, record): (&PathBuf, &mut Record)| (path.clone(), record.look(path));
        self.records.iter_mut().map(look).collect()
    }

    /// What every file in use said when it was last made something of.
    pub(super) fn marks(&self) -> Marks {
        self.records.iter().map(|(path, record)| (path.clone(), record.mark.clone())).collect()
    }

    /// The paths of all files in use.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.records.keys().map(PathBuf::as_path)
    }

    /// What the system said of every file in use when it was last made something of.
    pub(super) fn stamps(&self) -> impl Iterator<Item = (PathBuf, Option<Stamp>)> {
        self.records.iter().map(|(path, record)| (path.clone(), record.stamp))
    }

    /// The marks by the names of the files, without the directory that they are relative to.
    pub(super) fn named(&self) -> BTreeMap<String, Mark> {
        let name = |path: &Path| path.strip_prefix(&self.base).unwrap_or(path).to_string_lossy().into_owned();
        self.records.iter().map(|(path, record)| (name(path), record.mark.clone())).collect()
    }

    fn parsed<T: Any + Send + Sync>(&mut self, path: &Path, kind: &Kind<T>) -> Result<Parsed, String> {
        let stamp = Stamp::of(path);
        let record = self.records.entry(path.to_owned()).or_insert_with(|| Record::new(kind.largest));
        record.is_used = true;
        record.largest = record.largest.max(kind.largest);
        let known = |record: &Record| {
            let found = record.parsed.iter().find(|(name, _)| *name == kind.name);
            found.map(|(_, parsed)| parsed.clone())
        };
        let is_current = record.is_settled && stamp.is_some() && stamp == record.stamp;
        if is_current && let Some(parsed) = known(record) {
            return Ok(parsed);
        }
        let content = read(path, kind.largest);
        record.note(stamp, content.as_ref().map(|content| hash(content)).map_err(Clone::clone));
        let content = content?;
        if let Some(parsed) = known(record) {
            return Ok(parsed);
        }
        let parsed: Parsed = match (kind.parse)(content) {
            Ok(value) => Ok(Arc::new(value)),
            Err(flaws) => Err(flaws.into()),
        };
        record.parsed.push((kind.name, parsed.clone()));
        Ok(parsed)
    }
}

impl Record {
    fn new(largest: u64) -> Self {
        let mark = Err("not read yet".to_owned());
        Self { stamp: None, is_settled: false, mark, largest, parsed: Vec::new(), is_used: true }
    }

    /// Takes a fresh reading over.
    fn note(&mut self, stamp: Option<Stamp>, mark: Mark) {
        self.is_settled = stamp.is_some() && stamp == self.stamp && mark == self.mark;
        self.stamp = stamp;
        if mark != self.mark {
            self.parsed.clear();
            self.mark = mark;
        }
    }

    /// What the file says now. What was made of it stays what it was.
    fn look(&mut self, path: &Path) -> Mark {
        let stamp = Stamp::of(path);
        if self.is_settled && stamp == self.stamp {
            return self.mark.clone();
        }
        let mark = hash_of(path, self.largest);
        if mark == self.mark {
            self.note(stamp, mark.clone());
        }
        mark
    }
}

/// A flaw with a place belongs to the data file, one of the whole to whoever named it.
pub(super) fn tell(flaw: &Flaw, severity: Severity, path: &Path, at: At<'_>, report: &mut Report<'_>) {
    let Flaw { place, fault } = flaw.clone();
    let Some((line, column)) = place else {
        let message = format!("{}, got {}", fault.message, quoted(&path.to_string_lossy()));
        let fault = Fault { message, hint: fault.hint };
        return match severity {
            Severity::Problem => report.value(at, fault),
            Severity::Note => report.note(at, fault),
        };
    };
    let problem = Problem {
        file: path.to_owned(),
        line,
        column,
        path: String::new(),
        message: fault.message,
        hint: fault.hint,
        severity,
    };
    report.elsewhere(at, problem);
}

/// As many of `flaws` as anybody reads.
pub(super) fn first_of(flaws: impl IntoIterator<Item = Flaw>) -> Vec<Flaw> {
    flaws.into_iter().take(MOST_FLAWS).collect()
}

/// The content as text.
fn text(content: Vec<u8>) -> Result<String, Vec<Flaw>> {
    String::from_utf8(content).map_err(|error| {
        let (line, column) = source::place_of(&error);
        vec![Flaw::at(line, column, "not UTF-8 text")]
    })
}

#[cfg(test)]
mod tests;
