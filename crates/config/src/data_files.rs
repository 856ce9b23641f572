//! The data files that a configuration names: lists of networks, databases, members of plans.
//!
//! [`DataFiles`] reads each file once and keeps the parsed value until the content changes, so that a reload does
//! not parse an unchanged database again. It records which files are used, which determines what to watch and
//! how changes are found. Parsing is up to each file's [`DataFileKind`].

pub(super) mod certificates;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub(super) mod geo_databases;
pub(super) mod header_values;
pub(super) mod jwt_keys;
pub(super) mod members;
pub(super) mod networks;
mod read;
pub(super) mod response_body;

use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) use self::read::hash_bytes;
use self::read::{hash_file, read_file};
use super::at::At;
use super::diagnostic::{Diagnostic, Severity, ValueError};
use super::quoting::quoted;
use super::source;
use weir_limiter::timestamp::Timestamp;
use weir_net::clock::Clock;
use weir_net::watch::stamp::Stamp;

/// Maximum number of problems that are reported for one file.
const MAX_REPORTED_ERRORS: usize = 20;

#[derive(Debug)]
pub(super) struct DataFileKind<T> {
    /// Name of the kind; unique.
    pub(super) name: &'static str,
    /// Maximum size in bytes; larger files are rejected unread.
    pub(super) max_size: u64,
    /// Parses the content, or returns its problems.
    pub(super) parse: fn(Vec<u8>) -> Result<T, Vec<DataFileError>>,
}

/// A problem of a data file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DataFileError {
    /// Line and column, both from 1; `None` for the file as a whole.
    pub(super) position: Option<(usize, usize)>,
    /// Message and hint.
    pub(super) error: ValueError,
}

impl DataFileError {
    /// Creates an error of the file as a whole.
    pub(super) fn for_file(error: impl Into<ValueError>) -> Self {
        Self { position: None, error: error.into() }
    }

    /// Creates an error at a line and a column, both from 1.
    pub(super) fn at_position(line: usize, column: usize, error: impl Into<ValueError>) -> Self {
        Self { position: Some((line, column)), error: error.into() }
    }
}

/// Hash of a file's content, or why it cannot be read.
pub(super) type FileHash = Result<u128, String>;

/// Hashes of all files in use at one moment.
pub(super) type FileHashes = BTreeMap<PathBuf, FileHash>;

type ParseResult = Result<Arc<dyn Any + Send + Sync>, Arc<[DataFileError]>>;

/// The data files of one configuration and its successors.
#[derive(Debug, Default)]
pub(super) struct DataFiles {
    /// Directory that file names are relative to.
    base: PathBuf,
    records: BTreeMap<PathBuf, FileRecord>,
    /// Files that are not on disk but in a Kubernetes manifest.
    inline: BTreeMap<PathBuf, Vec<u8>>,
    /// Number of configurations compiled with these files.
    compilations: u64,
}

#[derive(Debug)]
struct FileRecord {
    stamp: Option<Stamp>,
    /// Whether the file was read twice with this stamp and the same content. From then on an equal stamp is
    /// taken for equal content. One read is not enough, because a coarse clock can give two writes the same
    /// time.
    is_stable: bool,
    hash: FileHash,
    max_size: u64,
    /// Results of each kind for the content with this `hash`.
    parsed: Vec<(&'static str, ParseResult)>,
    /// Whether the configuration compiled last names the file.
    is_used: bool,
}

impl DataFiles {
    /// Creates the data files of a manifest, which stand in place of files on disk.
    pub(super) fn with_inline(inline: BTreeMap<PathBuf, Vec<u8>>) -> Self {
        Self { inline, ..Self::default() }
    }

    /// Starts the compilation of the configuration in `file`.
    pub(super) fn start_compilation(&mut self, file: &Path) {
        self.base = file.parent().map_or_else(PathBuf::new, Path::to_owned);
        self.records.values_mut().for_each(|record| record.is_used = false);
    }

    /// Ends the compilation: forgets the files that it did not use.
    pub(super) fn finish_compilation(&mut self) {
        self.records.retain(|_, record| record.is_used);
        self.compilations = self.compilations.wrapping_add(1);
    }

    /// Returns the number of configurations compiled so far.
    pub(super) fn compilation_count(&self) -> u64 {
        self.compilations
    }

    pub(super) fn resolve_path(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    /// Returns the current time, for files with a period of validity.
    pub(super) fn now(&self) -> Timestamp {
        Clock::start().now()
    }

    /// Returns the current hashes of all files in use. Reads only files that may have changed.
    pub(super) fn current_hashes(&mut self) -> FileHashes {
        let look = |(path, record): (&PathBuf, &mut FileRecord)| (path.clone(), record.current_hash(path));
        self.records.iter_mut().map(look).collect()
    }

    /// Returns the hashes of all files in use as of when they were last parsed.
    pub(super) fn recorded_hashes(&self) -> FileHashes {
        self.records.iter().map(|(path, record)| (path.clone(), record.hash.clone())).collect()
    }

    /// Returns the paths of all files in use.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.records.keys().map(PathBuf::as_path)
    }

    /// Returns the stamps of all files in use as of when they were last parsed.
    pub(super) fn recorded_stamps(&self) -> impl Iterator<Item = (PathBuf, Option<Stamp>)> {
        self.records.iter().map(|(path, record)| (path.clone(), record.stamp))
    }

    /// Returns the hashes by file name, relative to the directory of the configuration if possible.
    pub(super) fn hashes_by_name(&self) -> BTreeMap<String, FileHash> {
        let name = |path: &Path| path.strip_prefix(&self.base).unwrap_or(path).to_string_lossy().into_owned();
        self.records.iter().map(|(path, record)| (name(path), record.hash.clone())).collect()
    }

    fn load_parsed<T: Any + Send + Sync>(
        &mut self,
        path: &Path,
        kind: &DataFileKind<T>,
    ) -> Result<ParseResult, String> {
        let stamp = Stamp::from_path(path);
        let record = self.records.entry(path.to_owned()).or_insert_with(|| FileRecord::new(kind.max_size));
        record.is_used = true;
        record.max_size = record.max_size.max(kind.max_size);
        let known = |record: &FileRecord| {
            let found = record.parsed.iter().find(|(name, _)| *name == kind.name);
            found.map(|(_, parsed)| parsed.clone())
        };
        let is_current = record.is_stable && stamp.is_some() && stamp == record.stamp;
        if is_current && let Some(parsed) = known(record) {
            return Ok(parsed);
        }
        let content = match self.inline.get(path) {
            Some(content) => Ok(content.clone()),
            None => read_file(path, kind.max_size),
        };
        record.record_read(stamp, content.as_ref().map(|content| hash_bytes(content)).map_err(Clone::clone));
        let content = content?;
        if let Some(parsed) = known(record) {
            return Ok(parsed);
        }
        let parsed: ParseResult = match (kind.parse)(content) {
            Ok(value) => Ok(Arc::new(value)),
            Err(flaws) => Err(flaws.into()),
        };
        record.parsed.push((kind.name, parsed.clone()));
        Ok(parsed)
    }
}

impl At<'_> {
    /// Loads the data file `name`, which the value names, as `kind`. Problems of the file as a whole are reported here.
    pub(super) fn load<T: Any + Send + Sync>(
        &self,
        files: &mut DataFiles,
        name: &str,
        kind: &DataFileKind<T>,
    ) -> Option<Arc<T>> {
        if name.is_empty() {
            self.error("empty, expected a file name");
            return None;
        }
        let path = files.resolve_path(name);
        let parsed = files
            .load_parsed(&path, kind)
            .unwrap_or_else(|unreadable| Err([DataFileError::for_file(unreadable)].into()));
        match parsed {
            Ok(value) => value.downcast().ok(),
            Err(flaws) => {
                flaws.iter().for_each(|flaw| report_error(flaw, Severity::Error, &path, *self));
                None
            }
        }
    }
}

impl FileRecord {
    fn new(max_size: u64) -> Self {
        let mark = Err("not read yet".to_owned());
        Self { stamp: None, is_stable: false, hash: mark, max_size, parsed: Vec::new(), is_used: true }
    }

    /// Records a read; discards parsed values if the content differs.
    fn record_read(&mut self, stamp: Option<Stamp>, hash: FileHash) {
        self.is_stable = stamp.is_some() && stamp == self.stamp && hash == self.hash;
        self.stamp = stamp;
        if hash != self.hash {
            self.parsed.clear();
            self.hash = hash;
        }
    }

    /// Returns the file's current hash; keeps the values parsed earlier.
    fn current_hash(&mut self, path: &Path) -> FileHash {
        let stamp = Stamp::from_path(path);
        if self.is_stable && stamp == self.stamp {
            return self.hash.clone();
        }
        let mark = hash_file(path, self.max_size);
        if mark == self.hash {
            self.record_read(stamp, mark.clone());
        }
        mark
    }
}

/// Reports an error: at its position in the data file, or, if it concerns the whole file, at `at`, where the
/// file is named.
pub(super) fn report_error(error: &DataFileError, severity: Severity, path: &Path, at: At<'_>) {
    let DataFileError { position: place, error } = error.clone();
    let Some((line, column)) = place else {
        let message = format!("{}, got {}", error.message, quoted(&path.to_string_lossy()));
        let error = ValueError { message, hint: error.hint };
        return match severity {
            Severity::Error => at.error(error),
            Severity::Note => at.note(error),
        };
    };
    let problem = Diagnostic {
        file: path.to_owned(),
        line,
        column,
        path: String::new(),
        message: error.message,
        hint: error.hint,
        severity,
    };
    at.diagnostic(problem);
}

/// Truncates `errors` to [`MAX_REPORTED_ERRORS`].
pub(super) fn truncate_errors(errors: impl IntoIterator<Item = DataFileError>) -> Vec<DataFileError> {
    errors.into_iter().take(MAX_REPORTED_ERRORS).collect()
}

/// Decodes the content as UTF-8.
fn decode_utf8(content: Vec<u8>) -> Result<String, Vec<DataFileError>> {
    String::from_utf8(content).map_err(|error| {
        let (line, column) = source::utf8_error_position(&error);
        vec![DataFileError::at_position(line, column, "not UTF-8 text")]
    })
}

#[cfg(test)]
mod tests;
