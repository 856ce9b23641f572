//! Sources of the text: files and environment variables.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;
use std::string::FromUtf8Error;

use serde_yaml::Value;

use super::config_path::ConfigPath;
use super::defaults::MAX_CONFIG_FILE_SIZE;
use super::diagnostic::{Diagnostic, Diagnostics, ValueError};
use super::fragments;
use super::quoting::quoted;
use weir_policy::response::template::Placeholder;

/// Returns an environment variable. With [`environment_variables`] the only code that reads the environment.
#[expect(clippy::disallowed_methods, reason = "the one reader of the environment; tests pass a map instead")]
pub(super) fn environment_variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Returns all environment variables that are UTF-8.
#[expect(clippy::disallowed_methods, reason = "the one reader of the environment; tests pass a map instead")]
pub(super) fn environment_variables() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Reads a file, or the files of a folder, as text.
pub(super) fn read_text(path: &Path) -> Result<String, Diagnostic> {
    if path.is_dir() {
        return fragments::read(path, |file| decode_text(file, read_bytes(file)));
    }
    decode_text(path, read_bytes(path))
}

/// Reads standard input as text, which messages call `name`.
pub(super) fn read_standard_input(name: &Path) -> Result<String, Diagnostic> {
    let mut bytes = Vec::new();
    let read = io::stdin().lock().take(MAX_CONFIG_FILE_SIZE + 1).read_to_end(&mut bytes);
    decode_text(name, read.map(|_| bytes))
}

fn decode_text(path: &Path, bytes: io::Result<Vec<u8>>) -> Result<String, Diagnostic> {
    let problem = |message: String| Diagnostic::for_file(path, message);
    let bytes = bytes.map_err(|error| problem(describe_read_error(path, &error)))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_CONFIG_FILE_SIZE {
        return Err(problem("larger than 1 MiB".to_owned()));
    }
    String::from_utf8(bytes).map_err(|error| {
        let (line, column) = utf8_error_position(&error);
        Diagnostic { line, column, ..problem("not UTF-8 text".to_owned()) }
    })
}

/// Returns line and column, from 1, of the first byte that is not UTF-8.
pub(super) fn utf8_error_position(error: &FromUtf8Error) -> (usize, usize) {
    let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
    let valid = String::from_utf8_lossy(valid);
    let line = valid.rsplit('\n').next().unwrap_or_default();
    (valid.matches('\n').count() + 1, line.chars().count() + 1)
}

/// Reads at most one byte more than the maximum size, because a device may be endless.
fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(path)?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_CONFIG_FILE_SIZE + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Describes why the file at `path` cannot be read.
pub(super) fn describe_read_error(path: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound if path.is_symlink() => "broken symbolic link".to_owned(),
        io::ErrorKind::NotFound => "no such file".to_owned(),
        io::ErrorKind::IsADirectory => "a directory, expected a file".to_owned(),
        io::ErrorKind::PermissionDenied => "not readable: permission denied".to_owned(),
        _ => format!("not readable: {error}"),
    }
}

/// Replaces `${NAME}` and `${NAME:-default}` in all texts of `value`, and returns the paths of the texts that
/// are a single reference.
///
/// Works on values, not on the text of the file: the content of a variable cannot add keys, and lines and
/// columns do not change.
pub(super) fn substitute_variables(
    value: &mut Value,
    environment: &dyn Fn(&str) -> Option<String>,
    report: &mut Diagnostics<'_>,
) -> HashSet<String> {
    let mut substitution =
        VariableSubstitution { environment, diagnostics: report, single_references: HashSet::new() };
    substitution.substitute_in(value, ConfigPath::ROOT);
    substitution.single_references
}

struct VariableSubstitution<'a, 'r> {
    environment: &'a dyn Fn(&str) -> Option<String>,
    diagnostics: &'a mut Diagnostics<'r>,
    single_references: HashSet<String>,
}

impl VariableSubstitution<'_, '_> {
    fn substitute_in(&mut self, value: &mut Value, at: ConfigPath<'_>) {
        match value {
            Value::String(text) if text.contains("${") => match expand_references(text, self.environment) {
                Ok(expanded) => {
                    if expanded.is_single_reference {
                        self.single_references.insert(at.to_string());
                    }
                    *text = expanded.text;
                }
                Err(error) => {
                    self.diagnostics.add_value_error(at, without_secret(error, at));
                    *value = Value::Null;
                }
            },
            Value::Sequence(items) => {
                items
                    .iter_mut()
                    .enumerate()
                    .for_each(|(index, item)| self.substitute_in(item, at.item(index)));
            }
            Value::Mapping(map) => {
                for (key, value) in map.iter_mut() {
                    self.substitute_in(value, at.key(key.as_str().unwrap_or_default()));
                }
            }
            Value::Tagged(tagged) => self.substitute_in(&mut tagged.value, at.single_item()),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

/// Removes the quoted value from an error at a secret.
fn without_secret(error: ValueError, at: ConfigPath<'_>) -> ValueError {
    if error.message.contains('"') && at.to_string().contains("secret") {
        return ValueError { message: "invalid variable reference".to_owned(), hint: error.hint };
    }
    error
}

#[derive(Debug, PartialEq, Eq)]
struct ExpandedText {
    text: String,
    is_single_reference: bool,
}

fn expand_references(
    text: &str,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<ExpandedText, ValueError> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    let mut is_whole = false;
    while let Some(at) = rest.find("${") {
        let (before, reference) = rest.split_at(at);
        if let Some(before) = before.strip_suffix('$') {
            expanded.push_str(before);
            expanded.push_str("${");
            rest = &reference[2..];
            continue;
        }
        let Some(end) = reference.find('}') else {
            return Err(ValueError::new(format!("`${{` without `}}` in {}", quoted(text)))
                .with_hint("write `$${` for a literal `${`"));
        };
        is_whole = reference.len() == text.len() && end + 1 == text.len();
        expanded.push_str(before);
        expanded.push_str(&look_up_variable(&reference[2..end], environment)?);
        rest = &reference[end + 1..];
    }
    expanded.push_str(rest);
    Ok(ExpandedText { text: expanded, is_single_reference: is_whole })
}

/// Returns the value of `NAME` or `NAME:-default`. As in a shell, the default also replaces an empty
/// variable.
fn look_up_variable(
    reference: &str,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<String, ValueError> {
    let (name, default) = match reference.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    if !is_name {
        let error = ValueError::new(format!("invalid variable name, got {}", quoted(name)));
        return Err(error.with_hint(match default_of_other_syntax(name) {
            Some((name, default)) => format!("write `${{{name}:-{default}}}`"),
            None => "write `$${` for a literal `${`".to_owned(),
        }));
    }
    if default.is_some_and(|default| default.contains("${")) {
        return Err(ValueError::new(format!(
            "a default cannot contain a variable, got {}",
            quoted(reference)
        )));
    }
    match (environment(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => {
            let error = ValueError::new(format!("environment variable `{name}` is not set"));
            let is_placeholder = Placeholder::ALL.into_iter().any(|known| known.name() == name);
            Err(error.with_hint(match is_placeholder {
                true => format!("write `{{{name}}}` for the placeholder"),
                false => format!("set it, or write `${{{name}:-default}}`"),
            }))
        }
    }
}

/// Splits a name and its default in the syntax of Spring (`NAME:default`) or in another one of a shell (`NAME-default`,
/// `NAME:=default`, `NAME:?message`).
fn default_of_other_syntax(reference: &str) -> Option<(&str, &str)> {
    let end = reference.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')?;
    let (name, rest) = reference.split_at(end);
    let is_message = rest.starts_with(":?") || rest.starts_with('?');
    let default = rest.strip_prefix(":=").or_else(|| rest.strip_prefix([':', '-', '=']))?;
    let is_default = !name.is_empty() && !is_message && !default.is_empty();
    is_default.then_some((name, default))
}

#[cfg(test)]
mod tests;
