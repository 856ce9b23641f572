//! Servers that do not respond: frozen, gone, or gone for a while.

use std::net::TcpListener;
use std::time::Duration;

use weir_store::redis::CallError;
use weir_store::settings::{SingleServer as One, StoreSettings, Topology};
use weir_telemetry::metrics::StoreOutcome;

use super::flavour;
use crate::caller::{Caller, accept, echo, increment, number, server_address, settings, single_server, text};
use crate::servers::{Server, free_port};
use crate::support::wait;

/// Returns settings for a server, with this timeout.
fn with_timeout(server: &Server, timeout: Duration) -> StoreSettings {
    StoreSettings { timeout, ..single_server(server) }
}

#[test]
fn unreachable_server_fails_calls_until_it_returns() {
    let mut server = flavour().start();
    let caller = Caller::new(single_server(&server));
    assert_eq!(caller.increment("weir:a"), Ok(1));
    server.kill();
    let error = caller.await_error("a loss", |error| matches!(error, CallError::Unreachable(_)));
    assert_eq!(error.outcome(), StoreOutcome::Unreachable);
    server.restart();
    caller.await_success();
    assert_eq!(caller.increment("weir:a"), Ok(1), "the restarted server has no data");
}

#[test]
fn server_that_starts_late_is_found() {
    let mut server = flavour().start();
    server.kill();
    let caller = Caller::new(single_server(&server));
    assert!(matches!(caller.increment("weir:a"), Err(CallError::Unreachable(_))));
    server.restart();
    caller.await_success();
}

#[test]
fn closed_connection_is_reopened() {
    let server = flavour().start();
    let caller = Caller::new(single_server(&server));
    for round in 0..5 {
        caller.await_success();
        let closed: u32 = server.cli(&["client", "kill", "type", "normal"]).parse().unwrap();
        assert!(closed >= 1, "{round}");
    }
    caller.await_success();
}

#[test]
fn frozen_server_times_out_calls_and_late_replies_are_discarded() {
    let server = flavour().start();
    let caller = Caller::new(with_timeout(&server, Duration::from_millis(150)));
    let (echo, increment) = (echo(), increment());
    caller.await_success();
    let (mut argument, mut counted, mut called) = (0, 0, 0);
    for _ in 0..3 {
        server.freeze();
        let begun: Vec<_> = (0..50)
            .map(|_| {
                argument += 1;
                caller.start_call(&echo, "weir:a", &argument.to_string())
            })
            .collect();
        let lost = caller.start_call(&increment, "weir:counted", "");
        called += 1;
        for result in begun {
            let error = result.recv().unwrap().unwrap_err();
            // The first late response closes the connection, which fails the other calls too.
            let outcomes = [StoreOutcome::TimedOut, StoreOutcome::Unreachable];
            assert!(outcomes.contains(&error.outcome()), "{error:?}");
        }
        assert!(lost.recv().unwrap().is_err());
        server.thaw();
        caller.await_success();
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
fn late_call_is_a_timeout() {
    let server = flavour().start();
    let caller = Caller::new(with_timeout(&server, Duration::from_millis(150)));
    caller.await_success();
    server.freeze();
    let error = caller.increment("weir:a").unwrap_err();
    assert_eq!((error.outcome(), error), (StoreOutcome::TimedOut, CallError::Timeout));
    // There is no connection now, and further calls do not wait for one.
    let error = caller.increment("weir:a").unwrap_err();
    assert_eq!(error, CallError::Timeout, "the error that closed the connection");
    server.thaw();
    caller.await_success();
}

#[test]
fn unresponsive_server_is_sent_no_more_calls() {
    let server = flavour().start();
    let caller = Caller::new(with_timeout(&server, Duration::from_millis(100)));
    caller.await_success();
    server.freeze();
    for _ in 0..20 {
        let error = caller.call(&increment(), "weir:frozen", "").unwrap_err();
        assert_eq!(error.outcome(), StoreOutcome::TimedOut, "{error:?}");
    }
    server.thaw();
    caller.await_success();
    let counted = server.cli(&["get", "weir:frozen"]);
    assert!(["", "1"].contains(&&*counted), "only the first call was sent: {counted}");
}

#[test]
fn reconnects_back_off_if_the_server_closes_every_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = server_address(listener.local_addr().unwrap().port());
    let began = wait::now();
    let caller = Caller::new(settings(Topology::Single(One { address: at, db: 0 })));
    let first = caller.start_call(&echo(), "weir:a", "");
    for _ in 0..7 {
        drop(accept(&listener));
    }
    // Pauses start with 50 ms and double up to 1 s; jitter makes each at least half of that.
    assert!(began.elapsed().as_millis() >= 25 + 50 + 100 + 200 + 400 + 500, "{:?}", began.elapsed());
    assert!(matches!(first.recv().unwrap(), Err(CallError::Unreachable(_))));
    assert!(matches!(caller.increment("weir:a"), Err(CallError::Unreachable(_))));
}

#[test]
fn silent_server_is_a_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = server_address(listener.local_addr().unwrap().port());
    let patient = StoreSettings {
        timeout: Duration::from_secs(5),
        ..settings(Topology::Single(One { address: at, db: 0 }))
    };
    let error =
        Caller::new(StoreSettings { timeout: Duration::from_millis(100), ..patient }).increment("weir:a");
    assert_eq!(error, Err(CallError::Timeout));
}

#[test]
fn calls_beyond_the_queue_limit_are_rejected() {
    let server = flavour().start();
    let caller = Caller::new(single_server(&server));
    caller.await_success();
    server.freeze();
    let echo = echo();
    let begun: Vec<_> = (0..1100).map(|_| caller.start_call(&echo, "weir:a", "")).collect();
    let rejected = begun.last().unwrap().recv().unwrap().unwrap_err();
    assert_eq!((rejected.outcome(), rejected), (StoreOutcome::Rejected, CallError::Busy));
    server.thaw();
    let results: Vec<_> = begun[..1099].iter().map(|called| called.recv().unwrap()).collect();
    assert_eq!(results.iter().filter(|called| **called == Err(CallError::Busy)).count(), 1099 - 1024);
}

#[test]
fn refused_connection_names_the_address_in_the_error() {
    let port = free_port();
    let caller = Caller::new(settings(Topology::Single(One { address: server_address(port), db: 0 })));
    let error = caller.increment("weir:a").unwrap_err().to_string();
    assert!(error.contains(&format!("127.0.0.1:{port}")) && error.contains("refused"), "{error}");
}
