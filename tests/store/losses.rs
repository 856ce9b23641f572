//! Servers that do not respond: frozen, gone, or gone for a while.

use std::net::TcpListener;
use std::time::Duration;

use weir::store::redis::CallError;
use weir::store::settings::{Server as One, Settings, Topology};
use weir::telemetry::metrics::StoreOutcome;

use super::flavour;
use crate::caller::{Caller, accept, echo, increment, number, one, place, settings, text};
use crate::servers::{Server, free_port};
use crate::support::wait;

/// Returns settings for a server, with this timeout.
fn patient(server: &Server, timeout: Duration) -> Settings {
    Settings { timeout, ..one(server) }
}

#[test]
fn a_server_that_cannot_be_reached_fails_a_call_until_it_can() {
    let mut server = flavour().start();
    let caller = Caller::new(one(&server));
    assert_eq!(caller.increment("weir:a"), Ok(1));
    server.kill();
    let error = caller.fails("a loss", |error| matches!(error, CallError::Unreachable(_)));
    assert_eq!(error.outcome(), StoreOutcome::Unreachable);
    server.restart();
    caller.recovers();
    assert_eq!(caller.increment("weir:a"), Ok(1), "the restarted server has no data");
}

#[test]
fn a_server_that_is_not_there_at_first_is_found_later() {
    let mut server = flavour().start();
    server.kill();
    let caller = Caller::new(one(&server));
    assert!(matches!(caller.increment("weir:a"), Err(CallError::Unreachable(_))));
    server.restart();
    caller.recovers();
}

#[test]
fn a_connection_that_the_server_closes_is_opened_again() {
    let server = flavour().start();
    let caller = Caller::new(one(&server));
    for round in 0..5 {
        caller.recovers();
        let closed: u32 = server.cli(&["client", "kill", "type", "normal"]).parse().unwrap();
        assert!(closed >= 1, "{round}");
    }
    caller.recovers();
}

#[test]
fn a_frozen_server_takes_no_call_longer_than_the_timeout_and_its_late_replies_reach_no_other_call() {
    let server = flavour().start();
    let caller = Caller::new(patient(&server, Duration::from_millis(150)));
    let (echo, increment) = (echo(), increment());
    caller.recovers();
    let (mut argument, mut counted, mut called) = (0, 0, 0);
    for _ in 0..3 {
        server.freeze();
        let begun: Vec<_> = (0..50)
            .map(|_| {
                argument += 1;
                caller.begin(&echo, "weir:a", &argument.to_string())
            })
            .collect();
        let lost = caller.begin(&increment, "weir:counted", "");
        called += 1;
        for result in begun {
            let error = result.recv().unwrap().unwrap_err();
            // The first late response closes the connection, which fails the other calls too.
            let outcomes = [StoreOutcome::Late, StoreOutcome::Unreachable];
            assert!(outcomes.contains(&error.outcome()), "{error:?}");
        }
        assert!(lost.recv().unwrap().is_err());
        server.thaw();
        caller.recovers();
        for _ in 0..20 {
            argument += 1;
            let (value, _) = caller.call(&echo, "weir:a", &argument.to_string()).unwrap();
            assert_eq!(text(&value), argument.to_string());
        }
        counted = number(&caller.call(&increment, "weir:counted", "").unwrap().0);
        called += 1;
    }
    assert!(counted <= called, "no call is executed twice: {counted} of {called}");
    wait::until_true("one connection", || {
        let clients = server.cli(&["client", "list"]);
        clients.lines().filter(|line| line.contains("name=weir:test")).count() == 1
    });
}

#[test]
fn the_first_call_that_is_late_is_a_timeout() {
    let server = flavour().start();
    let caller = Caller::new(patient(&server, Duration::from_millis(150)));
    caller.recovers();
    server.freeze();
    let error = caller.increment("weir:a").unwrap_err();
    assert_eq!((error.outcome(), error), (StoreOutcome::Late, CallError::Timeout));
    // There is no connection now, and further calls do not wait for one.
    let error = caller.increment("weir:a").unwrap_err();
    assert_eq!(error, CallError::Timeout, "the error that closed the connection");
    server.thaw();
    caller.recovers();
}

#[test]
fn a_server_that_does_not_respond_is_sent_nothing_more() {
    let server = flavour().start();
    let caller = Caller::new(patient(&server, Duration::from_millis(100)));
    caller.recovers();
    server.freeze();
    for _ in 0..20 {
        let error = caller.call(&increment(), "weir:frozen", "").unwrap_err();
        assert_eq!(error.outcome(), StoreOutcome::Late, "{error:?}");
    }
    server.thaw();
    caller.recovers();
    let counted = server.cli(&["get", "weir:frozen"]);
    assert!(["", "1"].contains(&&*counted), "only the first call was sent: {counted}");
}

#[test]
fn a_server_that_closes_every_connection_is_tried_at_a_bounded_rate() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = place(listener.local_addr().unwrap().port());
    let began = wait::now();
    let caller = Caller::new(settings(Topology::Single(One { place: at, db: 0 })));
    let first = caller.begin(&echo(), "weir:a", "");
    for _ in 0..7 {
        drop(accept(&listener));
    }
    // Pauses start with 50 ms and double up to 1 s; jitter makes each at least half of that.
    assert!(began.elapsed().as_millis() >= 25 + 50 + 100 + 200 + 400 + 500, "{:?}", began.elapsed());
    assert!(matches!(first.recv().unwrap(), Err(CallError::Unreachable(_))));
    assert!(matches!(caller.increment("weir:a"), Err(CallError::Unreachable(_))));
}

#[test]
fn a_server_that_accepts_connections_and_says_nothing_is_out_of_reach() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = place(listener.local_addr().unwrap().port());
    let patient =
        Settings { timeout: Duration::from_secs(5), ..settings(Topology::Single(One { place: at, db: 0 })) };
    let error = Caller::new(Settings { timeout: Duration::from_millis(100), ..patient }).increment("weir:a");
    assert_eq!(error, Err(CallError::Timeout));
}

#[test]
fn more_calls_than_may_wait_are_rejected() {
    let server = flavour().start();
    let caller = Caller::new(one(&server));
    caller.recovers();
    server.freeze();
    let echo = echo();
    let begun: Vec<_> = (0..1100).map(|_| caller.begin(&echo, "weir:a", "")).collect();
    let rejected = begun.last().unwrap().recv().unwrap().unwrap_err();
    assert_eq!((rejected.outcome(), rejected), (StoreOutcome::Rejected, CallError::Busy));
    server.thaw();
    let results: Vec<_> = begun[..1099].iter().map(|called| called.recv().unwrap()).collect();
    assert_eq!(results.iter().filter(|called| **called == Err(CallError::Busy)).count(), 1099 - 1024);
}

#[test]
fn an_address_where_nobody_listens_is_named_in_the_error() {
    let port = free_port();
    let caller = Caller::new(settings(Topology::Single(One { place: place(port), db: 0 })));
    let error = caller.increment("weir:a").unwrap_err().to_string();
    assert!(error.contains(&format!("127.0.0.1:{port}")) && error.contains("refused"), "{error}");
}
