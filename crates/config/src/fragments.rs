//! A configuration in a folder: the files whose names end in `.yaml`, in the order of their names, as one text.
//!
//! The text keeps the files apart, so that it is read, compared and handed on like that of a single file. Lists of
//! listeners, upstreams, rules and groups are joined; every other top-level key must be in only one file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_yaml::Value;

use crate::config_path::ConfigPath;
use crate::defaults::MAX_CONFIG_FOLDER_SIZE;
use crate::diagnostic::Diagnostic;
use crate::positions::{SourceText, SourceTexts};
use crate::tree::{self, MergedTexts, ParsedText};

/// Precedes the name of each file in the text. It is not valid in YAML, so no file contains it.
const MARK: char = '\u{1}';

/// Top-level keys whose lists are joined.
const JOINED: [&str; 4] = ["listeners", "upstreams", "rules", "any_of"];

/// Returns the files of the folder, in the order of their names. Hidden ones are skipped, as Kubernetes has them beside the
/// keys of a ConfigMap.
pub(super) fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(".yaml") && !name.starts_with('.') {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Reads the files of the folder with `read_file` as one text.
///
/// # Errors
/// The first file that cannot be read, or what is wrong with the folder.
pub(super) fn read(
    folder: &Path,
    read_file: impl Fn(&Path) -> Result<String, Diagnostic>,
) -> Result<String, Diagnostic> {
    let problem = |message: String| Diagnostic::for_file(folder, message);
    let files = files(folder).map_err(|error| problem(format!("not readable: {error}")))?;
    if files.is_empty() {
        let hint = Some("a configuration is a file, or a folder of files such as `rules.yaml`".to_owned());
        return Err(Diagnostic {
            hint,
            ..problem("no file in the folder has a name that ends in `.yaml`".to_owned())
        });
    }
    let mut all = String::new();
    for file in files {
        let text = read_file(&file)?;
        if text.contains(MARK) {
            return Err(Diagnostic::for_file(&file, "not valid YAML: a control character"));
        }
        let name = file.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        all.extend([&*MARK.to_string(), &*name, "\n", &*text]);
        if all.len() > MAX_CONFIG_FOLDER_SIZE {
            return Err(problem(format!("larger than {} MiB", MAX_CONFIG_FOLDER_SIZE >> 20)));
        }
    }
    Ok(all)
}

/// Whether the text is that of a folder.
pub(super) fn is_folder(text: &str) -> bool {
    text.starts_with(MARK)
}

/// Returns the name and the text of each file.
pub(super) fn split(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(MARK).skip(1).map(|file| file.split_once('\n').unwrap_or((file, "")))
}

/// Parses and merges the files of `folder`.
///
/// # Errors
/// Every problem of the files.
pub(super) fn merge<'a>(text: &str, folder: &Path) -> Result<MergedTexts<'a>, Vec<Diagnostic>> {
    let (mut parsed, mut problems) = (Vec::new(), Vec::new());
    for (name, text) in split(text) {
        let path = folder.join(name);
        match tree::parse(text, &path) {
            Ok(file) => parsed.push((path, file)),
            Err(found) => problems.extend(found),
        }
    }
    if problems.is_empty() { merge_parsed(parsed) } else { Err(problems) }
}

fn merge_parsed<'a>(files: Vec<(PathBuf, ParsedText)>) -> Result<MergedTexts<'a>, Vec<Diagnostic>> {
    let mut merged = serde_yaml::Mapping::new();
    let mut misplaced_keys = Vec::new();
    let mut owners: HashMap<String, Vec<usize>> = HashMap::new();
    let mut texts: Vec<SourceText<'a>> = Vec::new();
    for (path, ParsedText { value, mut positions }) in files {
        let Value::Mapping(keys) = value else {
            let message = "expected a map with keys such as `rules`";
            return Err(vec![Diagnostic { line: 1, column: 1, ..Diagnostic::for_file(&path, message) }]);
        };
        for (key, value) in keys {
            let name = key.as_str().unwrap_or_default().to_owned();
            let texts_with = owners.entry(name.clone()).or_default();
            match merged.get_mut(&key) {
                None => drop(merged.insert(key, value)),
                Some(before) if JOINED.contains(&&*name) => {
                    positions.set_first_item(&name, join(before, value));
                }
                Some(_) => {
                    let at = positions.key_position(ConfigPath::ROOT.key(&name));
                    let first = texts_with.first().and_then(|first| texts.get(*first));
                    let first =
                        first.map(|first| first.place_of(ConfigPath::ROOT.key(&name))).unwrap_or_default();
                    misplaced_keys.push(Diagnostic {
                        line: at.line,
                        column: at.column,
                        path: name.clone(),
                        hint: Some("write each top-level key, except lists, in only one file".to_owned()),
                        ..Diagnostic::for_file(&path, format!("duplicate key, also in {first}"))
                    });
                }
            }
            texts_with.push(texts.len());
        }
        texts.push(SourceText { name: Cow::Owned(path), positions });
    }
    let value = Value::Mapping(merged);
    Ok(MergedTexts { value, texts: SourceTexts::of_folder(texts, owners), misplaced_keys })
}

/// Appends the items of `more` to those before. Returns the number of those before.
fn join(before: &mut Value, more: Value) -> usize {
    let items = |value: Value| match value {
        Value::Sequence(items) => items,
        single => vec![single],
    };
    let mut all = items(std::mem::take(before));
    let count = all.len();
    all.extend(items(more));
    *before = Value::Sequence(all);
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, load};

    fn load_folder(files: &[(&str, &str)]) -> Result<Config, Vec<String>> {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        let prefix = format!("{}/", directory.path().display());
        let shown = |problem: &Diagnostic| problem.to_string().replace(&prefix, "");
        load(directory.path()).map_err(|problems| problems.iter().map(shown).collect())
    }

    const BASE: (&str, &str) = ("00-base.yaml", "listeners: 127.0.0.1:0\nupstream: echo\n");

    #[test]
    fn files_are_merged_in_the_order_of_their_names() {
        let rule =
            |name: &str| format!("rules:\n  - {{ name: {name}, limit: 1/s, match: {{ path: /{name} }} }}\n");
        let single = "rules: { name: c, limit: 1/s, match: { path: /c } }\nworkers: 3\n";
        let config = load_folder(&[
            ("20-b.yaml", &rule("b")),
            BASE,
            ("10-a.yaml", &rule("a")),
            ("30-c.yaml", single),
            (".hidden.yaml", "nonsense: ["),
            ("notes.txt", "nonsense: ["),
        ])
        .unwrap();
        let names: Vec<_> = config.policy.rules.iter().map(|rule| &*rule.name).collect();
        assert_eq!((names, config.workers.get()), (vec!["a", "b", "c"], 3));
    }

    #[test]
    fn problems_name_the_file_that_has_them() {
        let problems = load_folder(&[
            BASE,
            ("10.yaml", "rules:\n  - { name: a, limit: 1/s, match: { path: /a } }\n"),
            ("20.yaml", "rules:\n  - { name: b, limit: 1/x }\n  - { name: a, limit: 1/s }\n"),
            ("30.yaml", "rules: { name: c, limit: 1/y }\nupstream: echo\nworker: 2\n"),
        ])
        .unwrap_err();
        let expected = [
            "20.yaml:2:23: rules[1].limit: unknown unit \"x\"",
            "20.yaml:3:13: rules[2].name: duplicate rule name `a` (first in ",
            "30.yaml:1:26: rules[3].limit: unknown unit \"y\"",
            "30.yaml:2:1: upstream: duplicate key, also in ",
            "30.yaml:3:1: worker: unknown key `worker` (did you mean `workers`?)",
        ];
        assert_eq!(problems.len(), expected.len(), "{problems:#?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.starts_with(expected), "{problem}, expected {expected}");
        }
        assert!(
            problems[1].contains("10.yaml:2)") && problems[3].contains("00-base.yaml:2:1"),
            "{problems:#?}"
        );
    }

    #[test]
    fn syntax_errors_and_empty_folders_are_problems() {
        let problems =
            load_folder(&[BASE, ("1.yaml", "rules: ["), ("2.yaml", "- a"), ("3.yaml", "")]).unwrap_err();
        assert!(
            problems[0].starts_with("1.yaml:2:1: not ")
                && problems[1].starts_with("3.yaml:1:1: the file is empty")
        );
        assert_eq!(
            load_folder(&[BASE, ("2.yaml", "- a")]).unwrap_err()[0],
            "2.yaml:1:1: expected a map with keys such as `rules`"
        );
        assert!(load_folder(&[("a.yml", "rules: []")]).unwrap_err()[0].contains("ends in `.yaml`"));
    }
}
