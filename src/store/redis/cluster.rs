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

use super::connection::{Failure, Redirect};
use super::connector::{Connector, Lookup, text};
use super::error::CallError;
use super::node::{Node, Target};
use super::pause;
use super::slot::{SLOTS, slot};
use super::{Call, Deadline, RunId, bounded, finished};
use crate::remote::channel::Place;

/// Maximum redirects of one call.
const MAX_REDIRECTS: usize = 3;
/// Maximum masters of a Cluster, as for Redis itself.
const MAX_NODES: usize = 1000;

/// A Redis Cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    shared: Arc<Shared>,
    task: OnceLock<AbortHandle>,
}

#[derive(Debug)]
struct Shared {
    seeds: Vec<Place>,
    connector: Arc<Connector>,
    table: Mutex<Table>,
    /// Whether the slots are known, or the error of the first attempt to fetch them.
    known: watch::Sender<Option<Result<(), CallError>>>,
    /// Signals that the slots must be fetched again.
    is_stale: Notify,
}

/// Owners of the slots.
#[derive(Debug, Default)]
struct Table {
    /// Owner of each slot; empty until the slots have been fetched.
    owners: Vec<Option<Place>>,
    nodes: HashMap<Place, Arc<Node>>,
}

impl Cluster {
    pub(super) fn new(seeds: Vec<Place>, connector: Arc<Connector>) -> Self {
        let shared = Shared {
            seeds,
            connector,
            table: Mutex::default(),
            known: watch::Sender::new(None),
            is_stale: Notify::new(),
        };
        Self { shared: Arc::new(shared), task: OnceLock::new() }
    }

    /// Returns the server that owns `slot`; waits for the first fetch of the slots.
    pub(super) async fn node(&self, slot: u16) -> Result<Arc<Node>, CallError> {
        self.task.get_or_init(|| tokio::spawn(keep(Arc::clone(&self.shared))).abort_handle());
        let mut known = self.shared.known.subscribe();
        match known.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(Err(error))) => return Err(error.clone()),
            Ok(Some(Ok(()))) => {}
            Ok(None) | Err(_) => return Err(CallError::Unreachable("the client has stopped".to_owned())),
        }
        let owner = self.shared.table.lock().owners.get(usize::from(slot)).cloned().flatten();
        let Some(owner) = owner else {
            self.shared.is_stale.notify_one();
            return Err(CallError::Unreachable(format!("no server serves slot {slot}")));
        };
        self.shared.node(&owner)
    }

    pub(super) async fn call(
        &self,
        call: Call<'_>,
        deadline: &mut Deadline<'_>,
    ) -> Result<(Value, RunId), CallError> {
        let slot = slot(call.keys.first().map_or(&[], String::as_bytes));
        let mut node = bounded(self.node(slot), deadline).await??;
        let mut is_asking = false;
        for _ in 0..=MAX_REDIRECTS {
            let connection = match bounded(node.connection(), deadline).await? {
                Ok(connection) => connection,
                Err(error) => {
                    self.shared.is_stale.notify_one();
                    return Err(error);
                }
            };
            match connection.call(call, is_asking, deadline).await {
                Err(Failure::Elsewhere(redirect)) => {
                    is_asking = !redirect.is_lasting;
                    node = self.shared.follow(slot, redirect)?;
                }
                Err(Failure::Error(error)) => {
                    self.shared.is_stale.notify_one();
                    return finished(Err(error), &connection);
                }
                Ok(value) => return finished(Ok(value), &connection),
            }
        }
        Err(CallError::Moved)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

impl Shared {
    /// Returns the server at `place`, which is added to the Cluster if it is unknown.
    fn node(&self, place: &Place) -> Result<Arc<Node>, CallError> {
        let mut table = self.table.lock();
        if let Some(node) = table.nodes.get(place) {
            return Ok(Arc::clone(node));
        }
        if table.nodes.len() >= MAX_NODES {
            return Err(CallError::Other(format!("the Cluster has more than {MAX_NODES} servers")));
        }
        let node = Arc::new(Node::new(Target::Server(place.clone()), Arc::clone(&self.connector)));
        table.nodes.insert(place.clone(), Arc::clone(&node));
        Ok(node)
    }

    fn follow(&self, slot: u16, redirect: Redirect) -> Result<Arc<Node>, CallError> {
        if redirect.is_lasting {
            self.is_stale.notify_one();
        }
        let place = redirect.place.ok_or(CallError::Moved)?;
        if redirect.is_lasting
            && let Some(owner) = self.table.lock().owners.get_mut(usize::from(slot))
        {
            *owner = Some(place.clone());
        }
        self.node(&place)
    }

    /// Fetches the slots from connected servers, then from the configured ones. Returns whether anything has changed.
    async fn refresh(&self, lookup: &mut Lookup) -> Result<bool, CallError> {
        let mut places: Vec<Place> = {
            let table = self.table.lock();
            table
                .nodes
                .iter()
                .filter(|(_, node)| node.open().is_some())
                .map(|(place, _)| place.clone())
                .collect()
        };
        fastrand::shuffle(&mut places);
        places.extend(self.seeds.iter().cloned());
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let mut failure = CallError::Unreachable("no server is configured".to_owned());
        for place in places {
            match self.connector.ask_server(&place, &command, lookup).await {
                Ok(slots) => match owners(&slots, &place) {
                    Some(owners) => return Ok(self.learn(owners)),
                    None => failure = CallError::Unreachable(format!("{place} reports no Cluster slots")),
                },
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Stores the owners; returns whether anything has changed.
    fn learn(&self, owners: Vec<Option<Place>>) -> bool {
        let mut table = self.table.lock();
        let places: HashSet<&Place> = owners.iter().flatten().collect();
        table.nodes.retain(|place, _| places.contains(place));
        let is_new = table.owners != owners;
        table.owners = owners;
        is_new
    }
}

/// Keeps the slot table up to date.
async fn keep(shared: Arc<Shared>) {
    let mut lookup = Lookup::default();
    // Number of consecutive fetches without changes.
    let mut vain = 0_u32;
    loop {
        match shared.refresh(&mut lookup).await {
            Ok(is_new) => {
                shared.known.send_replace(Some(Ok(())));
                // The pause bounds the rate of fetches, because all calls request one while a server without a replica
                // is down.
                vain = if is_new { 0 } else { vain.saturating_add(1) };
                sleep(pause(vain)).await;
                shared.is_stale.notified().await;
            }
            Err(error) => {
                tracing::debug!(%error, "cannot fetch the Cluster slots of the store");
                // Keep using what was known before.
                shared.known.send_if_modified(|known| {
                    let is_unknown = !matches!(known, Some(Ok(())));
                    if is_unknown {
                        *known = Some(Err(error));
                    }
                    is_unknown
                });
                sleep(pause(vain)).await;
                vain = vain.saturating_add(1);
            }
        }
    }
}

/// Parses the reply of `CLUSTER SLOTS` from the server at `asked`; `None` if no slot has an owner.
fn owners(slots: &Value, asked: &Place) -> Option<Vec<Option<Place>>> {
    let Value::Array(ranges) = slots else { return None };
    let mut owners = vec![None; usize::from(SLOTS)];
    for range in ranges {
        let Value::Array(parts) = range else { continue };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &**parts else { continue };
        let (Ok(first), Ok(last)) = (usize::try_from(*first), usize::try_from(*last)) else { continue };
        let Some(owned) = owners.get_mut(first..=last) else { continue };
        owned.fill(owner(master, asked));
    }
    owners.iter().any(Option::is_some).then_some(owners)
}

/// Parses a master's address. Without a host, it is at the host of the server that replied.
fn owner(master: &[Value], asked: &Place) -> Option<Place> {
    let [host, Value::Int(port), ..] = master else { return None };
    let own = match asked {
        Place::Tcp(host, _) => &**host,
        Place::Unix(_) => return None,
    };
    let host = match text(host) {
        None | Some("") => own,
        Some("?") => return None,
        Some(host) => host,
    };
    Some(Place::Tcp(host.into(), u16::try_from(*port).ok()?))
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
    fn slots_belong_to_the_masters_of_their_ranges() {
        let range = |first, last, master| Value::Array(vec![Value::Int(first), Value::Int(last), master]);
        let slots = Value::Array(vec![
            range(0, 99, server(bulk("10.0.0.1"), 7000)),
            range(100, 100, server(Value::Nil, 7001)),
            range(101, 200, server(bulk("?"), 7002)),
            range(16_384, 20_000, server(bulk("10.0.0.1"), 7000)),
            Value::Nil,
        ]);
        let owners = owners(&slots, &Place::Tcp("seed".into(), 6379)).unwrap();
        let shown = |slot: usize| owners[slot].as_ref().map(ToString::to_string);
        assert_eq!(shown(99).as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(shown(100).as_deref(), Some("seed:7001"));
        assert_eq!((shown(101), shown(16_383)), (None, None));
    }

    #[test]
    fn a_server_that_is_in_no_cluster_knows_no_slots() {
        assert_eq!(owners(&Value::Array(Vec::new()), &Place::Tcp("seed".into(), 6379)), None);
    }
}
