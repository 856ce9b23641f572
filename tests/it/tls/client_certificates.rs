//! Clients with a certificate, without one, and with a stalled handshake.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::{TlsProxy, text};
use crate::support::pki::Authority;
use crate::support::{Client, Request, Weir, config, wait};

const REQUIRED: &str = ", client_ca: DIR/ca.crt";
const OPTIONAL: &str = ", client_ca: DIR/ca.crt, client_auth: optional";
const CODE: [&str; 2] = ["--write-out", "%{http_code}"];

impl TlsProxy {
    /// Returns the status code for a client with the certificate `name`, or without a certificate.
    fn status(&self, name: Option<&str>, more: &[&str]) -> String {
        let files = name.map(|name| (format!("{name}.crt"), format!("{name}.key")));
        let mut arguments = [&CODE[..], &["--output", "/dev/null"], more].concat();
        if let Some((certificate, key)) = &files {
            arguments.extend(["--cert", certificate, "--key", key]);
        }
        let output = self.curl("app.example", &arguments);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn issue(&self, host: &str, name: &str) {
        self.authority.issue(host, self.directory.path(), name);
    }
}

#[test]
fn missing_or_untrusted_certificate_is_rejected_if_required() {
    let secured = TlsProxy::start(REQUIRED, "");
    secured.issue("client.example", "client");
    Authority::new("another").issue("client.example", secured.directory.path(), "stranger");
    assert_eq!(secured.status(Some("client"), &[]), "200");
    assert_eq!(secured.status(None, &[]), "000");
    assert_eq!(secured.status(Some("stranger"), &[]), "000");
    let refused = || secured.weir.metric("weir_tls_handshakes_total", &[("outcome", "client_certificate")]);
    wait::until_true("both rejections", || refused() >= 2.0);
    assert_eq!(secured.origin.requests().len(), 1);
}

#[test]
fn xfcc_header_is_set_only_from_the_certificate() {
    let secured = TlsProxy::start(OPTIONAL, "");
    secured.issue("client.example", "client");
    let forged = ["--header", "x-forwarded-client-cert: Hash=00;URI=spiffe://root"];
    for version in ["--http1.1", "--http2"] {
        assert_eq!(secured.status(Some("client"), &[&forged[..], &[version]].concat()), "200");
        assert_eq!(secured.status(None, &[&forged[..], &[version]].concat()), "200");
    }
    let seen = secured.origin.requests();
    for (place, seen) in seen.iter().enumerate() {
        let told = seen.head.get_all("x-forwarded-client-cert");
        if place % 2 == 1 {
            assert!(told.is_empty(), "{told:?}");
            continue;
        }
        assert_eq!(told.len(), 1);
        let names = ";Subject=\"CN=client.example,O=Weir\";URI=spiffe://test/client.example";
        assert!(told[0].starts_with("Hash=") && told[0].ends_with(names), "{told:?}");
        assert_eq!(told[0].len(), "Hash=".len() + 64 + names.len());
    }
}

#[test]
fn xfcc_header_is_accepted_only_from_configured_proxies() {
    let told = ["--header", "x-forwarded-client-cert: Hash=00"];
    let seen = |client_ip: &str, certificate: Option<&str>| {
        let secured = TlsProxy::start(OPTIONAL, &format!("client_ip: {client_ip}\n"));
        secured.issue("client.example", "client");
        assert_eq!(secured.status(certificate, &told), "200");
        secured.origin.requests()[0].head.get("x-forwarded-client-cert").map(ToOwned::to_owned)
    };
    assert_eq!(seen("{ trusted_proxies: 127.0.0.1 }", None), None, "not in client_certificate_proxies");
    assert_eq!(seen("{ client_certificate_proxies: 192.0.2.0/24 }", None), None, "only another peer");
    let named = "{ client_certificate_proxies: 127.0.0.1 }";
    assert_eq!(seen(named, None).as_deref(), Some("Hash=00"));
    let own = seen(named, Some("client")).unwrap();
    assert!(own.contains("client.example"), "the certificate of the peer takes precedence: {own}");
}

#[test]
fn untrusted_xfcc_header_is_hidden_from_rules() {
    let rules = "rules: [{ name: root, match: { header: { x-forwarded-client-cert: '*' } }, action: deny }]";
    for (client_ip, status) in [("trusted_proxies", 200), ("client_certificate_proxies", 403)] {
        let weir = Weir::start(&config("echo", &format!("client_ip: {{ {client_ip}: 127.0.0.1 }}\n{rules}")));
        let request = Request::get("/").header("x-forwarded-client-cert", "URI=spiffe://root");
        assert_eq!(Client::connect(weir.address()).fetch(&request).status, status, "{client_ip}");
    }
}

#[test]
fn certificate_fields_are_keys() {
    for (part, missing) in [("spiffe", "skip"), ("subject", "deny"), ("dns", "shared")] {
        let rules =
            format!("rules: [{{ name: a, key: {{ tls: {part} }}, on_missing: {missing}, limit: 1/h }}]\n");
        let secured = TlsProxy::start(OPTIONAL, &rules);
        secured.issue("one.example", "one");
        secured.issue("two.example", "two");
        let statuses = [Some("one"), Some("one"), Some("two"), Some("two"), None, None];
        let statuses = statuses.map(|name| secured.status(name, &[]));
        let unnamed = match missing {
            "skip" => ["200", "200"],
            "deny" => ["403", "403"],
            _ => ["200", "429"],
        };
        assert_eq!(statuses[..4], ["200", "429", "200", "429"], "{part}");
        assert_eq!(statuses[4..], unnamed, "{part}");
    }
}

#[test]
fn rules_match_certificate_fields() {
    let rules = "rules:\n  - { name: others, match: { tls: { spiffe: '!present' } }, action: deny }\n  \
                 - { name: two, match: { tls: { dns: two.example, subject: '~^CN=two' } }, key: [], limit: 1/h }\n";
    let secured = TlsProxy::start(OPTIONAL, rules);
    secured.issue("one.example", "one");
    secured.issue("two.example", "two");
    let names = [None, Some("one"), Some("one"), Some("two"), Some("two")];
    assert_eq!(names.map(|name| secured.status(name, &[])), ["403", "200", "200", "200", "429"]);
}

#[test]
fn cached_response_to_a_certificate_client_is_not_served_to_others() {
    let rule = "rules: [{ name: pages, key: path, limit: 1/d, on_limit: { fallback: { cached: 1MiB } } }]\n";
    for (first, then) in [(Some("client"), "429"), (None, "200")] {
        let secured = TlsProxy::start(OPTIONAL, rule);
        secured.issue("client.example", "client");
        assert_eq!(secured.status(first, &[]), "200");
        assert_eq!(secured.status(None, &[]), then, "the first was {first:?}");
        assert_eq!(secured.origin.requests().len(), 1);
    }
}

#[test]
fn unfinished_or_non_tls_handshake_is_closed() {
    let secured = TlsProxy::start("", "");
    let mut silent = TcpStream::connect(secured.weir.address()).unwrap();
    silent.set_read_timeout(Some(wait::DEADLINE)).unwrap();
    // The first bytes of a record only.
    silent.write_all(&[0x16, 3, 1, 2]).unwrap();
    let mut rest = Vec::new();
    let _ = silent.read_to_end(&mut rest);
    let count = |outcome| secured.weir.metric("weir_tls_handshakes_total", &[("outcome", outcome)]);
    wait::until_true("the handshake timeout", || count("timed_out") >= 1.0);
    let mut plain = TcpStream::connect(secured.weir.address()).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    wait::until_true("the rejection of plaintext", || count("not_tls") >= 1.0);
    assert_eq!(text(&secured.curl("app.example", &[])), "hello");
}
