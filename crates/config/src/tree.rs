//! The text of a configuration as a tree of values, with the position of each value.

mod syntax_hints;

use std::path::Path;

use serde_yaml::value::{Tag, TaggedValue};
use serde_yaml::{Number, Value};

use self::syntax_hints::syntax_hint;
use super::config_path::ConfigPath;
use super::diagnostic::{Diagnostic, sort_and_cap};
use super::foreign::line_hint;
use super::positions::{Positions, SourceTexts};
use super::quoting::backquoted;
use super::raw::secret::redact_path;
use weir_yaml::{self as yaml, Dialect, Node, Position, Scalar, ScalarKind};

/// A parsed file.
#[derive(Debug)]
pub(super) struct ParsedText {
    /// The values, with merge keys applied.
    pub(super) value: Value,
    pub(super) positions: Positions,
}

/// The values of all texts of a configuration.
#[derive(Debug)]
pub(super) struct MergedTexts<'a> {
    pub(super) value: Value,
    pub(super) texts: SourceTexts<'a>,
    /// Keys that are in two texts, or in the wrong one.
    pub(super) misplaced_keys: Vec<Diagnostic>,
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
        Ok(()) => Ok(ParsedText { value, positions: Positions::of(root) }),
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

#[cfg(test)]
mod tests;
