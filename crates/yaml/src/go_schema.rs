//! Scalars as Go's yaml.v2 reads them: YAML 1.1, with Go's number syntax.

use super::ScalarKind;

/// Returns the meaning of a plain scalar.
pub(super) fn resolve_plain(text: &str) -> ScalarKind {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => ScalarKind::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            ScalarKind::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            ScalarKind::Bool(false)
        }
        ".nan" | ".NaN" | ".NAN" => ScalarKind::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => ScalarKind::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => ScalarKind::Float(f64::NEG_INFINITY),
        "<<" => ScalarKind::Merge,
        // Text that looks like a date stays text.
        _ if text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) => {
            parse_number(text)
        }
        _ => ScalarKind::Text,
    }
}

fn parse_number(text: &str) -> ScalarKind {
    let digits = text.replace('_', "");
    let (is_negative, size) = match digits.as_bytes().first() {
        Some(b'-') => (true, &digits[1..]),
        Some(b'+') => (false, &digits[1..]),
        _ => (false, digits.as_str()),
    };
    match parse_magnitude(size) {
        Some(size) if is_negative => {
            0_i64.checked_sub_unsigned(size).map_or(ScalarKind::Float(-(size as f64)), ScalarKind::Int)
        }
        Some(size) => i64::try_from(size).map_or(ScalarKind::LargeInt(size), ScalarKind::Int),
        None if is_float(size) => digits.parse().map_or(ScalarKind::Text, ScalarKind::Float),
        None => ScalarKind::Text,
    }
}

/// Parses an integer in Go's syntax: a leading zero means octal.
fn parse_magnitude(text: &str) -> Option<u64> {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', b'o' | b'O', ..] => (&text[2..], 8),
        [b'0', b'b' | b'B', ..] => (&text[2..], 2),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    let is_number = digits.starts_with(|c: char| c.is_digit(radix));
    is_number.then(|| u64::from_str_radix(digits, radix).ok()).flatten()
}

/// Whether the text consists of digits with an optional point and exponent.
fn is_float(text: &str) -> bool {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (text, None),
    };
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    is_digits(whole)
        && is_digits(part)
        && !(whole.is_empty() && part.is_empty())
        && exponent.is_none_or(|digits| !digits.is_empty() && is_digits(digits))
}
