//! Servers that fail and documents that are invalid: the running configuration stays in force.

use super::server::{self, ConfigServer, ServerMode};
use super::{
    BootstrapDirectory, SHORT_INTERVAL, deny_document, fetches, is_denied, until_denied, until_fetched,
};
use crate::support::{Weir, wait};

/// Starts a proxy that denies `/a`, and the server from which it has this configuration.
fn start_with_server() -> (ConfigServer, BootstrapDirectory, Weir) {
    let server = ConfigServer::start_plain(&deny_document("a"));
    let place = BootstrapDirectory::new(&server.url(), SHORT_INTERVAL);
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    (server, place, weir)
}

/// Checks that `/a` stays denied while the server sends `said`, and that fetches end with `outcome`. Then the server
/// recovers and a new document is applied.
fn assert_config_survives(said: impl Into<Vec<u8>>, outcome: &str) -> Weir {
    let (server, place, weir) = start_with_server();
    let cache = place.until_cached(&deny_document("a"));
    server.set_mode(ServerMode::Raw(said.into()));
    until_fetched(&weir, outcome, 2.0);
    assert!(is_denied(&weir, "a"));
    assert_eq!((weir.generation(), fetches(&weir, "changed")), (1, 1.0));
    assert_eq!(place.until_cached(""), cache);
    server.set_mode(ServerMode::Plain);
    server.publish(&deny_document("b"));
    until_denied(&weir, "b");
    wait::until_true("the cache", || {
        std::fs::read_to_string(place.cache_path()).unwrap().ends_with(&deny_document("b"))
    });
    weir
}

fn count_log_lines(weir: &Weir, text: &str) -> usize {
    weir.log().iter().filter(|line| line.contains(text)).count()
}

#[test]
fn error_status_keeps_the_configuration_and_is_logged_once() {
    let weir = assert_config_survives("HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n", "status");
    let expected = "the server responded with 401 Unauthorized; check the credentials in `config.headers`";
    assert_eq!(count_log_lines(&weir, expected), 1);
    assert_eq!(count_log_lines(&weir, "the configuration can be fetched again"), 1);
    assert_config_survives(
        server::ok_response(&deny_document("x"), "").replace("200 OK", "500 Oops"),
        "status",
    );
}

#[test]
fn a_redirect_is_not_followed() {
    let elsewhere = ConfigServer::start_plain(&deny_document("x"));
    let said = format!("HTTP/1.1 302 Found\r\nlocation: {}\r\ncontent-length: 0\r\n\r\n", elsewhere.url());
    let weir = assert_config_survives(said, "status");
    assert_eq!(count_log_lines(&weir, "redirects are not followed"), 1);
    assert!(elsewhere.origin.requests().is_empty());
}

#[test]
fn truncated_response_is_discarded() {
    let whole = server::ok_response(&format!("{}rules_of_others: []", deny_document("x")), "");
    assert_config_survives(&whole[..whole.len() - 20], "unusable");
}

#[test]
fn response_without_framing_is_discarded() {
    let weir = assert_config_survives(format!("HTTP/1.1 200 OK\r\n\r\n{}", deny_document("x")), "unusable");
    assert_eq!(count_log_lines(&weir, "neither Content-Length nor chunked framing"), 1);
}

#[test]
fn oversized_document_is_discarded() {
    let large = format!("{}#{}", deny_document("x"), "x".repeat(1 << 20));
    let weir = assert_config_survives(server::ok_response(&large, ""), "unusable");
    assert_eq!(count_log_lines(&weir, "larger than 1 MiB"), 1);
    // Too large without a Content-Length, and without an end.
    let mut endless =
        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n800000\r\n{}", deny_document("x"));
    endless.push_str(&"#".repeat(0x80_0000 - deny_document("x").len()));
    assert_config_survives(endless, "unusable");
}

#[test]
fn non_utf8_or_encoded_document_is_discarded() {
    assert_config_survives(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n#\xff\n".as_slice(), "unusable");
    assert_config_survives(
        server::ok_response(&deny_document("x"), "content-encoding: gzip\r\n"),
        "unusable",
    );
    assert_config_survives("I am no HTTP\r\n\r\n", "unreachable");
}

#[test]
fn unresponsive_server_times_out() {
    let server = ConfigServer::start_long_polling(&deny_document("a"));
    let place = BootstrapDirectory::new(&server.url(), ", interval: 100ms, wait: 1s, timeout: 300ms");
    let weir = place.start();
    let silent = crate::support::Origin::start(|turn| {
        // Waits until the client has closed the connection.
        turn.wire.is_closed();
        Ok(crate::support::AfterResponse::Close)
    });
    weir.replace_file(&super::bootstrap(
        &format!("http://{}/", silent.address()),
        ", interval: 100ms, wait: 1s, timeout: 300ms",
    ));
    until_fetched(&weir, "timed_out", 2.0);
    assert!(is_denied(&weir, "a"));
}

#[test]
fn invalid_document_is_rejected_with_locations_and_fetched_once() {
    let (server, place, weir) = start_with_server();
    let cache = place.until_cached(&deny_document("a"));
    server.publish(&format!("{}  \n# a remark\ndrain: none\nrulez: []\n", deny_document("x")));
    wait::until_true("the rejection", || weir.rejected_reloads() == 1.0);
    until_fetched(&weir, "unchanged", 3.0);
    assert_eq!((weir.rejected_reloads(), fetches(&weir, "changed"), weir.generation()), (1.0, 2.0, 1));
    assert!(is_denied(&weir, "a") && !is_denied(&weir, "x"));
    assert_eq!(weir.metric("weir_config_last_reload_successful", &[]), 0.0);
    let url = server.url();
    for page in ["/server_info", "/config_dump"] {
        let shown = weir.admin_get(page).body.text();
        assert!(shown.contains(&format!("{url}:4:8: drain: ")), "{shown}");
        assert!(
            shown.contains(&format!("{url}:5:1: rulez: unknown key `rulez` (did you mean `rules`?)")),
            "{shown}"
        );
    }
    assert_eq!(count_log_lines(&weir, &format!("{url}:4:8: drain: ")), 1);
    assert_eq!(place.until_cached(""), cache, "an invalid document is not cached");
    server.publish(&deny_document("b"));
    until_denied(&weir, "b");
    wait::until_true("a successful reload", || weir.metric("weir_config_last_reload_successful", &[]) == 1.0);
}

#[test]
fn republishing_the_last_good_document_clears_the_error() {
    let (server, _place, weir) = start_with_server();
    server.publish("<html>It works!</html>");
    wait::until_true("the rejection", || weir.rejected_reloads() == 1.0);
    server.publish(&deny_document("a"));
    let unchanged = || weir.metric("weir_config_reloads_total", &[("outcome", "unchanged")]);
    wait::until_true("the unchanged document", || unchanged() == 1.0);
    assert_eq!(weir.generation(), 1);
    wait::until_true("a successful reload", || weir.metric("weir_config_last_reload_successful", &[]) == 1.0);
}

#[test]
fn missing_end_marker_is_rejected_as_truncated() {
    let (server, _place, weir) = start_with_server();
    server.publish(&format!("{}...\n", deny_document("b")));
    until_denied(&weir, "b");
    server.publish(&deny_document("x"));
    wait::until_true("the rejection", || weir.rejected_reloads() == 1.0);
    assert!(is_denied(&weir, "b"));
}

#[test]
fn key_in_bootstrap_and_document_is_rejected_with_both_locations() {
    let (server, place, weir) = start_with_server();
    server.publish(&format!("{}upstream: echo\n", deny_document("x")));
    wait::until_true("the rejection", || weir.rejected_reloads() == 1.0);
    let info = weir.admin_json("/server_info");
    let problem = info["config"]["last_reload"]["problems"][0].as_str().unwrap();
    let (url, file) = (server.url(), place.config_path());
    assert_eq!(
        problem,
        format!(
            "{url}:2:1: upstream: duplicate key, also in {}:4:1 \
             (write each top-level key in only one of the two)",
            file.display()
        )
    );
}

#[test]
fn unreachable_server_is_retried_until_it_recovers() {
    let (_socket, nowhere) = crate::support::origin::refusing_address();
    let server = ConfigServer::start_plain(&deny_document("a"));
    let place = BootstrapDirectory::new(&server.url(), SHORT_INTERVAL);
    let weir = place.start();
    weir.replace_file(&super::bootstrap(&format!("http://{nowhere}/"), SHORT_INTERVAL));
    until_fetched(&weir, "unreachable", 3.0);
    assert!(is_denied(&weir, "a"));
    server.publish(&deny_document("b"));
    weir.replace_file(&super::bootstrap(&server.url(), SHORT_INTERVAL));
    until_denied(&weir, "b");
}
