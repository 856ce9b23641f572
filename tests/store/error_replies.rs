//! Servers that respond with errors: classification and counting of the errors, and recovery when the cause is gone.

use std::process::{Command, Stdio};

use weir_store::redis::CallError;
use weir_telemetry::metrics::StoreOutcome;

use super::flavour;
use crate::caller::{Caller, credentials, info, single_server};
use crate::servers::{Server, free_port};
use crate::support::wait;

/// Returns a server, and a client that has made a successful call.
fn connected_server() -> (Server, Caller) {
    let server = flavour().start();
    let caller = Caller::new(single_server(&server));
    assert_eq!(caller.increment("weir:a"), Ok(1));
    (server, caller)
}

fn set_config(server: &Server, option: &str, value: &str) {
    assert_eq!(server.cli(&["config", "set", option, value]), "OK");
}

#[test]
fn a_replica_rejects_calls_until_it_is_a_master() {
    let (server, caller) = connected_server();
    server.cli(&["replicaof", "127.0.0.1", &free_port().to_string()]);
    let error = caller.await_error("READONLY", |error| *error == CallError::ReadOnly);
    assert_eq!(error.outcome(), StoreOutcome::Rejected);
    server.cli(&["replicaof", "no", "one"]);
    caller.await_success();
}

#[test]
fn read_only_replica_is_reconnected_with_backoff() {
    let (server, caller) = connected_server();
    server.cli(&["replicaof", "127.0.0.1", &free_port().to_string()]);
    let connections = || info(&server, "stats", "total_connections_received").unwrap();
    let (began, before, mut own) = (wait::now(), connections(), 0);
    wait::until_true("connections of the client", || {
        caller.await_error("READONLY", |error| *error == CallError::ReadOnly);
        // Each query by redis-cli makes one more connection.
        own += 1;
        connections() - before - own >= 6
    });
    // Pauses start with 50 ms and double; jitter makes each at least half of that.
    assert!(began.elapsed().as_millis() >= 25 + 50 + 100 + 200 + 400, "{:?}", began.elapsed());
}

#[test]
fn replica_without_its_master_is_unreachable() {
    let (server, caller) = connected_server();
    set_config(&server, "replica-serve-stale-data", "no");
    server.cli(&["replicaof", "127.0.0.1", &free_port().to_string()]);
    let error =
        caller.await_error("MASTERDOWN", |error| error.to_string().contains("Link with MASTER is down"));
    assert!(matches!(error, CallError::Unreachable(_)));
    assert_eq!(error.outcome(), StoreOutcome::Unreachable);
    server.cli(&["replicaof", "no", "one"]);
    caller.await_success();
}

#[test]
fn loading_server_rejects_calls_until_it_has_loaded() {
    let (mut server, caller) = connected_server();
    for key in 0..300 {
        server.cli(&["set", &format!("key{key}"), &"x".repeat(3000)]);
    }
    set_config(&server, "rdbcompression", "no");
    assert_eq!(server.cli(&["save"]), "OK");
    // Loading takes a tenth of a second for each key, and the server processes commands meanwhile.
    server.restart_with(&["--key-load-delay", "100000", "--loading-process-events-interval-bytes", "1024"]);
    let error = caller.await_error("LOADING", |error| *error == CallError::Loading);
    assert_eq!(error.outcome(), StoreOutcome::Rejected);
    wait::until_true("no delay", || server.cli(&["config", "set", "key-load-delay", "0"]) == "OK");
    caller.await_success();
}

#[test]
fn a_server_without_memory_rejects_calls_until_it_has_some() {
    let (server, caller) = connected_server();
    set_config(&server, "maxmemory", "1");
    let error = caller.await_error("OOM", |error| *error == CallError::OutOfMemory);
    assert_eq!(error.outcome(), StoreOutcome::Rejected);
    set_config(&server, "maxmemory", "0");
    caller.await_success();
}

#[test]
fn a_server_that_needs_replicas_rejects_calls_until_it_has_them() {
    let (server, caller) = connected_server();
    set_config(&server, "min-replicas-to-write", "1");
    let error = caller.await_error("NOREPLICAS", |error| matches!(error, CallError::Unwritable(_)));
    assert_eq!(error.outcome(), StoreOutcome::Rejected);
    set_config(&server, "min-replicas-to-write", "0");
    caller.await_success();
}

#[test]
fn a_server_that_executes_an_endless_script_is_busy() {
    let (server, caller) = connected_server();
    set_config(&server, "lua-time-limit", "1");
    let mut endless = Command::new("redis-cli")
        .args(["-p", &server.port().to_string(), "eval", "while true do end", "0"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let error = caller.await_error("BUSY", |error| *error == CallError::Busy);
    assert_eq!(error.outcome(), StoreOutcome::Rejected);
    server.cli(&["script", "kill"]);
    caller.await_success();
    endless.wait().unwrap();
}

#[test]
fn a_user_that_loses_a_permission_keeps_its_connection() {
    let server = flavour().start();
    server.cli(&["acl", "setuser", "weir", "on", ">secret", "~weir:*", "+@all"]);
    let mut settings = single_server(&server);
    settings.credentials = credentials(Some("weir"), "secret");
    let caller = Caller::new(settings);
    assert_eq!(caller.increment("weir:a"), Ok(1));
    server.cli(&["acl", "setuser", "weir", "-evalsha"]);
    let before = info(&server, "stats", "total_connections_received").unwrap();
    for _ in 0..20 {
        let error = caller.increment("weir:a").unwrap_err();
        let CallError::NotPermitted(reason) = &error else { panic!("{error:?}") };
        assert!(reason.contains("evalsha"), "{reason}");
        assert_eq!(error.outcome(), StoreOutcome::Rejected);
    }
    let after = info(&server, "stats", "total_connections_received").unwrap();
    assert_eq!(after - before, 1, "only the connection of redis-cli");
    server.cli(&["acl", "setuser", "weir", "+evalsha"]);
    assert_eq!(caller.increment("weir:a"), Ok(2));
}

#[test]
fn flushed_server_keeps_serving() {
    let (server, caller) = connected_server();
    let run = caller.run_id("weir:a");
    assert_eq!(server.cli(&["flushall"]), "OK");
    assert_eq!(caller.increment("weir:a"), Ok(1));
    assert_eq!(caller.run_id("weir:a"), run);
}

#[test]
fn cluster_server_configured_as_single_server_is_an_error() {
    let cluster = flavour().cluster();
    let caller = Caller::new(single_server(&cluster.servers[(cluster.owner("weir:a") + 1) % 3]));
    let error = caller.increment("weir:a").unwrap_err();
    assert_eq!((error.outcome(), error), (StoreOutcome::Rejected, CallError::Moved));
}
