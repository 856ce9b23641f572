//! The JSON Schema of the configuration: made from [`super::raw`], given to editors, and what
//! [`super::shape`] checks files against.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::raw;

static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<raw::Root>().to_value();
    forbid_null(&mut schema);
    schema
});

/// The schema, as `weir schema` prints it.
pub fn schema() -> &'static Value {
    &SCHEMA
}

/// An optional key may be left out, but where it stands it says something: `burst:` with nothing behind it is
/// a slip, or the end of a file that was cut off.
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
                merge_only(object);
            }
            object.values_mut().for_each(forbid_null);
        }
        Value::Array(items) => items.iter_mut().for_each(forbid_null),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A choice of one is none.
fn merge_only(object: &mut Map<String, Value>) {
    let Some(Value::Array(any)) = object.get("anyOf") else { return };
    if let [Value::Object(only)] = any.as_slice() {
        let only = only.clone();
        object.remove("anyOf");
        for (key, value) in only {
            object.entry(key).or_insert(value);
        }
    }
}
