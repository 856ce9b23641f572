//! What the configuration's files say at one moment, and whether that is a file as its writer left it.
//!
//! A file that is written in place can be caught half-written. One reading cannot tell; two can, a moment apart: what
//! reads the same twice has been at rest in between, and a file that was replaced in between is one that nobody
//! writes to any more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::central::document::Document;
use crate::config::files::Marks;
use crate::config::problem::{Problem, Severity};
use crate::watch::stamp::Stamp;

/// The marker of YAML that ends a document.
const END: &str = "...";

/// What a look at the files found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) text: Result<String, Problem>,
    /// What was fetched, if the text is a bootstrap.
    pub(super) document: Option<Document>,
    /// What the data files say that the configuration names.
    pub(super) data: Marks,
}

/// The stamps of the configuration and of its data files.
pub(super) type Stamps = BTreeMap<PathBuf, Option<Stamp>>;

/// What was found, and what the system said of the files meanwhile.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) found: Found,
    /// From before the files were read.
    pub(super) stamps: Stamps,
    /// The stamps were the same afterwards.
    pub(super) is_steady: bool,
}

impl Reading {
    /// Whether `again`, read a moment later, shows that no file was caught in the middle of a write. `text` is the path of
    /// the configuration itself.
    pub(super) fn is_confirmed_by(&self, again: &Self, text: &Path) -> bool {
        let is_same = |path: &Path| match path == text {
            true => self.found.text == again.found.text,
            false => self.found.data.get(path) == again.found.data.get(path),
        };
        let was_replaced = |path: &Path| match (self.stamps.get(path), again.stamps.get(path)) {
            (Some(Some(old)), Some(Some(new))) => !old.is_same_file_as(new),
            _ => false,
        };
        let paths = || self.found.data.keys().map(PathBuf::as_path).chain([text]);
        self.is_steady && paths().all(|path| is_same(path) || was_replaced(path))
    }
}

/// The problem of a text that lacks the end marker which the one in force has.
pub(super) fn missing_end(running: &str, text: &str, file: &Path) -> Option<Problem> {
    if !has_end(running) || has_end(text) {
        return None;
    }
    let last = text.lines().last().unwrap_or_default();
    Some(Problem {
        file: file.to_owned(),
        line: text.lines().count().max(1),
        column: last.chars().count() + 1,
        path: String::new(),
        message: format!("cut off: the end marker `{END}` is missing"),
        hint: Some(format!(
            "the configuration in force ends with `{END}`; end this one with it too, or restart to do without"
        )),
        severity: Severity::Problem,
    })
}

/// Whether the last line that is neither empty nor a comment is the end marker.
fn has_end(text: &str) -> bool {
    let is_content = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    text.lines().rev().find(is_content).is_some_and(|line| {
        line.strip_prefix(END).is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
    })
}

/// How many lines `text` is shorter than `running`, where it is the same up to its end.
pub(super) fn lines_cut_off(running: &str, text: &str) -> Option<usize> {
    let rest = running.strip_prefix(text)?;
    let is_content = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    Some(rest.lines().filter(is_content).count()).filter(|lines| *lines > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "weir.yaml";

    #[test]
    fn the_end_marker_is_the_last_line_that_says_anything() {
        for text in ["a: 1\n...\n", "a: 1\n...", "a: 1\n...  \n\n# end\n", "a: 1\n... # end\n"] {
            assert!(has_end(text), "{text:?}");
        }
        for text in ["", "a: 1\n", "a: 1\n ...\n", "a: 1\n....\n", "a: 1\n# ...\n", "...\na: 1\n"] {
            assert!(!has_end(text), "{text:?}");
        }
    }

    #[test]
    fn a_text_without_the_end_marker_of_the_one_in_force_is_cut_off() {
        let problem = missing_end("a: 1\nb: 2\n...\n", "a: 1\nb: 2\n", Path::new(FILE)).unwrap();
        assert_eq!(
            problem.to_string(),
            "weir.yaml:2:5: cut off: the end marker `...` is missing (the configuration in force ends with `...`; \
             end this one with it too, or restart to do without)"
        );
        assert_eq!(missing_end("a: 1\n", "a: 2\n", Path::new(FILE)), None);
        assert_eq!(missing_end("a: 1\n...\n", "a: 2\n...\n", Path::new(FILE)), None);
        assert!(missing_end("a: 1\n...\n", "", Path::new(FILE)).is_some());
    }

    #[test]
    fn only_a_text_that_lacks_lines_at_its_end_may_be_cut_off() {
        assert_eq!(lines_cut_off("a: 1\nb: 2\nc: 3\n", "a: 1\n"), Some(2));
        assert_eq!(lines_cut_off("a: 1\nb: 22\n", "a: 1\nb: 2"), Some(1));
        assert_eq!(lines_cut_off("a: 1\n\n# end\n", "a: 1\n"), None);
        assert_eq!(lines_cut_off("a: 1\nb: 2\n", "a: 2\n"), None);
        assert_eq!(lines_cut_off("a: 1\n", "a: 1\n"), None);
    }

    fn reading(list: u128, stamp: Option<Stamp>) -> Reading {
        let path = PathBuf::from("list.txt");
        Reading {
            found: Found {
                text: Ok("a".to_owned()),
                document: None,
                data: [(path.clone(), Ok(list))].into(),
            },
            stamps: [(path, stamp)].into(),
            is_steady: true,
        }
    }

    #[test]
    fn a_file_that_reads_differently_is_whole_only_if_it_was_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let stamp = |name: &str| {
            std::fs::write(directory.path().join(name), "x").unwrap();
            Stamp::of(&directory.path().join(name))
        };
        let (one, other) = (stamp("one"), stamp("other"));
        let confirmed = |first: &Reading, again: &Reading| first.is_confirmed_by(again, Path::new(FILE));
        assert!(confirmed(&reading(1, one), &reading(1, one)));
        assert!(!confirmed(&reading(1, one), &reading(2, one)));
        assert!(confirmed(&reading(1, one), &reading(2, other)));
        assert!(!confirmed(&reading(1, one), &reading(2, None)));
        let torn = Reading { is_steady: false, ..reading(1, one) };
        assert!(!confirmed(&torn, &reading(1, one)));
    }
}
