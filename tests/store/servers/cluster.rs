//! Three masters of a Cluster, without replicas.

use std::process::Command;

use super::{Server, free_port, port_option};
use crate::support::wait;

/// A Cluster that has all slots.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Its servers.
    pub(crate) servers: [Server; 3],
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let server = |_| {
            Server::with_login(
                |_, port| {
                    let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
                    let ports = [port_option("--port", port), port_option("--cluster-port", free_port())];
                    [options.map(str::to_owned).to_vec(), ports.concat()].concat()
                },
                &[],
            )
        };
        let servers = [0, 1, 2].map(server);
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

    /// Position of the server that has the slot of `key`.
    pub(crate) fn owner(&self, key: &str) -> usize {
        let has_it = |server: &Server| !server.cli(&["get", key]).contains("MOVED");
        self.servers.iter().position(has_it).unwrap()
    }

    /// The slot of `key`.
    pub(crate) fn slot(&self, key: &str) -> String {
        self.servers[0].cli(&["cluster", "keyslot", key])
    }

    /// Moves an empty slot to the server at `to`, as all of them know at once.
    pub(crate) fn move_slot(&self, slot: &str, to: usize) {
        let id = self.servers[to].cli(&["cluster", "myid"]);
        for server in &self.servers {
            assert_eq!(server.cli(&["cluster", "setslot", slot, "node", &id]), "OK");
        }
        wait::until_true("the slot on its new server", || {
            self.servers.iter().all(|server| server.cli(&["cluster", "info"]).contains("cluster_state:ok"))
        });
    }
}
