//! Elements of flow collections, which are written as JSON: it is valid in YAML, too.

use std::ops::Range;

use serde::Serialize as _;
use serde_json::Value as Json;
use serde_json::ser::{PrettyFormatter, Serializer};

use super::{Editor, NewValue, item_lines};
use crate::tree::TreeNodeId;

/// Whether a text is JSON.
pub(super) fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

/// Converts a scalar of YAML, as written, to JSON. Valid JSON stays as it is.
pub(super) fn json_scalar(raw: &str) -> String {
    if is_json(raw) {
        return raw.to_owned();
    }
    let value = serde_yaml::from_str::<Json>(raw).unwrap_or_else(|_| Json::String(raw.to_owned()));
    value.to_string()
}

impl Editor<'_> {
    /// Returns the text of an entry as JSON, laid out like `sibling`.
    pub(super) fn flow_entry(
        &self,
        map: TreeNodeId,
        sibling: TreeNodeId,
        key: &str,
        value: &NewValue,
    ) -> String {
        format!("{}: {}", Json::String(key.to_owned()), self.flow_value(map, sibling, key, value))
    }

    /// Returns the text of a value as JSON, laid out like that of `sibling`.
    pub(super) fn flow_value(
        &self,
        map: TreeNodeId,
        sibling: TreeNodeId,
        key: &str,
        value: &NewValue,
    ) -> String {
        let block = self.block_entry(key, value, 2).join("\n") + "\n";
        let mut entry: Json = serde_yaml::from_str(&block).unwrap_or(Json::Null);
        let value = entry.get_mut(key).map(Json::take).unwrap_or_default();
        self.layout(&value, map, sibling)
    }

    /// Returns the text of an item as JSON, laid out like `sibling`.
    pub(super) fn flow_item(&self, list: TreeNodeId, sibling: TreeNodeId, block: &str) -> String {
        let block = item_lines(block).join("\n") + "\n";
        let mut items: Json = serde_yaml::from_str(&block).unwrap_or(Json::Null);
        let item = items.get_mut(0).map(Json::take).unwrap_or_default();
        self.layout(&item, list, sibling)
    }

    /// Prints a value on several lines if the siblings have lines of their own.
    fn layout(&self, value: &Json, collection: TreeNodeId, sibling: TreeNodeId) -> String {
        let start = self.tree.node(sibling).bytes.start;
        let Some(prefix) = self.line_prefix(start) else { return value.to_string() };
        let open = self.line_start(self.tree.node(collection).bytes.start);
        let outer: &str =
            self.text[open..].split(|letter| !matches!(letter, ' ' | '\t')).next().unwrap_or("");
        let unit = prefix.strip_prefix(outer).filter(|unit| !unit.is_empty()).unwrap_or("  ");
        pretty_json(value, unit).replace('\n', &format!("{}{prefix}", self.newline))
    }

    /// Adds an element behind the last one.
    pub(super) fn push_flow(&mut self, last: TreeNodeId, text: &str, depth: usize) {
        let at = self.node_end(last);
        let start = self.element_start(last);
        let gap = self.gap_before(start);
        self.push(at..at, format!(",{gap}{text}"), depth);
    }

    /// Returns what is between a comma and an element: a line end if the elements have lines of their own.
    pub(super) fn gap_before(&self, element: usize) -> String {
        match self.line_prefix(element) {
            Some(prefix) => self.newline.to_owned() + prefix,
            None => " ".to_owned(),
        }
    }

    /// Returns the start of an item, or of the key of an entry.
    fn element_start(&self, value: TreeNodeId) -> usize {
        self.tree.node(self.key_of(value).unwrap_or(value)).bytes.start
    }

    /// Returns the bytes of an element with one comma: the one behind it if an element that stays follows, or else the one before.
    pub(super) fn flow_removal(
        &self,
        collection: TreeNodeId,
        element: (TreeNodeId, TreeNodeId),
        previous: Option<TreeNodeId>,
        next: Option<TreeNodeId>,
    ) -> Range<usize> {
        let (key, value) = element;
        if let Some(next) = next {
            return self.tree.node(key).bytes.start..self.tree.node(next).bytes.start;
        }
        let from = match previous {
            Some(previous) => self.node_end(previous),
            None => self.tree.node(collection).bytes.start + 1,
        };
        from..self.node_end(value)
    }
}

/// Prints JSON on several lines, indented by `unit`.
pub(crate) fn pretty_json(value: &Json, unit: &str) -> String {
    let mut printed = Vec::new();
    let mut serializer =
        Serializer::with_formatter(&mut printed, PrettyFormatter::with_indent(unit.as_bytes()));
    match value.serialize(&mut serializer) {
        Ok(()) => String::from_utf8_lossy(&printed).into_owned(),
        Err(_) => value.to_string(),
    }
}
