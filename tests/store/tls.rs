//! TLS to the store. Only Debian's Redis supports it: the Valkey of the tests is built without TLS.

use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use weir_net::tls::client::{ServerVerification, TlsClientSettings as Tls};
use weir_net::tls::pem::Authorities;
use weir_store::redis::CallError;
use weir_store::remote::channel::ServerAddress;
use weir_store::settings::{SingleServer as One, StoreSettings, Topology};

use crate::caller::{Caller, accept, echo, settings};
use crate::servers::{Flavour, Server};

#[path = "../it/support/pki.rs"]
#[expect(dead_code, reason = "the tests of the program use the rest")]
mod pki;

use pki::Authority;

/// Starts a server with a certificate of `authority` for `host`.
fn server(authority: &Authority, host: &str) -> Server {
    Flavour::Redis.with_login(
        |directory, port| {
            let (certificate, key) = authority.issue(host, directory, "server");
            let ca = authority.write(&directory.join("ca.crt"));
            let shown = |path: &Path| path.display().to_string();
            let port = port.to_string();
            let (certificate, key, ca) = (shown(&certificate), shown(&key), shown(&ca));
            let tls = ["--port", "0", "--tls-port", &port, "--tls-auth-clients", "no"];
            let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
            [tls.as_slice(), files.as_slice()].concat().into_iter().map(str::to_owned).collect()
        },
        &["--tls", "--insecure"],
    )
}

/// Returns settings for the server at `localhost`, which trust certificates of `authority`.
fn tls_settings(port: u16, authority: &Authority, directory: &Path) -> StoreSettings {
    let file = authority.write(&directory.join("trusted.crt"));
    let authorities = Authorities::from_pem(&std::fs::read(&file).unwrap()).unwrap();
    let trust =
        ServerVerification::Configured { authorities: Arc::new(authorities), file: "trusted.crt".into() };
    let place = ServerAddress::Tcp("localhost".into(), port);
    let mut settings = settings(Topology::Single(One { address: place, db: 0 }));
    settings.tls = Some(Tls { verification: trust, key_pair: None, name: None });
    settings
}

#[test]
fn store_tls_verifies_the_server_certificate() {
    let (authority, other) = (Authority::new("own"), Authority::new("other"));
    let directory = tempfile::tempdir().unwrap();
    let right = server(&authority, "localhost");
    let caller = Caller::new(tls_settings(right.port(), &authority, directory.path()));
    assert_eq!(caller.increment("weir:a"), Ok(1));
    let failure = |settings: StoreSettings| {
        let error = Caller::new(settings).increment("weir:a").unwrap_err();
        assert!(matches!(error, CallError::Unreachable(_)), "{error:?}");
        error.to_string()
    };
    let unknown = failure(tls_settings(right.port(), &other, directory.path()));
    assert!(unknown.contains("unknown issuer"), "{unknown}");
    let misnamed = server(&authority, "elsewhere.test");
    let wrong = failure(tls_settings(misnamed.port(), &authority, directory.path()));
    assert!(wrong.contains("name"), "{wrong}");
    let mut plain = tls_settings(right.port(), &authority, directory.path());
    plain.tls = None;
    failure(plain);
}

#[test]
fn store_tls_offers_no_alpn() {
    let authority = Authority::new("own");
    let directory = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("localhost:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let caller = Caller::new(tls_settings(port, &authority, directory.path()));
    let _call = caller.start_call(&echo(), "weir:a", "");
    let mut stream = accept(&listener);
    let mut acceptor = rustls::server::Acceptor::default();
    let accepted = loop {
        acceptor.read_tls(&mut Read::by_ref(&mut stream)).unwrap();
        if let Some(accepted) = acceptor.accept().unwrap() {
            break accepted;
        }
    };
    let hello = accepted.client_hello();
    assert_eq!(hello.server_name(), Some("localhost"));
    assert!(hello.alpn().is_none(), "ALPN is not offered: a server may reject unknown protocols");
}
