//! The content of the configuration's files at one moment, and whether it is complete.
//!
//! A file that is written in place may be read half-written. A single read cannot show that, but two
//! reads a moment apart can: if both are equal, the file did not change in between. If the file was
//! replaced in between, nothing writes to the old one any more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::central::document::FetchedDocument;
use crate::data_files::FileHashes;
use crate::diagnostic::{Diagnostic, Severity};
use crate::fragments;
use weir_net::watch::stamp::Stamp;

/// The YAML marker that ends a document.
const END_MARKER: &str = "...";

/// The content of all files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourceContents {
    pub(super) text: Result<String, Diagnostic>,
    /// The fetched document, if the text is a bootstrap.
    pub(super) document: Option<FetchedDocument>,
    /// Hashes of the data files that the configuration names.
    pub(super) data_hashes: FileHashes,
}

/// The stamps of the configuration and of its data files.
pub(super) type FileStamps = BTreeMap<PathBuf, Option<Stamp>>;

/// The content of all files, with their stamps.
#[derive(Clone, Debug)]
pub(super) struct SourceSnapshot {
    pub(super) contents: SourceContents,
    /// Stamps from before the files were read.
    pub(super) stamps: FileStamps,
    /// Whether the stamps were the same after reading.
    pub(super) is_stable: bool,
    /// Whether a file was open for writing after reading, as far as events have shown.
    pub(super) is_open: bool,
}

impl SourceSnapshot {
    /// Whether `again`, read a moment later, shows that no file was being written. `text` is the path of the
    /// configuration itself.
    pub(super) fn is_confirmed_by(&self, again: &Self, text: &Path) -> bool {
        let is_same = |path: &Path| match path == text {
            true => self.contents.text == again.contents.text,
            false => self.contents.data_hashes.get(path) == again.contents.data_hashes.get(path),
        };
        let was_replaced = |path: &Path| match (self.stamps.get(path), again.stamps.get(path)) {
            (Some(Some(old)), Some(Some(new))) => !old.is_same_file_as(new),
            _ => false,
        };
        let paths = || self.contents.data_hashes.keys().map(PathBuf::as_path).chain([text]);
        self.is_stable && !again.is_open && paths().all(|path| is_same(path) || was_replaced(path))
    }

    /// Whether a file that was not empty in `running` is empty now and is still the same file. A writer that
    /// truncates may not have written yet, and a file system may take long to truncate.
    pub(super) fn has_emptied_file(&self, running: &FileStamps) -> bool {
        self.stamps.iter().any(|(path, stamp)| match (running.get(path), stamp) {
            (Some(Some(before)), Some(now)) => {
                now.is_same_file_as(before) && now.is_empty() && !before.is_empty()
            }
            _ => false,
        })
    }
}

/// Returns a problem if `text` lacks the end marker that the running text has.
pub(super) fn missing_end_marker(running: &str, text: &str, file: &Path) -> Option<Diagnostic> {
    // Of a folder, the last file may be another one.
    if fragments::is_folder(text) || !has_end_marker(running) || has_end_marker(text) {
        return None;
    }
    let last = text.lines().last().unwrap_or_default();
    Some(Diagnostic {
        file: file.to_owned(),
        line: text.lines().count().max(1),
        column: last.chars().count() + 1,
        path: String::new(),
        message: format!("truncated: the end marker `{END_MARKER}` is missing"),
        hint: Some(format!(
            "the running configuration ends with `{END_MARKER}`; add it, or restart to run without it"
        )),
        severity: Severity::Error,
    })
}

/// Whether the last line that is neither empty nor a comment is the end marker.
fn has_end_marker(text: &str) -> bool {
    let is_content = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    text.lines().rev().find(is_content).is_some_and(|line| {
        line.strip_prefix(END_MARKER)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
    })
}

/// Returns the number of lines missing from `text` if it is a prefix of `running`.
pub(super) fn truncated_lines(running: &str, text: &str) -> Option<usize> {
    if fragments::is_folder(text) {
        return None;
    }
    let rest = running.strip_prefix(text)?;
    let is_content = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    Some(rest.lines().filter(is_content).count()).filter(|lines| *lines > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "weir.yaml";

    #[test]
    fn end_marker_is_recognised_on_last_content_line() {
        for text in ["a: 1\n...\n", "a: 1\n...", "a: 1\n...  \n\n# end\n", "a: 1\n... # end\n"] {
            assert!(has_end_marker(text), "{text:?}");
        }
        for text in ["", "a: 1\n", "a: 1\n ...\n", "a: 1\n....\n", "a: 1\n# ...\n", "...\na: 1\n"] {
            assert!(!has_end_marker(text), "{text:?}");
        }
    }

    #[test]
    fn missing_end_marker_is_reported_if_running_text_has_one() {
        let problem = missing_end_marker("a: 1\nb: 2\n...\n", "a: 1\nb: 2\n", Path::new(FILE)).unwrap();
        assert_eq!(
            problem.to_string(),
            "weir.yaml:2:5: truncated: the end marker `...` is missing \
             (the running configuration ends with `...`; add it, or restart to run without it)"
        );
        assert_eq!(missing_end_marker("a: 1\n", "a: 2\n", Path::new(FILE)), None);
        assert_eq!(missing_end_marker("a: 1\n...\n", "a: 2\n...\n", Path::new(FILE)), None);
        assert!(missing_end_marker("a: 1\n...\n", "", Path::new(FILE)).is_some());
    }

    #[test]
    fn missing_lines_are_counted_only_for_truncated_text() {
        assert_eq!(truncated_lines("a: 1\nb: 2\nc: 3\n", "a: 1\n"), Some(2));
        assert_eq!(truncated_lines("a: 1\nb: 22\n", "a: 1\nb: 2"), Some(1));
        assert_eq!(truncated_lines("a: 1\n\n# end\n", "a: 1\n"), None);
        assert_eq!(truncated_lines("a: 1\nb: 2\n", "a: 2\n"), None);
        assert_eq!(truncated_lines("a: 1\n", "a: 1\n"), None);
    }

    fn snapshot(list: u128, stamp: Option<Stamp>) -> SourceSnapshot {
        let path = PathBuf::from("list.txt");
        SourceSnapshot {
            contents: SourceContents {
                text: Ok("a".to_owned()),
                document: None,
                data_hashes: [(path.clone(), Ok(list))].into(),
            },
            stamps: [(path, stamp)].into(),
            is_stable: true,
            is_open: false,
        }
    }

    #[test]
    fn changed_file_is_confirmed_only_if_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let stamp = |name: &str| {
            std::fs::write(directory.path().join(name), "x").unwrap();
            Stamp::from_path(&directory.path().join(name))
        };
        let (one, other) = (stamp("one"), stamp("other"));
        let confirmed =
            |first: &SourceSnapshot, again: &SourceSnapshot| first.is_confirmed_by(again, Path::new(FILE));
        assert!(confirmed(&snapshot(1, one), &snapshot(1, one)));
        assert!(!confirmed(&snapshot(1, one), &snapshot(2, one)));
        assert!(confirmed(&snapshot(1, one), &snapshot(2, other)));
        assert!(!confirmed(&snapshot(1, one), &snapshot(2, None)));
        let torn = SourceSnapshot { is_stable: false, ..snapshot(1, one) };
        assert!(!confirmed(&torn, &snapshot(1, one)));
        let open = SourceSnapshot { is_open: true, ..snapshot(1, one) };
        assert!(!confirmed(&snapshot(1, one), &open));
    }
}
