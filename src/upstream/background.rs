//! What an upstream does beside requests: looks names up, checks endpoints, lets ejected ones in again. Its tasks end when
//! the upstream is gone.

use std::sync::{Arc, Weak};

use tokio::runtime::Handle;

use super::cluster::Cluster;
use super::outlier_detection::TICK;
use super::{health, resolve};

impl Cluster {
    /// Does what is to be done beside requests, for as long as the upstream is there.
    pub fn start(self: &Arc<Self>, runtime: &Handle) {
        let is_settled = self.is_settled();
        if !is_settled {
            runtime.spawn(resolve::keep_resolved(Arc::downgrade(self)));
        }
        for host in &*self.hosts() {
            health::start(self, host, runtime);
        }
        if self.settings().outliers.is_some() && (self.hosts().len() > 1 || !is_settled) {
            runtime.spawn(keep_ejections(Arc::downgrade(self)));
        }
    }
}

async fn keep_ejections(cluster: Weak<Cluster>) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let Some(cluster) = cluster.upgrade() else { return };
        cluster.tick_ejections();
    }
}
