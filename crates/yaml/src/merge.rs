//! Merge keys and duplicate keys, as in Go's yaml.v2: the last one counts.

use std::collections::HashSet;

use super::{Map, Node, NodeValue, Scalar, ScalarKind, YamlErrorKind};

/// Returns the map with merge keys (`<<`) expanded and each key once.
pub(super) fn expand_merge_keys(map: Map) -> Result<Map, YamlErrorKind> {
    let is_merge =
        |key: &Node| matches!(&key.value, NodeValue::Scalar(Scalar { kind: ScalarKind::Merge, .. }));
    if !map.entries.iter().any(|(key, _)| is_merge(key)) {
        return Ok(keep_last_of_duplicates(map));
    }
    let problem =
        || YamlErrorKind::Syntax("map merge requires map or sequence of maps as the value".to_owned());
    let mut all = Map::default();
    let add = |all: &mut Map, map: &Map| {
        map.entries.iter().cloned().for_each(|(key, value)| all.push(key, value));
    };
    for (key, value) in map.entries {
        match &value.value {
            _ if !is_merge(&key) => all.push(key, value),
            NodeValue::Map(map) => add(&mut all, map),
            // The first map of a list takes precedence, so it is added last.
            NodeValue::List(maps) => {
                for map in maps.iter().rev() {
                    let NodeValue::Map(map) = &map.value else { return Err(problem()) };
                    add(&mut all, map);
                }
            }
            NodeValue::Scalar(_) | NodeValue::Tagged(_) => return Err(problem()),
        }
    }
    Ok(keep_last_of_duplicates(all))
}

/// Returns the map with each text key once, with its last value.
fn keep_last_of_duplicates(map: Map) -> Map {
    let repeats = |(index, (key, _)): (usize, &(Node, Node))| {
        key.as_text().is_some_and(|text| {
            map.get_key_value(text).is_some_and(|first| !std::ptr::eq(first, &map.entries[index]))
        })
    };
    if !map.entries.iter().enumerate().any(repeats) {
        return map;
    }
    let mut seen = HashSet::new();
    let is_last = |(key, _): &&(Node, Node)| key.as_text().is_none_or(|text| seen.insert(text.to_owned()));
    let mut last: Vec<_> = map.entries.iter().rev().filter(is_last).cloned().collect();
    last.reverse();
    let mut unique = Map::default();
    last.into_iter().for_each(|(key, value)| unique.push(key, value));
    unique
}
