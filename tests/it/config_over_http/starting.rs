//! Start with the server, without it, and from the cache.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

use super::server::{Manner, Server};
use super::{OFTEN, Place, bootstrap, denying, fetches, is_denied, until_denied};
use crate::support::{Weir, wait, weir};

/// A short timeout, for starts that are expected to fail.
const SHORT: &str = ", timeout: 300ms";

/// Returns a directory whose cache has the document from `server`, which denies `/a`.
fn with_cache(server: &Server) -> Place {
    let place = Place::new(&server.url(), OFTEN);
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    place.kept(&denying("a"));
    place
}

fn from_cache(weir: &Weir) -> f64 {
    weir.metric("weir_config_from_cache", &[])
}

fn run(file: &Path) -> Output {
    weir::run(["run", "-c", file.to_str().unwrap()])
}

/// Returns the exit code and standard error.
fn failure(file: &Path) -> (Option<i32>, String) {
    let output = run(file);
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn broken() -> Manner {
    Manner::Saying(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n".to_vec())
}

#[test]
fn the_cache_is_for_its_owner_alone() {
    let server = Server::plain(&denying("a"));
    let place = with_cache(&server);
    assert_eq!(fs::metadata(place.cache()).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn without_the_server_the_last_document_is_what_runs_until_the_server_is_back() {
    let server = Server::plain(&denying("a"));
    let place = with_cache(&server);
    server.behave(broken());
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    assert_eq!(from_cache(&weir), 1.0);
    assert!(
        weir.log()
            .iter()
            .any(|line| line.contains("cannot fetch the configuration, starting with the cached one"))
    );
    server.behave(Manner::Plain);
    wait::until_true("the confirmation", || from_cache(&weir) == 0.0);
    assert_eq!(weir.generation(), 1);
    server.publish(&denying("b"));
    until_denied(&weir, "b");
}

#[test]
fn a_server_that_is_back_with_another_document_is_followed() {
    let server = Server::plain(&denying("a"));
    let place = with_cache(&server);
    server.behave(broken());
    let weir = place.start();
    server.publish(&denying("b"));
    server.behave(Manner::Plain);
    until_denied(&weir, "b");
    wait::until_true("the fetched document", || from_cache(&weir) == 0.0);
}

#[test]
fn what_was_kept_is_confirmed_by_its_etag() {
    let server = Server::plain(&denying("a"));
    let place = with_cache(&server);
    let before = server.origin.seen().len();
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    assert_eq!((fetches(&weir, "changed"), from_cache(&weir)), (0.0, 0.0));
    assert_eq!(server.asked_with("if-none-match")[before].as_deref(), Some("\"1\""));
}

#[test]
fn without_the_server_and_without_a_cache_it_ends_and_says_why() {
    let (_socket, nowhere) = crate::support::origin::refusing();
    let place = Place::new(&format!("http://{nowhere}/weir.yaml"), SHORT);
    let (code, said) = failure(&place.file());
    assert_eq!(code, Some(1), "{said}");
    let expected =
        format!("weir: cannot fetch the configuration from http://{nowhere}/weir.yaml, and none is cached: ");
    assert!(said.contains(&format!("{expected}cannot reach the server: Connection refused")), "{said}");
    let server = Server::start(broken(), "");
    let place = Place::new(&server.url(), ", timeout: 2s");
    let (code, said) = failure(&place.file());
    assert_eq!(code, Some(1));
    assert!(said.contains("the server responded with 503 Service Unavailable"), "{said}");
    assert!(server.origin.seen().len() > 1, "the fetch was not retried");
}

#[test]
fn a_server_that_comes_up_in_time_is_waited_for() {
    let server = Server::start(broken(), &denying("a"));
    let place = Place::new(&server.url(), ", timeout: 1h");
    let starting = std::thread::spawn(move || {
        let weir = place.start();
        wait::until_true("the failed fetch to be counted", || fetches(&weir, "status") > 0.0);
        is_denied(&weir, "a")
    });
    wait::until_true("a failed fetch", || server.origin.seen().len() > 1);
    server.behave(Manner::Plain);
    assert!(starting.join().unwrap());
}

#[test]
fn a_cache_that_is_damaged_or_of_another_url_is_not_used() {
    let server = Server::plain(&denying("a"));
    let place = with_cache(&server);
    let whole = fs::read_to_string(place.cache()).unwrap();
    fs::write(place.file(), bootstrap(&server.url(), SHORT)).unwrap();
    server.behave(broken());
    for (damaged, why) in [
        (whole.replace("path: /a", "path: /x"), "damaged: wrong digest"),
        (whole[..whole.len() - 1].to_owned(), "damaged: wrong digest"),
        (String::new(), "not a cached configuration"),
    ] {
        fs::write(place.cache(), damaged).unwrap();
        let (code, said) = failure(&place.file());
        assert!(code == Some(1) && said.contains(why), "{said}");
    }
    fs::write(place.cache(), &whole).unwrap();
    fs::write(place.file(), bootstrap(&format!("{}?other", server.url()), SHORT)).unwrap();
    let (code, said) = failure(&place.file());
    assert!(code == Some(1) && said.contains("fetched from another URL"), "{said}");
    // With the server available, the cache is rewritten.
    fs::write(place.cache(), "damaged").unwrap();
    server.behave(Manner::Plain);
    let weir = place.start();
    assert!(is_denied(&weir, "a") && from_cache(&weir) == 0.0);
    place.kept(&denying("a"));
}

#[test]
fn an_invalid_document_ends_the_start_unless_there_is_a_cache() {
    let server = Server::plain("rules: [{ name: a, limit: 1/fortnight }]\n");
    let place = Place::new(&server.url(), "");
    let (code, said) = failure(&place.file());
    assert_eq!(code, Some(2));
    assert!(said.contains(&format!("{}:1:27: rules[0].limit: unknown unit", server.url())), "{said}");

    server.publish(&denying("a"));
    let place = with_cache(&server);
    server.publish("rules: [{ name: a, limit: 1/fortnight }]\n");
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    wait::until_true("the rejection", || weir.rejected_reloads() == 1.0);
    assert_eq!((from_cache(&weir), weir.generation()), (1.0, 1));
    let info = weir.admin_json("/server_info");
    assert!(info["config"]["last_reload"]["problems"][0].as_str().unwrap().contains("fortnight"), "{info:#}");
    server.publish(&denying("b"));
    until_denied(&weir, "b");
    wait::until_true("the fetched document", || from_cache(&weir) == 0.0);
}

#[test]
fn keys_of_both_texts_that_meet_end_the_start() {
    let server = Server::plain("rules: []\nlisteners: 127.0.0.1:0\nconfig: { http: http://localhost/ }\n");
    let place = Place::new(&server.url(), "");
    let (code, said) = failure(&place.file());
    assert_eq!(code, Some(2));
    let (url, file) = (server.url(), place.file());
    assert!(
        said.contains(&format!("{url}:2:1: listeners: duplicate key, also in {}:2:1", file.display())),
        "{said}"
    );
    assert!(said.contains(&format!("{url}:3:1: config: a document that is fetched cannot say")), "{said}");
}

#[test]
fn a_bootstrap_is_checked_without_the_server() {
    let (_socket, nowhere) = crate::support::origin::refusing();
    let place = Place::new(&format!("http://{nowhere}/weir.yaml"), "");
    let check = || weir::run(["check", place.file().to_str().unwrap()]);
    let output = check();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains(":1:9: config: note: only this file is checked, not the fetched document"),
        "{said}"
    );
    fs::write(place.file(), bootstrap("gopher://h/", ", wait: 1500ms").replace("workers: 1", "workers: 0"))
        .unwrap();
    let output = check();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 3), "{said}");
}

#[test]
fn a_cache_that_cannot_be_written_is_a_warning_and_a_metric() {
    let server = Server::plain(&denying("a"));
    let place = Place::new(&server.url(), &format!("{OFTEN}, cache: nowhere/cache"));
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    let failed = || weir.metric("weir_config_cache_failures_total", &[]);
    wait::until_true("the failure", || failed() == 1.0);
    server.publish(&denying("b"));
    until_denied(&weir, "b");
    wait::until_true("the failure", || failed() == 2.0);
}

#[test]
fn without_a_cache_nothing_is_written() {
    let server = Server::plain(&denying("a"));
    let place = Place::new(&server.url(), ", cache: disabled");
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    let names: Vec<_> =
        fs::read_dir(place.file().parent().unwrap()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(names, ["weir.yaml"]);
}
