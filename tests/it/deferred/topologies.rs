//! Stored calls in a Redis Cluster, behind Sentinel, and in Valkey.

use std::collections::BTreeSet;

use super::*;
use crate::servers::{Cluster, Flavour, Group};

const FLAVOURS: [Flavour; 2] = [Flavour::Redis, Flavour::Valkey];
/// Rules whose streams are in different slots.
const RULES: [&str; 6] = ["one", "two", "three", "four", "five", "six"];
const CALLS: usize = 200;

fn urls(cluster: &Cluster) -> String {
    format!("[{}]", cluster.servers.each_ref().map(Server::url).join(", "))
}

/// Returns the key of the stream of a rule.
fn stream_of(rule: &str) -> String {
    format!("weir:1:{{weir.deferred.{rule}}}:calls")
}

/// A call passes through all scripts: it fails, becomes a dead letter, is moved back and is delivered.
fn assert_whole_life(store: &str) {
    let is_up = Arc::new(AtomicBool::new(false));
    let upstream = switched_origin(&is_up);
    let rule = "    limit: 100000/s\n    respond: { attempts: 2, backoff: 10ms..10ms }\n";
    let weir = Weir::start(&deferring(store, &upstream, rule));
    accept(&weir, "/hooks/a", "payload");
    until_status(&weir, "a dead letter", |status| status["dead_letters"] == 1 && status["calls"] == 0);
    assert_eq!(upstream.requests().len(), 2);
    is_up.store(true, Ordering::SeqCst);
    assert_eq!(weir.admin_post("/deferred/requeue?rule=hooks").status, 200);
    until_status(&weir, "no dead letter", |status| status["dead_letters"] == 0 && status["calls"] == 0);
    assert_eq!(upstream.last_request().body.text(), "payload");
    assert_eq!(upstream.requests().len(), 3);
}

/// The master of the stream fails during delivery, after its replica has received all calls: none of them is lost.
fn assert_failover_loses_nothing(store: &str, master: &mut Server, replica: &Server) {
    let is_up = Arc::new(AtomicBool::new(false));
    let upstream = switched_origin(&is_up);
    let rule = "    limit: 50/s\n    burst: 1\n    respond: { attempts: 1000, backoff: 10ms..100ms }\n";
    let weir = Weir::start(&deferring(store, &upstream, rule));
    wait::until_true("the store", || fetch(weir.address(), &Request::post("/hooks/a", "x")).status == 202);
    accept_many(&weir, 4, CALLS);
    let accepted = replication_offset(master, "master_repl_offset");
    wait::until_true("the replica", || replication_offset(replica, "slave_repl_offset") >= accepted);
    is_up.store(true, Ordering::SeqCst);
    let sent = || weir.metric("weir_deferred_sent_total", &[("rule", "hooks")]);
    wait::until_true("some deliveries", || sent() >= 20.0);
    master.kill();
    let promoted =
        wait::within(wait::DEADLINE * 3, || replica.cli(&["role"]).starts_with("master").then_some(()));
    assert!(promoted.is_some(), "the replica is not promoted");
    // The number of calls is no sign of the end: without a store that can be reached, it is zero as well.
    let all = || (deliveries(&upstream).len() == CALLS + 1).then_some(());
    let delivered = wait::within(Duration::from_secs(60), all);
    assert!(delivered.is_some(), "{} of {}: {}", deliveries(&upstream).len(), CALLS + 1, status(&weir));
    until_status(&weir, "an empty stream", |status| status["calls"] == 0);
    assert_eq!(status(&weir)["dead_letters"], 0);
    wait::until_true("acceptance", || {
        fetch(weir.address(), &Request::post("/hooks/after", "x")).status == 202
    });
    until_delivered(&upstream, CALLS + 2);
}

/// Returns how many bytes of the replication stream a server has sent or received.
fn replication_offset(server: &Server, field: &str) -> u64 {
    let info = server.cli(&["info", "replication"]);
    let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
    value.trim().parse().unwrap()
}

#[test]
fn call_lives_its_whole_life_in_every_kind_of_store() {
    for flavour in FLAVOURS {
        assert_whole_life(&flavour.start().url());
        assert_whole_life(&urls(&flavour.cluster()));
        assert_whole_life(&flavour.group().yaml());
    }
}

#[test]
fn streams_of_rules_are_spread_over_a_cluster() {
    for flavour in FLAVOURS {
        let (cluster, upstream) = (flavour.cluster(), Origin::responding_with(NO_CONTENT));
        let rule = |name: &&str| {
            format!(
                "  - name: {name}\n    match: {{ method: POST, path: /{name} }}\n    limit: 100000/s\n    \
                 respond: 202\n"
            )
        };
        let rules: String = RULES.iter().map(rule).collect();
        let store = format!("store: {{ redis: {}, timeout: 2s }}\n", urls(&cluster));
        let fleet =
            [(), ()].map(|()| Weir::start(&config(upstream.address(), &format!("{store}rules:\n{rules}"))));
        for (turn, name) in RULES.iter().cycle().take(60).enumerate() {
            let weir = &fleet[turn % fleet.len()];
            accept(weir, &format!("/{name}"), "x");
        }
        let delivered =
            wait::within(Duration::from_secs(60), || (upstream.requests().len() >= 60).then_some(()));
        assert!(delivered.is_some(), "{:?}", deliveries(&upstream));
        assert_eq!(deliveries(&upstream).into_values().collect::<Vec<_>>(), [10; RULES.len()]);
        let owners: BTreeSet<_> = RULES.iter().map(|name| cluster.owner(&stream_of(name))).collect();
        assert!(owners.len() > 1, "{owners:?}");
    }
}

#[test]
fn failover_of_a_sentinel_group_loses_no_accepted_call() {
    for flavour in FLAVOURS {
        let group = flavour.group();
        let yaml = group.yaml();
        let Group { mut master, replica, sentinel: _sentinel } = group;
        assert_failover_loses_nothing(&yaml, &mut master, &replica);
    }
}

#[test]
fn promotion_of_a_replica_in_a_cluster_loses_no_accepted_call() {
    for flavour in FLAVOURS {
        let mut cluster = flavour.cluster();
        let (urls, owner) = (urls(&cluster), cluster.owner(&stream_of("hooks")));
        let replica = cluster.add_replica(owner);
        assert_failover_loses_nothing(&urls, &mut cluster.servers[owner], &replica);
    }
}
