//! The command line: output and exit codes.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::{env, fs};

use tempfile::TempDir;

use crate::support::config;
use crate::support::weir::run;

/// A configuration with problems on line 8 (a unit), line 9 (a key) and line 10 (an address).
const THREE_PROBLEMS: &str = "\
listeners:
  - address: 127.0.0.1:0
upstream:
  address: 127.0.0.1:3000
rules:
  - name: a
    key: [client_ip]
    limit: 10/fortnight
    brust: 5
    match: { client_ip: 1.2.3.400 }
";

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn combined_output(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

fn write_file(directory: &TempDir, name: &str, yaml: &str) -> String {
    let path = directory.path().join(name);
    fs::write(&path, yaml).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Returns the lines `FILE:LINE:COL: PATH: …` about this file, each as its line number and the rest.
fn problems(output: &Output, file: &str) -> Vec<(u32, String)> {
    let place = |line: &str| {
        let rest = line.strip_prefix(file)?.strip_prefix(':')?;
        let (line, rest) = rest.split_once(':')?;
        let (column, rest) = rest.split_once(": ")?;
        column.parse::<u32>().ok()?;
        Some((line.parse().ok()?, rest.to_owned()))
    };
    combined_output(output).lines().filter_map(place).collect()
}

#[test]
fn help_lists_the_subcommands() {
    let output = run(["--help"]);
    assert_eq!(output.status.code(), Some(0));
    for command in ["run", "check"] {
        assert!(text(&output.stdout).contains(command));
    }
    assert_eq!(run(["run", "--help"]).status.code(), Some(0));
}

#[test]
fn manual_has_a_page_for_each_subcommand() {
    let page = run(["man"]);
    assert_eq!(page.status.code(), Some(0));
    assert!(text(&page.stdout).contains("rate\\-limiting reverse proxy"), "{}", text(&page.stdout));

    let directory = TempDir::new().unwrap();
    assert_eq!(run(["man", directory.path().to_str().unwrap()]).status.code(), Some(0));
    for page in ["weir.1", "weir-run.1", "weir-check.1", "weir-import-envoy-ratelimit.1"] {
        let text = fs::read_to_string(directory.path().join(page)).unwrap();
        assert!(text.contains(".SH SYNOPSIS") || text.contains(".SH SUBCOMMANDS"), "{page}: {text}");
    }

    let missing = run(["man", directory.path().join("none").to_str().unwrap()]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        text(&missing.stderr).starts_with("weir: cannot write the manual: "),
        "{}",
        text(&missing.stderr)
    );
}

#[test]
fn version_matches_the_crate() {
    let output = run(["--version"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout).trim(), format!("weir {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn bad_usage_exits_2() {
    let bad: [&[&str]; 5] =
        [&[], &["swim"], &["run", "--deep"], &["check"], &["run", "-c", "x", "--log-format", "morse"]];
    for arguments in bad {
        let output = run(arguments.iter().copied());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}: no error message");
    }
}

#[test]
fn check_exits_0_without_stderr_for_a_valid_file() {
    let directory = tempfile::tempdir().unwrap();
    let good = write_file(
        &directory,
        "good.yaml",
        &config("echo", "rules: [{ name: a, key: [client_ip], limit: 10/s }]"),
    );
    let output = run(["check", &good]);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

#[test]
fn check_reports_every_error_with_its_location() {
    let directory = tempfile::tempdir().unwrap();
    let bad = write_file(&directory, "bad.yaml", THREE_PROBLEMS);
    let output = run(["check", &bad]);
    assert_eq!(output.status.code(), Some(2));
    let problems = problems(&output, &bad);
    let lines: Vec<_> = problems.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [8, 9, 10], "{}", combined_output(&output));
    assert!(
        problems[0].1.starts_with("rules[0].limit: ") && problems[0].1.contains("fortnight"),
        "{problems:?}"
    );
    assert!(problems[1].1.contains("brust") && problems[1].1.contains("burst"), "no hint: {problems:?}");
    assert!(problems[2].1.starts_with("rules[0].match.client_ip"), "{problems:?}");
}

#[test]
fn check_takes_several_files_and_reports_each() {
    let directory = tempfile::tempdir().unwrap();
    let good = write_file(&directory, "good.yaml", &config("echo", ""));
    let bad = write_file(&directory, "bad.yaml", THREE_PROBLEMS);
    let worse = write_file(&directory, "worse.yaml", "listeners: {\n");
    let output = run(["check", &good, &bad, &worse, "/nonexistent/weir.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(problems(&output, &good).len(), 0);
    assert_eq!(problems(&output, &bad).len(), 3);
    assert!(!problems(&output, &worse).is_empty(), "{}", combined_output(&output));
    assert!(combined_output(&output).contains("/nonexistent/weir.yaml"), "{}", combined_output(&output));
}

#[test]
fn check_against_lists_changes() {
    let directory = tempfile::tempdir().unwrap();
    let running = "
rules:
  - { name: login, key: client_ip, limit: 10/h }
  - { name: api, match: { path: /api/* }, key: { header: x-key }, limits: [100/s, 1000/d] }
  - { name: shape, key: client_ip, limit: 5/s, burst: 20 }
  - { name: old, key: client_ip, limit: 1/s }
  - { name: gone, action: deny, match: { path: /gone } }
";
    let next = "
ratelimit_headers: off
drain: { timeout: 5s }
rules:
  - { name: login, key: client_ip, limit: 5/h }
  - { name: shape, key: client_ip, limit: 5/s, burst: 40, throttle: delay 1s }
  - { name: api, match: { path: /api/* }, key: client_ip, limits: [200/s, 1000/d] }
  - { name: new, key: { header: x-key }, limits: [1/s, 9/min] }
  - { name: gone, match: { path: /gone }, limit: 1/s }
";
    let running = write_file(&directory, "running.yaml", &config("echo", running));
    let next = write_file(&directory, "next.yaml", &config("127.0.0.1:3000", next));
    let output = run(["check", "--against", &running, &next]);
    let expected = "\
rule old: removed; counters dropped
rule login: 10/h → 5/h; counters kept
rule shape: 5/s, burst 20 → 5/s, burst 40; counters kept
rule shape: throttle hard → delay 1s
rule api: key [{header: x-key}] → [client_ip]; counters reset
rule api: 100/s → 200/s; counters reset
rule new: added, 1/s and 9/min by [{header: x-key}]
rule gone: deny → 1/s by []
rules: order changed, which breaks ties between equal retry-after times
upstreams: changed
ratelimit_headers, ietf_headers, header_names: changed
drain: changed
";
    assert_eq!(
        (output.status.code(), text(&output.stdout).as_str()),
        (Some(0), expected),
        "{}",
        combined_output(&output)
    );
    let same = run(["check", "--against", &running, &running]);
    assert_eq!((same.status.code(), text(&same.stdout).as_str()), (Some(0), "nothing changes\n"));
}

#[test]
fn check_against_detects_changed_secrets_and_data_files() {
    let rules = |plans: &str, secret: &str| {
        format!(
            "\
plans: {{ of: {{ header: x-key }}, {plans} }}
jwt: {{ secret: {secret}-that-is-long-enough-for-this, header: x-jwt }}
rules:
  - {{ name: plan, key: plan, limit: 9/s }}
  - {{ name: both, match: {{ plan: a }}, key: [plan, {{ header: x-key }}, {{ jwt: sub }}], limit: 9/s }}
  - name: nested
    key: [plan, {{ client_ip: {{ prefixes: [64, 48], limits: [{{ limit: 1/s }}, {{ limit: 9/s }}] }} }}]
  - {{ name: listed, match: {{ header: {{ x-partner: {{ file: partners.txt }} }} }}, action: allow }}
"
        )
    };
    let place = |plans: &str, secret: &str, files: &[(&str, &str)]| {
        let directory = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, content)| drop(write_file(&directory, name, content)));
        let path = write_file(&directory, "weir.yaml", &config("echo", &rules(plans, secret)));
        (directory, path)
    };
    let changes = |old: &str, new: &str| text(&run(["check", "--against", old, new]).stdout);
    let members = "members: { file: members.yaml }";
    let files = [("members.yaml", "k1: a\nk2: b\n"), ("partners.txt", "one\ntwo\n")];
    let (_kept, running) = place(members, "one", &files);
    let (_kept, copy) = place(members, "one", &files);
    assert_eq!(changes(&running, &running), "nothing changes\n");
    assert_eq!(changes(&running, &copy), "nothing changes\n");

    let others = [("members.yaml", "k1: a\nk3: b\n"), ("partners.txt", "one\nsix\n")];
    let (_kept, next) = place(members, "two", &others);
    let expected = "jwt.secret: changed\nfile members.yaml: changed\nfile partners.txt: changed\n";
    assert_eq!(changes(&running, &next), expected);

    let (_kept, written) = place("members: { k1: a, k2: b }", "one", &files);
    let (_kept, rewritten) = place("members: { k1: a, k9: b }", "one", &files);
    assert_eq!(changes(&written, &written), "nothing changes\n");
    assert_eq!(changes(&written, &rewritten), "plans: changed\n");
    assert_eq!(changes(&running, &written), "plans: changed\nfile members.yaml: no longer read\n");
}

#[test]
fn check_against_detects_changed_rls_scopes() {
    let directory = tempfile::tempdir().unwrap();
    let rule = |name: &str, port: u16, more: &str| {
        format!("  - {{ name: {name}, scope: {{ rls: '127.0.0.1:{port}', domain: d{more} }} }}\n")
    };
    let place = |name: &str, rules: &[String]| {
        write_file(&directory, name, &config("echo", &format!("rules:\n{}", rules.concat())))
    };
    let changes = |next: &[String]| {
        let running = place("running.yaml", &[rule("a", 1, ""), rule("b", 2, ""), rule("c", 1, "")]);
        text(&run(["check", "--against", &running, &place("next.yaml", next)]).stdout)
    };
    assert_eq!(changes(&[rule("a", 1, ""), rule("b", 2, ""), rule("c", 2, "")]), "rule c: scope changed\n");
    let order = "rules: order changed, which breaks ties between equal retry-after times\n";
    assert_eq!(changes(&[rule("b", 2, ""), rule("a", 1, ""), rule("c", 1, "")]), order);
    let slower = changes(&[rule("a", 1, ""), rule("b", 2, ", timeout: 1s"), rule("c", 1, "")]);
    assert_eq!(slower, "rate limit services of rules: changed\n");
    let added = changes(&[rule("a", 1, ""), rule("b", 2, ""), rule("c", 1, ""), rule("d", 1, "")]);
    assert_eq!(added, "rule d: added, rate limit service 127.0.0.1:1, domain d by []\n");
}

#[test]
fn check_against_requires_both_files_to_be_valid() {
    let directory = tempfile::tempdir().unwrap();
    let good = write_file(&directory, "good.yaml", &config("echo", ""));
    let bad = write_file(&directory, "bad.yaml", THREE_PROBLEMS);
    for (running, next) in [(&good, &bad), (&bad, &good)] {
        let output = run(["check", "--against", running, next]);
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(problems(&output, &bad).len(), 3, "{}", combined_output(&output));
    }
}

#[test]
fn run_rejects_an_invalid_configuration_with_all_errors() {
    let directory = tempfile::tempdir().unwrap();
    let bad = write_file(&directory, "bad.yaml", THREE_PROBLEMS);
    let output = run(["run", "-c", &bad]);
    assert_eq!(output.status.code(), Some(2));
    for word in ["fortnight", "brust", "1.2.3.400"] {
        assert!(
            combined_output(&output).contains(word),
            "{word} is not reported: {}",
            combined_output(&output)
        );
    }
}

#[test]
fn a_missing_file_exits_2_and_is_named() {
    for command in [["run", "-c"].as_slice(), &["check"]] {
        let output = run(command.iter().copied().chain(["/nonexistent/weir.yaml"]));
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        assert!(combined_output(&output).contains("/nonexistent/weir.yaml"), "{}", combined_output(&output));
    }
}

#[test]
fn a_port_in_use_exits_1_and_is_named() {
    let directory = tempfile::tempdir().unwrap();
    // Held for the whole test, so that the address stays in use.
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let yaml = config("echo", "");
    for taken in [
        yaml.replacen("127.0.0.1:0", &address, 1),
        yaml.replace("admin: { address: 127.0.0.1:0", &format!("admin: {{ address: \"{address}\"")),
    ] {
        let path = write_file(&directory, "weir.yaml", &taken);
        let output = run(["run", "-c", &path]);
        assert_eq!(output.status.code(), Some(1), "{}", combined_output(&output));
        assert!(combined_output(&output).contains(&address), "{}", combined_output(&output));
        assert!(!combined_output(&output).contains("panicked"), "{}", combined_output(&output));
    }
}

#[test]
fn environment_variables_are_substituted_in_values() {
    let directory = tempfile::tempdir().unwrap();
    let yaml = config("echo", "rules: [{ name: a, key: [], limit: \"${WEIR_TEST_LIMIT:-10/s}\" }]");
    let path = write_file(&directory, "weir.yaml", &yaml);
    assert_eq!(run(["check", &path]).status.code(), Some(0));
    let output =
        crate::support::weir::command(["check", &path]).env("WEIR_TEST_LIMIT", "10/fortnight").output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(combined_output(&output).contains("fortnight"), "{}", combined_output(&output));
}

#[test]
fn output_to_a_pipe_has_no_escape_sequences() {
    let directory = tempfile::tempdir().unwrap();
    let bad = write_file(&directory, "bad.yaml", THREE_PROBLEMS);
    for output in [run(["check", &bad]), run(["run", "-c", &bad]), run(["--help"])] {
        assert!(!combined_output(&output).contains('\u{1b}'), "escape sequences in a pipe");
    }
}

#[test]
fn every_example_configuration_passes_check() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = tempfile::tempdir().unwrap();
    let mut examples: Vec<PathBuf> = yaml_files(&root.join("config"));
    for manifest in yaml_files(&root.join("deploy")) {
        for (index, yaml) in embedded_configs(&fs::read_to_string(&manifest).unwrap()).into_iter().enumerate()
        {
            let name = format!("{}-{index}.yaml", manifest.file_stem().unwrap().to_string_lossy());
            examples.push(write_file(&directory, &name, &yaml).into());
        }
    }
    assert!(examples.len() >= 2, "{examples:?}");
    for example in examples {
        let output = run(["check", example.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{example:?}: {}", combined_output(&output));
    }
}

fn yaml_files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect()
}

/// Returns the `weir.yaml: |` blocks of a manifest, without their indentation.
fn embedded_configs(manifest: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = manifest.lines().peekable();
    while let Some(line) = lines.next() {
        if line.trim() != "weir.yaml: |" {
            continue;
        }
        let depth = line.len() - line.trim_start().len() + 2;
        let mut block = String::new();
        while let Some(line) = lines.next_if(|line| line.is_empty() || line.starts_with(&" ".repeat(depth))) {
            block.push_str(line.get(depth..).unwrap_or_default());
            block.push('\n');
        }
        blocks.push(block);
    }
    blocks
}

#[test]
fn symlink_named_ratelimit_runs_the_rate_limit_service() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("ratelimit");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_weir"), &link).unwrap();
    for arguments in [&[][..], &["--an-argument", "of somebody"]] {
        let mut run = std::process::Command::new(&link);
        let output = run.args(arguments).env_clear().env("GRPC_PORT", "many").output().unwrap();
        assert_eq!(text(&output.stderr), "GRPC_PORT: expected a port, got \"many\"\n", "{arguments:?}");
        assert_eq!(output.status.code(), Some(2));
    }
}

#[test]
fn check_notes_paths_that_a_trailing_slash_bypasses() {
    let notes = |rules: &str| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("weir.yaml");
        fs::write(&file, format!("listeners: 127.0.0.1:0\nupstream: echo\nrules:\n{rules}")).unwrap();
        let output = run(["check", file.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        text.lines().filter(|line| line.contains("trailing_slash")).map(str::to_owned).collect::<Vec<_>>()
    };
    let limit = |more: &str| format!("  - {{ name: a, match: {{ path: /login{more} }}, limit: 1/s }}\n");
    let noted = notes(&limit(""));
    assert_eq!(noted.len(), 1);
    assert!(noted[0].contains("4:31: rules[0].match.path: note: does not match `/login/`"), "{}", noted[0]);
    assert_eq!(notes("  - { name: a, match: { path: [/a, \"/u/{id}\"] }, action: deny }\n").len(), 2);
    // No note if the path does match with a slash, or if another rule of the same kind has a pattern that matches.
    let deny = "  - { name: b, match: { path: /login/* }, action: deny }\n";
    for (more, notes_of) in [(", trailing_slash: ignore", 0), (", trailing_slash: exact", 0)] {
        assert_eq!(notes(&limit(more)).len(), notes_of, "{more}");
    }
    assert_eq!(notes(&(limit("") + &deny.replace("deny", "limit, limit: 1/s"))).len(), 0);
    assert_eq!(notes(&(limit("") + deny)).len(), 1);
    assert_eq!(notes(&(limit("") + "  - { name: all, match: { path: /* }, limit: 100/s }\n")).len(), 1);
    for quiet in [
        "{ path: /healthz }, action: allow",
        "{ path: / }, limit: 1/s",
        "{ path: /p/* }, limit: 1/s",
        "{ path: /p/ }, limit: 1/s",
        "{ path: \"~^/p$\" }, limit: 1/s",
        "{ path: [/p, /p/] }, limit: 1/s",
    ] {
        assert!(notes(&format!("  - {{ name: a, match: {quiet} }}\n")).is_empty(), "{quiet}");
    }
    // Many notes are combined into one.
    let many: String =
        (0..50).map(|n| format!("  - {{ name: r{n}, match: {{ path: /{n} }}, limit: 1/s }}\n")).collect();
    let noted = notes(&many);
    assert!(noted.len() == 1 && noted[0].contains("rules: note: 50 paths"), "{noted:?}");
}

#[test]
fn file_in_the_wrong_place_is_explained() {
    for (arguments, written) in [
        (&["run", "weir.yaml"][..], "weir run -c weir.yaml"),
        (&["check", "-c", "weir.yaml"], "weir check weir.yaml"),
    ] {
        let output = run(arguments.iter().copied());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(written), "{}", text(&output.stderr));
    }
}

#[test]
fn check_says_what_a_valid_file_contains() {
    let directory = tempfile::tempdir().unwrap();
    let good = write_file(&directory, "good.yaml", &config("echo", "rules: [{ name: a, limit: 10/s }]"));
    let said = text(&run(["check", &good]).stdout);
    assert_eq!(said, format!("{good}: valid: listens on 127.0.0.1:0, upstream echo, 1 rule (1 limit)\n"));
}
