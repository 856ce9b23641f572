//! Topology of a Redis Cluster: the servers, and which of them owns each slot.
//!
//! A `MOVED` reply takes effect at once, and the slots are soon fetched again. They are also fetched when a server is
//! unreachable, because a replica may have been promoted.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use redis::Value;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::connection::{Redirect, RedirectOrError};
use super::connector::{AddressLookup, RedisConnector, as_text};
use super::error::CallError;
use super::node::{NodeTarget, RedisNode};
use super::retry_delay;
use super::slot::{SLOTS, slot};
use super::{CallDeadline, RunId, ScriptCall, complete_call, with_deadline};
use crate::remote::channel::ServerAddress;

/// Maximum redirects of one call.
const MAX_REDIRECTS: usize = 3;
/// Maximum masters of a Cluster, as for Redis itself.
const MAX_NODES: usize = 1000;

#[derive(Debug)]
pub(super) struct RedisCluster {
    state: Arc<ClusterState>,
    task: OnceLock<AbortHandle>,
}

#[derive(Debug)]
struct ClusterState {
    seeds: Vec<ServerAddress>,
    connector: Arc<RedisConnector>,
    slot_table: Mutex<SlotTable>,
    /// Whether the slots are known, or the error of the first attempt to fetch them.
    fetched: watch::Sender<Option<Result<(), CallError>>>,
    /// Signals that the slots must be fetched again.
    refresh_requested: Notify,
}

/// Owners of the slots.
#[derive(Debug, Default)]
struct SlotTable {
    /// Owner of each slot; empty until the slots have been fetched.
    owners: Vec<Option<ServerAddress>>,
    nodes: HashMap<ServerAddress, Arc<RedisNode>>,
}

impl RedisCluster {
    pub(super) fn new(seeds: Vec<ServerAddress>, connector: Arc<RedisConnector>) -> Self {
        let state = ClusterState {
            seeds,
            connector,
            slot_table: Mutex::default(),
            fetched: watch::Sender::new(None),
            refresh_requested: Notify::new(),
        };
        Self { state: Arc::new(state), task: OnceLock::new() }
    }

    /// Returns the server that owns `slot`; waits for the first fetch of the slots.
    pub(super) async fn node(&self, slot: u16) -> Result<Arc<RedisNode>, CallError> {
        self.task.get_or_init(|| tokio::spawn(maintain_slots(Arc::clone(&self.state))).abort_handle());
        let mut fetched = self.state.fetched.subscribe();
        match fetched.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(Err(error))) => return Err(error.clone()),
            Ok(Some(Ok(()))) => {}
            Ok(None) | Err(_) => return Err(CallError::Unreachable("the client has stopped".to_owned())),
        }
        let owner = self.state.slot_table.lock().owners.get(usize::from(slot)).cloned().flatten();
        let Some(owner) = owner else {
            self.state.refresh_requested.notify_one();
            return Err(CallError::Unreachable(format!("no server serves slot {slot}")));
        };
        self.state.node(&owner)
    }

    pub(super) async fn call(
        &self,
        call: ScriptCall<'_>,
        deadline: &mut CallDeadline<'_>,
    ) -> Result<(Value, RunId), CallError> {
        let slot = slot(call.keys.first().map_or(&[], String::as_bytes));
        let mut node = with_deadline(self.node(slot), deadline).await??;
        let mut is_asking = false;
        for _ in 0..=MAX_REDIRECTS {
            let connection = match with_deadline(node.connection(), deadline).await? {
                Ok(connection) => connection,
                Err(error) => {
                    self.state.refresh_requested.notify_one();
                    return Err(error);
                }
            };
            match connection.call(call, is_asking, deadline).await {
                Err(RedirectOrError::Redirect(redirect)) => {
                    is_asking = !redirect.is_permanent;
                    node = self.state.follow_redirect(slot, redirect)?;
                }
                Err(RedirectOrError::Error(error)) => {
                    self.state.refresh_requested.notify_one();
                    return complete_call(Err(error), &connection);
                }
                Ok(value) => return complete_call(Ok(value), &connection),
            }
        }
        Err(CallError::Moved)
    }
}

impl Drop for RedisCluster {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

impl ClusterState {
    /// Returns the server at `place`, which is added to the Cluster if it is unknown.
    fn node(&self, address: &ServerAddress) -> Result<Arc<RedisNode>, CallError> {
        let mut table = self.slot_table.lock();
        if let Some(node) = table.nodes.get(address) {
            return Ok(Arc::clone(node));
        }
        if table.nodes.len() >= MAX_NODES {
            return Err(CallError::Other(format!("the Cluster has more than {MAX_NODES} servers")));
        }
        let node = Arc::new(RedisNode::new(NodeTarget::Server(address.clone()), Arc::clone(&self.connector)));
        table.nodes.insert(address.clone(), Arc::clone(&node));
        Ok(node)
    }

    fn follow_redirect(&self, slot: u16, redirect: Redirect) -> Result<Arc<RedisNode>, CallError> {
        if redirect.is_permanent {
            self.refresh_requested.notify_one();
        }
        let address = redirect.address.ok_or(CallError::Moved)?;
        if redirect.is_permanent
            && let Some(owner) = self.slot_table.lock().owners.get_mut(usize::from(slot))
        {
            *owner = Some(address.clone());
        }
        self.node(&address)
    }

    /// Fetches the slots from connected servers, then from the configured ones. Returns whether anything has changed.
    async fn refresh(&self, lookup: &mut AddressLookup) -> Result<bool, CallError> {
        let mut addresses: Vec<ServerAddress> = {
            let table = self.slot_table.lock();
            table
                .nodes
                .iter()
                .filter(|(_, node)| node.current_connection().is_some())
                .map(|(place, _)| place.clone())
                .collect()
        };
        fastrand::shuffle(&mut addresses);
        addresses.extend(self.seeds.iter().cloned());
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let mut failure = CallError::Unreachable("no server is configured".to_owned());
        for address in addresses {
            match self.connector.query_server(&address, &command, lookup).await {
                Ok(slots) => match parse_owners(&slots, &address) {
                    Some(owners) => return Ok(self.update_owners(owners)),
                    None => failure = CallError::Unreachable(format!("{address} reports no Cluster slots")),
                },
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Stores the owners; returns whether anything has changed.
    fn update_owners(&self, owners: Vec<Option<ServerAddress>>) -> bool {
        let mut table = self.slot_table.lock();
        let addresses: HashSet<&ServerAddress> = owners.iter().flatten().collect();
        table.nodes.retain(|place, _| addresses.contains(place));
        let is_new = table.owners != owners;
        table.owners = owners;
        is_new
    }
}

/// Keeps the slot table up to date.
async fn maintain_slots(state: Arc<ClusterState>) {
    let mut lookup = AddressLookup::default();
    // Number of consecutive fetches without changes.
    let mut unchanged_fetches = 0_u32;
    loop {
        match state.refresh(&mut lookup).await {
            Ok(is_new) => {
                state.fetched.send_replace(Some(Ok(())));
                // The pause bounds the rate of fetches, because all calls request one while a server without a replica
                // is down.
                unchanged_fetches = if is_new { 0 } else { unchanged_fetches.saturating_add(1) };
                sleep(retry_delay(unchanged_fetches)).await;
                state.refresh_requested.notified().await;
            }
            Err(error) => {
                tracing::debug!(%error, "cannot fetch the Cluster slots of the store");
                // Keep using what was known before.
                state.fetched.send_if_modified(|known| {
                    let is_unknown = !matches!(known, Some(Ok(())));
                    if is_unknown {
                        *known = Some(Err(error));
                    }
                    is_unknown
                });
                sleep(retry_delay(unchanged_fetches)).await;
                unchanged_fetches = unchanged_fetches.saturating_add(1);
            }
        }
    }
}

/// Parses the reply of `CLUSTER SLOTS` from the server at `queried`; `None` if no slot has an owner.
fn parse_owners(slots: &Value, queried: &ServerAddress) -> Option<Vec<Option<ServerAddress>>> {
    let Value::Array(ranges) = slots else { return None };
    let mut owners = vec![None; usize::from(SLOTS)];
    for range in ranges {
        let Value::Array(parts) = range else { continue };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &**parts else { continue };
        let (Ok(first), Ok(last)) = (usize::try_from(*first), usize::try_from(*last)) else { continue };
        let Some(owned) = owners.get_mut(first..=last) else { continue };
        owned.fill(parse_owner(master, queried));
    }
    owners.iter().any(Option::is_some).then_some(owners)
}

/// Parses a master's address. Without a host, it is at the host of the server that replied.
fn parse_owner(master: &[Value], queried: &ServerAddress) -> Option<ServerAddress> {
    let [host, Value::Int(port), ..] = master else { return None };
    let queried_host = match queried {
        ServerAddress::Tcp(host, _) => &**host,
        ServerAddress::Unix(_) => return None,
    };
    let host = match as_text(host) {
        None | Some("") => queried_host,
        Some("?") => return None,
        Some(host) => host,
    };
    Some(ServerAddress::Tcp(host.into(), u16::try_from(*port).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(host: Value, port: i64) -> Value {
        Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())])
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn cluster_slots_reply_assigns_ranges_to_masters() {
        let range = |first, last, master| Value::Array(vec![Value::Int(first), Value::Int(last), master]);
        let slots = Value::Array(vec![
            range(0, 99, server(bulk("10.0.0.1"), 7000)),
            range(100, 100, server(Value::Nil, 7001)),
            range(101, 200, server(bulk("?"), 7002)),
            range(16_384, 20_000, server(bulk("10.0.0.1"), 7000)),
            Value::Nil,
        ]);
        let owners = parse_owners(&slots, &ServerAddress::Tcp("seed".into(), 6379)).unwrap();
        let shown = |slot: usize| owners[slot].as_ref().map(ToString::to_string);
        assert_eq!(shown(99).as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(shown(100).as_deref(), Some("seed:7001"));
        assert_eq!((shown(101), shown(16_383)), (None, None));
    }

    #[test]
    fn cluster_slots_reply_without_ranges_is_rejected() {
        assert_eq!(parse_owners(&Value::Array(Vec::new()), &ServerAddress::Tcp("seed".into(), 6379)), None);
    }
}
