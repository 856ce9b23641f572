//! Claim names, and the values of claims as text.

use std::fmt;

use serde_json::{Map, Number, Value};

/// Limit below which every integer has a double of its own.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Name of a claim. A dot descends into an object, unless the payload has the whole name: names such as
/// `https://example.com/plan` contain dots themselves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimName(Box<str>);

impl ClaimName {
    /// Creates a claim name; `None` if it is empty.
    pub fn new(name: &str) -> Option<Self> {
        (!name.is_empty()).then(|| Self(name.into()))
    }

    fn find<'a>(&self, payload: &'a Map<String, Value>) -> Option<&'a Value> {
        find(&self.0, payload)
    }
}

impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Finds a value by a dotted name. At every level the longest name that exists takes precedence.
fn find<'a>(name: &str, object: &'a Map<String, Value>) -> Option<&'a Value> {
    if let Some(value) = object.get(name) {
        return Some(value);
    }
    let dots = name.rmatch_indices('.');
    dots.into_iter().find_map(|(dot, _)| match object.get(&name[..dot])? {
        Value::Object(inner) => find(&name[dot + 1..], inner),
        _ => None,
    })
}

/// Values of the claims that rules use, in the order of the verifier's claim names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Claims(Box<[Option<Box<str>>]>);

impl Claims {
    pub(super) fn from_payload(payload: &Map<String, Value>, names: &[ClaimName]) -> Self {
        Self(names.iter().map(|claim| claim.find(payload).and_then(canonical)).collect())
    }

    pub(super) fn get(&self, position: usize) -> Option<&str> {
        self.0.get(position)?.as_deref()
    }

    /// Returns the size of all values, in bytes.
    pub(super) fn size(&self) -> usize {
        self.0.iter().flatten().map(|value| value.len()).sum()
    }
}

/// Returns a value in canonical form; `None` for lists, objects and null, which are not counted by.
fn canonical(value: &Value) -> Option<Box<str>> {
    match value {
        Value::String(text) => Some(text.as_str().into()),
        Value::Bool(truth) => Some(truth.to_string().into()),
        Value::Number(number) => Some(canonical_number(number).into()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Returns one text for `100`, `100.0` and `1e2`.
fn canonical_number(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < EXACT => {
            format!("{float:.0}")
        }
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str, payload: &str) -> Option<String> {
        let payload: Map<String, Value> = serde_json::from_str(payload).unwrap();
        let claims = Claims::from_payload(&payload, &[ClaimName::new(name).unwrap()]);
        claims.get(0).map(str::to_owned)
    }

    #[test]
    fn dotted_claim_name_reads_a_nested_object() {
        assert_eq!(claim("org.id", r#"{"org":{"id":"a"}}"#).unwrap(), "a");
        assert_eq!(claim("a.b.c", r#"{"a":{"b":{"c":"x"}}}"#).unwrap(), "x");
        assert_eq!(claim("org.id", r#"{"org":"id"}"#), None);
        assert_eq!(claim("org.id", r#"{"org":{"name":"id"}}"#), None);
        assert_eq!(claim("org.", r#"{"org":{"":"empty"}}"#).unwrap(), "empty");
    }

    #[test]
    fn literal_claim_name_beats_a_nested_one() {
        assert_eq!(claim("org.id", r#"{"org":{"id":"inner"},"org.id":"whole"}"#).unwrap(), "whole");
        assert_eq!(claim("https://e.com/plan", r#"{"https://e.com/plan":"pro"}"#).unwrap(), "pro");
        let namespaced = r#"{"https://e.com/app":{"plan":"pro"},"https://e":{"com/app.plan":"no"}}"#;
        assert_eq!(claim("https://e.com/app.plan", namespaced).unwrap(), "pro");
    }

    #[test]
    fn claim_values_have_a_canonical_text() {
        for (value, text) in [
            ("\"text\"", "text"),
            ("\"\"", ""),
            ("true", "true"),
            ("7", "7"),
            ("-7", "-7"),
            ("18446744073709551615", "18446744073709551615"),
            ("7.0", "7"),
            ("1e2", "100"),
            ("-0.0", "-0"),
            ("0.5", "0.5"),
            ("5e-1", "0.5"),
            ("\"\\u0061\"", "a"),
        ] {
            assert_eq!(claim("c", &format!("{{\"c\":{value}}}")).as_deref(), Some(text), "{value}");
        }
        for none in ["null", "[]", "[\"a\"]", "{}", "{\"a\":1}"] {
            assert_eq!(claim("c", &format!("{{\"c\":{none}}}")), None, "{none}");
        }
    }
}
