//! Checks a file against the schema, and reports every unknown key, every value of the wrong type and every
//! missing key in one run.
//!
//! Supports the subset of JSON Schema that [`super::raw`] produces, so that each key is defined once. `serde`
//! decodes every value that passes.

pub(super) mod alternatives;

use std::collections::HashSet;

use serde_json::Value as Schema;
use serde_yaml::{Mapping, Number, Value};

use self::alternatives::{Alternatives, describe, resolve};
use super::at::At;
use super::parse::nearest;
use super::problem::{Fault, Report, listed, named};
use super::schema::{has_secret_keys, schema};

/// Checks `value` and returns whether it can be used at all.
///
/// Converts text that consists of a single variable (`references`) to the number or boolean that is expected
/// there. Removes what is invalid: keys are deleted, list items become null.
pub(super) fn check(value: &mut Value, references: &HashSet<String>, report: &mut Report<'_>) -> bool {
    Check { references, report }.value(value, schema(), At::ROOT)
}

struct Check<'a, 'r> {
    references: &'a HashSet<String>,
    report: &'a mut Report<'r>,
}

impl Check<'_, '_> {
    /// Checks one value; returns whether it stays.
    fn value(&mut self, value: &mut Value, schema: &Schema, at: At<'_>) -> bool {
        if value.is_null() && self.report.is_faulty(at) {
            return false;
        }
        let alternatives = Alternatives::of(schema);
        if alternatives.any() {
            return self.anything(value, at);
        }
        if let Value::String(text) = value
            && self.references.contains(&at.to_string())
            && let Some(plain) = alternatives.plain(text)
        {
            *value = plain;
        }
        if let Value::String(text) = value
            && let Some(fault) = alternatives.refuses_word(text)
        {
            return self.refuse(at, fault);
        }
        match (alternatives.one(kind_of(value)), value) {
            (None, value) => self.refuse(at, alternatives.mismatch(value)),
            (Some(schema), Value::Mapping(map)) => self.map(map, schema, at),
            (Some(schema), Value::Sequence(items)) => self.list(items, schema, at),
            (Some(schema), Value::Number(number)) => self.range(number, schema, at),
            (Some(_), Value::String(_) | Value::Bool(_) | Value::Null | Value::Tagged(_)) => true,
        }
    }

    fn refuse(&mut self, at: At<'_>, fault: impl Into<Fault>) -> bool {
        self.report.value(at, fault);
        false
    }

    fn list(&mut self, items: &mut [Value], schema: &Schema, at: At<'_>) -> bool {
        if items.is_empty() && schema.get("minItems").and_then(Schema::as_u64) > Some(0) {
            return self.refuse(at, "empty list, expected at least one item");
        }
        let schema = schema.get("items").unwrap_or(&Schema::Bool(true));
        for (index, item) in items.iter_mut().enumerate() {
            if !self.value(item, schema, at.item(index)) {
                *item = Value::Null;
            }
        }
        true
    }

    fn range(&mut self, number: &Number, schema: &Schema, at: At<'_>) -> bool {
        let bound = |name| schema.get(name).and_then(Schema::as_u64);
        let least = bound("minimum").unwrap_or(0);
        let most = bound("maximum").unwrap_or(u64::MAX);
        let fits = number.as_u64().is_some_and(|number| (least..=most).contains(&number));
        fits || self.refuse(at, format!("expected a number from {least} to {most}, got {number}"))
    }

    fn map(&mut self, map: &mut Mapping, schema: &Schema, at: At<'_>) -> bool {
        self.count(map, schema, at);
        let properties = schema.get("properties").and_then(Schema::as_object);
        let others = schema.get("additionalProperties").filter(|others| !others.is_boolean());
        map.retain(|key, value| {
            let Value::String(key) = key else {
                let is_secret = has_secret_keys(schema);
                let got = if is_secret { String::new() } else { format!(", got {}", describe(key)) };
                return self
                    .refuse(at, Fault::new(format!("a key must be text{got}")).hint("put it in quotes"));
            };
            match properties.and_then(|properties| properties.get(key)).or(others) {
                Some(schema) => self.value(value, schema, at.key(key)),
                None => self.unknown(key, schema, at),
            }
        });
        self.missing(map, schema, at);
        true
    }

    fn unknown(&mut self, key: &str, schema: &Schema, at: At<'_>) -> bool {
        let Some(properties) = schema.get("properties").and_then(Schema::as_object) else { return false };
        let known = properties.keys().map(String::as_str);
        let hint = match (nearest(key, known.clone()), parent_of(key, properties)) {
            (Some(meant), _) => {
                self.report.excuse(at.key(meant));
                format!("did you mean `{meant}`?")
            }
            (None, Some(parent)) => format!("it belongs in `{parent}`"),
            (None, None) => format!("known keys: {}", listed(known)),
        };
        self.report.key(at.key(key), Fault::new(format!("unknown key {}", named(key))).hint(hint));
        false
    }

    fn missing(&mut self, map: &Mapping, schema: &Schema, at: At<'_>) {
        let Some(required) = schema.get("required").and_then(Schema::as_array) else { return };
        for key in required.iter().filter_map(Schema::as_str).filter(|key| !map.contains_key(*key)) {
            if !self.report.is_faulty(at.key(key)) {
                self.report.value(at.key(key), format!("missing, {} is required", named(key)));
            }
        }
    }

    fn count(&mut self, map: &Mapping, schema: &Schema, at: At<'_>) {
        let bound = |name| schema.get(name).and_then(Schema::as_u64);
        let given = u64::try_from(map.len()).unwrap_or(u64::MAX);
        if bound("maxProperties").is_some_and(|most| given > most)
            || bound("minProperties").is_some_and(|least| given < least)
        {
            let properties = schema.get("properties").and_then(Schema::as_object);
            let known = listed(properties.into_iter().flatten().map(|(key, _)| key.as_str()));
            let how_many = if bound("maxProperties").is_some() { "exactly" } else { "at least" };
            self.report.value(at, format!("expected {how_many} one of {known}, got {given} keys"));
        }
    }

    /// Checks a value that may be any JSON: JSON has no keys other than text, no infinite numbers and no
    /// tags.
    fn anything(&mut self, value: &mut Value, at: At<'_>) -> bool {
        match value {
            Value::Mapping(map) => map.iter_mut().all(|(key, value)| match key {
                Value::String(key) => self.anything(value, at.key(key)),
                _ => self.refuse(at, format!("a key must be text, got {}", describe(key))),
            }),
            Value::Sequence(items) => {
                items.iter_mut().enumerate().all(|(index, item)| self.anything(item, at.item(index)))
            }
            Value::Number(number) if number.as_f64().is_some_and(|number| !number.is_finite()) => {
                self.refuse(at, format!("not a JSON number, got {number}"))
            }
            Value::Tagged(_) => self.refuse(at, format!("expected plain YAML, got {}", describe(value))),
            Value::String(text) => {
                if self.references.contains(&at.to_string())
                    && let Some(plain) = alternatives::plain_scalar(text)
                {
                    *value = plain;
                }
                true
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => true,
        }
    }
}

/// Returns the schema's name of the value's type; empty for types that the schema never allows.
fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Mapping(_) => "object",
        Value::Sequence(_) => "array",
        Value::String(_) => "string",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_u64() || number.is_i64() => "integer",
        Value::Number(_) => "number",
        Value::Null | Value::Tagged(_) => "",
    }
}

/// Returns the one key here under which `key` is known, if there is exactly one.
fn parent_of<'a>(key: &str, properties: &'a serde_json::Map<String, Schema>) -> Option<&'a str> {
    let mut parents = properties.iter().filter(|(_, schema)| {
        let object = Alternatives::of(resolve(schema)).one("object");
        object.is_some_and(|object| object.get("properties").is_some_and(|known| known.get(key).is_some()))
    });
    match (parents.next(), parents.next()) {
        (Some((parent, _)), None) => Some(parent),
        _ => None,
    }
}
