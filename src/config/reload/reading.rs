//! The content of the configuration's files at one moment, and whether it is complete.
//!
//! A file that is written in place may be read half-written. A single reading cannot show that, but two
//! readings a moment apart can: if both are equal, the file did not change in between. If the file was
//! replaced in between, nothing writes to the old one any more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::central::document::Document;
use crate::config::files::Marks;
use crate::config::problem::{Problem, Severity};
use crate::watch::stamp::Stamp;

/// The YAML marker that ends a document.
const END: &str = "...";

/// The content of all files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) text: Result<String, Problem>,
    /// The fetched document, if the text is a bootstrap.
    pub(super) document: Option<Document>,
    /// Marks of the data files that the configuration names.
    pub(super) data: Marks,
}

/// The stamps of the configuration and of its data files.
pub(super) type Stamps = BTreeMap<PathBuf, Option<Stamp>>;

/// The content of all files, with their stamps.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) found: Found,
    /// Stamps from before the files were read.
    pub(super) stamps: Stamps,
    /// Whether the stamps were the same after reading.
    pub(super) is_steady: bool,
}

impl Reading {
    /// Whether `again`, read a moment later, shows that no file was being written. `text` is the path of the
    /// configuration itself.
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

/// Returns a problem if `text` lacks the end marker that the running text has.
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
        message: format!("truncated: the end marker `{END}` is missing"),
        hint: Some(format!(
            "the running configuration ends with `{END}`; add it, or restart to run without it"
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

/// Returns the number of lines missing from `text` if it is a prefix of `running`.
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
            "weir.yaml:2:5: truncated: the end marker `...` is missing \
             (the running configuration ends with `...`; add it, or restart to run without it)"
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
            Stamp::from_path(&directory.path().join(name))
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
