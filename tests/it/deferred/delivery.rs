//! Acceptance, delivery, pace, retries and dead letters.

use super::*;
use crate::support::h2::H2Client;

#[test]
fn accepted_call_is_delivered_with_its_headers_body_and_id() {
    let (store, upstream) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let weir = Weir::start(&deferring(&store.url(), &upstream, FAST));
    let call = Request::post("/hooks/a?b=c", "payload")
        .header("x-signature", "s3cr3t")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("x-request-id", "forged");
    let accepted = fetch(weir.address(), &call);
    assert_eq!((accepted.status, accepted.header("content-type")), (202, "application/json"));
    let id = id_of(&accepted);
    assert_eq!(accepted.header("x-request-id"), id);
    upstream.until_request("the call", |request| request.complete);
    let sent = upstream.only_request();
    assert_eq!((sent.head.word(0), sent.head.word(1)), ("POST", "/hooks/a?b=c"));
    assert_eq!(sent.body.text(), "payload");
    for (name, value) in [
        ("x-signature", "s3cr3t"),
        ("idempotency-key", &id),
        ("x-request-id", &id),
        ("x-forwarded-for", "127.0.0.1"),
        ("content-length", "7"),
    ] {
        assert_eq!(sent.head.get(name).unwrap_or_default(), value, "{name}");
    }
    assert_eq!(sent.head.get("x-hop"), None);
    let is_counted = || weir.metric("weir_deferred_sent_total", &[("rule", "hooks")]) == 1.0;
    wait::until_true("the call to be counted as sent", is_counted);
    until_status(&weir, "an empty stream", |status| status["calls"] == 0);
}

#[test]
fn max_forwards_of_a_call_is_decremented_once_and_0_is_not_stored() {
    let (store, upstream) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let yaml = deferring(&store.url(), &upstream, FAST).replace("method: POST", "method: OPTIONS");
    let weir = Weir::start(&yaml);
    let options = |hops: &str| Request::new("OPTIONS", "/hooks/a").header("max-forwards", hops);
    assert_eq!(fetch(weir.address(), &options("0")).status, 200);
    assert_eq!(fetch(weir.address(), &options("5")).status, 202);
    upstream.until_request("the call", |request| request.complete);
    assert_eq!(upstream.only_request().head.get("max-forwards"), Some("4"));
}

#[test]
fn other_requests_are_forwarded_at_once() {
    let (store, upstream) = (Server::start(), Origin::hello());
    let weir = Weir::start(&deferring(&store.url(), &upstream, FAST));
    assert_eq!(fetch(weir.address(), &Request::post("/other", "x")).body.text(), "hello");
    assert_eq!(fetch(weir.address(), &Request::get("/hooks/a")).body.text(), "hello");
}

#[test]
fn own_idempotency_key_is_kept() {
    let (store, upstream) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let weir = Weir::start(&deferring(&store.url(), &upstream, FAST));
    let call = Request::post("/hooks/a", "").header("idempotency-key", "mine");
    assert_eq!(fetch(weir.address(), &call).status, 202);
    upstream.until_request("the call", |request| {
        request.head.get("idempotency-key").unwrap_or_default() == "mine"
    });
}

#[test]
fn calls_wait_for_the_limit_without_being_rejected() {
    let (store, upstream) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let rule = "    limit: 20/s\n    burst: 1\n    respond: 202\n";
    let weir = Weir::start(&deferring(&store.url(), &upstream, rule));
    let start = wait::now();
    accept_many(&weir, 1, 20);
    until_delivered(&upstream, 20);
    // Of 20 calls, 19 wait for 50 ms each.
    assert!(start.elapsed() >= Duration::from_millis(900), "{:?}", start.elapsed());
    assert!(deliveries(&upstream).values().all(|times| *times == 1));
}

#[test]
fn one_key_without_room_does_not_hold_back_others() {
    let (store, upstream) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let rule = "    key: [{ header: x-tenant }]\n    limit: 1/h\n    respond: 202\n";
    let weir = Weir::start(&deferring(&store.url(), &upstream, rule));
    let send = |tenant: &str, path: &str| {
        let call = Request::post(path, "").header("x-tenant", tenant);
        assert_eq!(fetch(weir.address(), &call).status, 202);
    };
    (0..5).for_each(|number| send("busy", &format!("/hooks/busy-{number}")));
    (0..5).for_each(|number| send(&format!("tenant-{number}"), &format!("/hooks/other-{number}")));
    until_delivered(&upstream, 6);
    assert_eq!(deliveries(&upstream).keys().filter(|target| target.contains("other")).count(), 5);
    until_status(&weir, "waiting calls", |status| status["calls"] == 4);
}

#[test]
fn failed_call_is_retried_until_it_succeeds() {
    let (store, is_up) = (Server::start(), Arc::new(AtomicBool::new(false)));
    let upstream = switched_origin(&is_up);
    let weir = Weir::start(&deferring(&store.url(), &upstream, FAST));
    let id = accept(&weir, "/hooks/a", "x");
    // The last one may succeed already.
    wait::until_true("three attempts", || upstream.requests().len() >= 3);
    is_up.store(true, Ordering::SeqCst);
    until_status(&weir, "an empty stream", |status| status["calls"] == 0);
    let ids: Vec<_> = upstream
        .requests()
        .iter()
        .map(|sent| sent.head.get("idempotency-key").unwrap_or_default().to_owned())
        .collect();
    assert!(ids.iter().all(|sent| *sent == id), "{ids:?}");
    assert!(weir.metric("weir_deferred_retried_total", &[("rule", "hooks")]) >= 2.0);
}

#[test]
fn retry_after_of_the_provider_pauses_the_rule() {
    let store = Server::start();
    let upstream = Origin::start(|request| {
        request.body()?;
        let is_first = request.head.word(1).ends_with("/first") && request.nth == 0;
        request.send(match is_first {
            true => "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n",
            false => NO_CONTENT,
        })?;
        Ok(AfterResponse::Keep)
    });
    let weir = Weir::start(&deferring(&store.url(), &upstream, FAST));
    let start = wait::now();
    accept(&weir, "/hooks/first", "x");
    wait::until_true("the rejection", || {
        weir.metric("weir_deferred_retried_total", &[("rule", "hooks")]) == 1.0
    });
    accept(&weir, "/hooks/second", "x");
    until_delivered(&upstream, 2);
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
}

#[test]
fn call_without_a_route_is_kept_until_a_reload_adds_one() {
    let (store, upstream) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let rule = "    limit: 100000/s\n    respond: { attempts: 1000, backoff: 10ms..50ms }\n";
    let routed = deferring(&store.url(), &upstream, rule);
    let unrouted = routed.replace("upstream: {", "upstreams: { match: { path: /other },");
    let weir = Weir::start(&unrouted);
    let id = accept(&weir, "/hooks/a", "x");
    wait::until_true("a retry", || weir.metric("weir_deferred_retried_total", &[("rule", "hooks")]) > 0.0);
    weir.reload(&routed);
    until_delivered(&upstream, 1);
    assert_eq!(upstream.only_request().head.get("idempotency-key").unwrap_or_default(), id);
}

#[test]
fn dead_letters_have_a_reason_and_can_be_sent_again() {
    let (store, is_up) = (Server::start(), Arc::new(AtomicBool::new(false)));
    let upstream = switched_origin(&is_up);
    let rule = "    limit: 100000/s\n    respond: { attempts: 2, backoff: 10ms..10ms }\n";
    let weir = Weir::start(&deferring(&store.url(), &upstream, rule));
    let id = accept(&weir, "/hooks/a", "payload");
    let status = until_status(&weir, "a dead letter", |status| status["dead_letters"] == 1);
    let letter = &status["newest_dead_letters"][0];
    assert_eq!((&letter["id"], &letter["reason"]), (&id.into(), &"attempts".into()));
    assert_eq!((&letter["attempts"], &letter["status"]), (&2.into(), &503.into()));
    assert_eq!((&status["calls"], upstream.requests().len()), (&0.into(), 2));
    is_up.store(true, Ordering::SeqCst);
    let entry = letter["entry"].as_str().unwrap();
    assert_eq!(weir.admin_post("/deferred/requeue?rule=other").status, 404);
    assert_eq!(weir.admin_post("/deferred/requeue?rule=hooks&entry=x").status, 400);
    assert_eq!(weir.admin_post(&format!("/deferred/requeue?rule=hooks&entry={entry}")).status, 200);
    until_status(&weir, "no dead letter", |status| status["dead_letters"] == 0 && status["calls"] == 0);
    assert_eq!(upstream.last_request().body.text(), "payload");
}

#[test]
fn final_rejections_and_old_calls_are_not_retried() {
    let store = Server::start();
    let upstream = Origin::responding_with("HTTP/1.1 422 Unprocessable Content\r\ncontent-length: 0\r\n\r\n");
    let weir = Weir::start(&deferring(&store.url(), &upstream, FAST));
    accept(&weir, "/hooks/a", "x");
    let status = until_status(&weir, "a dead letter", |status| status["dead_letters"] == 1);
    assert_eq!(status["newest_dead_letters"][0]["reason"], "status");
    assert_eq!(status["newest_dead_letters"][0]["status"], 422);
    assert_eq!(upstream.requests().len(), 1);
    weir.reload(&deferring(&store.url(), &upstream, "    limit: 1/h\n    respond: { max_age: 10ms }\n"));
    accept(&weir, "/hooks/b", "x");
    accept(&weir, "/hooks/c", "x");
    let status = until_status(&weir, "old calls", |status| status["dead_letters"].as_u64() >= Some(2));
    let reasons = status["newest_dead_letters"].as_array().unwrap();
    assert!(reasons.iter().any(|letter| letter["reason"] == "max_age"), "{reasons:?}");
}

#[test]
fn large_bodies_full_streams_grpc_calls_and_upgrades_are_rejected() {
    let (store, upstream) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let rule = "    limit: 1/h\n    respond: { max_body: 1KiB, max_stored: 2 }\n";
    let weir = Weir::start(&deferring(&store.url(), &upstream, rule));
    let large = "x".repeat(1025);
    assert_eq!(fetch(weir.address(), &Request::post("/hooks/a", large.as_str())).status, 413);
    let mut client = Client::connect(weir.address());
    client.send(format!(
        "POST /hooks/a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n401\r\n{large}\r\n0\r\n\r\n"
    ));
    assert_eq!(client.read_response("POST").status, 413);
    let mut call = H2Client::connect(weir.address());
    let grpc = call.request("POST", "/hooks/a").header("content-type", "application/grpc");
    assert_eq!(call.fetch(grpc).header("grpc-status"), "13");
    accept(&weir, "/hooks/sent", "x");
    until_delivered(&upstream, 1);
    until_status(&weir, "an empty stream", |status| status["calls"] == 0);
    (0..2).for_each(|_| drop(accept(&weir, "/hooks/waits", "x")));
    let full = fetch(weir.address(), &Request::post("/hooks/b", "x"));
    assert_eq!((full.status, full.header("retry-after")), (503, "1"));
}

#[test]
fn calls_over_http2_are_delivered_over_http1() {
    let (store, upstream) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let weir = Weir::start(&deferring(&store.url(), &upstream, FAST));
    let mut client = H2Client::connect(weir.address());
    let call = client.request("POST", "/hooks/a").header("x-kept", "1");
    assert_eq!(client.fetch(call).status, 202);
    upstream.until_request("the call", |request| request.head.get("x-kept").unwrap_or_default() == "1");
    assert!(!upstream.only_request().head.get("host").unwrap_or_default().is_empty());
}

#[test]
fn client_that_expects_100_continue_gets_it_before_its_body_is_stored() {
    let (store, upstream) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let weir = Weir::start(&deferring(&store.url(), &upstream, FAST));
    let mut client = Client::connect(weir.address());
    client.send("POST /hooks/a HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\nexpect: 100-continue\r\n\r\n");
    assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), "100");
    client.send("x");
    assert_eq!(client.read_response("POST").status, 202);
    upstream.until_request("the call", |request| request.complete);
    assert_eq!(upstream.only_request().head.get("expect").unwrap_or_default(), "");
}

#[test]
fn limits_of_other_rules_apply_on_acceptance_and_not_again() {
    let (store, upstream) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let rules = format!("{FAST}  - {{ name: callers, key: [client_ip], limit: 2/h }}\n");
    let weir = Weir::start(&deferring(&store.url(), &upstream, &rules));
    accept(&weir, "/hooks/a", "x");
    accept(&weir, "/hooks/b", "x");
    assert_eq!(fetch(weir.address(), &Request::post("/hooks/c", "x")).status, 429);
    until_delivered(&upstream, 2);
    let decided = |outcome| weir.metric("weir_decisions_total", &[("rule", "callers"), ("outcome", outcome)]);
    assert_eq!((decided("allowed"), decided("limited")), (2.0, 1.0));
}

#[test]
fn calls_in_flight_of_one_key_do_not_hold_back_others() {
    let (store, is_released) = (Server::start(), Arc::new(AtomicBool::new(false)));
    let released = Arc::clone(&is_released);
    let upstream = Origin::start(move |request| {
        request.body()?;
        if request.head.word(1).contains("busy") {
            wait::within(Duration::from_secs(30), || released.load(Ordering::SeqCst).then_some(()));
        }
        request.send(NO_CONTENT)?;
        Ok(AfterResponse::Keep)
    });
    let rule = "    key: [{ header: x-tenant }]\n    in_flight: 1\n    respond: 202\n";
    let weir = Weir::start(&deferring(&store.url(), &upstream, rule));
    let send = |tenant: &str, path: &str| {
        let call = Request::post(path, "").header("x-tenant", tenant);
        assert_eq!(fetch(weir.address(), &call).status, 202);
    };
    (0..10).for_each(|number| send("busy", &format!("/hooks/busy-{number}")));
    (0..10).for_each(|number| send(&format!("tenant-{number}"), &format!("/hooks/other-{number}")));
    until_delivered(&upstream, 11);
    assert_eq!(deliveries(&upstream).keys().filter(|target| target.contains("busy")).count(), 1);
    is_released.store(true, Ordering::SeqCst);
    until_delivered(&upstream, 20);
    assert!(deliveries(&upstream).values().all(|times| *times == 1));
}

#[test]
fn rejections_of_the_provider_use_up_no_attempt() {
    let store = Server::start();
    let upstream = Origin::start(|request| {
        request.body()?;
        request.send(match request.nth < 4 {
            // The date has passed.
            true => {
                "HTTP/1.1 429 Too Many Requests\r\nretry-after: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
                 content-length: 0\r\n\r\n"
            }
            false => NO_CONTENT,
        })?;
        Ok(AfterResponse::Keep)
    });
    let rule = "    limit: 100000/s\n    respond: { attempts: 2, backoff: 10ms..10ms }\n";
    let weir = Weir::start(&deferring(&store.url(), &upstream, rule));
    accept(&weir, "/hooks/a", "x");
    wait::until_true("the delivery", || weir.metric("weir_deferred_sent_total", &[("rule", "hooks")]) == 1.0);
    assert_eq!((upstream.requests().len(), status(&weir)["dead_letters"].as_u64()), (5, Some(0)));
}

#[test]
fn slow_uploads_do_not_block_other_calls() {
    let (store, upstream) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let rule = "    limit: 100000/s\n    respond: { max_body: 8MiB }\n";
    let weir = Weir::start(&deferring(&store.url(), &upstream, rule));
    let _slow: Vec<_> = (0..12)
        .map(|_| {
            let mut client = Client::connect(weir.address());
            let head = "POST /hooks/slow HTTP/1.1\r\nhost: a\r\ncontent-length: 8388608\r\n";
            client.send(format!("{head}expect: 100-continue\r\n\r\n"));
            assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), "100");
            client
        })
        .collect();
    accept(&weir, "/hooks/a", "x");
    until_delivered(&upstream, 1);
}

#[test]
fn large_calls_are_delivered_and_do_not_fail_small_ones() {
    let (store, upstream) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let rule = "    limit: 100000/s\n    respond: { max_body: 8MiB }\n";
    let weir = Weir::start(&deferring(&store.url(), &upstream, rule));
    let large = "x".repeat(4 << 20);
    run_concurrently(4, |client| {
        for number in 0..4 {
            accept(&weir, &format!("/hooks/large-{client}-{number}"), &large);
            accept(&weir, &format!("/hooks/small-{client}-{number}"), "x");
        }
    });
    until_delivered(&upstream, 32);
    assert!(deliveries(&upstream).values().all(|times| *times == 1));
    let is_large = |length: &str| length == large.len().to_string();
    let requests = upstream.requests();
    let lengths = requests.iter().filter_map(|sent| sent.head.get("content-length"));
    assert_eq!(lengths.filter(|length| is_large(length)).count(), 16);
}
