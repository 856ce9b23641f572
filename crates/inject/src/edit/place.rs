//! Places in the text of a document: ends of values, dashes of items, and lines where something can be added.

use super::Editor;
use crate::tree::{Content, TreeNodeId, is_flow};

/// Columns between a key and the dashes of its list, if the document does not show any.
const DEFAULT_DASH_OFFSET: usize = 2;

impl Editor<'_> {
    /// Returns the end of a value.
    pub(crate) fn node_end(&self, id: TreeNodeId) -> usize {
        let node = self.tree.node(id);
        match &node.content {
            Content::List(items, _) if !is_flow(&node.content) => {
                items.last().map_or(node.bytes.end, |last| self.node_end(*last))
            }
            Content::Map(entries, _) if !is_flow(&node.content) => {
                entries.last().map_or(node.bytes.end, |(_, last)| self.node_end(*last))
            }
            // A missing value has the place of its colon.
            Content::Scalar(_) if node.bytes.is_empty() => {
                let rest = self.text.get(node.bytes.end..).unwrap_or_default();
                node.bytes.end + usize::from(rest.starts_with(':'))
            }
            Content::Scalar(_) => self.scalar_end(node.bytes.start, node.bytes.end),
            Content::List(..) | Content::Map(..) | Content::Alias(_) => node.bytes.end,
        }
    }

    /// Returns the end of a scalar. That of a block scalar can lie behind the indentation of the next line.
    fn scalar_end(&self, start: usize, end: usize) -> usize {
        let scalar = self.text.get(start..end).unwrap_or_default();
        let lines = scalar.trim_end_matches(' ');
        if lines.ends_with('\n') { start + lines.len() } else { end }
    }

    pub(super) fn line_start(&self, at: usize) -> usize {
        self.text[..at].rfind('\n').map_or(0, |end| end + 1)
    }

    /// Returns the start of the next line, unless a line begins at `at`.
    pub(super) fn line_end(&self, at: usize) -> usize {
        if at > 0 && self.text[..at].ends_with('\n') {
            return at;
        }
        self.text[at..].find('\n').map_or(self.text.len(), |end| at + end + 1)
    }

    /// Returns the blanks before `at`, if nothing else is before it on its line.
    pub(super) fn line_prefix(&self, at: usize) -> Option<&str> {
        let prefix = &self.text[self.line_start(at)..at];
        prefix.chars().all(|letter| matches!(letter, ' ' | '\t')).then_some(prefix)
    }

    /// Returns the column of a key, from 0.
    pub(super) fn column(&self, key: TreeNodeId) -> usize {
        self.tree.node(key).position.column - 1
    }

    /// Returns the place of the dash of an item; `None` if another item or key is before it on its line.
    pub(super) fn dash(&self, item: TreeNodeId) -> Option<usize> {
        let node = self.tree.node(item);
        let list = node.parent?;
        let items = self.tree.items(list);
        let index = items.iter().position(|given| *given == item)?;
        let from = match index.checked_sub(1) {
            Some(previous) => self.line_end(self.node_end(items[previous])),
            None => {
                let key = self.key_of(list)?;
                self.line_end(self.colon_end(key))
            }
        };
        let mut at = from;
        for line in self.text.get(from..)?.split_inclusive('\n') {
            if at > node.bytes.start {
                return None;
            }
            let begun = line.trim_start_matches(' ');
            if begun.starts_with('-') && begun[1..].starts_with([' ', '\n', '\r', '\t']) || begun == "-" {
                return Some(at + line.len() - begun.len());
            }
            at += line.len();
        }
        None
    }

    pub(super) fn dash_column(&self, list: TreeNodeId) -> Option<usize> {
        let dash = self.dash(*self.tree.items(list).first()?)?;
        Some(dash - self.line_start(dash))
    }

    /// Returns the key of a value in its map.
    pub(crate) fn key_of(&self, value: TreeNodeId) -> Option<TreeNodeId> {
        let map = self.tree.node(value).parent?;
        self.tree.entries(map).iter().find(|(_, given)| *given == value).map(|(key, _)| *key)
    }

    /// Returns the place after the colon of a key.
    pub(super) fn colon_end(&self, key: TreeNodeId) -> usize {
        let end = self.tree.node(key).bytes.end;
        let rest = self.text.get(end..).unwrap_or_default();
        end + rest.find(':').map_or(0, |colon| colon + 1)
    }

    /// Returns the columns between a key and the dashes of its list, as the lists of this map have it.
    pub(super) fn dash_offset(&self, map: TreeNodeId) -> usize {
        let lists = self.tree.entries(map).iter().filter_map(|(key, value)| {
            let node = self.tree.node(*value);
            let is_block_list = matches!(node.content, Content::List(..)) && !is_flow(&node.content);
            let dash = is_block_list.then(|| self.dash_column(*value)).flatten()?;
            dash.checked_sub(self.column(*key))
        });
        lists.into_iter().next().unwrap_or(DEFAULT_DASH_OFFSET)
    }

    /// Returns the place behind the last line of a block collection, whose children begin at `column`. Comments that are indented
    /// deeper belong to the last child.
    pub(super) fn insertion_point(&self, collection: TreeNodeId, column: usize) -> usize {
        let mut at = self.line_end(self.node_end(collection));
        while let Some(line) = self.text.get(at..).and_then(|rest| rest.split_inclusive('\n').next()) {
            let begun = line.trim_start_matches(' ');
            if !begun.starts_with('#') || line.len() - begun.len() <= column {
                break;
            }
            at += line.len();
        }
        at
    }

    /// Moves the start of a line up over comments in `column` directly above it.
    pub(super) fn before_comments(&self, mut at: usize, column: usize) -> usize {
        while at > 0 {
            let above = self.line_start(at - 1);
            let line = &self.text[above..at];
            let begun = line.trim_start_matches(' ');
            if !begun.starts_with('#') || line.len() - begun.len() != column {
                break;
            }
            at = above;
        }
        at
    }
}
