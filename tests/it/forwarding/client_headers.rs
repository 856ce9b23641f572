//! Headers in which peers name a client, a host or a target, and those that an upstream's settings change.

use crate::support::h2::H2Client;
use crate::support::{Client, LISTENER, Origin, Request, Weir, config, config_with, fetch};

const CLAIMS: [(&str, &str); 6] = [
    ("x-real-ip", "192.0.2.1"),
    ("forwarded", "for=192.0.2.1"),
    ("x-forwarded-host", "evil.example"),
    ("true-client-ip", "192.0.2.1"),
    ("x-original-url", "/admin"),
    ("x-forwarded-user", "admin"),
];

fn claiming(request: Request) -> Request {
    CLAIMS.iter().fold(request, |request, (name, value)| request.header(&name.to_uppercase(), value))
}

/// Returns the claims that the upstream receives with these settings.
fn forwarded_claims(settings: &str, from: &str) -> (Vec<&'static str>, f64) {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), &format!("{settings}rules: []\n")));
    let mut client = Client::connect_from(from, weir.address());
    assert_eq!(client.fetch(&claiming(Request::get("/")).header("X-Other", "1")).status, 200);
    let head = origin.only_request().head;
    assert_eq!(head.get("x-other"), Some("1"));
    let received = CLAIMS.iter().map(|(name, _)| *name).filter(|name| head.get(name).is_some());
    (received.collect(), weir.metric("weir_untrusted_headers_removed_total", &[]))
}

#[test]
fn claims_of_untrusted_peers_are_removed_and_counted() {
    assert_eq!(forwarded_claims("", "127.0.0.1"), (vec![], 6.0));
    let settings = "client_ip: { trusted_proxies: [127.0.0.9] }\n";
    assert_eq!(forwarded_claims(settings, "127.0.0.1"), (vec![], 6.0));
}

#[test]
fn claims_of_trusted_peers_are_forwarded() {
    let all: Vec<_> = CLAIMS.iter().map(|(name, _)| *name).collect();
    let settings = "client_ip: { trusted_proxies: [127.0.0.1] }\n";
    assert_eq!(forwarded_claims(settings, "127.0.0.1"), (all.clone(), 0.0));
    assert_eq!(forwarded_claims("forwarded_headers: keep\n", "127.0.0.1"), (all, 0.0));
}

#[test]
fn claims_are_removed_before_rules_read_them() {
    let rules = "rules: [{ name: a, key: { header: x-real-ip }, on_missing: shared, limit: 1/d }]";
    let weir = Weir::start(&config("echo", rules));
    let status =
        |address: &str| fetch(weir.address(), &Request::get("/").header("x-real-ip", address)).status;
    assert_eq!([status("192.0.2.1"), status("192.0.2.2")], [200, 429]);
}

#[test]
fn claims_over_http2_are_removed() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), "rules: []\n"));
    let mut h2 = H2Client::connect(weir.address());
    let request =
        CLAIMS.iter().fold(h2.request("GET", "/"), |request, (name, value)| request.header(*name, *value));
    assert_eq!(h2.fetch(request).status, 200);
    let head = origin.only_request().head;
    assert!(CLAIMS.iter().all(|(name, _)| head.get(name).is_none()), "{head:?}");
}

#[test]
fn configured_header_names_the_client_and_is_removed_from_untrusted_peers() {
    let origin = Origin::hello();
    let settings = "client_ip: { trusted_proxies: [127.0.0.1], header: [x-edge-ip, forwarded] }\n\
                    rules: [{ name: once, key: client_ip, limit: 1/d }]";
    let weir = Weir::start(&config(origin.address(), settings));
    let mut trusted = Client::connect(weir.address());
    let mut status = |name: &str, value: &str| trusted.fetch(&Request::get("/").header(name, value)).status;
    assert_eq!([status("x-edge-ip", "192.0.2.1"), status("x-edge-ip", "192.0.2.1")], [200, 429]);
    assert_eq!(status("forwarded", "for=192.0.2.2;proto=https, for=192.0.2.1"), 429);
    assert_eq!(status("forwarded", "for=192.0.2.1, for=\"192.0.2.2:80\""), 200);
    assert_eq!(status("x-forwarded-for", "192.0.2.3"), 200, "the peer");
    assert_eq!(status("x-forwarded-for", "192.0.2.4"), 429, "X-Forwarded-For is not read");
    assert_eq!(origin.last_request().head.get("x-envoy-external-address"), Some("127.0.0.1"));

    let mut other = Client::connect_from("127.0.0.2", weir.address());
    assert_eq!(other.fetch(&Request::get("/").header("X-Edge-Ip", "192.0.2.9")).status, 200);
    let head = origin.last_request().head;
    assert_eq!((head.get("x-edge-ip"), head.get("x-envoy-external-address")), (None, Some("127.0.0.2")));
}

#[test]
fn upstream_receives_the_headers_that_its_settings_set() {
    let origin = Origin::hello();
    let upstream = format!(
        "{}, headers: {{ set: {{ X-Real-IP: '{{client_ip}}', authorization: Bearer s3cret, x-path: \
         '{{method}} {{path}}', x-request-id: fixed, x-id: '{{request_id}}', x-text: '{{{{rule}}}}' }}, remove: \
         [x-debug, x-forwarded-for] }}",
        origin.address()
    );
    let settings = "client_ip: { trusted_proxies: [127.0.0.1] }\nrules: []\n";
    let weir = Weir::start(&config_with(LISTENER, &format!("{{ address: {upstream} }}"), settings));
    let request = Request::get("/a/b?c=d")
        .forwarded_for("192.0.2.7")
        .header("x-real-ip", "6.6.6.6")
        .header("Authorization", "Basic x")
        .header("X-Debug", "1")
        .header("x-request-id", "given")
        .header("x-kept", "1");
    assert_eq!(fetch(weir.address(), &request).status, 200);
    let head = origin.only_request().head;
    let expected = [
        ("x-real-ip", Some("192.0.2.7")),
        ("authorization", Some("Bearer s3cret")),
        ("x-path", Some("GET /a/b")),
        ("x-request-id", Some("fixed")),
        ("x-id", Some("given")),
        ("x-text", Some("{rule}")),
        ("x-debug", None),
        ("x-forwarded-for", None),
        ("x-forwarded-proto", Some("http")),
        ("x-kept", Some("1")),
    ];
    for (name, value) in expected {
        assert_eq!(head.get(name), value, "{name}");
        assert_eq!(head.get_all(name).len(), usize::from(value.is_some()), "{name}");
    }
    assert!(!weir.admin_get("/config_dump").body.text().contains("s3cret"));
}
