//! The texts that make up a configuration: one file, or a bootstrap and a document fetched over HTTP.
//!
//! The top-level keys of both are merged; each key must be in only one of them. Problems are reported with
//! the text that contains them.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::Path;

use serde_yaml::Value;

use super::config_path::ConfigPath;
use super::diagnostic::{Diagnostic, Diagnostics, ValueError};
use super::fragments;
use super::positions::{SourceText, SourceTexts};
use super::schema::schema;
use super::tree::{self, MergedTexts, ParsedText as ParseResult};
use crate::central::document::FetchedDocument;
use weir_yaml::Position;

/// The key that marks a bootstrap.
pub(super) const CENTRAL_KEY: &str = "config";

/// What a file is combined with.
#[derive(Clone, Copy, Debug)]
pub(super) enum RestOfConfig<'a> {
    /// Nothing, or a rest that is not available: a bootstrap is checked by itself.
    Unavailable,
    /// Nothing: the file is the whole configuration of the process.
    Empty,
    Document(&'a FetchedDocument),
}

/// Parses `text`, the content of `file`, and merges it with the rest.
pub(super) fn merge_texts<'a>(
    text: &str,
    file: &'a Path,
    rest: RestOfConfig<'a>,
) -> Result<MergedTexts<'a>, Vec<Diagnostic>> {
    if fragments::is_folder(text) {
        let merged = fragments::merge(text, file)?;
        return match (merged.value.get(CENTRAL_KEY), rest) {
            (None, RestOfConfig::Unavailable | RestOfConfig::Empty) => Ok(merged),
            _ => Err(vec![Diagnostic::for_file(file, "a folder cannot be completed by a fetched document")]),
        };
    }
    let base = tree::parse(text, file);
    let RestOfConfig::Document(document) = rest else {
        let ParseResult { value, positions } = base?;
        return Ok(MergedTexts {
            value,
            texts: SourceTexts::single(file, positions),
            misplaced_keys: Vec::new(),
        });
    };
    let name = Path::new(&*document.url);
    match (base, tree::parse(&document.text, name)) {
        (Ok(base), Ok(rest)) => Ok(merge_parsed(file, base, name, rest)),
        (base, rest) => Err([base.err(), rest.err()].into_iter().flatten().flatten().collect()),
    }
}

fn merge_parsed<'a>(file: &'a Path, base: ParseResult, name: &'a Path, rest: ParseResult) -> MergedTexts<'a> {
    let mut value = base.value;
    let Some(keys) = value.as_mapping_mut() else {
        return MergedTexts {
            value,
            texts: SourceTexts::single(file, base.positions),
            misplaced_keys: Vec::new(),
        };
    };
    let base_keys = keys.keys().filter_map(Value::as_str).chain([CENTRAL_KEY]);
    let base_keys: HashSet<String> = base_keys.map(ToOwned::to_owned).collect();
    let mut misplaced = Vec::new();
    let problem = |at: Position, path: &str, error: ValueError| Diagnostic {
        line: at.line,
        column: at.column,
        path: path.to_owned(),
        hint: error.hint,
        ..Diagnostic::for_file(name, error.message)
    };
    let Value::Mapping(others) = rest.value else {
        misplaced.push(problem(
            Position::START,
            "",
            ValueError::new("expected a map with keys such as `rules`"),
        ));
        return MergedTexts {
            value,
            texts: SourceTexts::single(file, base.positions),
            misplaced_keys: misplaced,
        };
    };
    for (key, other) in others {
        let Some(key) = key.as_str().filter(|key| base_keys.contains(*key)) else {
            keys.insert(key, other);
            continue;
        };
        let error = if key == CENTRAL_KEY {
            ValueError::new("`config` is not allowed in a fetched document")
                .with_hint(format!("set it only in {}", file.display()))
        } else {
            let at = base.positions.key_position(ConfigPath::ROOT.key(key));
            ValueError::new(format!("duplicate key, also in {}:{}:{}", file.display(), at.line, at.column))
                .with_hint("write each top-level key in only one of the two")
        };
        misplaced.push(problem(rest.positions.key_position(ConfigPath::ROOT.key(key)), key, error));
    }
    let base = SourceText { name: Cow::Borrowed(file), positions: base.positions };
    let rest = SourceText { name: Cow::Borrowed(name), positions: rest.positions };
    let texts = SourceTexts::with_rest(base, base_keys, rest);
    MergedTexts { value, texts, misplaced_keys: misplaced }
}

/// Reports a bootstrap without its rest, and a rest without its bootstrap. Keys that may be in a rest that is
/// not available are not reported as missing.
pub(super) fn check_bootstrap(value: &Value, rest: RestOfConfig<'_>, report: &mut Diagnostics<'_>) {
    let central = ConfigPath::ROOT.key(CENTRAL_KEY);
    match (value.get(CENTRAL_KEY), rest) {
        (Some(_), RestOfConfig::Empty) => {
            let error = ValueError::new("takes effect only at startup");
            report.add_key_error(
                central,
                error.with_hint("send SIGUSR2 to fetch the rest of the configuration"),
            );
        }
        (None, RestOfConfig::Document(document)) => {
            let error = ValueError::new(format!(
                "missing, the rest of the configuration comes from {}",
                document.url
            ));
            report.add_key_error(central, error.with_hint("send SIGUSR2 to run without it"));
        }
        (Some(_), RestOfConfig::Unavailable) => {
            let known = schema().get("properties").and_then(serde_json::Value::as_object);
            let absent =
                known.into_iter().flat_map(|known| known.keys()).filter(|key| value.get(key).is_none());
            absent.for_each(|key| report.mark_reported(ConfigPath::ROOT.key(key)));
            report.add_note(central, "only this file is checked, not the fetched document");
        }
        (Some(_), RestOfConfig::Document(_)) | (None, RestOfConfig::Unavailable | RestOfConfig::Empty) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::central::document::Validators;
    use crate::{Config, from_bootstrap_and_document, from_text};

    const BASE: &str = "config: { http: http://h/w.yaml }\nlisteners: 127.0.0.1:0\nupstream: echo\n";

    fn load(base: &str, rest: Option<&str>) -> Result<Config, Vec<String>> {
        let document = rest.map(|text| FetchedDocument {
            text: text.into(),
            url: "http://h/w.yaml".into(),
            validators: Validators::default(),
        });
        let file = Path::new("weir.yaml");
        let loaded = match document {
            None => from_text(base, file, &|_| None),
            Some(document) => from_bootstrap_and_document(base, file, &document),
        };
        loaded.map_err(|problems| problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn bootstrap_and_fetched_document_are_merged() {
        let config = load(BASE, Some("rules: [{ name: a, limit: 1/s }]\nworkers: 3\n")).unwrap();
        assert_eq!((config.policy.rules.len(), config.workers.get(), config.listeners.len()), (1, 3, 1));
    }

    #[test]
    fn errors_name_the_text_that_contains_them() {
        let problems = load(&BASE.replace("127.0.0.1:0", "here"), Some("\nrules: [{ name: a, limit: 1/x }]"))
            .unwrap_err();
        assert!(
            problems[0].starts_with("http://h/w.yaml:2:27: rules[0].limit: unknown unit"),
            "{problems:?}"
        );
        assert!(problems[1].starts_with("weir.yaml:2:12: listeners: "), "{problems:?}");
        let missing = load(BASE, Some("workers: 1")).unwrap_err();
        assert_eq!(missing, ["http://h/w.yaml:1:1: rules: missing, `rules` is required"]);
        let unknown = load(BASE, Some("rules: []\nworker: 1")).unwrap_err();
        assert_eq!(unknown, ["http://h/w.yaml:2:1: worker: unknown key `worker` (did you mean `workers`?)"]);
        let syntax = load("config: [", Some("rules: [")).unwrap_err();
        assert!(
            syntax[0].starts_with("weir.yaml:2:1: not") && syntax[1].starts_with("http://h/w.yaml:2:1: not"),
            "{syntax:?}"
        );
    }

    #[test]
    fn key_in_bootstrap_and_document_is_an_error() {
        let problems =
            load(BASE, Some("rules: []\nupstream: echo\nconfig: { http: http://h/ }\n")).unwrap_err();
        assert_eq!(
            problems,
            [
                "http://h/w.yaml:2:1: upstream: duplicate key, also in weir.yaml:3:1 \
                 (write each top-level key in only one of the two)",
                "http://h/w.yaml:3:1: config: `config` is not allowed in a fetched document \
                 (set it only in weir.yaml)"
            ]
        );
        assert_eq!(
            load(BASE, Some("- rules")).unwrap_err()[0],
            "http://h/w.yaml:1:1: expected a map with keys such as `rules`"
        );
    }

    #[test]
    fn bootstrap_alone_is_checked_without_the_document() {
        let said = |base: &str| match load(base, None) {
            Ok(config) => config.notices.iter().map(ToString::to_string).collect(),
            Err(problems) => problems,
        };
        let note = "weir.yaml:1:9: config: note: only this file is checked, not the fetched document";
        assert_eq!(said("config: { http: http://h/ }"), [note]);
        assert_eq!(said(BASE), [note]);
        let rules = "rules: [{ name: a, limit: 1/s, scope: shared, match: { plan: pro, country: DE }, key: [{ jwt: sub }], on_missing: skip }]";
        assert_eq!(said(&format!("{BASE}{rules}")), [note], "the fetched document may add them");
        assert!(said(&BASE.replace("echo", "[")).len() == 1);
    }
}
