//! Access to Envoy's configuration as written: YAML or JSON, with field names in either spelling.

use super::Problem;
use crate::yaml::{Kind, Node, Scalar, Value};

/// Returns the field `name`, which is given in snake case and may be written in camel case.
pub(super) fn get<'n>(node: &'n Node, name: &str) -> Option<&'n Node> {
    fields(node).find(|(given, _)| is_named(given, name)).map(|(_, value)| value)
}

/// Whether the written name means the field `name`.
pub(super) fn is_named(given: &str, name: &str) -> bool {
    let letters = |text: &str| -> String {
        text.chars().filter(|letter| *letter != '_').map(|letter| letter.to_ascii_lowercase()).collect()
    };
    given == name || letters(given) == letters(name)
}

/// Returns all fields of a map that have a value; none if it is not a map.
pub(super) fn fields(node: &Node) -> impl Iterator<Item = (&str, &Node)> {
    let entries: &[(Node, Node)] = match &node.value {
        Value::Map(map) => map.entries(),
        Value::List(_) | Value::Scalar(_) | Value::Tagged(_) => &[],
    };
    let named = entries.iter().filter_map(|(key, value)| Some((text(key)?, value)));
    named.filter(|(_, value)| !matches!(value.value, Value::Scalar(Scalar { kind: Kind::Null, .. })))
}

/// Returns the items of a list; none if it is not a list.
pub(super) fn items(node: Option<&Node>) -> &[Node] {
    match node.map(|node| &node.value) {
        Some(Value::List(items)) => items,
        _ => &[],
    }
}

/// Returns a scalar as written.
pub(super) fn text(node: &Node) -> Option<&str> {
    node.written().map(|text| &**text)
}

/// Returns the text of a field.
pub(super) fn text_of<'n>(node: &'n Node, name: &str) -> Option<&'n str> {
    get(node, name).and_then(text)
}

/// Whether a field is `true`.
pub(super) fn is_true(node: &Node, name: &str) -> bool {
    text_of(node, name) == Some("true")
}

/// Reads a whole number; large ones are quoted, because JSON would lose digits.
pub(super) fn number(node: &Node) -> Option<u64> {
    text(node)?.parse().ok()
}

/// Creates a problem of the value at `node`.
pub(super) fn problem(file: &str, node: &Node, message: impl Into<String>) -> Problem {
    Problem { file: file.to_owned(), place: Some((node.at.line, node.at.column)), message: message.into() }
}
