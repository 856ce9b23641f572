//! A master with a replica, and a sentinel that promotes the replica when the master fails.

use super::{Flavour, Server, sentinel};
use crate::support::wait;

/// A master, its replica and a sentinel, which names the master `limits`.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) master: Server,
    pub(crate) replica: Server,
    pub(crate) sentinel: Server,
}

impl Group {
    /// Calls [`Flavour::group`] for Redis.
    pub(crate) fn start() -> Self {
        Self::start_flavour(Flavour::Redis)
    }

    pub(super) fn start_flavour(flavour: Flavour) -> Self {
        let master = flavour.with(&["--repl-diskless-sync-delay", "0"]);
        let port = master.port().to_string();
        let replica = flavour.with(&["--replicaof", "127.0.0.1", &port]);
        replica.await_reply(&["info", "replication"], "master_link_status:up");
        let sentinel = sentinel(flavour, master.port());
        let group = Self { master, replica, sentinel };
        // The sentinel polls the master for replicas every ten seconds. Without a replica there is no failover.
        wait::within(wait::DEADLINE * 2, || group.has_replica().then_some(()));
        assert!(group.has_replica());
        group
    }

    fn has_replica(&self) -> bool {
        let replicas = self.sentinel.cli(&["sentinel", "replicas", "limits"]);
        replicas.contains(&self.replica.port().to_string()) && replicas.contains("master-link-status\nok")
    }

    /// Starts a failover to the replica, and waits until the sentinel names it as the master.
    pub(crate) fn fail_over(&self) {
        assert_eq!(self.sentinel.cli(&["sentinel", "failover", "limits"]), "OK");
        self.await_master(&self.replica);
    }

    /// Waits until the sentinel names `server` as the master.
    pub(crate) fn await_master(&self, server: &Server) {
        let port = server.port().to_string();
        let named = wait::within(wait::DEADLINE * 2, || {
            let named = self.sentinel.cli(&["sentinel", "get-master-addr-by-name", "limits"]);
            named.contains(&port).then_some(())
        });
        assert!(named.is_some(), "{port} does not become the master");
    }

    /// Returns the value of `store.redis` for this group.
    pub(crate) fn yaml(&self) -> String {
        format!("{{ sentinel: [\"127.0.0.1:{}\"], master: limits }}", self.sentinel.port())
    }
}
