//! Generates the schema from [`crate::raw`].

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use crate::raw;

pub(super) fn schema() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<raw::Root>().to_value();
    forbid_null(&mut schema);
    schema
}

/// Rejects `null`. An optional key may be left out, but not left empty: `burst:` without a value is a
/// mistake, or the end of a truncated file.
fn forbid_null(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if let Some(Value::Array(kinds)) = object.get_mut("type") {
                kinds.retain(|kind| kind != "null");
                if let [kind] = kinds.as_slice() {
                    object["type"] = kind.clone();
                }
            }
            if let Some(Value::Array(any)) = object.get_mut("anyOf") {
                any.retain(|schema| schema.get("type").is_none_or(|kind| kind != "null"));
                inline_single_alternative(object);
            }
            object.values_mut().for_each(forbid_null);
        }
        Value::Array(items) => items.iter_mut().for_each(forbid_null),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Replaces an `anyOf` of one schema by that schema.
fn inline_single_alternative(object: &mut Map<String, Value>) {
    let Some(Value::Array(any)) = object.get("anyOf") else { return };
    if let [Value::Object(only)] = any.as_slice() {
        let only = only.clone();
        object.remove("anyOf");
        for (key, value) in only {
            object.entry(key).or_insert(value);
        }
    }
}
