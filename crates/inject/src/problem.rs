//! What is wrong with a manifest, and where.

use std::fmt;

use crate::manifest::{ManifestFile, ManifestObject};
use crate::tree::TreeNodeId;

/// A reason why a manifest stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InjectProblem {
    /// File, or the option whose value is wrong.
    pub file: String,
    /// Line, from 1; 0 if there is no place in a file.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Path into the object; may be empty.
    pub path: String,
    pub message: String,
}

impl InjectProblem {
    /// A problem without a place in a file, such as that of an option.
    pub(crate) fn of_option(option: &str, message: String) -> Self {
        Self { file: option.to_owned(), line: 0, column: 0, path: String::new(), message }
    }

    /// A problem of a value in an object.
    pub(crate) fn at(
        files: &[ManifestFile<'_>],
        object: &ManifestObject,
        node: TreeNodeId,
        message: &str,
    ) -> Self {
        let file = &files[object.document.file];
        let document = &file.documents[object.document.document];
        let position = document.tree.node(node).position;
        Self {
            file: file.name.to_owned(),
            line: position.line + document.lines_before,
            column: position.column,
            path: document.tree.path(node),
            message: format!("{message} ({})", object.title()),
        }
    }
}

impl fmt::Display for InjectProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", self.path)?;
        }
        write!(f, ": {}", self.message)
    }
}
