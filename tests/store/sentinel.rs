//! Discovery of the master through Sentinel, and failover to another one.

use weir_store::redis::CallError;
use weir_store::settings::Topology;
use weir_telemetry::metrics::StoreOutcome;

use super::flavour;
use crate::caller::{Caller, credentials, run_id_of, sentinel_settings, server_address};
use crate::servers::free_port;
use crate::support::wait;

#[test]
fn sentinel_failover_of_a_failed_master_is_followed() {
    let mut group = flavour().group();
    let caller = Caller::new(sentinel_settings(&group));
    assert_eq!(caller.run_id("weir:a"), Ok(run_id_of(&group.master)));
    group.master.kill();
    let lost = wait::until("a loss", || caller.increment("weir:a").err());
    assert_eq!(lost.outcome(), StoreOutcome::Unreachable, "{lost:?}");
    let found = wait::within(wait::DEADLINE * 2, || caller.run_id("weir:a").ok());
    assert_eq!(found, Some(run_id_of(&group.replica)));
    assert!(caller.increment("weir:a").is_ok());
}

#[test]
fn sentinel_failover_of_a_live_master_is_followed_at_once() {
    let group = flavour().group();
    let caller = Caller::new(sentinel_settings(&group));
    assert!(caller.increment("weir:a").is_ok());
    let expected = run_id_of(&group.replica);
    assert_eq!(group.sentinel.cli(&["sentinel", "failover", "limits"]), "OK");
    wait::until_true("the new master", || caller.run_id("weir:a").as_ref() == Ok(&expected));
    // Sentinels make the old one a replica, and close its connections, some ten seconds later.
    assert!(group.master.cli(&["role"]).starts_with("master"), "the client left the old master too late");
    assert!(caller.increment("weir:a").is_ok());
}

#[test]
fn sentinel_is_needed_only_to_find_the_master() {
    let mut group = flavour().group();
    let mut settings = sentinel_settings(&group);
    let Topology::Sentinel(sentinel) = &mut settings.topology else { panic!() };
    // No sentinel listens on this port.
    sentinel.sentinels.insert(0, server_address(free_port()));
    let caller = Caller::new(settings);
    assert!(caller.increment("weir:a").is_ok());
    group.sentinel.kill();
    assert!(caller.increment("weir:a").is_ok());
    group.master.cli(&["client", "kill", "type", "normal"]);
    let lost = caller.await_error("a loss", |error| matches!(error, CallError::Unreachable(_)));
    assert_eq!(lost.outcome(), StoreOutcome::Unreachable);
    group.sentinel.restart();
    caller.await_success();
}

#[test]
fn unknown_master_name_is_in_the_error() {
    let group = flavour().group();
    let mut settings = sentinel_settings(&group);
    let Topology::Sentinel(sentinel) = &mut settings.topology else { panic!() };
    sentinel.master = "other".into();
    let error = Caller::new(settings).increment("weir:a").unwrap_err();
    assert!(matches!(error, CallError::Unreachable(_)));
    let expected =
        format!("cannot get the master other from the sentinel 127.0.0.1:{}", group.sentinel.port());
    assert!(error.to_string().contains(&expected), "{error}");
}

#[test]
fn documented_sentinel_permissions_are_sufficient() {
    let words = ["+sentinel|master", "+sentinel|get-master-addr-by-name", "+subscribe", "&*"];
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations/shared-store.md"))
            .unwrap();
    words.iter().for_each(|word| assert!(page.contains(word), "{word}"));
    let group = flavour().group();
    let user = ["acl", "setuser", "weir", "on", ">secret", "resetchannels", "-@all"];
    assert_eq!(group.sentinel.cli(&[user.as_slice(), &words].concat()), "OK");
    let mut settings = sentinel_settings(&group);
    let Topology::Sentinel(sentinel) = &mut settings.topology else { panic!() };
    sentinel.credentials = credentials(Some("weir"), "secret");
    let clients = || group.sentinel.cli(&["client", "list"]);
    let caller = Caller::new(settings.clone());
    assert!(caller.increment("weir:a").is_ok());
    assert!(clients().contains("sub=2"), "subscribed to two channels: {}", clients());
    // Without these events the client still finds the new master, by polling.
    drop(caller);
    assert_eq!(group.sentinel.cli(&["acl", "setuser", "weir", "-subscribe"]), "OK");
    let caller = Caller::new(settings);
    assert!(caller.increment("weir:a").is_ok());
    group.fail_over();
    let expected = run_id_of(&group.replica);
    wait::until_true("the new master", || caller.run_id("weir:a").as_ref() == Ok(&expected));
}
