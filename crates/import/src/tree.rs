//! Access to configurations of other programs as written: YAML or JSON, with the field names and the spellings of
//! values that protobuf's JSON accepts.

use super::ImportError;
use weir_yaml::{self as yaml, Dialect, Node, NodeValue, Scalar, ScalarKind, YamlErrorKind};

/// The documents of a file.
#[derive(Debug)]
pub(super) struct Documents {
    pub(super) nodes: Vec<Node>,
    /// Keys that a map has twice, of which only the last counts.
    pub(super) duplicates: Vec<String>,
}

/// Reads all documents of a file.
///
/// # Errors
/// Returns the syntax errors, or that there is no document.
pub(super) fn read_documents(file: &str, text: &str) -> Result<Documents, Vec<ImportError>> {
    let import_error = |error: &yaml::YamlError| ImportError {
        file: file.to_owned(),
        position: Some((error.position.line, error.position.column)),
        message: error.kind.to_string(),
    };
    let parsed = yaml::parse_stream(text, Dialect::Go);
    let mut nodes = parsed.map_err(|errors| errors.iter().map(import_error).collect::<Vec<_>>())?;
    nodes.retain(|node| !is_null(node));
    if nodes.is_empty() {
        let message = "empty, expected a YAML or JSON document".to_owned();
        return Err(vec![ImportError { file: file.to_owned(), position: None, message }]);
    }
    // The other dialect reports what this one drops.
    let strict = yaml::parse_stream(text, Dialect::Core).err().unwrap_or_default();
    let duplicate = |error: &yaml::YamlError| match &error.kind {
        YamlErrorKind::DuplicateKey { key, first_line } => Some(format!(
            "{file}:{}:{}: the key `{key}` is also in line {first_line}: the last one counts",
            error.position.line, error.position.column
        )),
        _ => None,
    };
    Ok(Documents { nodes, duplicates: strict.iter().filter_map(duplicate).collect() })
}

/// Returns the field `name`, which is given in snake case and may be written in camel case.
pub(super) fn get<'n>(node: &'n Node, name: &str) -> Option<&'n Node> {
    fields(node).find(|(given, _)| is_named(given, name)).map(|(_, value)| value)
}

/// Whether the written name means the field `name`, which is in snake case.
pub(super) fn is_named(given: &str, name: &str) -> bool {
    given == name || (name.contains('_') && given == camel_case(name))
}

/// Returns a name in lower camel case.
pub(super) fn camel_case(name: &str) -> String {
    let mut is_upper = false;
    let mut camel = String::with_capacity(name.len());
    for letter in name.chars() {
        match (letter, is_upper) {
            ('_', _) => is_upper = true,
            (letter, true) => {
                camel.push(letter.to_ascii_uppercase());
                is_upper = false;
            }
            (letter, false) => camel.push(letter),
        }
    }
    camel
}

/// Returns the entries of a map; none if it is not a map.
pub(super) fn entries(node: &Node) -> &[(Node, Node)] {
    match &node.value {
        NodeValue::Map(map) => map.entries(),
        NodeValue::List(_) | NodeValue::Scalar(_) | NodeValue::Tagged(_) => &[],
    }
}

/// Returns all fields of a map that have a value; none if it is not a map.
pub(super) fn fields(node: &Node) -> impl Iterator<Item = (&str, &Node)> {
    let named = entries(node).iter().filter_map(|(key, value)| Some((scalar_text(key)?, value)));
    named.filter(|(_, value)| !is_null(value))
}

fn is_null(node: &Node) -> bool {
    matches!(node.value, NodeValue::Scalar(Scalar { kind: ScalarKind::Null, .. }))
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

pub(super) fn field_text<'n>(node: &'n Node, name: &str) -> Option<&'n str> {
    get(node, name).and_then(scalar_text)
}

/// Returns the value of a flag: YAML 1.1 and text in JSON have several spellings.
pub(super) fn as_bool(node: &Node) -> Option<bool> {
    match &node.value {
        NodeValue::Scalar(Scalar { kind: ScalarKind::Bool(flag), .. }) => Some(*flag),
        NodeValue::Scalar(Scalar { text, .. }) => text.parse().ok(),
        _ => None,
    }
}

/// Whether a field is `true`.
pub(super) fn is_true(node: &Node, name: &str) -> bool {
    get(node, name).and_then(as_bool) == Some(true)
}

/// Reads a whole number that is not negative: `5`, `"5"`, `5.0` or `5e0`.
pub(super) fn as_u64(node: &Node) -> Option<u64> {
    if let NodeValue::Scalar(Scalar { kind: ScalarKind::Int(number), .. }) = &node.value {
        return u64::try_from(*number).ok();
    }
    let text = scalar_text(node)?;
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let number = as_f64(node)?;
    // Above this, a float is no longer exact.
    let is_whole = number.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&number);
    is_whole.then_some(number as u64)
}

/// Reads a whole number that may be negative.
pub(super) fn as_i64(node: &Node) -> Option<i64> {
    let text = scalar_text(node)?;
    text.parse().ok().or_else(|| as_u64(node).and_then(|number| i64::try_from(number).ok()))
}

/// Reads a number.
pub(super) fn as_f64(node: &Node) -> Option<f64> {
    let text = scalar_text(node)?;
    let is_number = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E');
    text.parse().ok().filter(|number: &f64| number.is_finite() && text.bytes().all(is_number))
}

/// Reads a duration in the spelling of protobuf's JSON, in nanoseconds: seconds with up to nine decimals and an `s`.
pub(super) fn as_nanos(node: &Node) -> Option<u128> {
    let number = scalar_text(node)?.strip_suffix('s')?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && part.is_empty()) || !is_digits(whole) || !is_digits(part) || part.len() > 9 {
        return None;
    }
    let part: u128 = format!("{part:0<9}").parse().ok()?;
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // The maximum of protobuf's durations, ten thousand years.
    (whole <= 315_576_000_000).then(|| u128::from(whole) * 1_000_000_000 + part)
}
