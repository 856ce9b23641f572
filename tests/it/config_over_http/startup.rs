//! Start with the server, without it, and from the cache.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

use super::server::{ConfigServer, ServerMode};
use super::{BootstrapDirectory, SHORT_INTERVAL, bootstrap, deny_document, fetches, is_denied, until_denied};
use crate::support::{Weir, wait, weir};

/// A short timeout, for starts that are expected to fail.
const SHORT_TIMEOUT: &str = ", timeout: 300ms";

/// Returns a directory whose cache has the document from `server`, which denies `/a`.
fn directory_with_cache(server: &ConfigServer) -> BootstrapDirectory {
    let place = BootstrapDirectory::new(&server.url(), SHORT_INTERVAL);
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    place.until_cached(&deny_document("a"));
    place
}

fn from_cache_metric(weir: &Weir) -> f64 {
    weir.metric("weir_config_from_cache", &[])
}

fn run(file: &Path) -> Output {
    weir::run(["run", "-c", file.to_str().unwrap()])
}

/// Returns the exit code and standard error.
fn run_to_failure(file: &Path) -> (Option<i32>, String) {
    let output = run(file);
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn service_unavailable() -> ServerMode {
    ServerMode::Raw(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n".to_vec())
}

#[test]
fn cache_file_is_accessible_by_its_owner_only() {
    let server = ConfigServer::start_plain(&deny_document("a"));
    let place = directory_with_cache(&server);
    assert_eq!(fs::metadata(place.cache_path()).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn cached_document_is_used_until_the_server_recovers() {
    let server = ConfigServer::start_plain(&deny_document("a"));
    let place = directory_with_cache(&server);
    server.set_mode(service_unavailable());
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    assert_eq!(from_cache_metric(&weir), 1.0);
    assert!(
        weir.log()
            .iter()
            .any(|line| line.contains("cannot fetch the configuration, starting with the cached one"))
    );
    server.set_mode(ServerMode::Plain);
    wait::until_true("the confirmation", || from_cache_metric(&weir) == 0.0);
    assert_eq!(weir.generation(), 1);
    server.publish(&deny_document("b"));
    until_denied(&weir, "b");
}

#[test]
fn recovered_server_replaces_the_cached_document() {
    let server = ConfigServer::start_plain(&deny_document("a"));
    let place = directory_with_cache(&server);
    server.set_mode(service_unavailable());
    let weir = place.start();
    server.publish(&deny_document("b"));
    server.set_mode(ServerMode::Plain);
    until_denied(&weir, "b");
    wait::until_true("the fetched document", || from_cache_metric(&weir) == 0.0);
}

#[test]
fn cached_document_is_revalidated_by_etag() {
    let server = ConfigServer::start_plain(&deny_document("a"));
    let place = directory_with_cache(&server);
    let before = server.origin.requests().len();
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    assert_eq!((fetches(&weir, "changed"), from_cache_metric(&weir)), (0.0, 0.0));
    assert_eq!(server.request_headers("if-none-match")[before].as_deref(), Some("\"1\""));
}

#[test]
fn start_fails_without_server_and_cache() {
    let (_socket, nowhere) = crate::support::origin::refusing_address();
    let place = BootstrapDirectory::new(&format!("http://{nowhere}/weir.yaml"), SHORT_TIMEOUT);
    let (code, said) = run_to_failure(&place.config_path());
    assert_eq!(code, Some(1), "{said}");
    let expected =
        format!("weir: cannot fetch the configuration from http://{nowhere}/weir.yaml, and none is cached: ");
    assert!(said.contains(&format!("{expected}cannot reach the server: Connection refused")), "{said}");
    let server = ConfigServer::start(service_unavailable(), "");
    let place = BootstrapDirectory::new(&server.url(), ", timeout: 2s");
    let (code, said) = run_to_failure(&place.config_path());
    assert_eq!(code, Some(1));
    assert!(said.contains("the server responded with 503 Service Unavailable"), "{said}");
    assert!(server.origin.requests().len() > 1, "the fetch was not retried");
}

#[test]
fn start_waits_for_the_server_within_the_timeout() {
    let server = ConfigServer::start(service_unavailable(), &deny_document("a"));
    let place = BootstrapDirectory::new(&server.url(), ", timeout: 1h");
    let starting = std::thread::spawn(move || {
        let weir = place.start();
        wait::until_true("the failed fetch to be counted", || fetches(&weir, "status") > 0.0);
        is_denied(&weir, "a")
    });
    wait::until_true("a failed fetch", || server.origin.requests().len() > 1);
    server.set_mode(ServerMode::Plain);
    assert!(starting.join().unwrap());
}

#[test]
fn damaged_cache_or_cache_of_another_url_is_ignored() {
    let server = ConfigServer::start_plain(&deny_document("a"));
    let place = directory_with_cache(&server);
    let whole = fs::read_to_string(place.cache_path()).unwrap();
    fs::write(place.config_path(), bootstrap(&server.url(), SHORT_TIMEOUT)).unwrap();
    server.set_mode(service_unavailable());
    for (damaged, why) in [
        (whole.replace("path: /a", "path: /x"), "damaged: wrong digest"),
        (whole[..whole.len() - 1].to_owned(), "damaged: wrong digest"),
        (String::new(), "not a cached configuration"),
    ] {
        fs::write(place.cache_path(), damaged).unwrap();
        let (code, said) = run_to_failure(&place.config_path());
        assert!(code == Some(1) && said.contains(why), "{said}");
    }
    fs::write(place.cache_path(), &whole).unwrap();
    fs::write(place.config_path(), bootstrap(&format!("{}?other", server.url()), SHORT_TIMEOUT)).unwrap();
    let (code, said) = run_to_failure(&place.config_path());
    assert!(code == Some(1) && said.contains("fetched from another URL"), "{said}");
    // With the server available, the cache is rewritten.
    fs::write(place.cache_path(), "damaged").unwrap();
    server.set_mode(ServerMode::Plain);
    let weir = place.start();
    assert!(is_denied(&weir, "a") && from_cache_metric(&weir) == 0.0);
    place.until_cached(&deny_document("a"));
}

#[test]
fn invalid_document_fails_the_start_unless_there_is_a_cache() {
    let server = ConfigServer::start_plain("rules: [{ name: a, limit: 1/fortnight }]\n");
    let place = BootstrapDirectory::new(&server.url(), "");
    let (code, said) = run_to_failure(&place.config_path());
    assert_eq!(code, Some(2));
    assert!(said.contains(&format!("{}:1:27: rules[0].limit: unknown unit", server.url())), "{said}");

    server.publish(&deny_document("a"));
    let place = directory_with_cache(&server);
    server.publish("rules: [{ name: a, limit: 1/fortnight }]\n");
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    wait::until_true("the rejection", || weir.rejected_reloads() == 1.0);
    assert_eq!((from_cache_metric(&weir), weir.generation()), (1.0, 1));
    let info = weir.admin_json("/server_info");
    assert!(info["config"]["last_reload"]["problems"][0].as_str().unwrap().contains("fortnight"), "{info:#}");
    server.publish(&deny_document("b"));
    until_denied(&weir, "b");
    wait::until_true("the fetched document", || from_cache_metric(&weir) == 0.0);
}

#[test]
fn key_in_bootstrap_and_document_fails_the_start() {
    let server =
        ConfigServer::start_plain("rules: []\nlisteners: 127.0.0.1:0\nconfig: { http: http://localhost/ }\n");
    let place = BootstrapDirectory::new(&server.url(), "");
    let (code, said) = run_to_failure(&place.config_path());
    assert_eq!(code, Some(2));
    let (url, file) = (server.url(), place.config_path());
    assert!(
        said.contains(&format!("{url}:2:1: listeners: duplicate key, also in {}:2:1", file.display())),
        "{said}"
    );
    assert!(
        said.contains(&format!("{url}:3:1: config: `config` is not allowed in a fetched document")),
        "{said}"
    );
}

#[test]
fn check_validates_the_bootstrap_without_the_server() {
    let (_socket, nowhere) = crate::support::origin::refusing_address();
    let place = BootstrapDirectory::new(&format!("http://{nowhere}/weir.yaml"), "");
    let check = || weir::run(["check", place.config_path().to_str().unwrap()]);
    let output = check();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains(":1:9: config: note: only this file is checked, not the fetched document"),
        "{said}"
    );
    fs::write(
        place.config_path(),
        bootstrap("gopher://h/", ", wait: 1500ms").replace("workers: 1", "workers: 0"),
    )
    .unwrap();
    let output = check();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 3), "{said}");
}

#[test]
fn unwritable_cache_is_counted_and_documents_still_apply() {
    let server = ConfigServer::start_plain(&deny_document("a"));
    let place = BootstrapDirectory::new(&server.url(), &format!("{SHORT_INTERVAL}, cache: nowhere/cache"));
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    let failed = || weir.metric("weir_config_cache_failures_total", &[]);
    wait::until_true("the failure", || failed() == 1.0);
    server.publish(&deny_document("b"));
    until_denied(&weir, "b");
    wait::until_true("the failure", || failed() == 2.0);
}

#[test]
fn disabled_cache_writes_no_file() {
    let server = ConfigServer::start_plain(&deny_document("a"));
    let place = BootstrapDirectory::new(&server.url(), ", cache: disabled");
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    let names: Vec<_> = fs::read_dir(place.config_path().parent().unwrap())
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    assert_eq!(names, ["weir.yaml"]);
}
