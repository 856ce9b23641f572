//! `weir check`: notes and `--strict`, standard input, configurations inside Kubernetes manifests; and `weir schema`.

use std::fs;
use std::io::Write as _;
use std::process::{Output, Stdio};

use tempfile::TempDir;

use crate::support::weir::{command, run};
use crate::support::{Weir, config, wait};

const NOTED_RULES: &str = "
rules:
  - { name: admin, match: { path: /api/admin/* }, action: deny }
  - { name: api, match: { path: /api/* }, action: allow }
";

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Writes files into a new directory.
fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, text)| fs::write(directory.path().join(name), text).unwrap());
    directory
}

/// Asserts that each line says of `file` that it is valid.
#[track_caller]
fn assert_valid(output: &Output, file: &str) {
    let printed = stdout(output);
    assert_eq!(output.status.code(), Some(0), "{printed}");
    let valid = format!("{file}: valid: ");
    assert!(!printed.is_empty() && printed.lines().all(|line| line.starts_with(&valid)), "{printed}");
}

fn check(directory: &TempDir, arguments: &[&str]) -> Output {
    let mut check = command(["check"]);
    check.args(arguments).current_dir(directory.path());
    check.output().unwrap()
}

fn check_input(input: &str, arguments: &[&str]) -> Output {
    let mut check = command(["check"]);
    check.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = check.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn strict_check_exits_1_on_notes_and_2_on_errors() {
    let noted = config("echo", NOTED_RULES);
    let files = directory(&[
        ("noted.yaml", &noted),
        ("good.yaml", &config("echo", "")),
        ("bad.yaml", "listeners: {\n"),
    ]);
    for (arguments, code) in [
        (&["noted.yaml"][..], 0),
        (&["--strict", "good.yaml"], 0),
        (&["--strict", "noted.yaml"], 1),
        (&["--strict", "good.yaml", "noted.yaml"], 1),
        (&["--strict", "noted.yaml", "bad.yaml", "good.yaml"], 2),
    ] {
        let output = check(&files, arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        let has_note = arguments.contains(&"noted.yaml");
        assert_eq!(
            stdout(&output).contains("noted.yaml:7:59: rules[0].action: note: has no effect"),
            has_note,
            "{output:?}"
        );
    }
    assert_eq!(run(["check", "--strict"]).status.code(), Some(2), "no file");
}

#[test]
fn check_reads_standard_input() {
    let output = check_input(&config("echo", "rules: [{ name: a, limit: 10/x }]"), &["-"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stdout(&output).starts_with("-:5:27: rules[0].limit: unknown unit \"x\""), "{output:?}");
    let noted = check_input(&config("echo", NOTED_RULES), &["--strict", "-"]);
    assert_eq!(noted.status.code(), Some(1), "{noted:?}");
    assert_eq!(check_input(&config("echo", ""), &["-"]).status.code(), Some(0));
    assert_eq!(check_input("", &["-"]).status.code(), Some(2));
}

/// The output of Helm: several documents, of which one ConfigMap has a configuration and a file that it names.
const MANIFESTS: &str = "\
---
# Source: web/templates/service.yaml
apiVersion: v1
kind: Service
metadata: { name: web }
---
# Source: web/templates/configmap.yaml
apiVersion: v1
kind: ConfigMap
metadata:
  name: nginx
data:
  nginx.conf: |
    worker_processes 1;
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: weir
data:
  keys.yaml: |
    8c1f: pro
    77c2: [gold]
  weir.yaml: |-
    # The limits of this service.
    listeners: 127.0.0.1:8080
    upstream: echo

    plans: { of: { header: x-api-key }, members: { file: keys.yaml } }
    rules:
      - name: a
        limit: 10/fortnight
";

#[test]
fn configuration_inside_a_config_map_is_checked_with_positions_of_the_manifest() {
    let files = directory(&[("all.yaml", MANIFESTS)]);
    let output = check(&files, &["all.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    let printed = stdout(&output);
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), 2, "{printed}");
    assert!(lines.iter().any(|line| line.starts_with("all.yaml:23:")), "the file beside it: {printed}");
    let limit = "all.yaml:32:16: data[\"weir.yaml\"].rules[0].limit: unknown unit \"fortnight\"";
    assert!(lines.iter().any(|line| line.starts_with(limit)), "{printed}");
    let twice = MANIFESTS.replace("fortnight", "s\n      - { name: a, limit: 1/s }");
    let output = check_input(&twice, &["-"]);
    assert!(stdout(&output).contains("duplicate rule name `a` (first in line 31)"), "{output:?}");
    let fixed = MANIFESTS.replace("fortnight", "s").replace("[gold]", "gold");
    let output = check_input(&fixed, &["--strict", "-"]);
    assert_valid(&output, "-");
}

#[test]
fn key_of_a_config_map_can_be_selected() {
    let text = "\
apiVersion: v1
kind: List
items:
  - apiVersion: v1
    kind: ConfigMap
    data:
      one.yaml: \"listeners: 127.0.0.1:0\\nupstream: echo\\nrules: [{ name: a, limit: 1/x }]\\n\"
      two.yaml: |
        listeners: 127.0.0.1:0
        upstream: echo
        rules: []
";
    let files = directory(&[("list.yaml", text), ("plain.yaml", &config("echo", ""))]);
    let output = check(&files, &["list.yaml"]);
    let expected = "list.yaml:7:17: items[0].data[\"one.yaml\"].rules[0].limit: unknown unit \"x\"";
    assert!(stdout(&output).starts_with(expected), "{output:?}");
    assert_eq!(check(&files, &["list.yaml#two.yaml"]).status.code(), Some(0));
    let missing = check(&files, &["list.yaml#three.yaml"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(stdout(&missing).contains("known keys: `one.yaml`, `two.yaml`"), "{missing:?}");
    assert_eq!(check(&files, &["plain.yaml#weir.yaml"]).status.code(), Some(2));
    let against = check(&files, &["--against", "plain.yaml", "list.yaml#two.yaml"]);
    assert_eq!(against.status.code(), Some(0), "{against:?}");
}

/// A ConfigMap with a configuration, its file `keys.yaml`, and `values` beside them.
fn config_map(values: &str) -> String {
    format!(
        "apiVersion: v1
kind: ConfigMap
metadata: {{ name: weir }}
data:
  weir.yaml: |
    listeners: 127.0.0.1:8080
    upstream: echo
    plans: {{ of: {{ header: x-api-key }}, members: {{ file: keys.yaml }} }}
    rules: [{{ name: a, match: {{ plan: pro }}, limit: 10/s, on_missing: skip }}]
  keys.yaml: |
    admin: pro
    rules: pro
{values}"
    )
}

#[test]
fn values_beside_a_configuration_are_checked_or_named() {
    let strict = |values: &str| {
        let output = check_input(&config_map(values), &["--strict", "-"]);
        (output.status.code(), stdout(&output))
    };
    let (code, printed) = strict("");
    assert!(
        code == Some(0) && printed.starts_with("-: valid: "),
        "the configuration and its file: {printed}"
    );
    let (code, printed) = strict("  edge.yaml: |\n    listners: 127.0.0.1:8081\n");
    assert!(printed.starts_with("-:14:5: data[\"edge.yaml\"].listners: unknown key"), "{printed}");
    assert_eq!(code, Some(2));
    let (code, printed) = strict("  edge.yaml: |\n    a: [\n");
    assert!(printed.contains("data[\"edge.yaml\"]") && printed.contains("not valid YAML"), "{printed}");
    assert_eq!(code, Some(2));
    let note =
        "-:4:1: data: note: not checked: `notes.yaml`, `ca.crt` (no configuration, and no file of one)\n";
    assert_eq!(strict("  notes.yaml: \"a: b\"\n  ca.crt: x\n"), (Some(1), note.to_owned()));
    let note = "-:13:1: binaryData: note: not checked: `edge.yaml` (base64 is not decoded: use text)\n";
    assert_eq!(strict("binaryData:\n  edge.yaml: bGlzdGVuZXJz\n"), (Some(1), note.to_owned()));
    let others = MANIFESTS.replace("fortnight", "s").replace("[gold]", "gold");
    let other = "---\napiVersion: v1\nkind: ConfigMap\ndata: { app.yaml: \"rules: []\", x.yaml: \"[\" }\n";
    let output = check_input(&(others + other), &["--strict", "-"]);
    assert_valid(&output, "-");
}

#[test]
fn manifest_without_a_configuration_is_an_error() {
    let service = "apiVersion: v1\nkind: Service\nmetadata: { name: web }\n";
    let output = check_input(service, &["-"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stdout(&output).starts_with("-: no ConfigMap in this manifest"), "{output:?}");
}

#[test]
fn shipped_manifests_are_checked_inside() {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/sidecar.yaml");
    assert_valid(&run(["check", "--strict", manifest]), manifest);
}

#[test]
fn schema_is_printed_as_json() {
    // `run` reads the output only at the end, and this is more than a pipe holds.
    let output = command(["schema"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert!(schema["properties"]["rules"].is_object());
}

#[test]
fn schema_may_be_read_in_part() {
    let mut child = command(["schema"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // More than a pipe holds is left unread.
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn notes_are_logged_at_start_and_after_a_reload() {
    let weir = Weir::start(&config("echo", NOTED_RULES));
    let has_logged = |part: &str| weir.log().iter().any(|line| line.contains(part));
    wait::until_true("the note", || has_logged("rules[0].action: note: has no effect"));
    let next = NOTED_RULES
        .replace("match: { path: /api/* }", "match: { path: \\\"/{version}/*\\\" }")
        .replace("\\\"", "\"");
    weir.reload(&config("echo", &(next + "  - { name: later, key: { header: x-key }, limit: 1/s }\n")));
    wait::until_true("the other note", || has_logged("rules[2].key: note: requests without the header"));
}
