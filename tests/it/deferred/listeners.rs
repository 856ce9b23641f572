//! Calls on several listeners and on forward proxies.

use super::*;
use crate::forward_proxy::proxy_config;

/// Two listeners, each with an upstream of its own.
fn two_listeners(store: &Server, [first, second]: [&Origin; 2], names: &[&str]) -> String {
    let listeners: Vec<_> =
        names.iter().map(|name| format!("{{ name: {name}, address: \"127.0.0.1:0\" }}")).collect();
    format!(
        "listeners: [{}]\nadmin: {{ address: 127.0.0.1:0 }}\nworkers: 1\nupstreams:\n\
         - {{ name: second, address: \"{}\", match: {{ header: {{ x-second: \"*\" }}, listener: {} }} }}\n\
         - {{ name: first, address: \"{}\" }}\n\
         store: {{ redis: {}, timeout: 2s }}\nrules:\n- name: hooks\n  match: {{ method: POST }}\n  \
         limit: 100000/s\n  respond: {{ backoff: 10ms..50ms }}\n",
        listeners.join(", "),
        second.address(),
        names[names.len() - 1],
        first.address(),
        store.url()
    )
}

fn deferring_proxy(store: &Server, settings: &str) -> String {
    let rest = format!(
        "store: {{ redis: {}, timeout: 2s }}\nrules: [{{ name: hooks, limit: 100000/s, respond: 202 }}]",
        store.url()
    );
    proxy_config(settings, &rest)
}

#[test]
fn call_is_sent_as_from_its_listener_and_kept_while_that_does_not_exist() {
    let (store, first, second) =
        (Server::start(), Origin::responding_with(NO_CONTENT), Origin::responding_with(NO_CONTENT));
    let is_up = Arc::new(AtomicBool::new(false));
    let failing = switched_origin(&is_up);
    let call = || Request::post("/hooks/a", "x").header("x-second", "1");
    let mut weir = Weir::start(&two_listeners(&store, [&first, &second], &["one", "two"]));
    assert_eq!(fetch(weir.listener("two"), &call()).status, 202);
    until_delivered(&second, 1);
    until_status(&weir, "an empty stream", |status| status["calls"] == 0);
    weir.terminate();
    assert!(weir.wait_exit().success());
    let mut weir = Weir::start(&two_listeners(&store, [&first, &failing], &["one", "two"]));
    assert_eq!(fetch(weir.listener("two"), &call()).status, 202);
    wait::until_true("an attempt", || !failing.requests().is_empty());
    weir.terminate();
    assert!(weir.wait_exit().success());
    let weir = Weir::start(&two_listeners(&store, [&first, &second], &["one"]));
    wait::until_true("the report", || {
        weir.log().iter().any(|line| line.contains("deferred calls of a listener that is not configured"))
    });
    until_status(&weir, "the call is kept", |status| status["calls"] == 1 && status["dead_letters"] == 0);
    assert_eq!((first.requests().len(), second.requests().len()), (0, 1));
}

#[test]
fn call_to_a_forward_proxy_is_sent_to_the_destination_that_it_names() {
    let (store, origin) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let weir = Weir::start(&deferring_proxy(&store, "true"));
    let url = format!("http://{}/hooks/a?b", origin.address());
    assert_eq!(fetch(weir.address(), &Request::post(&url, "payload").host("ignored.test")).status, 202);
    until_delivered(&origin, 1);
    let seen = origin.only_request();
    assert_eq!(
        (seen.head.line.as_str(), seen.body.text()),
        ("POST /hooks/a?b HTTP/1.1", "payload".to_owned())
    );
    assert_eq!(seen.head.get_all("host"), [origin.address().to_string()]);
    assert_eq!(seen.head.get("x-forwarded-for"), None, "nothing about the client is added");
    until_status(&weir, "an empty stream", |status| status["calls"] == 0);
}

#[test]
fn tunnel_is_not_deferred() {
    let (store, origin) = (Server::start(), Origin::hello());
    let port = origin.address().port();
    let weir = Weir::start(&deferring_proxy(&store, &format!("{{ connect_ports: {port} }}")));
    let mut client = Client::connect(weir.address());
    client.send(format!("CONNECT {0} HTTP/1.1\r\nhost: {0}\r\n\r\n", origin.address()));
    assert_eq!(client.read_response("CONNECT").status, 501);
    assert_eq!(status(&weir)["calls"].as_u64().unwrap_or_default(), 0);
}
