//! Configuration over HTTP: fetched from a server, followed, and cached for when the server is unreachable.

mod failing;
mod fleet;
mod server;
mod starting;

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use self::server::{Manner, Server};
use crate::support::pki::Authority;
use crate::support::tls_front::TlsFront;
use crate::support::{LISTENER, Weir, get, wait};

/// A directory with a bootstrap file, which contains everything except the rules.
struct Place(TempDir);

impl Place {
    /// Writes the bootstrap file, with further keys of `config`.
    fn new(url: &str, more: &str) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::write(place.file(), bootstrap(url, more)).unwrap();
        place
    }

    fn file(&self) -> PathBuf {
        self.path("weir.yaml")
    }

    fn cache(&self) -> PathBuf {
        self.path("weir.yaml.cache")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn start(&self) -> Weir {
        Weir::start_file(&self.file())
    }

    /// Waits until the cache contains this document, and returns the content of the cache.
    fn kept(&self, document: &str) -> String {
        wait::until("the cache", || {
            fs::read_to_string(self.cache()).ok().filter(|kept| kept.ends_with(document))
        })
    }
}

fn bootstrap(url: &str, more: &str) -> String {
    format!(
        "config: {{ http: \"{url}\"{more} }}\nlisteners: [{LISTENER}]\n\
         admin: {{ address: 127.0.0.1:0 }}\nupstream: echo\nworkers: 1\n"
    )
}

/// A short interval, for tests that wait for the next fetch.
const OFTEN: &str = ", interval: 100ms";

/// Returns a document that denies `/PATH`.
fn denying(path: &str) -> String {
    format!("rules: [{{ name: no, match: {{ path: /{path} }}, action: deny }}]\n")
}

fn is_denied(weir: &Weir, path: &str) -> bool {
    get(weir.address(), &format!("/{path}")).status == 403
}

fn until_denied(weir: &Weir, path: &str) {
    wait::until_true("the other document", || is_denied(weir, path));
}

fn fetches(weir: &Weir, outcome: &str) -> f64 {
    weir.metric("weir_config_fetches_total", &[("outcome", outcome)])
}

/// Waits for `more` further fetches with this outcome.
fn until_fetched(weir: &Weir, outcome: &str, more: f64) {
    let before = fetches(weir, outcome);
    wait::until_true(outcome, || fetches(weir, outcome) >= before + more);
}

#[test]
fn a_change_is_applied_while_the_server_holds_the_request() {
    let server = Server::holding(&denying("a"));
    // With an interval of 1 h, only the held request can deliver a change.
    let place = Place::new(&server.url(), ", interval: 1h, wait: 50s");
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    for path in ["b", "c", "d"] {
        server.until_held();
        server.publish(&denying(path));
        until_denied(&weir, path);
        assert!(!is_denied(&weir, "a"));
    }
    // The generation is updated once the document is in force everywhere.
    wait::until_true("the generation", || weir.generation() == 4);
    let asked = server.asked_with("prefer");
    assert_eq!(
        (&asked[0], asked[1].as_deref()),
        (&None, Some("wait=50")),
        "the first request does not ask the server to hold it"
    );
}

#[test]
fn a_held_request_that_ends_without_a_change_is_sent_again_at_once() {
    let server = Server::holding(&denying("a"));
    let place = Place::new(&server.url(), ", interval: 1h, wait: 1s");
    let weir = place.start();
    until_fetched(&weir, "unchanged", 2.0);
    server.publish(&denying("b"));
    until_denied(&weir, "b");
}

#[test]
fn a_plain_server_is_asked_every_interval_and_says_that_nothing_has_changed() {
    let server = Server::plain(&denying("a"));
    let place = Place::new(&server.url(), OFTEN);
    let weir = place.start();
    until_fetched(&weir, "unchanged", 3.0);
    assert_eq!((weir.generation(), fetches(&weir, "changed")), (1, 1.0));
    assert_eq!(server.origin.connections(), 2, "one connection of the start, and one persistent connection");
    server.publish(&denying("b"));
    until_denied(&weir, "b");
    wait::until_true("the ETag", || weir.admin_json("/server_info")["config"]["fetched"]["etag"] == "\"2\"");
    let asked = server.asked_with("if-none-match");
    assert_eq!((&asked[0], asked[1].as_deref()), (&None, Some("\"1\"")));
    assert!(weir.metric("weir_config_last_fetch_success_timestamp_seconds", &[]) > 1e9);
}

#[test]
fn without_an_etag_the_time_of_the_last_change_is_what_versions_are_told_by() {
    let dated = |path: &str, date: &str| {
        Manner::Saying(server::ok(&denying(path), &format!("last-modified: {date}\r\n")).into_bytes())
    };
    let server = Server::start(dated("a", "Mon, 23 Nov 2026 05:00:00 GMT"), "");
    let place = Place::new(&server.url(), OFTEN);
    let weir = place.start();
    server.behave(dated("b", "Mon, 23 Nov 2026 06:00:00 GMT"));
    until_denied(&weir, "b");
    wait::until_true("a request with its date", || {
        server.asked_with("if-modified-since").contains(&Some("Mon, 23 Nov 2026 06:00:00 GMT".to_owned()))
    });
}

#[test]
fn the_same_text_is_no_change_whatever_it_is_called() {
    let server = Server::start(Manner::Saying(server::ok(&denying("a"), "").into_bytes()), "");
    let place = Place::new(&server.url(), OFTEN);
    let weir = place.start();
    until_fetched(&weir, "unchanged", 3.0);
    assert_eq!((weir.generation(), fetches(&weir, "changed")), (1, 1.0));
}

#[test]
fn a_file_of_central_dogma_is_taken_out_of_its_envelope() {
    let server = Server::start(Manner::Dogma, &denying("a"));
    let place = Place::new(&server.url(), ", interval: 1h");
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    for path in ["b", "c"] {
        server.until_held();
        server.publish(&denying(path));
        until_denied(&weir, path);
    }
    assert!(server.asked_with("if-none-match").contains(&Some("\"2\"".to_owned())), "revision as ETag");
}

#[test]
fn a_signal_has_it_fetched_at_once() {
    let server = Server::plain(&denying("a"));
    let place = Place::new(&server.url(), ", interval: 1h");
    let weir = place.start();
    until_fetched(&weir, "unchanged", 0.0);
    server.publish(&denying("b"));
    weir.signal("HUP");
    until_denied(&weir, "b");
}

#[test]
fn the_bootstrap_is_followed_too_and_may_name_another_server() {
    let (one, other) = (Server::plain(&denying("a")), Server::plain(&denying("b")));
    let place = Place::new(&one.url(), ", interval: 1h");
    let weir = place.start();
    weir.replace_file(&bootstrap(&other.url(), OFTEN).replace("upstream: echo", "upstream: \"127.0.0.1:1\""));
    until_denied(&weir, "b");
    assert_eq!(get(weir.address(), "/").status, 503, "the upstream of the new bootstrap");
    // The new bootstrap was one reload, the document of the other server another one.
    wait::until_true("both reloads", || weir.generation() == 3);
    let without = "listeners: [127.0.0.1:0]\nupstream: echo\nrules: []\n";
    weir.reload_in_vain(without);
    let problems = weir.admin_json("/server_info")["config"]["last_reload"]["problems"].to_string();
    assert!(problems.contains("config: missing, the rest of the configuration comes from"), "{problems}");
}

#[test]
fn what_takes_a_restart_does_so_when_it_comes_from_a_server() {
    let server = Server::plain(&denying("a"));
    let place = Place::new(&server.url(), OFTEN);
    let weir = place.start();
    server.publish(&format!("{}drain: {{ timeout: 1s }}\n", denying("b")));
    until_denied(&weir, "b");
    wait::until_true("the pending restart", || {
        weir.admin_json("/server_info")["config"]["last_reload"]["needs_restart"][0] == "drain"
    });
    assert_eq!(weir.metric("weir_config_restart_pending", &[]), 1.0);
}

#[test]
fn tls_believes_the_authority_that_is_named_and_no_other() {
    let server = Server::plain(&denying("a"));
    let authority = Authority::new("own");
    let front = TlsFront::start(authority.server("localhost", &["http/1.1"], false), server.address());
    let url = format!("https://localhost:{}/weir.yaml", front.port());
    let place = Place::new(&url, &format!("{OFTEN}, tls: {{ ca: ca.pem }}"));
    authority.write(&place.path("ca.pem"));
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    // Over the connection that was kept alive.
    until_fetched(&weir, "unchanged", 1.0);
    front.replace(Authority::new("alien").server("localhost", &["http/1.1"], false));
    front.order(crate::support::tls_front::Order::Cut);
    until_fetched(&weir, "unreachable", 1.0);
    assert!(is_denied(&weir, "a"));
}

#[test]
fn credentials_are_sent_and_never_shown() {
    let server =
        Server::plain(&format!("{}jwt: {{ secret: s3cr3t-of-the-document-0123456789 }}\n", denying("a")));
    let url = format!("{}?token=s3cr3t", server.url());
    let place = Place::new(&url, ", headers: { authorization: Bearer s3cr3t, x-team: s3cr3t }");
    let weir = place.start();
    let head = &server.origin.seen()[0].head;
    assert_eq!((head.get("authorization"), head.get("x-team")), (Some("Bearer s3cr3t"), Some("s3cr3t")));
    assert_eq!(head.word(1), "/weir.yaml?token=s3cr3t");
    for page in ["/config_dump", "/server_info"] {
        let shown = weir.admin_get(page).body.text();
        assert!(!shown.contains("s3cr3t") && shown.contains("/weir.yaml"), "{shown}");
    }
    let dump = weir.admin_json("/config_dump");
    assert!(dump["configs"][1]["yaml"].as_str().unwrap().contains("name: no"), "{dump:#}");
    assert!(!weir.log().join("\n").contains("s3cr3t"));
}
