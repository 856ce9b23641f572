//! The positions of the values in a configuration of one text or two.

use std::collections::HashSet;
use std::path::Path;

use super::config_path::{ConfigPath, ConfigPathSegment};
use weir_yaml::{self as yaml, Node, Position, Scalar, ScalarKind};

/// The positions of all values of a file.
#[derive(Debug, Default)]
pub(super) struct Positions(Option<Node>);

/// The positions in a configuration of one text or two.
#[derive(Debug)]
pub(super) struct SourceTexts<'a> {
    base: SourceText<'a>,
    rest: Option<SourceText<'a>>,
    /// Top-level keys of the first text.
    base_keys: HashSet<String>,
}

#[derive(Debug)]
pub(super) struct SourceText<'a> {
    pub(super) name: &'a Path,
    pub(super) positions: Positions,
}

impl<'a> SourceTexts<'a> {
    /// Creates the positions of one text, called `name`.
    pub(super) fn single(name: &'a Path, positions: Positions) -> Self {
        Self { base: SourceText { name, positions }, rest: None, base_keys: HashSet::new() }
    }

    /// Creates the positions of a text with the top-level keys `keys`, and another with all other keys.
    pub(super) fn with_rest(base: SourceText<'a>, keys: HashSet<String>, rest: SourceText<'a>) -> Self {
        Self { base, rest: Some(rest), base_keys: keys }
    }

    /// Returns the name and the positions of the text that contains `at`, or would contain it.
    pub(super) fn text_at(&self, at: ConfigPath<'_>) -> (&'a Path, &Positions) {
        let text = match &self.rest {
            Some(rest) if !at.top_level_key().is_some_and(|key| self.base_keys.contains(key)) => rest,
            Some(_) | None => &self.base,
        };
        (text.name, &text.positions)
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
    pub(super) const fn of(root: Node) -> Self {
        Self(Some(root))
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
            return self.0.as_ref().map(|node| LocatedNode { node, key: None, is_exact: true });
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
            (yaml::NodeValue::List(items), ConfigPathSegment::Item(index)) => {
                items.get(index).map(|node| (node, None))
            }
            _ => None,
        };
        Some(match inner {
            Some((node, key)) => LocatedNode { node, key, is_exact: true },
            None => LocatedNode { is_exact: false, ..around },
        })
    }
}
