//! The positions of the values in a configuration of one text or several.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::config_path::{ConfigPath, ConfigPathSegment};
use weir_yaml::{self as yaml, Node, Position, Scalar, ScalarKind};

/// The positions of all values of a file.
#[derive(Debug, Default)]
pub(super) struct Positions {
    root: Option<Node>,
    /// Index of the first item of this file in the lists that are joined, by top-level key.
    first_items: HashMap<String, usize>,
}

/// The positions in a configuration of one text or several.
#[derive(Debug)]
pub(super) struct SourceTexts<'a> {
    /// At least one.
    texts: Vec<SourceText<'a>>,
    /// The texts that have each top-level key, in the order of their items.
    owners: HashMap<String, Vec<usize>>,
    /// Index of the text that has, or should have, all other keys.
    others: usize,
}

#[derive(Debug)]
pub(super) struct SourceText<'a> {
    pub(super) name: Cow<'a, Path>,
    pub(super) positions: Positions,
}

impl SourceText<'_> {
    /// Returns the place of the key at `at` as `FILE:LINE:COLUMN`.
    pub(super) fn place_of(&self, at: ConfigPath<'_>) -> String {
        let position = self.positions.key_position(at);
        format!("{}:{}:{}", self.name.display(), position.line, position.column)
    }
}

impl<'a> SourceTexts<'a> {
    /// Creates the positions of one text, called `name`.
    pub(super) fn single(name: &'a Path, positions: Positions) -> Self {
        let text = SourceText { name: Cow::Borrowed(name), positions };
        Self { texts: vec![text], owners: HashMap::new(), others: 0 }
    }

    /// Creates the positions of a text with the top-level keys `keys`, and another with all other keys.
    pub(super) fn with_rest(base: SourceText<'a>, keys: HashSet<String>, rest: SourceText<'a>) -> Self {
        let owners = keys.into_iter().map(|key| (key, vec![0])).collect();
        Self { texts: vec![base, rest], owners, others: 1 }
    }

    /// Creates the positions of the texts of a folder, of which there is at least one.
    pub(super) fn of_folder(texts: Vec<SourceText<'a>>, owners: HashMap<String, Vec<usize>>) -> Self {
        Self { texts, owners, others: 0 }
    }

    /// Whether there is only one text.
    pub(super) fn is_single(&self) -> bool {
        self.texts.len() == 1
    }

    /// Returns the name and the positions of the text that contains `at`, or would contain it.
    pub(super) fn text_at(&self, at: ConfigPath<'_>) -> (&Path, &Positions) {
        let owners = at.top_level_key().and_then(|key| Some((key, self.owners.get(key)?)));
        let owner = owners.and_then(|(key, owners)| {
            let item = at.top_level_item().unwrap_or_default();
            let begins = |owner: &&usize| self.texts[**owner].positions.first_item(key) <= item;
            owners.iter().rev().find(begins)
        });
        let text = &self.texts[owner.copied().unwrap_or(self.others)];
        (&text.name, &text.positions)
    }
}

/// The result of looking up a path.
struct LocatedNode<'n> {
    node: &'n Node,
    /// Position of its key, if it has one.
    key: Option<Position>,
    /// Whether the path itself was found, and not only a value that contains it.
    is_exact: bool,
}

impl Positions {
    /// Returns the positions of the values below `root`.
    pub(super) fn of(root: Node) -> Self {
        Self { root: Some(root), first_items: HashMap::new() }
    }

    /// Sets the index of the first item of this file in the joined list of a top-level key.
    pub(super) fn set_first_item(&mut self, key: &str, index: usize) {
        self.first_items.insert(key.to_owned(), index);
    }

    fn first_item(&self, key: &str) -> usize {
        self.first_items.get(key).copied().unwrap_or_default()
    }

    /// Returns the position of the value at `at`, or of the nearest value that contains it.
    pub(super) fn value_position(&self, at: ConfigPath<'_>) -> Position {
        self.find_nearest(at).map_or(Position::START, |found| found.node.position)
    }

    /// Returns the position of the key at `at`, or of the nearest value that contains it.
    pub(super) fn key_position(&self, at: ConfigPath<'_>) -> Position {
        self.find_nearest(at).map_or(Position::START, |found| found.key.unwrap_or(found.node.position))
    }

    /// Returns the text at `at`, as it is written.
    pub(super) fn text(&self, at: ConfigPath<'_>) -> Option<&str> {
        let found = self.find_nearest(at).filter(|found| found.is_exact)?;
        match &found.node.value {
            yaml::NodeValue::Scalar(Scalar { text, kind: ScalarKind::Text }) => Some(text),
            _ => None,
        }
    }

    /// Values that come through an alias or a merge key have no position of their own.
    fn find_nearest(&self, at: ConfigPath<'_>) -> Option<LocatedNode<'_>> {
        let Some(parent) = at.parent() else {
            return self.root.as_ref().map(|node| LocatedNode { node, key: None, is_exact: true });
        };
        let around = self.find_nearest(parent)?;
        if !around.is_exact
            || matches!(at.last_segment(), ConfigPathSegment::Root | ConfigPathSegment::SingleItem)
        {
            return Some(around);
        }
        let holder = match &around.node.value {
            yaml::NodeValue::Tagged(tagged) => &tagged.1,
            _ => around.node,
        };
        let inner = match (&holder.value, at.last_segment()) {
            _ if holder.is_alias || around.node.is_alias => None,
            (yaml::NodeValue::Map(map), ConfigPathSegment::Key(key)) => {
                map.get_key_value(key).map(|(key, node)| (node, Some(key.position)))
            }
            (value, ConfigPathSegment::Item(index)) => {
                let is_of_top_level = parent.top_level_item().is_none();
                let first =
                    at.top_level_key().filter(|_| is_of_top_level).map_or(0, |key| self.first_item(key));
                match (value, index.checked_sub(first)) {
                    (yaml::NodeValue::List(items), Some(index)) => items.get(index).map(|node| (node, None)),
                    // A single value in place of a list, which has been joined to others.
                    (_, Some(0)) => Some((around.node, around.key)),
                    _ => None,
                }
            }
            _ => None,
        };
        Some(match inner {
            Some((node, key)) => LocatedNode { node, key, is_exact: true },
            None => LocatedNode { is_exact: false, ..around },
        })
    }
}
