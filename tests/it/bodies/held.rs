//! What is held of bodies, and for how long.

use super::{RULES, form, json, statuses};
use crate::support::{AfterResponse, Client, Origin, Request, Weir, config, get, wait};

#[test]
fn body_of_an_exempt_or_denied_request_is_not_held() {
    let rules = "\
bodies: { max: 1KiB }
rules:
  - { name: login, key: { form: username }, on_missing: deny, limit: 2/d, algorithm: fixed_window }
  - { name: probes, match: { path: /exempt }, action: allow }
  - { name: closed, match: { path: /closed }, action: deny }
";
    let weir = Weir::start(&config("echo", rules));
    for (target, status) in [("/exempt", 200), ("/closed", 403), ("/login", 400)] {
        let unreadable = Request::post(target, "x".repeat(5000));
        assert_eq!(statuses(&weir, [&unreadable]), [status], "{target}");
    }
    // Nothing of the body has arrived.
    let mut client = Client::connect(weir.address());
    client.send("POST /closed HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n");
    assert_eq!(client.read_response("POST").status, 403);
}

#[test]
fn client_that_expects_100_is_told_to_continue() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), RULES));
    let body = "username=eve&password=x";
    let head = format!(
        "POST /login HTTP/1.1\r\nhost: a\r\ncontent-type: application/x-www-form-urlencoded\r\n\
         content-length: {}\r\nexpect: 100-continue\r\n\r\n",
        body.len()
    );
    for status in [200, 200, 429] {
        let mut client = Client::connect(weir.address());
        client.send(&head);
        assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), "100");
        client.send(body);
        assert_eq!(client.read_response("POST").status, status);
    }
    let received = origin.last_request();
    assert_eq!((received.body.text().as_str(), received.complete), (body, true));
    assert_eq!(origin.requests().len(), 2);
}

#[test]
fn memory_of_held_bodies_is_bounded() {
    let bodies = "overload: { waiting: 1MiB }\nbodies: { max: 400KiB }\n";
    let weir = Weir::start(&config("echo", &(bodies.to_owned() + RULES.split_once('\n').unwrap().1)));
    // Returns the status that follows the head, before any of the body is sent.
    let begin = || {
        let mut client = Client::connect(weir.address());
        client.send("POST /chat HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n");
        client.send("content-length: 1000000\r\nexpect: 100-continue\r\n\r\n");
        let status = client.wire.read_head().unwrap().unwrap().word(1).to_owned();
        (status, client)
    };
    let held = [begin(), begin()];
    assert!(held.iter().all(|(status, _)| status == "100"));
    assert_eq!(begin().0, "503");
    assert_eq!(weir.metric("weir_overload_turned_away_total", &[("limit", "waiting")]), 1.0);
    assert_eq!(get(weir.address(), "/chat").status, 200, "nothing is held");
    let chat = json("/chat", r#"{"model":"gpt-4","user":"a"}"#);
    assert_eq!(statuses(&weir, [&chat]), [200], "little is held");
    drop(held);
    wait::until_true("the memory to be given back", || begin().0 == "100");
}

#[test]
fn values_count_as_well() {
    let rules = "\
overload: { waiting: 1MiB }
bodies: { max: 600KiB }
rules: [{ name: login, key: { form: username }, on_missing: deny, limit: 2/d, algorithm: fixed_window }]
";
    let weir = Weir::start(&config("echo", rules));
    let long = |name: &str| form("/login", &format!("{name}={}&username=eve", "x".repeat(550 * 1024)));
    assert_eq!(statuses(&weir, [&long("other")]), [200]);
    let long_name = form("/login", &format!("username={}", "x".repeat(550 * 1024)));
    assert_eq!(statuses(&weir, [&long_name]), [503], "it would be held twice");
    assert_eq!(statuses(&weir, [&long("other")]), [200], "the memory is given back");
}

#[test]
fn chunks_of_one_byte_are_held_as_one() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), RULES));
    let padding = "x".repeat(3000);
    let body = format!("{{\"x\":\"{padding}\",\"model\":\"gpt-4\",\"user\":\"a\"}}");
    let mut client = Client::connect(weir.address());
    client.send("POST /chat HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n");
    let chunks: String = body.chars().map(|letter| format!("1\r\n{letter}\r\n")).collect();
    client.send(chunks + "0\r\nx-trailer: kept\r\n\r\n");
    assert_eq!(client.read_response("POST").status, 200);
    let received = origin.only_request();
    assert_eq!((received.body.text(), received.complete), (body, true));
}

#[test]
fn rest_of_a_body_may_not_end_early() {
    let origin = Origin::start(|turn| {
        turn.body()?;
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    let weir = Weir::start(&config(origin.address(), RULES));
    let padding = "x".repeat(200_000);
    let cut = format!("{{\"model\":\"gpt-4\",\"user\":\"a\",\"x\":\"{padding}\"");
    assert_eq!(statuses(&weir, [&json("/chat", cut)]), [400]);
    wait::until_true("the upload to end", || origin.requests().iter().all(|request| request.body.length > 0));
    assert!(origin.requests().iter().all(|request| !request.complete), "{:#?}", origin.requests());
}

#[test]
fn reload_reads_a_held_body_again() {
    let by_field = |key: &str| {
        format!(
            "  - {{ name: by-field, match: {{ path: /chat }}, key: {{ json: {key} }}, on_missing: deny, limit: 1/d, algorithm: fixed_window }}\n"
        )
    };
    let queue = "rules:\n  - { name: queue, key: [], limit: 1/min, throttle: { wait: { max: 10m } } }\n";
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), &(queue.to_owned() + &by_field("user"))));
    assert_eq!(get(weir.address(), "/").status, 200);
    let body = r#"{"user":"a","x":["y"],"team":"b"}"#;
    let mut client = Client::connect(weir.address());
    client.send(json("/chat", body).to_bytes());
    let waiting = || weir.metric("weir_wait_queue_requests", &[("rule", "queue")]);
    wait::until_true("the request to wait", || waiting() == 1.0);
    weir.reload(&config(origin.address(), &("rules:\n".to_owned() + &by_field("team"))));
    assert_eq!(client.read_response("POST").status, 200);
    assert_eq!(origin.last_request().body.text(), body);
    assert_eq!(statuses(&weir, [&json("/chat", r#"{"team":"b"}"#)]), [429], "it was counted by its team");
}
