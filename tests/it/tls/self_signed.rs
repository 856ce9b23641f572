//! Upstreams with certificates as `openssl req -x509` makes them, and server names from the requests' hosts.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::support::h2_origin::H2Origin;
use crate::support::pki::Authority;
use crate::support::tls_front::{TlsCommand, TlsFront};
use crate::support::{
    Client, LISTENER, Origin, Request, Weir, config_with, fetch, get, run_concurrently, wait,
};

const H1: &[&str] = &["http/1.1"];

/// Makes a certificate and its key with OpenSSL.
fn openssl(directory: &Path, name: &str, arguments: &[&str]) -> Arc<ServerConfig> {
    let (certificate, key) = (directory.join(format!("{name}.crt")), directory.join(format!("{name}.key")));
    let output = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(arguments)
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let chain = vec![CertificateDer::from_pem_file(&certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_no_client_auth().with_single_cert(chain, key).unwrap())
}

/// Starts a proxy for `https://HOST:PORT` with these TLS settings.
fn start(host: &str, port: u16, tls: &str) -> Weir {
    let upstream = format!("{{ address: \"https://{host}:{port}\", tls: {{ {tls} }} }}");
    Weir::start(&config_with(LISTENER, &upstream, ""))
}

#[test]
fn self_signed_certificate_that_is_the_given_ca_is_accepted() {
    let origin = Origin::hello();
    let directory = tempfile::tempdir().unwrap();
    for (name, arguments) in [
        ("plain", &["-days", "30", "-subj", "/CN=localhost"][..]),
        ("other-name", &["-days", "30", "-subj", "/CN=something"]),
        ("named", &["-days", "30", "-subj", "/CN=x", "-addext", "subjectAltName=DNS:localhost"]),
        ("leaf", &["-days", "30", "-subj", "/CN=localhost", "-addext", "basicConstraints=critical,CA:FALSE"]),
    ] {
        let front = TlsFront::start(openssl(directory.path(), name, arguments), origin.address());
        let ca = directory.path().join(format!("{name}.crt"));
        let weir = start("localhost", front.port(), &format!("ca: {}", ca.display()));
        let response = get(weir.address(), "/");
        assert_eq!((response.status, response.body.text().as_str()), (200, "hello"), "{name}");
    }
}

#[test]
fn other_self_signed_certificates_are_rejected_with_the_remedy() {
    let origin = Origin::hello();
    let directory = tempfile::tempdir().unwrap();
    let subject = ["-days", "30", "-subj", "/CN=localhost"];
    let front = TlsFront::start(openssl(directory.path(), "server", &subject), origin.address());
    // Of the same name, and with another key.
    openssl(directory.path(), "same-name", &subject);
    let named = ["-days", "30", "-subj", "/CN=x", "-addext", "subjectAltName=DNS:b.test"];
    let other = TlsFront::start(openssl(directory.path(), "named", &named), origin.address());
    for (port, ca, words) in [
        (front.port(), "same-name", "(set `ca` to a file with"),
        (other.port(), "named", "set `server_name` to a name of the certificate"),
    ] {
        let ca = directory.path().join(format!("{ca}.crt"));
        let weir = start("localhost", port, &format!("ca: {}", ca.display()));
        assert_eq!(get(weir.address(), "/").status, 503, "{words}");
        wait::until_true("the reason", || weir.log().iter().any(|line| line.contains(words)));
    }
    assert!(origin.requests().is_empty());
}

#[test]
fn server_name_is_the_host_of_the_request() {
    let origin = Origin::hello();
    let directory = tempfile::tempdir().unwrap();
    let names = "subjectAltName=DNS:a.test,DNS:b.test";
    let server = openssl(directory.path(), "both", &["-days", "30", "-subj", "/CN=x", "-addext", names]);
    let front = TlsFront::start(server, origin.address());
    let ca = directory.path().join("both.crt");
    let weir = start("127.0.0.1", front.port(), &format!("ca: {}, server_name: from_host", ca.display()));
    let mut client = Client::connect(weir.address());
    for host in ["a.test", "B.Test:8443", "a.test", "b.test"] {
        assert_eq!(client.fetch(&Request::get("/").host(host)).status, 200, "{host}");
    }
    let names: Vec<_> = front.handshakes().into_iter().map(|hello| hello.name).collect();
    assert_eq!(names, [Some("a.test".to_owned()), Some("b.test".to_owned())], "one connection for each name");
    let strange = fetch(weir.address(), &Request::get("/").host("c.test"));
    assert_eq!((strange.status, strange.body.text().as_str()), (421, "misdirected request\n"));
    assert_eq!(origin.requests().len(), 4);
}

/// Starts a proxy for two endpoints, which it ejects after two failures.
fn start_with_outliers(fronts: &[TlsFront; 2], ca: &Path, protocol: &str) -> Weir {
    let [one, other] = fronts.each_ref().map(|front| format!("https://127.0.0.1:{}", front.port()));
    Weir::start(&config_with(
        LISTENER,
        &format!(
            "{{ address: ['{one}', '{other}'], {protocol} outliers: {{ failures: 2, ejection: 1h }}, retries: {{}}, \
             tls: {{ ca: {}, server_name: from_host }} }}",
            ca.display()
        ),
        "",
    ))
}

/// Starts two endpoints with this certificate.
fn two_fronts(server: &Arc<ServerConfig>, backend: SocketAddr) -> [TlsFront; 2] {
    [0, 1].map(|_| TlsFront::start(Arc::clone(server), backend))
}

/// Checks that requests for a name that the endpoints do not serve are tried at both, and neither eject one nor fill the log.
fn assert_strange_hosts_are_harmless(weir: &Weir, words: &str) {
    for _ in 0..9 {
        assert_eq!(fetch(weir.address(), &Request::get("/").host("c.test")).status, 421, "{words}");
    }
    let outcome = |outcome| weir.metric("weir_upstream_requests_total", &[("outcome", outcome)]);
    assert_eq!((outcome("wrong_name"), outcome("connect_failed")), (18.0, 0.0), "{words}");
    let handshakes = weir.metric("weir_upstream_tls_handshakes_total", &[("outcome", "wrong_name")]);
    assert_eq!(handshakes, 18.0, "{words}");
    for quiet in ["ejections", "connection_failures"] {
        assert_eq!(weir.metric(&format!("weir_upstream_{quiet}_total"), &[]), 0.0, "{words}: {quiet}");
    }
    let logged = || weir.log().iter().filter(|line| line.contains("no certificate for the host")).count();
    wait::until_true("the reason", || logged() > 0);
    assert_eq!(fetch(weir.address(), &Request::get("/").host("a.test")).status, 200, "{words}");
    let lines = weir.log();
    assert!(logged() == 2 && lines.iter().any(|line| line.contains(words)), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("upstream requests fail")), "{lines:?}");
}

#[test]
fn host_outside_the_certificate_is_no_failure_of_the_endpoint() {
    let origin = Origin::hello();
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority");
    let ca = authority.write(&directory.path().join("ca.crt"));
    let server = authority.server("a.test", &["http/1.1"], false);
    let weir = start_with_outliers(&two_fronts(&server, origin.address()), &ca, "");
    assert_strange_hosts_are_harmless(&weir, "not valid for name");
}

#[test]
fn host_outside_the_certificate_is_no_failure_of_an_http2_endpoint() {
    let origin = H2Origin::hello();
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority");
    let ca = authority.write(&directory.path().join("ca.crt"));
    let server = authority.server("a.test", &["h2"], false);
    let weir = start_with_outliers(&two_fronts(&server, origin.address()), &ca, "http2: true,");
    assert_strange_hosts_are_harmless(&weir, "not valid for name");
}

#[test]
fn host_that_an_endpoint_rejects_in_tls_is_no_failure_of_the_endpoint_once_another_has_worked() {
    let origin = Origin::hello();
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority");
    let ca = authority.write(&directory.path().join("ca.crt"));
    let (chain, key) = authority.issue("a.test", directory.path(), "a");
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let key = provider.key_provider.load_private_key(PrivateKeyDer::from_pem_file(key).unwrap()).unwrap();
    let mut by_name = rustls::server::ResolvesServerCertUsingSni::new();
    let chain = vec![CertificateDer::from_pem_file(chain).unwrap()];
    by_name.add("a.test", rustls::sign::CertifiedKey::new(chain, key)).unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let server = Arc::new(builder.with_no_client_auth().with_cert_resolver(Arc::new(by_name)));
    let weir = start_with_outliers(&two_fronts(&server, origin.address()), &ca, "");
    for _ in 0..2 {
        assert_eq!(fetch(weir.address(), &Request::get("/").host("a.test")).status, 200, "of both endpoints");
    }
    assert_strange_hosts_are_harmless(&weir, "AccessDenied");
}

/// Starts two endpoints for `a.test` and a proxy for them, which has used both for that name.
fn start_verified(origin: &Origin, authority: &Authority, directory: &Path) -> ([TlsFront; 2], Weir) {
    let ca = authority.write(&directory.join("ca.crt"));
    let fronts = two_fronts(&authority.server("a.test", H1, false), origin.address());
    let weir = start_with_outliers(&fronts, &ca, "");
    for _ in 0..2 {
        assert_eq!(fetch(weir.address(), &Request::get("/").host("a.test")).status, 200);
    }
    assert!(fronts.iter().all(|front| front.handshakes().len() == 1));
    (fronts, weir)
}

/// Requests `host` until an endpoint is ejected, or ten times. Every response must be 200.
fn ejections_after_requests(weir: &Weir, host: &str) -> f64 {
    let ejections = || weir.metric("weir_upstream_ejections_total", &[]);
    for _ in 0..10 {
        assert_eq!(fetch(weir.address(), &Request::get("/").host(host)).status, 200);
        if ejections() > 0.0 {
            break;
        }
    }
    ejections()
}

#[test]
fn endpoint_without_a_certificate_for_the_host_is_passed_over() {
    let (origin, directory) = (Origin::hello(), tempfile::tempdir().unwrap());
    let authority = Authority::new("authority");
    let (fronts, weir) = start_verified(&origin, &authority, directory.path());
    fronts[0].replace(authority.server("b.test", H1, false));
    fronts[1].replace(authority.server("c.test", H1, false));
    assert_eq!(ejections_after_requests(&weir, "b.test"), 0.0);
    let outcome = |outcome| weir.metric("weir_upstream_requests_total", &[("outcome", outcome)]);
    assert!(outcome("wrong_name") > 0.0);
    assert_eq!(outcome("connect_failed"), 0.0);
}

#[test]
fn endpoint_that_has_worked_with_the_host_is_ejected_for_failures_with_it() {
    let (origin, directory) = (Origin::hello(), tempfile::tempdir().unwrap());
    let authority = Authority::new("authority");
    let (fronts, weir) = start_verified(&origin, &authority, directory.path());
    fronts[0].replace(authority.server("b.test", H1, false));
    fronts[0].send_command(TlsCommand::Close);
    assert_eq!(ejections_after_requests(&weir, "a.test"), 1.0);
    assert_eq!(weir.metric("weir_upstream_requests_total", &[("outcome", "wrong_name")]), 0.0);
}

#[test]
fn endpoint_whose_certificate_for_the_host_has_expired_is_ejected() {
    let (origin, directory) = (Origin::hello(), tempfile::tempdir().unwrap());
    let authority = Authority::new("authority");
    let (fronts, weir) = start_verified(&origin, &authority, directory.path());
    fronts[0].replace(authority.expired_server("b.test", H1));
    fronts[1].replace(authority.server("b.test", H1, false));
    assert_eq!(ejections_after_requests(&weir, "b.test"), 1.0);
    assert_eq!(weir.metric("weir_upstream_requests_total", &[("outcome", "wrong_name")]), 0.0);
}

#[test]
fn host_that_an_unreachable_endpoint_may_serve_is_not_misdirected() {
    let (origin, directory) = (Origin::hello(), tempfile::tempdir().unwrap());
    let authority = Authority::new("authority");
    let ca = authority.write(&directory.path().join("ca.crt"));
    let front = TlsFront::start(authority.server("a.test", H1, false), origin.address());
    let (_socket, closed) = crate::support::origin::refusing_address();
    let serving = SocketAddr::from(([127, 0, 0, 1], front.port()));
    for [first, second] in [[serving, closed], [closed, serving]] {
        let upstream = format!(
            "{{ address: ['https://{first}', 'https://{second}'], tls: {{ ca: {}, server_name: from_host }} }}",
            ca.display()
        );
        let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
        assert_eq!(fetch(weir.address(), &Request::get("/").host("c.test")).status, 503);
    }
}

#[test]
fn connections_for_server_names_are_bounded_and_hosts_of_strangers_displace_none() {
    let origin = Origin::hello();
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority");
    let front = TlsFront::start(authority.server("a.test", &["http/1.1"], false), origin.address());
    let ca = authority.write(&directory.path().join("ca.crt"));
    let weir = start("127.0.0.1", front.port(), &format!("ca: {}, server_name: from_host", ca.display()));
    assert_eq!(fetch(weir.address(), &Request::get("/").host("a.test")).status, 200);
    let statuses = run_concurrently(4, |thread| {
        (0..50)
            .map(|index| Request::get("/").host(&format!("x{thread}-{index}.test")))
            .map(|request| fetch(weir.address(), &request).status)
            .all(|status| status == 421)
    });
    assert!(statuses.into_iter().all(|all| all));
    assert_eq!(fetch(weir.address(), &Request::get("/").host("a.test")).status, 200);
    assert_eq!(origin.connections(), 1, "the first connection was kept");
}

#[test]
fn from_host_is_for_upstreams_only() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weir.yaml");
    let yaml = "listeners: [\"127.0.0.1:0\"]\nupstream: { address: echo }\nrules: []\n\
                tracing: { otlp: \"https://c.test:4317\", tls: { server_name: from_host } }\n";
    std::fs::write(&file, yaml).unwrap();
    let output = crate::support::weir::run(["check", file.to_str().unwrap()]);
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("`from_host` is possible for `upstream` and `upstreams` only"), "{text}");
}
