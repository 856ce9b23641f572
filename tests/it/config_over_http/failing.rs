//! Servers that fail and documents that are invalid: the running configuration stays in force.

use super::server::{self, Manner, Server};
use super::{OFTEN, Place, denying, fetches, is_denied, until_denied, until_fetched};
use crate::support::{Weir, wait};

/// Starts a proxy that denies `/a`, and the server from which it has this configuration.
fn running() -> (Server, Place, Weir) {
    let server = Server::plain(&denying("a"));
    let place = Place::new(&server.url(), OFTEN);
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    (server, place, weir)
}

/// Checks that `/a` stays denied while the server sends `said`, and that fetches end with `outcome`. Then the server
/// recovers and a new document is applied.
fn survives(said: impl Into<Vec<u8>>, outcome: &str) -> Weir {
    let (server, place, weir) = running();
    let cache = place.kept(&denying("a"));
    server.behave(Manner::Saying(said.into()));
    until_fetched(&weir, outcome, 2.0);
    assert!(is_denied(&weir, "a"));
    assert_eq!((weir.generation(), fetches(&weir, "changed")), (1, 1.0));
    assert_eq!(place.kept(""), cache);
    server.behave(Manner::Plain);
    server.publish(&denying("b"));
    until_denied(&weir, "b");
    wait::until_true("the cache", || {
        std::fs::read_to_string(place.cache()).unwrap().ends_with(&denying("b"))
    });
    weir
}

fn logged(weir: &Weir, text: &str) -> usize {
    weir.log().iter().filter(|line| line.contains(text)).count()
}

#[test]
fn another_status_changes_nothing_and_is_logged_once() {
    let weir = survives("HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n", "status");
    let expected = "the server responded with 401 Unauthorized; check the credentials in `config.headers`";
    assert_eq!(logged(&weir, expected), 1);
    assert_eq!(logged(&weir, "the configuration can be fetched again"), 1);
    survives(server::ok(&denying("x"), "").replace("200 OK", "500 Oops"), "status");
}

#[test]
fn a_redirect_is_not_followed() {
    let elsewhere = Server::plain(&denying("x"));
    let said = format!("HTTP/1.1 302 Found\r\nlocation: {}\r\ncontent-length: 0\r\n\r\n", elsewhere.url());
    let weir = survives(said, "status");
    assert_eq!(logged(&weir, "redirects are not followed"), 1);
    assert!(elsewhere.origin.seen().is_empty());
}

#[test]
fn a_response_that_is_cut_off_is_not_used() {
    let whole = server::ok(&format!("{}rules_of_others: []", denying("x")), "");
    survives(&whole[..whole.len() - 20], "unusable");
}

#[test]
fn a_response_that_does_not_say_where_it_ends_is_not_used() {
    let weir = survives(format!("HTTP/1.1 200 OK\r\n\r\n{}", denying("x")), "unusable");
    assert_eq!(logged(&weir, "neither Content-Length nor chunks"), 1);
}

#[test]
fn a_document_that_is_too_large_is_not_used() {
    let large = format!("{}#{}", denying("x"), "x".repeat(1 << 20));
    let weir = survives(server::ok(&large, ""), "unusable");
    assert_eq!(logged(&weir, "larger than 1 MiB"), 1);
    // Too large without a Content-Length, and without an end.
    let mut endless =
        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n800000\r\n{}", denying("x"));
    endless.push_str(&"#".repeat(0x80_0000 - denying("x").len()));
    survives(endless, "unusable");
}

#[test]
fn what_is_not_text_is_not_used() {
    survives(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n#\xff\n".as_slice(), "unusable");
    survives(server::ok(&denying("x"), "content-encoding: gzip\r\n"), "unusable");
    survives("I am no HTTP\r\n\r\n", "unreachable");
}

#[test]
fn a_server_that_says_nothing_is_not_waited_for() {
    let server = Server::holding(&denying("a"));
    let place = Place::new(&server.url(), ", interval: 100ms, wait: 1s, timeout: 300ms");
    let weir = place.start();
    let silent = crate::support::Origin::start(|turn| {
        // Waits until the client has closed the connection.
        turn.wire.ends();
        Ok(crate::support::Then::Close)
    });
    weir.replace_file(&super::bootstrap(
        &format!("http://{}/", silent.address()),
        ", interval: 100ms, wait: 1s, timeout: 300ms",
    ));
    until_fetched(&weir, "timed_out", 2.0);
    assert!(is_denied(&weir, "a"));
}

#[test]
fn an_invalid_document_is_rejected_whole_told_with_its_place_and_fetched_once() {
    let (server, place, weir) = running();
    let cache = place.kept(&denying("a"));
    server.publish(&format!("{}  \n# a remark\ndrain: none\nrulez: []\n", denying("x")));
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
    assert_eq!(logged(&weir, &format!("{url}:4:8: drain: ")), 1);
    assert_eq!(place.kept(""), cache, "an invalid document is not cached");
    server.publish(&denying("b"));
    until_denied(&weir, "b");
    wait::until_true("a successful reload", || weir.metric("weir_config_last_reload_successful", &[]) == 1.0);
}

#[test]
fn the_old_document_published_again_is_what_runs() {
    let (server, _place, weir) = running();
    server.publish("<html>It works!</html>");
    wait::until_true("the rejection", || weir.rejected_reloads() == 1.0);
    server.publish(&denying("a"));
    let unchanged = || weir.metric("weir_config_reloads_total", &[("outcome", "unchanged")]);
    wait::until_true("the unchanged document", || unchanged() == 1.0);
    assert_eq!(weir.generation(), 1);
    wait::until_true("a successful reload", || weir.metric("weir_config_last_reload_successful", &[]) == 1.0);
}

#[test]
fn a_document_without_the_end_marker_of_the_one_before_is_cut_off() {
    let (server, _place, weir) = running();
    server.publish(&format!("{}...\n", denying("b")));
    until_denied(&weir, "b");
    server.publish(&denying("x"));
    wait::until_true("the rejection", || weir.rejected_reloads() == 1.0);
    assert!(is_denied(&weir, "b"));
}

#[test]
fn a_key_in_both_texts_is_a_problem_that_names_both_places() {
    let (server, place, weir) = running();
    server.publish(&format!("{}upstream: echo\n", denying("x")));
    wait::until_true("the rejection", || weir.rejected_reloads() == 1.0);
    let info = weir.admin_json("/server_info");
    let problem = info["config"]["last_reload"]["problems"][0].as_str().unwrap();
    let (url, file) = (server.url(), place.file());
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
fn a_server_that_is_gone_is_asked_again_until_it_is_back() {
    let (_socket, nowhere) = crate::support::origin::refusing();
    let server = Server::plain(&denying("a"));
    let place = Place::new(&server.url(), OFTEN);
    let weir = place.start();
    weir.replace_file(&super::bootstrap(&format!("http://{nowhere}/"), OFTEN));
    until_fetched(&weir, "unreachable", 3.0);
    assert!(is_denied(&weir, "a"));
    server.publish(&denying("b"));
    weir.replace_file(&super::bootstrap(&server.url(), OFTEN));
    until_denied(&weir, "b");
}
