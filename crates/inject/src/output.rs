//! Edits of whole files, and documents that are added to them or removed.

use std::collections::BTreeMap;

use crate::edit::{TextEdit, apply_edits, pretty_json};
use crate::manifest::{DocumentId, ManifestFile, ManifestObject, ManifestSource};

/// Edits by the index of their file.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileEdits(BTreeMap<usize, Vec<TextEdit>>);

impl FileEdits {
    pub(crate) fn push(&mut self, file: usize, edit: TextEdit) {
        self.0.entry(file).or_default().push(edit);
    }

    /// Adds the edits of a document that begins at `start`.
    pub(crate) fn extend(&mut self, file: usize, start: usize, edits: Vec<TextEdit>) {
        let moved = edits.into_iter().map(|mut edit| {
            edit.range = edit.range.start + start..edit.range.end + start;
            edit
        });
        self.0.entry(file).or_default().extend(moved);
    }

    /// Returns the line in `source` of a line of the edited text.
    pub(crate) fn original_line(&self, file: usize, source: &str, edited: &str, line: usize) -> usize {
        let offset: usize = edited.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
        let mut edits = self.0.get(&file).cloned().unwrap_or_default();
        edits.sort_by_key(|edit| edit.range.start);
        let (mut before, mut after) = (0, 0);
        for edit in edits {
            let next = after + edit.range.start.saturating_sub(before) + edit.text.len();
            if next > offset {
                break;
            }
            (before, after) = (edit.range.end, next);
        }
        let at = before + offset - after;
        1 + source.get(..at).unwrap_or(source).matches('\n').count()
    }

    /// Returns all files with their edits.
    pub(crate) fn apply(
        mut self,
        sources: &[ManifestSource],
        files: &[ManifestFile<'_>],
    ) -> Vec<ManifestSource> {
        let sources = sources.iter().zip(files).enumerate();
        let edited = sources.map(|(index, (source, file))| {
            let mark = source.text.len() - file.text.len();
            let mut text = apply_edits(file.text, self.0.remove(&index).unwrap_or_default());
            // Lines at the end of a text without a last line feed were added with the one before them.
            if text.ends_with('\n') && !file.text.ends_with('\n') {
                text.pop();
                if text.ends_with('\r') {
                    text.pop();
                }
            }
            ManifestSource { name: source.name.clone(), text: format!("{}{text}", &source.text[..mark]) }
        });
        edited.collect()
    }
}

/// Returns the documents of the objects, in their order.
pub(crate) fn documents(objects: &[ManifestObject]) -> Vec<DocumentId> {
    let mut documents: Vec<_> = objects.iter().map(|object| object.document).collect();
    documents.dedup();
    documents
}

/// Adds a document in front of another one.
pub(crate) fn document_before(file: &ManifestFile<'_>, document: usize, block: &str) -> TextEdit {
    let range = &file.documents[document].range;
    if file.is_json {
        let tree = &file.documents[document].tree;
        let at = range.start + tree.node(tree.root()).bytes.start;
        let value: serde_json::Value = serde_yaml::from_str(block).unwrap_or_default();
        let json = match json_unit(&file.text[at..]) {
            Some(unit) => pretty_json(&value, unit),
            None => value.to_string(),
        };
        return TextEdit::new(at..at, format!("{json}\n"));
    }
    let newline =
        if file.text.find('\n').is_some_and(|end| file.text[..end].ends_with('\r')) { "\r\n" } else { "\n" };
    let block = block.replace('\n', newline);
    let text = match file.text[range.clone()].starts_with("---") {
        true => format!("---{newline}{block}"),
        false => format!("{block}---{newline}"),
    };
    TextEdit::new(range.start..range.start, text)
}

/// Returns the indentation of JSON on several lines.
fn json_unit(json: &str) -> Option<&str> {
    let line = json.lines().nth(1)?;
    Some(&line[..line.len() - line.trim_start().len()]).filter(|unit| !unit.is_empty())
}

/// Removes a document that [`document_before`] has added.
pub(crate) fn document_removal(file: &ManifestFile<'_>, document: usize) -> TextEdit {
    let range = file.documents[document].range.clone();
    if file.is_json {
        let start = |index: usize| {
            let document: &crate::manifest::ManifestDocument = file.documents.get(index)?;
            Some(document.range.start + document.tree.node(document.tree.root()).bytes.start)
        };
        let end = start(document + 1).unwrap_or(range.end);
        return TextEdit::new(start(document).unwrap_or(range.start)..end, String::new());
    }
    let rest = &file.text[range.end..];
    // The first document had no separator, and got the one behind the added document.
    let separator =
        rest.split_inclusive('\n').next().filter(|line| line.trim_end() == "---").map_or(0, str::len);
    let is_first = !file.text[range.clone()].starts_with("---");
    TextEdit::new(range.start..range.end + if is_first { separator } else { 0 }, String::new())
}
