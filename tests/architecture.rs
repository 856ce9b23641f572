//! Architecture tests: allowed imports between modules, purity of the core, sizes of files and functions, and examples
//! and defaults in the documentation.

#[path = "architecture/allowed.rs"]
mod allowed;
#[path = "architecture/circles.rs"]
mod circles;
#[path = "architecture/documents.rs"]
mod documents;
#[path = "architecture/imports.rs"]
mod imports;
#[path = "architecture/language.rs"]
mod language;
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

use std::collections::{BTreeMap, BTreeSet};

use allowed::ALLOWED_IMPORTS;
use circles::largest_cycles;
use source::{Source, all_sources, display_path, files, line_of, program_sources, read_text, root};

/// Pure modules: they take the time as an argument and use no network, no runtime and no metrics.
const CORE: [&str; 7] = ["identify", "rules", "limiter", "throttle", "response", "engine", "headers"];

/// Words that must not occur in the core.
const IMPURE_WORDS: [&str; 8] =
    ["tokio", "hyper", "hyper_util", "arc_swap", "tracing", "notify", "TcpStream", "TcpListener"];

const MAX_FILE_LINES: usize = 500;
const MAX_FUNCTION_LINES: usize = 80;

/// Maximum number of files of one module in an import cycle.
const MAX_CYCLE: usize = 3;

/// Modules with a larger import cycle, and its size. Entries are only ever lowered or removed.
const CYCLE_EXCEPTIONS: [(&str, usize); 0] = [];

type Edges = BTreeMap<String, BTreeSet<String>>;

/// Returns the modules that each module imports, without itself.
fn edges(sources: &[Source]) -> Edges {
    let mut edges = Edges::new();
    for source in sources.iter().filter(|source| source.top_module() != "lib") {
        let imported = edges.entry(source.top_module().to_owned()).or_default();
        let paths = source.absolute_paths().into_iter();
        let tops = paths.filter_map(|path| path.into_iter().next());
        imported.extend(tops.filter(|top| top != source.top_module()));
    }
    edges
}

/// Returns every import that the table does not allow.
fn forbidden_imports(edges: &Edges) -> Vec<String> {
    let allowed = |from: &str, to: &str| {
        ALLOWED_IMPORTS.iter().any(|(importer, imported)| *importer == from && imported.contains(&to))
    };
    let pairs = edges.iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to)));
    pairs.filter(|(from, to)| !allowed(from, to)).map(|(from, to)| format!("{from} imports {to}")).collect()
}

fn mutual_imports(edges: &Edges) -> Vec<String> {
    let imports = |from: &str, to: &str| edges.get(from).is_some_and(|all| all.contains(to));
    let pairs = edges.iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to)));
    pairs
        .filter(|(from, to)| from < to && imports(to, from))
        .map(|(from, to)| format!("{from} and {to}"))
        .collect()
}

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
fn import_table_lists_every_module_from_the_top_down() {
    let lib = program_sources().into_iter().find(|source| source.path == "src/lib.rs").expect("src/lib.rs");
    let tokens = lib.tokens();
    let declared: BTreeSet<&str> =
        tokens.windows(2).filter(|pair| pair[0].text == "mod").map(|pair| pair[1].text).collect();
    let rows: BTreeSet<&str> =
        ALLOWED_IMPORTS.iter().map(|(row, _)| *row).filter(|row| *row != "main").collect();
    assert_eq!(declared, rows);
    for (index, (row, imported)) in ALLOWED_IMPORTS.iter().enumerate() {
        let below: Vec<&str> = ALLOWED_IMPORTS[index + 1..].iter().map(|(row, _)| *row).collect();
        assert!(imported.iter().all(|name| below.contains(name)), "{row} imports a row above it");
    }
}

#[test]
fn modules_import_only_what_the_table_allows() {
    assert_none("imports that the table does not allow", &forbidden_imports(&edges(&program_sources())));
}

#[test]
fn no_two_modules_import_each_other() {
    assert_none("mutual imports", &mutual_imports(&edges(&program_sources())));
}

#[test]
fn import_cycles_within_a_module_are_small() {
    let mut largest = largest_cycles(&program_sources());
    let mut found = Vec::new();
    for (module, size) in CYCLE_EXCEPTIONS {
        let circle = largest.remove(module).unwrap_or_default();
        if circle.len() < size {
            found.push(format!("{module}: {} instead of {size}: tighten the table", circle.len()));
        } else if circle.len() > size {
            found.push(format!("{module}: {} instead of {size}: {}", circle.len(), format_cycle(&circle)));
        }
    }
    let too_large = largest.values().filter(|circle| circle.len() > MAX_CYCLE);
    found.extend(too_large.map(|circle| format!("{}: {}", circle.len(), format_cycle(circle))));
    assert_none("import cycles above the maximum size", &found);
}

fn format_cycle(circle: &[Vec<String>]) -> String {
    circle.iter().map(|path| path.join("::")).collect::<Vec<_>>().join(" ")
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
        program_sources().into_iter().find(|source| source.top_module() == "main").expect("src/main.rs");
    let taken = main.absolute_paths().into_iter().filter(|path| path[0] == "telemetry");
    assert!(taken.into_iter().all(|path| path.get(1).is_some_and(|name| name == "logging")));
}

#[test]
fn core_modules_are_pure() {
    let program = program_sources();
    let core: Vec<&Source> = program.iter().filter(|source| CORE.contains(&source.top_module())).collect();
    assert!(core.len() >= 20, "only {} files found", core.len());
    let mut found: Vec<_> = core.into_iter().flat_map(impurities).collect();
    // An atomic replacement of the policy, which never blocks.
    found.retain(|impurity| impurity != "src/engine.rs: arc_swap");
    assert_none("impure code in the core", &found);
}

#[test]
fn rls_decisions_are_pure_except_for_servers_and_sources() {
    const SHELL: [&str; 6] = [
        // Writes to the log.
        "src/rls/call_log",
        "src/rls/handler",
        "src/rls/http_endpoints",
        "src/rls/server",
        "src/rls/source",
        // Names settings of the shell.
        "src/rls/options",
    ];
    assert_pure_except("rls", &SHELL, 15);
}

#[test]
fn limits_are_pure_except_for_remote_and_store_access() {
    // `view` holds the connections to them, `tables` the metrics, and requests wait for the store and in queues.
    assert_pure_except(
        "limits",
        &[
            "src/limits/remote",
            "src/limits/leases",
            "src/limits/view",
            "src/limits/tables",
            "src/limits/waiting",
        ],
        4,
    );
}

#[test]
fn alerts_are_pure_except_for_client_and_notifier() {
    // `sample` names a type of telemetry.
    assert_pure_except("alerts", &["src/alerts/client", "src/alerts/notifier", "src/alerts/sample"], 6);
}

/// Checks that `module` is pure, except files whose paths begin with one of `shell`. At least `min_files`
/// files must remain.
#[track_caller]
fn assert_pure_except(module: &str, shell: &[&str], min_files: usize) {
    let program = program_sources();
    let is_shell = |source: &&Source| shell.iter().any(|shell| source.path.starts_with(shell));
    let pure: Vec<_> = program
        .iter()
        .filter(|source| source.top_module() == module)
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
    assert_eq!(holders.map(|source| source.path.as_str()).collect::<Vec<_>>(), ["src/identify/forwarded.rs"]);
}

#[test]
fn no_file_and_no_function_is_too_long() {
    let mut found = Vec::new();
    for directory in ["src", "tests", "benches"] {
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
        &all_sources("src").iter().flat_map(allow_attributes).collect::<Vec<_>>(),
    );
    assert!(root().join("Cargo.toml").is_file());
}
