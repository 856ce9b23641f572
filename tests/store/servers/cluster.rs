//! A Redis Cluster of three masters without replicas.

use std::process::Command;

use super::{Flavour, Server, free_port, port_option};
use crate::support::wait;

/// A Cluster in which every slot has an owner.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Its servers.
    pub(crate) servers: [Server; 3],
}

impl Cluster {
    /// Calls [`Flavour::cluster`] for Redis.
    pub(crate) fn start() -> Self {
        Self::start_flavour(Flavour::Redis)
    }

    pub(super) fn start_flavour(flavour: Flavour) -> Self {
        let servers = [0, 1, 2].map(|_| server(flavour));
        let addresses = servers.iter().map(|server| format!("127.0.0.1:{}", server.port()));
        let created = Command::new("redis-cli")
            .args(["--cluster-yes", "--cluster", "create"])
            .args(addresses)
            .output()
            .unwrap();
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stdout));
        for server in &servers {
            server.await_reply(&["cluster", "info"], "cluster_state:ok");
        }
        Self { servers }
    }

    /// Returns the index of the server that owns the slot of `key`.
    pub(crate) fn owner(&self, key: &str) -> usize {
        let has_it = |server: &Server| !server.cli(&["get", key]).contains("MOVED");
        self.servers.iter().position(has_it).unwrap()
    }

    /// Returns the slot of `key`.
    pub(crate) fn slot(&self, key: &str) -> String {
        self.servers[0].cli(&["cluster", "keyslot", key])
    }

    /// Moves an empty slot to the server at `to`. All servers learn of it at once.
    pub(crate) fn move_slot(&self, slot: &str, to: usize) {
        let id = self.servers[to].cli(&["cluster", "myid"]);
        for server in &self.servers {
            assert_eq!(server.cli(&["cluster", "setslot", slot, "node", &id]), "OK");
        }
        wait::until_true("the slot on its new server", || {
            self.servers.iter().all(|server| server.cli(&["cluster", "info"]).contains("cluster_state:ok"))
        });
    }

    /// Moves the slot of `key`, with the keys in it, to the server at `to`, as resharding does. Callers are redirected meanwhile.
    pub(crate) fn move_slot_with_keys(&self, key: &str, to: usize) {
        let (slot, from, to_server) = (self.slot(key), &self.servers[self.owner(key)], &self.servers[to]);
        let id = |server: &Server| server.cli(&["cluster", "myid"]);
        let port = to_server.port().to_string();
        assert_eq!(to_server.cli(&["cluster", "setslot", &slot, "importing", &id(from)]), "OK");
        assert_eq!(from.cli(&["cluster", "setslot", &slot, "migrating", &id(to_server)]), "OK");
        wait::until_true("no key on the previous server", || {
            let keys = from.cli(&["cluster", "getkeysinslot", &slot, "1000"]);
            let keys: Vec<_> = keys.lines().filter(|key| !key.is_empty()).collect();
            if keys.is_empty() {
                return true;
            }
            let migrate = ["migrate", "127.0.0.1", &port, "", "0", "5000", "keys"];
            from.cli(&[&migrate[..], &keys].concat());
            false
        });
        self.move_slot(&slot, to);
    }

    /// Adds a replica of the server at `of`, which is promoted when that server fails.
    pub(crate) fn add_replica(&self, of: usize) -> Server {
        let master = &self.servers[of];
        let replica = server(master.flavour);
        let (port, bus) = (master.port().to_string(), master.bus_port());
        assert_eq!(replica.cli(&["cluster", "meet", "127.0.0.1", &port, bus]), "OK");
        let id = master.cli(&["cluster", "myid"]);
        wait::until_true("a replica", || replica.cli(&["cluster", "replicate", &id]) == "OK");
        replica.await_reply(&["info", "replication"], "master_link_status:up");
        // A replica is promoted only if the other servers know it.
        let own = replica.cli(&["cluster", "myid"]);
        for server in &self.servers {
            wait::until_true("a replica that is known", || {
                let nodes = server.cli(&["cluster", "nodes"]);
                nodes.lines().any(|line| line.starts_with(&own) && line.contains(" slave "))
            });
        }
        replica
    }
}

/// Starts a server that is in no Cluster yet.
fn server(flavour: Flavour) -> Server {
    let options = |_: &std::path::Path, port| {
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
        let ports = [port_option("--port", port), port_option("--cluster-port", free_port())];
        [options.map(str::to_owned).to_vec(), ports.concat()].concat()
    };
    flavour.with_login(options, &[])
}

impl Server {
    /// Returns the port of its Cluster bus.
    fn bus_port(&self) -> &str {
        let option = self.arguments.iter().position(|word| word == "--cluster-port").unwrap();
        &self.arguments[option + 1]
    }
}
