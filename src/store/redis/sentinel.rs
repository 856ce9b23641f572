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

use super::connector::{Connector, Lookup, text};
use super::error::CallError;
use super::pause;
use crate::remote::channel::Place;
use crate::store::settings::Sentinel;

/// Interval between queries to a Sentinel.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Events that a Sentinel publishes when a replica has been promoted, and when all replicas follow it.
const EVENTS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// Connections to all Sentinels and their latest replies; dropping it closes them.
#[derive(Debug)]
pub(super) struct Sentinels {
    views: watch::Receiver<Views>,
    wakes: Vec<Arc<Notify>>,
    _followers: JoinSet<()>,
}

/// Latest reply of each Sentinel; `None` before the first.
type Views = Vec<Option<Result<Named, CallError>>>;

/// A master, and the configuration epoch in which it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) place: Place,
    pub(super) epoch: u64,
}

/// Connection to one Sentinel.
struct Follower {
    index: usize,
    place: Place,
    master: Box<str>,
    connector: Arc<Connector>,
    views: watch::Sender<Views>,
    wake: Arc<Notify>,
}

impl Sentinels {
    /// Connects to the Sentinels of `settings`. Must be called within a runtime.
    pub(super) fn follow(settings: &Sentinel, connector: &Arc<Connector>) -> Self {
        let (views, seen) = watch::channel(vec![None; settings.sentinels.len()]);
        let mut followers = JoinSet::new();
        let mut wakes = Vec::new();
        for (index, place) in settings.sentinels.iter().enumerate() {
            let wake = Arc::new(Notify::new());
            wakes.push(Arc::clone(&wake));
            let (place, master) = (place.clone(), settings.master.clone());
            let (connector, views) = (Arc::clone(connector), views.clone());
            followers.spawn(Follower { index, place, master, connector, views, wake }.run());
        }
        Self { views: seen, wakes, _followers: followers }
    }

    /// Returns the master. Waits until one Sentinel has named it, or all of them have failed.
    pub(super) async fn master(&self) -> Result<Named, CallError> {
        let mut views = self.views.clone();
        let known = views.wait_for(|views| latest(views).is_some() || views.iter().all(Option::is_some));
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
    pub(super) async fn replaced(&self, now: &Named) {
        let mut views = self.views.clone();
        if views.wait_for(|views| is_replaced(now, views)).await.is_err() {
            std::future::pending().await
        }
    }

    /// Queries all Sentinels at once.
    pub(super) fn ask(&self) {
        self.wakes.iter().for_each(|wake| wake.notify_one());
    }
}

/// Returns the reply with the highest epoch.
fn latest(views: &Views) -> Option<&Named> {
    views.iter().flatten().filter_map(|view| view.as_ref().ok()).max_by_key(|named| named.epoch)
}

/// Returns whether another master has replaced `now`. One Sentinel with an outdated reply is not enough to close a
/// working connection. A majority is, regardless of epochs, because these restart when Sentinels are set up again.
fn is_replaced(now: &Named, views: &Views) -> bool {
    let Some(latest) = latest(views) else { return false };
    let agree = views.iter().flatten().flatten().filter(|named| named.place == latest.place).count();
    latest.place != now.place && (latest.epoch > now.epoch || 2 * agree > views.len())
}

impl Follower {
    async fn run(self) {
        let mut lookup = Lookup::default();
        let mut failures = 0_u32;
        loop {
            let Err(error) = self.listen(&mut lookup, &mut failures).await;
            tracing::debug!(sentinel = %self.place, %error, "cannot query a sentinel");
            self.tell(Err(error));
            sleep(pause(failures)).await;
            failures = failures.saturating_add(1);
        }
    }

    /// Queries repeatedly on one connection.
    async fn listen(&self, lookup: &mut Lookup, failures: &mut u32) -> Result<Never, CallError> {
        let (mut sentinel, mut driver) =
            self.connector.open_sentinel(&self.place, &self.wake, lookup).await?;
        self.connector.within(&mut driver, self.subscribe(&mut sentinel)).await?;
        loop {
            let named = self.connector.within(&mut driver, self.named(&mut sentinel)).await?;
            *failures = 0;
            self.tell(Ok(named));
            tokio::select! {
                () = &mut driver => {
                    return Err(CallError::Unreachable(format!("the sentinel {} closed the connection", self.place)));
                }
                () = self.wake.notified() => {}
                () = sleep(ASK_EVERY) => {}
            }
        }
    }

    /// Subscribes to events. Without the permission, a failover is noticed within [`ASK_EVERY`].
    async fn subscribe(&self, sentinel: &mut MultiplexedConnection) -> Result<(), CallError> {
        match sentinel.subscribe(&EVENTS).await {
            Ok(()) => Ok(()),
            Err(error) => match CallError::of(&error) {
                CallError::NotPermitted(reason) => {
                    tracing::debug!(
                        sentinel = %self.place,
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
    async fn named(&self, sentinel: &mut MultiplexedConnection) -> Result<Named, CallError> {
        let unknown = |reason: &dyn std::fmt::Display| {
            let (place, master) = (&self.place, &self.master);
            CallError::Unreachable(format!(
                "cannot get the master {master} from the sentinel {place}: {reason}"
            ))
        };
        let failed = |error: RedisError| match CallError::of(&error) {
            CallError::Other(reason) => unknown(&reason),
            error => error,
        };
        let mut command = redis::cmd("SENTINEL");
        command.arg("MASTER").arg(&*self.master);
        let facts: HashMap<String, String> = command.query_async(sentinel).await.map_err(failed)?;
        let epoch = facts.get("config-epoch").and_then(|epoch| epoch.parse().ok());
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.master);
        let address: Value = command.query_async(sentinel).await.map_err(failed)?;
        let place = self::address(&address).ok_or_else(|| unknown(&"no address"))?;
        Ok(Named { place, epoch: epoch.unwrap_or(0) })
    }

    fn tell(&self, view: Result<Named, CallError>) {
        self.views.send_if_modified(|views| {
            let Some(known) = views.get_mut(self.index) else { return false };
            let is_new = known.as_ref() != Some(&view);
            *known = Some(view);
            is_new
        });
    }
}

/// A type without values.
enum Never {}

fn address(named: &Value) -> Option<Place> {
    let Value::Array(parts) = named else { return None };
    let [host, port] = &**parts else { return None };
    Some(Place::Tcp(text(host)?.into(), text(port)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_is_named_by_host_and_port() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let named = Value::Array(vec![bulk("10.0.0.1"), bulk("6379")]);
        assert_eq!(address(&named), Some(Place::Tcp("10.0.0.1".into(), 6379)));
        assert_eq!(address(&Value::Nil), None);
    }

    fn named(host: &str, epoch: u64) -> Named {
        Named { place: Place::Tcp(host.into(), 1), epoch }
    }

    #[test]
    fn the_latest_knowledge_is_believed() {
        let (old, new) = (named("old", 3), named("new", 4));
        let away = || Some(Err(CallError::Timeout));
        let views = vec![Some(Ok(old.clone())), Some(Ok(new.clone())), None, away()];
        assert_eq!(latest(&views), Some(&new));
        assert!(is_replaced(&old, &views) && !is_replaced(&new, &views));
        assert!(!is_replaced(&new, &vec![Some(Ok(old)), None, away()]), "a sentinel with an older epoch");
        assert!(!is_replaced(&new, &vec![away()]), "no response");
        let anew = vec![Some(Ok(named("third", 0))), Some(Ok(named("third", 0))), away()];
        assert!(is_replaced(&new, &anew), "a majority of sentinels that were reset");
    }
}
