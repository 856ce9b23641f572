//! The texts that make up a configuration: one file, or a bootstrap and a document fetched over HTTP.
//!
//! The top-level keys of both are merged; each key must be in only one of them. Problems are reported with
//! the text that contains them.

use std::collections::HashSet;
use std::path::Path;

use serde_yaml::Value;

use super::at::At;
use super::problem::{Fault, Problem, Report};
use super::schema::schema;
use super::tree::{self, Document as Parsed, Position, Texts};
use crate::central::document::Document;

/// The key that marks a bootstrap.
pub(super) const CENTRAL: &str = "config";

/// What a file is combined with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rest<'a> {
    /// Nothing, or a rest that is not available: a bootstrap is checked by itself.
    Unknown,
    /// Nothing: the file is the whole configuration of the process.
    Nothing,
    /// The fetched document.
    Document(&'a Document),
}

/// The merged texts.
#[derive(Debug)]
pub(super) struct Together<'a> {
    pub(super) value: Value,
    pub(super) texts: Texts<'a>,
    /// Keys that are in both texts, or in the wrong one.
    pub(super) misplaced: Vec<Problem>,
}

/// Parses `text`, the content of `file`, and merges it with the rest.
pub(super) fn together<'a>(text: &str, file: &'a Path, rest: Rest<'a>) -> Result<Together<'a>, Vec<Problem>> {
    let base = tree::parse(text, file);
    let Rest::Document(document) = rest else {
        let Parsed { value, positions } = base?;
        return Ok(Together { value, texts: Texts::one(file, positions), misplaced: Vec::new() });
    };
    let name = Path::new(&*document.url);
    match (base, tree::parse(&document.text, name)) {
        (Ok(base), Ok(rest)) => Ok(merged((file, base), (name, rest))),
        (base, rest) => Err([base.err(), rest.err()].into_iter().flatten().flatten().collect()),
    }
}

fn merged<'a>((file, base): (&'a Path, Parsed), (name, rest): (&'a Path, Parsed)) -> Together<'a> {
    let mut value = base.value;
    let Some(keys) = value.as_mapping_mut() else {
        return Together { value, texts: Texts::one(file, base.positions), misplaced: Vec::new() };
    };
    let own = keys.keys().filter_map(Value::as_str).chain([CENTRAL]);
    let own: HashSet<String> = own.map(ToOwned::to_owned).collect();
    let mut misplaced = Vec::new();
    let problem = |at: Position, path: &str, fault: Fault| Problem {
        line: at.line,
        column: at.column,
        path: path.to_owned(),
        hint: fault.hint,
        ..Problem::of_file(name, fault.message)
    };
    let Value::Mapping(others) = rest.value else {
        misplaced.push(problem(Position::START, "", Fault::new("expected a map with keys such as `rules`")));
        return Together { value, texts: Texts::one(file, base.positions), misplaced };
    };
    for (key, other) in others {
        let Some(key) = key.as_str().filter(|key| own.contains(*key)) else {
            keys.insert(key, other);
            continue;
        };
        let fault = if key == CENTRAL {
            Fault::new("`config` is not allowed in a fetched document")
                .hint(format!("set it only in {}", file.display()))
        } else {
            let at = base.positions.key(At::ROOT.key(key));
            Fault::new(format!("duplicate key, also in {}:{}:{}", file.display(), at.line, at.column))
                .hint("write each top-level key in only one of the two")
        };
        misplaced.push(problem(rest.positions.key(At::ROOT.key(key)), key, fault));
    }
    let texts = Texts::two((file, base.positions), own, (name, rest.positions));
    Together { value, texts, misplaced }
}

/// Reports a bootstrap without its rest, and a rest without its bootstrap. Keys that may be in a rest that is
/// not available are not reported as missing.
pub(super) fn check(value: &Value, rest: Rest<'_>, report: &mut Report<'_>) {
    let central = At::ROOT.key(CENTRAL);
    match (value.get(CENTRAL), rest) {
        (Some(_), Rest::Nothing) => {
            let fault = Fault::new("takes effect only at startup");
            report.key(central, fault.hint("restart to fetch the rest of the configuration"));
        }
        (None, Rest::Document(document)) => {
            let fault =
                Fault::new(format!("missing, the rest of the configuration comes from {}", document.url));
            report.key(central, fault.hint("restart to run without it"));
        }
        (Some(_), Rest::Unknown) => {
            let known = schema().get("properties").and_then(serde_json::Value::as_object);
            let absent =
                known.into_iter().flat_map(|known| known.keys()).filter(|key| value.get(key).is_none());
            absent.for_each(|key| report.excuse(At::ROOT.key(key)));
            report.note(central, "only this file is checked, not the fetched document");
        }
        (Some(_), Rest::Document(_)) | (None, Rest::Unknown | Rest::Nothing) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::central::document::Validators;
    use crate::config::{Config, from_both, from_text};

    const BASE: &str = "config: { http: http://h/w.yaml }\nlisteners: 127.0.0.1:0\nupstream: echo\n";

    fn load(base: &str, rest: Option<&str>) -> Result<Config, Vec<String>> {
        let document = rest.map(|text| Document {
            text: text.into(),
            url: "http://h/w.yaml".into(),
            validators: Validators::default(),
        });
        let file = Path::new("weir.yaml");
        let loaded = match document {
            None => from_text(base, file, &|_| None),
            Some(document) => from_both(base, file, &document),
        };
        loaded.map_err(|problems| problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_keys_of_both_make_one_configuration() {
        let config = load(BASE, Some("rules: [{ name: a, limit: 1/s }]\nworkers: 3\n")).unwrap();
        assert_eq!((config.policy.rules.len(), config.workers.get(), config.listeners.len()), (1, 3, 1));
    }

    #[test]
    fn a_problem_is_reported_where_it_stands() {
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
    fn a_key_in_both_is_a_problem_that_names_both() {
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
    fn a_bootstrap_by_itself_is_checked_as_far_as_it_goes() {
        let said = |base: &str| match load(base, None) {
            Ok(config) => config.notices.iter().map(ToString::to_string).collect(),
            Err(problems) => problems,
        };
        let note = "weir.yaml:1:9: config: note: only this file is checked, not the fetched document";
        assert_eq!(said("config: { http: http://h/ }"), [note]);
        assert_eq!(said(BASE), [note]);
        let rules = "rules: [{ name: a, limit: 1/s, scope: shared, match: { plan: pro, country: DE }, key: [{ jwt: sub }] }]";
        assert_eq!(said(&format!("{BASE}{rules}")), [note], "the fetched document may add them");
        assert!(said(&BASE.replace("echo", "[")).len() == 1);
    }
}
