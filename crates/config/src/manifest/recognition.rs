//! Recognition of configurations among the values of a ConfigMap.
//!
//! A release has ConfigMaps of other programs, too. What is clearly a configuration is checked anywhere; what only
//! resembles one is checked beside another configuration.

use crate::schema;
use weir_yaml::{self as yaml, Dialect, Node, NodeValue};

/// Names by which a value is taken for a configuration even if it is not valid YAML.
const CONFIG_NAMES: [&str; 2] = ["weir.yaml", "weir.yml"];
/// Number of known keys by which a value is taken for a configuration in any ConfigMap.
const LIKELY_KEY_COUNT: usize = 2;
/// Maximum number of keys of a value that are compared with the known ones.
const MAX_COMPARED_KEYS: usize = 1000;

/// How certain it is that a value is a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recognition {
    /// It has the name of one, or the keys that it needs.
    Certain,
    /// It has several keys of a configuration, perhaps misspelt.
    Likely,
    /// It has a key of a configuration, perhaps misspelt, or a name that ends in `.yaml` and no valid YAML.
    BesideConfig,
    Other,
}

/// Returns whether the value `text` of the key `name` is a configuration.
pub(super) fn recognise(name: &str, text: &str) -> Recognition {
    if is_usual_name(name) {
        return Recognition::Certain;
    }
    let is_yaml_name = name.ends_with(".yaml") || name.ends_with(".yml");
    match yaml::parse_stream(text, Dialect::Core) {
        Ok(documents) => documents.first().map_or(Recognition::Other, recognise_document),
        Err(_) if !is_yaml_name => Recognition::Other,
        Err(_) => {
            let keys = text.lines().filter_map(|line| line.split_once(':')).map(|(key, _)| key);
            match count_known_keys(keys) {
                LIKELY_KEY_COUNT.. => Recognition::Likely,
                _ => Recognition::BesideConfig,
            }
        }
    }
}

/// Whether it is the usual name of a configuration.
pub(super) fn is_usual_name(name: &str) -> bool {
    CONFIG_NAMES.contains(&name)
}

fn recognise_document(document: &Node) -> Recognition {
    let NodeValue::Map(map) = &document.value else { return Recognition::Other };
    let has = |key: &str| map.get_key_value(key).is_some();
    let has_upstream = has("upstream") || has("upstreams");
    let is_certain = has("listeners") && (has_upstream || has("config"))
        || has("rls") && has("rules")
        || has_upstream && has("rules");
    let keys = map.entries().iter().filter_map(|(key, _)| key.scalar_text()).map(|key| &**key);
    match count_known_keys(keys) {
        _ if is_certain => Recognition::Certain,
        LIKELY_KEY_COUNT.. => Recognition::Likely,
        1 => Recognition::BesideConfig,
        0 => Recognition::Other,
    }
}

/// Returns the number of different keys of a configuration that are meant.
fn count_known_keys<'k>(keys: impl Iterator<Item = &'k str>) -> usize {
    let Some(known) = schema::schema().get("properties").and_then(|keys| keys.as_object()) else { return 0 };
    let mut meant: Vec<&str> = keys
        .take(MAX_COMPARED_KEYS)
        .filter_map(|key| known.keys().find(|known| is_meant(key, known)).map(String::as_str))
        .collect();
    meant.sort_unstable();
    meant.dedup();
    meant.len()
}

/// Whether a key is `known`, or differs from it in one letter of four.
fn is_meant(key: &str, known: &str) -> bool {
    strsim::damerau_levenshtein(key, known) <= known.len() / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_keys_of_a_configuration_are_recognised() {
        for (name, text, expected) in [
            ("weir.yaml", "a: [", Recognition::Certain),
            ("a", "listeners: x\nupstream: y\n", Recognition::Certain),
            ("a", "listners: x\nupstream: y\n", Recognition::Likely),
            ("edge.yaml", "listeners: x\nrules: [\n", Recognition::Likely),
            ("edge.yaml", "listners: x\n", Recognition::BesideConfig),
            ("edge.yaml", "a: [\n", Recognition::BesideConfig),
            ("nginx.conf", "a: [\n", Recognition::Other),
            ("rules.yaml", "groups: []\n", Recognition::Other),
            ("edge.yaml", "domain: edge\ndescriptors: []\n", Recognition::Other),
            ("keys.yaml", "8c1f: pro\n", Recognition::Other),
            ("jobs.yaml", "a: 1\n---\nb: 2\n", Recognition::Other),
        ] {
            assert_eq!(recognise(name, text), expected, "{name}: {text}");
        }
    }
}
