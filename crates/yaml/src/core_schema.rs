//! Scalars of YAML 1.2's core schema, as `serde_yaml` reads them.

use super::{ScalarKind, YamlErrorKind};

/// Returns the meaning of a plain scalar.
pub(super) fn resolve_plain(text: &str) -> Result<ScalarKind, YamlErrorKind> {
    if !may_be_more_than_text(text) {
        return Ok(ScalarKind::Text);
    }
    let known = parse_null(text).or_else(|| parse_bool(text));
    if let Some(kind) = known {
        return Ok(kind);
    }
    match parse_integer(text) {
        Some(number) => number,
        None => Ok(parse_float(text).filter(|_| !has_leading_zero(text)).unwrap_or(ScalarKind::Text)),
    }
}

/// Returns the meaning of a scalar with one of YAML's own tags.
pub(super) fn resolve_tagged(text: &str, tag: &str) -> Result<ScalarKind, YamlErrorKind> {
    let (kind, expected) = match tag {
        "null" => (parse_null(text).filter(|_| !text.is_empty()), "null"),
        "bool" => (parse_bool(text), "a boolean"),
        "int" => (parse_integer(text).transpose()?, "an integer"),
        _ => (parse_float(text), "a float"),
    };
    kind.ok_or_else(|| YamlErrorKind::Syntax(format!("invalid value: string {text:?}, expected {expected}")))
}

/// Whether the first byte is that of a null, a boolean or a number.
fn may_be_more_than_text(text: &str) -> bool {
    let is_known = |first: &u8| first.is_ascii_digit() || b"~nNtTfF+-.".contains(first);
    text.as_bytes().first().is_none_or(is_known)
}

fn parse_null(text: &str) -> Option<ScalarKind> {
    matches!(text, "" | "~" | "null" | "Null" | "NULL").then_some(ScalarKind::Null)
}

fn parse_bool(text: &str) -> Option<ScalarKind> {
    match text {
        "true" | "True" | "TRUE" => Some(ScalarKind::Bool(true)),
        "false" | "False" | "FALSE" => Some(ScalarKind::Bool(false)),
        _ => None,
    }
}

/// Parses an integer; `None` if it is not one, or exceeds 128 bits and is read as a float. An integer that
/// exceeds 64 bits is an error.
fn parse_integer(text: &str) -> Option<Result<ScalarKind, YamlErrorKind>> {
    let (is_negative, size) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (digits, radix) = match size.get(..2) {
        Some("0x") => (&size[2..], 16),
        Some("0o") => (&size[2..], 8),
        Some("0b") => (&size[2..], 2),
        _ if has_leading_zero(size) => return None,
        _ => (size, 10),
    };
    // `from_str_radix` would accept another sign.
    let size = digits.bytes().all(|byte| byte.is_ascii_alphanumeric()).then_some(digits)?;
    let size = u128::from_str_radix(size, radix).ok()?;
    let number = match u64::try_from(size) {
        Ok(size) if is_negative => 0_i64.checked_sub_unsigned(size).map(ScalarKind::Int),
        Ok(size) => Some(i64::try_from(size).map_or(ScalarKind::LargeInt(size), ScalarKind::Int)),
        Err(_) if is_negative && size > 1 << 127 => return None,
        Err(_) => None,
    };
    let sign = if is_negative { "-" } else { "" };
    Some(number.ok_or_else(|| YamlErrorKind::IntegerOutOfRange(format!("{sign}{size}"))))
}

/// Whether a number has leading zeros, which make it text.
fn has_leading_zero(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn parse_float(text: &str) -> Option<ScalarKind> {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    match (text, unsigned) {
        (_, ".inf" | ".Inf" | ".INF") => Some(ScalarKind::Float(f64::INFINITY)),
        ("-.inf" | "-.Inf" | "-.INF", _) => Some(ScalarKind::Float(f64::NEG_INFINITY)),
        (".nan" | ".NaN" | ".NAN", _) => Some(ScalarKind::Float(f64::NAN)),
        // A second sign makes it text.
        _ if unsigned.len() < text.len() && unsigned.starts_with(['+', '-']) => None,
        _ => unsigned.parse().ok().filter(|number: &f64| number.is_finite()).map(ScalarKind::Float),
    }
}
