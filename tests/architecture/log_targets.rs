//! Targets of log lines that the program writes, compared with those that `POST /logging` knows.

use std::collections::BTreeSet;

use weir_telemetry::logging::KNOWN_TARGETS;

use super::source::{Source, program_sources};

const LEVELS: [&str; 5] = ["trace", "debug", "info", "warn", "error"];

/// Targets that lines name themselves.
const NAMED_TARGETS: [&str; 2] = ["weir::audit", "weir::decision"];

/// Whether the file writes lines whose target is its module.
fn writes_to_log(source: &Source) -> bool {
    source.tokens().windows(6).any(|words| {
        let words: Vec<&str> = words.iter().map(|token| token.text).collect();
        let [name, colons, level, bang, "(", first] = words[..] else { return false };
        (name, colons, bang) == ("tracing", "::", "!") && LEVELS.contains(&level) && first != "target"
    })
}

#[test]
fn log_levels_know_the_targets_of_all_log_lines() {
    let sources = program_sources();
    let modules = sources.iter().filter(|source| writes_to_log(source)).map(Source::modules);
    let modules = modules.map(|path| path.into_iter().take(2).collect::<Vec<_>>().join("::"));
    let written: BTreeSet<String> = modules.chain(NAMED_TARGETS.map(str::to_owned)).collect();
    let known: BTreeSet<String> = KNOWN_TARGETS.map(str::to_owned).into();
    let differences: Vec<_> = written.symmetric_difference(&known).collect();
    assert!(differences.is_empty(), "targets of log lines that differ from `KNOWN_TARGETS`: {differences:?}");
}

#[test]
fn log_lines_are_found() {
    let found = |text: &str| writes_to_log(&Source::new("src/one.rs", text));
    assert!(found("fn f() { tracing::warn!(%error, \"failed\"); }"));
    assert!(!found("fn f() { tracing::info!(target: AUDIT_TARGET, \"done\"); }"));
    assert!(!found("// tracing::info!(\"done\")\nfn info() {}"));
}
