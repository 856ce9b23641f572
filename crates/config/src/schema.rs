//! The JSON Schema of the configuration. Editors use it, and `schema_check` checks files against it.
//!
//! It is generated from [`super::raw`] by the tests and embedded as text, so that the program is built without the code
//! that generates it.

#[cfg(test)]
mod generated;

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::applicability;

/// A value that consists of one reference to a variable.
const VARIABLE_PATTERN: &str = r"^\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}$";

/// Identity of the schema. Resolves nowhere: editors read the copy in `config/`, or the output of `weir schema`.
const SCHEMA_ID: &str = "urn:weir:configuration";

static SCHEMA: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("schema/schema.json")).unwrap_or_default());

/// Returns the schema of values after the substitution of variables.
pub(super) fn schema() -> &'static Value {
    &SCHEMA
}

/// Returns the schema of a file, as `weir schema` prints it for editors. A variable is valid in place of a
/// number, a boolean or an enumerated word.
pub fn published_schema() -> Value {
    let mut schema = SCHEMA.clone();
    add_patterns(&mut schema);
    allow_variables(&mut schema);
    schema["$defs"]["Rule"]["allOf"] = applicability::schema_conditions();
    separate_links(&mut schema);
    schema["$id"] = SCHEMA_ID.into();
    schema["title"] = "Weir configuration".into();
    schema["description"] = "Configuration of Weir, a rate-limiting reverse proxy.".into();
    schema
}

/// Returns the schema of a file as text, as `weir schema` prints it.
pub fn schema_text() -> String {
    format!("{:#}\n", published_schema())
}

/// Adds patterns for values with units, so that editors mark `10/fortnight`. A variable is valid anywhere in them.
fn add_patterns(schema: &mut Value) {
    let unit = "(ms|s|m|min|h|d|w|(millisecond|second|minute|hour|day|week)s?)";
    let period = "(ms|s|m|min|h|d|w|month|year|(millisecond|second|minute|hour|day|week|month|year)s?)";
    let patterns = [
        ("Duration", format!(r"^\s*[0-9]+\s*{unit}\s*$|\$\{{")),
        ("Rate", format!(r"^\s*[0-9]+(\s*/\s*|\s+per\s+)([0-9]+\s*)?{period}\s*$|\$\{{")),
        ("Size", r"^\s*[0-9]+\s*(B|KiB|MiB|GiB)\s*$|\$\{".to_owned()),
        ("Percentage", r"^\s*[0-9]+(\.[0-9]{1,2})?\s*%\s*$|\$\{".to_owned()),
        ("ThrottleWords", r"^\s*(hard|shadow|(soft|delay|elastic)\s+\S+)\s*$|\$\{".to_owned()),
        ("PathPattern", r"^[/~]|\$\{".to_owned()),
    ];
    for (name, pattern) in patterns {
        schema["$defs"][name]["pattern"] = pattern.into();
    }
}

/// Moves descriptions with links to `markdownDescription`, and removes the links from `description`: editors
/// that show plain text cannot open pages of the documentation.
fn separate_links(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            object.values_mut().for_each(separate_links);
            let linked = object
                .get("description")
                .and_then(Value::as_str)
                .filter(|text| text.contains("]("))
                .map(ToOwned::to_owned);
            if let Some(linked) = linked {
                object.insert("description".to_owned(), without_links(&linked).into());
                object.insert("markdownDescription".to_owned(), linked.into());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(separate_links),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Replaces `[text](target)` by `text`.
fn without_links(markdown: &str) -> String {
    let mut text = String::with_capacity(markdown.len());
    let mut rest = markdown;
    while let Some((before, linked)) = rest.split_once("](") {
        let Some(((before, label), (_, after))) = before.rsplit_once('[').zip(linked.split_once(')')) else {
            break;
        };
        text.extend([before, label]);
        rest = after;
    }
    text + rest
}

/// Whether the values that `schema` describes are secret.
pub(super) fn is_secret(schema: &Value) -> bool {
    schema.get("writeOnly") == Some(&Value::Bool(true))
}

/// Whether the keys of the maps that `schema` describes are secret, unless the schema itself names them.
pub(super) fn has_secret_keys(schema: &Value) -> bool {
    schema.get("propertyNames").is_some_and(is_secret)
}

fn allow_variables(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            object.values_mut().for_each(allow_variables);
            // A variable is valid under every word of an enumeration.
            if let Some(words) = object.shift_remove("oneOf") {
                object.insert("anyOf".to_owned(), words);
            }
            let kind = object.get("type").and_then(Value::as_str);
            let is_narrow = object.contains_key("enum") || object.contains_key("const");
            if matches!(kind, Some("integer" | "boolean")) || (kind == Some("string") && is_narrow) {
                let mut plain = std::mem::take(object);
                // Editors show these only at the top level of a schema.
                let shown = ["description", "default"].map(|key| (key, plain.shift_remove(key)));
                object.extend(shown.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
                object.insert(
                    "anyOf".to_owned(),
                    json!([plain, { "type": "string", "pattern": VARIABLE_PATTERN }]),
                );
            }
        }
        Value::Array(items) => items.iter_mut().for_each(allow_variables),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn embedded_schema_is_up_to_date() {
        let text = format!("{:#}\n", generated::schema());
        if std::env::var_os("WEIR_BLESS").is_some() {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/schema/schema.json");
            std::fs::write(file, &text).unwrap();
        } else {
            assert_eq!(include_str!("schema/schema.json"), text, "run with WEIR_BLESS=1");
        }
    }

    #[test]
    fn secret_keys_of_schema_match_redacted_paths() {
        assert!(has_secret_keys(&SCHEMA["$defs"]["Plans"]["properties"]["members"]));
        assert_eq!(SCHEMA.to_string().matches("propertyNames").count(), 1);
        assert_eq!(crate::raw::secret::SECRET_KEYED_MAP, "plans.members");
    }

    #[test]
    fn schema_descriptions_have_no_markdown_links() {
        assert_eq!(without_links("a [b](c.md#d) e [f](g)."), "a b e f.");
        assert_eq!(without_links("a](b) [c]"), "a](b) [c]");
        let mut linked = json!({ "description": "See [x](y.md)." });
        separate_links(&mut linked);
        assert_eq!(linked, json!({ "description": "See x.", "markdownDescription": "See [x](y.md)." }));
    }

    #[test]
    fn published_schema_has_patterns_for_values_with_units() {
        let published = published_schema();
        let is_valid = |name: &str, text: &str| {
            let pattern = published["$defs"][name]["pattern"].as_str().unwrap();
            regex::Regex::new(pattern).unwrap().is_match(text)
        };
        let rates =
            ["100/s", "10/30s", "10 / 30 seconds", "10 per minute", "1/month", "7 per 2 weeks", "${N}/s"];
        assert!(rates.iter().all(|rate| is_valid("Rate", rate)));
        assert!(!is_valid("Rate", "10/fortnight") && !is_valid("Rate", "100r/s") && !is_valid("Rate", "100"));
        assert!(
            ["0s", "250ms", "1 min", "2 weeks", "${T:-5s}"].iter().all(|text| is_valid("Duration", text))
        );
        assert!(!is_valid("Duration", "1.5s") && !is_valid("Duration", "1month"));
        assert!(is_valid("Size", "1 MiB") && !is_valid("Size", "10 MB"));
    }

    #[test]
    fn published_schema_allows_variables_for_numbers_and_enums() {
        let published = published_schema();
        let burst = &published["$defs"]["Rule"]["properties"]["burst"]["anyOf"];
        assert_eq!(burst[0]["type"], "integer");
        assert!(published["$defs"]["Rule"]["properties"]["burst"]["description"].is_string());
        assert_eq!(burst[1]["pattern"], VARIABLE_PATTERN);
        assert_eq!(published["properties"]["ietf_headers"]["anyOf"][1]["type"], "string");
        assert_eq!(published["$defs"]["Rate"]["type"], "string");
    }
}
