//! Forward proxy: absolute targets and CONNECT, allow lists, and what must not get through.

mod connect;
mod providers;
mod refused;

use crate::support::pki::Authority;
use crate::support::tls_front::TlsFront;
use crate::support::{Client, Origin, Request, Weir, fetch};

/// Returns a configuration with one listener that is a forward proxy with these settings; `rest` is top-level YAML.
pub(crate) fn proxy_config(settings: &str, rest: &str) -> String {
    let rules = if rest.contains("rules:") { "" } else { "rules: []\n" };
    let listener = format!("{{ name: egress, address: 127.0.0.1:0, forward_proxy: {settings} }}");
    format!("listeners: [{listener}]\nadmin: {{ address: 127.0.0.1:0 }}\nworkers: 1\n{rest}\n{rules}")
}

/// Starts a forward proxy that serves loopback.
fn open_proxy() -> Weir {
    Weir::start(&proxy_config("true", ""))
}

/// Returns a GET of an absolute target.
fn get(url: &str) -> Request {
    Request::get(url).host("ignored.test")
}

#[test]
fn absolute_target_is_forwarded_to_its_destination_in_origin_form() {
    let (one, other) = (Origin::hello(), Origin::hello());
    let weir = open_proxy();
    let mut client = Client::connect(weir.address());
    for origin in [&one, &other, &one] {
        let request = get(&format!("http://{}/path?query", origin.address()));
        let request =
            request.header("proxy-authorization", "basic x").header("proxy-connection", "keep-alive");
        let response = client.fetch(&request.header("x-forwarded-for", "10.0.0.1"));
        assert_eq!((response.status, response.body.text()), (200, "hello".to_owned()));
        let seen = origin.last_request().head;
        assert_eq!(seen.line, "GET /path?query HTTP/1.1");
        assert_eq!(seen.get_all("host"), [origin.address().to_string()]);
        assert_eq!(seen.get("x-forwarded-for"), Some("10.0.0.1"), "headers of the client are its own");
        assert!(seen.get("via").is_some_and(|via| via.starts_with("1.1 weir-")), "{seen:?}");
        let mut names: Vec<_> = seen.fields.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["host", "via", "x-forwarded-for"], "nothing about the client is added");
    }
    assert_eq!((one.connections(), other.connections()), (1, 1), "connections are pooled by destination");
}

#[test]
fn https_target_is_verified_tls_to_the_destination() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority");
    let ca = authority.write(&directory.path().join("ca.crt"));
    let origin = Origin::hello();
    let front = TlsFront::start(authority.server("localhost", &["http/1.1"], false), origin.address());
    let weir = Weir::start(&proxy_config(&format!("{{ tls: {{ ca: {} }} }}", ca.display()), ""));
    let url = |host: &str| format!("https://{host}:{}/secret", front.port());
    let response = fetch(weir.address(), &get(&url("localhost")));
    assert_eq!((response.status, response.body.text()), (200, "hello".to_owned()));
    assert_eq!(front.handshakes()[0].name.as_deref(), Some("localhost"));
    let response = fetch(weir.address(), &get(&url("127.0.0.1")));
    assert_eq!(response.status, 502, "the certificate is for another name");
    assert_eq!(response.header("proxy-status"), "weir; error=tls_certificate_error");
}

#[test]
fn upstream_for_the_host_takes_the_request() {
    let (configured, app) = (Origin::hello(), Origin::hello());
    let upstreams = format!(
        "upstreams:\n- {{ name: api, address: \"{}\", match: {{ host: api.test }} }}\n- {{ name: app, address: \"{}\" }}",
        configured.address(),
        app.address()
    );
    let weir = Weir::start(&proxy_config("true", &upstreams));
    assert_eq!(fetch(weir.address(), &get("http://api.test/v1")).status, 200);
    let seen = configured.only_request().head;
    assert_eq!((seen.line.as_str(), seen.get("host")), ("GET /v1 HTTP/1.1", Some("api.test")));
    assert_eq!(seen.get("x-forwarded-for"), None);
    assert_eq!(fetch(weir.address(), &Request::get("/")).status, 200, "the catch-all takes what is for Weir");
    assert_eq!(app.only_request().head.get("x-forwarded-for"), Some("127.0.0.1"));
    let other = Origin::hello();
    assert_eq!(fetch(weir.address(), &get(&format!("http://{}/", other.address()))).status, 200);
    assert_eq!((other.requests().len(), app.requests().len()), (1, 1), "and not what is for others");
}

#[test]
fn limits_are_kept_by_host() {
    let origin = Origin::hello();
    let weir = Weir::start(&proxy_config(
        "true",
        "rules:\n- { name: by-host, key: [host], limit: 2/d, algorithm: fixed_window }",
    ));
    let port = origin.address().port();
    let status = |host: &str| fetch(weir.address(), &get(&format!("http://{host}:{port}/"))).status;
    assert_eq!(["127.0.0.1", "127.0.0.1", "127.0.0.1", "localhost"].map(status), [200, 200, 429, 200]);
}

#[test]
fn http2_requests_are_forwarded_by_their_authority() {
    let origin = Origin::hello();
    let weir = open_proxy();
    let mut client = crate::support::h2::H2Client::connect(weir.address());
    let url = format!("http://{}/path", origin.address());
    let response = client.fetch(http::Request::get(url));
    assert_eq!((response.status.as_u16(), &*response.body), (200, &b"hello"[..]));
    let seen = origin.only_request().head;
    assert_eq!(
        (seen.line.as_str(), seen.get("host")),
        ("GET /path HTTP/1.1", Some(&*origin.address().to_string()))
    );
    assert!(seen.get("via").is_some_and(|via| via.starts_with("2 weir-")), "{seen:?}");
}

#[test]
fn reload_applies_to_open_connections() {
    let origin = Origin::hello();
    let weir = open_proxy();
    let url = format!("http://{}/", origin.address());
    let mut client = Client::connect(weir.address());
    assert_eq!(client.fetch(&get(&url)).status, 200);
    weir.reload(&proxy_config("{ destinations: [a.test] }", ""));
    assert_eq!(client.fetch(&get(&url)).status, 403);
    weir.reload(&proxy_config("false", "upstream: echo"));
    assert_eq!(client.fetch(&get(&url)).status, 200);
    assert_eq!(origin.requests().len(), 1, "it is a reverse proxy now");
}
