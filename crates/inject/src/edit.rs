//! Changes of a document: entries and items are added, replaced and removed, and no other byte changes.
//!
//! What is added to a block collection consists of whole lines, and to a flow collection of an element with its comma. So its
//! removal restores the text. Libraries that edit YAML keep comments, too, but print JSON as YAML, and lose blanks of flow
//! collections when they remove an element.

mod flow;
mod place;

use std::ops::Range;

use crate::tree::{Content, ManifestTree, NodePlace, TreeNodeId, is_flow};

pub(crate) use self::flow::pretty_json;

/// A replacement of bytes.
#[derive(Clone, Debug)]
pub(crate) struct TextEdit {
    pub(crate) range: Range<usize>,
    pub(crate) text: String,
    /// Of several additions at the same place, those to inner collections come first.
    depth: usize,
}

impl TextEdit {
    pub(crate) fn new(range: Range<usize>, text: String) -> Self {
        Self { range, text, depth: 0 }
    }
}

/// Returns the text with all edits, whose ranges do not overlap.
pub(crate) fn apply_edits(text: &str, mut edits: Vec<TextEdit>) -> String {
    edits.sort_by(|a, b| (a.range.start, b.depth).cmp(&(b.range.start, a.depth)));
    let (mut edited, mut at) = (String::with_capacity(text.len() + 4096), 0);
    for edit in edits {
        edited.push_str(text.get(at..edit.range.start).unwrap_or_default());
        edited.push_str(&edit.text);
        at = at.max(edit.range.end);
    }
    edited.push_str(text.get(at..).unwrap_or_default());
    edited
}

/// A value to add, as block YAML without indentation.
#[derive(Clone, Debug)]
pub(crate) enum NewValue {
    /// On the line of its key.
    Inline(String),
    /// Entries of a map.
    Map(String),
    /// Items of a list, each as the block of its value.
    List(Vec<String>),
}

/// Collects the edits of one document.
#[derive(Debug)]
pub(crate) struct Editor<'d> {
    pub(crate) text: &'d str,
    pub(crate) tree: &'d ManifestTree,
    pub(crate) edits: Vec<TextEdit>,
    /// Whether the document is JSON, in which texts are quoted.
    is_json: bool,
    newline: &'static str,
}

impl<'d> Editor<'d> {
    pub(crate) fn new(text: &'d str, tree: &'d ManifestTree) -> Self {
        let is_crlf = text.find('\n').is_some_and(|end| text[..end].ends_with('\r'));
        let newline = if is_crlf { "\r\n" } else { "\n" };
        Self { text, tree, edits: Vec::new(), is_json: flow::is_json(text), newline }
    }

    fn push(&mut self, range: Range<usize>, text: String, depth: usize) {
        self.edits.push(TextEdit { range, text, depth });
    }

    /// Returns a scalar of YAML as it can be written into this document.
    pub(crate) fn scalar(&self, raw: &str) -> String {
        if self.is_json { flow::json_scalar(raw) } else { raw.to_owned() }
    }

    /// Returns what was behind a colon as it can be written into this document.
    fn gap_text(&self, raw: &str) -> String {
        if self.is_json && !flow::is_json(raw) { " null".to_owned() } else { raw.to_owned() }
    }

    /// Replaces a scalar.
    pub(crate) fn set(&mut self, scalar: TreeNodeId, raw: &str) {
        let node = self.tree.node(scalar);
        let is_missing = node.bytes.is_empty();
        let at = if is_missing { self.node_end(scalar) } else { node.bytes.start };
        let raw = self.scalar(raw);
        let text = if is_missing { format!(" {raw}") } else { raw };
        self.push(at..at.max(node.bytes.end), text, usize::MAX);
    }

    /// Adds an entry to a map that has entries.
    pub(crate) fn add_entry(&mut self, map: TreeNodeId, key: &str, value: &NewValue) {
        let Some((last_key, last)) = self.tree.entries(map).last().copied() else { return };
        if is_flow(&self.tree.node(map).content) {
            let text = self.flow_entry(map, last_key, key, value);
            self.push_flow(last, &text, self.depth(map));
            return;
        }
        let column = self.column(last_key);
        let lines = self.block_entry(key, value, self.dash_offset(map));
        let at = self.insertion_point(map, column);
        self.push_lines(at, &lines, column, self.depth(map));
    }

    /// Adds an item to a list that has items.
    pub(crate) fn add_item(&mut self, list: TreeNodeId, block: &str) {
        let Some(last) = self.tree.items(list).last().copied() else { return };
        if is_flow(&self.tree.node(list).content) {
            let text = self.flow_item(list, last, block);
            self.push_flow(last, &text, self.depth(list));
            return;
        }
        let column = self.dash_column(list).unwrap_or_default();
        let at = self.insertion_point(list, column);
        self.push_lines(at, &item_lines(block), column, self.depth(list));
    }

    /// Adds an item in front of another one.
    pub(crate) fn add_item_before(&mut self, list: TreeNodeId, item: TreeNodeId, block: &str) {
        let depth = self.depth(list);
        if is_flow(&self.tree.node(list).content) {
            let text = self.flow_item(list, item, block);
            let start = self.tree.node(item).bytes.start;
            let gap = self.gap_before(start);
            self.push(start..start, format!("{text},{gap}"), depth);
            return;
        }
        let Some(dash) = self.dash(item) else { return };
        let column = dash - self.line_start(dash);
        let at = self.before_comments(self.line_start(dash), column);
        self.push_lines(at, &item_lines(block), column, depth);
    }

    /// Puts a value in the place of a missing, null or empty one. Returns the bytes between the colon and its end.
    pub(crate) fn fill(
        &mut self,
        map: TreeNodeId,
        key: TreeNodeId,
        old: TreeNodeId,
        value: &NewValue,
    ) -> String {
        let name = self.tree.text(key).unwrap_or_default().to_owned();
        let range = self.gap(key, old);
        let raw = self.text.get(range.clone()).unwrap_or_default().to_owned();
        let depth = self.depth(map) + 1;
        if is_flow(&self.tree.node(map).content) {
            let json = self.flow_value(map, key, &name, value);
            self.push(range, format!(" {json}"), depth);
            return raw;
        }
        let column = self.column(key);
        let lines = self.block_entry(&name, value, self.dash_offset(map));
        if let [line] = &lines[..] {
            let inline = line.strip_prefix(&format!("{name}:")).unwrap_or_default().to_owned();
            self.push(range, inline, depth);
            return raw;
        }
        let at = self.line_end(range.end);
        if !range.is_empty() {
            self.push(range, String::new(), depth);
        }
        self.push_lines(at, &lines[1..], column, depth);
        raw
    }

    /// Returns the bytes between the colon of a key and the end of its value.
    pub(crate) fn gap(&self, key: TreeNodeId, value: TreeNodeId) -> Range<usize> {
        let start = self.colon_end(key);
        start..self.node_end(value).max(start)
    }

    /// Restores what [`Self::fill`] has replaced.
    pub(crate) fn unfill(&mut self, key: TreeNodeId, value: TreeNodeId, raw: &str) {
        let (at, raw) = (self.colon_end(key), self.gap_text(raw));
        let content = &self.tree.node(value).content;
        if is_flow(content) || matches!(content, Content::Scalar(_)) {
            self.push(at..self.node_end(value), raw, 0);
            return;
        }
        let is_list = matches!(content, Content::List(..));
        let children: Vec<_> = match is_list {
            true => self.tree.items(value).to_vec(),
            false => self.tree.entries(value).iter().map(|(_, value)| *value).collect(),
        };
        if !raw.is_empty() {
            self.push(at..at, raw, 0);
        }
        for child in children {
            self.remove(child, &|_| false);
        }
    }

    /// Removes an item of a list, or an entry of a map by its value. `is_kept` tells which siblings stay.
    pub(crate) fn remove(&mut self, node: TreeNodeId, is_kept: &dyn Fn(TreeNodeId) -> bool) {
        let Some(parent) = self.tree.node(node).parent else { return };
        let siblings: Vec<(TreeNodeId, TreeNodeId)> = match &self.tree.node(parent).content {
            Content::List(items, _) => items.iter().map(|item| (*item, *item)).collect(),
            Content::Map(entries, _) => entries.clone(),
            Content::Scalar(_) | Content::Alias(_) => return,
        };
        let Some(index) = siblings.iter().position(|(_, value)| *value == node) else { return };
        let has_next_kept = siblings[index + 1..].iter().any(|(_, value)| is_kept(*value));
        let next = siblings.get(index + 1).map(|(key, _)| *key).filter(|_| has_next_kept);
        let range = if is_flow(&self.tree.node(parent).content) {
            let previous = index.checked_sub(1).map(|index| siblings[index].1);
            self.flow_removal(parent, siblings[index], previous, next)
        } else {
            self.block_removal(siblings[index], next)
        };
        self.push(range, String::new(), 0);
    }

    /// Returns the whole lines of an entry or item; without the dash before it, if an entry shares its line with one.
    fn block_removal(&self, entry: (TreeNodeId, TreeNodeId), next: Option<TreeNodeId>) -> Range<usize> {
        let (key, value) = entry;
        let is_item = matches!(self.tree.node(value).place, NodePlace::Item(_));
        let begin = |node: TreeNodeId| {
            let dash = if is_item { self.dash(node) } else { None };
            dash.unwrap_or_else(|| self.tree.node(node).bytes.start)
        };
        let start = begin(key);
        if self.line_prefix(start).is_none() {
            if let Some(next) = next {
                return start..begin(next);
            }
            return start..self.node_end(value);
        }
        let (first, end) = (self.line_start(start), self.line_end(self.node_end(value)));
        // At the end of a text without a last line feed, the one before the lines was added with them.
        if end == self.text.len() && !self.text.ends_with('\n') {
            let before = self.text[..first].strip_suffix('\n').map_or(first, str::len);
            let before = self.text[..before].strip_suffix('\r').map_or(before, str::len);
            return before..end;
        }
        first..end
    }

    fn push_lines(&mut self, at: usize, lines: &[String], column: usize, depth: usize) {
        let indent = " ".repeat(column);
        let is_open_end = at == self.text.len() && !self.text.ends_with('\n') && !self.text.is_empty();
        let mut added = String::new();
        for line in lines {
            let line = if line.is_empty() { String::new() } else { format!("{indent}{line}") };
            if is_open_end {
                added.extend([self.newline, &line]);
            } else {
                added.extend([&line, self.newline]);
            }
        }
        self.push(at..at, added, depth);
    }

    /// Returns the lines of an entry of a block map, without the indentation of the map.
    fn block_entry(&self, key: &str, value: &NewValue, dash_offset: usize) -> Vec<String> {
        match value {
            NewValue::Inline(raw) => vec![format!("{key}: {raw}")],
            NewValue::Map(block) => {
                let lines = block.lines().map(|line| indented(line, 2));
                std::iter::once(format!("{key}:")).chain(lines).collect()
            }
            NewValue::List(items) => {
                let lines = items.iter().flat_map(|item| item_lines(item));
                let lines = lines.map(|line| indented(&line, dash_offset));
                std::iter::once(format!("{key}:")).chain(lines).collect()
            }
        }
    }

    fn depth(&self, id: TreeNodeId) -> usize {
        self.tree.places(self.tree.root(), id).len()
    }
}

/// Returns the lines of an item from those of its value.
pub(crate) fn item_lines(block: &str) -> Vec<String> {
    let lines = block.lines().enumerate();
    lines.map(|(index, line)| if index == 0 { format!("- {line}") } else { indented(line, 2) }).collect()
}

fn indented(line: &str, columns: usize) -> String {
    if line.is_empty() { String::new() } else { format!("{}{line}", " ".repeat(columns)) }
}
