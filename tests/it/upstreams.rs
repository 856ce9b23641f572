//! Several upstreams and several endpoints: who takes which request.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;

use crate::support::wait::until_true;
use crate::support::{Client, Origin, Weir, get};

/// A configuration with no rules and these lines about upstreams.
fn config(upstreams: &str) -> String {
    format!("listeners: 127.0.0.1:0\nworkers: 1\nadmin: {{ address: 127.0.0.1:0 }}\n{upstreams}\nrules: []\n")
}

fn named(name: &str) -> Origin {
    Origin::answering(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len()))
}

#[test]
fn the_first_upstream_that_matches_takes_the_request() {
    let (api, rest) = (named("api"), named("rest"));
    let weir = Weir::start(&config(&format!(
        "upstreams:\n  - {{ name: api, match: {{ path: /api/* }}, address: '{}' }}\n  - {{ name: rest, address: '{}' }}",
        api.address(),
        rest.address()
    )));
    let mut client = Client::connect(weir.address());
    for (path, name) in
        [("/api/v1", "api"), ("/", "rest"), ("/a%70i/v1", "api"), ("/x/../api/", "api"), ("/apis", "rest")]
    {
        assert_eq!(client.get(path).body.text(), name, "{path}");
    }
    assert_eq!(api.last().head.line, "GET /x/../api/ HTTP/1.1", "the target is the client's");
    let answered =
        |name| weir.metric("weir_upstream_requests_total", &[("upstream", name), ("outcome", "answered")]);
    assert_eq!((answered("api"), answered("rest")), (3.0, 2.0));
    let clusters = weir.admin_get("/clusters").body.text();
    assert!(clusters.contains(&format!("api::{}::rq_total::3\n", api.address())), "{clusters}");
}

#[test]
fn what_no_upstream_takes_is_not_found() {
    let api = named("api");
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let weir = Weir::start(&config(&format!(
        "upstreams: {{ match: {{ path: /api/* }}, address: '{}' }}\naccess_log: {}",
        api.address(),
        log.display()
    )));
    assert_eq!(get(weir.address(), "/other").status, 404);
    assert!(api.seen().is_empty());
    until_true("a line of the log", || {
        std::fs::read_to_string(&log).unwrap_or_default().contains(" 404 NR ")
    });
}

#[test]
fn endpoints_take_turns() {
    let origins = [named("a"), named("b"), named("c")];
    let addresses = origins.each_ref().map(|origin| format!("'{}'", origin.address())).join(", ");
    let weir = Weir::start(&config(&format!("upstream: {{ address: [{addresses}] }}")));
    let mut client = Client::connect(weir.address());
    for _ in 0..9 {
        assert_eq!(client.get("/").status, 200);
    }
    assert_eq!(origins.each_ref().map(|origin| origin.seen().len()), [3, 3, 3]);
    assert_eq!(origins.each_ref().map(Origin::connections), [1, 1, 1]);
}

#[test]
fn an_upstream_may_be_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let serving = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        for _ in 0..2 {
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                assert!(reader.read_line(&mut line).unwrap() > 0, "the connection is used again");
            }
            (&stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
        }
    });
    let weir = Weir::start(&config(&format!("upstream: unix:{}", path.display())));
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/").body.text(), "ok");
    assert_eq!(client.get("/").body.text(), "ok");
    serving.join().unwrap();
    drop(std::fs::remove_file(&path));
    assert_eq!(get(weir.address(), "/").status, 503);
}

#[test]
fn a_reload_moves_requests_and_keeps_connections_that_are_still_wanted() {
    let (one, other) = (named("one"), named("other"));
    let text = |path: &str| {
        config(&format!(
            "upstreams:\n  - {{ name: one, match: {{ path: {path} }}, address: '{}' }}\n  - {{ name: other, address: '{}' }}",
            one.address(),
            other.address()
        ))
    };
    let weir = Weir::start(&text("/a"));
    let mut client = Client::connect(weir.address());
    assert_eq!((client.get("/a").body.text(), client.get("/b").body.text()), ("one".into(), "other".into()));
    weir.reload(&text("/b"));
    assert_eq!((client.get("/a").body.text(), client.get("/b").body.text()), ("other".into(), "one".into()));
    assert_eq!((one.connections(), other.connections()), (1, 1));
}
