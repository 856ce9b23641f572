//! The data files that a configuration names: lists of networks, databases, members of plans.
//!
//! [`Files`] reads each file once and keeps the parsed value until the content changes, so that a reload does
//! not parse an unchanged database again. It records which files are used, which determines what to watch and
//! how changes are found. Parsing is up to each file's [`Kind`].

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

/// Maximum number of problems that are reported for one file.
const MOST_FLAWS: usize = 20;

/// A kind of data file.
#[derive(Debug)]
pub(super) struct Kind<T> {
    /// Name of the kind; unique.
    pub(super) name: &'static str,
    /// Maximum size in bytes; larger files are rejected unread.
    pub(super) largest: u64,
    /// Parses the content, or returns its problems.
    pub(super) parse: fn(Vec<u8>) -> Result<T, Vec<Flaw>>,
}

/// A problem of a data file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flaw {
    /// Line and column, both from 1; `None` for the file as a whole.
    pub(super) place: Option<(usize, usize)>,
    /// Message and hint.
    pub(super) fault: Fault,
}

impl Flaw {
    /// Creates a flaw of the file as a whole.
    pub(super) fn whole(fault: impl Into<Fault>) -> Self {
        Self { place: None, fault: fault.into() }
    }

    /// Creates a flaw at a line and a column, both from 1.
    pub(super) fn at(line: usize, column: usize, fault: impl Into<Fault>) -> Self {
        Self { place: Some((line, column)), fault: fault.into() }
    }
}

/// Hash of a file's content, or why it cannot be read.
pub(super) type Mark = Result<u128, String>;

/// Marks of all files in use at one moment.
pub(super) type Marks = BTreeMap<PathBuf, Mark>;

type Parsed = Result<Arc<dyn Any + Send + Sync>, Arc<[Flaw]>>;

/// The data files of one configuration and its successors.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Directory that file names are relative to.
    base: PathBuf,
    records: BTreeMap<PathBuf, Record>,
    /// Number of configurations compiled with these files.
    compilations: u64,
}

#[derive(Debug)]
struct Record {
    stamp: Option<Stamp>,
    /// Whether the file was read twice with this stamp and the same content. From then on an equal stamp is
    /// taken for equal content. One read is not enough, because a coarse clock can give two writes the same
    /// time.
    is_settled: bool,
    mark: Mark,
    largest: u64,
    /// Results of each kind for the content that `mark` stands for.
    parsed: Vec<(&'static str, Parsed)>,
    /// Whether the configuration compiled last names the file.
    is_used: bool,
}

impl Files {
    /// Starts the compilation of the configuration in `file`.
    pub(super) fn begin(&mut self, file: &Path) {
        self.base = file.parent().map_or_else(PathBuf::new, Path::to_owned);
        self.records.values_mut().for_each(|record| record.is_used = false);
    }

    /// Ends the compilation: forgets the files that it did not use.
    pub(super) fn finish(&mut self) {
        self.records.retain(|_, record| record.is_used);
        self.compilations = self.compilations.wrapping_add(1);
    }

    /// Returns the number of configurations compiled so far.
    pub(super) fn compilations(&self) -> u64 {
        self.compilations
    }

    /// Loads the file `name`, given at `at`, as `kind`. Problems go to `report`; those of the file as a whole
    /// are reported at `at`.
    pub(super) fn load<T: Any + Send + Sync>(
        &mut self,
        name: &str,
        kind: &Kind<T>,
        at: At<'_>,
        report: &mut Report<'_>,
    ) -> Option<Arc<T>> {
        if name.is_empty() {
            report.value(at, "empty, expected a file name");
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

    /// Returns the path of the file `name`.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    /// Returns the current time, for files with a period of validity.
    pub(super) fn now(&self) -> Timestamp {
        Clock::start().now()
    }

    /// Returns the current marks of all files in use. Reads only files that may have changed.
    pub(super) fn look(&mut self) -> Marks {
        let look = |(path, record): (&PathBuf, &mut Record)| (path.clone(), record.look(path));
        self.records.iter_mut().map(look).collect()
    }

    /// Returns the marks of all files in use as of when they were last parsed.
    pub(super) fn marks(&self) -> Marks {
        self.records.iter().map(|(path, record)| (path.clone(), record.mark.clone())).collect()
    }

    /// Returns the paths of all files in use.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.records.keys().map(PathBuf::as_path)
    }

    /// Returns the stamps of all files in use as of when they were last parsed.
    pub(super) fn stamps(&self) -> impl Iterator<Item = (PathBuf, Option<Stamp>)> {
        self.records.iter().map(|(path, record)| (path.clone(), record.stamp))
    }

    /// Returns the marks by file name, relative to the directory of the configuration if possible.
    pub(super) fn named(&self) -> BTreeMap<String, Mark> {
        let name = |path: &Path| path.strip_prefix(&self.base).unwrap_or(path).to_string_lossy().into_owned();
        self.records.iter().map(|(path, record)| (name(path), record.mark.clone())).collect()
    }

    fn parsed<T: Any + Send + Sync>(&mut self, path: &Path, kind: &Kind<T>) -> Result<Parsed, String> {
        let stamp = Stamp::from_path(path);
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

    /// Records a new reading; discards parsed values if the content differs.
    fn note(&mut self, stamp: Option<Stamp>, mark: Mark) {
        self.is_settled = stamp.is_some() && stamp == self.stamp && mark == self.mark;
        self.stamp = stamp;
        if mark != self.mark {
            self.parsed.clear();
            self.mark = mark;
        }
    }

    /// Returns the file's current mark; keeps the values parsed earlier.
    fn look(&mut self, path: &Path) -> Mark {
        let stamp = Stamp::from_path(path);
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

/// Reports a flaw: at its position in the data file, or, if it concerns the whole file, at `at`, where the
/// file is named.
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

/// Limits `flaws` to [`MOST_FLAWS`].
pub(super) fn first_of(flaws: impl IntoIterator<Item = Flaw>) -> Vec<Flaw> {
    flaws.into_iter().take(MOST_FLAWS).collect()
}

/// Decodes the content as UTF-8.
fn text(content: Vec<u8>) -> Result<String, Vec<Flaw>> {
    String::from_utf8(content).map_err(|error| {
        let (line, column) = source::place_of(&error);
        vec![Flaw::at(line, column, "not UTF-8 text")]
    })
}

#[cfg(test)]
mod tests;
