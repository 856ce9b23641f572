//! Discovery of the master through Sentinels.
//!
//! Each Sentinel has a connection. It is queried every second, and at once when it publishes a failover. Sentinels may
//! disagree for a while. The reply with the highest epoch is used, and only if the named server itself reports to be a
//! master. See Redis' [guidelines](https://redis.io/docs/latest/develop/reference/sentinel-clients/) for clients of
//! Sentinel.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::connector::{AddressLookup, RedisConnector, as_text};
use super::error::CallError;
use super::retry_delay;
use crate::remote::channel::ServerAddress;
use crate::settings::SentinelSettings;

/// Interval between queries to a Sentinel.
const QUERY_INTERVAL: Duration = Duration::from_secs(1);

/// Events that a Sentinel publishes when a replica has been promoted, and when all replicas follow it.
const EVENTS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// Connections to all Sentinels and their latest replies; dropping it closes them.
#[derive(Debug)]
pub(super) struct SentinelFollowers {
    replies: watch::Receiver<SentinelReplies>,
    wakeups: Vec<Arc<Notify>>,
    _followers: JoinSet<()>,
}

/// Latest reply of each Sentinel; `None` before the first.
type SentinelReplies = Vec<Option<Result<NamedMaster, CallError>>>;

/// A master, and the configuration epoch in which it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedMaster {
    pub(super) address: ServerAddress,
    pub(super) epoch: u64,
}

/// Connection to one Sentinel.
struct SentinelFollower {
    index: usize,
    address: ServerAddress,
    master: Box<str>,
    connector: Arc<RedisConnector>,
    replies: watch::Sender<SentinelReplies>,
    wake: Arc<Notify>,
}

impl SentinelFollowers {
    /// Connects to the Sentinels of `settings`. Must be called within a runtime.
    pub(super) fn start(settings: &SentinelSettings, connector: &Arc<RedisConnector>) -> Self {
        let (replies, seen) = watch::channel(vec![None; settings.sentinels.len()]);
        let mut followers = JoinSet::new();
        let mut wakeups = Vec::new();
        for (index, address) in settings.sentinels.iter().enumerate() {
            let wake = Arc::new(Notify::new());
            wakeups.push(Arc::clone(&wake));
            let (address, master) = (address.clone(), settings.master.clone());
            let (connector, replies) = (Arc::clone(connector), replies.clone());
            followers.spawn(SentinelFollower { index, address, master, connector, replies, wake }.run());
        }
        Self { replies: seen, wakeups, _followers: followers }
    }

    /// Returns the master. Waits until one Sentinel has named it, or all of them have failed.
    pub(super) async fn master(&self) -> Result<NamedMaster, CallError> {
        let mut replies = self.replies.clone();
        let known = replies.wait_for(|views| latest(views).is_some() || views.iter().all(Option::is_some));
        let Ok(known) = known.await else {
            return Err(CallError::Unreachable("the client has stopped".to_owned()));
        };
        if let Some(named) = latest(&known) {
            return Ok(named.clone());
        }
        let failure = known.iter().flatten().find_map(|view| view.as_ref().err());
        Err(failure
            .cloned()
            .unwrap_or_else(|| CallError::Unreachable("no sentinel is configured".to_owned())))
    }

    /// Completes when another master has replaced this one.
    pub(super) async fn replaced(&self, current: &NamedMaster) {
        let mut replies = self.replies.clone();
        if replies.wait_for(|views| is_replaced(current, views)).await.is_err() {
            std::future::pending().await
        }
    }

    /// Queries all Sentinels at once.
    pub(super) fn query_all(&self) {
        self.wakeups.iter().for_each(|wake| wake.notify_one());
    }
}

/// Returns the reply with the highest epoch.
fn latest(replies: &SentinelReplies) -> Option<&NamedMaster> {
    replies.iter().flatten().filter_map(|view| view.as_ref().ok()).max_by_key(|named| named.epoch)
}

/// Returns whether another master has replaced `current`. One Sentinel with an outdated reply is not enough
/// to close a working connection. A majority is, regardless of epochs, because these restart when Sentinels
/// are set up again.
fn is_replaced(current: &NamedMaster, replies: &SentinelReplies) -> bool {
    let Some(latest) = latest(replies) else { return false };
    let agree = replies.iter().flatten().flatten().filter(|named| named.address == latest.address).count();
    latest.address != current.address && (latest.epoch > current.epoch || 2 * agree > replies.len())
}

impl SentinelFollower {
    async fn run(self) {
        let mut lookup = AddressLookup::default();
        let mut failures = 0_u32;
        loop {
            let Err(error) = self.poll_master(&mut lookup, &mut failures).await;
            tracing::debug!(sentinel = %self.address, %error, "cannot query a sentinel");
            self.store_reply(Err(error));
            sleep(retry_delay(failures)).await;
            failures = failures.saturating_add(1);
        }
    }

    /// Queries repeatedly on one connection.
    async fn poll_master(&self, lookup: &mut AddressLookup, failures: &mut u32) -> Result<Never, CallError> {
        let (mut sentinel, mut driver) =
            self.connector.connect_sentinel(&self.address, &self.wake, lookup).await?;
        self.connector.drive(&mut driver, self.subscribe(&mut sentinel)).await?;
        loop {
            let named = self.connector.drive(&mut driver, self.query_master(&mut sentinel)).await?;
            *failures = 0;
            self.store_reply(Ok(named));
            tokio::select! {
                () = &mut driver => {
                    return Err(CallError::Unreachable(format!("the sentinel {} closed the connection", self.address)));
                }
                () = self.wake.notified() => {}
                () = sleep(QUERY_INTERVAL) => {}
            }
        }
    }

    /// Subscribes to events. Without the permission, a failover is noticed within [`QUERY_INTERVAL`].
    async fn subscribe(&self, sentinel: &mut MultiplexedConnection) -> Result<(), CallError> {
        match sentinel.subscribe(&EVENTS).await {
            Ok(()) => Ok(()),
            Err(error) => match CallError::from_redis(&error) {
                CallError::NotPermitted(reason) => {
                    tracing::debug!(
                        sentinel = %self.address,
                        %reason,
                        "no permission to subscribe to a sentinel's events"
                    );
                    Ok(())
                }
                error => Err(error),
            },
        }
    }

    /// Queries the epoch before the address: an outdated epoch delays the switch to a new master, but never causes a
    /// wrong one.
    async fn query_master(&self, sentinel: &mut MultiplexedConnection) -> Result<NamedMaster, CallError> {
        let unknown = |reason: &dyn std::fmt::Display| {
            let (place, master) = (&self.address, &self.master);
            CallError::Unreachable(format!(
                "cannot get the master {master} from the sentinel {place}: {reason}"
            ))
        };
        let failed = |error: RedisError| match CallError::from_redis(&error) {
            CallError::Other(reason) => unknown(&reason),
            error => error,
        };
        let mut command = redis::cmd("SENTINEL");
        command.arg("MASTER").arg(&*self.master);
        let master_info: HashMap<String, String> = command.query_async(sentinel).await.map_err(failed)?;
        let epoch = master_info.get("config-epoch").and_then(|epoch| epoch.parse().ok());
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.master);
        let address: Value = command.query_async(sentinel).await.map_err(failed)?;
        let address = parse_address(&address).ok_or_else(|| unknown(&"no address"))?;
        Ok(NamedMaster { address, epoch: epoch.unwrap_or(0) })
    }

    fn store_reply(&self, reply: Result<NamedMaster, CallError>) {
        self.replies.send_if_modified(|views| {
            let Some(known) = views.get_mut(self.index) else { return false };
            let is_new = known.as_ref() != Some(&reply);
            *known = Some(reply);
            is_new
        });
    }
}

/// A type without values.
enum Never {}

fn parse_address(reply: &Value) -> Option<ServerAddress> {
    let Value::Array(parts) = reply else { return None };
    let [host, port] = &**parts else { return None };
    Some(ServerAddress::Tcp(as_text(host)?.into(), as_text(port)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn master_address_reply_is_host_and_port() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let named = Value::Array(vec![bulk("10.0.0.1"), bulk("6379")]);
        assert_eq!(parse_address(&named), Some(ServerAddress::Tcp("10.0.0.1".into(), 6379)));
        assert_eq!(parse_address(&Value::Nil), None);
    }

    fn named_master(host: &str, epoch: u64) -> NamedMaster {
        NamedMaster { address: ServerAddress::Tcp(host.into(), 1), epoch }
    }

    #[test]
    fn master_of_the_highest_epoch_or_the_majority_is_used() {
        let (old, new) = (named_master("old", 3), named_master("new", 4));
        let failed = || Some(Err(CallError::Timeout));
        let replies = vec![Some(Ok(old.clone())), Some(Ok(new.clone())), None, failed()];
        assert_eq!(latest(&replies), Some(&new));
        assert!(is_replaced(&old, &replies) && !is_replaced(&new, &replies));
        assert!(!is_replaced(&new, &vec![Some(Ok(old)), None, failed()]), "a sentinel with an older epoch");
        assert!(!is_replaced(&new, &vec![failed()]), "no response");
        let reset = vec![Some(Ok(named_master("third", 0))), Some(Ok(named_master("third", 0))), failed()];
        assert!(is_replaced(&new, &reset), "a majority of sentinels that were reset");
    }
}
