//! mTLS to the remote rate limit service: only proxies with a certificate for an accepted name may send requests.

use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use super::RULES;
use crate::support::pki::Authority;
use crate::support::{Weir, config, get, wait};

/// A certificate authority and everything that it has issued, in a directory of its own.
struct Pki {
    authority: Authority,
    directory: tempfile::TempDir,
}

impl Pki {
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

    fn at(&self) -> &Path {
        self.directory.path()
    }

    /// Starts a service that requires a certificate for one of `names`.
    fn service(&self, names: &str) -> Weir {
        self.service_with(names, "")
    }

    /// Starts such a service with further TLS settings.
    fn service_with(&self, names: &str, tls: &str) -> Weir {
        let at = self.at().display();
        Weir::start(&format!(
            "admin: {{ address: 127.0.0.1:0 }}\nworkers: 1\nrls:\n  address: 127.0.0.1:0\n  \
             config: {{ directory: '{at}', prefix: edge }}\n  \
             tls: {{ certificate: '{at}/server.crt', key: '{at}/server.key', client_ca: '{at}/ca.crt'{tls} }}\n  \
             client_names: [{names}]\n"
        ))
    }

    /// Starts a proxy that uses `service` and presents the certificate with this name, if there is one.
    fn proxy(&self, service: &Weir, shows: Option<&str>) -> Weir {
        let (at, port) = (self.at().display(), service.door("grpc").port());
        let own = shows.map(|name| format!(", certificate: '{at}/{name}.crt', key: '{at}/{name}.key'"));
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
fn who_has_a_certificate_with_the_right_name_is_answered() {
    let pki = Pki::new();
    let service = pki.service("asker.example");
    assert_eq!(statuses(&pki.proxy(&service, Some("asker"))), [200, 200, 429]);
    assert_eq!(statuses(&pki.proxy(&service, Some("other"))), [503; 3], "a name that is not accepted");
    assert_eq!(statuses(&pki.proxy(&service, None)), [503; 3], "no certificate");
}

#[test]
fn a_service_that_is_another_is_not_asked() {
    let pki = Pki::new();
    let service = pki.service("asker.example");
    Authority::new("somebody else").write(&pki.at().join("ca.crt"));
    assert_eq!(statuses(&pki.proxy(&service, Some("asker"))), [503; 3]);
}

#[test]
fn a_renewed_certificate_is_shown_from_then_on() {
    let pki = Pki::new();
    let service = pki.service("asker.example");
    pki.authority.issue("elsewhere.example", pki.at(), "server");
    wait::until_true("the renewed certificate", || statuses(&pki.proxy(&service, Some("asker"))) == [503; 3]);
    pki.authority.issue("localhost", pki.at(), "server");
    wait::until_true("the certificate with the old name", || {
        let [first, ..] = statuses(&pki.proxy(&service, Some("asker")));
        first != 503
    });
}

#[test]
fn a_handshake_waits_for_others_where_there_are_as_many_as_may_be() {
    let pki = Pki::new();
    let service = pki.service_with("asker.example", ", handshakes: 1");
    // A client that sends nothing holds the only handshake permit.
    let silent = TcpStream::connect(service.door("grpc")).unwrap();
    let proxy = pki.proxy(&service, Some("asker"));
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| get(proxy.address(), "/").status);
        wait::throughout(Duration::from_millis(300), || assert!(!asking.is_finished(), "it did not wait"));
        drop(silent);
        assert_eq!(asking.join().unwrap(), 200);
    });
}
