//! Nothing is dropped silently: a change of any leaf of an imported file changes the rules or the comments.

use std::fs;
use std::path::Path;

use regex::Regex;
use serde_yaml::Value;

use crate::imported::{import_sample, samples};

/// A step to a leaf.
#[derive(Clone, Debug)]
enum Step {
    Key(Value),
    Item(usize),
}

fn leaves(value: &Value, path: &mut Vec<Step>, found: &mut Vec<Vec<Step>>) {
    match value {
        Value::Mapping(map) if !map.is_empty() => {
            for (key, value) in map {
                path.push(Step::Key(key.clone()));
                leaves(value, path, found);
                path.pop();
            }
        }
        Value::Sequence(items) if !items.is_empty() => {
            for (index, value) in items.iter().enumerate() {
                path.push(Step::Item(index));
                leaves(value, path, found);
                path.pop();
            }
        }
        _ => found.push(path.clone()),
    }
}

/// Returns a document without a leaf, or with `change` made to it.
fn edited(value: &Value, path: &[Step], change: Option<&dyn Fn(&Value) -> Value>) -> Value {
    let Some((step, rest)) = path.split_first() else {
        return change.map_or(Value::Null, |change| change(value));
    };
    let removes = rest.is_empty() && change.is_none();
    match (step, value) {
        (Step::Key(wanted), Value::Mapping(map)) => {
            let kept = map.iter().filter(|(key, _)| !(removes && *key == wanted));
            let entry = |(key, inner): (&Value, &Value)| {
                (key.clone(), if key == wanted { edited(inner, rest, change) } else { inner.clone() })
            };
            Value::Mapping(kept.map(entry).collect())
        }
        (Step::Item(wanted), Value::Sequence(items)) => {
            let kept = items.iter().enumerate().filter(|(index, _)| !(removes && index == wanted));
            let item = |(index, inner): (usize, &Value)| {
                if index == *wanted { edited(inner, rest, change) } else { inner.clone() }
            };
            Value::Sequence(kept.map(item).collect())
        }
        _ => panic!("a path into {value:?}"),
    }
}

fn other_text(value: &Value) -> Value {
    match value {
        Value::Bool(flag) => Value::Bool(!flag),
        Value::Number(number) => Value::from(number.as_u64().unwrap_or(1) + 1),
        Value::String(text) => Value::String(format!("{text}x")),
        Value::Null | Value::Mapping(_) | Value::Sequence(_) | Value::Tagged(_) => {
            Value::String("x".to_owned())
        }
    }
}

/// Returns the rules with all comments, without positions, which any change moves.
fn outcome(name: &str, text: &str) -> String {
    let said = match import_sample(name, text) {
        Ok(imported) => {
            assert_valid(&imported.rules, text);
            imported.rules
        }
        Err(problems) => problems.iter().map(|problem| format!("{problem}\n")).collect(),
    };
    let positions = Regex::new(r"[\w./#-]+:\d+(:\d+)?:").expect("a valid test");
    let servers = Regex::new(r"(server in) [\w./-]+:\d+").expect("a valid test");
    servers.replace_all(&positions.replace_all(&said, ""), "$1").into_owned()
}

fn assert_valid(rules: &str, input: &str) {
    let configuration = format!("listeners: 127.0.0.1:0\nupstream: echo\n{rules}");
    if let Err(problems) = weir_config::from_text(&configuration, Path::new("w"), &|_| None) {
        panic!("{problems:?}\n{rules}\nof\n{input}");
    }
}

fn documents(text: &str) -> Vec<Value> {
    use serde::Deserialize as _;
    serde_yaml::Deserializer::from_str(text)
        .map(|one| Value::deserialize(one).expect("a valid test"))
        .collect()
}

fn as_text(documents: &[Value]) -> String {
    let texts: Vec<String> =
        documents.iter().map(|one| serde_yaml::to_string(one).expect("a valid test")).collect();
    texts.join("---\n")
}

/// Fails if a change of a leaf of these samples has no effect.
#[track_caller]
fn assert_no_leaf_is_silent(suffixes: &[&str]) {
    let mut silent = Vec::new();
    for path in samples(suffixes) {
        let name = path.file_name().expect("a valid test").to_str().expect("a valid test");
        let all = documents(&fs::read_to_string(&path).expect("a valid test"));
        let before = outcome(name, &as_text(&all));
        for (index, document) in all.iter().enumerate() {
            let mut found = Vec::new();
            leaves(document, &mut Vec::new(), &mut found);
            for leaf in found {
                for (what, change) in
                    [("deleted", None), ("changed", Some(&other_text as &dyn Fn(&Value) -> Value))]
                {
                    let mut mutated = all.clone();
                    mutated[index] = edited(document, &leaf, change);
                    if outcome(name, &as_text(&mutated)) == before {
                        silent.push(format!("{name}: document {index}: {what}: {leaf:?}"));
                    }
                }
            }
        }
    }
    assert!(silent.is_empty(), "{} without effect:\n{}", silent.len(), silent.join("\n"));
}

#[test]
fn every_leaf_of_an_imported_file_of_envoy_is_in_the_rules_or_the_comments() {
    assert_no_leaf_is_silent(&[".envoy.yaml", ".ratelimit.yaml", ".local.json"]);
}

#[test]
fn every_leaf_of_an_imported_policy_of_routes_is_in_the_rules_or_the_comments() {
    assert_no_leaf_is_silent(&[".envoy-gateway.yaml", ".kuadrant.yaml"]);
}

#[test]
fn every_leaf_of_other_imported_objects_is_in_the_rules_or_the_comments() {
    assert_no_leaf_is_silent(&[".ingress-nginx.yaml", ".linkerd.yaml", ".traefik.yaml"]);
}

/// Returns the ranges of all words of nginx's configuration, apart from comments.
fn nginx_words(text: &str) -> Vec<std::ops::Range<usize>> {
    let word = Regex::new("(?m)^\\s*#[^\n]*|\"[^\"\n]*\"|\\$\\{\\w+\\}|[^\\s;{}\"#]+").expect("a valid test");
    let is_comment = |text: &str| text.trim_start().starts_with('#');
    word.find_iter(text).filter(|found| !is_comment(found.as_str())).map(|found| found.range()).collect()
}

#[test]
fn every_word_of_an_imported_nginx_file_is_in_the_rules_or_the_comments() {
    let mut silent = Vec::new();
    for path in samples(&[".nginx.conf"]) {
        let name = path.file_name().expect("a valid test").to_str().expect("a valid test");
        let text = fs::read_to_string(&path).expect("a valid test");
        let before = outcome(name, &text);
        for range in nginx_words(&text) {
            let word = &text[range.clone()];
            // What `nginx -T` writes on standard error is no part of the configuration.
            if text[..range.start].rsplit('\n').next().is_some_and(|line| line.starts_with("nginx: "))
                || word == "nginx:"
            {
                continue;
            }
            let changed = match word.strip_suffix('"') {
                Some(quoted) => format!("{quoted}x\""),
                None => format!("{word}x"),
            };
            for (what, new) in [("deleted", String::new()), ("changed", changed)] {
                let mutated = format!("{}{new}{}", &text[..range.start], &text[range.end..]);
                if outcome(name, &mutated) == before {
                    let line = text[..range.start].lines().count();
                    silent.push(format!("{name}:{line}: {what}: {word}"));
                }
            }
        }
    }
    assert!(silent.is_empty(), "{} without effect:\n{}", silent.len(), silent.join("\n"));
}
