//! Architecture tests of what manifests cannot say: purity of the core, import cycles, sizes of files and functions, and
//! examples and defaults in the documentation. Which crate may use which is in their manifests.

#[path = "architecture/circles.rs"]
mod circles;
#[path = "architecture/documents.rs"]
mod documents;
#[path = "architecture/imports.rs"]
mod imports;
#[path = "architecture/language.rs"]
mod language;
#[path = "architecture/log_targets.rs"]
mod log_targets;
#[path = "architecture/manifests.rs"]
mod manifests;
#[path = "architecture/names.rs"]
mod names;
#[path = "architecture/notes.rs"]
mod notes;
#[path = "architecture/reference.rs"]
mod reference;
#[path = "architecture/requirements.rs"]
mod requirements;
#[path = "architecture/scanner.rs"]
mod scanner;
#[path = "architecture/source.rs"]
mod source;
#[path = "architecture/wildcards.rs"]
mod wildcards;

use circles::cycles_of;
use source::{Source, all_sources, display_path, files, line_of, program_sources, read_text, root};

/// Pure code: it takes the time as an argument and uses no files, no network and no threads.
const CORE: [&str; 3] = ["crates/limiter/src/", "crates/policy/src/", "crates/http/src/headers"];

/// Words that must not occur in pure code.
const IMPURE_WORDS: [&str; 8] =
    ["tokio", "hyper", "hyper_util", "arc_swap", "tracing", "notify", "TcpStream", "TcpListener"];

const MAX_FILE_LINES: usize = 500;
const MAX_FUNCTION_LINES: usize = 80;

/// Maximum number of files in an import cycle.
const MAX_CYCLE: usize = 2;

/// Returns the uses of I/O, clocks, threads, metrics and the runtime in a file.
fn impurities(source: &Source) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let words = source.tokens().into_iter().filter(|token| IMPURE_WORDS.contains(&token.text));
    found.extend(words.map(|token| token.text.to_owned()));
    let outside =
        source.paths_from("std").into_iter().filter(|path| match path[1..].first().map(String::as_str) {
            Some("fs" | "env" | "thread" | "process") => true,
            Some("net") => path.get(2).is_some_and(|name| name.starts_with("Tcp") || name.starts_with("Udp")),
            Some("time") => path.get(2).is_some_and(|name| name == "Instant" || name == "SystemTime"),
            _ => false,
        });
    found.extend(outside.map(|path| path.join("::")));
    for words in [["::", "now", "("].as_slice(), &["metrics", "::"]] {
        if source.has_tokens(words) {
            found.push(words.concat());
        }
    }
    found.into_iter().map(|what| format!("{}: {what}", source.path)).collect()
}

fn unfinished_code(source: &Source) -> Vec<String> {
    let phrases: [&[&str]; 5] =
        [&["todo", "!"], &["unimplemented", "!"], &[".", "unwrap", "("], &["dbg", "!"], &["::", "unwrap"]];
    let found = phrases.into_iter().filter(|phrase| source.has_tokens(phrase));
    found.map(|phrase| format!("{}: {}", source.path, phrase.concat())).collect()
}

/// Returns attributes that silence a lint with `allow`. `expect` has a reason, and warns when it is not needed.
fn allow_attributes(source: &Source) -> Vec<String> {
    let tokens = source.tokens();
    let found = tokens.windows(3).filter(|words| {
        matches!(words[0].text, "[" | "," | "(") && words[1].text == "allow" && words[2].text == "("
    });
    found.map(|words| format!("{}:{}", source.path, line_of(&source.code, words[1].at))).collect()
}

fn long_functions(source: &Source) -> Vec<String> {
    let functions = source.functions().into_iter();
    functions
        .filter(|function| function.lines > MAX_FUNCTION_LINES)
        .map(|function| {
            format!("{}:{}: {} has {} lines", source.path, function.line, function.name, function.lines)
        })
        .collect()
}

#[track_caller]
fn assert_none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

#[test]
fn import_cycles_are_small() {
    let cycles = cycles_of(&program_sources()).into_iter();
    let too_large = cycles.filter(|cycle| cycle.len() > MAX_CYCLE);
    let shown = |cycle: Vec<Vec<String>>| {
        let files: Vec<_> = cycle.iter().map(|path| path.join("::")).collect();
        format!("{}: {}", cycle.len(), files.join(" "))
    };
    assert_none("import cycles above the maximum size", &too_large.map(shown).collect::<Vec<_>>());
}

#[test]
fn matches_on_rule_enums_have_no_wildcard_arm() {
    assert_none(
        "wildcard arms",
        &program_sources().iter().flat_map(wildcards::wildcard_arms).collect::<Vec<_>>(),
    );
}

#[test]
fn main_imports_only_logging_from_telemetry() {
    let main =
        program_sources().into_iter().find(|source| source.path == "src/main.rs").expect("src/main.rs");
    let taken = main.paths_from("weir_telemetry");
    assert!(!taken.is_empty() && taken.iter().all(|path| path[1] == "logging"), "{taken:?}");
}

#[test]
fn core_is_pure() {
    let program = program_sources();
    let core: Vec<&Source> =
        program.iter().filter(|source| CORE.iter().any(|core| source.path.starts_with(core))).collect();
    assert!(core.len() >= 20, "only {} files found", core.len());
    let mut found: Vec<_> = core.into_iter().flat_map(impurities).collect();
    // An atomic replacement of the policy, which never blocks.
    found.retain(|impurity| impurity != "crates/policy/src/engine.rs: arc_swap");
    // A conversion of the time, which the caller reads.
    found.retain(|impurity| impurity != "crates/limiter/src/timestamp.rs: std::time::SystemTime");
    assert_none("impure code in the core", &found);
}

#[test]
fn rls_decisions_are_pure_except_for_servers_and_sources() {
    const SHELL: [&str; 6] = [
        // Writes to the log.
        "crates/rls/src/call_log",
        "crates/rls/src/handler",
        "crates/rls/src/http_endpoints",
        "crates/rls/src/server",
        "crates/rls/src/source",
        // Names settings of the shell.
        "crates/rls/src/options",
    ];
    assert_pure_except("crates/rls/", &SHELL, 15);
}

#[test]
fn limits_are_pure_except_for_remote_and_store_access() {
    // `view` holds the connections to them, `tables` and its recorders the metrics, and requests wait for the store and
    // in queues.
    assert_pure_except(
        "crates/limits/",
        &[
            "crates/limits/src/remote",
            "crates/limits/src/rule_recorder",
            "crates/limits/src/leases",
            "crates/limits/src/view",
            "crates/limits/src/tables",
            "crates/limits/src/waiting",
        ],
        4,
    );
}

#[test]
fn alerts_are_pure_except_for_client_and_notifier() {
    // `sample` names a type of telemetry.
    assert_pure_except(
        "crates/telemetry/src/alerts",
        &[
            "crates/telemetry/src/alerts/client",
            "crates/telemetry/src/alerts/notifier",
            "crates/telemetry/src/alerts/sample",
        ],
        6,
    );
}

/// Checks that the files below `directory` are pure, except files whose paths begin with one of `shell`. At least `min_files`
/// files must remain.
#[track_caller]
fn assert_pure_except(directory: &str, shell: &[&str], min_files: usize) {
    let program = program_sources();
    let is_shell = |source: &&Source| shell.iter().any(|shell| source.path.starts_with(shell));
    let pure: Vec<_> = program
        .iter()
        .filter(|source| source.path.starts_with(directory))
        .filter(|source| !is_shell(source))
        .collect();
    assert!(pure.len() >= min_files, "only {} files found", pure.len());
    assert_none("impure code", &pure.into_iter().flat_map(impurities).collect::<Vec<_>>());
}

#[test]
fn x_forwarded_for_is_read_in_one_place() {
    let program = program_sources();
    let holders = program
        .iter()
        .filter(|source| source.strings.iter().any(|(_, said)| said.eq_ignore_ascii_case("x-forwarded-for")));
    assert_eq!(
        holders.map(|source| source.path.as_str()).collect::<Vec<_>>(),
        ["crates/policy/src/identify/forwarded.rs"]
    );
}

#[test]
fn no_file_and_no_function_is_too_long() {
    let mut found = Vec::new();
    for directory in ["src", "crates", "tests", "benches", "fuzz"] {
        for path in files(directory, "rs") {
            let lines = read_text(&path).lines().count();
            if lines > MAX_FILE_LINES {
                found.push(format!("{} has {lines} lines", display_path(&path)));
            }
            if path.ends_with("mod.rs") {
                found.push(format!("{}: a module is `name.rs` beside `name/`", display_path(&path)));
            }
        }
        found.extend(all_sources(directory).iter().flat_map(long_functions));
    }
    assert_none("too long, or in the wrong place", &found);
}

#[test]
fn no_unfinished_code_and_no_allow_attributes() {
    assert_none("unfinished", &program_sources().iter().flat_map(unfinished_code).collect::<Vec<_>>());
    assert_none(
        "`allow` instead of `expect`",
        &["src", "crates"]
            .into_iter()
            .flat_map(all_sources)
            .flat_map(|source| allow_attributes(&source))
            .collect::<Vec<_>>(),
    );
    assert!(root().join("Cargo.toml").is_file());
}
