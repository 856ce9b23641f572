//! Names of claims, and what is kept of a token: the claims that somebody asks for, as text.

use std::fmt;

use serde_json::{Map, Number, Value};

/// Beyond this every whole number of a double stands for several.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// The name of a claim. A dot leads into an object, unless the name is there as written: names such as
/// `https://example.com/plan` have dots of their own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim(Box<str>);

impl Claim {
    /// The claim of this name; `None` if the name is empty.
    pub fn new(name: &str) -> Option<Self> {
        (!name.is_empty()).then(|| Self(name.into()))
    }

    fn find<'a>(&self, payload: &'a Map<String, Value>) -> Option<&'a Value> {
        find(&self.0, payload)
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The longest name that is there as written wins, at every level.
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

/// The values of the claims that rules ask for, in the order in which the verifier has their names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Claims(Box<[Option<Box<str>>]>);

impl Claims {
    pub(super) fn of(payload: &Map<String, Value>, wanted: &[Claim]) -> Self {
        Self(wanted.iter().map(|claim| claim.find(payload).and_then(canonical)).collect())
    }

    pub(super) fn get(&self, position: usize) -> Option<&str> {
        self.0.get(position)?.as_deref()
    }

    /// Bytes of all values.
    pub(super) fn size(&self) -> usize {
        self.0.iter().flatten().map(|value| value.len()).sum()
    }
}

/// A value as text, the same for every way to write it; lists, objects and null are no values to count by.
fn canonical(value: &Value) -> Option<Box<str>> {
    match value {
        Value::String(text) => Some(text.as_str().into()),
        Value::Bool(truth) => Some(truth.to_string().into()),
        Value::Number(number) => Some(canonical_number(number).into()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// `100`, `100.0` and `1e2` are one number.
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
        let claims = Claims::of(&payload, &[Claim::new(name).unwrap()]);
        claims.get(0).map(str::to_owned)
    }

    #[test]
    fn a_dot_leads_into_an_object() {
        assert_eq!(claim("org.id", r#"{"org":{"id":"a"}}"#).unwrap(), "a");
        assert_eq!(claim("a.b.c", r#"{"a":{"b":{"c":"x"}}}"#).unwrap(), "x");
        assert_eq!(claim("org.id", r#"{"org":"id"}"#), None);
        assert_eq!(claim("org.id", r#"{"org":{"name":"id"}}"#), None);
        assert_eq!(claim("org.", r#"{"org":{"":"empty"}}"#).unwrap(), "empty");
    }

    #[test]
    fn a_name_that_is_there_as_written_wins() {
        assert_eq!(claim("org.id", r#"{"org":{"id":"inner"},"org.id":"whole"}"#).unwrap(), "whole");
        assert_eq!(claim("https://e.com/plan", r#"{"https://e.com/plan":"pro"}"#).unwrap(), "pro");
        let namespaced = r#"{"https://e.com/app":{"plan":"pro"},"https://e":{"com/app.plan":"no"}}"#;
        assert_eq!(claim("https://e.com/app.plan", namespaced).unwrap(), "pro");
    }

    #[test]
    fn values_have_one_text() {
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
