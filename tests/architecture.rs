//! Architecture tests: allowed imports between modules, purity of the core, sizes of files and functions, and examples
//! and defaults in the documentation.

#[path = "architecture/circles.rs"]
mod circles;
#[path = "architecture/documents.rs"]
mod documents;
#[path = "architecture/language.rs"]
mod language;
#[path = "architecture/reference.rs"]
mod reference;
#[path = "architecture/scanner.rs"]
mod scanner;
#[path = "architecture/source.rs"]
mod source;
#[path = "architecture/wildcards.rs"]
mod wildcards;

use std::collections::{BTreeMap, BTreeSet};

use circles::largest_circles;
use source::{Source, all_sources, files, line_of, program, root, shown, text_of};

/// Allowed imports of each module, from the top down. A row names only rows below it; all other imports are errors.
const TABLE: [(&str, &[&str]); 36] = [
    ("main", &["app", "cli", "config", "import", "telemetry"]),
    ("app", EVERYTHING),
    ("cli", &[]),
    // Compiled for tests and fuzzers only; it calls every parser.
    (
        "fuzzing",
        &[
            "config",
            "central",
            "proxy",
            "listener",
            "http1",
            "state_file",
            "telemetry",
            "tls",
            "rules",
            "identify",
            "limiter",
            "rls",
            "import",
        ],
    ),
    (
        "admin",
        &[
            "config",
            // For the type of a socket address.
            "listener",
            "engine",
            "rules",
            "limiter",
            "state_file",
            "telemetry",
            "drain",
            "clock",
            "tls",
            "http_server",
        ],
    ),
    // Imports only settings from the modules of the shell: see `the_configuration_takes_only_settings_from_the_shell`.
    (
        "config",
        &[
            "engine",
            "rules",
            "limiter",
            "identify",
            "response",
            "listener",
            "upstream",
            "state_file",
            "drain",
            "overload",
            "telemetry",
            // Certificates and keys are data files.
            "tls",
            // API keys have an expiry time.
            "clock",
            "watch",
            "rls",
            "central",
            "remote",
            "store",
            "yaml",
        ],
    ),
    (
        "proxy",
        &[
            "http1",
            "headers",
            "limits",
            "store",
            "remote",
            "engine",
            "identify",
            "rules",
            "limiter",
            "throttle",
            "response",
            "upstream",
            "telemetry",
            "clock",
            "jitter",
            "drain",
            "overload",
            "listener",
            "worker",
            "tls",
            "transport",
        ],
    ),
    (
        "limits",
        &[
            "headers",
            "remote",
            "store",
            "engine",
            "rules",
            "limiter",
            "throttle",
            "response",
            "telemetry",
            "clock",
        ],
    ),
    // Converts text to text, with the parsers of `rls`.
    ("import", &["rls", "yaml"]),
    // Documents and decisions depend only on the core: see `what_decides_for_envoy_is_pure_but_for_its_doors`.
    (
        "rls",
        &[
            // For the client of an xDS management server.
            "remote",
            "store",
            "engine",
            "rules",
            "identify",
            "limiter",
            "telemetry",
            "clock",
            "drain",
            "overload",
            "jitter",
            "listener",
            "worker",
            "tls",
            "transport",
            "http_server",
            "watch",
            "yaml",
        ],
    ),
    // Fetches documents and passes them on without parsing them.
    ("central", &["transport", "telemetry", "clock", "tls", "jitter", "atomic_file"]),
    ("store", &["remote", "limiter", "tls", "transport", "telemetry", "clock", "jitter"]),
    ("remote", &["headers", "limiter", "tls", "transport", "telemetry", "clock"]),
    ("worker", &["listener", "drain"]),
    ("listener", &["transport", "tls", "telemetry", "drain"]),
    ("upstream", &["http1", "headers", "transport", "tls", "telemetry", "jitter"]),
    ("transport", &[]),
    ("http1", &["headers"]),
    ("state_file", &["limiter", "atomic_file"]),
    ("telemetry", &["tls", "overload", "engine", "response", "throttle", "rules", "identify", "limiter"]),
    // For its waiting times.
    ("watch", &["clock"]),
    ("clock", &["limiter"]),
    ("tls", &[]),
    ("http_server", &["drain"]),
    ("drain", &[]),
    ("jitter", &[]),
    ("overload", &[]),
    ("engine", &["response", "rules", "identify", "limiter"]),
    ("response", &["headers", "throttle", "limiter"]),
    ("throttle", &["limiter"]),
    ("rules", &["headers", "identify", "limiter"]),
    // For the type of a request's timestamp.
    ("identify", &["limiter"]),
    ("limiter", &[]),
    // Header fields, raw or in a map.
    ("headers", &[]),
    ("atomic_file", &[]),
    ("yaml", &[]),
];

/// Imports of `app`, which assembles the parts. The command line is not among them.
const EVERYTHING: &[&str] = &[
    "http_server",
    "watch",
    "central",
    "remote",
    "store",
    "limits",
    "admin",
    "config",
    "proxy",
    "rls",
    "worker",
    "listener",
    "upstream",
    "state_file",
    "telemetry",
    "clock",
    "jitter",
    "tls",
    "drain",
    "overload",
    "engine",
    "response",
    "throttle",
    "rules",
    "identify",
    "limiter",
];

/// Pure modules: they take the time as an argument and use no network, no runtime and no metrics.
const CORE: [&str; 7] = ["identify", "rules", "limiter", "throttle", "response", "engine", "headers"];

/// Words that must not occur in the core.
const IMPURE: [&str; 8] =
    ["tokio", "hyper", "hyper_util", "arc_swap", "tracing", "notify", "TcpStream", "TcpListener"];

const MOST_LINES_OF_A_FILE: usize = 500;
const MOST_LINES_OF_A_FUNCTION: usize = 80;

/// Maximum number of files of one module in an import cycle.
const MAX_CIRCLE: usize = 3;

/// Modules with a larger import cycle, and its size. Entries are only ever lowered or removed.
const LARGER_CIRCLES: [(&str, usize); 0] = [];

type Edges = BTreeMap<String, BTreeSet<String>>;

/// Returns the modules that each module imports, without itself.
fn edges(sources: &[Source]) -> Edges {
    let mut edges = Edges::new();
    for source in sources.iter().filter(|source| source.owner() != "lib") {
        let imported = edges.entry(source.owner().to_owned()).or_default();
        let paths = source.absolute_paths().into_iter();
        let tops = paths.filter_map(|path| path.into_iter().next());
        imported.extend(tops.filter(|top| top != source.owner()));
    }
    edges
}

/// Returns every import that the table does not allow.
fn forbidden_imports(edges: &Edges) -> Vec<String> {
    let allowed = |from: &str, to: &str| {
        TABLE.iter().any(|(importer, imported)| *importer == from && imported.contains(&to))
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
    let words = source.tokens().into_iter().filter(|token| IMPURE.contains(&token.text));
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
        if source.has(words) {
            found.push(words.concat());
        }
    }
    found.into_iter().map(|what| format!("{}: {what}", source.path)).collect()
}

/// Returns what a file of the configuration imports from the shell other than settings.
fn more_than_settings(source: &Source) -> Vec<String> {
    const SETTINGS: [(&str, &[&str]); 14] = [
        ("listener", &["ListenerSettings", "ListenAddress", "ListenerLimits", "ProxyProtocol"]),
        ("upstream", &["settings", "UpstreamSettings", "UpstreamAddress"]),
        ("drain", &["DrainSettings"]),
        ("central", &["settings", "document"]),
        ("state_file", &["StateFileSettings"]),
        ("overload", &["OverloadSettings", "MemoryLimit"]),
        ("telemetry", &["access_log", "metrics", "spans", "statsd"]),
        ("metrics", &["ReloadOutcome"]),
        ("rls", &["options", "settings"]),
        ("remote", &["channel", "service", "Settings"]),
        ("store", &["settings"]),
        ("statsd", &["Settings"]),
        ("spans", &["Settings", "Collector"]),
        ("access_log", &["Settings", "Sink", "Format"]),
    ];
    let mut found = Vec::new();
    for (module, settings) in SETTINGS {
        for path in source.paths_from(module) {
            let taken = path.get(1).map_or("", String::as_str);
            if !taken.is_empty() && !settings.contains(&taken) {
                found.push(format!("{}: {}", source.path, path.join("::")));
            }
        }
    }
    found
}

fn unfinished(source: &Source) -> Vec<String> {
    let phrases: [&[&str]; 5] =
        [&["todo", "!"], &["unimplemented", "!"], &[".", "unwrap", "("], &["dbg", "!"], &["::", "unwrap"]];
    let found = phrases.into_iter().filter(|phrase| source.has(phrase));
    found.map(|phrase| format!("{}: {}", source.path, phrase.concat())).collect()
}

/// Returns attributes that silence a lint with `allow`. `expect` has a reason, and warns when it is not needed.
fn silenced(source: &Source) -> Vec<String> {
    let tokens = source.tokens();
    let found = tokens.windows(3).filter(|words| {
        matches!(words[0].text, "[" | "," | "(") && words[1].text == "allow" && words[2].text == "("
    });
    found.map(|words| format!("{}:{}", source.path, line_of(&source.code, words[1].at))).collect()
}

fn long_functions(source: &Source) -> Vec<String> {
    let functions = source.functions().into_iter();
    functions
        .filter(|function| function.lines > MOST_LINES_OF_A_FUNCTION)
        .map(|function| {
            format!("{}:{}: {} has {} lines", source.path, function.line, function.name, function.lines)
        })
        .collect()
}

#[track_caller]
fn none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

#[test]
fn every_module_has_its_row_and_the_table_leads_down() {
    let lib = program().into_iter().find(|source| source.path == "src/lib.rs").expect("src/lib.rs");
    let tokens = lib.tokens();
    let declared: BTreeSet<&str> =
        tokens.windows(2).filter(|pair| pair[0].text == "mod").map(|pair| pair[1].text).collect();
    let rows: BTreeSet<&str> = TABLE.iter().map(|(row, _)| *row).filter(|row| *row != "main").collect();
    assert_eq!(declared, rows);
    for (index, (row, imported)) in TABLE.iter().enumerate() {
        let below: Vec<&str> = TABLE[index + 1..].iter().map(|(row, _)| *row).collect();
        assert!(imported.iter().all(|name| below.contains(name)), "{row} imports a row above it");
    }
}

#[test]
fn modules_import_only_what_the_table_allows() {
    none("imports that the table does not allow", &forbidden_imports(&edges(&program())));
}

#[test]
fn no_two_modules_import_each_other() {
    none("mutual imports", &mutual_imports(&edges(&program())));
}

#[test]
fn files_of_a_module_import_one_another_in_small_circles_only() {
    let mut largest = largest_circles(&program());
    let mut found = Vec::new();
    for (module, size) in LARGER_CIRCLES {
        let circle = largest.remove(module).unwrap_or_default();
        if circle.len() < size {
            found.push(format!("{module}: {} instead of {size}: tighten the table", circle.len()));
        } else if circle.len() > size {
            found.push(format!("{module}: {} instead of {size}: {}", circle.len(), shown_circle(&circle)));
        }
    }
    let too_large = largest.values().filter(|circle| circle.len() > MAX_CIRCLE);
    found.extend(too_large.map(|circle| format!("{}: {}", circle.len(), shown_circle(circle))));
    none("import cycles above the maximum size", &found);
}

fn shown_circle(circle: &[Vec<String>]) -> String {
    circle.iter().map(|path| path.join("::")).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_configuration_takes_only_settings_from_the_shell() {
    let config: Vec<Source> = program().into_iter().filter(|source| source.owner() == "config").collect();
    none("imports other than settings", &config.iter().flat_map(more_than_settings).collect::<Vec<_>>());
}

#[test]
fn what_is_new_to_an_enum_of_rules_is_asked_for_by_the_compiler() {
    none("wildcard arms", &program().iter().flat_map(wildcards::wildcard_arms).collect::<Vec<_>>());
}

#[test]
fn main_takes_only_logging_from_telemetry() {
    let main = program().into_iter().find(|source| source.owner() == "main").expect("src/main.rs");
    let taken = main.absolute_paths().into_iter().filter(|path| path[0] == "telemetry");
    assert!(taken.into_iter().all(|path| path.get(1).is_some_and(|name| name == "logging")));
}

#[test]
fn the_core_is_pure() {
    let program = program();
    let core: Vec<&Source> = program.iter().filter(|source| CORE.contains(&source.owner())).collect();
    assert!(core.len() >= 20, "only {} files found", core.len());
    let mut found: Vec<_> = core.into_iter().flat_map(impurities).collect();
    // An atomic replacement of the policy, which never blocks.
    found.retain(|impurity| impurity != "src/engine.rs: arc_swap");
    none("impure code in the core", &found);
}

#[test]
fn what_decides_for_envoy_is_pure_but_for_its_doors() {
    const SHELL: [&str; 5] = [
        "src/rls/desk",
        "src/rls/doors",
        "src/rls/server",
        "src/rls/source",
        // Names settings of the shell.
        "src/rls/options",
    ];
    pure_but_for("rls", &SHELL, 15);
}

#[test]
fn limits_are_pure_but_for_other_services_and_the_store() {
    // `view` holds the connections to them, and requests wait for the store.
    pure_but_for("limits", &["src/limits/remote", "src/limits/shared", "src/limits/view"], 4);
}

/// Checks that `module` is pure, except files whose paths begin with one of `shell`. At least `least` files must remain.
#[track_caller]
fn pure_but_for(module: &str, shell: &[&str], least: usize) {
    let program = program();
    let is_shell = |source: &&Source| shell.iter().any(|shell| source.path.starts_with(shell));
    let pure: Vec<_> =
        program.iter().filter(|source| source.owner() == module).filter(|source| !is_shell(source)).collect();
    assert!(pure.len() >= least, "only {} files found", pure.len());
    none("impure code", &pure.into_iter().flat_map(impurities).collect::<Vec<_>>());
}

#[test]
fn x_forwarded_for_is_read_in_one_place() {
    let program = program();
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
            let lines = text_of(&path).lines().count();
            if lines > MOST_LINES_OF_A_FILE {
                found.push(format!("{} has {lines} lines", shown(&path)));
            }
            if path.ends_with("mod.rs") {
                found.push(format!("{}: a module is `name.rs` beside `name/`", shown(&path)));
            }
        }
        found.extend(all_sources(directory).iter().flat_map(long_functions));
    }
    none("too long, or in the wrong place", &found);
}

#[test]
fn nothing_is_unfinished_or_silenced() {
    none("unfinished", &program().iter().flat_map(unfinished).collect::<Vec<_>>());
    none("`allow` instead of `expect`", &all_sources("src").iter().flat_map(silenced).collect::<Vec<_>>());
    assert!(root().join("Cargo.toml").is_file());
}
