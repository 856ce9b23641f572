//! Nothing is lost: the store is away, an instance is killed or drained, a rule is removed.

use super::*;

#[test]
fn without_the_store_a_call_is_not_accepted() {
    let (mut store, upstream) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let weir = Weir::start(&deferring(&store.url(), &upstream, FAST));
    accept(&weir, "/hooks/a", "x");
    until_delivered(&upstream, 1);
    store.kill();
    let rejected = fetch(weir.address(), &Request::post("/hooks/b", "x"));
    assert_eq!((rejected.status, rejected.header("retry-after")), (503, "1"));
    store.restart();
    wait::until_true("the store", || fetch(weir.address(), &Request::post("/hooks/c", "x")).status == 202);
    until_delivered(&upstream, 2);
    assert!(!deliveries(&upstream).contains_key("/hooks/b"));
}

#[test]
fn calls_that_are_delayed_before_they_are_stored_share_the_bound_of_waiting_requests() {
    let (store, upstream) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let delay = "  - { name: d, key: [], limit: 1/min, burst: 1, throttle: { delay: 50m } }\n";
    let yaml = deferring(&store.url(), &upstream, FAST) + delay + "overload: { waiting: 1MiB }\n";
    let weir = Weir::start(&yaml);
    accept(&weir, "/hooks/first", "x");
    until_delivered(&upstream, 1);
    until_status(&weir, "an empty stream", |status| status["calls"] == 0);
    let call = Request::post("/hooks/a", "x").header("x-filler", &"f".repeat(50_000));
    let _clients: Vec<_> = (0..39)
        .map(|_| {
            let client = Client::connect(weir.address());
            client.send(call.to_bytes());
            client
        })
        .collect();
    let shed = || weir.metric("weir_overload_turned_away_total", &[("limit", "waiting")]);
    let delayed = || weir.metric("weir_requests_delayed", &[]);
    wait::until_true("all calls", || delayed() + shed() == 39.0);
    assert!(shed() > 0.0);
    let used = delayed();
    assert_eq!(fetch(weir.address(), &call).status, 503);
    let explained = weir.admin_json("/explain?method=POST&path=/hooks/a");
    let wait = explained["rules"][1]["limits"][0]["delay_seconds"].as_f64().unwrap();
    assert!(wait <= 60.0 * (used + 1.0), "behind the {used} calls that are not shed: {wait} s");
    assert_eq!(status(&weir)["calls"], 0, "none is stored");
    assert_eq!(deliveries(&upstream).len(), 1);
}

#[test]
fn call_that_a_frozen_store_executes_late_is_not_stored() {
    let (store, upstream) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let rule = "    limit: 1/h\n    respond: 202\n";
    let yaml = deferring(&store.url(), &upstream, rule).replace("timeout: 2s", "timeout: 200ms");
    let weir = Weir::start(&yaml);
    wait::until_true("the store", || fetch(weir.address(), &Request::post("/hooks/a", "x")).status == 202);
    until_delivered(&upstream, 1);
    until_status(&weir, "an empty stream", |status| status["calls"] == 0);
    store.freeze();
    assert_eq!(fetch(weir.address(), &Request::post("/hooks/b", "x")).status, 503);
    store.thaw();
    wait::until_true("the store", || fetch(weir.address(), &Request::post("/hooks/c", "x")).status == 202);
    assert_eq!(until_status(&weir, "a call", |status| status["calls"] != 0)["calls"], 1);
}

#[test]
fn calls_of_a_killed_instance_are_delivered_by_another() {
    let (store, upstream) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let slow = "    limit: 200/s\n    burst: 1\n    respond: 202\n";
    let mut first = Weir::start(&deferring(&store.url(), &upstream, slow));
    accept_many(&first, 8, 400);
    wait::until_true("some deliveries", || deliveries(&upstream).len() >= 20);
    first.kill();
    let second = Weir::start(&deferring(&store.url(), &upstream, FAST));
    until_delivered(&upstream, 400);
    // What the first instance held is claimed after five seconds.
    let emptied = wait::within(Duration::from_secs(30), || (status(&second)["calls"] == 0).then_some(()));
    assert!(emptied.is_some(), "{}", status(&second));
    let claimed = second.metric("weir_deferred_claimed_total", &[("rule", "hooks")]);
    let duplicates = deliveries(&upstream).values().map(|times| times - 1).sum::<usize>();
    assert!(duplicates as f64 <= claimed, "{duplicates} duplicates, {claimed} claimed");
}

#[test]
fn drained_instance_finishes_its_calls_and_leaves_the_rest() {
    let store = Server::start();
    let upstream = Origin::start(|request| {
        request.body()?;
        wait::pause(Duration::from_millis(300));
        request.send(NO_CONTENT)?;
        Ok(AfterResponse::Keep)
    });
    let rule = "    limit: 100000/s\n    in_flight: 4\n    respond: 202\n";
    let mut first = Weir::start(&deferring(&store.url(), &upstream, rule));
    accept_many(&first, 4, 40);
    wait::until_true("calls in flight", || !upstream.requests().is_empty());
    first.terminate();
    assert!(first.wait_exit().success());
    let started = deliveries(&upstream).len();
    assert!(started < 40, "{started}");
    let second = Weir::start(&deferring(&store.url(), &upstream, FAST));
    until_delivered(&upstream, 40);
    until_status(&second, "an empty stream", |status| status["calls"] == 0);
    assert!(deliveries(&upstream).values().all(|times| *times == 1), "{:?}", deliveries(&upstream));
    assert_eq!(second.metric("weir_deferred_claimed_total", &[("rule", "hooks")]), 0.0);
}

#[test]
fn calls_survive_a_restart_of_a_store_with_persistence() {
    let mut store = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let is_up = Arc::new(AtomicBool::new(false));
    let upstream = switched_origin(&is_up);
    let weir = Weir::start(&deferring(
        &store.url(),
        &upstream,
        "    limit: 100000/s\n    respond: { attempts: 1000, backoff: 10ms..100ms }\n",
    ));
    accept_many(&weir, 2, 20);
    store.restart();
    is_up.store(true, Ordering::SeqCst);
    let sent = || weir.metric("weir_deferred_sent_total", &[("rule", "hooks")]);
    let emptied = wait::within(Duration::from_secs(30), || (sent() >= 20.0).then_some(()));
    assert!(emptied.is_some(), "{}", status(&weir));
    assert_eq!(deliveries(&upstream).len(), 20);
    assert_eq!(status(&weir)["dead_letters"], 0);
}

#[test]
fn calls_of_a_removed_rule_are_kept_and_reported() {
    let (store, upstream) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let rule = "    limit: 1/h\n    respond: 202\n";
    let weir = Weir::start(&deferring(&store.url(), &upstream, rule));
    (0..3).for_each(|_| drop(accept(&weir, "/hooks/a", "x")));
    wait::until_true("a delivery", || upstream.requests().len() == 1);
    let unchanged = format!("store: {{ redis: {}, timeout: 2s }}\nrules: []\n", store.url());
    weir.reload(&config(upstream.address(), &unchanged));
    let status = until_status(&weir, "the report", |status| status["configured"] == false);
    assert_eq!(status["calls"], 2);
    assert!(weir.log().iter().any(|line| line.contains("deferred calls are stored for a rule that is not")));
    weir.reload(&deferring(&store.url(), &upstream, FAST));
    wait::until_true("the other deliveries", || upstream.requests().len() == 3);
}

#[test]
fn instances_share_calls_and_the_rate() {
    let (store, upstream) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let rule = "    limit: 100/s\n    burst: 10\n    scope: shared\n    respond: 202\n";
    let fleet: Vec<_> = (0..2).map(|_| Weir::start(&deferring(&store.url(), &upstream, rule))).collect();
    fleet.iter().for_each(|weir| wait::until_true("the store", || weir.metric("weir_store_up", &[]) == 1.0));
    let start = wait::now();
    accept_many(&fleet[0], 4, 200);
    until_delivered(&upstream, 200);
    assert!(start.elapsed() >= Duration::from_millis(1500), "{:?}", start.elapsed());
    assert!(deliveries(&upstream).values().all(|times| *times == 1));
    assert_eq!(stored(&fleet[1]).max(0.0), stored(&fleet[1]));
    let sent = |weir: &Weir| weir.metric("weir_deferred_sent_total", &[("rule", "hooks")]);
    wait::until_true("all sent", || fleet.iter().map(sent).sum::<f64>() == 200.0);
    assert!(sent(&fleet[1]) > 0.0, "the second instance has sent nothing");
}

#[test]
fn calls_in_flight_during_an_outage_are_not_sent_twice_by_their_instance() {
    let mut store = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let is_released = Arc::new(AtomicBool::new(false));
    let released = Arc::clone(&is_released);
    let upstream = Origin::start(move |request| {
        request.body()?;
        wait::within(Duration::from_secs(60), || released.load(Ordering::SeqCst).then_some(()));
        request.send(NO_CONTENT)?;
        Ok(AfterResponse::Keep)
    });
    let yaml = deferring(&store.url(), &upstream, FAST)
        .replace("timeout: 2s", "timeout: 200ms")
        .replace("upstream: { address", "upstream: { timeout: 60s, address");
    let weir = Weir::start(&yaml);
    accept(&weir, "/hooks/a", "x");
    wait::until_true("the call", || upstream.requests().len() == 1);
    store.kill();
    // Calls that nothing has confirmed for five seconds are claimed.
    wait::pause(Duration::from_secs(11));
    store.restart();
    wait::until_true("the store", || fetch(weir.address(), &Request::post("/hooks/b", "x")).status == 202);
    wait::until_true("the other call", || upstream.requests().len() >= 2);
    is_released.store(true, Ordering::SeqCst);
    until_status(&weir, "an empty stream", |status| status["calls"] == 0);
    assert!(deliveries(&upstream).values().all(|times| *times == 1), "{:?}", deliveries(&upstream));
}

#[test]
fn calls_are_settled_after_their_stream_was_deleted() {
    let (mut store, is_up) = (Server::start(), Arc::new(AtomicBool::new(false)));
    let upstream = switched_origin(&is_up);
    let rule = "    limit: 100000/s\n    respond: { attempts: 1000, backoff: 10ms..50ms }\n";
    let mut weir = Weir::start(&deferring(&store.url(), &upstream, rule));
    accept_many(&weir, 1, 5);
    wait::until_true("attempts", || upstream.requests().len() >= 5);
    // Without persistence, the streams are gone.
    store.restart();
    is_up.store(true, Ordering::SeqCst);
    wait::until_true("the store", || fetch(weir.address(), &Request::post("/hooks/b", "x")).status == 202);
    until_status(&weir, "an empty stream", |status| status["calls"] == 0);
    weir.terminate();
    assert!(weir.wait_exit().success());
    assert!(!weir.log().iter().any(|line| line.contains("not settled in time")), "{:?}", weir.log());
}

#[test]
fn calls_that_another_instance_has_taken_over_are_not_sent_again() {
    let (store, upstream) = (Server::start(), Origin::responding_with(NO_CONTENT));
    let slow = "    limit: 1/15s\n    burst: 1\n    respond: 202\n";
    let first = Weir::start(&deferring(&store.url(), &upstream, slow));
    accept_many(&first, 1, 4);
    until_delivered(&upstream, 1);
    // The first call is settled, and at least one of the others waits in the instance.
    let is_waiting = |status: &serde_json::Value| status["calls"] == 3 && status["held"] != 0;
    until_status(&first, "a call that waits in the instance", is_waiting);
    first.signal("STOP");
    let mut second = Weir::start(&deferring(&store.url(), &upstream, FAST));
    until_delivered(&upstream, 4);
    wait::until_true("the end of their calls", || stored(&second) == 0.0);
    second.terminate();
    assert!(second.wait_exit().success());
    first.signal("CONT");
    accept(&first, "/hooks/last", "x");
    until_delivered(&upstream, 5);
    assert!(deliveries(&upstream).values().all(|times| *times == 1), "{:?}", deliveries(&upstream));
}
