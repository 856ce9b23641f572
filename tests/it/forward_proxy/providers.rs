//! Several providers behind one listener, and ingress and egress in one process.

use crate::support::pki::Authority;
use crate::support::tls_front::TlsFront;
use crate::support::{Origin, Request, Weir, fetch};

/// Returns a configuration with a listener for ingress, one for egress and one that is a forward proxy.
fn config(upstreams: &str, rest: &str) -> String {
    format!(
        "listeners:\n\
         - {{ name: ingress, address: 127.0.0.1:0 }}\n\
         - {{ name: egress, address: 127.0.0.1:0 }}\n\
         - {{ name: forward, address: 127.0.0.1:0, forward_proxy: true }}\n\
         admin: {{ address: 127.0.0.1:0 }}\nworkers: 1\nupstreams:\n{upstreams}\n{rest}\n"
    )
}

#[test]
fn providers_are_chosen_by_path_and_receive_their_own_host() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority");
    let ca = authority.write(&directory.path().join("ca.crt"));
    let (stripe, app) = (Origin::hello(), Origin::hello());
    let front = TlsFront::start(authority.server("localhost", &["http/1.1"], false), stripe.address());
    let upstreams = format!(
        "- {{ name: stripe, address: \"https://localhost:{}\", tls: {{ ca: {} }}, match: {{ listener: egress, path: /stripe/* }}, \
         host: api.stripe.test, strip_prefix: /stripe, client_headers: false }}\n\
         - {{ name: app, address: \"{}\", match: {{ listener: ingress }} }}",
        front.port(),
        ca.display(),
        app.address()
    );
    let weir = Weir::start(&config(&upstreams, "rules: []"));
    let request = Request::get("/stripe/v1/charges?limit=1").host("127.0.0.1:8081");
    assert_eq!(fetch(weir.listener("egress"), &request).status, 200);
    let seen = stripe.only_request().head;
    assert_eq!(seen.line, "GET /v1/charges?limit=1 HTTP/1.1");
    let fields = [("host", "api.stripe.test"), ("via", "1.1 weir")];
    let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(seen.fields, fields, "nothing about the client is added");
    assert_eq!(fetch(weir.listener("egress"), &Request::get("/other")).status, 404);
    assert_eq!(fetch(weir.listener("ingress"), &request).status, 200);
    let seen = app.only_request().head;
    assert_eq!(seen.line, "GET /stripe/v1/charges?limit=1 HTTP/1.1");
    assert!(seen.get("x-forwarded-for").is_some() && seen.get("x-request-id").is_some(), "{seen:?}");
}

#[test]
fn upstream_of_the_listener_takes_all_requests_of_a_forward_proxy() {
    let (partner, app) = (Origin::hello(), Origin::hello());
    let upstreams = format!(
        "- {{ name: partner, address: \"{}\", match: {{ listener: forward }} }}\n- {{ name: app, address: \"{}\" }}",
        partner.address(),
        app.address()
    );
    let weir = Weir::start(&config(&upstreams, "rules: []"));
    let request = Request::get("http://partner.test:8000/x").host("ignored.test");
    assert_eq!(fetch(weir.listener("forward"), &request).status, 200);
    assert_eq!(partner.only_request().head.get("host"), Some("partner.test:8000"));
    assert_eq!(fetch(weir.listener("egress"), &request).status, 200, "a reverse proxy ignores the authority");
    assert_eq!(app.requests().len(), 1);
}

#[test]
fn rules_apply_by_listener() {
    let rules = "rules:\n\
                 - { name: outgoing, match: { listener: [egress, forward] }, limit: 1/d, algorithm: fixed_window }\n\
                 - { name: each, key: [listener], limit: 3/d, algorithm: fixed_window }";
    let weir = Weir::start(&config("- { name: app, address: echo }", rules));
    let status = |listener: &str| fetch(weir.listener(listener), &Request::get("/")).status;
    assert_eq!(
        ["egress", "forward", "ingress", "ingress", "ingress", "ingress"].map(status),
        [200, 429, 200, 200, 200, 429]
    );
}
