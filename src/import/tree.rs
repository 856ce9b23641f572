//! Access to Envoy's configuration as written: YAML or JSON, with field names in either spelling.

use super::ImportError;
use crate::yaml::{Node, NodeValue, Scalar, ScalarKind};

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
        NodeValue::Map(map) => map.entries(),
        NodeValue::List(_) | NodeValue::Scalar(_) | NodeValue::Tagged(_) => &[],
    };
    let named = entries.iter().filter_map(|(key, value)| Some((scalar_text(key)?, value)));
    named
        .filter(|(_, value)| !matches!(value.value, NodeValue::Scalar(Scalar { kind: ScalarKind::Null, .. })))
}

/// Returns the items of a list; none if it is not a list.
pub(super) fn items(node: Option<&Node>) -> &[Node] {
    match node.map(|node| &node.value) {
        Some(NodeValue::List(items)) => items,
        _ => &[],
    }
}

/// Returns a scalar as written.
pub(super) fn scalar_text(node: &Node) -> Option<&str> {
    node.scalar_text().map(|text| &**text)
}

/// Returns the text of a field.
pub(super) fn field_text<'n>(node: &'n Node, name: &str) -> Option<&'n str> {
    get(node, name).and_then(scalar_text)
}

/// Whether a field is `true`.
pub(super) fn is_true(node: &Node, name: &str) -> bool {
    field_text(node, name) == Some("true")
}

/// Reads a whole number; large ones are quoted, because JSON would lose digits.
pub(super) fn as_u64(node: &Node) -> Option<u64> {
    scalar_text(node)?.parse().ok()
}

/// Creates a problem of the value at `node`.
pub(super) fn error_at(file: &str, node: &Node, message: impl Into<String>) -> ImportError {
    ImportError {
        file: file.to_owned(),
        position: Some((node.position.line, node.position.column)),
        message: message.into(),
    }
}
