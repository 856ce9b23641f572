//! Dynamic metadata: what was asked, and what the rules that let it pass have to say.

use serde_json::{Map, Value, json};

use super::request::{Descriptor, Override, Request};

/// The metadata of an answer; `passed` are those of the limits that were not over, in their order.
pub(super) fn metadata<'a>(
    request: &Request,
    passed: impl Iterator<Item = &'a Map<String, Value>>,
) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("domain".to_owned(), Value::String(request.domain.clone()));
    fields.insert("descriptors".to_owned(), request.descriptors.iter().map(described).collect());
    if request.hits_addend != 0 {
        fields.insert("hitsAddend".to_owned(), request.hits_addend.into());
    }
    let mut merged = Map::new();
    passed.for_each(|metadata| merge(&mut merged, metadata));
    if !merged.is_empty() {
        fields.insert("metadata".to_owned(), Value::Object(merged));
    }
    fields
}

fn described(descriptor: &Descriptor) -> Value {
    let mut fields = Map::new();
    let entries = descriptor.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value));
    fields.insert("entries".to_owned(), entries.collect());
    if let Some(limit) = descriptor.limit {
        fields.insert("limit".to_owned(), json!(written(limit)));
    }
    if let Some(hits) = descriptor.hits_addend {
        fields.insert("hitsAddend".to_owned(), json!(hits));
    }
    Value::Object(fields)
}

/// The text form of the message, in which what is zero is left out.
fn written(limit: Override) -> String {
    let count =
        (limit.requests_per_unit > 0).then(|| format!("requests_per_unit:{}", limit.requests_per_unit));
    let unit = limit.unit.map(|unit| format!("unit:{}", unit.as_str()));
    count.into_iter().chain(unit).collect::<Vec<_>>().join(" ")
}

/// What is there already stays; maps are merged all the way down, which documents bound.
fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (None, value) => drop(into.insert(key.clone(), value.clone())),
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            (Some(_), _) => {}
        }
    }
}
