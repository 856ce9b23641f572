//! The connections of `weir top` to `/events`, opened again whenever they are lost.

use std::time::Duration;

use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::sleep;

use super::snapshot::ReceivedSnapshot;
use crate::admin_client::{AdminClient, AdminClientError};
use weir_net::jitter::{backoff, equal_jitter};

/// Pauses between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// What the feed reports.
#[derive(Debug)]
pub(super) struct FeedUpdate {
    /// Position of the instance.
    pub(super) instance: usize,
    pub(super) event: FeedEvent,
}

/// What an instance or its connection has done.
#[derive(Debug)]
pub(super) enum FeedEvent {
    /// The next snapshot.
    Snapshot(Box<ReceivedSnapshot>),
    /// The connection is lost, with the reason. An attempt to connect follows.
    Lost(String),
}

/// Receives snapshots from a task for each instance.
#[derive(Debug)]
pub(super) struct Feed {
    updates: Receiver<FeedUpdate>,
}

impl Feed {
    /// Starts following the snapshots of instances.
    pub(super) fn start(clients: Vec<AdminClient>) -> Self {
        // One place: a terminal that is stopped must not collect snapshots.
        let (sender, updates) = channel(1);
        for (instance, client) in clients.into_iter().enumerate() {
            tokio::spawn(follow(client, Updates { instance, sender: sender.clone() }));
        }
        Self { updates }
    }

    /// Returns the next update. Safe to cancel.
    pub(super) async fn next(&mut self) -> FeedUpdate {
        match self.updates.recv().await {
            Some(update) => update,
            // The tasks end only with this receiver.
            None => std::future::pending().await,
        }
    }
}

/// Where the updates of one instance go.
struct Updates {
    instance: usize,
    sender: Sender<FeedUpdate>,
}

impl Updates {
    /// Returns whether there is a receiver.
    async fn send(&self, event: FeedEvent) -> bool {
        self.sender.send(FeedUpdate { instance: self.instance, event }).await.is_ok()
    }
}

async fn follow(client: AdminClient, updates: Updates) {
    let mut failures = 0_u32;
    loop {
        let mut has_received = false;
        let ended = receive(&client, &updates, &mut has_received).await;
        failures = if has_received { 1 } else { failures.saturating_add(1) };
        // The server ends every stream from time to time, so the first attempt to continue is silent.
        let lost = match ended {
            Ok(()) if has_received => None,
            Ok(()) => Some("the stream of events has ended".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(message) = lost
            && !updates.send(FeedEvent::Lost(message)).await
        {
            return;
        }
        sleep(equal_jitter(backoff(FIRST_PAUSE, MAX_PAUSE, failures))).await;
        if updates.sender.is_closed() {
            return;
        }
    }
}

/// Passes snapshots on until the stream ends. Snapshots that cannot be read are errors of the server.
async fn receive(
    client: &AdminClient,
    updates: &Updates,
    has_received: &mut bool,
) -> Result<(), AdminClientError> {
    let mut events = client.events().await?;
    while let Some(data) = events.next_snapshot().await? {
        let update = match serde_json::from_str(&data) {
            Ok(snapshot) => FeedEvent::Snapshot(Box::new(snapshot)),
            Err(error) => FeedEvent::Lost(format!("unexpected data: {error}")),
        };
        *has_received = true;
        if !updates.send(update).await {
            break;
        }
    }
    Ok(())
}
