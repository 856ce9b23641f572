//! Checks a file against the schema, and reports every unknown key, every value of the wrong type and every
//! missing key in one run.
//!
//! Supports the subset of JSON Schema that [`super::raw`] produces, so that each key is defined once. `serde`
//! decodes every value that passes.

pub(super) mod alternatives;
mod map_schema;

use std::collections::HashSet;
use std::rc::Rc;

use foldhash::HashMap;
use serde_json::Value as Schema;
use serde_yaml::{Mapping, Number, Value};

use self::alternatives::{Alternatives, describe_value};
use self::map_schema::MapSchema;
use super::config_path::{ConfigPath, ConfigPathSegment};
use super::diagnostic::{Diagnostics, ValueError};
use super::foreign;
use super::parse::nearest_name;
use super::quoting::{backquoted, backquoted_list};
use super::schema::{has_secret_keys, schema};

/// Schema of any value.
static ANY: Schema = Schema::Bool(true);

/// Checks `value` and returns whether it can be used at all.
///
/// Converts text that consists of a single variable (`references`) to the number or boolean that is expected
/// there. Removes what is invalid: keys are deleted, list items become null.
pub(super) fn check(value: &mut Value, references: &HashSet<String>, report: &mut Diagnostics<'_>) -> bool {
    let mut check = SchemaCheck {
        references,
        diagnostics: report,
        alternatives: PreparedSchemas(HashMap::default()),
        maps: PreparedSchemas(HashMap::default()),
    };
    check.check_value(value, schema(), ConfigPath::ROOT)
}

struct SchemaCheck<'a, 'r> {
    references: &'a HashSet<String>,
    diagnostics: &'a mut Diagnostics<'r>,
    alternatives: PreparedSchemas<Alternatives<'static>>,
    maps: PreparedSchemas<MapSchema<'static>>,
}

/// Prepared schemas by the address of the schema. Thousands of rules have the same few dozen.
struct PreparedSchemas<T>(HashMap<*const Schema, Rc<T>>);

impl<T> PreparedSchemas<T> {
    fn get(&mut self, schema: &'static Schema, prepare: fn(&'static Schema) -> T) -> Rc<T> {
        let prepared = self.0.entry(std::ptr::from_ref(schema));
        Rc::clone(prepared.or_insert_with(|| Rc::new(prepare(schema))))
    }
}

impl SchemaCheck<'_, '_> {
    /// Checks one value; returns whether it stays.
    fn check_value(&mut self, value: &mut Value, schema: &'static Schema, at: ConfigPath<'_>) -> bool {
        if value.is_null() && self.diagnostics.is_reported(at) {
            return false;
        }
        let alternatives = self.alternatives.get(schema, Alternatives::from_schema);
        if alternatives.is_any_allowed() {
            return self.check_any(value, at);
        }
        if let Value::String(text) = value
            && self.is_reference(at)
            && let Some(plain) = alternatives.convert_plain(text)
        {
            *value = plain;
        }
        if let Value::String(text) = value
            && let Some(error) = alternatives.check_word(text)
        {
            return self.reject(at, with_structure_hint(error, value, at));
        }
        match (alternatives.of_type(type_name(value)), value) {
            (None, value) => self.reject(at, mismatch_error(&alternatives, value, at)),
            (Some(schema), Value::Mapping(map)) => self.check_map(map, schema, at),
            (Some(schema), Value::Sequence(items)) => self.check_list(items, schema, at),
            (Some(schema), Value::Number(number)) => self.check_range(number, schema, at),
            (Some(_), Value::String(_) | Value::Bool(_) | Value::Null | Value::Tagged(_)) => true,
        }
    }

    fn is_reference(&self, at: ConfigPath<'_>) -> bool {
        !self.references.is_empty() && self.references.contains(&at.to_string())
    }

    fn reject(&mut self, at: ConfigPath<'_>, error: impl Into<ValueError>) -> bool {
        self.diagnostics.add_value_error(at, error);
        false
    }

    fn check_list(&mut self, items: &mut [Value], schema: &'static Schema, at: ConfigPath<'_>) -> bool {
        if items.is_empty() && schema.get("minItems").and_then(Schema::as_u64) > Some(0) {
            return self.reject(at, "empty list, expected at least one item");
        }
        let schema = schema.get("items").unwrap_or(&ANY);
        for (index, item) in items.iter_mut().enumerate() {
            if !self.check_value(item, schema, at.item(index)) {
                *item = Value::Null;
            }
        }
        true
    }

    fn check_range(&mut self, number: &Number, schema: &Schema, at: ConfigPath<'_>) -> bool {
        if schema.get("type").and_then(Schema::as_str) == Some("number") {
            let is_finite = number.as_f64().is_some_and(f64::is_finite);
            return is_finite || self.reject(at, format!("expected a number, got {number}"));
        }
        let bound = |name| schema.get(name).and_then(Schema::as_u64);
        let min = bound("minimum").unwrap_or(0);
        let max = bound("maximum").unwrap_or(u64::MAX);
        let is_in_range = number.as_u64().is_some_and(|number| (min..=max).contains(&number));
        is_in_range || self.reject(at, format!("expected a number from {min} to {max}, got {number}"))
    }

    fn check_map(&mut self, map: &mut Mapping, schema: &'static Schema, at: ConfigPath<'_>) -> bool {
        let known = self.maps.get(schema, MapSchema::new);
        self.check_key_count(map, &known, at);
        map.retain(|key, value| {
            let Value::String(key) = key else {
                let is_secret = has_secret_keys(schema);
                let got = if is_secret { String::new() } else { format!(", got {}", describe_value(key)) };
                let hint = match key {
                    // `{{ name }}` is a map whose key is a map.
                    Value::Mapping(_) => foreign::UNRENDERED,
                    _ => "put it in quotes",
                };
                return self.reject(at, ValueError::new(format!("a key must be text{got}")).with_hint(hint));
            };
            match known.properties.get(&**key).copied().or(known.others) {
                Some(schema) => self.check_value(value, schema, at.key(key)),
                None => self.reject_unknown_key(key, value, &known, at),
            }
        });
        self.report_missing_keys(map, &known, at);
        true
    }

    fn reject_unknown_key(
        &mut self,
        key: &str,
        value: &Value,
        schema: &MapSchema<'_>,
        at: ConfigPath<'_>,
    ) -> bool {
        if schema.properties.is_empty() {
            return false;
        }
        let hint = self.unknown_key_hint(key, value, schema, at);
        self.diagnostics.add_key_error(
            at.key(key),
            ValueError::new(format!("unknown key {}", backquoted(key))).with_hint(hint),
        );
        false
    }

    /// Returns the hint for an unknown key. A key that is meant is not reported as missing.
    fn unknown_key_hint(
        &mut self,
        key: &str,
        value: &Value,
        schema: &MapSchema<'_>,
        at: ConfigPath<'_>,
    ) -> String {
        if matches!(at.last_segment(), ConfigPathSegment::Key("rules")) && value.is_mapping() {
            schema
                .required
                .iter()
                .chain(&["limit"])
                .for_each(|key| self.diagnostics.mark_reported(at.key(key)));
            return format!("`rules` is a list: write `- name: {key}` and the other keys below it");
        }
        let known = schema.property_names();
        let foreign = foreign::foreign_key(key, |name| schema.properties.contains_key(name));
        let nearest = nearest_name(key, known.clone());
        let meant =
            foreign.as_ref().map_or_else(|| nearest.unwrap_or_default(), |key| key.meant.unwrap_or_default());
        meant.split(' ').for_each(|meant| self.diagnostics.mark_reported(at.key(meant)));
        match (foreign::key_text_hint(key), foreign, nearest, schema.parent_of_key(key)) {
            (Some(hint), _, Some(meant), _) => format!("did you mean `{meant}`? {hint}"),
            (Some(hint), ..) => hint,
            (_, Some(foreign), ..) => foreign.hint.to_owned(),
            (_, _, Some(meant), _) => format!("did you mean `{meant}`?"),
            (_, _, None, Some(parent)) => format!("it belongs in `{parent}`"),
            (_, _, None, None) => {
                match key.split_once('.').filter(|(outer, _)| schema.properties.contains_key(outer)) {
                    Some((outer, inner)) => format!("write `{outer}: {{ {inner}: … }}`"),
                    None => format!("known keys: {}", backquoted_list(known)),
                }
            }
        }
    }

    fn report_missing_keys(&mut self, map: &Mapping, schema: &MapSchema<'_>, at: ConfigPath<'_>) {
        for key in schema.required.iter().filter(|key| !map.contains_key(**key)) {
            if !self.diagnostics.is_reported(at.key(key)) {
                self.diagnostics
                    .add_value_error(at.key(key), format!("missing, {} is required", backquoted(key)));
            }
        }
    }

    fn check_key_count(&mut self, map: &Mapping, schema: &MapSchema<'_>, at: ConfigPath<'_>) {
        let given = u64::try_from(map.len()).unwrap_or(u64::MAX);
        if schema.max_keys.is_some_and(|max| given > max) || schema.min_keys.is_some_and(|min| given < min) {
            let known = backquoted_list(schema.property_names());
            let quantity = if schema.max_keys.is_some() { "exactly" } else { "at least" };
            self.diagnostics
                .add_value_error(at, format!("expected {quantity} one of {known}, got {given} keys"));
        }
    }

    /// Checks a value that may be any JSON: JSON has no keys other than text, no infinite numbers and no
    /// tags.
    fn check_any(&mut self, value: &mut Value, at: ConfigPath<'_>) -> bool {
        match value {
            Value::Mapping(map) => map.iter_mut().all(|(key, value)| match key {
                Value::String(key) => self.check_any(value, at.key(key)),
                _ => self.reject(at, format!("a key must be text, got {}", describe_value(key))),
            }),
            Value::Sequence(items) => {
                items.iter_mut().enumerate().all(|(index, item)| self.check_any(item, at.item(index)))
            }
            Value::Number(number) if number.as_f64().is_some_and(|number| !number.is_finite()) => {
                self.reject(at, format!("not a JSON number, got {number}"))
            }
            Value::Tagged(_) => {
                self.reject(at, format!("expected plain YAML, got {}", describe_value(value)))
            }
            Value::String(text) => {
                if self.is_reference(at)
                    && let Some(plain) = alternatives::parse_plain_scalar(text)
                {
                    *value = plain;
                }
                true
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => true,
        }
    }
}

/// Describes the problem of a value of a kind that is not allowed at `at`.
fn mismatch_error(alternatives: &Alternatives<'_>, value: &Value, at: ConfigPath<'_>) -> ValueError {
    with_structure_hint(alternatives.mismatch_error(value), value, at)
}

/// Adds what the key of an invalid value suggests, unless the error has a hint.
fn with_structure_hint(error: ValueError, value: &Value, at: ConfigPath<'_>) -> ValueError {
    match at.last_segment() {
        ConfigPathSegment::Key(key) if error.hint.is_none() => match foreign::structure_hint(key, value) {
            Some(hint) => error.with_hint(hint),
            None => error,
        },
        _ => error,
    }
}

/// Adds notes on valid texts that are probably not what was meant, except those of bodies and of headers, which may
/// have any letter.
pub(super) fn note_odd_texts(value: &Value, at: ConfigPath<'_>, report: &mut Diagnostics<'_>) {
    match value {
        Value::String(text) => {
            if let Some((note, hint)) = foreign::note_on_text(text).filter(|_| !report.is_reported(at)) {
                report.add_note(at, ValueError::new(note).with_hint(hint));
            }
        }
        Value::Sequence(items) => {
            items.iter().enumerate().for_each(|(index, item)| note_odd_texts(item, at.item(index), report));
        }
        Value::Mapping(map) => {
            let texts = map.iter().filter_map(|(key, value)| Some((key.as_str()?, value)));
            texts
                .filter(|(key, _)| !matches!(*key, "body" | "set"))
                .for_each(|(key, value)| note_odd_texts(value, at.key(key), report));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Tagged(_) => {}
    }
}

/// Returns the schema's name of the value's type; empty for types that the schema never allows.
fn type_name(value: &Value) -> &'static str {
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
