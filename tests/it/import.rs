//! `weir import`: output and exit codes.

mod envoy;
mod kubernetes;
mod nginx;

use std::fs;
use std::io::Write as _;
use std::process::{Output, Stdio};

use tempfile::TempDir;

use crate::support::weir::{command, run};

const SERVICE: &str = "listeners: 127.0.0.1:0\nupstream: echo\nrls: { address: 127.0.0.1:0 }\n";

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn write_file(directory: &TempDir, name: &str, text: &str) -> String {
    let path = directory.path().join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Runs `weir import FORMAT -` with a text on standard input.
fn import_from_input(format: &str, input: &str) -> Output {
    let mut weir = command(["import", format, "-"]);
    weir.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = weir.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Checks that the output of `weir import`, pasted into a configuration, passes `weir check` without a note.
fn assert_imports(arguments: &[&str], expected: &[&str]) {
    let output = run(["import"].iter().chain(arguments).copied());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let rules = text(&output.stdout);
    for expected in expected {
        assert!(rules.contains(expected), "no {expected} in:\n{rules}");
    }
    let directory = TempDir::new().unwrap();
    let pasted = write_file(&directory, "weir.yaml", &format!("{SERVICE}{rules}"));
    let checked = run(["check", &pasted]);
    let printed = text(&checked.stdout);
    // One line: there are no notes either.
    let is_valid = printed.lines().count() == 1 && printed.contains(": valid: ");
    assert!(checked.status.code() == Some(0) && is_valid, "{printed}");
}

#[test]
fn envoy_ratelimit_files_are_converted_to_valid_rules() {
    let directory = TempDir::new().unwrap();
    let limits = "
domain: edge
descriptors:
  - key: remote_address
    rate_limit: { unit: minute, requests_per_unit: 10 }
";
    let more = limits.replace("edge", "inner").replace("remote_address", "tenant");
    let [limits, more] = [write_file(&directory, "a.yaml", limits), write_file(&directory, "b.yaml", &more)];
    assert_imports(
        &["envoy-ratelimit", &limits, &more],
        &["name: edge.remote_address", "limit: 10/m", "key: [{ descriptor: tenant }]", "domain: inner"],
    );
}

#[test]
fn local_ratelimit_filter_is_converted_to_valid_rules() {
    let directory = TempDir::new().unwrap();
    let filter = r#"{ "typed_config": {
  "@type": "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
  "stat_prefix": "edge", "token_bucket": { "max_tokens": 20, "tokens_per_fill": 5, "fill_interval": "1s" },
  "filter_enabled": { "default_value": { "numerator": 100 } },
  "filter_enforced": { "default_value": { "numerator": 100 } } } }"#;
    let filter = write_file(&directory, "filter.json", filter);
    assert_imports(
        &["local-ratelimit", &filter],
        &["- name: edge\n    limit: 5/s\n    burst: 20\n    algorithm: token_bucket\n"],
    );
}

#[test]
fn nginx_files_are_converted_with_their_includes() {
    let directory = TempDir::new().unwrap();
    let main = "http { limit_req_zone $binary_remote_addr zone=ip:1m rate=10r/s; include *.d/*.conf; include none; }";
    let main = write_file(&directory, "nginx.conf", main);
    fs::create_dir(directory.path().join("conf.d")).unwrap();
    write_file(
        &directory,
        "conf.d/a.conf",
        "server { limit_req zone=ip burst=5; location = /x { deny all; } }",
    );
    assert_imports(
        &["nginx", &main],
        &[
            "- name: ip\n    key: [{ client_ip: { prefix: 128 } }]\n    limit: 10/s\n    burst: 1\n    throttle: delay 500ms",
            "none` not included: No such file",
            "action: deny",
        ],
    );
}

#[test]
fn differences_of_an_import_are_warnings_on_standard_error() {
    let directory = TempDir::new().unwrap();
    let config = "http { set_real_ip_from 0.0.0.0/0; real_ip_header X-Real-IP; limit_req_status 444;
        limit_req_zone $binary_remote_addr zone=ip:1m rate=1r/s; server { limit_req zone=ip; limit_rate 1k; } }";
    let config = write_file(&directory, "nginx.conf", config);
    let output = run(["import", "nginx", &config]);
    let (rules, warnings) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
    for expected in
        ["`real_ip_header X-Real-IP` needs `client_ip.header: x-real-ip`", "looser: ", "`limit_rate 1k`"]
    {
        assert!(
            warnings.contains(expected) && rules.contains(expected),
            "no {expected} in:\n{warnings}\n{rules}"
        );
    }
    assert!(!rules.contains("add 0.0.0.0/0"), "{rules}");
    assert!(rules.contains("status 444 closes the connection") && !rules.contains("status: 444"), "{rules}");
}

#[test]
fn an_import_reads_standard_input() {
    let limits = "domain: d\ndescriptors: [{ key: k, rate_limit: { unit: day, requests_per_unit: 5 } }]\n";
    let output = import_from_input("envoy-ratelimit", limits);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("limit: 5/d"), "{}", text(&output.stdout));
}

#[test]
fn invalid_input_exits_2_with_its_location() {
    let directory = TempDir::new().unwrap();
    let wrong = write_file(&directory, "wrong.yaml", "domain: edge\ndescriptors:\n  - value: x\n");
    let nothing = write_file(&directory, "nothing.yaml", "a: b\n");
    for (arguments, expected) in [
        (["envoy-ratelimit", &wrong], format!("{wrong}:3:5: descriptor has empty key\n")),
        (
            ["local-ratelimit", &nothing],
            format!("{nothing}: no envoy.filters.http.local_ratelimit in the file\n"),
        ),
    ] {
        let output = run(["import"].into_iter().chain(arguments));
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), &*expected));
        assert!(output.stdout.is_empty());
    }
    let missing = directory.path().join("none.yaml");
    let output = run(["import", "local-ratelimit", missing.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("none.yaml: not readable"), "{}", text(&output.stderr));
    for usage in [&["import"][..], &["import", "envoy-ratelimit"], &["import", "nginx"]] {
        assert_eq!(run(usage.iter().copied()).status.code(), Some(2), "{usage:?}");
    }
}
