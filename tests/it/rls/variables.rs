//! `weir rls`, set up by the variables of the reference.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;

use super::{Code, RlsClient};
use crate::support::{Weir, get, wait, weir};

const RULES: &str =
    "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: year, requests_per_unit: 1 }\n";
const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;

/// Variables that every test needs.
fn start(root: &Path, variables: &[(&str, &str)]) -> (Weir, RlsClient) {
    let common = [
        ("RUNTIME_ROOT", root.to_str().unwrap()),
        ("GRPC_HOST", "127.0.0.1"),
        ("GRPC_PORT", "0"),
        ("HOST", "127.0.0.1"),
        ("PORT", "0"),
        ("DEBUG_PORT", "0"),
        ("USE_STATSD", "false"),
        ("WEIR_ADMIN_ADDRESS", "127.0.0.1:0"),
    ];
    // A variable of the test replaces a common one.
    let weir = Weir::start_rls(&[&common[..], variables].concat());
    let client = RlsClient::connect(weir.rls_address("grpc"));
    (weir, client)
}

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn application_directory_applies_while_the_root_is_watched() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "rules/d.yaml", RULES);
    write(root.path(), "config/other.yaml", "domain: other\nunknown: 1\n");
    let (_weir, client) = start(root.path(), &[("RUNTIME_APPDIRECTORY", "rules")]);
    client.check("d", "k=x");
    assert_eq!(client.check("d", "k=x").overall_code(), Code::OverLimit);
}

#[test]
fn service_starts_with_an_invalid_file_and_continues_once_it_is_valid() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "config/d.yaml", "domain: d\nunknown: 1\n");
    let (weir, client) = start(root.path(), &[]);
    let request = || {
        let descriptors = vec![super::descriptor("k=x")];
        client.try_check(super::RateLimitRequest { domain: "d".to_owned(), descriptors, hits_addend: 0 })
    };
    assert_eq!(request().unwrap_err().message(), "no rate limit configuration loaded");
    assert_eq!(client.health("").unwrap(), NOT_SERVING);
    let log = weir.log().join("\n");
    assert!(log.contains("config.d.yaml: config error, unknown key 'unknown'"), "{log}");
    write(root.path(), "config/d.yaml", RULES);
    wait::until_true("the valid file", || request().is_ok());
    assert_eq!(client.health("").unwrap(), SERVING);
}

#[test]
fn service_without_a_domain_is_unhealthy_if_it_needs_one() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("config")).unwrap();
    let (weir, client) = start(root.path(), &[("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")]);
    assert_eq!(client.health("").unwrap(), NOT_SERVING);
    assert_eq!(get(weir.rls_address("http"), "/healthcheck").status, 500);
    let log = weir.log().join("\n");
    assert!(log.contains("no rule files in") && log.contains("RUNTIME_ROOT"), "{log}");
    write(root.path(), "config/d.yaml", RULES);
    wait::until_true("the first domain", || client.health("").unwrap() == SERVING);
    fs::remove_file(root.path().join("config/d.yaml")).unwrap();
    wait::until_true("its removal", || client.health("").unwrap() == NOT_SERVING);
    let (_other, without) = start(&root.path().join("config"), &[]);
    assert_eq!(without.health("").unwrap(), SERVING, "as in the reference");
}

#[test]
fn errors_name_the_variable() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "config/d.yaml", RULES);
    let root = root.path().to_str().unwrap();
    for (name, value, expected) in [
        ("GRPC_HOST", "nowhere.test", "GRPC_HOST, GRPC_PORT, GRPC_UDS: "),
        ("GRPC_PORT", "many", "GRPC_PORT: expected a port, got \"many\""),
        ("LIMIT_LIMIT_HEADER", "a b", "LIMIT_LIMIT_HEADER: not a header name, got \"a b\""),
    ] {
        let output = weir::command(["rls"])
            .env_clear()
            .envs([("RUNTIME_ROOT", root), ("LIMIT_RESPONSE_HEADERS_ENABLED", "1"), (name, value)])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.lines().any(|line| line.starts_with(expected)), "{said}");
    }
}

#[test]
fn statistics_go_to_statsd_over_tcp_by_default() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "config/d.yaml", RULES);
    let statsd = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = statsd.local_addr().unwrap().port().to_string();
    let variables = [
        ("USE_STATSD", "true"),
        ("STATSD_HOST", "127.0.0.1"),
        ("STATSD_PORT", &port),
        ("STATS_FLUSH_INTERVAL", "50ms"),
    ];
    let (_weir, client) = start(root.path(), &variables);
    client.check("d", "k=x");
    let (stream, _) = statsd.accept().unwrap();
    stream.set_read_timeout(Some(wait::DEADLINE)).unwrap();
    let name = "ratelimit.service.rate_limit.d.k.total_hits:1|c";
    assert!(BufReader::new(stream).lines().map_while(Result::ok).any(|line| line == name));
}

#[test]
fn sigterm_begins_a_delay_in_which_calls_are_served() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "config/d.yaml", RULES);
    let (mut weir, client) = start(root.path(), &[("WEIR_DRAIN_TIMEOUT", "1s")]);
    assert_eq!(client.health("").unwrap(), SERVING);
    weir.terminate();
    wait::until_true("bad health", || client.health("").unwrap() == NOT_SERVING);
    assert_eq!(client.check("d", "k=x").statuses.len(), 1, "within the default delay");
    weir.admin_post("/drain_listeners");
    assert!(weir.wait_exit().success());
}

#[test]
fn explain_answers_for_limits_of_documents() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "config/d.yaml", RULES);
    let (weir, client) = start(root.path(), &[]);
    let admin = weir.admin_address("full").to_string();
    let explain = |domain: &str, entry: &str| {
        let arguments = ["explain", "--admin", &admin, "--domain", domain, "--descriptor", entry];
        let output = weir::run(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let before = explain("d", "k=x");
    assert!(before.starts_with("ALLOWED"), "{before}");
    assert!(before.contains("documents: d.k: 1 per YEAR, remaining 1, reset in "), "{before}");
    assert!(explain("d", "k=x").contains("remaining 1,"), "nothing is counted");
    client.check("d", "k=x");
    let after = explain("d", "k=x");
    assert!(after.starts_with("LIMITED: over the limit of `d.k` of a document: OVER_LIMIT"), "{after}");
    assert!(explain("d", "k=y").starts_with("ALLOWED"), "another value");
    assert!(explain("d", "other=x").contains("documents: no limit has these entries"));
    assert!(explain("e", "k=x").contains("documents: no document has this domain"));
    let file = root.path().join("weir.yaml");
    fs::write(&file, super::config(&root.path().join("config"), "")).unwrap();
    let arguments =
        ["explain", "-c", file.to_str().unwrap(), "--domain", "d", "--descriptor", "k=x", "--format", "json"];
    let output = weir::run(arguments);
    let explanation: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(explanation["documents"]["limit"]["remaining"], 1, "{explanation}");
}

#[test]
fn calls_are_logged_at_debug_and_descriptors_without_a_limit_counted() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "config/d.yaml", RULES);
    let (weir, client) = start(root.path(), &[("LOG_LEVEL", "debug")]);
    client.check_all("d", vec![super::descriptor("k=x"), super::descriptor("other=y,z=1")]);
    client.check("unknown", "k=x");
    let line = "(k=x): limit 1 per YEAR, 0 remaining, OK; (other=y),(z=1): no limit, OK";
    wait::until_true("the line", || weir.log().iter().any(|logged| logged.contains(line)));
    let counted = weir.metric("weir_rate_limit_descriptors_without_limit_total", &[("domain", "d")]);
    assert_eq!(counted, 1.0);
}
