//! Compiles the settings of the access log.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::resolve_relative;
use crate::at::At;
use crate::diagnostic::{Diagnostics, ValueError};
use crate::parse::{self, nearest_name};
use crate::quoting::quoted;
use crate::raw::{self, OrOff};
use weir_limiter::percent::Percent;
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::rule::Rule;
use weir_telemetry::access_log::{AccessLogSettings, CustomFormat, Format, Sink};
use weir_telemetry::observe::key_writer::LogKeys;

/// Compiles `access_log` and `log_keys`.
pub(super) fn compile(
    raw: &raw::Root,
    file: &Path,
    report: &Diagnostics<'_>,
) -> (Option<AccessLogSettings>, Option<LogKeys>) {
    let root = report.root();
    let access_log = compile_access_log(raw.access_log.as_ref(), file, root.key("access_log"));
    let error = ValueError::new("expected one of value, hash, off, got true");
    let log_keys = raw.log_keys.as_ref().map(|log_keys| {
        let log_keys = root.key("log_keys").unless_off(log_keys, error);
        log_keys.copied().unwrap_or(LogKeys::Off)
    });
    (access_log, log_keys)
}

/// Compiles `access_log`; `None` if it is disabled or has problems.
fn compile_access_log(
    raw: Option<&OrOff<raw::AccessLog>>,
    file: &Path,
    at: At<'_>,
) -> Option<AccessLogSettings> {
    let error = ValueError::new("expected `disabled`, `stdout`, `stderr` or a file, got true");
    let map = match at.unless_off(raw?, error.with_suggestion(Some("stdout")))? {
        raw::AccessLog::Path(path) if path == "disabled" => return None,
        raw::AccessLog::Path(path) => {
            let at = at.single_item();
            let sink = at.ok(parse_sink(path, file))?;
            at.note_switch_as_file("the log", path, "did you mean `stdout`? ");
            return Some(AccessLogSettings::new(sink, Format::default()));
        }
        raw::AccessLog::Map(map) => map,
    };
    let format = match &map.format {
        Some(format) => at.key("format").ok(parse_format(&format.0)),
        None => Some(Format::default()),
    };
    let sample = match &map.sample {
        Some(share) => at.key("sample").ok(parse::percentage(&share.0)),
        None => Some(Percent::ONE_HUNDRED),
    };
    let path = map.path.as_ref()?;
    let sink = at.key("path").ok(parse_sink(path, file));
    at.key("path").note_switch_as_file("the log", path, "did you mean `stdout`? ");
    let only = map.only.iter().flat_map(|only| only.items()).map(|(_, kind)| *kind).collect();
    note_empty_sample(sample, at.key("sample"));
    let settings = AccessLogSettings::new(sink?, format?);
    Some(AccessLogSettings { sample: sample?, only, ..settings })
}

/// Hides the values of query parameters that are parts of keys if `log_keys` hides keys.
pub(super) fn hide_parameters(log: &mut AccessLogSettings, log_keys: Option<LogKeys>, rules: &[Rule]) {
    match log_keys {
        Some(LogKeys::Hash | LogKeys::Off) => {}
        Some(LogKeys::Value) | None => return,
    }
    let parts =
        rules.iter().filter_map(|rule| rule.action.limiting()).flat_map(|limiting| limiting.counted_parts());
    let names: BTreeSet<&str> = parts
        .filter_map(|part| if let Attribute::Query(name) = part { Some(&**name) } else { None })
        .collect();
    log.hidden_parameters = names.into_iter().map(Box::from).collect();
}

/// Adds a note for a log to which nothing is written.
fn note_empty_sample(sample: Option<Percent>, at: At<'_>) {
    if sample == Some(Percent::from_hundredths(0)) {
        let note = ValueError::new("no request is logged, not even those that `only` selects");
        at.note(note.with_hint("write `access_log: disabled`, or a share above 0%"));
    }
}

/// Parses a format: a word, or a format string, which has at least one operator.
fn parse_format(text: &str) -> Result<Format, ValueError> {
    match text {
        "envoy" => Ok(Format::Envoy),
        "json" => Ok(Format::Json),
        _ if text.contains('%') => CustomFormat::parse(text)
            .map(|format| Format::Custom(Arc::new(format)))
            .map_err(|error| ValueError::new(error.to_string())),
        _ => Err(ValueError::new(format!("expected envoy, json or a format string, got {}", quoted(text)))
            .with_suggestion(nearest_name(text, ["envoy", "json"]))),
    }
}

/// Rejects bare words that resemble `stdout`, `stderr` or a switch, instead of using them as file names.
fn parse_sink(path: &str, file: &Path) -> Result<Sink, ValueError> {
    const SWITCHES: [&str; 7] = ["off", "no", "none", "false", "null", "disable", "disabled"];
    let invalid = || ValueError::new(format!("expected `stdout`, `stderr` or a file, got {}", quoted(path)));
    let is_bare = !path.contains(['/', '.']);
    match path {
        "stdout" => Ok(Sink::Stdout),
        "stderr" => Ok(Sink::Stderr),
        "" => Err(invalid()),
        "disabled" => Err(invalid().with_hint("write `access_log: disabled`")),
        _ if path.ends_with('/') => Err(invalid().with_hint("a directory cannot be written to")),
        _ if is_bare && SWITCHES.contains(&path.to_lowercase().as_str()) => {
            Err(invalid().with_hint("did you mean `disabled`?"))
        }
        _ => match nearest_name(path, ["stdout", "stderr"]).filter(|_| is_bare) {
            Some(word) => {
                Err(invalid().with_hint(format!("did you mean `{word}`? a file of that name is `./{path}`")))
            }
            None => Ok(Sink::File(resolve_relative(file, path))),
        },
    }
}
