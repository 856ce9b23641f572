//! Problems of a configuration and their positions.
//!
//! A [`Fault`] is what the parser of a single value reports. A [`Problem`] adds the file, the position and
//! the path. A `Report` collects problems, so that one run lists all of them. Wording of messages: lower
//! case, no full stop, the problem first and the value last, names in backquotes and values in double quotes.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use super::at::At;
use super::raw::secret::shown_path;
use super::tree::{Position, Positions, Texts};

/// Maximum length of a quoted value, in characters. Longer values are cut, because the position leads to the
/// rest.
const LONGEST_QUOTE: usize = 60;

/// Whether a remark prevents a configuration from being used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The configuration is rejected.
    Problem,
    /// The configuration is valid, but the setting is questionable.
    Note,
}

/// A remark about a configuration, e.g. `weir.yaml:14:12: rules[1].limit: unknown unit "fortnight"`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Problem {
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

impl Problem {
    /// Creates a problem of the file as a whole.
    pub(super) fn of_file(file: &Path, message: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            line: 0,
            column: 0,
            path: String::new(),
            message: message.into(),
            hint: None,
            severity: Severity::Problem,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
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
            Some(hint) => write!(f, " ({})", in_one_line(hint)),
            None => Ok(()),
        }
    }
}

/// Escapes control characters. A hint may repeat text from the file, and a problem is printed on one line.
fn in_one_line(hint: &str) -> Cow<'_, str> {
    if !hint.contains(char::is_control) {
        return Cow::Borrowed(hint);
    }
    let escaped = |letter: char| {
        if letter.is_control() { letter.escape_debug().to_string() } else { letter.to_string() }
    };
    hint.chars().map(escaped).collect()
}

/// What is wrong with a single value, without its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub message: String,
    /// What would be correct.
    pub hint: Option<String>,
}

impl Fault {
    /// Creates a fault without a hint.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    /// Returns the fault with a hint.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Returns the fault with a suggestion of the name that was probably meant, if there is one.
    #[must_use]
    pub fn meant(self, name: Option<&str>) -> Self {
        match name {
            Some(name) => self.hint(format!("did you mean `{name}`?")),
            None => self,
        }
    }
}

impl<T: Into<String>> From<T> for Fault {
    fn from(message: T) -> Self {
        Self::new(message)
    }
}

/// Formats `text` in double quotes, on one line; cuts long text.
pub(super) fn quoted(text: &str) -> String {
    enclosed(text, '"')
}

/// Formats `text` in backquotes, as names are written.
pub(super) fn named(text: &str) -> String {
    enclosed(text, '`')
}

fn enclosed(text: &str, quote: char) -> String {
    let cut = text.char_indices().nth(LONGEST_QUOTE).map_or(text.len(), |(at, _)| at);
    let mut enclosed = String::from(quote);
    for character in text[..cut].chars() {
        match character {
            '\n' => enclosed.push_str("\\n"),
            '\r' => enclosed.push_str("\\r"),
            '\t' => enclosed.push_str("\\t"),
            control if control.is_control() => enclosed.extend(control.escape_default()),
            other => enclosed.push(other),
        }
    }
    if cut < text.len() {
        enclosed.push('…');
    }
    enclosed.push(quote);
    enclosed
}

/// Formats `a`, `b` and `c` as `` `a`, `b`, `c` ``.
pub(super) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// All remarks about one configuration.
#[derive(Debug)]
pub(super) struct Report<'a> {
    texts: &'a Texts<'a>,
    problems: Vec<Problem>,
    notes: Vec<Problem>,
    /// Paths of all problems and of the values that contain them.
    faulty: HashSet<String>,
}

impl<'a> Report<'a> {
    pub(super) fn new(texts: &'a Texts<'a>) -> Self {
        Self { texts, problems: Vec::new(), notes: Vec::new(), faulty: HashSet::new() }
    }

    /// Reports a problem of the value at `at`, or a value missing from it.
    pub(super) fn value(&mut self, at: At<'_>, fault: impl Into<Fault>) {
        self.add(at, Positions::value, fault.into(), Severity::Problem);
    }

    /// Reports a problem of the key at `at`.
    pub(super) fn key(&mut self, at: At<'_>, fault: impl Into<Fault>) {
        self.add(at, Positions::key, fault.into(), Severity::Problem);
    }

    /// Reports a note on the valid value at `at`.
    pub(super) fn note(&mut self, at: At<'_>, fault: impl Into<Fault>) {
        self.add(at, Positions::value, fault.into(), Severity::Note);
    }

    /// Reports a problem or a note on another file, which the value at `at` names.
    pub(super) fn elsewhere(&mut self, at: At<'_>, problem: Problem) {
        match problem.severity {
            Severity::Problem => {
                self.mark(at);
                self.problems.push(problem);
            }
            Severity::Note => self.notes.push(problem),
        }
    }

    /// Returns the value; reports an error at `at` and returns `None`.
    pub(super) fn take<T>(&mut self, at: At<'_>, result: Result<T, impl Into<Fault>>) -> Option<T> {
        result.map_err(|fault| self.value(at, fault)).ok()
    }

    /// Returns the line of the value at `at`.
    pub(super) fn line(&self, at: At<'_>) -> usize {
        self.texts.of(at).1.value(at).line
    }

    /// Marks `at` as reported, because a misspelling of it has been reported.
    pub(super) fn excuse(&mut self, at: At<'_>) {
        self.faulty.insert(at.to_string());
    }

    /// Whether a problem at or below `at` has been reported, so that a value missing there need not be.
    pub(super) fn is_faulty(&self, at: At<'_>) -> bool {
        !self.faulty.is_empty() && self.faulty.contains(&at.to_string())
    }

    pub(super) fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Returns all problems, in the order of the file.
    pub(super) fn problems(self) -> Vec<Problem> {
        in_order(self.problems)
    }

    /// Returns all notes, in the order of the file.
    pub(super) fn notes(self) -> Vec<Problem> {
        in_order(self.notes)
    }

    fn add(
        &mut self,
        at: At<'_>,
        place: fn(&Positions, At<'_>) -> Position,
        fault: Fault,
        severity: Severity,
    ) {
        let (file, positions) = self.texts.of(at);
        let position = place(positions, at);
        let remarks = match severity {
            Severity::Problem => {
                self.mark(at);
                &mut self.problems
            }
            Severity::Note => &mut self.notes,
        };
        remarks.push(Problem {
            file: file.to_owned(),
            line: position.line,
            column: position.column,
            path: shown_path(&at.to_string()).to_owned(),
            message: fault.message,
            hint: fault.hint,
            severity,
        });
    }

    /// Marks `at` and everything that contains it as faulty.
    fn mark(&mut self, at: At<'_>) {
        let mut around = Some(at);
        while let Some(at) = around {
            self.faulty.insert(at.to_string());
            around = at.parent();
        }
    }
}

/// Sorts problems by position and removes duplicates.
pub(super) fn in_order(mut problems: Vec<Problem>) -> Vec<Problem> {
    problems.sort();
    problems.dedup();
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(path: &str) -> Problem {
        Problem {
            file: "weir.yaml".into(),
            line: 14,
            column: 12,
            path: path.to_owned(),
            message: "unknown unit \"fortnight\"".to_owned(),
            hint: None,
            severity: Severity::Problem,
        }
    }

    #[test]
    fn a_problem_reads_like_a_compiler_message() {
        let plain = problem("rules[1].limit");
        assert_eq!(plain.to_string(), "weir.yaml:14:12: rules[1].limit: unknown unit \"fortnight\"");
        let hinted = Problem { hint: Some("did you mean `w`?".to_owned()), ..problem("") };
        assert_eq!(hinted.to_string(), "weir.yaml:14:12: unknown unit \"fortnight\" (did you mean `w`?)");
        let note = Problem { severity: Severity::Note, ..plain };
        assert_eq!(note.to_string(), "weir.yaml:14:12: rules[1].limit: note: unknown unit \"fortnight\"");
        assert_eq!(Problem::of_file(Path::new("x.yaml"), "no such file").to_string(), "x.yaml: no such file");
    }

    #[test]
    fn a_quoted_value_stays_on_one_short_line() {
        assert_eq!(quoted("a\nb\u{7}"), "\"a\\nb\\u{7}\"");
        assert_eq!(quoted(&"ä".repeat(100)), format!("\"{}…\"", "ä".repeat(60)));
    }
}
