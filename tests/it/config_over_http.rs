//! Configuration over HTTP: fetched from a server, followed, and cached for when the server is unreachable.

mod fetch_errors;
mod fleet;
mod server;
mod startup;

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use self::server::{ConfigServer, ServerMode};
use crate::support::pki::Authority;
use crate::support::tls_front::TlsFront;
use crate::support::{LISTENER, Weir, get, wait};

/// A directory with a bootstrap file, which contains everything except the rules.
struct BootstrapDirectory(TempDir);

impl BootstrapDirectory {
    /// Writes the bootstrap file, with further keys of `config`.
    fn new(url: &str, more: &str) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::write(place.config_path(), bootstrap(url, more)).unwrap();
        place
    }

    fn config_path(&self) -> PathBuf {
        self.path("weir.yaml")
    }

    fn cache_path(&self) -> PathBuf {
        self.path("weir.yaml.cache")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn start(&self) -> Weir {
        Weir::start_file(&self.config_path())
    }

    /// Waits until the cache contains this document, and returns the content of the cache.
    fn until_cached(&self, document: &str) -> String {
        wait::until("the cache", || {
            fs::read_to_string(self.cache_path()).ok().filter(|kept| kept.ends_with(document))
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
const SHORT_INTERVAL: &str = ", interval: 100ms";

/// Returns a document that denies `/PATH`.
fn deny_document(path: &str) -> String {
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
fn long_polling_applies_changes_at_once() {
    let server = ConfigServer::start_long_polling(&deny_document("a"));
    // With an interval of 1 h, only the held request can deliver a change.
    let place = BootstrapDirectory::new(&server.url(), ", interval: 1h, wait: 50s");
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    for path in ["b", "c", "d"] {
        server.until_held();
        server.publish(&deny_document(path));
        until_denied(&weir, path);
        assert!(!is_denied(&weir, "a"));
    }
    // The generation is updated once the document is in force everywhere.
    wait::until_true("the generation", || weir.generation() == 4);
    let asked = server.request_headers("prefer");
    assert_eq!(
        (&asked[0], asked[1].as_deref()),
        (&None, Some("wait=50")),
        "the first request does not ask the server to hold it"
    );
}

#[test]
fn unchanged_long_poll_is_repeated_at_once() {
    let server = ConfigServer::start_long_polling(&deny_document("a"));
    let place = BootstrapDirectory::new(&server.url(), ", interval: 1h, wait: 1s");
    let weir = place.start();
    until_fetched(&weir, "unchanged", 2.0);
    server.publish(&deny_document("b"));
    until_denied(&weir, "b");
}

#[test]
fn server_without_long_polling_is_polled_with_if_none_match() {
    let server = ConfigServer::start_plain(&deny_document("a"));
    let place = BootstrapDirectory::new(&server.url(), SHORT_INTERVAL);
    let weir = place.start();
    until_fetched(&weir, "unchanged", 3.0);
    assert_eq!((weir.generation(), fetches(&weir, "changed")), (1, 1.0));
    assert_eq!(server.origin.connections(), 2, "one connection of the start, and one persistent connection");
    server.publish(&deny_document("b"));
    until_denied(&weir, "b");
    wait::until_true("the ETag", || weir.admin_json("/server_info")["config"]["fetched"]["etag"] == "\"2\"");
    let asked = server.request_headers("if-none-match");
    assert_eq!((&asked[0], asked[1].as_deref()), (&None, Some("\"1\"")));
    assert!(weir.metric("weir_config_last_fetch_success_timestamp_seconds", &[]) > 1e9);
}

#[test]
fn if_modified_since_is_used_without_an_etag() {
    let dated = |path: &str, date: &str| {
        ServerMode::Raw(
            server::ok_response(&deny_document(path), &format!("last-modified: {date}\r\n")).into_bytes(),
        )
    };
    let server = ConfigServer::start(dated("a", "Mon, 23 Nov 2026 05:00:00 GMT"), "");
    let place = BootstrapDirectory::new(&server.url(), SHORT_INTERVAL);
    let weir = place.start();
    server.set_mode(dated("b", "Mon, 23 Nov 2026 06:00:00 GMT"));
    until_denied(&weir, "b");
    wait::until_true("a request with its date", || {
        server
            .request_headers("if-modified-since")
            .contains(&Some("Mon, 23 Nov 2026 06:00:00 GMT".to_owned()))
    });
}

#[test]
fn identical_document_without_validators_is_unchanged() {
    let server =
        ConfigServer::start(ServerMode::Raw(server::ok_response(&deny_document("a"), "").into_bytes()), "");
    let place = BootstrapDirectory::new(&server.url(), SHORT_INTERVAL);
    let weir = place.start();
    until_fetched(&weir, "unchanged", 3.0);
    assert_eq!((weir.generation(), fetches(&weir, "changed")), (1, 1.0));
}

#[test]
fn central_dogma_envelope_is_unwrapped() {
    let server = ConfigServer::start(ServerMode::CentralDogma, &deny_document("a"));
    let place = BootstrapDirectory::new(&server.url(), ", interval: 1h");
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    for path in ["b", "c"] {
        server.until_held();
        server.publish(&deny_document(path));
        until_denied(&weir, path);
    }
    assert!(server.request_headers("if-none-match").contains(&Some("\"2\"".to_owned())), "revision as ETag");
}

#[test]
fn sighup_fetches_at_once() {
    let server = ConfigServer::start_plain(&deny_document("a"));
    let place = BootstrapDirectory::new(&server.url(), ", interval: 1h");
    let weir = place.start();
    until_fetched(&weir, "unchanged", 0.0);
    server.publish(&deny_document("b"));
    weir.signal("HUP");
    until_denied(&weir, "b");
}

#[test]
fn bootstrap_is_reloaded_and_may_change_the_server() {
    let (one, other) =
        (ConfigServer::start_plain(&deny_document("a")), ConfigServer::start_plain(&deny_document("b")));
    let place = BootstrapDirectory::new(&one.url(), ", interval: 1h");
    let weir = place.start();
    weir.replace_file(
        &bootstrap(&other.url(), SHORT_INTERVAL).replace("upstream: echo", "upstream: \"127.0.0.1:1\""),
    );
    until_denied(&weir, "b");
    assert_eq!(get(weir.address(), "/").status, 503, "the upstream of the new bootstrap");
    // The new bootstrap was one reload, the document of the other server another one.
    wait::until_true("both reloads", || weir.generation() == 3);
    let without = "listeners: [127.0.0.1:0]\nupstream: echo\nrules: []\n";
    weir.assert_reload_rejected(without);
    let problems = weir.admin_json("/server_info")["config"]["last_reload"]["problems"].to_string();
    assert!(problems.contains("config: missing, the rest of the configuration comes from"), "{problems}");
}

#[test]
fn fetched_settings_that_only_a_start_applies_take_effect() {
    let server = ConfigServer::start_plain(&deny_document("a"));
    let place = BootstrapDirectory::new(&server.url(), SHORT_INTERVAL);
    let weir = place.start();
    server.publish(&format!("{}state: {{ file: state, interval: 100ms }}\n", deny_document("b")));
    wait::until_true("the new process", || weir.successors().len() == 1);
    until_denied(&weir, "b");
    wait::until_true("the state file", || place.path("state").exists());
}

#[test]
fn tls_trusts_only_the_configured_ca() {
    let server = ConfigServer::start_plain(&deny_document("a"));
    let authority = Authority::new("own");
    let front = TlsFront::start(authority.server("localhost", &["http/1.1"], false), server.address());
    let url = format!("https://localhost:{}/weir.yaml", front.port());
    let place = BootstrapDirectory::new(&url, &format!("{SHORT_INTERVAL}, tls: {{ ca: ca.pem }}"));
    authority.write(&place.path("ca.pem"));
    let weir = place.start();
    assert!(is_denied(&weir, "a"));
    // Over the connection that was kept alive.
    until_fetched(&weir, "unchanged", 1.0);
    front.replace(Authority::new("alien").server("localhost", &["http/1.1"], false));
    front.send_command(crate::support::tls_front::TlsCommand::Abort);
    until_fetched(&weir, "unreachable", 1.0);
    assert!(is_denied(&weir, "a"));
}

#[test]
fn credentials_are_sent_and_never_shown() {
    let server = ConfigServer::start_plain(&format!(
        "{}jwt: {{ secret: s3cr3t-of-the-document-0123456789 }}\n",
        deny_document("a")
    ));
    let url = format!("{}?token=s3cr3t", server.url());
    let place = BootstrapDirectory::new(&url, ", headers: { authorization: Bearer s3cr3t, x-team: s3cr3t }");
    let weir = place.start();
    let head = &server.origin.requests()[0].head;
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
