//! A Redis Cluster: each call goes to the server that owns the slot, even if the slot moves.

use weir_store::redis::CallError;
use weir_telemetry::metrics::StoreOutcome;

use super::flavour;
use crate::caller::{Caller, cluster_settings, info, run_id_of};
use crate::servers::{Cluster, Server};
use crate::support::wait;

/// Returns a key in a slot of each server.
fn key_of_each_server(cluster: &Cluster) -> [String; 3] {
    [0, 1, 2].map(|server| {
        let owned = (0..).map(|number| format!("weir:{number}")).find(|key| cluster.owner(key) == server);
        owned.unwrap()
    })
}

/// Returns how many calls a server has redirected to another one.
fn redirects(server: &Server) -> u64 {
    info(server, "errorstats", "errorstat_MOVED").unwrap_or(0)
}

#[test]
fn cluster_call_goes_to_the_owner_of_the_slot() {
    let cluster = flavour().cluster();
    let keys = key_of_each_server(&cluster);
    let before = cluster.servers.each_ref().map(redirects);
    let caller = Caller::new(cluster_settings(&cluster));
    for (key, server) in keys.iter().zip(&cluster.servers) {
        assert_eq!(caller.run_id(key), Ok(run_id_of(server)));
    }
    assert_eq!(cluster.servers.each_ref().map(redirects), before, "the slots are known in advance");
}

#[test]
fn moved_slot_is_followed_and_remembered() {
    let cluster = flavour().cluster();
    let caller = Caller::new(cluster_settings(&cluster));
    let [key, ..] = key_of_each_server(&cluster);
    assert_eq!(caller.run_id(&key), Ok(run_id_of(&cluster.servers[0])));
    cluster.move_slot(&cluster.slot(&key), 1);
    let before = redirects(&cluster.servers[0]);
    for _ in 0..20 {
        assert_eq!(caller.run_id(&key), Ok(run_id_of(&cluster.servers[1])));
    }
    assert_eq!(redirects(&cluster.servers[0]) - before, 1, "only the first call is redirected");
}

#[test]
fn migrating_key_is_followed_by_ask_redirects() {
    let cluster = flavour().cluster();
    let caller = Caller::new(cluster_settings(&cluster));
    let [key, ..] = key_of_each_server(&cluster);
    assert_eq!(caller.increment(&key), Ok(1));
    let slot = cluster.slot(&key);
    let [from, to, _] = &cluster.servers;
    let [from_id, to_id] = [from, to].map(|server| server.cli(&["cluster", "myid"]));
    assert_eq!(to.cli(&["cluster", "setslot", &slot, "importing", &from_id]), "OK");
    assert_eq!(from.cli(&["cluster", "setslot", &slot, "migrating", &to_id]), "OK");
    assert_eq!(caller.increment(&key), Ok(2), "the key has not moved yet");
    let port = to.port().to_string();
    assert_eq!(from.cli(&["migrate", "127.0.0.1", &port, &key, "0", "5000"]), "OK");
    assert_eq!(caller.increment(&key), Ok(3), "the key has moved");
    assert_eq!(caller.run_id(&key), Ok(run_id_of(to)));
    cluster.move_slot(&slot, 1);
    assert_eq!(caller.increment(&key), Ok(4));
}

#[test]
fn slots_of_a_failed_server_are_unreachable_until_it_returns() {
    let mut cluster = flavour().cluster();
    let caller = Caller::new(cluster_settings(&cluster));
    let keys = key_of_each_server(&cluster);
    keys.iter().for_each(|key| assert_eq!(caller.increment(key), Ok(1)));
    cluster.servers[2].kill();
    let lost = wait::until("a loss", || caller.increment(&keys[2]).err());
    assert_eq!(lost.outcome(), StoreOutcome::Unreachable, "{lost:?}");
    // The other servers notice the failure. By default they then reject all calls.
    let down = wait::until("CLUSTERDOWN", || caller.increment(&keys[0]).err());
    let CallError::Unreachable(reason) = &down else { panic!("{down:?}") };
    assert!(reason.contains("cluster is down"), "{reason}");
    cluster.servers[2].restart();
    for key in &keys {
        let found = wait::within(wait::DEADLINE * 2, || caller.increment(key).ok());
        assert!(found.is_some(), "{key}");
    }
}

#[test]
fn promoted_replica_is_found() {
    let mut cluster = flavour().cluster();
    let caller = Caller::new(cluster_settings(&cluster));
    let keys = key_of_each_server(&cluster);
    let replica = cluster.add_replica(2);
    assert_eq!(caller.run_id(&keys[2]), Ok(run_id_of(&cluster.servers[2])));
    cluster.servers[2].kill();
    let expected = run_id_of(&replica);
    let found = wait::within(wait::DEADLINE * 2, || caller.run_id(&keys[2]).ok());
    assert_eq!(found, Some(expected));
}

#[test]
fn server_without_cluster_mode_is_an_error() {
    let server = flavour().start();
    let seed = vec![crate::caller::server_address(server.port())];
    let caller = Caller::new(crate::caller::settings(weir_store::settings::Topology::Cluster(seed)));
    let error = caller.increment("weir:a").unwrap_err();
    assert!(error.to_string().contains("cluster support disabled"), "{error}");
}
