//! mTLS to the remote rate limit service: only proxies with a certificate for an accepted name may send requests.

use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use super::RULES;
use crate::support::pki::Authority;
use crate::support::{Weir, config, get, wait};

/// A certificate authority and everything that it has issued, in a directory of its own.
struct TestPki {
    authority: Authority,
    directory: tempfile::TempDir,
}

impl TestPki {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new("Weir's own");
        authority.write(&directory.path().join("ca.crt"));
        authority.issue("localhost", directory.path(), "server");
        authority.issue("asker.example", directory.path(), "asker");
        authority.issue("other.example", directory.path(), "other");
        std::fs::write(directory.path().join("edge.yaml"), RULES).unwrap();
        Self { authority, directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Starts a service that requires a certificate for one of `names`.
    fn start_service(&self, names: &str) -> Weir {
        self.start_service_with(names, "")
    }

    /// Starts such a service with further TLS settings.
    fn start_service_with(&self, names: &str, tls: &str) -> Weir {
        let at = self.path().display();
        Weir::start(&format!(
            "admin: {{ address: 127.0.0.1:0 }}\nworkers: 1\nrls:\n  address: 127.0.0.1:0\n  \
             config: {{ directory: '{at}', prefix: edge }}\n  \
             tls: {{ certificate: '{at}/server.crt', key: '{at}/server.key', client_ca: '{at}/ca.crt'{tls} }}\n  \
             client_names: [{names}]\n"
        ))
    }

    /// Starts a proxy that uses `service` and presents the certificate with this name, if there is one.
    fn start_proxy(&self, service: &Weir, certificate: Option<&str>) -> Weir {
        let (at, port) = (self.path().display(), service.rls_address("grpc").port());
        let own = certificate.map(|name| format!(", certificate: '{at}/{name}.crt', key: '{at}/{name}.key'"));
        let tls = format!("{{ ca: '{at}/ca.crt', server_name: localhost{} }}", own.unwrap_or_default());
        let scope = format!(
            "{{ rls: 'https://127.0.0.1:{port}', domain: edge, timeout: 20s, on_error: deny, tls: {tls} }}"
        );
        Weir::start(&config("echo", &format!("rules: [{{ name: r, key: client_ip, scope: {scope} }}]\n")))
    }
}

fn statuses(weir: &Weir) -> [u16; 3] {
    [(); 3].map(|()| get(weir.address(), "/").status)
}

#[test]
fn service_accepts_only_configured_client_names() {
    let pki = TestPki::new();
    let service = pki.start_service("asker.example");
    assert_eq!(statuses(&pki.start_proxy(&service, Some("asker"))), [200, 200, 429]);
    assert_eq!(statuses(&pki.start_proxy(&service, Some("other"))), [503; 3], "a name that is not accepted");
    assert_eq!(statuses(&pki.start_proxy(&service, None)), [503; 3], "no certificate");
}

#[test]
fn service_with_an_untrusted_certificate_is_not_queried() {
    let pki = TestPki::new();
    let service = pki.start_service("asker.example");
    Authority::new("somebody else").write(&pki.path().join("ca.crt"));
    assert_eq!(statuses(&pki.start_proxy(&service, Some("asker"))), [503; 3]);
}

#[test]
fn renewed_server_certificate_is_used() {
    let pki = TestPki::new();
    let service = pki.start_service("asker.example");
    pki.authority.issue("elsewhere.example", pki.path(), "server");
    wait::until_true("the renewed certificate", || {
        statuses(&pki.start_proxy(&service, Some("asker"))) == [503; 3]
    });
    pki.authority.issue("localhost", pki.path(), "server");
    wait::until_true("the certificate with the old name", || {
        let [first, ..] = statuses(&pki.start_proxy(&service, Some("asker")));
        first != 503
    });
}

#[test]
fn handshakes_over_the_limit_wait() {
    let pki = TestPki::new();
    let service = pki.start_service_with("asker.example", ", handshakes: 1");
    // A client that sends nothing holds the only handshake permit.
    let silent = TcpStream::connect(service.rls_address("grpc")).unwrap();
    let proxy = pki.start_proxy(&service, Some("asker"));
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| get(proxy.address(), "/").status);
        wait::throughout(Duration::from_millis(300), || assert!(!asking.is_finished(), "it did not wait"));
        drop(silent);
        assert_eq!(asking.join().unwrap(), 200);
    });
}
