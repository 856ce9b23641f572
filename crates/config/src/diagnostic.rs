//! Problems of a configuration and their positions.
//!
//! A [`ValueError`] is what the parser of a single value reports. A [`Diagnostic`] adds the file, the
//! position and the path. `Diagnostics` collects problems, so that one run lists all of them. Wording of
//! messages: lower case, no full stop, the problem first and the value last, names in backquotes and values
//! in double quotes.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};

use super::at::At;
use super::config_path::ConfigPath;
use super::foreign;
use super::positions::{Positions, SourceTexts};
use super::raw::secret::redact_path;
use weir_yaml::Position;

/// Maximum number of problems, and of notes, that are reported of one configuration.
const MAX_DIAGNOSTICS: usize = 200;

/// Maximum number of notes with the same text.
const MAX_EQUAL_NOTES: usize = 3;

/// Whether a diagnostic prevents a configuration from being used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The configuration is rejected.
    Error,
    /// The configuration is valid, but the setting is questionable.
    Note,
}

/// A diagnostic of a configuration, e.g. `weir.yaml:14:12: rules[1].limit: unknown unit "fortnight"`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Diagnostic {
    /// The file, as it was named.
    pub file: PathBuf,
    /// Line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The path of keys, e.g. `rules[1].limit`; empty for the file as a whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What would be correct.
    pub hint: Option<String>,
    /// Whether it is an error or a note.
    pub severity: Severity,
}

impl Diagnostic {
    /// Creates a problem of the file as a whole.
    pub(super) fn for_file(file: &Path, message: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            line: 0,
            column: 0,
            path: String::new(),
            message: message.into(),
            hint: None,
            severity: Severity::Error,
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", escape_control_characters(&self.file.to_string_lossy()))?;
        if self.line > 0 {
            write!(f, "{}:{}:", self.line, self.column)?;
        }
        if !self.path.is_empty() {
            write!(f, " {}:", self.path)?;
        }
        if self.severity == Severity::Note {
            f.write_str(" note:")?;
        }
        write!(f, " {}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, " ({})", escape_control_characters(hint)),
            None => Ok(()),
        }
    }
}

/// Escapes control characters. A hint may repeat text from the file, and so does the name of a file within a manifest; a
/// problem is printed on one line.
fn escape_control_characters(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escaped = |letter: char| {
        if letter.is_control() { letter.escape_debug().to_string() } else { letter.to_string() }
    };
    text.chars().map(escaped).collect()
}

/// What is wrong with a single value, without its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueError {
    /// What is wrong.
    pub message: String,
    /// What would be correct.
    pub hint: Option<String>,
}

impl ValueError {
    /// Creates an error without a hint.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Returns the error with a suggestion of the name that was probably meant, if there is one.
    #[must_use]
    pub fn with_suggestion(self, name: Option<&str>) -> Self {
        match name {
            Some(name) => self.with_hint(format!("did you mean `{name}`?")),
            None => self,
        }
    }
}

impl<T: Into<String>> From<T> for ValueError {
    fn from(message: T) -> Self {
        Self::new(message)
    }
}

/// All diagnostics of one configuration.
#[derive(Debug)]
pub(super) struct Diagnostics<'a> {
    texts: &'a SourceTexts<'a>,
    found: RefCell<FoundDiagnostics>,
}

/// What has been found so far. An [`At`] reports through a shared reference.
#[derive(Debug, Default)]
struct FoundDiagnostics {
    errors: Vec<Diagnostic>,
    notes: Vec<Diagnostic>,
    /// Paths of all problems and of the values that contain them.
    reported_paths: HashSet<String>,
}

impl<'a> Diagnostics<'a> {
    pub(super) fn new(texts: &'a SourceTexts<'a>) -> Self {
        Self { texts, found: RefCell::default() }
    }

    /// Returns the place of a top-level key.
    pub(super) const fn section<'k>(&'k self, key: &'k str) -> At<'k> {
        At::new(ConfigPath::ROOT.key(key), self)
    }

    /// Returns the whole configuration as a place.
    pub(super) const fn root(&self) -> At<'_> {
        At::new(ConfigPath::ROOT, self)
    }

    /// Reports a problem of the value at `at`, or a value missing from it.
    pub(super) fn add_value_error(&self, at: ConfigPath<'_>, error: impl Into<ValueError>) {
        let error = self.explain_text(at, error.into());
        self.add_at(at, Positions::value_position, error, Severity::Error);
    }

    /// Returns the error with another hint, if the text at `at` is not what it looks like. Bodies and headers of local
    /// replies may have any letter.
    fn explain_text(&self, at: ConfigPath<'_>, error: ValueError) -> ValueError {
        let text = self.texts.text_at(at).1.text(at).filter(|_| !at.contains_key("on_limit"));
        match text.and_then(foreign::text_hint) {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }

    /// Reports a problem of the key at `at`.
    pub(super) fn add_key_error(&self, at: ConfigPath<'_>, error: impl Into<ValueError>) {
        self.add_at(at, Positions::key_position, error.into(), Severity::Error);
    }

    /// Reports a note on the valid value at `at`.
    pub(super) fn add_note(&self, at: ConfigPath<'_>, error: impl Into<ValueError>) {
        self.add_at(at, Positions::value_position, error.into(), Severity::Note);
    }

    /// Reports a problem or a note on another file, which the value at `at` names.
    pub(super) fn add_diagnostic(&self, at: ConfigPath<'_>, problem: Diagnostic) {
        match problem.severity {
            Severity::Error => {
                self.mark_with_parents(at);
                self.found.borrow_mut().errors.push(problem);
            }
            Severity::Note => self.found.borrow_mut().notes.push(problem),
        }
    }

    /// Returns the value; reports an error at `at` and returns `None`.
    pub(super) fn ok_or_report<T>(
        &self,
        at: ConfigPath<'_>,
        result: Result<T, impl Into<ValueError>>,
    ) -> Option<T> {
        result.map_err(|error| self.add_value_error(at, error)).ok()
    }

    /// Returns the place of the value as `line 12`, or as `FILE:12` if there are several files.
    pub(super) fn place_of(&self, at: ConfigPath<'_>) -> String {
        let (file, positions) = self.texts.text_at(at);
        let line = positions.value_position(at).line;
        if self.texts.is_single() { format!("line {line}") } else { format!("{}:{line}", file.display()) }
    }

    /// Marks `at` as reported, because a misspelling of it has been reported.
    pub(super) fn mark_reported(&self, at: ConfigPath<'_>) {
        self.found.borrow_mut().reported_paths.insert(at.to_string());
    }

    /// Whether a problem at or below `at` has been reported, so that a value missing there need not be.
    pub(super) fn is_reported(&self, at: ConfigPath<'_>) -> bool {
        let reported = &self.found.borrow().reported_paths;
        !reported.is_empty() && reported.contains(&at.to_string())
    }

    pub(super) fn has_no_errors(&self) -> bool {
        self.found.borrow().errors.is_empty()
    }

    /// Returns all problems, in the order of the file.
    pub(super) fn into_errors(self) -> Vec<Diagnostic> {
        sort_and_cap(self.found.into_inner().errors)
    }

    /// Returns all notes, in the order of the file. Of many equal ones, the last are one note with their number.
    pub(super) fn into_notes(self) -> Vec<Diagnostic> {
        cap(combine_equal(sort_and_dedup(self.found.into_inner().notes)))
    }

    fn add_at(
        &self,
        at: ConfigPath<'_>,
        locate: fn(&Positions, ConfigPath<'_>) -> Position,
        error: ValueError,
        severity: Severity,
    ) {
        let (file, positions) = self.texts.text_at(at);
        let position = locate(positions, at);
        let diagnostic = Diagnostic {
            file: file.to_owned(),
            line: position.line,
            column: position.column,
            path: redact_path(&at.to_string()).to_owned(),
            message: error.message,
            hint: error.hint,
            severity,
        };
        self.add_diagnostic(at, diagnostic);
    }

    /// Marks `at` and everything that contains it as reported.
    fn mark_with_parents(&self, at: ConfigPath<'_>) {
        let mut around = Some(at);
        while let Some(at) = around {
            self.found.borrow_mut().reported_paths.insert(at.to_string());
            around = at.parent();
        }
    }
}

/// Sorts problems by position, removes duplicates, and states how many there are beyond [`MAX_DIAGNOSTICS`].
pub(super) fn sort_and_cap(problems: Vec<Diagnostic>) -> Vec<Diagnostic> {
    cap(sort_and_dedup(problems))
}

/// Keeps the first diagnostics; the last one states how many others there are.
fn cap(mut diagnostics: Vec<Diagnostic>) -> Vec<Diagnostic> {
    // One more takes as many lines as the sentence about it.
    if diagnostics.len() <= MAX_DIAGNOSTICS + 1 {
        return diagnostics;
    }
    let others = diagnostics.split_off(MAX_DIAGNOSTICS);
    if let Some(first) = others.first() {
        let what = match first.severity {
            Severity::Error => "problems",
            Severity::Note => "notes",
        };
        let message = format!("{} more {what} from here on are not shown", others.len());
        diagnostics.push(Diagnostic { message, hint: None, path: String::new(), ..first.clone() });
    }
    diagnostics
}

/// Sorts problems by position and removes duplicates.
fn sort_and_dedup(mut problems: Vec<Diagnostic>) -> Vec<Diagnostic> {
    problems.sort();
    problems.dedup();
    problems
}

/// Keeps the first [`MAX_EQUAL_NOTES`] notes of each text; the others become one. A file may have thousands of rules.
fn combine_equal(notes: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let text = |note: &Diagnostic| (note.file.clone(), note.message.clone(), note.hint.clone());
    // The number of notes with this text, and the line of the last.
    let mut totals: HashMap<_, (usize, usize)> = HashMap::new();
    for note in &notes {
        let (count, last_line) = totals.entry(text(note)).or_default();
        (*count, *last_line) = (count.saturating_add(1), note.line);
    }
    let mut seen: HashMap<_, usize> = HashMap::new();
    let combined = notes.into_iter().filter_map(|note| {
        let index = seen.entry(text(&note)).or_default();
        *index = index.saturating_add(1);
        let (count, last_line) = totals.get(&text(&note)).copied().unwrap_or_default();
        // One more takes as many lines as the note about it.
        if count <= MAX_EQUAL_NOTES + 1 || *index <= MAX_EQUAL_NOTES {
            return Some(note);
        }
        let others = count.saturating_sub(MAX_EQUAL_NOTES);
        let message = format!("{others} more such notes, to line {last_line}: {}", note.message);
        (*index == MAX_EQUAL_NOTES + 1).then_some(Diagnostic { message, hint: None, ..note })
    });
    combined.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diagnostic(path: &str) -> Diagnostic {
        Diagnostic {
            file: "weir.yaml".into(),
            line: 14,
            column: 12,
            path: path.to_owned(),
            message: "unknown unit \"fortnight\"".to_owned(),
            hint: None,
            severity: Severity::Error,
        }
    }

    #[test]
    fn many_problems_are_cut_off_with_their_number() {
        let numbered =
            |count: usize| (1..=count).map(|line| Diagnostic { line, ..diagnostic("a") }).collect::<Vec<_>>();
        assert_eq!(sort_and_cap(numbered(MAX_DIAGNOSTICS + 1)).len(), MAX_DIAGNOSTICS + 1);
        let capped = sort_and_cap(numbered(50_000));
        assert_eq!(capped.len(), MAX_DIAGNOSTICS + 1);
        let last = capped.last().unwrap().to_string();
        assert_eq!(last, "weir.yaml:201:12: 49800 more problems from here on are not shown");
    }

    #[test]
    fn diagnostic_display_is_like_a_compiler_message() {
        let plain = diagnostic("rules[1].limit");
        assert_eq!(plain.to_string(), "weir.yaml:14:12: rules[1].limit: unknown unit \"fortnight\"");
        let hinted = Diagnostic { hint: Some("did you mean `w`?".to_owned()), ..diagnostic("") };
        assert_eq!(hinted.to_string(), "weir.yaml:14:12: unknown unit \"fortnight\" (did you mean `w`?)");
        let note = Diagnostic { severity: Severity::Note, ..plain };
        assert_eq!(note.to_string(), "weir.yaml:14:12: rules[1].limit: note: unknown unit \"fortnight\"");
        assert_eq!(
            Diagnostic::for_file(Path::new("x.yaml"), "no such file").to_string(),
            "x.yaml: no such file"
        );
    }

    #[test]
    fn many_equal_notes_are_combined() {
        let note = |line| Diagnostic { line, severity: Severity::Note, ..diagnostic("a") };
        let lines = |count| -> Vec<String> {
            combine_equal((1..=count).map(note).collect()).iter().map(ToString::to_string).collect()
        };
        assert_eq!(lines(4).len(), 4);
        let combined = lines(10_000);
        assert_eq!(combined.len(), 4);
        assert_eq!(
            combined[3],
            "weir.yaml:4:12: a: note: 9997 more such notes, to line 10000: unknown unit \"fortnight\""
        );
    }
}
