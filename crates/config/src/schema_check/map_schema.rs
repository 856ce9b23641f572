//! The schema of a map.

use foldhash::HashMap;
use serde_json::Value as Schema;

use super::alternatives::{Alternatives, resolve_reference};

/// The parts of a map's schema that are compared with each map.
#[derive(Debug)]
pub(super) struct MapSchema<'a> {
    schema: &'a Schema,
    /// Schemas of the known keys.
    pub(super) properties: HashMap<&'a str, &'a Schema>,
    /// Schema of all other keys; `None` if there may be none.
    pub(super) others: Option<&'a Schema>,
    /// Keys that must be present.
    pub(super) required: Vec<&'a str>,
    /// Minimum number of keys.
    pub(super) min_keys: Option<u64>,
    /// Maximum number of keys.
    pub(super) max_keys: Option<u64>,
}

impl<'a> MapSchema<'a> {
    pub(super) fn new(schema: &'a Schema) -> Self {
        let count = |name| schema.get(name).and_then(Schema::as_u64);
        let required = schema.get("required").and_then(Schema::as_array);
        Self {
            schema,
            properties: properties(schema).collect(),
            others: schema.get("additionalProperties").filter(|others| !others.is_boolean()),
            required: required.into_iter().flatten().filter_map(Schema::as_str).collect(),
            min_keys: count("minProperties"),
            max_keys: count("maxProperties"),
        }
    }

    /// Yields the known keys, in the order of the schema.
    pub(super) fn property_names(&self) -> impl Iterator<Item = &'a str> + Clone {
        properties(self.schema).map(|(key, _)| key)
    }

    /// Returns the one key here under which `key` is known, if there is exactly one.
    pub(super) fn parent_of_key(&self, key: &str) -> Option<&'a str> {
        let mut parents = properties(self.schema).filter(|(_, schema)| {
            let object = Alternatives::from_schema(resolve_reference(schema)).of_type("object");
            object.is_some_and(|object| properties(object).any(|(known, _)| known == key))
        });
        match (parents.next(), parents.next()) {
            (Some((parent, _)), None) => Some(parent),
            _ => None,
        }
    }
}

fn properties(schema: &Schema) -> impl Iterator<Item = (&str, &Schema)> + Clone {
    let properties = schema.get("properties").and_then(Schema::as_object);
    properties.into_iter().flatten().map(|(key, schema)| (key.as_str(), schema))
}
