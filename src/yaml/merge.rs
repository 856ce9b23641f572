//! Merge keys and duplicate keys, as in Go's yaml.v2: the last one counts.

use std::collections::HashSet;

use super::{Kind, Map, Node, Problem, Scalar, Value};

/// Returns the map with merge keys (`<<`) expanded and each key once.
pub(super) fn merged(map: Map) -> Result<Map, Problem> {
    let is_merge = |key: &Node| matches!(&key.value, Value::Scalar(Scalar { kind: Kind::Merge, .. }));
    if !map.entries.iter().any(|(key, _)| is_merge(key)) {
        return Ok(last_of_each(map));
    }
    let problem = || Problem::Syntax("map merge requires map or sequence of maps as the value".to_owned());
    let mut all = Map::default();
    let add = |all: &mut Map, map: &Map| {
        map.entries.iter().cloned().for_each(|(key, value)| all.push(key, value));
    };
    for (key, value) in map.entries {
        match &value.value {
            _ if !is_merge(&key) => all.push(key, value),
            Value::Map(map) => add(&mut all, map),
            // The first map of a list takes precedence, so it is added last.
            Value::List(maps) => {
                for map in maps.iter().rev() {
                    let Value::Map(map) = &map.value else { return Err(problem()) };
                    add(&mut all, map);
                }
            }
            Value::Scalar(_) | Value::Tagged(_) => return Err(problem()),
        }
    }
    Ok(last_of_each(all))
}

/// Returns the map with each text key once, with its last value.
fn last_of_each(map: Map) -> Map {
    let repeats = |(index, (key, _)): (usize, &(Node, Node))| {
        key.as_text().is_some_and(|text| {
            map.entry(text).is_some_and(|first| !std::ptr::eq(first, &map.entries[index]))
        })
    };
    if !map.entries.iter().enumerate().any(repeats) {
        return map;
    }
    let mut seen = HashSet::new();
    let is_last = |(key, _): &&(Node, Node)| key.as_text().is_none_or(|text| seen.insert(text.to_owned()));
    let mut last: Vec<_> = map.entries.iter().rev().filter(is_last).cloned().collect();
    last.reverse();
    let mut kept = Map::default();
    last.into_iter().for_each(|(key, value)| kept.push(key, value));
    kept
}
