//! The configuration reference in docs/reference: its key tables are generated from the JSON Schema. So the schema, the
//! documentation and the defaults have one source, the doc comments of `crates/config/src/raw`.
//!
//! A table is enclosed by `<!-- keys: NAME -->` and `<!-- end -->`. Its first column selects the keys and their order;
//! all other cells are generated. `WEIR_BLESS=1 cargo nextest run -E 'test(reference::)'` writes them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;
use std::{env, fs};

use serde_json::Value;
use weir_config as config;

use super::documents::{inline_code, table_rows};
use super::source::{display_path, files, read_text};

const BEGIN: &str = "<!-- keys:";
const END: &str = "<!-- end -->";

/// A configuration key, from the JSON Schema.
#[derive(Clone, Debug, Default)]
struct SchemaKey {
    default: Option<String>,
    description: String,
    is_required: bool,
}

static SCHEMA: LazyLock<Value> = LazyLock::new(config::schema);

impl SchemaKey {
    fn new(parent: &Value, name: &str, property: &Value) -> Self {
        let text = |name| property.get(name).and_then(Value::as_str);
        let required = parent.get("required").and_then(Value::as_array);
        Self {
            default: property.get("default").map(|default| match default {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            }),
            description: text("markdownDescription")
                .or_else(|| text("description"))
                .unwrap_or_default()
                .replace('\n', " "),
            is_required: required.is_some_and(|required| required.iter().any(|other| other == name)),
        }
    }

    /// Returns the cells for the default and the description. A default that is not a fixed value is the last
    /// sentence of the description.
    fn cells(&self) -> (String, String) {
        let described = self.description.rsplit_once(" Default: ");
        let described = described.and_then(|(meaning, default)| Some((meaning, default.strip_suffix('.')?)));
        let (default, meaning) = match (&self.default, described) {
            (Some(default), _) => (format!("`{default}`"), &*self.description),
            (None, Some((meaning, default))) => (default.to_owned(), meaning),
            (None, None) if self.is_required => ("required".to_owned(), &*self.description),
            (None, None) => ("–".to_owned(), &*self.description),
        };
        (default.replace('|', "\\|"), meaning.replace('|', "\\|"))
    }
}

/// Returns every key by its path, such as `rules[].on_limit.status`.
fn schema_keys() -> BTreeMap<String, SchemaKey> {
    let mut keys = BTreeMap::new();
    collect_keys(&SCHEMA, "", &mut keys);
    keys
}

fn collect_keys(schema: &Value, path: &str, keys: &mut BTreeMap<String, SchemaKey>) {
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let target = SCHEMA.pointer(reference.trim_start_matches('#'));
        collect_keys(target.unwrap_or_else(|| panic!("unresolved reference {reference}")), path, keys);
    }
    for choice in ["anyOf", "oneOf"].into_iter().filter_map(|choice| schema.get(choice)?.as_array()).flatten()
    {
        collect_keys(choice, path, keys);
    }
    if let Some(items) = schema.get("items") {
        collect_keys(items, &format!("{}[]", path.trim_end_matches("[]")), keys);
    }
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let known = keys.entry(path.clone()).or_default();
        if known.description.is_empty() {
            *known = SchemaKey::new(schema, name, property);
        }
        collect_keys(property, &path, keys);
    }
}

/// Returns the canonical path of a key. A list of one item may be written as the item, so `listeners.address` and
/// `listeners[].address` are one key. The keys of `upstream` and of each entry of `upstreams` are the same.
fn normalised_path(path: &str) -> String {
    path.replace("[]", "").replace("upstreams.", "upstream.")
}

/// Returns the keys that need a row. The rows of `match` also document `except` and the `match` of an upstream or a class, and
/// those of `key` the key of flows and classes, and `distinct`.
fn described_keys() -> BTreeMap<String, SchemaKey> {
    let stands_for_itself = |path: &str| {
        // `from` is an error in a list of limits, so the map has no meaning there.
        const DOCUMENTED_ELSEWHERE: [&str; 8] = [
            "rules.except.",
            "upstream.match.",
            "classes.match.",
            "classes.key.",
            "rules.distinct.",
            "rules.throttle.wait.order.fair.",
            "rules.limits.limit.",
            "rules.key.client_ip.limits.limit.",
        ];
        !DOCUMENTED_ELSEWHERE.iter().any(|start| path.starts_with(start))
    };
    let keys = schema_keys().into_iter().map(|(path, key)| (normalised_path(&path), key));
    keys.filter(|(path, _)| stands_for_itself(path)).collect()
}

/// Returns a page with generated tables, and the keys in them.
fn generate_tables(page: &str, text: &str, keys: &BTreeMap<String, SchemaKey>) -> (String, Vec<String>) {
    let (mut written, mut paths, mut is_table) = (String::new(), Vec::new(), false);
    for line in text.lines() {
        is_table = line.starts_with(BEGIN) || is_table && line != END;
        let path = line.split('|').nth(1).and_then(|cell| inline_code(cell.trim())).filter(|_| is_table);
        match path {
            Some(path) => {
                let key = keys
                    .get(&normalised_path(path))
                    .unwrap_or_else(|| panic!("{page}: unknown key `{path}`"));
                let (default, meaning) = key.cells();
                written += &format!("| `{path}` | {default} | {meaning} |\n");
                paths.push(normalised_path(path));
            }
            None => written += &format!("{line}\n"),
        }
    }
    assert!(!is_table, "{page}: table without {END}");
    (written, paths)
}

/// Returns the documented default of each key.
pub(super) fn documented_defaults() -> BTreeMap<String, String> {
    let tables = files("docs/reference", "md").into_iter().flat_map(|page| table_rows(&read_text(&page)));
    let default = |row: Vec<String>| {
        Some((normalised_path(inline_code(row.first()?)?), inline_code(row.get(1)?)?.to_owned()))
    };
    tables.filter_map(default).collect()
}

#[test]
fn tables_of_the_reference_are_generated_from_the_schema() {
    let keys = described_keys();
    let mut missing: Vec<_> = keys.keys().cloned().collect();
    for path in files("docs/reference", "md") {
        let text = read_text(&path);
        let (written, paths) = generate_tables(&display_path(&path), &text, &keys);
        for path in paths {
            let position = missing.iter().position(|other| *other == path);
            missing.swap_remove(position.unwrap_or_else(|| panic!("`{path}` has two rows")));
        }
        if env::var_os("WEIR_BLESS").is_some() {
            fs::write(&path, &written).unwrap();
        }
        let differs = text.lines().zip(written.lines()).find(|(old, new)| old != new);
        let is_blessed = read_text(Path::new(&path)) == written;
        assert!(is_blessed, "{} is not up to date, run with WEIR_BLESS=1: {differs:?}", display_path(&path));
    }
    assert!(missing.is_empty(), "keys without a row in docs/reference: {missing:?}");
}

mod parser_tests {
    use super::*;

    #[test]
    fn textual_default_is_split_from_the_description() {
        let key = |default: Option<&str>, description: &str, is_required| SchemaKey {
            default: default.map(ToOwned::to_owned),
            description: description.to_owned(),
            is_required,
        };
        let cells = |key: SchemaKey| key.cells();
        assert_eq!(cells(key(Some("5s"), "A time.", false)), ("`5s`".into(), "A time.".into()));
        assert_eq!(cells(key(None, "A. Default: all of b.", false)), ("all of b".into(), "A.".into()));
        assert_eq!(cells(key(None, "A|b.", true)), ("required".into(), "A\\|b.".into()));
        assert_eq!(cells(key(None, "A.", false)), ("–".into(), "A.".into()));
    }

    #[test]
    fn generation_replaces_only_the_cells_of_key_tables() {
        let keys = described_keys();
        let text =
            "# T\n| `a` | b |\n<!-- keys: x -->\n| key |\n| `rules[].name` | wrong | old |\n<!-- end -->\n";
        let (written, paths) = generate_tables("x.md", text, &keys);
        assert_eq!(paths, ["rules.name"]);
        assert!(
            written.starts_with("# T\n| `a` | b |\n<!-- keys: x -->\n| key |\n| `rules[].name` | ")
                && !written.contains("wrong")
        );
    }

    #[test]
    fn schema_keys_include_those_of_lists_and_maps() {
        let keys = schema_keys();
        let default = |key: &str| keys.get(key).unwrap_or_else(|| panic!("no {key}")).default.as_deref();
        assert_eq!(default("listeners[].address"), None);
        assert_eq!(default("rules[].on_limit.status"), Some("429"));
    }
}
