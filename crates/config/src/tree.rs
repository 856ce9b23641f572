//! The text of a configuration as a tree of values, with the position of each value.

mod syntax_hints;

use std::collections::HashSet;
use std::path::Path;

use serde_yaml::value::{Tag, TaggedValue};
use serde_yaml::{Number, Value};

use self::syntax_hints::syntax_hint;
use super::config_path::{ConfigPath, ConfigPathSegment};
use super::diagnostic::{Diagnostic, backquoted, sort_and_cap};
use super::foreign::line_hint;
use super::raw::secret::redact_path;
pub(super) use weir_yaml::Position;
use weir_yaml::{self as yaml, Dialect, Node, Scalar, ScalarKind};

/// A parsed file.
#[derive(Debug)]
pub(super) struct ParsedText {
    /// The values, with merge keys applied.
    pub(super) value: Value,
    /// The positions of the values.
    pub(super) positions: Positions,
}

/// Parses the only document in `text`.
pub(super) fn parse(text: &str, file: &Path) -> Result<ParsedText, Vec<Diagnostic>> {
    let of_file = |at: Position, message: String| Diagnostic {
        line: at.line,
        column: at.column,
        ..Diagnostic::for_file(file, message)
    };
    let root = match yaml::parse(text, Dialect::Core) {
        Ok(Some(root)) => root,
        Ok(None) => {
            let is_empty = text.trim_start_matches('\u{feff}').trim().is_empty();
            let message = if is_empty { "the file is empty" } else { "the file has only comments" };
            return Err(vec![of_file(Position::START, message.to_owned())]);
        }
        Err(errors) => {
            let described = errors.into_iter().map(|error| {
                let (path, at) = (format_path(&error.path, ConfigPath::ROOT), error.position);
                let (message, hint) = describe_error(&error.kind, &path, text, at);
                Diagnostic { path: redact_path(&path).to_owned(), hint, ..of_file(at, message) }
            });
            return Err(sort_and_cap(described.collect()));
        }
    };
    let mut value = to_serde_value(&root);
    match value.apply_merge() {
        Ok(()) => Ok(ParsedText { value, positions: Positions(Some(root)) }),
        Err(error) => Err(vec![of_file(Position::START, format!("not valid YAML: {error}"))]),
    }
}

fn format_path(steps: &[yaml::PathSegment], at: ConfigPath<'_>) -> String {
    match steps {
        [] => at.to_string(),
        [yaml::PathSegment::Key(key), rest @ ..] => format_path(rest, at.key(key)),
        [yaml::PathSegment::Item(index), rest @ ..] => format_path(rest, at.item(*index)),
    }
}

fn describe_error(
    problem: &yaml::YamlErrorKind,
    path: &str,
    text: &str,
    at: Position,
) -> (String, Option<String>) {
    match problem {
        yaml::YamlErrorKind::Syntax(message) => (format!("not valid YAML: {message}"), syntax_hint(text, at)),
        yaml::YamlErrorKind::DuplicateKey { key, first_line } => {
            let is_secret = redact_path(path) != path;
            let name = if is_secret { String::new() } else { format!(" {}", backquoted(key)) };
            (format!("duplicate key{name}"), Some(format!("first in line {first_line}")))
        }
        problem => {
            let line = text.lines().nth(at.line.saturating_sub(1)).unwrap_or_default();
            (problem.to_string(), line_hint(line))
        }
    }
}

/// Converts to the type that `serde_yaml` deserializes.
fn to_serde_value(node: &Node) -> Value {
    match &node.value {
        yaml::NodeValue::Scalar(Scalar { text, kind }) => match *kind {
            ScalarKind::Null => Value::Null,
            ScalarKind::Bool(said) => Value::Bool(said),
            ScalarKind::Int(number) => Value::Number(number.into()),
            ScalarKind::LargeInt(number) => Value::Number(number.into()),
            ScalarKind::Float(number) => Value::Number(Number::from(number)),
            ScalarKind::Merge | ScalarKind::Text => Value::String((**text).to_owned()),
        },
        yaml::NodeValue::List(items) => Value::Sequence(items.iter().map(to_serde_value).collect()),
        yaml::NodeValue::Map(map) => Value::Mapping(
            map.entries().iter().map(|(key, value)| (to_serde_value(key), to_serde_value(value))).collect(),
        ),
        yaml::NodeValue::Tagged(tagged) => {
            let (tag, node) = &**tagged;
            Value::Tagged(Box::new(TaggedValue { tag: Tag::new(&**tag), value: to_serde_value(node) }))
        }
    }
}

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

/// A text and its name.
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

#[cfg(test)]
mod tests;
