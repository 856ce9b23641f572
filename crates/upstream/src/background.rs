//! Background tasks of an upstream: name resolution, health checks, readmission of ejected endpoints. They end when the
//! upstream is dropped.

use std::sync::{Arc, Weak};

use tokio::runtime::Handle;

use super::cluster::Cluster;
use super::outlier_detection::TICK;
use super::{health_check, resolve};

impl Cluster {
    pub fn start_background_tasks(self: &Arc<Self>, runtime: &Handle) {
        let is_settled = self.is_resolved();
        if !is_settled {
            runtime.spawn(resolve::run_resolver(Arc::downgrade(self)));
        }
        for host in &*self.hosts() {
            health_check::start(self, host, runtime);
        }
        if self.settings().outliers.is_some() && (self.hosts().len() > 1 || !is_settled) {
            runtime.spawn(run_ejections(Arc::downgrade(self)));
        }
    }
}

async fn run_ejections(cluster: Weak<Cluster>) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let Some(cluster) = cluster.upgrade() else { return };
        cluster.tick_ejections();
    }
}
