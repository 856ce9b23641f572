//! The connection of `weir top` to `/events`, opened again whenever it is lost.

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
pub(super) enum FeedUpdate {
    /// The next snapshot.
    Snapshot(Box<ReceivedSnapshot>),
    /// The connection is lost, with the reason. An attempt to connect follows.
    Lost(String),
}

/// Receives snapshots from a task.
#[derive(Debug)]
pub(super) struct Feed {
    updates: Receiver<FeedUpdate>,
}

impl Feed {
    /// Starts following the snapshots of an instance.
    pub(super) fn start(client: AdminClient) -> Self {
        // One place: a terminal that is stopped must not collect snapshots.
        let (sender, updates) = channel(1);
        tokio::spawn(follow(client, sender));
        Self { updates }
    }

    /// Returns the next update. Safe to cancel.
    pub(super) async fn next(&mut self) -> FeedUpdate {
        match self.updates.recv().await {
            Some(update) => update,
            // The task ends only with this receiver.
            None => std::future::pending().await,
        }
    }
}

async fn follow(client: AdminClient, updates: Sender<FeedUpdate>) {
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
            && updates.send(FeedUpdate::Lost(message)).await.is_err()
        {
            return;
        }
        sleep(equal_jitter(backoff(FIRST_PAUSE, MAX_PAUSE, failures))).await;
        if updates.is_closed() {
            return;
        }
    }
}

/// Passes snapshots on until the stream ends. Snapshots that cannot be read are errors of the server.
async fn receive(
    client: &AdminClient,
    updates: &Sender<FeedUpdate>,
    has_received: &mut bool,
) -> Result<(), AdminClientError> {
    let mut events = client.events().await?;
    while let Some(data) = events.next_snapshot().await? {
        let update = match serde_json::from_str(&data) {
            Ok(snapshot) => FeedUpdate::Snapshot(Box::new(snapshot)),
            Err(error) => FeedUpdate::Lost(format!("unexpected data: {error}")),
        };
        *has_received = true;
        if updates.send(update).await.is_err() {
            break;
        }
    }
    Ok(())
}
