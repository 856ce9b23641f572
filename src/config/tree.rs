//! The text of a configuration as a tree of values, with the position of each value.

use std::collections::HashSet;
use std::path::Path;

use serde_yaml::value::{Tag, TaggedValue};
use serde_yaml::{Number, Value};

use super::at::{At, Step};
use super::problem::{Problem, in_order, named};
use super::raw::secret::shown_path;
pub(super) use crate::yaml::Position;
use crate::yaml::{self, Dialect, Kind, Node, Scalar};

/// A parsed file.
#[derive(Debug)]
pub(super) struct Document {
    /// The values, with merge keys applied.
    pub(super) value: Value,
    /// The positions of the values.
    pub(super) positions: Positions,
}

/// Parses the only document in `text`.
pub(super) fn parse(text: &str, file: &Path) -> Result<Document, Vec<Problem>> {
    let of_file = |at: Position, message: String| Problem {
        line: at.line,
        column: at.column,
        ..Problem::of_file(file, message)
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
                let (path, at) = (path(&error.path, At::ROOT), error.at);
                let (message, hint) = describe(&error.problem, &path, text, at);
                Problem { path: shown_path(&path).to_owned(), hint, ..of_file(at, message) }
            });
            return Err(in_order(described.collect()));
        }
    };
    let mut value = value_of(&root);
    match value.apply_merge() {
        Ok(()) => Ok(Document { value, positions: Positions(Some(root)) }),
        Err(error) => Err(vec![of_file(Position::START, format!("not valid YAML: {error}"))]),
    }
}

fn path(steps: &[yaml::Step], at: At<'_>) -> String {
    match steps {
        [] => at.to_string(),
        [yaml::Step::Key(key), rest @ ..] => path(rest, at.key(key)),
        [yaml::Step::Item(index), rest @ ..] => path(rest, at.item(*index)),
    }
}

fn describe(problem: &yaml::Problem, path: &str, text: &str, at: Position) -> (String, Option<String>) {
    match problem {
        yaml::Problem::Syntax(message) => (format!("not valid YAML: {message}"), tab_hint(text, at)),
        yaml::Problem::DuplicateKey { key, first_line } => {
            let is_secret = shown_path(path) != path;
            let name = if is_secret { String::new() } else { format!(" {}", named(key)) };
            (format!("duplicate key{name}"), Some(format!("first in line {first_line}")))
        }
        problem => (problem.to_string(), None),
    }
}

/// Hint for the most frequent syntax error, tabs, for which the parser has no message of its own.
fn tab_hint(text: &str, at: Position) -> Option<String> {
    let line = text.lines().nth(at.line.checked_sub(1)?)?;
    let indent = &line[..line.len() - line.trim_start().len()];
    indent.contains('\t').then(|| "indent with spaces, not with tabs".to_owned())
}

/// Converts to the type that `serde_yaml` deserializes.
fn value_of(node: &Node) -> Value {
    match &node.value {
        yaml::Value::Scalar(Scalar { text, kind }) => match *kind {
            Kind::Null => Value::Null,
            Kind::Bool(said) => Value::Bool(said),
            Kind::Int(number) => Value::Number(number.into()),
            Kind::Large(number) => Value::Number(number.into()),
            Kind::Float(number) => Value::Number(Number::from(number)),
            Kind::Merge | Kind::Text => Value::String((**text).to_owned()),
        },
        yaml::Value::List(items) => Value::Sequence(items.iter().map(value_of).collect()),
        yaml::Value::Map(map) => Value::Mapping(
            map.entries().iter().map(|(key, value)| (value_of(key), value_of(value))).collect(),
        ),
        yaml::Value::Tagged(tagged) => {
            let (tag, node) = &**tagged;
            Value::Tagged(Box::new(TaggedValue { tag: Tag::new(&**tag), value: value_of(node) }))
        }
    }
}

/// The positions of all values of a file.
#[derive(Debug, Default)]
pub(super) struct Positions(Option<Node>);

/// The positions in a configuration of one text or two.
#[derive(Debug)]
pub(super) struct Texts<'a> {
    base: Text<'a>,
    rest: Option<Text<'a>>,
    /// Top-level keys of the first text.
    keys: HashSet<String>,
}

/// A text and its name.
#[derive(Debug)]
struct Text<'a> {
    name: &'a Path,
    positions: Positions,
}

impl<'a> Texts<'a> {
    /// Creates the positions of one text, called `name`.
    pub(super) fn one(name: &'a Path, positions: Positions) -> Self {
        Self { base: Text { name, positions }, rest: None, keys: HashSet::new() }
    }

    /// Creates the positions of a text with the top-level keys `keys`, and another with all other keys.
    pub(super) fn two(
        base: (&'a Path, Positions),
        keys: HashSet<String>,
        rest: (&'a Path, Positions),
    ) -> Self {
        let text = |(name, positions)| Text { name, positions };
        Self { base: text(base), rest: Some(text(rest)), keys }
    }

    /// Returns the name and the positions of the text that contains `at`, or would contain it.
    pub(super) fn of(&self, at: At<'_>) -> (&'a Path, &Positions) {
        let text = match &self.rest {
            Some(rest) if !at.top().is_some_and(|key| self.keys.contains(key)) => rest,
            Some(_) | None => &self.base,
        };
        (text.name, &text.positions)
    }
}

/// The result of looking up a path.
struct Found<'n> {
    node: &'n Node,
    /// Position of its key, if it has one.
    key: Option<Position>,
    /// Whether the path itself was found, and not only a value that contains it.
    is_exact: bool,
}

impl Positions {
    /// Returns the position of the value at `at`, or of the nearest value that contains it.
    pub(super) fn value(&self, at: At<'_>) -> Position {
        self.nearest(at).map_or(Position::START, |found| found.node.at)
    }

    /// Returns the position of the key at `at`, or of the nearest value that contains it.
    pub(super) fn key(&self, at: At<'_>) -> Position {
        self.nearest(at).map_or(Position::START, |found| found.key.unwrap_or(found.node.at))
    }

    /// Values that come through an alias or a merge key have no position of their own.
    fn nearest(&self, at: At<'_>) -> Option<Found<'_>> {
        let Some(parent) = at.parent() else {
            return self.0.as_ref().map(|node| Found { node, key: None, is_exact: true });
        };
        let around = self.nearest(parent)?;
        if !around.is_exact || matches!(at.step(), Step::Root | Step::Same) {
            return Some(around);
        }
        let holder = match &around.node.value {
            yaml::Value::Tagged(tagged) => &tagged.1,
            _ => around.node,
        };
        let inner = match (&holder.value, at.step()) {
            _ if holder.is_alias || around.node.is_alias => None,
            (yaml::Value::Map(map), Step::Key(key)) => map.entry(key).map(|(key, node)| (node, Some(key.at))),
            (yaml::Value::List(items), Step::Item(index)) => items.get(index).map(|node| (node, None)),
            _ => None,
        };
        Some(match inner {
            Some((node, key)) => Found { node, key, is_exact: true },
            None => Found { is_exact: false, ..around },
        })
    }
}

#[cfg(test)]
mod tests;
