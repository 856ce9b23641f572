//! TLS to the upstream: server names, verification of certificates, and the handling of verification failures.

mod connections;
mod rotation;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::support::h2::H2Client;
use crate::support::h2_origin::H2Origin;
use crate::support::pki::Authority;
use crate::support::tls_front::TlsFront;
use crate::support::{Origin, Weir, config_with, get, wait};

const H1: &[&str] = &["http/1.1"];
const BOTH: &[&str] = &["h2", "http/1.1"];

/// An upstream behind TLS, with the authority of its certificates and their directory.
struct TlsUpstream {
    directory: TempDir,
    authority: Authority,
    front: TlsFront,
}

impl TlsUpstream {
    /// Starts an upstream with a certificate for `host`. If `require_client_cert`, it requires client
    /// certificates.
    fn new(backend: SocketAddr, host: &str, protocols: &[&str], require_client_cert: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new("authority");
        authority.write(&directory.path().join("ca.crt"));
        let front = TlsFront::start(authority.server(host, protocols, require_client_cert), backend);
        Self { directory, authority, front }
    }

    /// Returns the YAML of an upstream at `host`. `tls` is the content of its section `tls`; `DIR` stands for the
    /// directory.
    fn upstream_yaml(&self, host: &str, tls: &str, more: &str) -> String {
        let port = self.front.port();
        let upstream = format!("{{ address: \"https://{host}:{port}\", tls: {{ {tls} }}{more} }}");
        upstream.replace("DIR", &self.directory.path().display().to_string())
    }

    fn start_proxy(&self, host: &str, tls: &str, more: &str, rest: &str) -> Weir {
        let rest = rest.replace("DIR", &self.directory.path().display().to_string());
        Weir::start(&config_with("127.0.0.1:0", &self.upstream_yaml(host, tls, more), &rest))
    }
}

/// Returns how many handshakes with the upstream had this outcome.
fn handshakes(weir: &Weir, outcome: &str) -> f64 {
    weir.metric("weir_upstream_tls_handshakes_total", &[("outcome", outcome)])
}

/// Waits for a log line about failed TLS that contains `words`, and returns the number of such lines.
fn count_tls_errors(weir: &Weir, words: &str) -> usize {
    let is_said = |line: &String| line.contains("cannot establish TLS") && line.contains(words);
    wait::until_true("the log line", || weir.log().iter().any(is_said));
    let lines = weir.log();
    lines.iter().filter(|line| is_said(line)).count()
}

#[test]
fn sni_is_server_name_or_the_host_of_the_address() {
    for (host, certified, tls, asked) in [
        ("localhost", "localhost", "", Some("localhost")),
        ("127.0.0.1", "127.0.0.1", "", None),
        ("127.0.0.1", "app.example", ", server_name: app.example", Some("app.example")),
    ] {
        let origin = Origin::hello();
        let beyond = TlsUpstream::new(origin.address(), certified, BOTH, false);
        let weir = beyond.start_proxy(host, &format!("ca: DIR/ca.crt{tls}"), "", "");
        for _ in 0..3 {
            let answer = get(weir.address(), "/a");
            assert_eq!((answer.status, &*answer.body.text()), (200, "hello"), "{host}");
        }
        let hellos = beyond.front.handshakes();
        assert_eq!(hellos.len(), 1, "the connection is reused");
        assert_eq!(hellos[0].name.as_deref(), asked);
        assert_eq!(hellos[0].protocol.as_deref(), Some("http/1.1"));
        assert!(hellos[0].certificate.is_none());
        for seen in origin.requests() {
            assert_eq!(seen.head.get("x-forwarded-proto"), Some("http"), "the client's scheme");
        }
        assert_eq!(handshakes(&weir, "full"), 1.0);
    }
}

#[test]
fn openssl_server_works_with_tls_1_2_and_1_3_and_resumption() {
    for version in ["-tls1_2", "-tls1_3"] {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new("authority");
        let ca = authority.write(&directory.path().join("ca.crt"));
        authority.issue("localhost", directory.path(), "app");
        let mut server = Command::new("openssl")
            .args([
                "s_server",
                "-accept",
                "127.0.0.1:0",
                "-www",
                "-cert",
                "app.crt",
                "-key",
                "app.key",
                version,
            ])
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut ports =
            lines.filter_map(|line| line.strip_prefix("ACCEPT ")?.rsplit_once(':')?.1.parse().ok());
        let port: u16 = ports.next().unwrap();
        let upstream =
            format!("{{ address: \"https://localhost:{port}\", tls: {{ ca: {} }} }}", ca.display());
        let weir = Weir::start(&config_with("127.0.0.1:0", &upstream, ""));
        for _ in 0..3 {
            let answer = get(weir.address(), "/");
            assert_eq!(answer.status, 200);
            assert!(answer.body.text().contains("</HTML>") || answer.body.text().contains("</html>"));
        }
        assert_eq!((handshakes(&weir, "full"), handshakes(&weir, "resumed")), (1.0, 2.0), "{version}");
        server.kill().unwrap();
        server.wait().unwrap();
    }
}

#[test]
fn alpn_negotiates_http2_if_configured() {
    let origin = H2Origin::start(None, |request, mut respond| async move {
        let scheme = request.uri().scheme_str().unwrap_or_default().to_owned();
        let response = http::Response::builder().header("x-scheme", scheme).body(()).unwrap();
        respond.send_response(response, true).map(drop)
    });
    let beyond = TlsUpstream::new(origin.address(), "localhost", BOTH, false);
    let weir = beyond.start_proxy("localhost", "ca: DIR/ca.crt", ", http2: true", "");
    for _ in 0..3 {
        let answer = get(weir.address(), "/");
        assert_eq!((answer.status, answer.header("x-scheme")), (200, "https"));
    }
    let hellos = beyond.front.handshakes();
    assert_eq!((hellos.len(), hellos[0].protocol.as_deref()), (1, Some("h2")));
}

#[test]
fn alpn_negotiates_http2_for_grpc() {
    let origin = H2Origin::hello();
    let beyond = TlsUpstream::new(origin.address(), "localhost", BOTH, false);
    let weir = beyond.start_proxy("localhost", "ca: DIR/ca.crt", "", "");
    let mut client = H2Client::connect(weir.address());
    assert_eq!(client.fetch(client.call()).status, 200);
    assert_eq!(beyond.front.handshakes()[0].protocol.as_deref(), Some("h2"));
}

#[test]
fn upstream_that_does_not_negotiate_http2_is_503() {
    let origin = Origin::hello();
    for protocols in [H1, &[]] {
        let beyond = TlsUpstream::new(origin.address(), "localhost", protocols, false);
        let weir = beyond.start_proxy("localhost", "ca: DIR/ca.crt", ", http2: true", "");
        assert_eq!(get(weir.address(), "/").status, 503);
        assert_eq!(handshakes(&weir, "incompatible"), 1.0);
        assert_eq!(count_tls_errors(&weir, "does not offer HTTP/2 over TLS"), 1);
    }
    assert!(origin.requests().is_empty());
}

#[test]
fn untrusted_certificate_is_503_and_logged_once() {
    let origin = Origin::hello();
    let cases = [
        ("localhost", "app.example", "ca: DIR/ca.crt", "untrusted", "not valid for name"),
        ("127.0.0.1", "localhost", "ca: DIR/ca.crt", "untrusted", "not valid for name"),
        ("localhost", "localhost", "ca: DIR/other.crt", "untrusted", "unknown issuer"),
    ];
    for (host, certified, tls, outcome, words) in cases {
        let beyond = TlsUpstream::new(origin.address(), certified, H1, false);
        Authority::new("other").write(&beyond.directory.path().join("other.crt"));
        let log = "access_log: { path: DIR/access.log, format: envoy }\n";
        let weir = beyond.start_proxy(host, tls, "", log);
        for _ in 0..3 {
            let answer = get(weir.address(), "/");
            assert_eq!((answer.status, &*answer.body.text()), (503, "upstream unavailable\n"));
        }
        assert_eq!(handshakes(&weir, outcome), 3.0);
        assert_eq!(count_tls_errors(&weir, words), 1, "logged once: {:?}", weir.log());
        let failed = weir.metric("weir_upstream_requests_total", &[("outcome", "connect_failed")]);
        assert_eq!(failed, 3.0);
        wait::until_true("the flag", || {
            let lines = std::fs::read_to_string(beyond.directory.path().join("access.log"));
            lines.unwrap_or_default().contains(" 503 UF ")
        });
    }
    assert!(origin.requests().is_empty());
}

#[test]
fn plaintext_upstream_is_reported_as_not_tls() {
    let origin = Origin::responding_with("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
    let beyond = TlsUpstream::new(origin.address(), "localhost", H1, false);
    let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = plain.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in plain.incoming().map_while(Result::ok) {
            let _ = std::io::Write::write_all(&mut &stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let upstream = beyond.upstream_yaml("localhost", "ca: DIR/ca.crt", "");
    let upstream = upstream.replace(&beyond.front.port().to_string(), &address.port().to_string());
    let weir = Weir::start(&config_with("127.0.0.1:0", &upstream, ""));
    assert_eq!(get(weir.address(), "/").status, 503);
    assert_eq!((handshakes(&weir, "not_tls"), count_tls_errors(&weir, "does not speak TLS")), (1.0, 1));
}

#[test]
fn handshake_is_bounded_by_connect_timeout() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority");
    let ca = authority.write(&directory.path().join("ca.crt"));
    let upstream = format!(
        "{{ address: \"https://{}\", connect_timeout: 300ms, timeout: 1h, tls: {{ ca: {} }} }}",
        silent.local_addr().unwrap(),
        ca.display()
    );
    let weir = Weir::start(&config_with("127.0.0.1:0", &upstream, ""));
    assert_eq!(get(weir.address(), "/").status, 503);
    assert_eq!(handshakes(&weir, "unfinished"), 1.0);
}

#[test]
fn verify_insecure_accepts_any_certificate() {
    let origin = Origin::hello();
    let beyond = TlsUpstream::new(origin.address(), "app.example", H1, false);
    let weir = beyond.start_proxy("localhost", "verify: insecure", "", "");
    assert_eq!(get(weir.address(), "/").status, 200);
    assert!(weir.log().iter().any(|line| line.contains("accepted as the upstream")));
}

#[test]
fn client_certificate_is_presented_if_requested() {
    let origin = Origin::hello();
    let beyond = TlsUpstream::new(origin.address(), "localhost", H1, true);
    beyond.authority.issue("weir.example", beyond.directory.path(), "weir");
    let own = "ca: DIR/ca.crt, certificate: DIR/weir.crt, key: DIR/weir.key";
    let weir = beyond.start_proxy("localhost", own, "", "");
    assert_eq!(get(weir.address(), "/").status, 200);
    assert!(beyond.front.handshakes()[0].certificate.is_some());
    let shown = &weir.admin_json("/certs")["certificates"][0];
    let (own, authority) = (&shown["cert_chain"][0], &shown["ca_cert"][0]);
    assert!(own["path"].as_str().unwrap().ends_with("/weir.crt"), "{shown:#}");
    assert!(authority["path"].as_str().unwrap().ends_with("/ca.crt"), "{shown:#}");
    assert!(own["days_until_expiration"].as_str().unwrap().parse::<u64>().unwrap() > 365);
    assert!(weir.metric("weir_tls_certificate_expiry_seconds", &[]) > 365.0 * 86_400.0);
    let nobody = beyond.start_proxy("localhost", "ca: DIR/ca.crt", "", "");
    assert_eq!(get(nobody.address(), "/").status, 503);
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn endpoint_with_untrusted_certificate_is_ejected() {
    let origin = Origin::hello();
    let good = TlsUpstream::new(origin.address(), "localhost", H1, false);
    let bad = TlsUpstream::new(origin.address(), "app.example", H1, false);
    let upstream = good.upstream_yaml("localhost", "ca: DIR/ca.crt", ", outliers: { failures: 3 }");
    let own = format!("\"https://localhost:{}\"", good.front.port());
    let both = format!("[{own}, \"https://localhost:{}\"]", bad.front.port());
    let weir = Weir::start(&config_with("127.0.0.1:0", &upstream.replace(&own, &both), ""));
    for _ in 0..20 {
        assert_eq!(get(weir.address(), "/").status, 200);
    }
    assert_eq!(weir.metric("weir_upstream_ejections_total", &[]), 1.0);
    assert_eq!((handshakes(&weir, "untrusted"), count_tls_errors(&weir, "not trusted")), (3.0, 1));
}
